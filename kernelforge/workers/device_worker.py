"""A device worker: evaluates candidates on one device, with its helper processes and the oracles of recent tasks."""

from __future__ import annotations

import logging
import secrets
import time
from pathlib import Path
from types import TracebackType

from kernelforge.errors import EvaluationCancelled
from kernelforge.evaluation.pool import EvaluatorPool
from kernelforge.evaluation.warm_evaluators import WARM_BYTES, WARM_TASKS
from kernelforge.records import Fingerprint, MeasureSettings, Task
from kernelforge.workers.base import BriefFacts, EvaluationOrder, EvaluationReport, Prepared
from kernelforge.workers.cancellation import CancellableCall
from kernelforge.workers.compile_worker import CompileWorker, Target
from kernelforge.workers.failures import report_of, trouble_of

_LOG = logging.getLogger(__name__)


class DeviceWorker:
    """Evaluates candidates on one device. All of it is for one thread, except :meth:`interrupt` and :attr:`warm`.

    Args:
        device: name of one device: ``emulated:h100`` or ``cuda:0``.
        threads: threads that one emulated run, and the oracle, may use.
        measure: how a device that measures is used.
        allow_unconfined: run children without a jail where none works.
        warm_tasks: oracles that are kept; the least recently used one is closed first.
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
        self._pool = EvaluatorPool(
            device,
            threads=threads,
            cache=cache,
            measure=measure,
            allow_unconfined=allow_unconfined,
            tell=_LOG.warning,
            run_limit_s=run_limit_s,
            compile_limit_s=compile_limit_s,
            warm_tasks=warm_tasks,
            warm_bytes=warm_bytes,
        )
        try:
            self._pool.start()
            opened = self._pool.device
            self.target = Target(
                fingerprint=self._pool.fingerprint, description=dict(opened.describe()), spec=opened.spec.key
            )
        except BaseException:
            self._pool.close()
            raise
        self._ongoing = CancellableCall(lambda oracles: self._pool.interrupt(oracles=oracles))
        self._preparer = CompileWorker(
            self.target,
            self._pool.compiler,
            lambda task, known: self._pool.oracle(task, cached=known),
            known=self._pool.known_tasks,
            ongoing=self._ongoing,
        )

    @property
    def fingerprint(self) -> Fingerprint:
        """What makes the numbers on the device."""
        return self.target.fingerprint

    @property
    def warm(self) -> frozenset[str]:
        """Digests of the tasks whose oracles are kept."""
        return self._pool.evaluators.digests

    def evaluate(self, order: EvaluationOrder) -> EvaluationReport:
        """Run the whole cascade, on inputs from a fresh secret. Infrastructure failures are in the report.

        Raises:
            EvaluationCancelled: by :meth:`interrupt`.
        """
        started = time.perf_counter()
        with self._ongoing.call():
            try:
                with self._pool.evaluators.using(order.task) as evaluator:
                    evaluation, profile = evaluator.evaluate(
                        order.candidate,
                        seed=secrets.randbits(63),
                        profile=order.profile,
                        stopped=self._ongoing.stopped,
                    )
            except EvaluationCancelled:
                raise
            except Exception as error:
                trouble = trouble_of(error)
                return EvaluationReport(order=order.id, trouble=trouble, worker_seconds=time.perf_counter() - started)
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
        self._pool.close()

    def __enter__(self) -> DeviceWorker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
