"""STREAM's scale: a scalar times a vector, in double precision.

J. D. McCalpin, "Memory Bandwidth and Machine Balance in Current High Performance Computers", IEEE TCCA Newsletter,
December 1995. a is float64 (N).

    out[i] = SCALAR a[i]

STREAM counts 16 bytes for each element, those that are read and those that are written.
"""

import torch
import torch.nn as nn

N = 2**24
SCALAR = 3.0


class Model(nn.Module):
    def __init__(self, scalar: float) -> None:
        super().__init__()
        self.scalar = scalar

    def forward(self, a: torch.Tensor) -> torch.Tensor:
        return self.scalar * a


def get_inputs():
    return [torch.randn(N, dtype=torch.float64)]


def get_init_inputs():
    return [SCALAR]
