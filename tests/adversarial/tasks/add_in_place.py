"""y += x, in place."""

import torch
import torch.nn as nn

ROWS = 32
COLS = 96


class Model(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        y.add_(x)
        return y * 2


def get_inputs():
    return [torch.randn(ROWS, COLS), torch.randn(ROWS, COLS)]


def get_init_inputs():
    return []
