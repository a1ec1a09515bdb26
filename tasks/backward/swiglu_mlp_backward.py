"""Gradient of a SwiGLU feed-forward layer for one chunk of a sequence, weights' gradients added up over chunks.

Luo, Li, Zhao and Li, "StreamBP: Memory-Efficient Exact Backpropagation for Long Sequence Training of LLMs", 2025,
arXiv:2506.03077, section 3.2: chunk by chunk the layer's activations are computed again, and what the chunk adds to the
gradients of the weights goes into running sums. y = (silu(x Wg^T) x Wu^T) Wd^T; from g = dL/dy, with a = x Wg^T,
b = x Wu^T and the sigmoid s of a,

    h = a s b,   dh = g Wd,   da = dh b s (1 + a (1 - s)),   db = dh a s
    dx = da Wg + db Wu;   in place: dWg += da^T x,   dWu += db^T x,   dWd += g^T h

x, g and dx are (ROWS, HIDDEN), Wg, Wu and their sums (NEURONS, HIDDEN), Wd and its sum (HIDDEN, NEURONS). The output is
dx; the three sums are compared as well. The chunk of attention is attention_backward, whose queries have a past.
"""

import torch
import torch.nn as nn

ROWS = 256
HIDDEN = 1024
NEURONS = 2816


class Model(nn.Module):
    def forward(
        self,
        x: torch.Tensor,
        gate: torch.Tensor,
        up: torch.Tensor,
        down: torch.Tensor,
        grad: torch.Tensor,
        gate_sum: torch.Tensor,
        up_sum: torch.Tensor,
        down_sum: torch.Tensor,
    ) -> torch.Tensor:
        a, b = torch.matmul(x, gate.t()), torch.matmul(x, up.t())
        s = torch.sigmoid(a)
        dh = torch.matmul(grad, down)
        da, db = dh * b * s * (1.0 + a * (1.0 - s)), dh * a * s
        gate_sum.add_(torch.matmul(da.t(), x))
        up_sum.add_(torch.matmul(db.t(), x))
        down_sum.add_(torch.matmul(grad.t(), a * s * b))
        return torch.matmul(da, gate) + torch.matmul(db, up)


def get_inputs():
    # Every product gives numbers of unit size, and each sum is that of a few chunks before.
    x, grad = torch.randn(2, ROWS, HIDDEN).unbind(0)
    gate, up = (torch.randn(2, NEURONS, HIDDEN) / HIDDEN**0.5).unbind(0)
    down = torch.randn(HIDDEN, NEURONS) / HIDDEN**0.5
    gate_sum, up_sum = (torch.randn(2, NEURONS, HIDDEN) * ROWS**0.5).unbind(0)
    return [x, gate, up, down, grad, gate_sum, up_sum, torch.randn(HIDDEN, NEURONS) * ROWS**0.5]


def get_init_inputs():
    return []
