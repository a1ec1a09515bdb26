"""Warm evaluators of a worker: one device, its helper processes, and the oracles of recent tasks."""

from __future__ import annotations

import logging
import secrets
import time
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from kernelforge.errors import EvaluationCancelled
from kernelforge.evaluation.evaluator import Evaluator
from kernelforge.evaluation.oracle.task_context import require_admitted
from kernelforge.evaluation.pool import EvaluatorPool
from kernelforge.records import Fingerprint, MeasureSettings, Task
from kernelforge.workers.base import BriefFacts, EvaluationOrder, EvaluationReport, Prepared
from kernelforge.workers.cancellation import CancellableCall
from kernelforge.workers.compile_worker import CompileWorker, Target
from kernelforge.workers.failures import report_of, trouble_of

WARM_TASKS = 4
"""Oracles that are kept, so that the next candidate for their task begins at once."""

WARM_BYTES = 4 << 30
"""Memory that they may hold together between two orders. An oracle keeps what its largest draw took, up to its limit
of 8 GiB; while an order runs, that limit alone holds."""

_LOG = logging.getLogger(__name__)


@dataclass
class _Place:
    """A task with its oracle."""

    evaluator: Evaluator
    began_bytes: int
    """Memory of the oracle before it had drawn anything, most of it shared with all others."""
    kept_bytes: int = 0
    """What it kept beyond that."""


class WarmEvaluators:
    """Evaluates candidates on one device. All of it is for one thread, but :meth:`interrupt` and :attr:`warm`.

    Args:
        device: name of one device: ``emulated:h100`` or ``cuda:0``.
        threads: threads that one emulated run, and the oracle, may use.
        measure: how a device that measures is used.
        allow_unconfined: run children without a jail where none works.
        warm_tasks: oracles that are kept; the one unused for longest goes first.
        warm_bytes: memory that they may hold together between two orders, in bytes.
        cache: folder of the build cache; None for the user's own.
        run_limit_s: longest that one run of a candidate's plan may take; None for the usual limit.
        compile_limit_s: longest that one compilation may take; None for the usual limit.

    Raises:
        SandboxError: no jail works here and ``allow_unconfined`` is false.
        DeviceError: there is no such device, or it cannot be used.
    """

    def __init__(
        self,
        device: str,
        *,
        threads: int = 1,
        measure: MeasureSettings | None = None,
        allow_unconfined: bool = False,
        warm_tasks: int = WARM_TASKS,
        warm_bytes: int = WARM_BYTES,
        cache: Path | None = None,
        run_limit_s: float | None = None,
        compile_limit_s: float | None = None,
    ) -> None:
        self._workshop = EvaluatorPool(
            device,
            threads=threads,
            cache=cache,
            measure=measure,
            allow_unconfined=allow_unconfined,
            tell=_LOG.warning,
            run_limit_s=run_limit_s,
            compile_limit_s=compile_limit_s,
        )
        self._warm: OrderedDict[str, _Place] = OrderedDict()
        self._warm_tasks, self._warm_bytes = max(warm_tasks, 1), warm_bytes
        try:
            self._workshop.start()
            place = self._workshop.device
            self.target = Target(
                fingerprint=self._workshop.fingerprint, description=dict(place.describe()), spec=place.spec.key
            )
        except BaseException:
            self._workshop.close()
            raise
        self._ongoing = CancellableCall(lambda oracles: self._workshop.interrupt(oracles=oracles))
        self._preparer = CompileWorker(
            self.target,
            self._workshop.compiler,
            lambda task, known: self._workshop.oracle(task, known=known),
            known=self._workshop.known,
            ongoing=self._ongoing,
        )

    @property
    def fingerprint(self) -> Fingerprint:
        """What makes the numbers on the device."""
        return self.target.fingerprint

    @property
    def warm(self) -> frozenset[str]:
        """Digests of the tasks whose oracles are kept."""
        return frozenset(tuple(self._warm))

    def evaluate(self, order: EvaluationOrder) -> EvaluationReport:
        """Run the whole cascade, on inputs from a fresh secret. Trouble of ours is in the report.

        Raises:
            EvaluationCancelled: by :meth:`interrupt`.
        """
        started = time.perf_counter()
        with self._ongoing.call():
            try:
                evaluation, profile = self._evaluator(order.task).evaluate(
                    order.candidate,
                    seed=secrets.randbits(63),
                    profile=order.profile,
                    stopped=self._ongoing.stopped,
                )
            except EvaluationCancelled:
                raise
            except Exception as error:
                # What is not understood is not kept: the task's next order finds a fresh oracle.
                self._forget(order.task.digest)
                trouble = trouble_of(error)
                return EvaluationReport(order=order.id, trouble=trouble, worker_seconds=time.perf_counter() - started)
            self._trim(order.task.digest)
            if order.prepared:
                made, before = evaluation.seconds, order.prepared
                seconds = {part: made.get(part, 0.0) + before.get(part, 0.0) for part in {**made, **before}}
                evaluation = evaluation.model_copy(update={"seconds": seconds})
            return report_of(order.id, evaluation, profile, time.perf_counter() - started)

    def prepare(self, order: EvaluationOrder) -> EvaluationReport | Prepared:
        """See :meth:`CompileWorker.prepare`."""
        return self._preparer.prepare(order)

    def brief(self, task: Task) -> BriefFacts:
        """See :meth:`CompileWorker.brief`."""
        return self._preparer.brief(task)

    def interrupt(self) -> bool:
        """End the call in progress within about a second, from another thread; False where there is none.

        The call then raises :class:`~kernelforge.errors.EvaluationCancelled`.
        """
        return self._ongoing.interrupt()

    def close(self) -> None:
        """End every helper process."""
        for digest in tuple(self._warm):
            self._forget(digest)
        self._workshop.close()

    def __enter__(self) -> WarmEvaluators:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _evaluator(self, task: Task) -> Evaluator:
        """A warm evaluator of a task.

        Raises:
            TaskError: the task cannot be judged.
            DeviceError: the device is not fit for use.
        """
        place = self._warm.pop(task.digest, None)
        if place is None:
            while len(self._warm) >= self._warm_tasks:
                self._forget(next(iter(self._warm)))
            evaluator = self._workshop.evaluator(task)
            try:
                with evaluator.lease():
                    require_admitted(evaluator.oracle)
            except BaseException:
                evaluator.oracle.close()
                self._workshop.done(task)
                raise
            place = _Place(evaluator, evaluator.oracle.held_bytes())
        self._warm[task.digest] = place
        return place.evaluator

    def _trim(self, used: str) -> None:
        """Close oracles, those unused for longest first, until the others hold no more than they may."""
        place = self._warm[used]
        place.kept_bytes = max(place.evaluator.oracle.held_bytes() - place.began_bytes, 0)
        while sum(place.kept_bytes for place in self._warm.values()) > self._warm_bytes:
            self._forget(next(iter(self._warm)))

    def _forget(self, digest: str) -> None:
        place = self._warm.pop(digest, None)
        if place is not None:
            place.evaluator.oracle.close()
            self._workshop.done(place.evaluator.task)
