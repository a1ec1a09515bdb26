"""An LSTM over a sequence, with recurrent weights that are block-diagonal, one block per head.

Poeppel, Beck and Hochreiter, "FlashRNN: I/O-Aware Optimization of Traditional RNNs on modern hardware", ICLR 2025,
arXiv:2412.07752, whose fused kernel keeps weights and states on the chip over all steps. The gates i, f, z, o of head a
are, with the input's share wx (BATCH, STEPS, HEADS, 4, WIDTH) already multiplied and R (HEADS, 4, WIDTH, WIDTH) and b
(HEADS, 4, WIDTH) parameters,
    g[n, t, a, q, :] = wx[n, t, a, q, :] + h[n, t - 1, a, :] R[a, q] + b[a, q]
    c_t = sigmoid(f) c_(t-1) + sigmoid(i) tanh(z),   h_t = sigmoid(o) tanh(c_t)
from the state h, c (BATCH, HEADS, WIDTH). Results: h and c after each step (BATCH, STEPS, HEADS, WIDTH), and the four
activated gates in wx's shape, which the backward pass reads.
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
        self.bias = nn.Parameter(0.1 * torch.randn(heads, 4, width))

    def forward(
        self, wx: torch.Tensor, h: torch.Tensor, c: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        hidden, cells, gates = [], [], []
        for step in wx.unbind(1):
            i, f, z, o = (step + torch.einsum("nak,aqkj->naqj", h, self.recurrent) + self.bias).unbind(2)
            i, f, z, o = torch.sigmoid(i), torch.sigmoid(f), torch.tanh(z), torch.sigmoid(o)
            c = f * c + i * z
            h = o * torch.tanh(c)
            hidden.append(h)
            cells.append(c)
            gates.append(torch.stack([i, f, z, o], dim=2))
        return torch.stack(hidden, dim=1), torch.stack(cells, dim=1), torch.stack(gates, dim=1)


def get_inputs():
    state = (BATCH, HEADS, WIDTH)
    return [torch.randn(BATCH, STEPS, HEADS, 4, WIDTH), torch.randn(state), torch.randn(state)]


def get_init_inputs():
    return [HEADS, WIDTH]
