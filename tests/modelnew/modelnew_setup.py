"""A small task for the ModelNew tests, an honest candidate for it, and limits that no slow machine meets."""

from __future__ import annotations

from collections.abc import Callable

from kernelforge.records import Evaluation
from kernelforge.sandbox import Limits

Judge = Callable[..., Evaluation]

REFERENCE = """
import torch
import torch.nn as nn

ROWS = 64
COLS = 96
BIAS = True


class Model(nn.Module):
    def __init__(self, features, bias):
        super().__init__()
        self.fc = nn.Linear(features, features, bias=bias)
        self.register_buffer("shift", torch.full((features,), 0.5))

    def forward(self, x, y):
        return torch.relu(self.fc(x) + y) + self.shift


def get_inputs():
    return [torch.randn(ROWS, COLS), torch.randn(ROWS, COLS)]


def get_init_inputs():
    return [COLS, BIAS]
"""

HEAD = """
import torch
import torch.nn as nn

class ModelNew(nn.Module):
    def __init__(self, features, bias):
        super().__init__()
        self.fc = nn.Linear(features, features, bias=bias)
        self.register_buffer("shift", torch.full((features,), 0.5))
        self.kept = {}

    def honest(self, x, y):
        return torch.relu(torch.addmm(self.fc.bias, x, self.fc.weight.t()) + y) + self.shift

    def forward(self, x, y):
"""


def forward(*lines: str, before: str = "") -> str:
    """A candidate with these lines in ``forward``; ``self.honest(x, y)`` is the right result."""
    return before + HEAD + "".join(f"        {line}\n" for line in lines)


HONEST = forward("return self.honest(x, y)")

LIMITS = Limits(wall_s=120, cpu_s=300, memory_bytes=1 << 30, tmp_bytes=16 << 20, processes=8)
