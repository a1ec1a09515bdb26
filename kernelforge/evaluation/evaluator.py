"""The evaluation of one candidate: plan, build, policy gate, sizes, timing, profile; cheapest gate first.

This runs in the parent. It sees candidate text only through the plan interpreter, candidate code only as bytes on
their way to a confined runner, and expected outputs not at all: the oracle's child compares.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Literal, NamedTuple, Protocol

from kernelforge.compile import Compiler
from kernelforge.devices.base import Capabilities, Device
from kernelforge.errors import CandidateError, SandboxError, TaskError
from kernelforge.evaluation.generators.parser import generators_digest, parse_generator
from kernelforge.evaluation.generators.recipe import Recipe
from kernelforge.evaluation.oracle.client import GeneratorFinding, Oracle
from kernelforge.evaluation.stages.candidate_runs import CandidateRuns, EvaluationState
from kernelforge.evaluation.stages.compile_stage import BuildState, Part, StageFailed, compile_plans, resolve_plans
from kernelforge.evaluation.stages.correctness import CorrectnessStage
from kernelforge.evaluation.stages.full_size import FullSizeResult, ModelledFullSize, is_cheap
from kernelforge.evaluation.stages.full_size_measured import MeasuredFullSize
from kernelforge.evaluation.stages.kept_draws import KeptDraws
from kernelforge.evaluation.stages.programs import Original, Program, may_be_shared, program_of, shared
from kernelforge.evaluation.stages.screening import Screen
from kernelforge.evaluation.stages.tuning import tune
from kernelforge.evaluation.visible_sizes import Reproduction, VisibleBuild, build, reproduce, with_visible_sizes
from kernelforge.hardware.specs import DeviceSpec
from kernelforge.prediction import BaselineTime, baseline_time, idle_share, predict_launch_queue, predict_speedup
from kernelforge.records import (
    Candidate,
    CheckedSizes,
    Correctness,
    Evaluation,
    Fingerprint,
    Graph,
    InputGenerator,
    LaunchQueue,
    MeasureSettings,
    Origin,
    Performance,
    Profile,
    SizeCheck,
    Task,
    TaskFacts,
    TuneTrial,
    Verdict,
    content_hash,
    evaluation_key,
)

EVALUATOR_VERSION = "17"
"""Changes whenever a verdict or a modelled time could."""


class EvaluationResult(NamedTuple):
    """An evaluation, and the profile of an OK candidate."""

    evaluation: Evaluation
    profile: Profile | None


class BegunEvaluation(NamedTuple):
    """An evaluation that has taken no GPU yet."""

    candidate: Candidate
    work: EvaluationState
    failure: StageFailed | None
    """Why it ends here; None if the device is next."""
    seconds: float
    """Wall time so far."""
    program: Program | None = None
    """Where evaluations are shared."""
    equal: EvaluationResult | None = None
    """The evaluation of an equal candidate, which ends it here."""

    @property
    def passed_over(self) -> bool:
        """Whether it ends without a measurement, since others of its round are measured."""
        return self.work.screening is not None and self.work.screening.passed_over


class SharedEvaluations:
    """Evaluations of one task that answer for further candidates with the same program.

    Args:
        past: candidates that were evaluated earlier, whose programs are worked out when they are first needed.
    """

    def __init__(self, past: Iterable[tuple[Candidate, EvaluationResult]] = ()) -> None:
        self.past: list[tuple[Candidate, EvaluationResult]] = []
        """Those whose programs are not worked out."""
        self._originals: dict[str, Original] = {}
        for candidate, result in past:
            self.remember(candidate, result)

    def remember(self, candidate: Candidate, result: EvaluationResult) -> None:
        """Take in an evaluation whose program is not worked out, if it may answer for others."""
        if may_be_shared(result.evaluation) and result.evaluation.equals is None:
            self.past.append((candidate, result))

    def find(self, evaluator: Evaluator, begun: BegunEvaluation) -> EvaluationResult | None:
        """The evaluation that a begun one shares; None if it has to run itself."""
        if begun.program is None:
            return None
        while self.past:
            candidate, result = self.past.pop(0)
            work = BuildState(stopped=begun.work.stopped)
            with suppress(StageFailed):
                evaluator.prepare(candidate, work)
                self.add(program_of(candidate, work), result)
        fingerprint = evaluator.fingerprint
        original = self._originals.get(evaluation_key(begun.program.digest, evaluator.task.digest, fingerprint))
        if original is None:
            return None
        build, seconds = begun.work.build, elapsed(begun.work, begun.seconds)
        answer = shared(original, begun.candidate.hash, build, seconds, begun.program)
        return None if answer is None else EvaluationResult(*answer)

    def add(self, program: Program | None, result: EvaluationResult) -> None:
        """Take in what a candidate came to, if that may answer for others."""
        evaluation = result.evaluation
        if program is not None and evaluation.equals is None and may_be_shared(evaluation):
            key = evaluation_key(program.digest, evaluation.task, evaluation.fingerprint)
            self._originals.setdefault(key, Original(*result, program))


class DeviceFacts(Protocol):
    """Description of a device: a :class:`~kernelforge.devices.base.Device` here, or a device of another machine."""

    @property
    def name(self) -> str: ...

    @property
    def kind(self) -> Literal["cuda", "emulated"]: ...

    @property
    def arch(self) -> str: ...

    @property
    def spec(self) -> DeviceSpec: ...

    @property
    def capabilities(self) -> Capabilities: ...

    def describe(self) -> Mapping[str, str]: ...


class TaskOracle(Protocol):
    """Requests to an oracle that are no part of an evaluation."""

    def require_admitted(self) -> None: ...

    def trace(self, size: str = "full") -> Graph: ...

    def try_generator(self, name: str, recipe: Recipe, sizes: Sequence[str]) -> tuple[GeneratorFinding, ...]: ...


class CandidateEvaluator(Protocol):
    """Interface of evaluators to a run: an :class:`Evaluator` here, or one of another machine. Its methods are those of
    :class:`Evaluator`."""

    task: Task
    facts: TaskFacts
    shared: SharedEvaluations | None

    @property
    def fingerprint(self) -> Fingerprint: ...

    @property
    def device(self) -> DeviceFacts: ...

    @property
    def oracle(self) -> TaskOracle: ...

    def gpu_lock(self) -> AbstractContextManager[None]: ...

    def use_generators(self, generators: Sequence[InputGenerator]) -> None: ...

    def evaluate(
        self,
        candidate: Candidate,
        *,
        seed: int,
        profile: bool = True,
        stopped: Callable[[], bool] | None = None,
        on_part: Callable[[Part], None] | None = None,
    ) -> EvaluationResult: ...

    def begin(self, candidate: Candidate, *, seed: int) -> BegunEvaluation: ...

    def conclude(self, begun: BegunEvaluation, *, profile: bool = True) -> EvaluationResult: ...

    def pass_over(self, begun: BegunEvaluation) -> EvaluationResult: ...

    def tune(
        self, candidate: Candidate, *, seed: int, stopped: Callable[[], bool] | None = None, hidden: bool = True
    ) -> tuple[TuneTrial, ...]: ...

    def build(self, candidate: Candidate, *, stopped: Callable[[], bool] | None = None) -> VisibleBuild: ...

    def reproduce(self, candidate: Candidate, verdict: Verdict | None, *, seed: int) -> Reproduction | None: ...

    def held_bytes(self) -> int: ...

    def rejected(self, reply_error: CandidateError, text: str) -> Evaluation: ...

    def close(self) -> None: ...


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
        screen: Screen | None = None,
        settings: MeasureSettings | None = None,
        gpu_lock: Callable[[], AbstractContextManager[None]] = nullcontext,
        run_limit_s: float | None = None,
    ) -> None:
        """Args:
        screen: the emulated device in front of a GPU, which it needs no lock for; closed with this evaluator.
        settings: how a device that measures is used.
        gpu_lock: held while the device is used, so that no other process runs on it.
        run_limit_s: longest that one run of a plan may take, in seconds; a longer one is ``TIMEOUT``. None for what is
            usual on the device.
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
        self.kept = KeptDraws(oracle)
        """Draws that evaluations share in training."""
        self.shared: SharedEvaluations | None = None
        """Evaluations that answer for equal candidates; None where each candidate runs itself."""
        self._unpredictable = False
        self._eager: tuple[BaselineTime, LaunchQueue | None] | None = None
        """Predicted time of eager PyTorch and its launches, the same for every candidate."""
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
        self,
        candidate: Candidate,
        *,
        seed: int,
        profile: bool = True,
        stopped: Callable[[], bool] | None = None,
        sizes: CheckedSizes | None = None,
        on_part: Callable[[Part], None] | None = None,
    ) -> EvaluationResult:
        """Run the cascade.

        ``seed`` is the secret from which every draw of inputs is derived; a candidate must never see it. ``stopped`` is
        asked before each part of the work. ``sizes`` replaces the settings'. ``on_part`` is called with each part.

        Raises:
            EvaluationCancelled: ``stopped`` said so.
            TaskError: the task cannot be judged, or wrong answers to it could earn a reward.
        """
        begun = self.begin(candidate, seed=seed, stopped=stopped, sizes=sizes, on_part=on_part)
        return self.conclude(begun, profile=profile)

    def begin(
        self,
        candidate: Candidate,
        *,
        seed: int,
        stopped: Callable[[], bool] | None = None,
        sizes: CheckedSizes | None = None,
        on_part: Callable[[Part], None] | None = None,
    ) -> BegunEvaluation:
        """The part of :meth:`evaluate` that takes no GPU: build, policy gate, and the emulated device in front of a
        GPU, unless an equal candidate was evaluated. The arguments and errors are those of :meth:`evaluate`.
        """
        start = time.perf_counter()
        work = EvaluationState(seed=seed, source=candidate.source)
        if stopped is not None:
            work.stopped = stopped
        if on_part is not None:
            work.on_part = on_part
        self.oracle.renew()
        if (sizes or self.settings.sizes) == "train":
            self.kept.begin(seed)
            work.kept = self.kept
        failure: StageFailed | None = None
        begun = BegunEvaluation(candidate, work, None, 0.0)
        try:
            self.prepare(candidate, work)
            if self.shared is not None:
                begun = begun._replace(program=program_of(candidate, work), seconds=time.perf_counter() - start)
                begun = begun._replace(equal=self.shared.find(self, begun))
            if self.screen is not None and begun.equal is None:
                self.screen.check(candidate, self.facts, self.generators, work)
        except StageFailed as caught:
            failure = caught
        return begun._replace(failure=failure, seconds=time.perf_counter() - start)

    def conclude(self, begun: BegunEvaluation, *, profile: bool = True) -> EvaluationResult:
        """The rest of :meth:`evaluate`, on the device; nothing is left to do for a candidate that has failed.

        Raises:
            EvaluationCancelled: ``stopped`` said so.
            TaskError: the task cannot be judged, or wrong answers to it could earn a reward.
        """
        equal = begun.equal
        if equal is None and self.shared is not None and begun.failure is None:
            equal = self.shared.find(self, begun)  # it may have ended since
        if equal is not None:
            return equal
        start, work = time.perf_counter(), begun.work
        result, failure = FullSizeResult(), begun.failure
        if failure is None:
            try:
                result = self._on_device(begun.candidate, work, profile) or result
            except StageFailed as caught:
                failure = caught
        outcome = failure or self._with_prediction(result, work)
        seconds = begun.seconds + time.perf_counter() - start
        fingerprint = self.fingerprint.at_sizes("all" if work.kept is None else "train")
        evaluation = concluded(begun.candidate, self.task, fingerprint, work, outcome, seconds)
        ended = EvaluationResult(evaluation, result.profile)
        if self.shared is not None:
            self.shared.add(begun.program, ended)
        return ended

    def pass_over(self, begun: BegunEvaluation) -> EvaluationResult:
        """The evaluation of a candidate that is not measured, since others were predicted to be faster: that of the
        emulated device, whose full size was profiled and not compared.

        Args:
            begun: with a rank beyond those that are measured.
        """
        work, counted = begun.work, begun.work.counted
        rank = None if work.screening is None else work.screening.rank
        assert counted is not None
        assert rank is not None
        message = f"values not compared: not measured, number {rank.position} of {rank.of} by predicted time"
        full = SizeCheck(size="full", status="skipped", message=message)
        work.checks = [*counted.checks, full]
        tests = "".join(self.fingerprint.evaluator.partition("+tests.")[1:])
        evaluator = counted.fingerprint.evaluator + tests
        fingerprint = counted.fingerprint.model_copy(update={"evaluator": evaluator})
        evaluation = concluded(begun.candidate, self.task, fingerprint, work, counted.performance, begun.seconds)
        return EvaluationResult(evaluation, counted.profile)

    def tune(
        self, candidate: Candidate, *, seed: int, stopped: Callable[[], bool] | None = None, hidden: bool = True
    ) -> tuple[TuneTrial, ...]:
        """See :func:`~kernelforge.evaluation.stages.tuning.tune`.

        Without ``hidden``, combinations are prepared at visible sizes alone, so that an author learns of no other.
        """
        return tune(self if hidden else with_visible_sizes(self), candidate, seed=seed, stopped=stopped)

    def build(self, candidate: Candidate, *, stopped: Callable[[], bool] | None = None) -> VisibleBuild:
        """See :func:`kernelforge.evaluation.visible_sizes.build`."""
        return build(self, candidate, stopped=stopped)

    def reproduce(self, candidate: Candidate, verdict: Verdict | None, *, seed: int) -> Reproduction | None:
        """See :func:`kernelforge.evaluation.visible_sizes.reproduce`."""
        return reproduce(self, candidate, verdict, seed=seed)

    def close(self) -> None:
        """End the oracles."""
        self.oracle.close()
        if self.screen is not None:
            self.screen.close()

    def held_bytes(self) -> int:
        """Memory that the oracles' processes hold."""
        return self.oracle.held_bytes() + (0 if self.screen is None else self.screen.held_bytes())

    def rejected(self, reply_error: CandidateError, text: str) -> Evaluation:
        """The evaluation of a reply that holds no candidate: verdict ``POLICY`` at stage ``parse``."""
        return rejection(self.task, self.fingerprint, reply_error, text)

    def prepare(self, candidate: Candidate, preparation: BuildState) -> None:
        """Resolve and compile a candidate at every size, into ``preparation``.

        Raises:
            StageFailed: the candidate is refused, or does not compile.
        """
        preparation.on_part("compile")
        resolve_plans(candidate, self.task, self.facts, preparation)
        compile_plans(candidate, self.task, self.compiler, self.device.arch, preparation)

    def _on_device(self, candidate: Candidate, work: EvaluationState, profile: bool) -> FullSizeResult | None:
        with self.gpu_lock(), self.runs(work) as runs:
            work.started = time.perf_counter()
            with work.clock("oracle"):
                self.oracle.require_admitted()
            work.on_part("check")
            CorrectnessStage(runs, self.generators).check_all(candidate, self.compiler)
            work.on_part("full size")
            if self.device.capabilities.measures_time:
                return MeasuredFullSize(runs, self.settings).check(profile)
            return ModelledFullSize(runs, train=work.kept is not None).check(profile)

    def _with_prediction(self, result: FullSizeResult, work: EvaluationState) -> Performance | None:
        """A modelled time with the speedup that it predicts, where the operators of the reference can be traced."""
        performance, spec = result.performance, self.device.spec
        if performance is None or performance.origin is not Origin.MODELLED or self._unpredictable:
            return performance
        if not Correctness(sizes=tuple(work.checks)).full_size_compared:
            return performance  # the kernel may do nothing there
        if self._eager is None:
            full = self.facts.at("full")
            try:
                with work.clock("oracle"):
                    trace = self.oracle.operators(run=is_cheap(full))
                time = baseline_time(self.task, full, trace, spec)
            except (TaskError, SandboxError, ValueError):
                self._unpredictable = True
                return performance
            queue = None
            with suppress(ValueError):  # of a published time, operators that no other follows from
                queue = predict_launch_queue(trace, spec)
            self._eager = time, queue
        eager, launches = self._eager
        idle = idle_share(spec, result.profile.kernels if result.profile else ())
        predicted = predict_speedup(spec, performance.time_us, eager, idle)
        return performance.model_copy(update={"predicted": predicted, "predicted_launches": launches})

    def runs(self, work: EvaluationState) -> CandidateRuns:
        """Runs of one candidate; the caller enters the context."""
        return CandidateRuns(
            self.task,
            self.oracle,
            self.facts,
            self.device,
            work,
            run_limit_s=self.run_limit_s,
            worst_errors=self.settings.approx == "worst",
        )


def rejection(task: Task, fingerprint: Fingerprint, reply_error: CandidateError, text: str) -> Evaluation:
    """See :meth:`Evaluator.rejected`."""
    return Evaluation(
        candidate=content_hash("reply", text),
        task=task.digest,
        fingerprint=fingerprint,
        verdict=Verdict.POLICY,
        stage="parse",
        reason=str(reply_error),
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
        screening=work.screening,
        seconds=elapsed(work, total_s),
    )


def elapsed(work: BuildState, total_s: float) -> dict[str, float]:
    """Seconds by part of a cascade's wall time; what no part claims is the harness's."""
    seconds = {**work.seconds, "harness": max(total_s - sum(work.seconds.values()), 0.0)}
    return {part: round(value, 6) for part, value in seconds.items()}


def evaluator_version(generators: Sequence[InputGenerator], base: str = EVALUATOR_VERSION) -> str:
    """The version that a fingerprint gives: ``6``, or ``6+tests.<digest>`` where generators are in force."""
    digest = generators_digest(generators)
    return f"{base}+tests.{digest}" if digest else base
