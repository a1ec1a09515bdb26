"""Builders shared by the oracle's tests."""

from __future__ import annotations

import ast

import numpy as np
import torch

from kernelforge.evaluation.oracle.worker.comparison import Got
from kernelforge.evaluation.oracle.worker.reference import tensor_bytes
from kernelforge.evaluation.oracle.worker.reference_runner import InputDraw, ReferenceRunner
from kernelforge.records import Comparison, DType, Size, Task, TaskPolicy


def make_task(
    forward: str, inputs: str, *, init: str = "pass", policy: TaskPolicy | None = None, head: str = ""
) -> Task:
    """A task from the body of ``forward`` (an expression), its inputs and the body of ``__init__``."""
    arguments = ast.parse(f"[{inputs}]", mode="eval").body
    assert isinstance(arguments, ast.List)
    names = "abcdefgh"[: len(arguments.elts)]
    source = f"""
import torch
import torch.nn as nn
import torch.nn.functional as F
{head}

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        {init}

    def forward(self, {", ".join(names)}):
        return {forward}


def get_inputs():
    return [{inputs}]


def get_init_inputs():
    return []
"""
    sizes = (Size(name="full"), Size(name="small"), Size(name="hidden_same"))
    return Task(name="t", suite="test", title="t", level=1, source=source, sizes=sizes, policy=policy or TaskPolicy())


def got(value: torch.Tensor | np.ndarray) -> Got:
    tensor = torch.as_tensor(value).contiguous()
    return Got(tensor_bytes(tensor), tuple(tensor.shape), DType(str(tensor.dtype).removeprefix("torch.")))


def judge(reckoner: ReferenceRunner, drawn: InputDraw, *values: torch.Tensor | np.ndarray) -> Comparison:
    return reckoner.compare(drawn, [got(value) for value in values])


def tensors(drawn: InputDraw) -> list[torch.Tensor]:
    return [value for value in drawn.inputs if isinstance(value, torch.Tensor)]
