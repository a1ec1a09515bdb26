"""The built-in Judge names bottlenecks that somebody planted who had not read it."""

from __future__ import annotations

import pytest

from benchmarks.judge import judge_all, kernels
from kernelforge.records import Verdict

WANTED = 18


@pytest.mark.slow
def test_at_least_eighteen_of_twenty_planted_bottlenecks_are_named() -> None:
    found = list(judge_all())
    assert len(found) == len(kernels()) == 20
    assert {one.file for one in found if one.verdict is not Verdict.OK} == set(), "a planted kernel must be correct"
    missed = [f"{one.file}: {one.finding.headline if one.finding else one.verdict}" for one in found if not one.named]
    assert len(found) - len(missed) >= WANTED, missed
