"""Max-pooling by windows of four whose tensors are beyond what the oracle of the corpus runs whole."""

import torch
import torch.nn as nn

ROWS = 1024
COLS = 10240
WINDOW = 4


class Model(nn.Module):
    def __init__(self, window: int) -> None:
        super().__init__()
        self.window = window

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.max_pool1d(x, self.window)


def get_inputs():
    return [torch.rand(ROWS, COLS)]


def get_init_inputs():
    return [WINDOW]
