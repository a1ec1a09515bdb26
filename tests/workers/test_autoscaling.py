"""The number of slots that a growing cluster is asked for, and the nodes that are kept."""

from __future__ import annotations

import pytest

from kernelforge.errors import UsageError
from kernelforge.workers.ray.autoscaling import IDLE_S, JOBS_PER_SLOT, Autoscaling, kept_nodes


def test_slots_follow_the_jobs_up_at_once_and_down_after_a_pause() -> None:
    scale = Autoscaling.of("2:8")
    assert scale.target(0, 0.0) == 2
    assert scale.target(5 * JOBS_PER_SLOT - 1, 1.0) == 5
    assert scale.target(1000, 2.0) == 8
    assert scale.target(0, 3.0) == 8
    assert scale.target(4 * JOBS_PER_SLOT, 100.0) == 8
    assert scale.target(0, 3.0 + IDLE_S - 1) == 8
    assert scale.target(0, 3.0 + IDLE_S) == 4, "the most that was needed in between"
    assert scale.target(0, 4.0 + IDLE_S) == 4
    assert scale.target(0, 4.0 + 2 * IDLE_S) == 2


def test_a_step_of_a_trainer_keeps_what_the_pause_would_give_up() -> None:
    scale = Autoscaling.of("1:4")
    for step in range(10):
        assert scale.target(100, step * IDLE_S) == 4
        assert scale.target(0, (step + 0.5) * IDLE_S) == 4


@pytest.mark.parametrize("text", ["", "4", "0:4", "5:4", "a:b", "1:-2", "1:2:3"])
def test_what_is_no_range_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="MIN:MAX"):
        Autoscaling.of(text)


@pytest.mark.parametrize(
    ("busy", "target", "kept"),
    [({}, 0, ""), ({}, 1, "a"), ({}, 4, "a"), ({}, 5, "ab"), ({"c": 1}, 4, "c"), ({"c": 1}, 5, "ac"), ({}, 99, "abc")],
)
def test_busy_nodes_are_kept_and_then_the_oldest(busy: dict[str, int], target: int, kept: str) -> None:
    assert kept_nodes({"a": 4, "b": 4, "c": 4}, busy, target) == set(kept)
