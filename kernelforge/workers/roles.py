"""Work of a worker process: a compile worker prepares candidates, a device worker evaluates them.

A compile worker resolves plans, builds sources and describes tasks to agents, without a device. A device worker keeps
helper processes and the oracles of recent tasks warm. Another thread can cancel a call of either.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from kernelforge.agents.tester import parse_tests, score_tests, try_tests
from kernelforge.compile import Compiler
from kernelforge.compile.cache import packed_build, unpacked_build
from kernelforge.errors import CandidateError, ChildTimeout, EvaluationCancelled, TaskError, UnsupportedError
from kernelforge.evaluation.evaluator import EvaluationResult, concluded
from kernelforge.evaluation.oracle.client import KnownTasks, Oracle, OracleFacts
from kernelforge.evaluation.oracle.shared import SharedOracles
from kernelforge.evaluation.oracle.task_context import public_facts, shape_invariants
from kernelforge.evaluation.pool import WARM_BYTES, WARM_TASKS, EvaluatorPool, make_compiler
from kernelforge.evaluation.stages.compile_stage import BuildState, StageFailed, compile_plans, resolve_plans
from kernelforge.evaluation.stages.programs import Program, program_of
from kernelforge.records import Candidate, Evaluation, Fingerprint, MeasureSettings, Record, Task, TaskFacts
from kernelforge.sandbox import Zygote
from kernelforge.workers.base import (
    EvaluationOrder,
    EvaluationReport,
    Prepared,
    ScoredTests,
    TaskContextData,
    classify,
    make_report,
)

ORACLE_PATIENCE_S = 0.5
"""How long an interrupted call may wait for its oracle before the oracle is ended too, which is slow to replace."""

MODELNEW_OFF = "this server runs no ModelNew as it is: start it with --modelnew run"

_REPEAT_S = 0.05
_LOG = logging.getLogger(__name__)


class CancellableCall:
    """The call that a worker is executing.

    Args:
        end: ends the child that the call waits for; with True, its oracle too. Called repeatedly from another thread
            until the call has ended, because the call may have started to wait for another child in between.
    """

    def __init__(self, end: Callable[[bool], None]) -> None:
        self._end = end
        self._lock = threading.Lock()
        self._number = 0
        self._busy = self._stopped = False

    def stopped(self) -> bool:
        """Whether the call in progress should end."""
        return self._stopped

    @contextmanager
    def call(self) -> Iterator[None]:
        """Context of one call.

        Raises:
            EvaluationCancelled: another thread cancelled the call; its result, or its error, is discarded.
        """
        with self._lock:
            self._number += 1
            self._busy, self._stopped = True, False
        try:
            yield
        finally:
            with self._lock:
                self._busy = False
                stopped = self._stopped
            if stopped:
                raise EvaluationCancelled("the call was interrupted")

    def interrupt(self) -> bool:
        """End the call in progress, which then raises :class:`EvaluationCancelled`; False if there is none."""
        with self._lock:
            if not self._busy:
                return False
            if not self._stopped:
                self._stopped = True
                threading.Thread(target=self._end_calls, args=(self._number,), name="interrupt", daemon=True).start()
            return True

    def _end_calls(self, number: int) -> None:
        started = time.monotonic()
        while True:
            with self._lock:
                if not self._busy or self._number != number:
                    return
                self._end(time.monotonic() - started > ORACLE_PATIENCE_S)
            time.sleep(_REPEAT_S)


class Target(Record):
    """Description of the device that candidates are prepared for."""

    fingerprint: Fingerprint
    description: dict[str, str]
    """Facts for a Coder."""
    spec: str
    """See :attr:`kernelforge.workers.base.TaskContextData.spec`."""
    modelnew: Fingerprint | None = None
    """Fingerprint of candidates of lane ``modelnew``; None where they are not run."""


class WorkerSettings(Record):
    """Settings of a worker process."""

    role: Literal["device", "cpu"]
    """``device``: evaluates on one device. ``cpu``: prepares candidates and describes tasks without a device."""
    device: str = ""
    """Name of one device: ``emulated:h100`` or ``cuda:0``."""
    threads: int = 1
    """Threads of one emulated run, and of the oracle."""
    measure: MeasureSettings | None = None
    """Settings of timing on a GPU."""
    allow_unconfined: bool = False
    """Run children without a jail if none works."""
    warm_tasks: int = WARM_TASKS
    """Oracles that are kept; the least recently used one is closed first."""
    warm_bytes: int = WARM_BYTES
    """Memory of all kept oracles together between orders."""
    cache: Path | None = None
    """Folder of the build cache; None for the user's cache."""
    run_limit_s: float | None = None
    """Longest run of a candidate's plan, in wall seconds; None for the default."""
    compile_limit_s: float | None = None
    target: Target | None = None
    """The device that a compile worker prepares for."""
    share_builds: bool = False
    """Whether builds travel with the orders, because machines have a cache each."""
    modelnew: bool = False
    """Whether candidates of lane ``modelnew`` are run."""
    oracles: Path | None = None
    """Socket of the machine's oracle host; None for oracles of its own."""


class CompileWorker:
    """Prepares candidates and describes tasks without a device. For one thread, except :meth:`interrupt`.

    Args:
        target: the device to prepare for.
        compiler: builds candidates.
        open_oracle: opens a task's oracle, which is closed once the facts are cached.
        tasks: cached facts of tasks.
        zygote: forks the oracles; None if another object owns zygote and compiler.
        share_builds: give the builds back with what was prepared.
    """

    def __init__(
        self,
        target: Target,
        compiler: Compiler,
        open_oracle: Callable[[Task, OracleFacts], Oracle],
        tasks: KnownTasks,
        zygote: Zygote | SharedOracles | None = None,
        *,
        share_builds: bool = False,
    ) -> None:
        self.target = target
        self.tasks = tasks
        self._share_builds = share_builds
        self._compiler = compiler
        self._open_oracle = open_oracle
        self._call = CancellableCall(self._end)
        self._zygote = zygote

    @classmethod
    def alone(cls, settings: WorkerSettings) -> CompileWorker:
        """A worker with its own compiler and oracles, warm from the start; :meth:`close` ends them.

        Raises:
            DeviceError: the compiler is not installed.
            SandboxError: no jail works here and ``allow_unconfined`` is false.
        """
        assert settings.target is not None
        unconfined, threads = settings.allow_unconfined, settings.threads
        host = settings.oracles
        zygote = SharedOracles(host) if host else Zygote("oracle", allow_unconfined=unconfined)
        compiler = make_compiler(settings.cache, allow_unconfined=unconfined, limit_s=settings.compile_limit_s)
        worker = cls(
            settings.target,
            compiler,
            lambda task, cached: Oracle(zygote, task, threads=threads, cached=cached),
            KnownTasks(),
            zygote,
            share_builds=settings.share_builds,
        )
        try:
            compiler.start()
            zygote.start()
        except BaseException:
            worker.close()
            raise
        return worker

    @property
    def cached_tasks(self) -> frozenset[str]:
        """Digests of the tasks whose oracles are warm."""
        return frozenset()

    def prepare(self, order: EvaluationOrder) -> EvaluationReport | Prepared:
        """Resolve and compile at every size, into the cache. Returns a report if that fails, the same that
        :class:`~kernelforge.evaluation.evaluator.Evaluator` would make.

        Raises:
            EvaluationCancelled: :meth:`interrupt` was called.
        """
        started = time.perf_counter()
        if order.candidate.lane == "modelnew":  # it builds what it needs in its own process
            return Prepared(order=order.id)
        with self._call.call():
            try:
                result = self._prepare(order, started)
                program = None if isinstance(result, Evaluation) else self._program(order.candidate, result)
            except EvaluationCancelled:
                raise
            except Exception as error:
                seconds = time.perf_counter() - started
                return EvaluationReport(order=order.id, trouble=classify(error), worker_seconds=seconds)
            if isinstance(result, BuildState):
                return Prepared(
                    order=order.id,
                    seconds=result.seconds,
                    builds=self._shared_builds(result),
                    program=program,
                    build=result.build,
                )
            return make_report(order.id, result, None, time.perf_counter() - started)

    def _prepare(self, order: EvaluationOrder, started: float) -> Evaluation | BuildState:
        task, candidate = order.task, order.candidate
        state = BuildState(stopped=self._call.stopped)
        fingerprint = self.target.fingerprint.at_sizes(order.sizes)
        try:
            resolve_plans(candidate, task, self._facts(task), state)
            compile_plans(candidate, task, self._compiler, fingerprint.arch, state)
        except StageFailed as failure:
            return concluded(candidate, task, fingerprint, state, failure, time.perf_counter() - started)
        return state

    def _program(self, candidate: Candidate, state: BuildState) -> Program | None:
        with state.clock("build"):
            return program_of(candidate, state)

    def _shared_builds(self, state: BuildState) -> dict[str, str]:
        """Builds for a machine with another cache; none where they are so large that compiling again is as good."""
        if not self._share_builds:
            return {}
        cached = {key: self._compiler.cache.get(key) for key in {item.build.key for item in state.artifacts.values()}}
        builds = {key: packed_build(artifact) for key, artifact in cached.items() if artifact is not None}
        return builds if sum(map(len, builds.values())) <= _MOST_SHARED_CHARS else {}

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

    def score_tests(self, task: Task, reply: str, most: int) -> ScoredTests:
        """Score the input generators of a Tester's reply on at most ``most`` mutants of a task.

        Raises:
            TaskError: its reference does not run, wrong answers could earn a reward, or so many take too long.
            EvaluationCancelled: :meth:`interrupt` was called.
        """
        try:
            proposed = parse_tests(reply)
        except CandidateError as error:
            return ScoredTests(fault=str(error))
        with self._call.call(), self._open_oracle(task, self.tasks.of(task)) as oracle:
            oracle.require_admitted()
            inputs = oracle.facts().at("small").inputs
            tests = try_tests(proposed, "reply", task, inputs, oracle)
            try:
                return ScoredTests(tests=tests, mutants=score_tests(tests, inputs, oracle, most).mutants)
            except ChildTimeout as error:
                raise TaskError(f"task '{task.name}': {most} faults take too long here: ask for fewer") from error

    def interrupt(self) -> bool:
        """End the call in progress within about a second, from another thread; False if there is none.

        The call then raises :class:`~kernelforge.errors.EvaluationCancelled`.
        """
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


_MOST_SHARED_CHARS = 4 << 20
"""Most characters of the builds of one order: the gateway holds those of every order that is ready for a slot."""


class DeviceWorker(CompileWorker):
    """Evaluates candidates on one device. All of it is for one thread, except :meth:`interrupt` and
    :attr:`cached_tasks`.

    Raises:
        SandboxError: no jail works here and ``allow_unconfined`` is false.
        DeviceError: there is no such device, or it cannot be used.
    """

    def __init__(self, settings: WorkerSettings) -> None:
        pool = self._pool = EvaluatorPool(
            settings.device,
            threads=settings.threads,
            cache=settings.cache,
            measure=settings.measure,
            allow_unconfined=settings.allow_unconfined,
            tell=_LOG.warning,
            run_limit_s=settings.run_limit_s,
            compile_limit_s=settings.compile_limit_s,
            warm_tasks=settings.warm_tasks,
            warm_bytes=settings.warm_bytes,
            oracles=settings.oracles,
        )
        try:
            pool.start()
            opened = pool.device
            self._modelnew = None
            if settings.modelnew:
                from kernelforge.modelnew.evaluator import SERVED_BUILD_SECONDS, ModelNewEvaluators

                self._modelnew = ModelNewEvaluators(
                    pool=pool, warm_bytes=settings.warm_bytes // WARM_TASKS, builds_s=SERVED_BUILD_SECONDS
                )
            target = Target(
                fingerprint=pool.fingerprint,
                description=dict(opened.describe()),
                spec=opened.spec.key,
                modelnew=None if self._modelnew is None else self._modelnew.fingerprint,
            )
        except BaseException:
            pool.close()
            raise
        super().__init__(target, pool.compiler, lambda task, cached: pool.oracle(task, cached=cached), pool.known_tasks)

    @property
    def cached_tasks(self) -> frozenset[str]:
        return self._pool.evaluators.digests

    def evaluate(self, order: EvaluationOrder) -> EvaluationReport:
        """Run the complete cascade on inputs from a new random seed. The report contains infrastructure failures.

        Raises:
            EvaluationCancelled: :meth:`interrupt` was called.
        """
        started = time.perf_counter()
        for key, text in order.builds.items():
            artifact = unpacked_build(text, key) if self._compiler.cache.get(key) is None else None
            if artifact is not None:
                self._compiler.cache.put(key, artifact)
        with self._call.call():
            try:
                evaluation, profile = self._evaluate(order)
            except EvaluationCancelled:
                raise
            except Exception as error:
                seconds_used = time.perf_counter() - started
                return EvaluationReport(order=order.id, trouble=classify(error), worker_seconds=seconds_used)
            if order.prepared:
                made, before = evaluation.seconds, order.prepared
                seconds = {part: made.get(part, 0.0) + before.get(part, 0.0) for part in {**made, **before}}
                evaluation = evaluation.model_copy(update={"seconds": seconds})
            return make_report(order.id, evaluation, profile, time.perf_counter() - started)

    def _evaluate(self, order: EvaluationOrder) -> EvaluationResult:
        if order.candidate.lane == "modelnew":
            if self._modelnew is None:
                raise UnsupportedError(MODELNEW_OFF)
            return self._modelnew.evaluate(order.task, order.candidate, seed=secrets.randbits(63))
        with self._pool.evaluators.using(order.task) as evaluator:
            return evaluator.evaluate(
                order.candidate,
                seed=secrets.randbits(63),
                profile=order.profile,
                stopped=self._call.stopped,
                sizes=order.sizes,
            )

    def _end(self, oracles: bool) -> None:
        self._pool.interrupt(oracles=oracles)
        if self._modelnew is not None:
            self._modelnew.interrupt()

    def close(self) -> None:
        """End every helper process."""
        if self._modelnew is not None:
            self._modelnew.close()
        self._pool.close()
