"""Trivial answers: one that passes on a task's own inputs must be exposed by another family of the same size."""

from __future__ import annotations

from typing import Any

import pytest

from kernelforge.evaluation.oracle.worker.admission_checks import admission_findings
from kernelforge.evaluation.oracle.worker.reference_runner import ReferenceRunner
from tests.evaluation.oracle_tasks import make_task


def findings(forward: str, inputs: str) -> dict[str, dict[str, Any]]:
    issues = admission_findings(ReferenceRunner(make_task(forward, inputs)), ["small"])
    return {finding["family"]: finding for finding in issues}


def test_the_identity_on_positive_inputs_is_exposed_by_signed_ones() -> None:
    issues = findings("torch.relu(a)", "torch.rand(16, 64)")
    assert all(finding["ok"] for finding in issues.values())
    assert "input 0 returned) passes here and fails on normal" in issues["task"]["text"]
    assert "trivial answers fail" in issues["normal"]["text"]


def test_what_passes_on_all_families_is_a_fault() -> None:
    issues = findings("a * 1.0", "torch.rand(16, 64)")
    assert not issues["task"]["ok"]
    assert not issues["normal"]["ok"]
    assert issues["task"]["text"].endswith("a trivial answer passes: input 0 returned")


def test_a_distribution_on_which_a_blind_answer_passes_is_dropped_and_the_task_is_not() -> None:
    # Saturated by normal inputs: two results of 1 or -1 are sometimes equal, so not on every draw a constant passes.
    issues = findings("torch.tanh(a.sum(1, keepdim=True) * 1e3)", "torch.randn(2, 64) * 1e-5")
    assert issues["task"]["admitted"]
    assert not issues["normal"]["admitted"]
    assert all(finding["ok"] for finding in issues.values())


def test_a_trivial_answer_on_drawn_inputs_is_a_fault_though_it_fails_on_the_tasks_own() -> None:
    issues = findings("torch.where(a.abs() > 100, torch.zeros_like(a), a)", "torch.randn(16, 64) * 200")
    assert issues["task"]["ok"]
    assert not issues["normal"]["ok"]


def test_no_draw_is_worked_out_twice_and_conditions_are_measured_only_where_something_is_compared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    draws: list[tuple[Any, ...]] = []
    conditions = 0
    draw, measure = ReferenceRunner.draw, ReferenceRunner._conditions

    def counted_draw(self: ReferenceRunner, *arguments: Any, expected: bool = True, **options: Any) -> Any:
        draws.extend([arguments] * expected)
        return draw(self, *arguments, expected=expected, **options)

    def counted_conditions(self: ReferenceRunner, *arguments: Any) -> Any:
        nonlocal conditions
        conditions += 1
        return measure(self, *arguments)

    monkeypatch.setattr(ReferenceRunner, "draw", counted_draw)
    monkeypatch.setattr(ReferenceRunner, "_conditions", counted_conditions)
    issues = findings("a.cumsum(1)", "torch.randn(16, 64)")
    assert all(finding["ok"] and finding["admitted"] for finding in issues.values())
    assert len(draws) == len(set(draws)) == 3 * len(issues)
    # Of each family one draw that answers are compared with, and of two what shows whether it saturates.
    assert conditions == len(issues) + 2
