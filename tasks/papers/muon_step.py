"""One step of Muon on a matrix of parameters, by Newton and Schulz's iteration, in place, and a copy in bfloat16.

Jordan, Jin, Boza, You, Cesista, Newhouse and Bernstein, "Muon: An optimizer for hidden layers in neural networks",
2024, scaled as in Liu, Su et al., "Muon is Scalable for LLM Training", 2025, arXiv:2502.16982. For gradient g,
    momentum = MOMENTUM momentum + g,   u = g + MOMENTUM momentum,   X = u / |u|, the Frobenius norm
    STEPS times:  A = X X^T,   X = a X + (b A + c A A) X,   (a, b, c) = (3.4445, -4.7750, 2.0315)
    parameter = (1 - RATE DECAY) parameter - RATE 0.2 sqrt(max(ROWS, COLS)) X
X X^T is as well X^T X on the other side where that is smaller: X = a X + X (b A + c A A), A = X^T X. parameter, grad
and momentum are (ROWS, COLS); parameter and momentum are updated in place. The result is the new
parameter rounded to bfloat16, which the next forward pass reads.
"""

import math

import torch
import torch.nn as nn

ROWS = 1024
COLS = 2048
MOMENTUM = 0.95
RATE = 0.02
DECAY = 0.1
STEPS = 5

A, B, C = (3.4445, -4.7750, 2.0315)


class Model(nn.Module):
    def __init__(self, momentum: float, rate: float, decay: float, steps: int) -> None:
        super().__init__()
        self.momentum = momentum
        self.rate = rate
        self.decay = decay
        self.steps = steps

    def forward(self, parameter: torch.Tensor, grad: torch.Tensor, momentum: torch.Tensor) -> torch.Tensor:
        momentum.copy_(self.momentum * momentum + grad)
        x = grad + self.momentum * momentum
        x = x / torch.linalg.vector_norm(x)
        tall = x.shape[0] > x.shape[1]
        if tall:
            x = x.t()
        for _ in range(self.steps):
            square = torch.matmul(x, x.t())
            x = A * x + torch.matmul(B * square + C * torch.matmul(square, square), x)
        if tall:
            x = x.t()
        rate = 0.2 * self.rate * math.sqrt(max(x.shape))
        parameter.copy_((1.0 - self.rate * self.decay) * parameter - rate * x)
        return parameter.to(torch.bfloat16)


def get_inputs():
    return [0.02 * torch.randn(ROWS, COLS), torch.randn(ROWS, COLS), torch.randn(ROWS, COLS)]


def get_init_inputs():
    return [MOMENTUM, RATE, DECAY, STEPS]
