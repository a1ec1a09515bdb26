"""The built-in Judge names bottlenecks that somebody planted who had not read it."""

from __future__ import annotations

import pytest

from benchmarks.judge import is_named, judge_all, kernels
from kernelforge.records import Finding, Verdict

WANTED = 18


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
@pytest.mark.timeout(900)  # a minute alone, several beside other tests
def test_at_least_eighteen_of_twenty_planted_bottlenecks_are_named() -> None:
    found = list(judge_all())
    assert len(found) == len(kernels()) == 20
    assert {one.file for one in found if one.verdict is not Verdict.OK} == set(), "a planted kernel must be correct"
    missed = [f"{one.file}: {one.finding.headline if one.finding else one.verdict}" for one in found if not one.named]
    assert len(found) - len(missed) >= WANTED, missed
