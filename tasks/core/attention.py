"""Single-head attention, softmax(Q K^T / sqrt(d)) V, without a mask."""

import math

import torch
import torch.nn as nn

QUERIES = 512
KEYS = 512
HEAD_DIM = 64


class Model(nn.Module):
    def __init__(self, head_dim: int) -> None:
        super().__init__()
        self.scale = 1.0 / math.sqrt(head_dim)

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        scores = torch.matmul(q, k.transpose(0, 1)) * self.scale
        return torch.matmul(torch.softmax(scores, dim=-1), v)


def get_inputs():
    return [torch.randn(QUERIES, HEAD_DIM), torch.randn(KEYS, HEAD_DIM), torch.randn(KEYS, HEAD_DIM)]


def get_init_inputs():
    return [HEAD_DIM]
