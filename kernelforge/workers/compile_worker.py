"""A compile worker: prepares plans and sources without a device, and describes tasks to agents."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from kernelforge.compile import Compiler
from kernelforge.errors import EvaluationCancelled
from kernelforge.evaluation.evaluator import concluded
from kernelforge.evaluation.oracle.client import KnownTasks, Oracle, OracleFacts
from kernelforge.evaluation.oracle.task_context import public_facts, shape_invariants
from kernelforge.evaluation.pool import make_compiler
from kernelforge.evaluation.stages.compile_stage import BuildState, StageFailed, compile_plans, resolve_plans
from kernelforge.records import Evaluation, Fingerprint, Record, Task, TaskFacts
from kernelforge.sandbox import Zygote
from kernelforge.workers.base import EvaluationOrder, EvaluationReport, Prepared, TaskContextData, classify, make_report
from kernelforge.workers.cancellation import CancellableCall


class Target(Record):
    """Description of the device that candidates are prepared for."""

    fingerprint: Fingerprint
    description: dict[str, str]
    """Facts for a Coder."""
    spec: str
    """See :attr:`kernelforge.workers.base.TaskContextData.spec`."""


class CompileWorker:
    """Prepares candidates and describes tasks without a device. For one thread, except :meth:`interrupt`.

    Args:
        target: the device to prepare for.
        compiler: builds candidates.
        open_oracle: opens a task's oracle, which is closed once the facts are cached.
        tasks: cached facts of tasks.
        call: shared with a :class:`DeviceWorker` that uses this object; None: a separate one.
    """

    def __init__(
        self,
        target: Target,
        compiler: Compiler,
        open_oracle: Callable[[Task, OracleFacts], Oracle],
        *,
        tasks: KnownTasks | None = None,
        call: CancellableCall | None = None,
    ) -> None:
        self.target = target
        self.tasks = tasks or KnownTasks()
        self._compiler = compiler
        self._open_oracle = open_oracle
        self._call = call or CancellableCall(self._end)
        self._zygote: Zygote | None = None

    @classmethod
    def alone(
        cls,
        target: Target,
        *,
        threads: int = 1,
        allow_unconfined: bool = False,
        cache: Path | None = None,
        compile_limit_s: float | None = None,
    ) -> CompileWorker:
        """A worker with its own compiler and oracles, warm from the start; :meth:`close` ends them.

        Raises:
            DeviceError: the compiler is not installed.
            SandboxError: no jail works here and ``allow_unconfined`` is false.
        """
        zygote = Zygote("oracle", allow_unconfined=allow_unconfined)
        compiler = make_compiler(cache, allow_unconfined=allow_unconfined, limit_s=compile_limit_s)
        worker = cls(target, compiler, lambda task, cached: Oracle(zygote, task, threads=threads, cached=cached))
        worker._zygote = zygote
        try:
            compiler.start()
            zygote.start()
        except BaseException:
            worker.close()
            raise
        return worker

    def prepare(self, order: EvaluationOrder) -> EvaluationReport | Prepared:
        """Resolve and compile at every size, into the cache. Returns a report if that fails, the same that
        :class:`~kernelforge.evaluation.evaluator.Evaluator` would make.

        Raises:
            EvaluationCancelled: :meth:`interrupt` was called.
        """
        started = time.perf_counter()
        with self._call.call():
            try:
                result = self._prepare(order, started)
            except EvaluationCancelled:
                raise
            except Exception as error:
                seconds = time.perf_counter() - started
                return EvaluationReport(order=order.id, trouble=classify(error), worker_seconds=seconds)
            if isinstance(result, BuildState):
                return Prepared(order=order.id, seconds=result.seconds)
            return make_report(order.id, result, None, time.perf_counter() - started)

    def _prepare(self, order: EvaluationOrder, started: float) -> Evaluation | BuildState:
        task, candidate = order.task, order.candidate
        state = BuildState(stopped=self._call.stopped)
        fingerprint = self.target.fingerprint
        try:
            resolve_plans(candidate, task, self._facts(task), state)
            compile_plans(candidate, task, self._compiler, fingerprint.arch, state)
        except StageFailed as failure:
            return concluded(candidate, task, fingerprint, state, failure, time.perf_counter() - started)
        return state

    def _facts(self, task: Task) -> TaskFacts:
        cached = self.tasks.of(task)
        if cached.facts is not None:
            return cached.facts
        with self._open_oracle(task, cached) as oracle:
            return oracle.facts()

    def task_context(self, task: Task) -> TaskContextData:
        """Facts of a task that agents may see.

        Raises:
            TaskError: its reference does not run, or wrong answers could earn a reward.
            EvaluationCancelled: :meth:`interrupt` was called.
        """
        with self._call.call(), self._open_oracle(task, self.tasks.of(task)) as oracle:
            facts = oracle.facts()
            oracle.require_admitted()
            return TaskContextData(
                facts=public_facts(facts),
                shared=shape_invariants(task, facts),
                graph=oracle.trace("full"),
                device=self.target.description,
                spec=self.target.spec,
            )

    def interrupt(self) -> bool:
        """End the call in progress within about a second, from another thread; False if there is none."""
        return self._call.interrupt()

    def _end(self, oracles: bool) -> None:
        self._compiler.interrupt()
        if oracles and self._zygote is not None:
            self._zygote.interrupt()

    def close(self) -> None:
        """End the processes that :meth:`alone` started."""
        if self._zygote is not None:
            self._compiler.close()
            self._zygote.close()

    def __enter__(self) -> CompileWorker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
