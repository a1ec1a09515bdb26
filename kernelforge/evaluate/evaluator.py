"""The cascade: plan, compile, policy gate, small size, hidden sizes, full size, profile. Cheapest gate first.

This runs in the parent. It sees candidate text only through the plan interpreter, candidate code only as bytes on
their way to a confined runner, and expected outputs not at all: the oracle's child compares.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple, NoReturn

from kernelforge.candidate import ResolvedPlan
from kernelforge.compile import Artifact, Compiler
from kernelforge.devices.base import Device, RunFault, RunFaulted, RunRequest, RunResult, Session
from kernelforge.errors import CandidateError, TaskError
from kernelforge.evaluate.generators import generators_digest, parse_generator
from kernelforge.evaluate.oracle import Draw, Oracle
from kernelforge.evaluate.preparation import (
    Failure,
    Preparation,
    compile_plans,
    masked,
    public_name,
    resolve_plans,
)
from kernelforge.evaluate.recipe import TEST_PREFIX
from kernelforge.records import (
    Candidate,
    Comparison,
    Correctness,
    Evaluation,
    Fingerprint,
    InputGenerator,
    Performance,
    Profile,
    Size,
    SizeCheck,
    Stage,
    Task,
    Verdict,
    content_hash,
)

EVALUATOR_VERSION = "1"
"""Changes whenever a verdict could."""


POISONS = (0xFF, 0x5A)
"""Workspace, outputs and shared memory hold each of these bytes in turn before a run; the results must agree. As
floats the first is NaN, the second large (1.5e16 in float32)."""

SMALL_SIZE_INSTRUCTIONS = 1_000_000_000
"""A run at a small or hidden size that executes more thread instructions than this never ends: ``TIMEOUT``."""

FULL_SIZE_INSTRUCTIONS = 8_000_000_000
"""The full size is run whole on an emulated device up to this many thread instructions, else only sampled."""

PROFILE_POISON = 0
"""What memory holds before a profile: blocks that are left out must leave something harmless behind."""

PADDING = 256
"""Values may go unchecked at the full size only where a kernel executes up to this many thread instructions per flop
or byte of the reference. Above it the size is not large, the kernel is slow: ``TIMEOUT``."""

_SAMPLED_SLACK, _EXACT_SLACK = 1.5, 1.01
"""By which factor a whole run may execute more than its profile counted, with and without blocks left out."""

EVALUATION_SECONDS = 180.0
"""One evaluation that takes longer than this, compiler aside, is ended: ``TIMEOUT``. Honest ones take seconds."""

_USED_BEFORE_WRITTEN = (
    "the result changes with what memory held before the run: "
    "an element of an output, of workspace or of shared memory is used before it is written"
)

_VERDICT_OF_FAULT = {
    "sanitizer": Verdict.CRASH,
    "crash": Verdict.CRASH,
    "timeout": Verdict.TIMEOUT,
    "memory": Verdict.LIMIT,
    "unsupported": Verdict.INFRA,
}


_Found = tuple[Profile, Performance | None]
"""What a profile gave."""


class EvaluationResult(NamedTuple):
    """An evaluation, and the profile of an OK candidate."""

    evaluation: Evaluation
    profile: Profile | None


@dataclass(kw_only=True)
class _Work(Preparation):
    """What the cascade has gathered so far."""

    seed: int
    started: float = field(default_factory=time.perf_counter)
    executed: int = 0
    """Most thread instructions of any run at the size at hand."""


class _Sessions(ExitStack):
    """One runner per distinct build of a candidate; sizes that share a build share its runner."""

    def __init__(self, device: Device) -> None:
        super().__init__()
        self._device = device
        self._open: dict[str, Session] = {}

    def of(self, artifact: Artifact) -> Session:
        key = artifact.build.key
        if key not in self._open:
            self._open[key] = self.enter_context(self._device.open(artifact))
        return self._open[key]


class Evaluator:
    """Evaluates candidates for one task on one device. Holds that task's oracle; not for use by two threads."""

    def __init__(
        self, task: Task, oracle: Oracle, compiler: Compiler, device: Device, fingerprint: Fingerprint
    ) -> None:
        self.task = task
        self.oracle = oracle
        self.compiler = compiler
        self.device = device
        self.fingerprint = fingerprint
        self.facts = oracle.facts()
        self.generators: tuple[InputGenerator, ...] = ()
        """Generators in force, all of them admitted."""

    def use_generators(self, generators: Sequence[InputGenerator]) -> None:
        """From now on also check on the inputs of the admitted ones among ``generators``; the fingerprint says so.

        Raises:
            PlanError: one of them cannot be read; it was not admitted by this version.
        """
        admitted = tuple(one for one in generators if one.admitted)
        inputs = self.facts.at("small").inputs
        self.oracle.use_generators({one.name: parse_generator(one.plan, inputs) for one in admitted})
        self.generators = admitted
        version = evaluator_version(generators)
        self.fingerprint = self.fingerprint.model_copy(update={"evaluator": version})

    def evaluate(self, candidate: Candidate, *, seed: int, profile: bool = True) -> EvaluationResult:
        """Run the cascade.

        ``seed`` is the secret from which every draw of inputs is derived; a candidate must never see it.
        """
        start = time.perf_counter()
        work = _Work(seed=seed)
        found: _Found | None = None
        failure: Failure | None = None
        try:
            found = self._cascade(candidate, work, profile)
        except Failure as caught:
            failure = caught
        named = sum(work.seconds.values())
        seconds = {**work.seconds, "harness": max(time.perf_counter() - start - named, 0.0)}
        evaluation = Evaluation(
            candidate=candidate.hash,
            task=self.task.digest,
            fingerprint=self.fingerprint,
            verdict=Verdict.OK if failure is None else failure.verdict,
            stage="done" if failure is None else failure.stage,
            reason="" if failure is None else failure.reason,
            build=work.build,
            correctness=Correctness(sizes=tuple(work.checks)) if work.checks else None,
            performance=found[1] if found and failure is None else None,
            seconds={part: round(value, 6) for part, value in seconds.items()},
        )
        return EvaluationResult(evaluation, found[0] if found and failure is None else None)

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

    def prepare(self, candidate: Candidate, preparation: Preparation) -> None:
        """Resolve and compile a candidate at every size, into ``preparation``.

        Raises:
            Failure: the candidate is refused, or does not compile.
        """
        resolve_plans(candidate, self.task, self.facts, preparation)
        compile_plans(candidate, self.task, self.compiler, self.device.arch, preparation)

    def _cascade(self, candidate: Candidate, work: _Work, profile: bool) -> _Found | None:
        self.prepare(candidate, work)
        ordered = sorted(self.task.sizes, key=lambda size: (size.name == "full", size.is_hidden))
        found: _Found | None = None
        with _Sessions(self.device) as sessions:
            for size in ordered:
                if size.name not in work.plans:
                    continue
                session = sessions.of(work.artifacts[size.name])
                if size.name != "full":
                    self._check_size(session, size, work)
                else:
                    self._check_generators(sessions, work)
                    found = self._full(session, size, work, profile)
        return found

    def _check_size(self, session: Session, size: Size, work: _Work) -> None:
        families = self.oracle.families(size.name)
        worst = 0.0
        for position, family in enumerate(families):
            # The task's own distribution runs under both poisons; the others take turns.
            poisons = POISONS if position == 0 else (POISONS[position % 2],)
            with self._drawn(size, family, work) as draw:
                comparison = self._run_and_compare(session, size, draw, poisons, work)
            worst = max(worst, comparison.error or 0.0)
        plan = work.plans[size.name]
        work.checks.append(
            SizeCheck(size=size.name, status="passed", families=families, error=worst, launches=len(plan.launches))
        )

    def _check_generators(self, sessions: _Sessions, work: _Work) -> None:
        """The generators' inputs, once our own families passed at every such size: they add tests and replace none."""
        for check in tuple(work.checks):
            if check.status != "passed":
                continue
            size, families, worst = self.task.size(check.size), list(check.families), check.error or 0.0
            session = sessions.of(work.artifacts[size.name])
            for position, generator in enumerate(self.generators):
                if size.name not in generator.sizes:
                    continue
                family = f"{TEST_PREFIX}{generator.name}"
                with ExitStack() as stack:
                    try:
                        draw = stack.enter_context(self._drawn(size, family, work))
                    except TaskError:
                        # Torch itself fails on this draw: it is no test.
                        continue
                    poisons = (POISONS[position % 2],)
                    worst = max(worst, self._run_and_compare(session, size, draw, poisons, work).error or 0.0)
                families.append(family)
            _note(check.model_copy(update={"families": tuple(families), "error": worst}), work)

    @contextmanager
    def _drawn(self, size: Size, family: str, work: _Work) -> Iterator[Draw]:
        """Fresh inputs with their expected outputs, which stay with the oracle and are forgotten afterwards."""
        with work.clock("oracle"):
            seed = int(content_hash(work.seed, self.task.name, size.name, family), 16)
            draw = self.oracle.draw(size.name, family, seed)
        try:
            yield draw
        finally:
            self.oracle.release(draw.handle)

    def _run_and_compare(
        self, session: Session, size: Size, draw: Draw, poisons: tuple[int, ...], work: _Work
    ) -> Comparison:
        """Run once per poison; values must pass, and be the same to the last bit whatever memory held before."""
        plan, specs = work.plans[size.name], self.facts.at(size.name).outputs
        instructions = None if size.name == "full" else SMALL_SIZE_INSTRUCTIONS
        first: tuple[bytes, ...] | None = None
        comparison = Comparison(ok=True)
        for poison in poisons:
            self._refuse_overtime(size, draw.family, work)
            result = self._run(session, self.request(plan, draw, poison, instructions), work)
            if result.faults:
                self._fault(result.faults[0], size, draw.family, work)
            if first is None:
                with work.clock("oracle"):
                    shapes, dtypes = [spec.shape for spec in specs], [spec.dtype for spec in specs]
                    comparison = self.oracle.check(draw.handle, result.outputs, shapes, dtypes)
                if not comparison.ok:
                    self._fail(Verdict.WRONG, size, draw.family, comparison.message, work, comparison.error)
                first = result.outputs
            elif result.outputs != first:
                self._fail(Verdict.WRONG, size, draw.family, _USED_BEFORE_WRITTEN, work)
        return comparison

    def request(self, plan: ResolvedPlan, draw: Draw, poison: int, instructions: int | None) -> RunRequest:
        """The run of a plan on the tensors of a draw."""
        tensors: dict[int, bytes] = {}
        mutable: set[int] = set()
        for buffer in plan.buffers:
            if isinstance(buffer.source, int):
                tensors[buffer.id] = draw.tensors.get(buffer.source, b"")
                if buffer.source in self.task.policy.mutates:
                    mutable.add(buffer.id)
            elif isinstance(buffer.source, str):
                tensors[buffer.id] = draw.weights.get(buffer.source, b"")
            if buffer.kind != "workspace" and len(tensors[buffer.id]) != buffer.nbytes:
                raise TaskError(
                    f"{buffer.label} has {len(tensors[buffer.id])} bytes in one draw and {buffer.nbytes} in another: "
                    "shapes of inputs and weights must not depend on the seed"
                )
        return RunRequest(
            plan, tensors, poison=poison, mutable=frozenset(mutable), max_thread_instructions=instructions
        )

    def _run(self, session: Session, request: RunRequest, work: _Work) -> RunResult:
        start = time.perf_counter()
        result = session.run(request)
        elapsed = time.perf_counter() - start
        work.executed = max(work.executed, result.thread_instructions or 0)
        # A run that ended in a fault does not say how long it took; the wait was for the kernel all the same.
        spent = elapsed if result.faults else min(result.seconds, elapsed)
        work.seconds["emulation"] = work.seconds.get("emulation", 0.0) + spent
        return result

    def _fail(
        self, verdict: Verdict, size: Size, family: str, message: str, work: _Work, error: float | None = None
    ) -> NoReturn:
        """Record the failed check and end the cascade; numbers that would give a hidden size away are masked."""
        told = masked(message) if size.is_hidden else message
        _note(SizeCheck(size=size.name, status="failed", families=(family,), message=told, error=error), work)
        raise Failure(verdict, _stage(size), f"at {public_name(size)}, {family} inputs: {told}")

    def _refuse_overtime(self, size: Size, family: str, work: _Work) -> None:
        """Many short launches pass under the limits of each; together they may not hold a run up."""
        if time.perf_counter() - work.started - work.seconds.get("build", 0.0) > EVALUATION_SECONDS:
            message = f"the evaluation took more than {EVALUATION_SECONDS:g} s in all; launch fewer or faster kernels"
            self._fail(Verdict.TIMEOUT, size, family, message, work)

    def _fault(self, fault: RunFault, size: Size, family: str, work: _Work) -> NoReturn:
        message = fault.message
        if fault.kind == "unsupported":
            message += f"; this is a limit of {self.device.name} and no score: write the kernel without it"
        self._fail(_VERDICT_OF_FAULT[fault.kind], size, family, message, work)

    def _full(self, session: Session, size: Size, work: _Work, profile: bool) -> _Found | None:
        """Profile at the full size, then run it whole where that is affordable."""
        family = self.oracle.families(size.name)[0]
        plan = work.plans[size.name]
        found: _Found | None = None
        with self._drawn(size, family, work) as draw:
            if profile:
                try:
                    with work.clock("profile"):
                        found = session.profile(self.request(plan, draw, POISONS[0], None), self.facts.at(size.name))
                except RunFaulted as faulted:
                    self._fault(faulted.fault, size, family, work)
            instructions = None if found is None else found[0].value("ptx__thread_inst_executed.sum")
            if instructions is not None and instructions > FULL_SIZE_INSTRUCTIONS:
                message = (
                    f"about {instructions:.2g} thread instructions, over {FULL_SIZE_INSTRUCTIONS:.2g}: "
                    "blocks were sampled, values not compared"
                )
                self._refuse_unverifiable(instructions, size, family, work)
                work.checks.append(SizeCheck(size=size.name, status="skipped", message=message))
                return found
            work.executed = 0
            poisons = _full_poisons(work.seed, instructions)
            comparison = self._run_and_compare(session, size, draw, poisons, work)
        note = ""
        if found is not None and not _counted_all(found[0], work.executed):
            found, note = None, "the profile is left out: it counted less than what the kernel executes when checked"
        check = SizeCheck(
            size=size.name,
            status="passed",
            families=(family,),
            message=note,
            error=comparison.error,
            launches=len(plan.launches),
        )
        work.checks.append(check)
        return found

    def _refuse_unverifiable(self, instructions: float, size: Size, family: str, work: _Work) -> None:
        """A full size may go unchecked because the task is large, not because the candidate makes it so."""
        facts = self.facts.at(size.name)
        if instructions > PADDING * (facts.flops + facts.compulsory_bytes):
            message = (
                f"about {instructions:.2g} thread instructions for a reference of {facts.flops:.2g} flop and "
                f"{facts.compulsory_bytes:.2g} bytes: too slow for its values to be checked"
            )
            self._fail(Verdict.TIMEOUT, size, family, message, work)
        hidden = [check for check in work.checks if check.size.startswith("hidden")]
        if hidden and all(check.status == "guarded" for check in hidden):
            message = (
                "the plan's asserts refuse every hidden size, and this size is too large to be compared whole; "
                "support other sizes, so that values can be checked"
            )
            self._fail(Verdict.POLICY, size, family, message, work)


def _full_poisons(seed: int, instructions: float | None) -> tuple[int, ...]:
    """What memory holds before runs at the full size.

    One of them is what it holds before a profile: a kernel that could tell a profile from a check would shirk there.
    Where two runs are too dear, the secret seed chooses.
    """
    if instructions is None:
        return POISONS[:1]
    both = (POISONS[0], PROFILE_POISON)
    return both if instructions <= SMALL_SIZE_INSTRUCTIONS else (both[seed & 1],)


def _counted_all(profile: Profile, executed: int) -> bool:
    """Whether a profile saw the work that a checked run did."""
    counted = profile.value("ptx__thread_inst_executed.sum")
    if counted is None:
        return True
    exact = all(kernel.sampled == 1 for kernel in profile.kernels)
    return executed <= counted * (_EXACT_SLACK if exact else _SAMPLED_SLACK)


def evaluator_version(generators: Sequence[InputGenerator]) -> str:
    """The version that a fingerprint gives: ``1``, or ``1+tests.<digest>`` where generators are in force."""
    digest = generators_digest(generators)
    return f"{EVALUATOR_VERSION}+tests.{digest}" if digest else EVALUATOR_VERSION


def _note(check: SizeCheck, work: _Work) -> None:
    """Record a check, in place of what was known of its size before."""
    for position, known in enumerate(work.checks):
        if known.size == check.size:
            work.checks[position] = check
            return
    work.checks.append(check)


def _stage(size: Size) -> Stage:
    if size.is_hidden:
        return "hidden"
    return "full" if size.name == "full" else "small"
