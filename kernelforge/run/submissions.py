"""Runs whose candidates are submitted from outside: evaluated and stored as they arrive.

The strategy of such a run is :data:`EXTERNAL`: it has no state that ``resume`` could go on from, because the
submitting client decides what to try next. That client may go on with it in a later session.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime

from kernelforge.agents import BUILTIN
from kernelforge.agents.acceptance import make_attempt
from kernelforge.devices.remote.address import split_host
from kernelforge.evaluation.evaluator import EvaluationResult
from kernelforge.records import (
    Attempt,
    Budget,
    Candidate,
    Finding,
    Graph,
    Message,
    Operator,
    Run,
    RunConfig,
    RunState,
    StartOrigin,
    Task,
    TaskFacts,
    Verdict,
)
from kernelforge.rewards import DEFAULT_POLICY
from kernelforge.run.runner import EXTERNAL, new_run
from kernelforge.search.base import best_attempt
from kernelforge.store import Store

_MAX_NAME_CHARS = 40


def external_coder(name: str, version: str) -> str:
    """Specification of a Coder that names itself: ``mcp:NAME/VERSION``, in letters, digits, ``.``, ``_`` and ``-``."""
    parts = [re.sub(r"[^A-Za-z0-9._-]+", "-", part[:_MAX_NAME_CHARS]).strip("-") for part in (name, version)]
    return f"mcp:{parts[0] or 'unknown'}" + (f"/{parts[1]}" if parts[1] else "")


def external_config(
    suite: str,
    suite_digest: str,
    tasks: Sequence[str],
    *,
    device: str,
    coder: str,
    budget: Budget,
    allow_unconfined: bool,
) -> RunConfig:
    """Configuration of a run over ``tasks``; all of them count on a board, whether anything is submitted or not.

    Args:
        suite: name of the suite, or its path, as ``kernelforge run`` takes it.
    """
    host, device = split_host(device)
    return RunConfig(
        suite=suite,
        suite_digest=suite_digest,
        tasks=tuple(tasks),
        device=device,
        host=host,
        strategy=EXTERNAL,
        coder=coder,
        judge=BUILTIN,
        memory="off",
        tune=False,
        reward=DEFAULT_POLICY,
        budget=budget,
        # Inputs are drawn from a fresh secret each time: the submitting client may be able to read the journal.
        seed=0,
        jobs=1,
        stop_after=None,
        allow_unconfined=allow_unconfined,
    )


def earlier_runs(config: RunConfig, store: Store) -> list[Run]:
    """Runs of the same Coder over the same tasks on the same device, the oldest first; budgets may differ."""
    alike = {"suite": config.suite, "budget": config.budget}
    return [run for run in store.runs() if run.config.model_copy(update=alike) == config]


@dataclass(frozen=True)
class Submission:
    """A candidate from outside with what it came to."""

    task: Task
    candidate: Candidate
    result: EvaluationResult
    parent: Attempt | None
    finding: Finding | None
    """The finding on the parent that the candidate set out to answer."""
    messages: tuple[Message, ...]
    started: datetime
    seconds: float
    start: StartOrigin | None = None
    """Where it comes from, if the search of the task is started from it."""


class SubmissionRun:
    """One such run, held by this process until it is closed. Not for use by two threads at a time.

    Args:
        config: its configuration.
        store: the journal.
        earlier: the run to go on with, one of :func:`earlier_runs`; None starts a new one.

    Raises:
        StoreError: the journal cannot be written, or another process works on the earlier run.
    """

    def __init__(self, config: RunConfig, store: Store, earlier: Run | None = None) -> None:
        self._store = store
        self._attempts: dict[str, list[Attempt]] = {name: [] for name in config.tasks}
        self.run = earlier or new_run(config)
        with ExitStack() as stack:
            stack.enter_context(store.lock_run(self.run.id))
            if earlier is None:
                store.start_run(self.run)
            else:
                for attempt in store.attempts(earlier.id):
                    self._attempts[attempt.task].append(attempt)
                store.update_run(earlier.id, RunState.RUNNING, None)
            self._held = stack.pop_all()

    def attempts(self, task: str) -> tuple[Attempt, ...]:
        """Attempts at a task, by number."""
        return tuple(self._attempts[task])

    def best(self, task: str) -> Attempt | None:
        return best_attempt(self._attempts[task])

    def next_parent(self, task: str) -> Attempt | None:
        """The attempt to continue from: the latest while it fails, else the best."""
        attempts = self._attempts[task]
        return attempts[-1] if attempts and attempts[-1].evaluation.verdict is not Verdict.OK else self.best(task)

    def put_task(self, task: Task, facts: TaskFacts, graph: Graph) -> None:
        """Journal what is known of a task; to be done before anything is submitted to it."""
        self._store.put_task(self.run.id, task, facts, graph)

    def submit(self, submission: Submission) -> Attempt:
        """Journal a submission as the next attempt at its task."""
        task, parent, start = submission.task.name, submission.parent, submission.start
        earlier = self._attempts[task]
        attempt = make_attempt(
            earlier,
            submission.candidate,
            submission.result.evaluation,
            run=self.run.id,
            task=task,
            operator=_operator(parent) if start is None else Operator.START,
            parent=parent,
            reward=self.run.config.reward,
            started=submission.started,
            seconds=submission.seconds,
            coder=self.run.config.coder if start is None else "",
            start=start,
            finding=submission.finding,
            messages=submission.messages,
            profile=submission.result.profile,
        )
        self._store.add_attempt(attempt)
        earlier.append(attempt)
        return attempt

    def close(self) -> None:
        """End the run; there is nothing to go on with."""
        with self._held:
            for task, attempts in self._attempts.items():
                if attempts:
                    self._store.finish_task(self.run.id, task, "the session ended")
            self._store.update_run(self.run.id, RunState.FINISHED, datetime.now(UTC).isoformat(timespec="seconds"))


def _operator(parent: Attempt | None) -> Operator:
    if parent is None:
        return Operator.SEED
    return Operator.OPTIMISE if parent.evaluation.verdict is Verdict.OK else Operator.REPAIR
