"""The evaluation of one candidate: plan, build, policy gate, sizes, timing, profile; cheapest gate first.

This runs in the parent. It sees candidate text only through the plan interpreter, candidate code only as bytes on
their way to a confined runner, and expected outputs not at all: the oracle's child compares.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

from kernelforge.compile import Compiler
from kernelforge.devices.base import RUN_LIMIT_S, Device
from kernelforge.errors import CandidateError, SandboxError, TaskError
from kernelforge.evaluation.generators.parser import generators_digest, parse_generator
from kernelforge.evaluation.oracle.client import Oracle
from kernelforge.evaluation.stages.candidate_runs import CandidateRuns, EvaluationState
from kernelforge.evaluation.stages.compile_stage import BuildState, StageFailed, compile_plans, resolve_plans
from kernelforge.evaluation.stages.correctness import CorrectnessStage
from kernelforge.evaluation.stages.full_size import FullSizeResult, ModelledFullSize, is_cheap
from kernelforge.evaluation.stages.full_size_measured import MeasuredFullSize
from kernelforge.prediction import baseline_time, predict_speedup
from kernelforge.records import (
    Candidate,
    Correctness,
    Evaluation,
    Fingerprint,
    InputGenerator,
    MeasureSettings,
    Origin,
    Performance,
    Profile,
    Task,
    Verdict,
    content_hash,
)

EVALUATOR_VERSION = "5"
"""Changes whenever a verdict could."""


class EvaluationResult(NamedTuple):
    """An evaluation, and the profile of an OK candidate."""

    evaluation: Evaluation
    profile: Profile | None


class Evaluator:
    """Evaluates candidates for one task on one device. Holds that task's oracle; not for use by two threads."""

    def __init__(
        self,
        task: Task,
        oracle: Oracle,
        compiler: Compiler,
        device: Device,
        fingerprint: Fingerprint,
        *,
        screen: Device | None = None,
        settings: MeasureSettings | None = None,
        gpu_lock: Callable[[], AbstractContextManager[None]] = nullcontext,
        run_limit_s: float = RUN_LIMIT_S,
    ) -> None:
        """Args:
        screen: an emulated device that also runs every size but the full one, and checks every access.
        settings: how a device that measures is used.
        gpu_lock: held while the device is used, so that no other process runs on it.
        run_limit_s: longest that one run of a plan may take, in seconds; a longer one is ``TIMEOUT``.
        """
        self.task = task
        self.oracle = oracle
        self.compiler = compiler
        self.device = device
        self.fingerprint = fingerprint
        self.settings = settings or MeasureSettings()
        self.gpu_lock = gpu_lock
        self.facts = oracle.facts()
        self.screen = screen
        self.run_limit_s = run_limit_s
        self._unpredictable = False
        self.generators: tuple[InputGenerator, ...] = ()
        """Generators in force, all of them admitted."""

    def use_generators(self, generators: Sequence[InputGenerator]) -> None:
        """From now on also check on the inputs of the admitted ones among ``generators``; the fingerprint says so.

        Raises:
            PlanError: one of them cannot be read; it was not admitted by this version.
        """
        admitted = tuple(generator for generator in generators if generator.admitted)
        inputs = self.facts.at("small").inputs
        self.oracle.use_generators({generator.name: parse_generator(generator.plan, inputs) for generator in admitted})
        self.generators = admitted
        version = evaluator_version(generators, self.fingerprint.evaluator.partition("+tests.")[0])
        self.fingerprint = self.fingerprint.model_copy(update={"evaluator": version})

    def evaluate(
        self, candidate: Candidate, *, seed: int, profile: bool = True, stopped: Callable[[], bool] | None = None
    ) -> EvaluationResult:
        """Run the cascade.

        ``seed`` is the secret from which every draw of inputs is derived; a candidate must never see it. ``stopped`` is
        asked before each part of the work.

        Raises:
            EvaluationCancelled: ``stopped`` said so.
            TaskError: the task cannot be judged, or wrong answers to it could earn a reward.
        """
        start = time.perf_counter()
        work = EvaluationState(seed=seed, source=candidate.source)
        if stopped is not None:
            work.stopped = stopped
        result = FullSizeResult()
        failure: StageFailed | None = None
        try:
            result = self._cascade(candidate, work, profile) or result
        except StageFailed as caught:
            failure = caught
        outcome = failure or self._with_prediction(result.performance, work)
        seconds = time.perf_counter() - start
        evaluation = concluded(candidate, self.task, self.fingerprint, work, outcome, seconds)
        return EvaluationResult(evaluation, result.profile)

    def rejected(self, reply_error: CandidateError, text: str) -> Evaluation:
        """The evaluation of a reply that holds no candidate: verdict ``POLICY`` at stage ``parse``."""
        return Evaluation(
            candidate=content_hash("reply", text),
            task=self.task.digest,
            fingerprint=self.fingerprint,
            verdict=Verdict.POLICY,
            stage="parse",
            reason=str(reply_error),
        )

    def prepare(self, candidate: Candidate, preparation: BuildState) -> None:
        """Resolve and compile a candidate at every size, into ``preparation``.

        Raises:
            StageFailed: the candidate is refused, or does not compile.
        """
        resolve_plans(candidate, self.task, self.facts, preparation)
        compile_plans(candidate, self.task, self.compiler, self.device.arch, preparation)

    def _cascade(self, candidate: Candidate, work: EvaluationState, profile: bool) -> FullSizeResult | None:
        self.prepare(candidate, work)
        sizes = sorted(self.task.sizes, key=lambda size: (size.name == "full", size.is_hidden))
        with self.gpu_lock(), self.runs(work) as runs:
            work.started = time.perf_counter()
            with work.clock("oracle"):
                self.oracle.require_admitted()
            correctness = CorrectnessStage(runs, self.generators)
            for size in sizes:
                if size.name != "full" and size.name in work.plans:
                    correctness.check_size(size)
            correctness.check_generators()
            correctness.check_drawn(candidate, self.compiler)
            if self.device.capabilities.measures_time:
                return MeasuredFullSize(runs, self.settings).check(profile)
            return ModelledFullSize(runs).check(profile)

    def _with_prediction(self, performance: Performance | None, work: EvaluationState) -> Performance | None:
        """A modelled time with the speedup that it predicts, where the operators of the reference can be traced."""
        if performance is None or performance.origin is not Origin.MODELLED or self._unpredictable:
            return performance
        if not Correctness(sizes=tuple(work.checks)).full_size_compared:
            return performance  # the kernel may do nothing there
        full = self.facts.at("full")
        try:
            with work.clock("oracle"):
                trace = self.oracle.operators(run=is_cheap(full))
            eager = baseline_time(self.task, full, trace, self.device.spec)
        except (TaskError, SandboxError, ValueError):
            self._unpredictable = True
            return performance
        predicted = predict_speedup(self.device.spec, performance.time_us, eager)
        return performance.model_copy(update={"predicted": predicted})

    def runs(self, work: EvaluationState) -> CandidateRuns:
        """Runs of one candidate; the caller enters the context."""
        return CandidateRuns(
            self.task,
            self.oracle,
            self.facts,
            self.device,
            self.screen,
            work,
            run_limit_s=self.run_limit_s,
            worst_errors=self.settings.approx == "worst",
        )


def concluded(
    candidate: Candidate,
    task: Task,
    fingerprint: Fingerprint,
    work: BuildState,
    outcome: Performance | StageFailed | None,
    total_s: float,
) -> Evaluation:
    """The evaluation of a candidate whose cascade has ended.

    Args:
        candidate: the candidate.
        task: the task that it is for.
        fingerprint: of the evaluator.
        work: its build, its checks and the seconds of each part.
        outcome: why it failed; else it is OK, with its performance where that is known.
        total_s: wall time of the cascade in seconds; what no part claims is the harness's.
    """
    failure = outcome if isinstance(outcome, StageFailed) else None
    seconds = {**work.seconds, "harness": max(total_s - sum(work.seconds.values()), 0.0)}
    return Evaluation(
        candidate=candidate.hash,
        task=task.digest,
        fingerprint=fingerprint,
        lane=candidate.lane,
        verdict=Verdict.OK if failure is None else failure.verdict,
        stage="done" if failure is None else failure.stage,
        reason="" if failure is None else failure.reason,
        build=work.build,
        correctness=Correctness(sizes=tuple(work.checks)) if work.checks else None,
        performance=outcome if isinstance(outcome, Performance) else None,
        seconds={part: round(value, 6) for part, value in seconds.items()},
    )


def evaluator_version(generators: Sequence[InputGenerator], base: str = EVALUATOR_VERSION) -> str:
    """The version that a fingerprint gives: ``4``, or ``4+tests.<digest>`` where generators are in force."""
    digest = generators_digest(generators)
    return f"{base}+tests.{digest}" if digest else base
