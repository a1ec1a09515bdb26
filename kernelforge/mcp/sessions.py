"""Sessions: what one client has submitted, and what it was shown before."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from kernelforge.errors import UsageError
from kernelforge.mcp.schemas import AttemptList, AttemptRow, TaskProgress, next_offset
from kernelforge.records import Attempt, Finding, Run, Task
from kernelforge.run.submissions import SubmissionRun
from kernelforge.tasks import Suite


@dataclass
class Session:
    """Prompts, findings and submissions of one client."""

    runs: dict[str, SubmissionRun] = field(default_factory=dict)
    """By suite."""
    submitted: dict[str, tuple[str, Attempt]] = field(default_factory=dict)
    """Every attempt with its suite, by id, in the order of their submission."""
    findings: dict[str, Finding] = field(default_factory=dict)
    """The Judge's findings, by id of the attempt."""
    prompts: dict[str, str] = field(default_factory=dict)
    """Text that preceded a submission: by id of the parent, or by digest of the task before the first."""

    def go_on(self, suite: str, run: SubmissionRun) -> None:
        """Take over a run of an earlier session."""
        self.runs[suite] = run
        attempts = (attempt for name in run.run.config.tasks for attempt in run.attempts(name))
        earlier = {attempt.id: (suite, attempt) for attempt in sorted(attempts, key=lambda attempt: attempt.started)}
        self.submitted = {**earlier, **self.submitted}

    def attempt(self, attempt_id: str) -> Attempt:
        """A submitted attempt by its id.

        Raises:
            UsageError: the session has no such attempt.
        """
        if attempt_id not in self.submitted:
            latest = ", ".join(list(self.submitted)[-4:]) or "none yet"
            raise UsageError(f"this session has submitted no attempt {attempt_id[:120]!r}; the latest: {latest}")
        return self.submitted[attempt_id][1]

    def parent(self, suite: Suite, task: Task, attempt_id: str | None) -> Attempt | None:
        """The parent of a submission: the attempt of an id, or the one to continue from.

        Raises:
            UsageError: the session has no such attempt, or it is at another task.
        """
        if attempt_id is None:
            run = self.runs.get(suite.name)
            return None if run is None else run.next_parent(task.name)
        parent = self.attempt(attempt_id)
        if self.submitted[parent.id][0] != suite.name or parent.task != task.name:
            raise UsageError(f"attempt {parent.id} is at another task than {task.name}")
        return parent

    def attempts(self, only: tuple[str, str] | None, offset: int, limit: int) -> AttemptList:
        """A page of the attempts, of ``only`` one task of a suite if it is named."""
        selected = [
            (suite, attempt) for suite, attempt in self.submitted.values() if only in (None, (suite, attempt.task))
        ]
        return AttemptList(
            progress=tuple(self.progress(only)),
            total=len(selected),
            attempts=tuple(AttemptRow.of_attempt(*item) for item in selected[offset : offset + limit]),
            next_offset=next_offset(selected, offset, limit),
        )

    def progress(self, only: tuple[str, str] | None = None) -> Iterator[TaskProgress]:
        """A row for each task with an attempt, or for ``only`` one."""
        for suite, task in dict.fromkeys((suite, attempt.task) for suite, attempt in self.submitted.values()):
            if only not in (None, (suite, task)):
                continue
            run = self.runs[suite]
            best, following = run.best(task), run.next_parent(task)
            time = None if best is None else best.evaluation.performance
            yield TaskProgress(
                task=f"{suite}/{task}",
                attempts=len(run.attempts(task)),
                best=None if best is None else best.id,
                best_time_us=None if time is None else time.time_us,
                next_parent=None if following is None else following.id,
            )


def run_to_go_on_with(runs: list[Run], which: str | None) -> Run:
    """The latest of a client's earlier runs, or the one of an id or its beginning.

    Raises:
        UsageError: there is none, or more than one.
    """
    matching = runs[-1:] if which is None else [run for run in runs if which and run.id.startswith(which)]
    if len(matching) != 1:
        ids = ", ".join(run.id for run in runs[-8:]) or "none"
        raise UsageError(
            f"{'no' if not matching else len(matching)} earlier session of this client on this device and these tasks "
            f"has the run {which or 'latest'!r}; there are: {ids}"
        )
    return matching[0]
