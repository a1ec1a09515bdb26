"""A polynomial of degree 127 at every element, which is first clamped to [-1, 1]."""

import torch
import torch.nn as nn

COUNT = 262144
TERMS = 64


class Model(nn.Module):
    def forward(self, x: torch.Tensor, coefficients: torch.Tensor) -> torch.Tensor:
        x = torch.clamp(x, -1.0, 1.0)
        total = torch.zeros_like(x)
        for coefficient in coefficients:
            total = total * x + coefficient
        return total


def get_inputs():
    return [torch.randn(COUNT), torch.randn(TERMS)]


def get_init_inputs():
    return []
