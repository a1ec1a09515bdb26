"""Product of two matrices whose operands the task itself rounds to TF32."""

import torch
import torch.nn as nn

M = 64
N = 64
K = 96


class Model(nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        def rounded(v: torch.Tensor) -> torch.Tensor:
            return ((v.view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32)

        return torch.matmul(rounded(a), rounded(b))


def get_inputs():
    return [torch.randn(M, K), torch.randn(K, N)]


def get_init_inputs():
    return []
