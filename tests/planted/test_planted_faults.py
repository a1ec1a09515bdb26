"""The built-in Judge names bottlenecks planted by a person who had not read it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from benchmarks.judge import DEVICE, is_named, judge, kernels
from kernelforge.evaluation.pool import EvaluatorPool
from kernelforge.records import Finding, Verdict


@pytest.mark.parametrize(
    ("bottleneck", "headline", "named"),
    [
        ("uncoalesced", "x", True),
        ("bank-conflict", "x", False),
        (None, "its strided stores hurt", True),
        (None, "it is memory bound", False),
        ("dram-bound", "DRAM bound", False),
    ],
)
def test_a_symptom_is_no_name(bottleneck: str | None, headline: str, named: bool) -> None:
    finding = Finding(kind="optimise", headline=headline, why="w", action="a", bottleneck=bottleneck)
    assert is_named(finding, ["uncoalesced global access", "strided stores"]) is named


@pytest.fixture(scope="module")
def workshop(open_warm: Callable[..., EvaluatorPool]) -> Iterator[EvaluatorPool]:
    with open_warm(EvaluatorPool, DEVICE, threads=2) as made:
        yield made


@pytest.mark.slow
@pytest.mark.one_in(30)
@pytest.mark.parametrize("kernel", kernels(), ids=lambda kernel: kernel["file"])
def test_a_planted_bottleneck_is_named(kernel: dict[str, Any], workshop: EvaluatorPool) -> None:
    """A kernel that was planted must be correct; of these thirty the script asks for 28."""
    judged = judge(kernel, workshop)
    assert judged.verdict is Verdict.OK
    assert judged.named, judged.finding


def test_thirty_are_planted() -> None:
    assert len(kernels()) == 30
