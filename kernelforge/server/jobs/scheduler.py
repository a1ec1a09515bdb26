"""Dispatch of queued evaluations to workers: preparation, slots, retries.

A work goes queued → preparing (on CPU cores) → ready → evaluating (on a slot) → over. Few works are beyond the queue
at a time, for only in the queue can a more urgent one overtake them. A worker that dies gives its work back: it goes
next, up to :data:`MAX_DEATHS` times.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter, deque
from collections.abc import Coroutine, Iterable
from typing import Any, Protocol, TypeVar

from kernelforge.server.base import utc_seconds
from kernelforge.server.jobs.models import Phase, SharedEvaluation
from kernelforge.server.jobs.queue import FairQueue
from kernelforge.workers.base import Engine, EvaluationReport, Prepared, Slot, Trouble, WorkerDied

_LOG = logging.getLogger(__name__)

MAX_DEATHS = 3
"""Workers that one work may cost."""
MAX_TROUBLES = 2
"""Tries that may end in trouble that an engine calls retryable."""
MAX_PASSED_OVER = 4
"""How often a ready work may be passed over for one whose oracle is warm."""
_FIRST_COST_S = 1.0
_MOST_COSTS = 10_000
_COST_WEIGHT = 0.2
"""Of the newest evaluation of a task in the running mean of their cost."""


Answer = TypeVar("Answer", bound=EvaluationReport | Prepared)
"""What an engine answers to an order."""


class Owner(Protocol):
    """Who is told of what becomes of works."""

    def work_moved(self, work: SharedEvaluation, phase: Phase) -> None:
        """A work is in another phase than it was in: ``work.phase`` is ``phase`` already."""
        ...

    def work_reported(self, work: SharedEvaluation, report: EvaluationReport) -> None:
        """A work has its evaluation, or trouble that is not tried again."""
        ...

    def work_died(self, work: SharedEvaluation, message: str) -> None:
        """Workers died of a work, once more than may be."""
        ...


class Scheduler:
    """Feeds an engine from a fair queue.

    Args:
        lease_s: how long an engine may have a work before it is taken back, as if its worker had died.
    """

    def __init__(self, engine: Engine, owner: Owner, counters: Counter[str], *, lease_s: float) -> None:
        self.queue: FairQueue[SharedEvaluation] = FairQueue()
        self._counters = counters
        self._engine = engine
        self._owner = owner
        self._lease_s = lease_s
        self._again: deque[SharedEvaluation] = deque()
        """Works to be prepared that have had their turn."""
        self._ready: deque[SharedEvaluation] = deque()
        self._preparing: set[asyncio.Task[None]] = set()
        self._evaluating: dict[asyncio.Task[None], str] = {}
        """Slots, by the calls that occupy them."""
        self._costs: dict[str, float] = {}
        self._calls: set[asyncio.Task[None]] = set()
        self._wake = asyncio.Event()
        self._loops: list[asyncio.Task[None]] = []
        self._draining = False
        self._ended_at: deque[float] = deque(maxlen=256)

    def start(self) -> None:
        self._loops = [asyncio.create_task(self._dispatch()), asyncio.create_task(self._listen())]

    def add(self, work: SharedEvaluation) -> None:
        """Queue a work, for the runs of its jobs."""
        self._move(work, "queued")
        self.queue.push(work, work.places(), cost=self._costs.get(work.registered.digest, _FIRST_COST_S))
        self._wake.set()

    def update(self, work: SharedEvaluation) -> None:
        """The jobs of a work changed. Without any it is dropped, and what worked on it is freed."""
        if not work.jobs:
            self.drop(work)
        elif work in self.queue:
            self.queue.place(work, work.places())

    def drop(self, work: SharedEvaluation) -> None:
        """Nobody waits for the work any more."""
        if work.phase == "over":
            return
        self.queue.discard(work)
        for line in (self._again, self._ready):
            if work in line:
                line.remove(work)
        work.phase = "over"
        if work.call is not None:
            self._counters["freed"] += 1
            work.call.cancel()
        self._wake.set()

    def rate(self) -> float | None:
        """Works that were finished a second, of late; None before there is a figure."""
        if len(self._ended_at) < 2:
            return None
        return (len(self._ended_at) - 1) / max(self._ended_at[-1] - self._ended_at[0], 1e-3)

    async def drain(self) -> None:
        """Give out nothing more, and return when no engine has anything."""
        self._draining = True
        while self._calls:
            await asyncio.wait(self._calls)

    async def stop(self) -> None:
        """Cancel what runs; it stays open in the journal."""
        self._draining = True
        for task in (*self._loops, *self._calls):
            task.cancel()
        await asyncio.gather(*self._loops, *self._calls, return_exceptions=True)

    async def _listen(self) -> None:
        while True:
            try:
                await self._engine.changed()
            except Exception:
                _LOG.exception("the engine does not tell of its slots; asked again in a second")
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
            except Exception:
                _LOG.exception("works could not be given out; tried again in a second")
                await asyncio.sleep(1.0)
                self._wake.set()

    def _fill_preparation(self) -> None:
        slots = len(self._engine.slots())
        while len(self._preparing) < self._engine.preparing and len(self._ready) < max(slots, 1):
            work = self._next()
            if work is None:
                return
            work.tries += 1
            work.started_at = work.started_at or utc_seconds()
            self._move(work, "preparing")
            self._preparing.add(self._call(work, self._prepare(work)))

    def _next(self) -> SharedEvaluation | None:
        if self._again:
            return self._again.popleft()
        taken = self.queue.pop()
        if taken is None:
            return None
        taken.item.bill = taken.bill
        return taken.item

    def _fill_slots(self) -> None:
        taken = set(self._evaluating.values())
        idle = [slot for slot in self._engine.slots() if slot.state == "idle" and slot.name not in taken]
        while idle and self._ready:
            slot, work = match(idle, self._ready)
            idle.remove(slot)
            self._ready.remove(work)
            self._move(work, "evaluating")
            self._evaluating[self._call(work, self._evaluate(work, slot.name))] = slot.name

    def _call(self, work: SharedEvaluation, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Start a call of the engine.

        What the call occupies is given back by a callback of its task, never by the coroutine: a task that is cancelled
        before its first step runs none of the coroutine's lines, not even a ``finally``.
        """
        call = work.call = asyncio.create_task(coroutine)
        self._calls.add(call)
        call.add_done_callback(lambda _: self._call_ended(work, call))
        return call

    def _call_ended(self, work: SharedEvaluation, call: asyncio.Task[None]) -> None:
        self._calls.discard(call)
        self._preparing.discard(call)
        self._evaluating.pop(call, None)
        if work.bill is not None:  # those who waited for it pay the time that it took, in place of the estimate
            work.bill = self.queue.settle(work.bill, work.seconds)
        self._wake.set()

    async def _prepare(self, work: SharedEvaluation) -> None:
        report = await self._leased(work, self._engine.prepare(work.order()))
        if work.phase != "preparing":
            return
        if isinstance(report, EvaluationReport):
            self._reported(work, report)
        elif report is not None:
            work.call, work.prepared = None, report.seconds
            self._ready.append(work)
            self._move(work, "ready")

    async def _evaluate(self, work: SharedEvaluation, slot: str) -> None:
        report = await self._leased(work, self._engine.evaluate(work.order(), slot))
        if work.phase == "evaluating" and report is not None:
            self._reported(work, report)

    async def _leased(
        self, work: SharedEvaluation, call: Coroutine[Any, Any, Answer]
    ) -> Answer | EvaluationReport | None:
        """What the engine answers, timed. A worker's death, or a lease that ran out, is dealt with here."""
        start = time.monotonic()
        try:
            async with asyncio.timeout(self._lease_s):
                return await call
        except TimeoutError:
            self._counters["lease_overruns"] += 1
            self._died(work, f"it held its worker for more than {self._lease_s:g} s")
        except WorkerDied as error:
            self._counters["worker_deaths"] += 1
            self._died(work, str(error) or "its worker ended")
        except Exception as error:  # an engine's own mistake must not end the gateway
            _LOG.exception("engine %s failed", self._engine.name)
            trouble = Trouble(
                code="internal", message=f"the engine failed: {type(error).__name__}: {error}", retryable=False
            )
            return EvaluationReport(order=work.order().id, trouble=trouble)
        finally:
            work.seconds += time.monotonic() - start
        return None

    def _died(self, work: SharedEvaluation, message: str) -> None:
        if work.phase == "over":
            return
        work.deaths += 1
        work.call = None
        if work.deaths < MAX_DEATHS:
            self._repeat(work)
        else:
            work.phase = "over"
            self._owner.work_died(work, f"{work.deaths} workers were lost with it; the last: {message}")

    def _repeat(self, work: SharedEvaluation) -> None:
        work.call = None
        self._again.append(work)
        self._move(work, "queued")

    def _reported(self, work: SharedEvaluation, report: EvaluationReport) -> None:
        if report.trouble is not None and report.trouble.retryable:
            work.troubles += 1
            if work.troubles < MAX_TROUBLES:
                self._counters["troubles_retried"] += 1
                self._repeat(work)
                return
        work.call = None
        work.phase = "over"
        self._learn_cost(work)
        self._ended_at.append(time.monotonic())
        try:
            self._owner.work_reported(work, report)
        except Exception as error:  # its jobs must end all the same
            _LOG.exception("the evaluation of work %d cannot be used", work.id)
            trouble = Trouble(code="internal", message=f"{type(error).__name__}: {error}", retryable=False)
            self._owner.work_reported(work, EvaluationReport(order=report.order, trouble=trouble))

    def _learn_cost(self, work: SharedEvaluation) -> None:
        digest = work.registered.digest
        old = self._costs.get(digest, work.seconds)
        if len(self._costs) >= _MOST_COSTS:
            self._costs.clear()
        self._costs[digest] = old + _COST_WEIGHT * (work.seconds - old)

    def _move(self, work: SharedEvaluation, phase: Phase) -> None:
        work.phase = phase
        self._owner.work_moved(work, phase)


def match(idle: Iterable[Slot], ready: deque[SharedEvaluation]) -> tuple[Slot, SharedEvaluation]:
    """A slot and the work for it: the oldest that is ready, on a slot where its oracle is warm if there is one.

    Where none is, a younger one may go first on a slot that is warm for it, which the oldest has to suffer
    :data:`MAX_PASSED_OVER` times at most.
    """
    slots = list(idle)
    head = ready[0]
    for slot in slots:
        if head.registered.digest in slot.warm:
            return slot, head
    if head.passed_over < MAX_PASSED_OVER:
        for work in ready:
            for slot in slots:
                if work.registered.digest in slot.warm:
                    head.passed_over += 1
                    return slot, work
    return slots[0], head
