"""A judge of suggestions that the tests here share."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from kernelforge.study.codex import StudyJudge


@pytest.fixture(scope="package")
def judge(open_warm: Callable[..., StudyJudge]) -> Iterator[StudyJudge]:
    with open_warm(StudyJudge, "emulated:h100", seed=11) as made:
        yield made
