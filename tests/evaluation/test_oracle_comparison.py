"""Messages to a Coder about a wrong answer, and which answers are right."""

from __future__ import annotations

import math

import pytest
import torch

from kernelforge.evaluation.oracle.worker.comparison import Got
from kernelforge.evaluation.oracle.worker.reference_runner import InputDraw, ReferenceRunner
from kernelforge.records import DType, TaskPolicy
from tests.evaluation.oracle_tasks import got, judge, make_task, tensors


@pytest.fixture(scope="module")
def copying() -> ReferenceRunner:
    return ReferenceRunner(make_task("a * 2.0", "torch.randn(64, 100)"))


@pytest.fixture
def drawn(copying: ReferenceRunner) -> InputDraw:
    return copying.draw("small", "task", 1)


def doubled(drawn: InputDraw) -> torch.Tensor:
    return tensors(drawn)[0] * 2.0


def test_the_worst_element_is_shown_with_index_and_both_values(copying: ReferenceRunner, drawn: InputDraw) -> None:
    value = doubled(drawn)
    value[3, 17] += 100.0
    comparison = judge(copying, drawn, value)
    assert (comparison.mismatched, comparison.total, comparison.worst_index) == (1, 6400, (3, 17))
    assert comparison.got == pytest.approx(comparison.expected + 100.0)
    assert "output 0 (shape 64x100): 1 of 6400 elements differ; worst at [3, 17]: expected" in comparison.message
    assert "x the tolerance" in comparison.message


def test_a_wrong_tail_is_named(copying: ReferenceRunner, drawn: InputDraw) -> None:
    value = doubled(drawn)
    value[:, 96:] = 0.0
    message = judge(copying, drawn, value).message
    assert "only indices 96 and above along axis 1 are wrong" in message
    assert "every differing element is zero" in message


def test_a_constant_factor_is_named(copying: ReferenceRunner, drawn: InputDraw) -> None:
    assert "0.5x the expected" in judge(copying, drawn, doubled(drawn) * 0.5).message


@pytest.mark.parametrize("poison", [0xA5, 0x5A])
def test_unwritten_elements_are_named(copying: ReferenceRunner, drawn: InputDraw, poison: int) -> None:
    data = bytearray(got(doubled(drawn)).data)
    data[-400:] = bytes([poison]) * 400
    comparison = copying.compare(drawn, [Got(bytes(data), (64, 100), DType.FLOAT32)])
    assert "look unwritten" in comparison.message
    assert "indices 63 and above along axis 0" in comparison.message


def test_nan_is_never_a_wildcard(copying: ReferenceRunner, drawn: InputDraw) -> None:
    value = doubled(drawn)
    value[5] = math.nan
    comparison = judge(copying, drawn, value)
    assert not comparison.ok
    assert "100 NaN where a number is expected" in comparison.message
    assert comparison.error == math.inf


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (torch.zeros(100, 64), "shape 100x64 and dtype float32; the reference has shape 64x100"),
        (torch.zeros(1), "shape 1 and dtype float32"),
        (torch.zeros(64, 100, dtype=torch.float64), "dtype float64; the reference has shape 64x100 and dtype float32"),
    ],
)
def test_shape_and_dtype_are_exact(copying: ReferenceRunner, drawn: InputDraw, value: torch.Tensor, words: str) -> None:
    assert words in judge(copying, drawn, value).message


def test_the_number_of_outputs_is_exact(copying: ReferenceRunner, drawn: InputDraw) -> None:
    value = doubled(drawn)
    assert "2 outputs came back, the reference has 1" in judge(copying, drawn, value, value).message


def test_too_few_bytes_are_no_output(copying: ReferenceRunner, drawn: InputDraw) -> None:
    assert not copying.compare(drawn, [Got(b"\0" * 8, (64, 100), DType.FLOAT32)]).ok


def test_a_hidden_size_is_not_told(copying: ReferenceRunner) -> None:
    drawn = copying.draw("hidden_same", "task", 1)
    value = doubled(drawn)
    value[3, 17:] = math.nan
    message = judge(copying, drawn, value).message
    assert not any(number in message for number in ("64", "100", "17", "[3", "83"))
    assert "only a tail of axis 1 is wrong" in message
    assert "64" not in judge(copying, drawn, torch.zeros(5)).message


def test_infinities_stand_where_torch_has_them() -> None:
    reckoner = ReferenceRunner(make_task("a / (a > 0)", "torch.randn(32)"))
    drawn = reckoner.draw("small", "task", 1)
    x = tensors(drawn)[0]
    assert judge(reckoner, drawn, x / (x > 0)).ok
    assert not judge(reckoner, drawn, torch.where(x > 0, x, math.inf)).ok
    assert not judge(reckoner, drawn, torch.where(x > 0, x, 0.0)).ok


def test_ties_of_an_argmax_are_accepted_and_lesser_values_are_not() -> None:
    task = make_task("torch.argmax(a, 1)", "torch.randint(0, 3, (32, 40)).float()", policy=TaskPolicy(ties=(0,)))
    reckoner = ReferenceRunner(task)
    drawn = reckoner.draw("small", "task", 1)
    x = tensors(drawn)[0]
    last = 39 - x.flip(1).argmax(1)
    assert not torch.equal(last, x.argmax(1))
    assert judge(reckoner, drawn, last).ok
    assert not judge(reckoner, drawn, x.argmin(1)).ok
    assert not judge(reckoner, drawn, last + 40).ok
    assert not judge(reckoner, drawn, last.int()).ok


def test_without_the_policy_indices_are_exact() -> None:
    reckoner = ReferenceRunner(make_task("torch.argmax(a, 1)", "torch.randint(0, 3, (32, 40)).float()"))
    drawn = reckoner.draw("small", "task", 1)
    x = tensors(drawn)[0]
    assert judge(reckoner, drawn, x.argmax(1)).ok
    assert not judge(reckoner, drawn, 39 - x.flip(1).argmax(1)).ok


def test_ties_of_a_top_k_must_be_distinct() -> None:
    policy = TaskPolicy(ties=(1,))
    reckoner = ReferenceRunner(
        make_task("torch.topk(a, 3, dim=1)", "torch.randint(0, 2, (8, 40)).float()", policy=policy)
    )
    drawn = reckoner.draw("small", "task", 1)
    x = tensors(drawn)[0]
    values, indices = torch.topk(x, 3, dim=1)
    assert judge(reckoner, drawn, values, 39 - torch.topk(x.flip(1), 3, dim=1).indices).ok
    assert not judge(reckoner, drawn, values, indices[:, :1].expand(8, 3)).ok


def test_ties_of_an_argmax_over_everything() -> None:
    policy = TaskPolicy(ties=(0,))
    reckoner = ReferenceRunner(make_task("torch.argmax(a)", "torch.randint(0, 2, (8, 40)).float()", policy=policy))
    drawn = reckoner.draw("small", "task", 1)
    assert judge(reckoner, drawn, 319 - tensors(drawn)[0].flatten().flip(0).argmax()).ok


@pytest.mark.parametrize(
    "call",
    ["kthvalue(a, 3)", "kthvalue(a, 3, 0)", "kthvalue(a, 3, dim=0)", "median(a, -1)", "max(a, 0)", "min(a, dim=1)"],
)
def test_ties_are_judged_along_the_axis_that_was_searched(call: str) -> None:
    task = make_task(f"torch.{call}[1]", "torch.randint(0, 4, (8, 12)).float()", policy=TaskPolicy(ties=(0,)))
    reckoner = ReferenceRunner(task)
    drawn = reckoner.draw("small", "task", 1)
    x = tensors(drawn)[0]
    axis = 0 if "0" in call else 1
    lines = x.movedim(axis, 1)
    values, indices = eval(f"torch.{call}", {"torch": torch, "a": x})
    equal = lines == values[:, None]
    assert judge(reckoner, drawn, indices).ok
    last = lines.shape[1] - 1 - equal.flip(1).int().argmax(1)
    assert not torch.equal(last, indices)
    assert judge(reckoner, drawn, last).ok
    for line in range(len(lines)):
        for other in (~equal[line]).nonzero().flatten():
            assert not judge(reckoner, drawn, indices.index_fill(0, torch.tensor(line), other)).ok
