"""Running sums of rows whose tensors are beyond what the oracle of the corpus runs whole."""

import torch
import torch.nn as nn

ROWS = 128
COLS = 51200


class Model(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cumsum(x, dim=1)


def get_inputs():
    return [torch.rand(ROWS, COLS)]


def get_init_inputs():
    return []
