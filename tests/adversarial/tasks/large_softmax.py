"""Softmax whose tensors are beyond what the oracle of the corpus runs whole."""

import torch
import torch.nn as nn

ROWS = 2048
COLS = 3200


class Model(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x, dim=1)


def get_inputs():
    return [torch.rand(ROWS, COLS)]


def get_init_inputs():
    return []
