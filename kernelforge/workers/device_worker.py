"""A device worker: evaluates candidates on one device, with helper processes and warm oracles of recent tasks."""

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
from kernelforge.workers.base import EvaluationOrder, EvaluationReport, Prepared, TaskContextData, classify, make_report
from kernelforge.workers.cancellation import CancellableCall
from kernelforge.workers.compile_worker import CompileWorker, Target

_LOG = logging.getLogger(__name__)


class DeviceWorker:
    """Evaluates candidates on one device. All of it is for one thread, except :meth:`interrupt` and :attr:`warm`.

    Args:
        device: name of one device: ``emulated:h100`` or ``cuda:0``.
        threads: threads of one emulated run, and of the oracle.
        measure: settings of timing on a GPU.
        allow_unconfined: run children without a jail if none works.
        warm_tasks: oracles that are kept; the least recently used one is closed first.
        warm_bytes: memory of all kept oracles together between orders, in bytes.
        cache: folder of the build cache; None for the user's cache.
        run_limit_s: longest run of a candidate's plan, in wall seconds; None for the default.
        compile_limit_s: longest compilation, in seconds; None for the default.

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
        self._call = CancellableCall(lambda oracles: self._pool.interrupt(oracles=oracles))
        self._preparer = CompileWorker(
            self.target,
            self._pool.compiler,
            lambda task, cached: self._pool.oracle(task, cached=cached),
            tasks=self._pool.known_tasks,
            call=self._call,
        )

    @property
    def fingerprint(self) -> Fingerprint:
        """Device and toolchain."""
        return self.target.fingerprint

    @property
    def cached_tasks(self) -> frozenset[str]:
        """Digests of the tasks whose oracles are warm."""
        return self._pool.evaluators.digests

    def evaluate(self, order: EvaluationOrder) -> EvaluationReport:
        """Run the complete cascade on inputs from a new random seed. The report contains infrastructure failures.

        Raises:
            EvaluationCancelled: :meth:`interrupt` was called.
        """
        started = time.perf_counter()
        with self._call.call():
            try:
                with self._pool.evaluators.using(order.task) as evaluator:
                    evaluation, profile = evaluator.evaluate(
                        order.candidate,
                        seed=secrets.randbits(63),
                        profile=order.profile,
                        stopped=self._call.stopped,
                    )
            except EvaluationCancelled:
                raise
            except Exception as error:
                failure = classify(error)
                return EvaluationReport(order=order.id, trouble=failure, worker_seconds=time.perf_counter() - started)
            if order.prepared:
                made, before = evaluation.seconds, order.prepared
                seconds = {part: made.get(part, 0.0) + before.get(part, 0.0) for part in {**made, **before}}
                evaluation = evaluation.model_copy(update={"seconds": seconds})
            return make_report(order.id, evaluation, profile, time.perf_counter() - started)

    def prepare(self, order: EvaluationOrder) -> EvaluationReport | Prepared:
        """See :meth:`CompileWorker.prepare`."""
        return self._preparer.prepare(order)

    def task_context(self, task: Task) -> TaskContextData:
        """See :meth:`CompileWorker.task_context`."""
        return self._preparer.task_context(task)

    def interrupt(self) -> bool:
        """End the call in progress within about a second, from another thread; False if there is none.

        The call then raises :class:`~kernelforge.errors.EvaluationCancelled`.
        """
        return self._call.interrupt()

    def close(self) -> None:
        """End every helper process."""
        self._pool.close()

    def __enter__(self) -> DeviceWorker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
