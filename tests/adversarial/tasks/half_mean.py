"""Mean of each row of float16."""

import torch
import torch.nn as nn

ROWS = 16
COLS = 1024


class Model(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.mean(dim=1)


def get_inputs():
    return [torch.rand(ROWS, COLS).half()]


def get_init_inputs():
    return []
