"""Swish whose tensors are beyond what the oracle of the corpus runs whole."""

import torch
import torch.nn as nn

ROWS = 1024
COLS = 6400


class Model(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.sigmoid(x)


def get_inputs():
    return [torch.rand(ROWS, COLS)]


def get_init_inputs():
    return []
