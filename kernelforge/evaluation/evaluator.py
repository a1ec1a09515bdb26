"""The evaluation of one candidate: plan, build, policy gate, sizes, timing, profile; cheapest gate first.

This runs in the parent. It sees candidate text only through the plan interpreter, candidate code only as bytes on
their way to a confined runner, and expected outputs not at all: the oracle's child compares.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

from kernelforge.candidate import ResolvedPlan
from kernelforge.compile import Compiler
from kernelforge.devices.base import RUN_LIMIT_S, Device, RunRequest
from kernelforge.errors import CandidateError, ChildDied, ChildTimeout, TaskError
from kernelforge.evaluation.drawn_size import drawn_sizes
from kernelforge.evaluation.generators.parser import generators_digest, parse_generator
from kernelforge.evaluation.oracle.client import DrawHandle, Oracle
from kernelforge.evaluation.oracle.shape_invariants import keeps_shared
from kernelforge.evaluation.oracle.task_context import require_admitted
from kernelforge.evaluation.stages.compile_stage import BuildState, StageFailed, compile_plans, resolve_plans
from kernelforge.evaluation.stages.correctness import Checker, EvaluationState, SessionCache
from kernelforge.evaluation.stages.full_size import Found, check_full
from kernelforge.records import (
    DRAWN_SIZE,
    Candidate,
    Correctness,
    Evaluation,
    Fingerprint,
    InputGenerator,
    MeasureSettings,
    Profile,
    SizeCheck,
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
        lease: Callable[[], AbstractContextManager[None]] = nullcontext,
        run_limit_s: float = RUN_LIMIT_S,
    ) -> None:
        """Args:
        screen: an emulated device that also runs every size but the full one, and checks every access.
        settings: how a device that measures is used.
        lease: held while the device is used: nobody else runs there meanwhile.
        run_limit_s: longest that one run of a plan may take, in seconds; a longer one is ``TIMEOUT``.
        """
        self.task = task
        self.oracle = oracle
        self.compiler = compiler
        self.device = device
        self.fingerprint = fingerprint
        self.settings = settings or MeasureSettings()
        self.lease = lease
        self.facts = oracle.facts()
        self.checker = Checker(task, oracle, self.facts, device, screen, run_limit_s)

    @property
    def generators(self) -> tuple[InputGenerator, ...]:
        """Generators in force, all of them admitted."""
        return self.checker.generators

    def use_generators(self, generators: Sequence[InputGenerator]) -> None:
        """From now on also check on the inputs of the admitted ones among ``generators``; the fingerprint says so.

        Raises:
            PlanError: one of them cannot be read; it was not admitted by this version.
        """
        admitted = tuple(one for one in generators if one.admitted)
        inputs = self.facts.at("small").inputs
        self.oracle.use_generators({one.name: parse_generator(one.plan, inputs) for one in admitted})
        self.checker.generators = admitted
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
        found: Found | None = None
        failure: StageFailed | None = None
        try:
            found = self._cascade(candidate, work, profile)
        except StageFailed as caught:
            failure = caught
        if failure is not None:
            evaluation = failed(candidate, self.task, self.fingerprint, work, failure, time.perf_counter() - start)
            return EvaluationResult(evaluation, None)
        evaluation = Evaluation(
            candidate=candidate.hash,
            task=self.task.digest,
            fingerprint=self.fingerprint,
            verdict=Verdict.OK,
            stage="done",
            build=work.build,
            correctness=Correctness(sizes=tuple(work.checks)) if work.checks else None,
            performance=found[1] if found else None,
            seconds=_seconds(work, time.perf_counter() - start),
        )
        return EvaluationResult(evaluation, found[0] if found else None)

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

    def _cascade(self, candidate: Candidate, work: EvaluationState, profile: bool) -> Found | None:
        self.prepare(candidate, work)
        sizes = sorted(self.task.sizes, key=lambda size: (size.name == "full", size.is_hidden))
        with self.lease(), self.checker.sessions() as sessions:
            work.started = time.perf_counter()
            with work.clock("oracle"):
                require_admitted(self.oracle)
            for size in sizes:
                if size.name != "full" and size.name in work.plans:
                    self.checker.check_size(sessions, size, work)
            self.checker.check_generators(sessions, work)
            self._check_drawn(candidate, sessions, work)
            return check_full(self.checker, sessions, work, self.settings, profile=profile)

    def _check_drawn(self, candidate: Candidate, sessions: SessionCache, work: EvaluationState) -> None:
        """Check a hidden size that is drawn for this evaluation alone. None where the task has no hidden sizes.

        It takes the task's own inputs and those of one further family: the listed sizes are checked on all of them. One
        at which the reference does not run, or of which something is not true that agents are told of every size, is no
        size of the task; the next is tried.
        """
        others = self.oracle.families("small")[1:]
        own = self.facts
        for size in drawn_sizes(self.task, work.seed):
            try:
                with work.clock("oracle"):
                    found = self.oracle.take_size(size)
            except (TaskError, ChildDied, ChildTimeout):
                continue
            if not keeps_shared(self.task, own, found):
                continue
            work.plans.pop(size.name, None)
            try:
                self.checker.facts = own.model_copy(update={"sizes": (*own.sizes, found)})
                resolve_plans(candidate, self.task, self.checker.facts, work, (size,))
                if size.name not in work.plans:
                    return
                compile_plans(candidate, self.task, self.compiler, self.device.arch, work, (size,))
                further = others[work.seed % len(others) :][:1] if others else ()
                for families in (("task", *further), ("task",)):
                    with contextlib.suppress(TaskError):
                        self.checker.check_size(sessions, size, work, families)
                        return
            finally:
                self.checker.facts = own
        if any(size.is_hidden for size in self.task.sizes):
            message = "no further size was drawn: the constants leave none, or the reference does not run there"
            work.checks.append(SizeCheck(size=DRAWN_SIZE, status="skipped", message=message))

    def request(self, plan: ResolvedPlan, draw: DrawHandle, poison: int) -> RunRequest:
        """The run of a plan on the tensors of a draw."""
        return self.checker.request(plan, draw, poison)


def failed(
    candidate: Candidate, task: Task, fingerprint: Fingerprint, work: BuildState, failure: StageFailed, seconds: float
) -> Evaluation:
    """The evaluation of a candidate whose cascade ended early, after ``seconds`` in all."""
    return Evaluation(
        candidate=candidate.hash,
        task=task.digest,
        fingerprint=fingerprint,
        verdict=failure.verdict,
        stage=failure.stage,
        reason=failure.reason,
        build=work.build,
        correctness=Correctness(sizes=tuple(work.checks)) if work.checks else None,
        seconds=_seconds(work, seconds),
    )


def _seconds(work: BuildState, total: float) -> dict[str, float]:
    """Seconds by part; what no part claims is the harness's."""
    harness = max(total - sum(work.seconds.values()), 0.0)
    return {part: round(value, 6) for part, value in {**work.seconds, "harness": harness}.items()}


def evaluator_version(generators: Sequence[InputGenerator], base: str = EVALUATOR_VERSION) -> str:
    """The version that a fingerprint gives: ``4``, or ``4+tests.<digest>`` where generators are in force."""
    digest = generators_digest(generators)
    return f"{base}+tests.{digest}" if digest else base
