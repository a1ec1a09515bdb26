"""The compile stage: a candidate's resolved plan and build at every size."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final, Literal

from kernelforge.candidate import ResolvedPlan, parse_plan, signatures
from kernelforge.compile import Artifact, Compiler
from kernelforge.errors import CandidateError, EvaluationCancelled, PlanGuard
from kernelforge.records import (
    Build,
    Candidate,
    Correctness,
    Diagnostic,
    Evaluation,
    Screening,
    Size,
    SizeCheck,
    SizeFacts,
    Stage,
    Task,
    TaskFacts,
    Verdict,
)

Part = Literal["compile", "check", "full size"]
"""Part of an evaluation. Small and hidden sizes are one: how long a hidden size takes would tell its extents."""


@dataclass
class StageFailed(Exception):
    """Ends the cascade with a verdict other than OK."""

    verdict: Verdict
    stage: Stage
    reason: str


@dataclass(kw_only=True)
class BuildState:
    """Results for a candidate so far, by name of the size."""

    build: Build | None = None
    """The first one; the one that failed where one did."""
    plans: dict[str, ResolvedPlan] = field(default_factory=dict)
    """Without the hidden sizes that the plan's own asserts refuse."""
    artifacts: dict[str, Artifact] = field(default_factory=dict)
    checks: list[SizeCheck] = field(default_factory=list)
    screening: Screening | None = None
    """What the emulated device in front of a GPU found."""
    seconds: dict[str, float] = field(default_factory=dict)
    """Wall time by part of the work."""
    stopped: Callable[[], bool] = lambda: False
    """Whether the evaluation was cancelled; called before each part of the work."""
    on_part: Callable[[Part], None] = lambda part: None
    """Called when a part of an evaluation begins."""

    def go_on(self) -> None:
        """
        Raises:
            EvaluationCancelled: the evaluation was cancelled.
        """
        if self.stopped():
            raise EvaluationCancelled("the evaluation was interrupted")

    @contextmanager
    def clock(self, part: str) -> Iterator[None]:
        """Add the time that the block takes to a part.

        Raises:
            EvaluationCancelled: the evaluation was cancelled; the block is not entered.
        """
        self.go_on()
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[part] = self.seconds.get(part, 0.0) + time.perf_counter() - start


def resolve_plans(
    candidate: Candidate, task: Task, facts: TaskFacts, work: BuildState, sizes: Sequence[Size] | None = None
) -> None:
    """Resolve the plan at ``sizes``, or at every size of the task; an ``assert`` may refuse hidden sizes only.

    Raises:
        StageFailed: the plan is refused.
    """
    try:
        plan = parse_plan(candidate.plan, candidate.language or "cuda")
    except CandidateError as error:
        raise StageFailed(Verdict.POLICY, "plan", f"launch plan: {error}") from error
    for size in task.sizes if sizes is None else sizes:
        at_size = facts.at(size.name)
        weights = {weight.name: weight.spec for weight in at_size.weights}
        for weight in at_size.weights:
            weights.update(dict.fromkeys(weight.aliases, weight.spec))
        try:
            resolved = plan.resolve(
                at_size.inputs,
                weights,
                at_size.attrs,
                candidate.choices,
                library=task.policy.library,
                in_place=len(at_size.outputs) == len(task.policy.mutates),
            )
            _match_outputs(resolved, at_size, mutated=len(task.policy.mutates))
        except PlanGuard as guard:
            if not size.is_hidden:
                reason = f"the plan's assert refuses the {size.name} size, which it must support: {guard}"
                raise StageFailed(Verdict.POLICY, "plan", reason) from guard
            message = "refused by the plan's own assert: lost generality"
            work.checks.append(SizeCheck(size=size.name, status="guarded", message=message))
        except CandidateError as error:
            raise _failure(Verdict.POLICY, "plan", size, f"launch plan: {error}", work) from error
        else:
            work.plans[size.name] = resolved


def _match_outputs(plan: ResolvedPlan, facts: SizeFacts, *, mutated: int) -> None:
    expected = facts.outputs[: len(facts.outputs) - mutated]
    if len(plan.outputs) != len(expected):
        raise CandidateError(f"forward returns {len(plan.outputs)} tensors, the reference {len(expected)}")
    for index, (got, want) in enumerate(zip(plan.outputs, expected, strict=True)):
        if got.shape != want.shape or got.dtype != want.dtype:
            raise CandidateError(
                f"output {index} has shape {got.shape} and dtype {got.dtype}, "
                f"the reference gives {want.shape} and {want.dtype}"
            )


def compile_plans(
    candidate: Candidate,
    task: Task,
    compiler: Compiler,
    arch: str,
    work: BuildState,
    sizes: Sequence[Size] | None = None,
) -> None:
    """Compile the source at those of ``sizes``, or of all sizes of the task, that the plan was resolved at.

    Raises:
        StageFailed: it does not compile, is refused by the policy gate, or hit a limit of the compiler.
    """
    built: dict[tuple[object, ...], Artifact | Build] = {}
    # Hidden sizes last, so that a mistake at every size is reported with its numbers.
    for size in sorted(task.sizes if sizes is None else sizes, key=lambda size: size.is_hidden):
        plan = work.plans.get(size.name)
        if plan is None:
            continue
        requested = signatures(plan)
        same = (plan.expressions, tuple(requested), tuple(plan.constants.items()))
        try:
            with work.clock("build"):
                # Sizes that ask for the same share a build, which is also judged once.
                result = (
                    built[same]
                    if same in built
                    else compiler.build(
                        candidate.source, plan.expressions, arch=arch, signatures=requested, constants=plan.constants
                    )
                )
                built[same] = result
        except CandidateError as error:
            raise _failure(Verdict.POLICY, "compile", size, str(error), work) from error
        if isinstance(result, Artifact):
            work.artifacts[size.name] = result
            work.plans[size.name] = plan.bound_to(result.build)
            work.build = work.build or result.build
            continue
        work.build = _without_text(result) if size.is_hidden else result
        failed = build_failure(result)
        raise _failure(failed.verdict, failed.stage, size, failed.reason, work)


def build_failure(build: Build) -> StageFailed:
    """The verdict, stage and reason of a build without an artifact."""
    if build.refused:
        return StageFailed(Verdict.POLICY, "policy", build.refused)
    if build.limit:
        verdict = Verdict.TIMEOUT if build.limit == "time" else Verdict.LIMIT
        return StageFailed(verdict, "compile", f"the compiler was stopped: it hit its {build.limit} limit")
    return StageFailed(Verdict.BUILD, "compile", "\n".join(map(str, build.errors[:8])))


def _without_text(build: Build) -> Build:
    """A build that failed at a hidden size, without what the compiler and the gate said of it."""
    diagnostic = Diagnostic(file="candidate.cu", severity="error", message=HIDDEN_REASONS[Verdict.BUILD])
    refused = build.refused and HIDDEN_REASONS[Verdict.POLICY]
    return build.model_copy(update={"diagnostics": () if build.ok or refused else (diagnostic,), "refused": refused})


def _public_name(size: Size) -> str:
    """Name of a size in messages to a Coder: hidden sizes have no name and no numbers."""
    return "a hidden size" if size.is_hidden else f"the {size.name} size"


def reason_at(verdict: Verdict, size: Size, message: str) -> str:
    """Message to a Coder about a plan or a build that fails at ``size``, which is named unless it is the full one."""
    if size.is_hidden:
        return HIDDEN_REASONS[verdict]
    return message if size.name == "full" else f"{message} (at {_public_name(size)})"


def _failure(verdict: Verdict, stage: Stage, size: Size, message: str, work: BuildState) -> StageFailed:
    """A plan or a build that fails at ``size``; at a hidden one also recorded as a check, so that it is counted."""
    reason = reason_at(verdict, size, message)
    if size.is_hidden:
        work.checks.append(SizeCheck(size=size.name, status="failed", message=reason))
    return StageFailed(verdict, stage, reason)


_NOTHING_MORE = "at a hidden size. Hidden sizes differ from the shown ones in every extent, and no more is told of them"

HIDDEN_REASONS: Final[Mapping[Verdict, str]] = {
    Verdict.WRONG: f"the values are wrong {_NOTHING_MORE}",
    Verdict.CRASH: f"it crashes, or accesses memory that is not its own, {_NOTHING_MORE}",
    Verdict.TIMEOUT: f"it takes too long {_NOTHING_MORE}",
    Verdict.LIMIT: f"it goes over a limit {_NOTHING_MORE}",
    Verdict.BUILD: f"it does not compile {_NOTHING_MORE}",
    Verdict.POLICY: f"it is refused {_NOTHING_MORE}",
    Verdict.INFRA: f"it uses what this device lacks, or this machine is too slow, {_NOTHING_MORE}; this is no score",
}
"""The one sentence for each verdict. A line, a count or a family of inputs would be a channel: a candidate that fails
where it likes could have the extents read out to its author, bit by bit."""


HIDDEN_FAILURES = 12
"""Failures at hidden sizes, of one author at one task, whose verdict is reported."""

_NOT_EVEN_HOW = (
    f"it fails {_NOTHING_MORE}: after {HIDDEN_FAILURES} such failures not even how it fails. Write for every size that "
    "the task's text allows"
)


def redact_hidden_failures(evaluation: Evaluation, before: Iterable[Evaluation]) -> Evaluation:
    """An evaluation as its author may see it after the evaluations ``before`` of the same task.

    Each failure at a hidden size tells which of seven verdicts it was, 2.8 bits: 34 for the first
    :data:`HIDDEN_FAILURES`, less than the extents of one matrix product. From then on all of them are one verdict
    (``WRONG``, which pays what the others pay), so that an attempt tells whether it passed and no more. ``INFRA``
    stays: it must not become a score.
    """
    if not evaluation.failed_at_hidden or evaluation.verdict is Verdict.INFRA:
        return evaluation
    if sum(earlier.failed_at_hidden for earlier in before) < HIDDEN_FAILURES:
        return evaluation
    assert evaluation.correctness is not None
    checks = tuple(
        check.model_copy(update={"message": _NOT_EVEN_HOW, "families": ()}) if check.status == "failed" else check
        for check in evaluation.correctness.sizes
    )
    return evaluation.model_copy(
        update={
            "verdict": Verdict.WRONG,
            "stage": "hidden",
            "reason": _NOT_EVEN_HOW,
            "build": None,
            "correctness": Correctness(sizes=checks),
        }
    )


def failed_check(
    verdict: Verdict, size: Size, family: str, message: str, error: float | None = None
) -> tuple[SizeCheck, str]:
    """The record of a check that failed on inputs of ``family``, and the message to a Coder."""
    if size.is_hidden:
        reason = message = HIDDEN_REASONS[verdict]
        error = None
    else:
        reason = f"at {_public_name(size)}, {family} inputs: {message}"
    return SizeCheck(size=size.name, status="failed", families=(family,), message=message, error=error), reason
