"""The built-in Judge names bottlenecks planted by a person who had not read it."""

from __future__ import annotations

import pytest

from benchmarks.judge import is_named, judge_all, kernels
from kernelforge.records import Finding, Verdict

WANTED = 28


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


@pytest.mark.slow
@pytest.mark.usefixtures("warm_zygotes")
@pytest.mark.timeout(900)  # a minute alone, several with other tests
def test_at_least_28_of_30_planted_bottlenecks_are_named() -> None:
    judged = list(judge_all())
    assert len(judged) == len(kernels()) == 30
    assert {kernel.file for kernel in judged if kernel.verdict is not Verdict.OK} == set(), (
        "a planted kernel must be correct"
    )
    missed = [
        f"{kernel.file}: {kernel.finding.headline if kernel.finding else kernel.verdict}"
        for kernel in judged
        if not kernel.named
    ]
    assert len(judged) - len(missed) >= WANTED, missed
