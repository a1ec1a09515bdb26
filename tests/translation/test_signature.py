"""Signatures of C functions: read from the shipped texts, and refused where a candidate could not be called so."""

from __future__ import annotations

import pytest

from kernelforge.errors import TaskError
from kernelforge.records import Task
from kernelforge.translation.signature import numbers, read_signature
from tests.support.factories import make_task
from tests.support.shipped_prompts import shipped

SOURCE = '''"""Twice."""
import torch
import torch.nn as nn
N = 8
class Model(nn.Module):
    def forward(self, x, gain):
        return x * gain
def get_inputs():
    return [torch.randn(N), 2.0]
def get_init_inputs():
    return []
'''


def twice(parameters: str) -> Task:
    return make_task(name="twice", source=SOURCE, c_source=f"void twice({parameters})\n{{\n}}\n")


@pytest.mark.parametrize("task", shipped("translate").tasks, ids=lambda task: task.name)
def test_every_shipped_function_can_be_called(task: Task) -> None:
    signature = read_signature(task)
    assert str(signature) in " ".join(task.c_source.split()).replace("( ", "(")
    assert signature.outputs


def test_numbers_come_from_the_arguments_and_the_constants_of_the_file() -> None:
    signature = read_signature(twice("int n, const float *x, float gain, float *out"))
    assert [item.source for item in signature.parameters] == ["extent", "input", "input", "output"]
    assert numbers(signature, ("x", "gain"), {1: 3}, {"N": 8}) == {"n": 8, "gain": 3.0}


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ("int n, float *x, float gain, float *out", "'x' is const exactly where forward takes it"),
        ("int n, const float *x, float *out", "no parameter 'gain'"),
        ("int m, const float *x, float gain, float *out", "'m' is no input"),
        ("int n, const struct s *x, float gain, float *out", "cannot read the C parameter"),
    ],
)
def test_a_function_that_does_not_fit_its_reference_is_refused(parameters: str, words: str) -> None:
    with pytest.raises(TaskError, match=words.replace("(", r"\(")):
        read_signature(twice(parameters))


def test_a_task_without_c_has_no_signature() -> None:
    with pytest.raises(TaskError, match="has no C function"):
        read_signature(make_task(name="twice", source=SOURCE))
