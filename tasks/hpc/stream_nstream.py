"""BabelStream's nstream: a sum of three vectors, one of them scaled, in double precision.

T. Deakin et al., "Evaluating Attainable Memory Bandwidth of Parallel Programming Models via BabelStream",
International Journal of Computational Science and Engineering 17(3), 2018. a, b and c are float64 (N).

    out[i] = a[i] + b[i] + SCALAR c[i]

BabelStream, which writes the result over a, counts 32 bytes for each element, those that are read and those that are
written.
"""

import torch
import torch.nn as nn

N = 2**24
SCALAR = 3.0


class Model(nn.Module):
    def __init__(self, scalar: float) -> None:
        super().__init__()
        self.scalar = scalar

    def forward(self, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        return a + b + self.scalar * c


def get_inputs():
    return [torch.randn(N, dtype=torch.float64) for _ in range(3)]


def get_init_inputs():
    return [SCALAR]
