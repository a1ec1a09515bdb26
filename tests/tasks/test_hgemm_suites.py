"""``hgemm`` and ``hgemm-f16``: CUDA-L2's grid, and what tells a float16 accumulator from a float32 one."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import pytest
import torch

from kernelforge.evaluation.oracle.worker.comparison import Got
from kernelforge.evaluation.oracle.worker.reference_runner import InputDraw, ReferenceRunner
from kernelforge.records import DType
from kernelforge.tasks import load_task, parse_task_file
from tests.support.shipped_prompts import shipped

EXTENTS = (64, 128, 256, 512, 1024, 2048, 4096, 8192, 12288, 16384)
LONG = "hidden_long"
HGEMM, HALF = shipped("hgemm"), shipped("hgemm-f16")
WIDE, NARROW = (ReferenceRunner(suite.tasks[0]) for suite in (HGEMM, HALF))


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """As in the oracle's child; products as small as these gain nothing from more."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def in_half(a: torch.Tensor, b: torch.Tensor, step: int) -> torch.Tensor:
    """Result of a tensor core with a float16 accumulator: exact sums of ``step`` terms, each added and rounded."""
    total = torch.zeros(a.shape[0], b.shape[1], dtype=torch.float16)
    for k in range(0, a.shape[1], step):
        part = a[:, k : k + step].double() @ b[k : k + step].double()
        total = (total.double() + part).half()
    return total


def in_single(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    total = torch.zeros(a.shape[0], b.shape[1])
    for k in range(a.shape[1]):
        total += a[:, k : k + 1].float() * b[k : k + 1].float()
    return total.half()


def passes(reckoner: ReferenceRunner, drawn: InputDraw, answer: torch.Tensor) -> bool:
    return reckoner.compare(drawn, [Got(answer.contiguous(), tuple(answer.shape), DType.FLOAT16)]).ok


def operands(drawn: InputDraw) -> tuple[torch.Tensor, torch.Tensor]:
    a, b = (value for value in drawn.inputs if isinstance(value, torch.Tensor))
    return a, b


def test_the_grid_is_that_of_cuda_l2() -> None:
    for suite in (HGEMM, HALF):
        for task in suite.tasks[::37]:
            assert "m{M}_n{N}_k{K}".format(**parse_task_file(task.source, task.name).constants) == task.name
        assert [task.name for task in suite] == [f"m{m}_n{n}_k{k}" for m, n, k in product(EXTENTS, repeat=3)]
        assert len({task.digest for task in suite}) == 1000
    assert load_task("hgemm/m64_n8192_k128").title == "Half-precision product, 64 x 128 by 128 x 8192"


def test_the_two_differ_in_the_accumulator_alone() -> None:
    assert {task.policy.accumulator for task in HGEMM} == {"float32"}
    assert {task.policy.accumulator for task in HALF} == {"float16"}
    for item, other in zip(HGEMM.tasks[::50], HALF.tasks[::50], strict=True):
        assert (item.name, item.source, item.sizes) == (other.name, other.source, other.sizes)


@pytest.mark.slow
@pytest.mark.one_in(3)
@pytest.mark.parametrize("step", [1, 16])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_float16_accumulator_is_refused_by_one_and_accepted_by_the_other(step: int, seed: int) -> None:
    drawn = WIDE.draw(LONG, "task", seed)
    assert operands(drawn)[0].shape[1] > 1024
    assert not passes(WIDE, drawn, in_half(*operands(drawn), step))
    drawn = NARROW.draw(LONG, "task", seed)
    assert passes(NARROW, drawn, in_half(*operands(drawn), step))


@pytest.mark.slow
@pytest.mark.parametrize("size", ["small", "hidden_odd", "hidden_quad", "hidden_tiny", LONG])
@pytest.mark.parametrize("reckoner", [WIDE, NARROW], ids=["hgemm", "hgemm-f16"])
def test_a_float32_accumulator_is_accepted_and_wrong_answers_are_not(size: str, reckoner: ReferenceRunner) -> None:
    drawn, other = reckoner.draw(size, "task", 5), reckoner.draw(size, "task", 6)
    a, b = operands(drawn)
    assert passes(reckoner, drawn, in_single(a, b))
    last = a.shape[1] - 1
    wrong = {
        "zeros": torch.zeros(a.shape[0], b.shape[1]).half(),
        "an earlier answer": in_single(*operands(other)),
        "a row repeated": in_single(a[:1].expand_as(a), b),
        "no tail": torch.zeros(0) if size == LONG else in_single(a[:, : last - last % 32], b[: last - last % 32]),
    }
    assert [name for name, answer in wrong.items() if passes(reckoner, drawn, answer)] == []


@pytest.mark.slow
@pytest.mark.parametrize("family", ["normal", "large", "edge"])
def test_other_inputs_are_admitted_where_a_float16_accumulator_is_allowed(family: str) -> None:
    drawn = NARROW.draw(LONG, family, 7)
    for step in (1, 16):
        assert passes(NARROW, drawn, in_half(*operands(drawn), step))
