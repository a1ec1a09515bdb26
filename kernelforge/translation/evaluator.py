"""The evaluation of a C function: compile it in a jail, then every size and input family against the oracle.

As for kernels, expected outputs stay with the oracle, which also compares. The candidate's process has neither them nor
a seed. It is called twice at each size before all families: with arrays that end, and that begin, at a page which
cannot be read, and outputs that held different bytes before.
"""

from __future__ import annotations

import itertools
import platform
import shutil
import subprocess
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack
from functools import cache
from importlib.metadata import version
from random import Random
from typing import Any, Final

from kernelforge.errors import SandboxError, TaskError, TimingError, UsageError
from kernelforge.evaluation.evaluator import EVALUATOR_VERSION, EvaluationResult, concluded
from kernelforge.evaluation.oracle.client import DrawHandle, Oracle
from kernelforge.evaluation.pool import WARM_BYTES, WarmEvaluators
from kernelforge.evaluation.stages.candidate_runs import POISONS, EvaluationState
from kernelforge.evaluation.stages.compile_stage import StageFailed
from kernelforge.evaluation.stages.full_size import is_cheap
from kernelforge.evaluation.timing import tensor_bytes
from kernelforge.evaluation.timing.candidate_timer import performance
from kernelforge.modelnew.client import VERDICTS, ModelNewFault, reply_bytes
from kernelforge.modelnew.evaluator import EVALUATION_SECONDS
from kernelforge.records import (
    Candidate,
    CpuConditions,
    Fingerprint,
    MeasureSettings,
    Performance,
    Size,
    SizeCheck,
    SizeFacts,
    Stage,
    Task,
    TensorSpec,
    Verdict,
    content_hash,
)
from kernelforge.records.task import C_ELEMENTS
from kernelforge.sandbox import Zygote, select_tier
from kernelforge.sandbox.policy import Limits
from kernelforge.sandbox.shared_memory import Blob
from kernelforge.tasks import parse_task_file, size_source
from kernelforge.translation.client import LIMITS, CChild, CLanguage, Launch
from kernelforge.translation.host_runtime import MAX_DEVICE_BYTES
from kernelforge.translation.launcher import KernelLauncher
from kernelforge.translation.offload import Offload
from kernelforge.translation.signature import numbers, read_signature
from kernelforge.translation.timing import (
    EMPTY,
    SUITE_FUNCTION,
    CFunction,
    EagerTorch,
    PlacedDraw,
    cpu_name,
    declared_threads,
    placed_draws,
    time_sides,
)
from kernelforge.translation.worker import compiler_command
from kernelforge.utils.closing import Closing
from kernelforge.utils.machine import usable_cpus
from kernelforge.version import __version__

C_VERSION: Final = f"{EVALUATOR_VERSION}+c.2"
"""What a fingerprint gives as the evaluator; changes whenever a verdict of this lane could."""


def c_candidate(text: str) -> Candidate:
    """A candidate of this lane: a C file with the function of a task.

    Raises:
        pydantic.ValidationError: the text is empty or too large.
    """
    return Candidate(source=text, plan="", lane="c")


@cache
def c_compiler() -> str | None:
    """First line of what the C compiler `cc` says of its version; None where there is none."""
    if shutil.which("cc") is None:
        return None
    text = subprocess.run(["cc", "--version"], capture_output=True, text=True, check=False).stdout
    return text.split("\n")[0].strip() or None


class CEvaluator:
    """Evaluates C candidates for one task. Not for use by two threads.

    Args:
        task: a task with a C function.
        oracle: the task's oracle; the caller closes it.
        zygote: forks candidates' processes: role ``c-candidate``.
        fingerprint: of this machine.
        python: forks those of candidates in Python: role ``python-candidate``; None where there are none.
        measure: time a right function at the full size, with this precision and budget; None takes no time.
        build_s: longest wait for the compiler.
        run_s: longest wait for one call of the function.

    Raises:
        TaskError: the task has no C function that a candidate could have the type of.
    """

    def __init__(
        self,
        task: Task,
        oracle: Oracle,
        zygote: Zygote,
        fingerprint: Fingerprint,
        *,
        python: Zygote | None = None,
        measure: MeasureSettings | None = None,
        build_s: float = 60.0,
        run_s: float = 60.0,
    ) -> None:
        self.task = task
        self.oracle = oracle
        self.fingerprint = fingerprint
        self.facts = oracle.facts()
        self.signature = read_signature(task)
        self._zygote = zygote
        self._python = python
        self._measure = measure
        self._libraries: dict[str, Blob] = {}
        self._build_s, self._run_s = build_s, run_s

    def close(self) -> None:
        """End the oracle."""
        self.oracle.close()

    def held_bytes(self) -> int:
        """Memory that the oracle's process holds."""
        return self.oracle.held_bytes()

    def evaluate(
        self,
        candidate: Candidate,
        *,
        seed: int,
        full: bool = True,
        language: CLanguage = "c",
        launcher: KernelLauncher | None = None,
        offload: Offload | None = None,
    ) -> EvaluationResult:
        """Run the cascade. There is no profile, and a time where it is measured and the full size was compared.

        Args:
            candidate: one of lane ``c``.
            seed: the secret from which every draw of inputs is derived.
            full: whether the full size is compared, where the reference is cheap there.
            language: of its source; C++ defines the function with C linkage.
            launcher: runs the kernels of a CUDA host program.
            offload: directives of C, C++ or Fortran whose regions run in a memory of their own.

        Raises:
            ValueError: the candidate is of another lane.
            TaskError: the task cannot be judged, or wrong answers to it could earn a reward.
            UsageError: the language is Python, and this evaluator has no processes for it; or no function of the
                language can be timed, and this evaluator times.
            UnsupportedError: a host program launches what the device cannot run, or a construct maps what its runtime
                lacks.
        """
        if candidate.lane != "c":
            raise ValueError("this evaluator takes candidates of lane 'c'")
        if language == "python" and self._python is None:
            raise UsageError("this evaluator has no processes for candidates in Python: construct it with `python`")
        if self._measure is not None and (language not in ("c", "cpp", "fortran") or offload is not None):
            raise UsageError(
                f"functions in {offload or language} are not timed: only those of C, C++ and Fortran on the host are"
            )
        start = time.perf_counter()
        work = EvaluationState(seed=seed)
        outcome: StageFailed | Performance | None = None
        self.oracle.renew()
        try:
            library = self._cascade(candidate, work, full, language, launcher, offload)
            if library is not None and self._measure is not None and work.checks[-1].status == "passed":
                with work.clock("timing"):
                    outcome = self._timed(library, work, language, self._measure)
        except StageFailed as caught:
            outcome = caught
        seconds = time.perf_counter() - start
        fingerprint = self.fingerprint if launcher is None else launcher.fingerprint
        return EvaluationResult(concluded(candidate, self.task, fingerprint, work, outcome, seconds), None)

    def _cascade(
        self,
        candidate: Candidate,
        work: EvaluationState,
        full: bool,
        language: CLanguage,
        launcher: KernelLauncher | None,
        offload: Offload | None,
    ) -> Blob | None:
        """Compare at every size, the full one last; returns what the candidate was compiled to, where it is timed."""
        with work.clock("oracle"):
            self.oracle.require_admitted()
        most = reply_bytes(self.facts.sizes)
        launch: Launch | None = None
        if launcher is not None:
            with work.clock("build"):
                launcher.build()
            launch, most = launcher.launch, most + MAX_DEVICE_BYTES
        limits = Limits(**{**vars(LIMITS), "reply_bytes": most})
        zygote = self._python if language == "python" and self._python is not None else self._zygote
        with CChild(zygote, "cpu", limits, build_s=self._build_s, run_s=self._run_s) as child:
            try:
                with work.clock("build"):
                    child.build(candidate.source, self.signature, language, offload)
                    library = None if self._measure is None else child.library()
            except ModelNewFault as fault:
                raise StageFailed(VERDICTS[fault.kind], "compile", _reason(fault)) from fault
            work.started = time.perf_counter()
            for size in sorted(self.task.sizes, key=lambda size: (size.name == "full", size.is_hidden)):
                self._check_size(child, size, work, full, launch)
        return library

    def _timed(
        self, library: Blob, work: EvaluationState, language: CLanguage, settings: MeasureSettings
    ) -> Performance:
        """Time the candidate in turn with the suite's function and with eager PyTorch, on fresh inputs.

        Raises:
            StageFailed: it failed, or was wrong, while it was timed; or this machine gave no time.
        """
        facts = self.facts.at("full")
        size = next(size for size in self.task.sizes if size.name == "full")
        seeds = (int(content_hash(work.seed, self.task.name, "timing", at), 16) for at in itertools.count())

        def function(name: str, code: Blob) -> CFunction:
            return CFunction(name, code, self.signature.name, self._zygote, LIMITS, run_s=self._run_s)

        def draw(count: int) -> AbstractContextManager[list[PlacedDraw]]:
            own = list(itertools.islice(seeds, count))
            return placed_draws(self.oracle, own, lambda handle: self._arguments(size, facts, handle))

        def compare(placed: PlacedDraw, outputs: Sequence[Blob]) -> None:
            self._error(placed.handle, outputs, facts, work, size, stage="timing")

        conditions = CpuConditions(
            name=cpu_name(),
            cpus=usable_cpus(),
            threads=declared_threads(),
            command=" ".join(compiler_command(language)),
        )
        try:
            timing = time_sides(
                function("candidate", library),
                (
                    function(SUITE_FUNCTION, self._compiled(self.task.c_source)),
                    EagerTorch(self.oracle),
                    function(EMPTY, self._compiled(f"{self.signature} {{}}")),
                ),
                draw,
                compare,
                settings,
                conditions,
                set_bytes=tensor_bytes(facts),
                clock=time.perf_counter,
                rng=Random(content_hash(work.seed, "order")),
            )
        except ModelNewFault as fault:
            work.fail(VERDICTS[fault.kind], size, "task", _reason(fault), stage="timing")
        except (SandboxError, TimingError) as error:
            raise StageFailed(Verdict.INFRA, "timing", str(error)) from error
        return performance(timing, None, None)

    def _compiled(self, source: str) -> Blob:
        """Library of a function of the suite, or of an empty one; it is compiled once."""
        if source not in self._libraries:
            with CChild(self._zygote, "cpu", LIMITS, build_s=self._build_s, run_s=self._run_s) as child:
                try:
                    child.build(source, self.signature, "c")
                    self._libraries[source] = child.library()
                except ModelNewFault as fault:
                    raise TaskError(f"task {self.task.name!r}: its own C does not compile: {fault}") from fault
        return self._libraries[source]

    def _check_size(self, child: CChild, size: Size, work: EvaluationState, full: bool, launch: Launch | None) -> None:
        facts = self.facts.at(size.name)
        if size.name == "full" and not (full and is_cheap(facts)):
            why = "the reference takes too long there to be run for each candidate" if full else "it was left out"
            work.checks.append(SizeCheck(size="full", status="skipped", message=f"values not compared: {why}"))
            return
        families = self.oracle.families(size.name)
        if size.name == "full":
            families = families[:1]
        worst = 0.0
        for turn, family in enumerate((families[0], *families)):
            with work.drawn(self.oracle, size, family, turn) as draw:
                worst = max(worst, self._run_and_compare(child, size, facts, draw, turn, work, launch))
        work.checks.append(SizeCheck(size=size.name, status="passed", families=families, error=worst))

    def _run_and_compare(
        self,
        child: CChild,
        size: Size,
        facts: SizeFacts,
        draw: DrawHandle,
        turn: int,
        work: EvaluationState,
        launch: Launch | None,
    ) -> float:
        """Call on one draw; returns the error as a multiple of the tolerance."""
        if time.perf_counter() - work.started > EVALUATION_SECONDS:
            work.fail(Verdict.TIMEOUT, size, draw.family, f"more than {EVALUATION_SECONDS:g} s in all")
        arguments, inputs = self._arguments(size, facts, draw)
        try:
            with work.clock("run"):
                outputs = child.call(arguments, inputs, poison=POISONS[turn % 2], at_end=turn % 2 == 0, launch=launch)
        except ModelNewFault as fault:
            work.fail(VERDICTS[fault.kind], size, draw.family, _reason(fault))
        if [len(output) for output in outputs] != [spec.numel * spec.dtype.itemsize for spec in facts.outputs]:
            work.fail(Verdict.POLICY, size, draw.family, "the candidate's process sent arrays of other sizes")
        with work.clock("oracle"):
            return self._error(draw, outputs, facts, work, size)

    def _error(
        self,
        draw: DrawHandle,
        outputs: Sequence[Blob],
        facts: SizeFacts,
        work: EvaluationState,
        size: Size,
        *,
        stage: Stage | None = None,
    ) -> float:
        """Error of outputs as a multiple of the tolerance.

        Raises:
            StageFailed: it is above 1.
        """
        shapes, dtypes = [spec.shape for spec in facts.outputs], [spec.dtype for spec in facts.outputs]
        comparison = self.oracle.check(draw.handle, outputs, shapes, dtypes)
        if not comparison.ok:
            work.fail(Verdict.WRONG, size, draw.family, comparison.message, comparison.error, stage=stage)
        return comparison.error or 0.0

    def _arguments(self, size: Size, facts: SizeFacts, draw: DrawHandle) -> tuple[list[dict[str, Any]], list[Blob]]:
        """Arguments of a call, in the order of the C parameters, and the contents of its inputs.

        Raises:
            TaskError: the reference has other outputs than the C function, or an input of another type.
        """
        parsed = parse_task_file(size_source(self.task, size.name), self.task.name)
        values = numbers(self.signature, parsed.parameters, draw.scalars, parsed.constants)
        outputs = iter(facts.outputs)
        arguments: list[dict[str, Any]] = []
        inputs: list[Blob] = []
        for item in self.signature.parameters:
            if not item.array:
                arguments.append({"kind": "number", "type": item.type, "value": values[item.name]})
                continue
            at = parsed.parameters.index(item.name) if item.source == "input" else -1
            spec = facts.inputs[at] if item.source == "input" else next(outputs, None)
            if not isinstance(spec, TensorSpec) or spec.dtype is not C_ELEMENTS[item.type]:
                raise TaskError(f"task {self.task.name!r}: the C array {item.name!r} is no array of the reference's")
            if item.source == "input":
                inputs.append(draw.tensors[at])
            arguments.append({"kind": item.source, "type": item.type, "bytes": spec.numel * spec.dtype.itemsize})
        if next(outputs, None) is not None:
            raise TaskError(f"task {self.task.name!r}: the reference returns more than the C function writes")
        return arguments, inputs


def _reason(fault: ModelNewFault) -> str:
    if fault.type not in ("", "Exception"):
        return fault.description
    if fault.kind == "crash":
        return f"{fault}; an access outside an array, or a write to an input, ends a call so"
    return str(fault)


class CEvaluators(Closing):
    """Evaluates C candidates on this machine's CPU. Close it when done.

    Args:
        allow_unconfined: run without a jail where none works; the fingerprint then says ``none``.
        warm_tasks: most tasks whose oracles are kept.
        measure: time right functions, with this precision and budget; None takes no time. PyTorch then has as many
            threads as OpenMP.

    Raises:
        SandboxError: no jail works here and ``allow_unconfined`` is false, or there is no C compiler.
    """

    def __init__(
        self, *, allow_unconfined: bool = False, warm_tasks: int = 1, measure: MeasureSettings | None = None
    ) -> None:
        compiler = c_compiler()
        if compiler is None:
            raise SandboxError("there is no C compiler `cc` here, which C candidates need: install gcc")
        self.fingerprint = Fingerprint(
            device="cpu",
            device_kind="cpu",
            arch=platform.machine(),
            toolchain=compiler,
            kernelforge=__version__,
            evaluator=C_VERSION,
            torch=version("torch"),
            python=platform.python_version(),
            host=f"{platform.system().lower()}-{platform.machine()}",
            jail=select_tier().usable_tier(allow_unconfined),
        )
        self._measure = measure
        self._stack = ExitStack()
        self._candidates = Zygote("c-candidate", allow_unconfined=allow_unconfined)
        self._stack.callback(self._candidates.close)
        self._python = Zygote("python-candidate", allow_unconfined=allow_unconfined)
        self._stack.callback(self._python.close)
        self._oracles = Zygote("oracle", allow_unconfined=allow_unconfined)
        self._stack.callback(self._oracles.close)
        self._evaluators = WarmEvaluators(self.evaluator, max_tasks=warm_tasks, max_bytes=WARM_BYTES)
        self._stack.callback(self._evaluators.close)

    def evaluator(self, task: Task, oracle: Oracle | None = None) -> CEvaluator:
        """An evaluator with an oracle of its own, or with another's; the caller closes it, or the oracle alone.

        Raises:
            TaskError: the reference does not run, or the task has no C function.
        """
        reference = oracle or Oracle(self._oracles, task, threads=1 if self._measure is None else declared_threads())
        return CEvaluator(
            task, reference, self._candidates, self.fingerprint, python=self._python, measure=self._measure
        )

    def evaluate(
        self,
        task: Task,
        candidate: Candidate,
        *,
        seed: int,
        full: bool = True,
        language: CLanguage = "c",
        launcher: KernelLauncher | None = None,
        offload: Offload | None = None,
    ) -> EvaluationResult:
        """Evaluate one candidate against one task; see :meth:`CEvaluator.evaluate`.

        Raises:
            TaskError: the reference does not run, or the task has no C function.
            UnsupportedError: a host program launches what the device cannot run.
        """
        with self._evaluators.using(task) as evaluator:
            return evaluator.evaluate(
                candidate, seed=seed, full=full, language=language, launcher=launcher, offload=offload
            )

    def close(self) -> None:
        """End every helper process."""
        self._stack.close()
