"""Softmax over the rows of a product, whose arithmetic is beyond what is emulated whole."""

import math

import torch
import torch.nn as nn

M = 4096
N = 2048
K = 512


class Model(nn.Module):
    def __init__(self, inner: int) -> None:
        super().__init__()
        self.scale = math.sqrt(inner)

    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.softmax(torch.matmul(a, b) / self.scale, dim=1)


def get_inputs():
    return [torch.randn(M, K), torch.randn(K, N)]


def get_init_inputs():
    return [K]
