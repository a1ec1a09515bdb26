"""A compile worker: plans and sources prepared without a device, and task facts."""

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
from kernelforge.workers.base import BriefFacts, EvaluationOrder, EvaluationReport, Prepared
from kernelforge.workers.cancellation import CancellableCall
from kernelforge.workers.failures import report_of, trouble_of


class Target(Record):
    """The device that candidates are prepared for, as one needs to know it who has none."""

    fingerprint: Fingerprint
    description: dict[str, str]
    """Facts that a Coder may use."""
    spec: str
    """See :attr:`kernelforge.workers.base.BriefFacts.spec`."""


class CompileWorker:
    """Prepares candidates and briefs agents, without a device. For one thread, beside :meth:`interrupt`.

    Args:
        target: the device that it works for.
        compiler: where candidates are built.
        open_oracle: opens a task's oracle, which is closed again once the task is known.
        known: what is known of tasks already.
        ongoing: the calls that these are part of; None: calls of its own.
    """

    def __init__(
        self,
        target: Target,
        compiler: Compiler,
        open_oracle: Callable[[Task, OracleFacts], Oracle],
        *,
        known: KnownTasks | None = None,
        ongoing: CancellableCall | None = None,
    ) -> None:
        self.target = target
        self.known = known or KnownTasks()
        self._compiler = compiler
        self._open_oracle = open_oracle
        self._ongoing = ongoing or CancellableCall(self._end)
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
        """One with a compiler and oracles of its own, warm from the start; :meth:`close` ends them.

        Raises:
            DeviceError: the compiler is not installed.
            SandboxError: no jail works here and ``allow_unconfined`` is false.
        """
        zygote = Zygote("oracle", allow_unconfined=allow_unconfined)
        compiler = make_compiler(cache, allow_unconfined=allow_unconfined, limit_s=compile_limit_s)
        made = cls(target, compiler, lambda task, known: Oracle(zygote, task, threads=threads, cached=known))
        made._zygote = zygote
        try:
            compiler.start()
            zygote.start()
        except BaseException:
            made.close()
            raise
        return made

    def prepare(self, order: EvaluationOrder) -> EvaluationReport | Prepared:
        """Resolve and compile at every size, into the cache. A report: it ended here, as
        :class:`~kernelforge.evaluation.evaluator.Evaluator` would have ended it.

        Raises:
            EvaluationCancelled: by :meth:`interrupt`.
        """
        started = time.perf_counter()
        with self._ongoing.call():
            try:
                ended = self._prepared(order, started)
            except EvaluationCancelled:
                raise
            except Exception as error:
                seconds = time.perf_counter() - started
                return EvaluationReport(order=order.id, trouble=trouble_of(error), worker_seconds=seconds)
            if isinstance(ended, BuildState):
                return Prepared(order=order.id, seconds=ended.seconds)
            return report_of(order.id, ended, None, time.perf_counter() - started)

    def _prepared(self, order: EvaluationOrder, started: float) -> Evaluation | BuildState:
        task, candidate = order.task, order.candidate
        work = BuildState(stopped=self._ongoing.stopped)
        fingerprint = self.target.fingerprint
        try:
            resolve_plans(candidate, task, self._facts(task), work)
            compile_plans(candidate, task, self._compiler, fingerprint.arch, work)
        except StageFailed as failure:
            return concluded(candidate, task, fingerprint, work, failure, time.perf_counter() - started)
        return work

    def _facts(self, task: Task) -> TaskFacts:
        known = self.known.of(task)
        if known.facts is not None:
            return known.facts
        with self._open_oracle(task, known) as oracle:
            return oracle.facts()

    def brief(self, task: Task) -> BriefFacts:
        """What agents may be told of a task.

        Raises:
            TaskError: its reference does not run, or wrong answers to it could earn a reward.
            EvaluationCancelled: by :meth:`interrupt`.
        """
        with self._ongoing.call(), self._open_oracle(task, self.known.of(task)) as oracle:
            facts = oracle.facts()
            oracle.require_admitted()
            return BriefFacts(
                facts=public_facts(facts),
                shared=shape_invariants(task, facts),
                graph=oracle.trace("full"),
                device=self.target.description,
                spec=self.target.spec,
            )

    def interrupt(self) -> bool:
        """End the call in progress within about a second, from another thread; False where there is none."""
        return self._ongoing.interrupt()

    def _end(self, oracles: bool) -> None:
        self._compiler.interrupt()
        if oracles and self._zygote is not None:
            self._zygote.interrupt()

    def close(self) -> None:
        """End what :meth:`alone` started."""
        if self._zygote is not None:
            self._compiler.close()
            self._zygote.close()

    def __enter__(self) -> CompileWorker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
