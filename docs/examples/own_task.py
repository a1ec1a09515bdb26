"""Write a task file of your own and search for a kernel for it."""

import tempfile
from pathlib import Path

import kernelforge

TASK = '''
"""Row-wise root mean square."""

import torch
import torch.nn as nn

ROWS = 64
COLUMNS = 300


class Model(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.pow(2).mean(dim=1).sqrt()


def get_inputs():
    return [torch.randn(ROWS, COLUMNS)]


def get_init_inputs():
    return []
'''

with tempfile.TemporaryDirectory() as folder:
    path = Path(folder) / "row_rms.py"
    path.write_text(TASK)
    outcome = kernelforge.optimize(
        path, device="emulated:h100", budget=kernelforge.Budget(rounds=1), seed=1, results=Path(folder) / "results"
    )

assert outcome.best is not None
print("verdict:", outcome.best.evaluation.verdict)
