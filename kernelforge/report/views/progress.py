"""A run in progress: budgets used, current work of each worker, latest gains."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal

from kernelforge.records import UNCOMPARED, Attempt, Origin, RunConfig, RunState
from kernelforge.report.formatting import byte_count, clock, number, one_line, times
from kernelforge.report.views import View
from kernelforge.report.views.funnel import funnel
from kernelforge.report.views.run_records import step_name

if TYPE_CHECKING:
    from kernelforge.report.views.run_records import RunRecords
    from kernelforge.run.events import Event

BUILTIN = "builtin"
STALLED_AFTER_S: Mapping[str, float] = MappingProxyType({"describe": 180.0, "evaluate": 180.0, "tune": 600.0})
"""Seconds by stage after which a stage is reported as stalled. None of them is a limit: a run of a candidate has 20 s,
a compilation its own limit, and an evaluation of a few sizes, timed and profiled, usually ends within a minute."""
BUILTIN_STALLED_AFTER_S = 60.0
"""The same for built-in agents, which answer at once. For a model it is the run's ``llm.timeout_seconds``."""
BATCH_STALLED_AFTER_S = 24 * 3600.0
"""The same for calls through a provider's batch interface: providers promise an answer within a day."""
LATEST_GAINS = 5
_LEAST_FINISHED = 3
"""Tasks that must have finished before an end is estimated; also one for each worker."""

LiveState = Literal["running", "stopping", "finished", "stopped", "failed", "interrupted"]
"""``failed``: it ended by an error; ``interrupted``: journalled as running, but no process works on it."""


class BudgetBar(View):
    """One limit of the run, and its use."""

    name: Literal["tasks", "evaluations", "seconds", "tokens", "dollars"]
    spent: float
    """Evaluations count when they are assigned to a proposal, as in the budget. Seconds are those of this session,
    because each session has its own wall-time budget; for a run that is over, those from its start to its end."""
    limit: float | None
    """None without a limit."""
    at_least: bool = False
    """Whether more was spent, because tokens or price of a call are unknown."""


class WorkerStatus(View):
    """One worker of a device and its current task."""

    device: str
    """The device of the task; without one yet, the run's device option."""
    slot: int
    """Position among the run's workers, from 0."""
    task: str | None
    """None: idle."""
    round: int
    stage: str
    since: str
    """UTC, ISO 8601: when the stage began."""
    stalled_after_s: float
    """Seconds in this stage after which it is reported as stalled."""


class Gain(View):
    """An attempt that became its task's best."""

    attempt: str
    task: str
    step: str
    standing: str
    """Its result in a few words."""
    at: str


class ProgressView(View):
    """State of a live run. Times are timestamps, so that a reader can update durations."""

    run: str
    state: LiveState
    device: str
    started: str
    """Start of this session, UTC, ISO 8601."""
    updated: str
    expected_end: str | None
    """Estimated end at the pace of the tasks finished in this session, at the latest at its wall-time limit; None until
    three of them have finished, and one for each worker."""
    pid: int
    """0 where no process works on it."""
    bars: tuple[BudgetBar, ...]
    lanes: tuple[WorkerStatus, ...]
    funnel: dict[str, int]
    """Attempts that passed each step, in order."""
    gains: tuple[Gain, ...]
    """The latest five, newest first."""
    error: str
    """The last warning, on one line; empty for none."""


def standing(attempt: Attempt) -> str:
    """Result of an attempt in a few words: measured speedup or time, else DRAM traffic and the predicted speedup."""
    speed, profile = attempt.evaluation.performance, attempt.profile
    predicted = "" if speed is None or speed.predicted is None else f", predicted {times(speed.predicted.speedup)}"
    if speed is not None and speed.origin is Origin.MEASURED:
        return f"{number(speed.time_us)} µs" + ("" if speed.speedup is None else f", {times(speed.speedup)}")
    if profile is not None and profile.roofline.compulsory_bytes:
        roof = profile.roofline
        return (
            f"{byte_count(roof.dram_bytes)} DRAM, {times(roof.dram_bytes / roof.compulsory_bytes)} the least{predicted}"
        )
    return "right where it was compared" if attempt.evaluation.uncompared else "correct"


@dataclass(frozen=True)
class _Spent:
    """Use of all budgets except tasks and time."""

    evaluations: int = 0
    tokens: int = 0
    dollars: float = 0.0
    uncounted: int = 0
    unpriced: int = 0


@dataclass(frozen=True)
class _At:
    """Current stage of a worker."""

    task: str
    round: int
    stage: str
    since: datetime
    device: str | None


class RunProgress:
    """Folds a run's events into a :class:`ProgressView`. It has no clock: the caller passes the time of each event.

    Not thread-safe.
    """

    def __init__(self, config: RunConfig, *, pid: int) -> None:
        self._config = config
        self._pid = pid
        self._run = ""
        self._state: LiveState = "running"
        self._started: datetime | None = None
        self._before = 0
        """Tasks that finished before this session."""
        self._finished: set[str] = set()
        self._last_finish: datetime | None = None
        self._spent = _Spent()
        self._workers: list[_At | None] = [None] * config.jobs
        self._measured = not config.device.startswith("emulated:")
        self._funnel: Counter[str] = Counter()
        self._add_to_funnel(())
        self._gains: list[Gain] = []
        self._error = ""

    @property
    def run(self) -> str:
        """Id of the run; empty before its first event."""
        return self._run

    def on_event(self, event: Event, now: datetime) -> None:
        """Process an event.

        Args:
            now: time of the event, with its time zone.
        """
        if self._started is None:
            self._started = now
        if event.spent is not None:
            self._spent = _Spent(*event.spent)
        if event.kind == "run_started":
            self._begin(event)
        elif event.kind == "run_finished":
            self._end(event.message)
        elif event.kind in ("task_started", "stage") and event.task is not None:
            self._occupy(event.task, event, now)
        elif event.kind == "attempt" and event.attempt is not None:
            self._count(event.attempt, now)
        elif event.kind == "task_finished" and event.task is not None:
            if not event.unfinished:
                self._finished.add(event.task)
                self._last_finish = now
            self._leave(event.task)
        elif event.kind == "warning":
            self._error = (f"{event.task}: " if event.task else "") + one_line(event.message, 500)
            if event.failed and event.task is not None:
                self._leave(event.task)

    def fail(self, message: str) -> None:
        """Record that the run ended by an error."""
        self._state, self._error = "failed", one_line(message, 500)
        self._workers = [None] * len(self._workers)

    def view(self, now: datetime, *, stopping: bool = False) -> ProgressView:
        """The current view.

        Args:
            now: not before the last event.
            stopping: whether a stop was requested.
        """
        started = self._started or now
        return ProgressView(
            run=self._run,
            state="stopping" if stopping and self._state == "running" else self._state,
            device=self._config.device,
            started=_iso(started),
            updated=_iso(now),
            expected_end=None if stopping or self._state != "running" else self._expected_end(now),
            pid=self._pid,
            bars=_bars(self._config, len(self._finished), self._spent, (now - started).total_seconds()),
            lanes=self._sorted_workers(now),
            funnel=dict(self._funnel),
            gains=tuple(self._gains),
            error=self._error,
        )

    def _begin(self, event: Event) -> None:
        self._run = event.message
        self._finished = set(event.finished)
        self._before = len(self._finished)
        for attempt in sorted(event.past, key=lambda attempt: attempt.started):
            self._count(attempt, None)

    def _end(self, state: str) -> None:
        self._state = "finished" if state == RunState.FINISHED.value else "stopped"
        self._workers = [None] * len(self._workers)

    def _occupy(self, task: str, event: Event, now: datetime) -> None:
        slot = next((slot for slot, at in enumerate(self._workers) if at is not None and at.task == task), None)
        before = None if slot is None else self._workers[slot]
        if slot is None:
            slot = next((slot for slot, at in enumerate(self._workers) if at is None), len(self._workers))
        if slot == len(self._workers):
            self._workers.append(None)
        previous = 0 if before is None else before.round
        round = previous if event.round is None else event.round
        self._workers[slot] = _At(task, round, event.stage or "start", now, event.device)

    def _leave(self, task: str) -> None:
        self._workers = [None if at is not None and at.task == task else at for at in self._workers]

    def _count(self, attempt: Attempt, now: datetime | None) -> None:
        """
        Args:
            now: time of its journal entry; None for an earlier session.
        """
        self._add_to_funnel((attempt,))
        if attempt.accepted:
            gain = Gain(
                attempt=attempt.id,
                task=attempt.task,
                step=step_name(attempt),
                standing=f"{UNCOMPARED}: {standing(attempt)}" if attempt.evaluation.uncompared else standing(attempt),
                at=_iso(now or _after(_moment(attempt.started), attempt.seconds)),
            )
            self._gains = [gain, *self._gains][:LATEST_GAINS]

    def _add_to_funnel(self, attempts: tuple[Attempt, ...]) -> None:
        self._funnel.update({step.step: step.count for step in funnel(attempts, measured=self._measured)})

    def _sorted_workers(self, now: datetime) -> tuple[WorkerStatus, ...]:
        """Workers sorted by device, those without a device last."""
        lanes = [self._status(slot, at, now) for slot, at in enumerate(self._workers)]
        return tuple(
            sorted(lanes, key=lambda worker: (worker.device == self._config.device, worker.device, worker.slot))
        )

    def _status(self, slot: int, at: _At | None, now: datetime) -> WorkerStatus:
        if at is None:
            return WorkerStatus(
                device=self._config.device, slot=slot, task=None, round=0, stage="", since=_iso(now), stalled_after_s=0
            )
        return WorkerStatus(
            device=at.device or self._config.device,
            slot=slot,
            task=at.task,
            round=at.round,
            stage=at.stage,
            since=_iso(at.since),
            stalled_after_s=stalled_after_s(at.stage, self._config),
        )

    def _expected_end(self, now: datetime) -> str | None:
        done = len(self._finished) - self._before
        if self._started is None or self._last_finish is None or done < max(_LEAST_FINISHED, len(self._workers)):
            return None
        remaining = len(self._config.tasks) - len(self._finished)
        end = self._last_finish + (self._last_finish - self._started) / done * remaining
        if end <= now:
            return None  # the tasks at work take longer than those before them
        wall = self._config.budget.wall_seconds
        return _iso(end if wall is None else min(end, self._started + timedelta(seconds=wall)))


def worker_label(worker: WorkerStatus, device: str) -> str:
    """Label of a worker: its own device where the run has several (``device`` is the run's), else its slot."""
    return str(worker.slot) if worker.device == device else worker.device


def stalled_after_s(stage: str, config: RunConfig) -> float:
    """Seconds in a stage after which it is reported as stalled."""
    agents = {
        "coder": config.coders,
        "judge": (config.judge,),
        "reflect": (config.judge,),
        "tester": (config.tester or BUILTIN,),
    }
    if stage not in agents:
        return STALLED_AFTER_S.get(stage, STALLED_AFTER_S["describe"])
    if all(agent == BUILTIN for agent in agents[stage]):
        return BUILTIN_STALLED_AFTER_S
    return BATCH_STALLED_AFTER_S if config.llm.batch else config.llm.timeout_seconds


def visible_bars(view: ProgressView) -> tuple[BudgetBar, ...]:
    """Bars with a limit, and those used without one. Time is left out then: every heading shows it."""
    return tuple(bar for bar in view.bars if bar.limit is not None or (bar.spent > 0 and bar.name != "seconds"))


def format_spent(bar: BudgetBar, spent: float) -> str:
    """``12 of 40``, ``at least $0.32 of $1.00``, ``2 min 05 s of 10 min 00 s``.

    Args:
        spent: the bar's own value, or a newer one.
    """
    words = ("at least " if bar.at_least else "") + _amount(bar, spent)
    return words if bar.limit is None else f"{words} of {_amount(bar, bar.limit)}"


def _amount(bar: BudgetBar, value: float) -> str:
    if bar.name == "seconds":
        return clock(value)
    return f"${value:,.2f}" if bar.name == "dollars" else f"{value:,.0f}"


def seconds_since(moment: str, now: datetime) -> float:
    """Seconds from a timestamp of a view to another time."""
    return (now - _moment(moment)).total_seconds()


def journalled_progress(records: RunRecords) -> ProgressView:
    """Progress of a run from its journal alone: it is over, or its process reports no status."""
    run, config = records.run, records.run.config
    fold = RunProgress(config, pid=0)
    for attempt in sorted(records.attempts, key=lambda attempt: attempt.started):
        fold._count(attempt, None)
    usages = [message.usage for message in records.all_messages() if message.usage is not None]
    spent = _Spent(
        evaluations=len(records.attempts),
        tokens=sum(usage.tokens or 0 for usage in usages),
        dollars=sum(usage.dollars or 0.0 for usage in usages),
        uncounted=sum(usage.tokens is None for usage in usages),
        unpriced=sum(usage.dollars is None for usage in usages),
    )
    ended = run.ended or max((attempt.started for attempt in records.attempts), default=run.started)
    seconds = _moment(ended) - _moment(run.started)
    view = fold.view(_moment(run.started))
    return view.model_copy(
        update={
            "run": run.id,
            "state": records.state,
            "updated": _iso(_moment(ended)),
            "bars": _bars(config, len(records.finished), spent, max(seconds.total_seconds(), 0.0)),
            "lanes": (),
        }
    )


def _bars(config: RunConfig, finished: int, spent: _Spent, seconds: float) -> tuple[BudgetBar, ...]:
    budget = config.budget
    return (
        BudgetBar(name="tasks", spent=finished, limit=len(config.tasks)),
        BudgetBar(name="evaluations", spent=spent.evaluations, limit=budget.evaluations),
        BudgetBar(name="seconds", spent=round(seconds, 3), limit=budget.wall_seconds),
        BudgetBar(name="tokens", spent=spent.tokens, limit=budget.tokens, at_least=spent.uncounted > 0),
        BudgetBar(name="dollars", spent=spent.dollars, limit=budget.dollars, at_least=spent.unpriced > 0),
    )


def _moment(text: str) -> datetime:
    """A journalled timestamp, in UTC if it has no zone. An invalid one counts as 1970, so that one run with such a text
    does not hide all others."""
    try:
        moment = datetime.fromisoformat(text)
        return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    except (ValueError, OverflowError):
        return datetime.fromtimestamp(0, UTC)


def _after(moment: datetime, seconds: float) -> datetime:
    try:
        return moment + timedelta(seconds=seconds)
    except OverflowError:
        return moment


def _iso(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat(timespec="milliseconds")
