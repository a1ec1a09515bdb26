"""Cosine of cosine of cosine...: 64 times, so that arithmetic takes far longer than moving the bytes."""

import torch
import torch.nn as nn

ROWS = 2048
COLS = 4096
STEPS = 64


class Model(nn.Module):
    def __init__(self, steps: int) -> None:
        super().__init__()
        self.steps = steps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(self.steps):
            x = torch.cos(x)
        return x


def get_inputs():
    return [torch.randn(ROWS, COLS)]


def get_init_inputs():
    return [STEPS]
