"""One step of AdamW on a tensor of parameters; parameters and both moments in place, and a copy in bfloat16.

Loshchilov and Hutter, "Decoupled Weight Decay Regularization", ICLR 2019, arXiv:1711.05101, algorithm 2, with a
constant schedule. For the gradient g, after `step` steps including this one,
    m = BETA1 m + (1 - BETA1) g,   v = BETA2 v + (1 - BETA2) g^2
    parameter = (1 - RATE DECAY) parameter
                - RATE (m / (1 - BETA1^step)) / (sqrt(v / (1 - BETA2^step)) + EPS)
parameter, grad, m and v hold N elements, and parameter, m and v are updated in place. The result is the new parameter
rounded to bfloat16, which the next forward pass reads (mixed precision, as of Micikevicius et al., arXiv:1710.03740).
"""

import math

import torch
import torch.nn as nn

N = 2**24
STEP = 7
RATE = 1e-3
BETA1 = 0.9
BETA2 = 0.999
EPS = 1e-8
DECAY = 0.1


class Model(nn.Module):
    def __init__(self, rate: float, beta1: float, beta2: float, eps: float, decay: float) -> None:
        super().__init__()
        self.rate = rate
        self.beta1 = beta1
        self.beta2 = beta2
        self.eps = eps
        self.decay = decay

    def forward(
        self, parameter: torch.Tensor, grad: torch.Tensor, m: torch.Tensor, v: torch.Tensor, step: int
    ) -> torch.Tensor:
        m.copy_(self.beta1 * m + (1.0 - self.beta1) * grad)
        v.copy_(self.beta2 * v + (1.0 - self.beta2) * grad * grad)
        rate = self.rate / (1.0 - self.beta1**step)
        root = torch.sqrt(v) / math.sqrt(1.0 - self.beta2**step)
        parameter.copy_((1.0 - self.rate * self.decay) * parameter - rate * m / (root + self.eps))
        return parameter.to(torch.bfloat16)


def get_inputs():
    # Gradients of very different sizes, down to where the constant under the fraction counts.
    size = 10.0 ** (-9.0 * torch.rand(N))
    return [0.02 * torch.randn(N), size * torch.randn(N), size * torch.randn(N), (size * torch.randn(N)) ** 2, STEP]


def get_init_inputs():
    return [RATE, BETA1, BETA2, EPS, DECAY]
