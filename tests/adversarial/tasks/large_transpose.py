"""Transpose whose tensors are beyond what the oracle of the corpus runs whole."""

import torch
import torch.nn as nn

ROWS = 2560
COLS = 2560


class Model(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.t().contiguous()


def get_inputs():
    return [torch.rand(ROWS, COLS)]


def get_init_inputs():
    return []
