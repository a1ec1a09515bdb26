"""Budgets: who is refused, by whose limit, and what an earlier sitting spent counts."""

from __future__ import annotations

from typing import Any

import pytest

from kernelforge.errors import BudgetExhausted, TaskBudgetExhausted
from kernelforge.records import Budget, Limits, Message, Usage
from kernelforge.run import StopSignal
from kernelforge.run.budget import RunBudget


def used(tokens: int | None = 100, dollars: float | None = 0.01) -> Usage:
    return Usage(
        model="m", input_tokens=tokens, output_tokens=None if tokens is None else 0, dollars=dollars, seconds=1
    )


def spending(stop: StopSignal | None = None, **limits: Any) -> RunBudget:
    return RunBudget(Budget(**limits), stop=stop or StopSignal())


def test_what_one_task_spends_stops_every_task() -> None:
    run = spending(tokens=150)
    item, other = run.task(), run.task()
    item.spent(used(100))
    other.check()
    other.spent(used(100))
    for purse in (item, other):
        with pytest.raises(BudgetExhausted, match="the run's budget of 150 tokens is spent"):
            purse.check()


def test_a_tasks_own_limit_stops_that_task_alone() -> None:
    run = spending(per_task=Limits(dollars=0.05))
    item, other = run.task(), run.task()
    item.spent(used(dollars=0.06))
    with pytest.raises(TaskBudgetExhausted, match=r"the task's budget of \$0.05 is spent"):
        item.check()
    other.check()


def test_a_budget_that_cannot_be_counted_is_not_passed() -> None:
    run = spending(dollars=10)
    purse = run.task()
    purse.spent(used(dollars=None))
    with pytest.raises(BudgetExhausted, match="--prices"):
        purse.check()
    tokens = spending(tokens=10_000).task()
    tokens.spent(used(tokens=None))
    with pytest.raises(BudgetExhausted, match="did not say"):
        tokens.check()


def test_what_is_not_limited_may_be_unknown() -> None:
    purse = spending(evaluations=3).task()
    purse.spent(used(None, None))
    purse.take_evaluation()


def test_an_earlier_sitting_counts() -> None:
    text = [Message(agent="coder", role="reply", provider="openai:m", content="x", usage=used(100))]
    run = spending(evaluations=3, tokens=1000)
    purse = run.task(2, text)
    with pytest.raises(BudgetExhausted, match=r"100 tokens is spent \(100\)"):
        spending(tokens=100).task(0, text).check()
    purse.take_evaluation()
    with pytest.raises(BudgetExhausted, match="3 evaluations"):
        purse.take_evaluation()


def test_a_claim_that_came_to_nothing_is_given_back() -> None:
    purse = spending(per_task=Limits(evaluations=1)).task()
    purse.take_evaluation()
    purse.give_back_evaluation()
    purse.take_evaluation()
    with pytest.raises(TaskBudgetExhausted):
        purse.take_evaluation()


def test_a_task_that_waits_for_its_turn_uses_no_time() -> None:
    purse = spending(per_task=Limits(wall_seconds=1e-12)).task()
    purse.check()
    purse.begin()
    with pytest.raises(TaskBudgetExhausted, match="wall time is spent"):
        purse.check()


def test_a_stop_ends_waiting_and_work() -> None:
    stop = StopSignal()
    run = spending(stop)
    purse = run.task()
    purse.check_time()
    assert not run.out_of_time()
    stop.drain()
    assert run.out_of_time()
    with pytest.raises(BudgetExhausted, match="asked to stop"):
        purse.check_time()


def test_a_spent_token_budget_does_not_keep_paid_replies_from_their_evaluation() -> None:
    purse = spending(tokens=50).task()
    purse.spent(used(100))
    purse.take_evaluation()
    with pytest.raises(BudgetExhausted):
        purse.check()
