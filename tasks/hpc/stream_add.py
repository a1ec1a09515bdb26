"""STREAM's add: the sum of two vectors, in double precision.

J. D. McCalpin, "Memory Bandwidth and Machine Balance in Current High Performance Computers", IEEE TCCA Newsletter,
December 1995. a and b are float64 (N).

    out[i] = a[i] + b[i]

STREAM counts 24 bytes for each element, those that are read and those that are written.
"""

import torch
import torch.nn as nn

N = 2**24


class Model(nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return a + b


def get_inputs():
    return [torch.randn(N, dtype=torch.float64) for _ in range(2)]


def get_init_inputs():
    return []
