"""One step of GaLore: Adam in a subspace of low rank, in place, and a copy in bfloat16.

Zhao, Zhang, Chen, Wang, Anandkumar and Tian, "GaLore: Memory-Efficient LLM Training by Gradient Low-Rank Projection",
ICML 2024, arXiv:2403.03507, algorithm 2, between two renewals of the projection. For the gradient g (ROWS, COLS) and
the projection (ROWS, RANK), whose columns are orthonormal, after `step` steps including this one,
    r = projection^T g,   m = BETA1 m + (1 - BETA1) r,   v = BETA2 v + (1 - BETA2) r^2
    n = (m / (1 - BETA1^step)) / (sqrt(v / (1 - BETA2^step)) + EPS)
    parameter = parameter - RATE SCALE projection n
The moments are (RANK, COLS); parameter (ROWS, COLS), m and v are updated in place. The result is the new parameter
rounded to bfloat16, which the next forward pass reads.
"""

import math

import torch
import torch.nn as nn

ROWS = 4096
COLS = 8192
RANK = 128
STEP = 7
RATE = 1e-2
SCALE = 0.25
BETA1 = 0.9
BETA2 = 0.999
EPS = 1e-8


class Model(nn.Module):
    def __init__(self, rate: float, scale: float, beta1: float, beta2: float, eps: float) -> None:
        super().__init__()
        self.rate = rate
        self.scale = scale
        self.beta1 = beta1
        self.beta2 = beta2
        self.eps = eps

    def forward(
        self,
        parameter: torch.Tensor,
        grad: torch.Tensor,
        projection: torch.Tensor,
        m: torch.Tensor,
        v: torch.Tensor,
        step: int,
    ) -> torch.Tensor:
        low = torch.matmul(projection.t(), grad)
        m.copy_(self.beta1 * m + (1.0 - self.beta1) * low)
        v.copy_(self.beta2 * v + (1.0 - self.beta2) * low * low)
        root = torch.sqrt(v) / math.sqrt(1.0 - self.beta2**step)
        direction = m / (1.0 - self.beta1**step) / (root + self.eps)
        parameter.sub_(self.rate * self.scale * torch.matmul(projection, direction))
        return parameter.to(torch.bfloat16)


def get_inputs():
    # Columns of very different sizes, down to where the constant under the fraction counts.
    size = 10.0 ** (-9.0 * torch.rand(COLS))
    projection = torch.linalg.qr(torch.randn(ROWS, RANK))[0].contiguous()
    m, v = size * torch.randn(RANK, COLS), (size * torch.randn(RANK, COLS)) ** 2
    return [0.02 * torch.randn(ROWS, COLS), size * torch.randn(ROWS, COLS), projection, m, v, STEP]


def get_init_inputs():
    return [RATE, SCALE, BETA1, BETA2, EPS]
