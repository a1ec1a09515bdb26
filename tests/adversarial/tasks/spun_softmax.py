"""Softmax of a size that is compared whole unless a candidate makes it look dear."""

import torch
import torch.nn as nn

ROWS = 2048
COLS = 2048


class Model(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x, dim=1)


def get_inputs():
    return [torch.rand(ROWS, COLS)]


def get_init_inputs():
    return []
