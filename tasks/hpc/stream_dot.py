"""BabelStream's dot: the dot product of two vectors in double precision.

T. Deakin et al., "Evaluating Attainable Memory Bandwidth of Parallel Programming Models via BabelStream",
International Journal of Computational Science and Engineering 17(3), 2018. a and b are float64 (N); the result is a
tensor of one element.

    out = sum over i of a[i] b[i]

BabelStream counts 16 bytes for each pair of elements.
"""

import torch
import torch.nn as nn

N = 2**24


class Model(nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return (a * b).sum().reshape(1)


def get_inputs():
    return [torch.randn(N, dtype=torch.float64) for _ in range(2)]


def get_init_inputs():
    return []
