"""GELU activation, tanh form, over a matrix."""

import torch
import torch.nn as nn
import torch.nn.functional as F

ROWS = 1024
COLS = 4096


class Model(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.gelu(x, approximate="tanh")


def get_inputs():
    return [torch.randn(ROWS, COLS)]


def get_init_inputs():
    return []
