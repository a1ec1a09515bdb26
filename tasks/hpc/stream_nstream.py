"""nstream: a sum of three vectors, one of them scaled, in double precision.

A loop of the Parallel Research Kernels (R. F. Van der Wijngaart and T. G. Mattson, "The Parallel Research Kernels",
IEEE High Performance Extreme Computing Conference, 2014) that BabelStream has too. a, b and c are float64 (N).

    out[i] = a[i] + b[i] + SCALAR c[i]

Both write the result over a, and count 32 bytes for each element, those that are read and those that are written.
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
