"""Linear layer with a bias, then ReLU."""

import torch
import torch.nn as nn

ROWS = 16
IN = 64
OUT = 32


class Model(nn.Module):
    def __init__(self, inside: int, outside: int) -> None:
        super().__init__()
        self.fc = nn.Linear(inside, outside)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.fc(x))


def get_inputs():
    return [torch.randn(ROWS, IN)]


def get_init_inputs():
    return [IN, OUT]
