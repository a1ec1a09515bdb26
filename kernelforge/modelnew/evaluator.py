"""The evaluation of a ``ModelNew``: load, construct with the reference's weights, every size and input family.

As for kernels, expected outputs stay with the oracle, which also compares. The candidate runs in a process of its own
that has neither them nor a seed; its inputs are new values at the same addresses in every run.
"""

from __future__ import annotations

import ast
import platform
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import replace
from importlib.metadata import version
from math import inf
from typing import Final

from kernelforge.devices import check_device, default_device
from kernelforge.devices.base import Device
from kernelforge.devices.remote.address import CPU, is_remote, parse_address
from kernelforge.errors import TaskError, TimingError, UsageError
from kernelforge.evaluation.evaluator import EVALUATOR_VERSION, EvaluationResult, concluded
from kernelforge.evaluation.oracle.client import DrawHandle, Oracle
from kernelforge.evaluation.pool import WARM_BYTES, EvaluatorPool, WarmEvaluators
from kernelforge.evaluation.stages.candidate_runs import EvaluationState
from kernelforge.evaluation.stages.compile_stage import StageFailed, reason_at
from kernelforge.evaluation.timing.candidate_timer import OutputChangedWhileTimed
from kernelforge.modelnew.client import (
    VERDICTS,
    Init,
    ModelNewChild,
    ModelNewFault,
    read_init,
    reply_bytes,
    unchanged,
    with_mutated,
)
from kernelforge.modelnew.timer import ModelNewTimer
from kernelforge.modelnew.values import at_size
from kernelforge.records import (
    Candidate,
    Fingerprint,
    MeasureSettings,
    Performance,
    Size,
    SizeCheck,
    SizeFacts,
    Stage,
    Task,
    Verdict,
)
from kernelforge.sandbox import Zygote, select_tier
from kernelforge.sandbox.policy import Limits
from kernelforge.utils.closing import Closing
from kernelforge.version import __version__

MODELNEW_VERSION: Final = f"{EVALUATOR_VERSION}+modelnew.1"
"""What a fingerprint gives as the evaluator; changes whenever a verdict of this lane could."""

EVALUATION_SECONDS: Final = 300.0
"""One evaluation that takes longer than this, loading and constructing aside, is ended: ``TIMEOUT``."""

SERVED_BUILD_SECONDS: Final = 400.0
"""All loading and constructing of one candidate on a reward server, which gives a worker 900 s for it all."""

CPU_LIMITS: Final = Limits(
    wall_s=60.0, cpu_s=1800.0, memory_bytes=8 << 30, tmp_bytes=256 << 20, processes=8, file_bytes=64 << 20
)
GPU_LIMITS: Final = Limits(
    wall_s=600.0, cpu_s=3600.0, memory_bytes=48 << 30, tmp_bytes=4 << 30, processes=512, file_bytes=1 << 30
)
"""Of one candidate's process; on a GPU it may build an extension with nvcc and ninja in its private /tmp."""


def modelnew_candidate(text: str) -> Candidate:
    """A candidate of this lane: a Python file with a class ``ModelNew``, and no plan.

    Raises:
        pydantic.ValidationError: the text is empty or too large.
    """
    return Candidate(source=text, plan="", lane="modelnew")


class ModelNewEvaluator:
    """Evaluates ``ModelNew`` candidates for one task on one device. Not for use by two threads.

    Args:
        task: the task.
        oracle: the task's oracle; the caller closes it.
        zygote: forks candidates' processes: role ``modelnew``, or ``gpu-modelnew`` where ``device`` is a GPU.
        device: torch's name of the device: ``cpu`` or ``cuda``.
        fingerprint: of this machine; on the CPU its device kind is ``cpu``. Its evaluator becomes this lane's.
        limits: of one candidate's process.
        build_s: longest wait for the candidate's file or constructor, which may call a compiler.
        builds_s: longest wait for all of these together, at every size.
        run_s: longest wait for one call of ``forward``.
        gpu: the GPU that ``device`` is, to time correct candidates on; None times nothing. The oracle must be on the
            same GPU, for baselines.
        settings: precision and seconds of timing.

    Raises:
        ValueError: ``gpu`` is given, and ``device`` is the CPU.
    """

    def __init__(
        self,
        task: Task,
        oracle: Oracle,
        zygote: Zygote,
        device: str,
        fingerprint: Fingerprint,
        *,
        limits: Limits | None = None,
        build_s: float | None = None,
        builds_s: float = inf,
        run_s: float = 30.0,
        gpu: Device | None = None,
        settings: MeasureSettings | None = None,
    ) -> None:
        self.task = task
        self.oracle = oracle
        self.device = device
        self.fingerprint = fingerprint.model_copy(update={"evaluator": MODELNEW_VERSION})
        self.facts = oracle.facts()
        self._zygote = zygote
        on_gpu = device != "cpu"
        limits = limits or (GPU_LIMITS if on_gpu else CPU_LIMITS)
        self._limits = replace(limits, reply_bytes=min(limits.reply_bytes, reply_bytes(self.facts.sizes)))
        self._build_s = build_s if build_s is not None else (600.0 if on_gpu else 60.0)
        self._builds_s = builds_s
        self._run_s = run_s
        if gpu is not None and not on_gpu:
            raise ValueError("times come from a GPU; the CPU has none to record")
        self._gpu = gpu
        self._settings = settings or MeasureSettings()
        self._init: dict[str, Init] = {}

    def close(self) -> None:
        """End the oracle."""
        self.oracle.close()

    def held_bytes(self) -> int:
        """Memory that the oracle's process holds."""
        return self.oracle.held_bytes()

    def evaluate(self, candidate: Candidate, *, seed: int, sizes: Sequence[str] | None = None) -> EvaluationResult:
        """Run the cascade. There is no profile.

        Args:
            candidate: one of lane ``modelnew``.
            seed: the secret from which every draw of inputs and weights is derived.
            sizes: check these alone (an imported candidate that fits one size); None for all of the task's.

        Raises:
            ValueError: the candidate is of another lane.
            TaskError: the task cannot be judged, or wrong answers to it could earn a reward.
        """
        if candidate.lane != "modelnew":
            raise ValueError("this evaluator takes candidates of lane 'modelnew'")
        if self.task.policy.host_inputs:
            raise TaskError(
                f"task {self.task.name!r} has inputs in host memory, which a class ModelNew is not called with; "
                "write a kernel with a launch plan"
            )
        start = time.perf_counter()
        work = EvaluationState(seed=seed)
        self.oracle.renew()
        try:
            outcome: Performance | StageFailed | None = self._cascade(candidate, work, sizes)
        except StageFailed as failure:
            outcome = failure
        seconds = time.perf_counter() - start
        return EvaluationResult(concluded(candidate, self.task, self.fingerprint, work, outcome, seconds), None)

    def _cascade(self, candidate: Candidate, work: EvaluationState, only: Sequence[str] | None) -> Performance | None:
        try:
            ast.parse(candidate.source)
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            line = f", line {error.lineno}" if isinstance(error, SyntaxError) else ""
            raise StageFailed(Verdict.POLICY, "parse", f"the candidate is not Python text{line}: {error}") from error
        ordered = sorted(self.task.sizes, key=lambda size: (size.name == "full", size.is_hidden))
        with work.clock("oracle"):
            self.oracle.require_admitted()
        with ModelNewChild(self._zygote, self.device, self._limits, build_s=self._build_s, run_s=self._run_s) as child:
            for size in ordered:
                if only is None or size.name in only:
                    self._check_size(child, candidate.source, size, work)
            if self._gpu is not None and (only is None or "full" in only):
                return self._timed(child, self._gpu, work)
        return None

    def _timed(self, child: ModelNewChild, gpu: Device, work: EvaluationState) -> Performance:
        """Time what the child holds: the full size was checked last."""
        stopwatch = ModelNewTimer(
            child=child,
            oracle=self.oracle,
            facts=self.facts.at("full"),
            gpu=gpu,
            settings=self._settings,
            seed=work.seed,
            mutates=self.task.policy.mutates,
        )
        try:
            with work.clock("timing"):
                return stopwatch.time(self._init_at(self.task.size("full")))
        except ModelNewFault as fault:
            raise StageFailed(VERDICTS[fault.kind], "timing", f"while it was timed: {_reason(fault)}") from fault
        except OutputChangedWhileTimed as wrong:
            message = f"right when checked, wrong when timed: {wrong}"
            raise StageFailed(Verdict.WRONG, "timing", message) from wrong
        except TimingError as error:
            raise StageFailed(Verdict.INFRA, "timing", str(error)) from error

    def _check_size(self, child: ModelNewChild, source: str, size: Size, work: EvaluationState) -> None:
        facts = self.facts.at(size.name)
        notes = self._construct(child, source, size, work)
        families = self.oracle.families(size.name)
        if size.name == "full":
            families = families[:1]
        worst = 0.0
        # The first family is run twice: what was kept of the first run must not pass for the second.
        for turn, family in enumerate((families[0], *families)):
            with work.drawn(self.oracle, size, family, turn) as draw:
                worst = max(worst, self._run_and_compare(child, size, facts, draw, notes, work))
        # Notes name shapes, which stay secret at a hidden size.
        public_notes = "" if size.is_hidden else "; ".join(notes)
        work.checks.append(
            SizeCheck(size=size.name, status="passed", families=families, message=public_notes, error=worst)
        )

    def _construct(self, child: ModelNewChild, source: str, size: Size, work: EvaluationState) -> tuple[str, ...]:
        with work.clock("oracle"):
            init = self._init_at(size)
        text, remarks = at_size(source, size)
        try:
            with work.clock("build"):
                child.load(text, self._left_to_build(work))
            with work.clock("build"):
                notes = child.construct(init, self.facts.at(size.name), most_s=self._left_to_build(work))
            return (*notes, *remarks)
        except ModelNewFault as fault:
            stage: Stage = "policy" if fault.kind in ("policy", "forged") else "compile"
            verdict = VERDICTS[fault.kind]
            raise StageFailed(verdict, stage, reason_at(verdict, size, _reason(fault))) from fault

    def _left_to_build(self, work: EvaluationState) -> float:
        """Seconds that are left for loading and constructing, never less than a moment."""
        return max(self._builds_s - work.seconds.get("build", 0.0), 0.1)

    def _init_at(self, size: Size) -> Init:
        if size.name not in self._init:
            from kernelforge.tasks import size_source

            self._init[size.name] = read_init(self._zygote, size_source(self.task, size.name))
        return self._init[size.name]

    def _run_and_compare(
        self,
        child: ModelNewChild,
        size: Size,
        facts: SizeFacts,
        draw: DrawHandle,
        notes: tuple[str, ...],
        work: EvaluationState,
    ) -> float:
        """Run on one draw; returns the error as a multiple of the tolerance."""
        if time.perf_counter() - work.started - work.seconds.get("build", 0.0) > EVALUATION_SECONDS:
            work.fail(Verdict.TIMEOUT, size, draw.family, f"more than {EVALUATION_SECONDS:g} s in all")
        mutates = self.task.policy.mutates
        try:
            with work.clock("run"):
                child.give(draw, facts)
                child.bind([draw], facts)
                got = child.run(mutates)
        except ModelNewFault as fault:
            work.fail(VERDICTS[fault.kind], size, draw.family, _reason(fault))
        problem = unchanged(draw, got, mutates)
        if problem:
            work.fail(Verdict.WRONG, size, draw.family, problem)
        outputs, shapes, dtypes = with_mutated(got, facts, mutates)
        with work.clock("oracle"):
            comparison = self.oracle.check(draw.handle, outputs, shapes, dtypes)
        if not comparison.ok:
            message = "; ".join((comparison.message, *notes))
            work.fail(Verdict.WRONG, size, draw.family, message, comparison.error)
        return comparison.error or 0.0


def _reason(fault: ModelNewFault) -> str:
    """The reason for a verdict, with a note where it is no score."""
    if fault.kind == "gpu":
        return f"{fault.description}; this candidate needs a GPU and was run on the CPU, so this is no score"
    if fault.kind == "missing":
        return f"{fault.description}; the package is not installed here, so this is no score"
    return fault.description


def modelnew_device(name: str | None, measure: MeasureSettings | None = None, *, allow_unconfined: bool = False) -> str:
    """The device of ``ModelNew`` candidates: by default the first GPU that starts, else torch on the CPU.

    Args:
        name: A GPU, ``cpu``, either of another machine, or None for the default. Why a GPU is passed over is then
            logged as a warning.
        measure: How the GPU will be used.
        allow_unconfined: Start it without a jail where none works.

    Raises:
        UsageError: an emulated device is named; it runs no Python.
        DeviceError: there is no such device.
    """
    if name is None:
        default = default_device(measure, allow_unconfined=allow_unconfined)
        return CPU if default.startswith("emulated") else default
    if is_remote(name):
        address, device = parse_address(name)
        if device.startswith("emulated"):
            raise UsageError(f"{name} runs kernels and no ModelNew class; use {address.url(CPU)}, or a GPU there")
        if "," in device:
            raise UsageError(f"{name}: ModelNew classes run on one GPU of one machine; name one")
        return address.url(device)
    if name == CPU:
        return CPU
    full = check_device(name)
    if full.startswith("emulated"):
        raise UsageError(f"{full} runs kernels and no ModelNew class; use --device cpu, or a GPU (cuda:0)")
    return full


class ModelNewEvaluators(Closing):
    """Evaluates ``ModelNew`` candidates on a GPU, or with torch on the CPU. Close it when done.

    Args:
        device: as :func:`modelnew_device` takes it.
        measure: how a GPU times.
        allow_unconfined: run without a jail where none works; the fingerprint then says ``none``.
        pool: a pool of others, in place of ``device``: its GPU, or torch on the CPU where its device is emulated, with
            its oracles and settings. It stays open.
        warm_bytes: memory that an oracle may hold between two evaluations.
        builds_s: longest wait for all loading and constructing of one candidate.

    Raises:
        SandboxError: no jail works here and ``allow_unconfined`` is false.
        DeviceError: there is no such device.
    """

    def __init__(
        self,
        device: str | None = None,
        *,
        measure: MeasureSettings | None = None,
        allow_unconfined: bool = False,
        pool: EvaluatorPool | None = None,
        warm_bytes: int = WARM_BYTES,
        builds_s: float = inf,
    ) -> None:
        self._builds_s = builds_s
        self._stack = ExitStack()
        if pool is None:
            self.device = modelnew_device(device, measure, allow_unconfined=allow_unconfined)
            self._settings = measure or MeasureSettings()
        else:
            self.device = CPU if pool.device.kind == "emulated" else pool.device.name
            self._settings, allow_unconfined = pool.settings, pool.allow_unconfined
        self._jail = select_tier().usable_tier(allow_unconfined)
        if self.device != CPU:
            pool = pool or self._stack.enter_context(
                EvaluatorPool(self.device, measure=measure, allow_unconfined=allow_unconfined)
            )
            environment = pool.device.environment
            self._candidates = Zygote("gpu-modelnew", environment=environment, allow_unconfined=allow_unconfined)
        else:
            self._candidates = Zygote("modelnew", allow_unconfined=allow_unconfined)
        if pool is None:
            self._oracles = Zygote("oracle", allow_unconfined=allow_unconfined)
            self._stack.callback(self._oracles.close)
        self._pool = pool
        self._stack.callback(self._candidates.close)
        # One at a time: an oracle on the GPU keeps memory there that the next candidate may need.
        self._evaluators = WarmEvaluators(self.evaluator, max_tasks=1, max_bytes=warm_bytes)
        self._stack.callback(self._evaluators.close)

    @property
    def fingerprint(self) -> Fingerprint:
        """Fingerprint of verdicts on this machine."""
        if self._pool is not None and self.device != CPU:
            return self._pool.fingerprint.model_copy(update={"evaluator": MODELNEW_VERSION})
        return Fingerprint(
            device=CPU,
            device_kind="cpu",
            arch=platform.machine(),
            toolchain="none",
            kernelforge=__version__,
            evaluator=MODELNEW_VERSION,
            torch=version("torch"),
            python=platform.python_version(),
            host=f"{platform.system().lower()}-{platform.machine()}",
            jail=self._jail,
        )

    def evaluator(self, task: Task) -> ModelNewEvaluator:
        """An evaluator with an oracle of its own; the caller closes it.

        Raises:
            TaskError: the reference does not run, or cannot be judged.
        """
        pool = self._pool
        oracle = Oracle(self._oracles, task) if pool is None else pool.oracle(task, cached=pool.known_tasks.of(task))
        if pool is None or self.device == CPU:
            return ModelNewEvaluator(task, oracle, self._candidates, "cpu", self.fingerprint, builds_s=self._builds_s)
        gpu = pool.device
        return ModelNewEvaluator(
            task,
            oracle,
            self._candidates,
            "cuda",
            self.fingerprint,
            builds_s=self._builds_s,
            gpu=gpu,
            settings=self._settings,
        )

    def evaluate(
        self, task: Task, candidate: Candidate, *, seed: int, sizes: Sequence[str] | None = None
    ) -> EvaluationResult:
        """Evaluate one candidate against one task, with exclusive use of the GPU.

        Raises:
            TaskError: the reference does not run, or cannot be judged.
        """
        with self._hold_gpu(task), self._evaluators.using(task) as evaluator:
            return evaluator.evaluate(candidate, seed=seed, sizes=sizes)

    def interrupt(self) -> None:
        """End the candidate's process that another thread waits for, which then gets a failure."""
        self._candidates.interrupt()

    def close(self) -> None:
        """End every helper process."""
        self._stack.close()

    def _hold_gpu(self, task: Task) -> AbstractContextManager[None]:
        return nullcontext() if self._pool is None else self._pool.hold_gpu(self._pool.device, task)
