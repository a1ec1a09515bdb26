"""Gradient of an LSTM with heads over a sequence, for its inputs, recurrent weights, bias and first state.

The backward pass of Poeppel, Beck and Hochreiter, "FlashRNN", ICLR 2025, arXiv:2412.07752. The forward pass is, with
activated gates i, f, z, o = sigmoid, sigmoid, tanh, sigmoid of wx_t + h_(t-1) R + b for each head,
c_t = f c_(t-1) + i z and h_t = o tanh(c_t). Inputs: the saved gates (BATCH, STEPS, HEADS, 4, WIDTH); c and h from the
first state on (BATCH, STEPS + 1, HEADS, WIDTH); dL/dh_t of every step (BATCH, STEPS, HEADS, WIDTH); dL/dc of the last
step (BATCH, HEADS, WIDTH). R (HEADS, 4, WIDTH, WIDTH) is a parameter. From the last step on, with u = tanh(c_t)
and p = dL/dh_t + sum over gates of dg_(t+1) R^T,
    dc_t = dc_(t+1) f_(t+1) + p o (1 - u^2)
    dg_t = dc_t z i (1 - i), dc_t c_(t-1) f (1 - f), dc_t i (1 - z^2), p u o (1 - o)
Results: dg (as dL/dwx), dR = sum of h_(t-1)^T dg_t, db = sum of dg_t, and dL/dh, dL/dc of the first state.
"""

import math

import torch
import torch.nn as nn

BATCH = 64
STEPS = 256
HEADS = 12
WIDTH = 64


class Model(nn.Module):
    def __init__(self, heads: int, width: int) -> None:
        super().__init__()
        self.recurrent = nn.Parameter(torch.randn(heads, 4, width, width) / math.sqrt(width))

    def forward(
        self,
        gates: torch.Tensor,
        cells: torch.Tensor,
        hidden: torch.Tensor,
        grad_hidden: torch.Tensor,
        grad_cell: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:
        past = torch.zeros_like(grad_cell)
        slopes = []
        for t in reversed(range(gates.shape[1])):
            i, f, z, o = gates[:, t].unbind(2)
            squashed = torch.tanh(cells[:, t + 1])
            p = grad_hidden[:, t] + past
            grad_cell = grad_cell + p * o * (1.0 - squashed * squashed)
            di = grad_cell * z * i * (1.0 - i)
            df = grad_cell * cells[:, t] * f * (1.0 - f)
            dz = grad_cell * i * (1.0 - z * z)
            do = p * squashed * o * (1.0 - o)
            slope = torch.stack([di, df, dz, do], dim=2)
            past = torch.einsum("naqj,aqkj->nak", slope, self.recurrent)
            grad_cell = grad_cell * f
            slopes.append(slope)
        grad_gates = torch.stack(slopes[::-1], dim=1)
        grad_recurrent = torch.einsum("ntak,ntaqj->aqkj", hidden[:, :-1], grad_gates)
        return grad_gates, grad_recurrent, grad_gates.sum((0, 1)), past, grad_cell


def get_inputs():
    # Gates and states of a forward pass; each state follows from the gates, as it does there.
    i, f, o = (torch.sigmoid(torch.randn(BATCH, STEPS, HEADS, WIDTH)) for _ in range(3))
    z = torch.tanh(torch.randn(BATCH, STEPS, HEADS, WIDTH))
    cells = [torch.randn(BATCH, HEADS, WIDTH)]
    for t in range(STEPS):
        cells.append(f[:, t] * cells[-1] + i[:, t] * z[:, t])
    c = torch.stack(cells, dim=1)
    h = torch.cat([torch.randn(BATCH, 1, HEADS, WIDTH), o * torch.tanh(c[:, 1:])], dim=1)
    gradients = [torch.randn(BATCH, STEPS, HEADS, WIDTH), torch.randn(BATCH, HEADS, WIDTH)]
    return [torch.stack([i, f, z, o], dim=3), c, h, *gradients]


def get_init_inputs():
    return [HEADS, WIDTH]
