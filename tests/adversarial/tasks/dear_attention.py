"""One head of attention whose arithmetic is beyond what is emulated whole."""

import math

import torch
import torch.nn as nn

QUERIES = 2048
KEYS = 4096
DIM = 64


class Model(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.scale = math.sqrt(dim)

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        scores = torch.matmul(q, k.transpose(0, 1)) / self.scale
        return torch.matmul(torch.softmax(scores, dim=-1), v)


def get_inputs():
    return [torch.randn(QUERIES, DIM), torch.randn(KEYS, DIM), torch.randn(KEYS, DIM)]


def get_init_inputs():
    return [DIM]
