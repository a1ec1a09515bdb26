"""One step of APOLLO: the gradient, its columns scaled as Adam would in a random subspace, in place.

Zhu, Zhang, Cong, Liu, Park, Chandra, Long, Pan, Wang and Lee, "APOLLO: SGD-like Memory, AdamW-level Performance", MLSys
2025, arXiv:2412.05270, algorithm 1 with scales for channels, and the limiter of a norm's growth. For the gradient g
(ROWS, COLS) and the random projection (RANK, ROWS), after `step` steps including this one,
    r = projection g,   m = BETA1 m + (1 - BETA1) r,   v = BETA2 v + (1 - BETA2) r^2
    n = (m / (1 - BETA1^step)) / (sqrt(v / (1 - BETA2^step)) + EPS)
    u[:, j] = g[:, j] |n[:, j]| / |r[:, j]|,   limit = min(1, GROWTH last / |u|),   norm = limit |u|
    parameter = (1 - RATE DECAY) parameter - RATE SCALE limit u
with Euclidean norms, |u| over the whole matrix. last, the norm of the step before, and norm, the result, are tensors of
one element. The moments are (RANK, COLS); parameter (ROWS, COLS), m and v are updated in place.
"""

import math

import torch
import torch.nn as nn

ROWS = 4096
COLS = 8192
RANK = 64
STEP = 7
RATE = 1e-2
SCALE = 1.0
DECAY = 0.1
GROWTH = 1.01
BETA1 = 0.9
BETA2 = 0.999
EPS = 1e-6


class Model(nn.Module):
    def __init__(
        self, rate: float, scale: float, decay: float, growth: float, beta1: float, beta2: float, eps: float
    ) -> None:
        super().__init__()
        self.rate = rate
        self.scale = scale
        self.decay = decay
        self.growth = growth
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
        last: torch.Tensor,
        step: int,
    ) -> torch.Tensor:
        low = torch.matmul(projection, grad)
        m.copy_(self.beta1 * m + (1.0 - self.beta1) * low)
        v.copy_(self.beta2 * v + (1.0 - self.beta2) * low * low)
        root = torch.sqrt(v) / math.sqrt(1.0 - self.beta2**step)
        direction = m / (1.0 - self.beta1**step) / (root + self.eps)
        update = grad * (torch.linalg.vector_norm(direction, dim=0) / torch.linalg.vector_norm(low, dim=0))
        length = torch.linalg.vector_norm(update)
        limit = (self.growth * last / length).clamp(max=1.0)
        step_down = self.rate * self.scale * limit
        parameter.copy_((1.0 - self.rate * self.decay) * parameter - step_down * update)
        return limit * length


def get_inputs():
    # Columns of very different sizes, down to where the constant under the fraction counts. The scaled gradient's norm
    # is about sqrt(ROWS * COLS), and the last one was above or below it.
    size = 10.0 ** (-7.0 * torch.rand(COLS))
    projection = torch.randn(RANK, ROWS) / math.sqrt(RANK)
    low = size * math.sqrt(ROWS / RANK)
    m, v = low * torch.randn(RANK, COLS), (low * torch.randn(RANK, COLS)) ** 2
    last = math.sqrt(ROWS * COLS) * (0.25 + 4.0 * torch.rand(1).round())
    return [0.02 * torch.randn(ROWS, COLS), size * torch.randn(ROWS, COLS), projection, m, v, last, STEP]


def get_init_inputs():
    return [RATE, SCALE, DECAY, GROWTH, BETA1, BETA2, EPS]
