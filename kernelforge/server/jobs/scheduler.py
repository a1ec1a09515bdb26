"""Dispatch of queued evaluations to workers: a fair queue, preparation, slots, retries.

A task goes queued → preparing (on CPU cores) → ready → evaluating (on a slot) → over. One whose candidate equals that
of another task but for names waits for it, and ends with its evaluation if that may be shared. Few tasks are beyond the
queue at a time, because a more urgent one can overtake them only in the queue. The task of a worker that died goes
next, up to :data:`MAX_DEATHS` times.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
import time
from collections import Counter, deque
from collections.abc import Coroutine, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from kernelforge.client.models import Fault
from kernelforge.server.base import utc_seconds
from kernelforge.server.jobs.completion import JobCompletion
from kernelforge.server.jobs.state import Charge, EvaluationTask, OwnedRun, Phase
from kernelforge.workers.base import Engine, EvaluationReport, Prepared, Slot, WorkerDied

_LOG = logging.getLogger(__name__)

MAX_DEATHS = 3
"""Workers that may die of one task."""
MAX_FAILURES = 2
"""Tries of one task that may end in a retryable failure."""
MAX_PASSED_OVER = 4
"""How often a ready task may be passed over for one with a warm oracle."""
_FIRST_COST_S = 1.0
_MAX_COSTS = 10_000
_COST_WEIGHT = 0.2
"""Weight of the newest evaluation in the running mean of a task's cost."""

_SLACK = 64
"""Stale entries a line may hold beyond its waiting ones, and idle lines that are always kept."""

Item = TypeVar("Item")
Answer = TypeVar("Answer", bound=EvaluationReport | Prepared)
"""An engine's answer to an order."""


@dataclass(slots=True)
class _Entry(Generic[Item]):
    item: Item
    cost: float
    positions: dict[OwnedRun, tuple[int, int]] = field(default_factory=dict)
    """By run: negated priority and age of its first job."""


@dataclass(slots=True)
class _Line:
    """Items of one run."""

    run: OwnedRun
    tag: float
    heap: list[tuple[int, int, int]] = field(default_factory=list)
    """Negated priority, age, identity of the entry. Removed entries are dropped when they reach the head."""
    waiting: int = 0


@dataclass(slots=True)
class _Caller:
    """Lines of one caller."""

    tag: float
    now: float = 0.0
    """Virtual time of its lines."""
    lines: dict[str, _Line] = field(default_factory=dict)
    waiting: int = 0
    """Lines that an item waits in, counted by item."""


class FairQueue(Generic[Item]):
    """A queue shared by callers and their runs: fair between callers by share, between the runs of one caller by
    weight, by priority within a run, then by age. More runs give a caller no more turns.

    Start-time fair queueing (Goyal, Vin, Cheng: "Start-time Fair Queueing", SIGCOMM 1996) in two levels: every caller
    has a tag, the virtual time at which its next item starts; the caller with the lowest tag goes next, and its tag
    then grows by the cost of the item over the caller's share. So do the runs of one caller. What was idle starts at
    the current virtual time, so it neither saves up turns nor waits for those it did not use. Two busy runs of one
    caller never differ by more than one item each, divided by their weights; nor do two busy callers by their shares.

    An item that several runs wait for is in the line of each, goes when the first of them has its turn, and its cost is
    shared equally. A run that joins a running item pays nothing. Items are hashable and unique.
    """

    def __init__(self) -> None:
        self._entries: dict[int, _Entry[Item]] = {}
        self._ids: dict[Item, int] = {}
        self._lines: dict[OwnedRun, _Line] = {}
        self._callers: dict[str, _Caller] = {}
        self._weights: dict[str, float] = {}
        self._shares: dict[str, float] = {}
        self._forget_at = _SLACK
        self._now = 0.0
        self._next_id = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, item: Item) -> bool:
        return item in self._ids

    def set_weight(self, run: str, weight: float) -> None:
        """Set the weight of a run's name, from the next task on; the default is 1."""
        self._weights[run] = _positive(weight)

    def set_share(self, caller: str, share: float) -> None:
        """Set a caller's share, from the next task on; the default is 1."""
        self._shares[caller] = _positive(share)

    def share(self, caller: str) -> float:
        """Share of a caller."""
        return self._shares.get(caller, 1.0)

    def push(self, item: Item, positions: Mapping[OwnedRun, tuple[int, int]], *, cost: float = 1.0) -> None:
        """Put an item into the lines of some runs.

        Args:
            positions: priority and age by run; the lower age goes first among equal priorities.
            cost: what a run pays for it, in any unit.
        """
        if item in self._ids:
            raise ValueError(f"{item!r} is queued already")
        self._next_id += 1
        self._ids[item] = self._next_id
        self._entries[self._next_id] = _Entry(item, cost)
        self.move(item, positions)

    def move(self, item: Item, positions: Mapping[OwnedRun, tuple[int, int]]) -> None:
        """Replace the runs that wait for a queued item, with priority and age. Without any it is removed."""
        if not positions:
            self.discard(item)
            return
        identity = self._ids[item]
        entry = self._entries[identity]
        for run in entry.positions.keys() - positions.keys():
            self._leave(run)
        for run, (priority, age) in positions.items():
            position = (-priority, age)
            line = self._join(run) if run not in entry.positions else self._lines[run]
            if entry.positions.get(run) != position:
                heapq.heappush(line.heap, (*position, identity))
        entry.positions = {run: (-priority, age) for run, (priority, age) in positions.items()}
        for run in positions:
            self._compact(self._lines[run])

    def discard(self, item: Item) -> None:
        """Remove an item if it is queued."""
        identity = self._ids.pop(item, None)
        if identity is not None:
            for run in self._entries.pop(identity).positions:
                self._leave(run)

    def pop(self) -> tuple[Item, Charge] | None:
        """Remove and return the item whose turn it is, and charge its runs; None if the queue is empty."""
        caller = _next_of(self._callers.values())
        if caller is None:
            return None
        line = _next_of(caller.lines.values())
        assert line is not None, "an item waits in a line of its caller"
        identity = self._head(line)
        entry = self._entries[identity]
        self._now, caller.now = max(self._now, caller.tag), max(caller.now, line.tag)
        charge = Charge(tuple(entry.positions), entry.cost / len(entry.positions))
        self._charge(charge.runs, charge.share)
        self.discard(entry.item)
        for name in {run.caller for run in charge.runs}:  # end of a busy period: all runs start level
            paying = self._callers[name]
            if not paying.waiting:
                paying.now = max(each.tag for each in paying.lines.values())
        if not self._entries:
            self._now = max(each.tag for each in self._callers.values())
        return entry.item, charge

    def settle(self, charge: Charge, cost: float) -> Charge:
        """Replace an estimated charge by the cost that was measured. Returns the new charge."""
        settled = Charge(charge.runs, cost / len(charge.runs))
        self._charge(charge.runs, settled.share - charge.share)
        return settled

    def _charge(self, runs: tuple[OwnedRun, ...], share: float) -> None:
        for run in runs:
            if run.caller in self._callers:
                self._callers[run.caller].tag += share / self.share(run.caller)
            if run in self._lines:
                self._lines[run].tag += share / self._weights.get(run.run, 1.0)

    def _head(self, line: _Line) -> int:
        while not self._is_in(line, line.heap[0]):
            heapq.heappop(line.heap)
        return line.heap[0][2]

    def _join(self, run: OwnedRun) -> _Line:
        line = self._lines.get(run)
        if line is None:
            if len(self._lines) >= self._forget_at:
                self._forget_idle()
            caller = self._callers.setdefault(run.caller, _Caller(self._now))
            line = self._lines[run] = caller.lines[run.run] = _Line(run, caller.now)
        caller = self._callers[run.caller]
        if not caller.waiting:
            caller.tag = max(caller.tag, self._now)
        if not line.waiting:
            line.tag = max(line.tag, caller.now)
        caller.waiting += 1
        line.waiting += 1
        return line

    def _leave(self, run: OwnedRun) -> None:
        line = self._lines[run]
        line.waiting -= 1
        self._callers[run.caller].waiting -= 1
        self._compact(line)

    def _compact(self, line: _Line) -> None:
        """Drop removed entries once they are most of a line: they may never reach its head."""
        if len(line.heap) > 2 * line.waiting + _SLACK:
            line.heap = [entry for entry in line.heap if self._is_in(line, entry)]
            heapq.heapify(line.heap)

    def _is_in(self, line: _Line, position: tuple[int, int, int]) -> bool:
        entry = self._entries.get(position[2])
        return entry is not None and entry.positions.get(line.run) == position[:2]

    def _forget_idle(self) -> None:
        """Drop what would start at the current virtual time anyway: a caller may name any number of runs."""
        for name, caller in list(self._callers.items()):
            for line in [line for line in caller.lines.values() if not line.waiting and line.tag <= caller.now]:
                del caller.lines[line.run.run], self._lines[line.run]
            if not caller.lines and caller.tag <= self._now:
                del self._callers[name]
        self._forget_at = max(2 * len(self._lines), _SLACK)


Waiting = TypeVar("Waiting", _Line, _Caller)


def _next_of(waiting: Iterable[Waiting]) -> Waiting | None:
    """The one whose turn it is among those that have an item."""
    return min((line for line in waiting if line.waiting), key=lambda line: line.tag, default=None)


def _positive(weight: float) -> float:
    if not weight > 0:
        raise ValueError(f"a weight is positive, not {weight}")
    return weight


class Scheduler:
    """Feeds an engine from a fair queue.

    Args:
        worker_limit_s: longest time an engine may hold a task; then its worker counts as dead.
    """

    def __init__(
        self, engine: Engine, completion: JobCompletion, counters: Counter[str], *, worker_limit_s: float
    ) -> None:
        self.queue: FairQueue[EvaluationTask] = FairQueue()
        self._counters = counters
        self._engine = engine
        self._completion = completion
        self._worker_limit_s = worker_limit_s
        self._retries: deque[EvaluationTask] = deque()
        """Tasks to prepare again, before those of the queue."""
        self._ready: deque[EvaluationTask] = deque()
        self._first: dict[str, EvaluationTask] = {}
        """Tasks that wait for a slot or have one, by the keys that equal ones share."""
        self._equal: dict[str, list[EvaluationTask]] = {}
        """Equal ones, which wait for them."""
        self._preparing: set[asyncio.Task[None]] = set()
        self._evaluating: dict[asyncio.Task[None], str] = {}
        """Busy slots, by the calls that use them."""
        self._costs: dict[str, float] = {}
        self._calls: set[asyncio.Task[None]] = set()
        self._wake = asyncio.Event()
        self._loops: list[asyncio.Task[None]] = []
        self._draining = False
        self._ended_at: deque[float] = deque(maxlen=256)

    def start(self) -> None:
        self._loops = [asyncio.create_task(self._dispatch()), asyncio.create_task(self._listen())]

    def add(self, task: EvaluationTask) -> None:
        """Queue a task for the runs of its jobs."""
        self._move(task, "queued")
        self.queue.push(task, task.positions(), cost=self._costs.get(task.registered.digest, _FIRST_COST_S))
        self._wake.set()

    def update(self, task: EvaluationTask) -> None:
        """Apply a change of a task's jobs. A task without jobs is dropped, and its worker freed."""
        if not task.jobs:
            self.drop(task)
        elif task in self.queue:
            self.queue.move(task, task.positions())

    def drop(self, task: EvaluationTask) -> None:
        """Remove a task without jobs, and cancel its engine call."""
        if task.phase == "over":
            return
        self.queue.discard(task)
        for line in (self._retries, self._ready):
            if task in line:
                line.remove(task)
        task.phase = "over"
        if task.call is not None:
            self._counters["freed"] += 1
            task.call.cancel()
        self._leave(task)
        self._wake.set()

    def rate(self) -> float | None:
        """Tasks finished per second recently; None until two have finished."""
        if len(self._ended_at) < 2:
            return None
        return (len(self._ended_at) - 1) / max(self._ended_at[-1] - self._ended_at[0], 1e-3)

    async def drain(self) -> None:
        """Dispatch nothing more, and return when the engine is idle."""
        self._draining = True
        while self._calls:
            await asyncio.wait(self._calls)

    async def stop(self) -> None:
        """Cancel running tasks; they stay open in the database."""
        self._draining = True
        for task in (*self._loops, *self._calls):
            task.cancel()
        await asyncio.gather(*self._loops, *self._calls, return_exceptions=True)

    async def _listen(self) -> None:
        while True:
            try:
                await self._engine.changed()
            except Exception:
                _LOG.exception("the engine does not report its slots; asking again in a second")
                await asyncio.sleep(1.0)
            self._wake.set()

    async def _dispatch(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            if self._draining:
                continue
            try:
                self._fill_slots()
                self._fill_preparation()
                waiting = len(self.queue) + len(self._retries) + len(self._ready)
                waiting += sum(map(len, self._equal.values()))
                self._engine.demand(waiting + len(self._calls))
            except Exception:
                _LOG.exception("tasks could not be dispatched; trying again in a second")
                await asyncio.sleep(1.0)
                self._wake.set()

    def _fill_preparation(self) -> None:
        slots = len(self._engine.slots())
        while len(self._preparing) < self._engine.preparing and len(self._ready) < max(slots, 1):
            task = self._next()
            if task is None:
                return
            task.tries += 1
            task.started_at = task.started_at or utc_seconds()
            self._move(task, "preparing")
            self._preparing.add(self._call(task, self._prepare(task)))

    def _next(self) -> EvaluationTask | None:
        if self._retries:
            return self._retries.popleft()
        popped = self.queue.pop()
        if popped is None:
            return None
        task, charge = popped
        task.charge = charge
        return task

    def _fill_slots(self) -> None:
        busy = set(self._evaluating.values())
        idle = [slot for slot in self._engine.slots() if slot.state == "idle" and slot.name not in busy]
        while idle and self._ready:
            slot, task = match(idle, self._ready)
            idle.remove(slot)
            self._ready.remove(task)
            self._move(task, "evaluating")
            self._evaluating[self._call(task, self._evaluate(task, slot.name))] = slot.name

    def _call(self, task: EvaluationTask, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Start a call of the engine.

        A callback of its asyncio task releases what the call occupies, not the coroutine: an asyncio task that is
        cancelled before its first step runs no line of the coroutine, not even a ``finally``.
        """
        call = task.call = asyncio.create_task(coroutine)
        self._calls.add(call)
        call.add_done_callback(lambda _: self._call_ended(task, call))
        return call

    def _call_ended(self, task: EvaluationTask, call: asyncio.Task[None]) -> None:
        self._calls.discard(call)
        self._preparing.discard(call)
        self._evaluating.pop(call, None)
        if task.charge is not None:  # its runs pay the measured time instead of the estimate
            task.charge = self.queue.settle(task.charge, task.seconds)
        self._wake.set()

    async def _prepare(self, task: EvaluationTask) -> None:
        report = await self._limited(task, self._engine.prepare(task.order()))
        if task.phase != "preparing":
            return
        if isinstance(report, EvaluationReport):
            self._reported(task, report)
        elif report is not None:
            task.call, task.prepared, task.builds = None, report.seconds, report.builds
            task.program, task.build = report.program, report.build
            self._enter(task)

    def _enter(self, task: EvaluationTask) -> None:
        """Let a prepared task wait for a slot, or for an equal one; or end it by the evaluation of an equal one."""
        try:
            if self._completion.answer_shared(task):
                task.phase = "over"
                return
        except Exception:  # its jobs must end nevertheless
            _LOG.exception("task %d cannot share an evaluation, and is evaluated itself", task.id)
            task.max_age_s = None
        key = None if task.max_age_s is None else task.shared_key
        if key is not None and self._first.setdefault(key, task) is not task:
            self._equal.setdefault(key, []).append(task)
        else:
            self._ready.append(task)
        self._move(task, "ready")

    def _leave(self, task: EvaluationTask) -> None:
        """Enter those again that wait for an equal task, once that is over, or begins again."""
        key = task.shared_key
        if key is None:
            return
        if task in self._equal.get(key, ()):
            self._equal[key].remove(task)
        if self._first.get(key) is task:
            del self._first[key]
            for equal in self._equal.pop(key, ()):
                self._enter(equal)

    async def _evaluate(self, task: EvaluationTask, slot: str) -> None:
        report = await self._limited(task, self._engine.evaluate(task.order(), slot))
        if task.phase == "evaluating" and report is not None:
            self._reported(task, report)

    async def _limited(
        self, task: EvaluationTask, call: Coroutine[Any, Any, Answer]
    ) -> Answer | EvaluationReport | None:
        """The engine's answer, timed; None after a worker's death or a time-out, which are handled here."""
        start = time.monotonic()
        try:
            async with asyncio.timeout(self._worker_limit_s):
                return await call
        except TimeoutError:
            self._counters["lease_overruns"] += 1
            self._died(task, f"it held its worker for more than {self._worker_limit_s:g} s")
        except WorkerDied as error:
            self._counters["worker_deaths"] += 1
            self._died(task, str(error) or "its worker ended")
        except Exception as error:  # a bug of an engine must not end the server
            _LOG.exception("engine %s failed", self._engine.name)
            trouble = Fault(code="internal", message=f"the engine failed: {type(error).__name__}: {error}")
            return EvaluationReport(order=task.order().id, trouble=trouble)
        finally:
            task.seconds += time.monotonic() - start
        return None

    def _died(self, task: EvaluationTask, message: str) -> None:
        if task.phase == "over":
            return
        task.deaths += 1
        task.call = None
        runs = ", ".join(sorted({job.accepted.run_id for job in task.jobs.values()}))
        _LOG.warning(
            "a worker was lost with evaluation %d of task %s, death %d of %d; jobs %s of runs %s: %s",
            task.id, task.registered.name, task.deaths, MAX_DEATHS, ", ".join(task.jobs), runs, message,
        )  # fmt: skip
        if task.deaths < MAX_DEATHS:
            self._repeat(task)
        else:
            task.phase = "over"
            self._completion.task_lost(task, f"{task.deaths} workers were lost with it; the last: {message}")
            self._leave(task)

    def _repeat(self, task: EvaluationTask) -> None:
        task.call = None
        self._retries.append(task)
        self._move(task, "queued")
        self._leave(task)

    def _reported(self, task: EvaluationTask, report: EvaluationReport) -> None:
        if report.trouble is not None and report.trouble.retryable:
            task.failures += 1
            if task.failures < MAX_FAILURES:
                self._counters["troubles_retried"] += 1
                self._repeat(task)
                return
        task.call = None
        task.phase = "over"
        self._learn_cost(task)
        self._ended_at.append(time.monotonic())
        try:
            self._completion.task_reported(task, report)
        except Exception as error:  # its jobs must end nevertheless
            _LOG.exception("the evaluation of task %d cannot be used", task.id)
            trouble = Fault(code="internal", message=f"{type(error).__name__}: {error}")
            self._completion.task_reported(task, EvaluationReport(order=report.order, trouble=trouble))
        self._leave(task)

    def _learn_cost(self, task: EvaluationTask) -> None:
        digest = task.registered.digest
        mean = self._costs.get(digest, task.seconds)
        if len(self._costs) >= _MAX_COSTS:
            self._costs.clear()
        self._costs[digest] = mean + _COST_WEIGHT * (task.seconds - mean)

    def _move(self, task: EvaluationTask, phase: Phase) -> None:
        task.phase = phase
        self._completion.task_moved(task, phase)


def match(idle: Iterable[Slot], ready: deque[EvaluationTask]) -> tuple[Slot, EvaluationTask]:
    """A slot and the task for it: the oldest ready task, on a slot where its oracle is warm if there is one.

    Otherwise a younger task with a warm oracle goes first, at most :data:`MAX_PASSED_OVER` times.
    """
    slots = list(idle)
    head = ready[0]
    for slot in slots:
        if head.registered.digest in slot.cached_tasks:
            return slot, head
    if head.passed_over < MAX_PASSED_OVER:
        for task in ready:
            for slot in slots:
                if task.registered.digest in slot.cached_tasks:
                    head.passed_over += 1
                    return slot, task
    return slots[0], head
