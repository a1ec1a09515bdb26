"""STREAM's triad: a vector plus a scalar times another, in double precision.

J. D. McCalpin, "Memory Bandwidth and Machine Balance in Current High Performance Computers", IEEE TCCA Newsletter,
December 1995. a and b are float64 (N).

    out[i] = a[i] + SCALAR b[i]

STREAM counts 24 bytes for each element, those that are read and those that are written.
"""

import torch
import torch.nn as nn

N = 2**24
SCALAR = 3.0


class Model(nn.Module):
    def __init__(self, scalar: float) -> None:
        super().__init__()
        self.scalar = scalar

    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return a + self.scalar * b


def get_inputs():
    return [torch.randn(N, dtype=torch.float64) for _ in range(2)]


def get_init_inputs():
    return [SCALAR]
