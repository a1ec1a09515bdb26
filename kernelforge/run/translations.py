"""Translations of CUDA into C: a Coder writes several of each task, and each is judged in the jail."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from statistics import geometric_mean
from typing import Final, Self

from pydantic import Field

from kernelforge.agents.base import CoderRequest, TaskContext
from kernelforge.agents.prompting.render import render_translation
from kernelforge.agents.prompts import coder_prompt, fenced
from kernelforge.candidate import parse_reply
from kernelforge.candidate.reply import c_function_in
from kernelforge.datasets.training import Row, Sample, suite_translation
from kernelforge.errors import CandidateError, UsageError
from kernelforge.evaluation.evaluator import rejection
from kernelforge.evaluation.oracle.task_context import public_facts
from kernelforge.evaluation.pool import EvaluatorPool, open_admitted
from kernelforge.llm.base import Answerer, Question
from kernelforge.records import (
    Candidate,
    CpuConditions,
    Evaluation,
    MeasureSettings,
    Message,
    Operator,
    Ratio,
    Task,
    TaskFacts,
    Verdict,
    content_hash,
)
from kernelforge.records.base import Record
from kernelforge.records.timing import Interval
from kernelforge.rewards.base import BEFORE_BUILT
from kernelforge.run.task_loop import make_task_context
from kernelforge.search import pass_at_k
from kernelforge.translation.evaluator import CEvaluators, c_candidate
from kernelforge.translation.likeness import Likeness, likeness
from kernelforge.translation.timing import EAGER, SUITE_FUNCTION
from kernelforge.utils.closing import Closing


class Translation(Record):
    """One C function that a Coder wrote, how it was asked for, and how it was judged."""

    task: str
    sample: int = Field(ge=0)
    messages: tuple[Message, ...] = ()
    """Prompts and replies; the last reply is the one that was judged."""
    source: str | None
    """The C file; None of a reply that holds none."""
    evaluation: Evaluation

    @property
    def compiled(self) -> bool:
        """Whether it was compiled."""
        return self.evaluation.verdict is Verdict.OK or self.evaluation.stage not in BEFORE_BUILT


class TranslationTime(Record):
    """Time of one right translation, and its speedups."""

    task: str
    sample: int = Field(ge=0)
    time_us: float
    """Median of a call at the full size, in µs."""
    interval_us: Interval
    speedups: tuple[Ratio, ...]
    """Over the suite's own function, and over eager PyTorch; without those that could not be timed."""
    cpu: CpuConditions | None

    @classmethod
    def of(cls, translation: Translation) -> Self | None:
        """The time of a translation; None where it was not timed."""
        performance = translation.evaluation.performance
        if performance is None or performance.timing is None:
            return None
        timing = performance.timing
        return cls(
            task=translation.task,
            sample=translation.sample,
            time_us=timing.candidate.median_us,
            interval_us=timing.candidate.interval_us,
            speedups=timing.ratios,
            cpu=timing.cpu,
        )

    @property
    def over_c(self) -> Ratio | None:
        """Speedup over the suite's own function."""
        return self.over(SUITE_FUNCTION)

    @property
    def over_eager(self) -> Ratio | None:
        """Speedup over eager PyTorch."""
        return self.over(EAGER)

    @property
    def empty_us(self) -> float | None:
        """Time of a call of an empty function of the task's type in µs, which is part of the time."""
        return None if self.cpu is None else self.cpu.overhead_us

    def over(self, baseline: str) -> Ratio | None:
        """The speedup over a baseline."""
        return next((ratio for ratio in self.speedups if ratio.baseline == baseline), None)


class TranslationScores(Record):
    """Shares over tasks; a translation that could not be judged counts in none of them."""

    tasks: int
    samples: int
    """That were judged."""
    compile_rate: float
    """Share of the samples that compile; all samples count alike."""
    pass_at_k: dict[int, float]
    """Probability that k samples of a task hold a correct one, over tasks, for each k that every task has."""
    likeness: Likeness | None = None
    """To the known C functions, of all samples that hold one; None where none does."""
    times: tuple[TranslationTime, ...] = ()
    """Of the right samples that were timed."""
    mean_speedup: float | None = None
    """Geometric mean over tasks of the fastest timed sample's speedup over the suite's own function."""


def translate(
    tasks: Sequence[Task],
    answerer: Answerer,
    *,
    samples: int,
    seed: int,
    full: bool = False,
    measure: MeasureSettings | None = None,
    allow_unconfined: bool = False,
) -> Iterator[Translation]:
    """Let a Coder translate the CUDA of tasks into C, several times each; yields each after its verdict.

    Args:
        tasks: with a C function and a known translation of it.
        answerer: writes.
        samples: translations of each task.
        seed: from which all inputs are drawn; no candidate sees it.
        full: whether the full size is compared too, where the reference is cheap there.
        measure: time what is right at the full size, with this precision and budget; None takes no time.
        allow_unconfined: go on where no jail works; the fingerprint says so.

    Raises:
        UsageError: a task has no known translation.
        TaskError: a reference does not run.
        ProviderError: no reply can be had.
        BudgetExhausted: a budget of the answerer's meter is spent.
    """
    originals = {task.name: parse_reply(task.translation) for task in tasks if task.translation}
    for task in tasks:
        if task.name not in originals:
            raise UsageError(f"task {task.name!r} has no CUDA to translate: its suite names none with `translation`")
    with CEvaluators(allow_unconfined=allow_unconfined, measure=measure) as evaluators:
        for task in tasks:
            with closing(evaluators.evaluator(task)) as evaluator:
                signature = evaluator.signature
                prompt = render_translation(task, public_facts(evaluator.facts), originals[task.name], str(signature))
                check = _check(signature.name)
                for sample in range(samples):
                    answer = answerer.ask(Question("coder", task.name, prompt, check, sample=sample))
                    source: str | None = None
                    try:
                        source = c_function_in(answer.text, signature.name).source
                    except CandidateError as error:
                        refused = rejection(task, evaluator.fingerprint, error, answer.text)
                        evaluation = refused.model_copy(update={"lane": "c"})
                    else:
                        draw = int(content_hash(seed, task.name, sample), 16)
                        evaluation = evaluator.evaluate(c_candidate(source), seed=draw, full=full).evaluation
                    yield Translation(
                        task=task.name, sample=sample, messages=answer.messages, source=source, evaluation=evaluation
                    )


_OF_SUITE: Final = "suite"
"""Who wrote the reply of a reversed translation: not a model."""


_AT_TEST_SIZES: Final = MeasureSettings(sizes="train")
"""Kernels are judged where C functions are: at the small and the hidden sizes, and in part at most at the full one."""


class Reversals(Closing):
    """Rows of the other direction of right translations. Close it when done.

    A pair of a model's code and the suite's is right where both are, so the suite's code is judged too, once for each
    task: kernels on the emulated device, a C function in its jail.

    Args:
        allow_unconfined: go on where no jail works; the fingerprint says so.
        seed: from which all inputs are drawn.
    """

    def __init__(self, *, allow_unconfined: bool, seed: int) -> None:
        self._unconfined, self._seed = allow_unconfined, seed
        self._stack = ExitStack()
        self._pool: EvaluatorPool | None = None
        self._functions: CEvaluators | None = None
        self._kernels: dict[str, tuple[Evaluation, TaskContext]] = {}
        self._c: dict[str, tuple[Evaluation, TaskFacts, str]] = {}

    def from_c(self, task: Task, source: str, position: int) -> Row | None:
        """The row from a model's C function to the suite's kernels; None where these are not right here.

        Args:
            task: with a known translation.
            source: a right C file.
            position: of it, among those of the task.

        Raises:
            TaskError: the reference does not run.
        """
        if task.digest not in self._kernels:
            self._kernels[task.digest] = self._judged_kernels(task)
        evaluation, context = self._kernels[task.digest]
        if evaluation.verdict is not Verdict.OK:
            return None
        brief = replace(context, task=task.model_copy(update={"c_source": source}))
        request = CoderRequest(brief=brief, operator=Operator.SEED, parent=None, finding=None, history=())
        prompt = coder_prompt(request).text
        row = suite_translation(task, "c-to-cuda", prompt, task.translation, evaluation, written_by=_OF_SUITE)
        return {**row, "sample": position, "code": source, "reason": evaluation.reason}

    def from_cuda(self, task: Task, candidate: Candidate) -> Row | None:
        """The row from a model's kernels to the suite's C function; None where that is not right here, or is none.

        Raises:
            TaskError: the reference does not run, or the task has no C function that could be called.
        """
        if task.c_language != "c":
            return None
        if task.digest not in self._c:
            self._c[task.digest] = self._judged_function(task)
        evaluation, facts, declaration = self._c[task.digest]
        if evaluation.verdict is not Verdict.OK:
            return None
        prompt = render_translation(task, facts, candidate, declaration).text
        reply = fenced(task.c_source, "c") + "\n"
        return suite_translation(task, "cuda-to-c", prompt, reply, evaluation, written_by=_OF_SUITE)

    def _judged_kernels(self, task: Task) -> tuple[Evaluation, TaskContext]:
        if self._pool is None:
            self._pool = self._stack.enter_context(
                EvaluatorPool("emulated:h100", measure=_AT_TEST_SIZES, allow_unconfined=self._unconfined)
            )
        with closing(open_admitted(self._pool, task)) as evaluator:
            candidate = parse_reply(task.translation)
            evaluation = evaluator.evaluate(candidate, seed=self._seed, profile=False).evaluation
            return evaluation, make_task_context(evaluator)

    def _judged_function(self, task: Task) -> tuple[Evaluation, TaskFacts, str]:
        if self._functions is None:
            self._functions = self._stack.enter_context(CEvaluators(allow_unconfined=self._unconfined))
        with closing(self._functions.evaluator(task)) as evaluator:
            evaluation = evaluator.evaluate(c_candidate(task.c_source), seed=self._seed, full=False).evaluation
            return evaluation, public_facts(evaluator.facts), str(evaluator.signature)

    def close(self) -> None:
        """End every helper process."""
        self._stack.close()


def reversed_rows(
    parts: Mapping[str, Sequence[Sample]], tasks: Mapping[str, Task], *, seed: int
) -> dict[str, list[Row]]:
    """Rows of right translations into CUDA, in the other direction; none of a reply that was a ``ModelNew``.

    Args:
        parts: samples by the name of their part.
        tasks: by digest.
        seed: from which all inputs are drawn.

    Raises:
        TaskError: see :meth:`Reversals.from_cuda`.
    """
    made: dict[str, list[Row]] = {name: [] for name in parts}
    with Reversals(allow_unconfined=False, seed=seed) as reversals:
        for name, samples in parts.items():
            for sample in samples:
                if not sample.correct:
                    continue
                try:
                    candidate = parse_reply(sample.completion)
                except CandidateError:
                    continue  # it was converted before it was judged
                row = reversals.from_cuda(tasks[sample.evaluation.task], candidate)
                made[name] += [] if row is None else [row]
    return made


def scores(translations: Sequence[Translation], tasks: Sequence[Task]) -> TranslationScores:
    """Compile rate, Pass@k, and likeness to the known C functions of the tasks.

    Raises:
        UsageError: none of them was judged.
    """
    judged = [item for item in translations if item.evaluation.verdict is not Verdict.INFRA]
    if not judged:
        raise UsageError("no translation was judged, so there is nothing to count")
    made = Counter(item.task for item in judged)
    right = Counter(item.task for item in judged if item.evaluation.verdict is Verdict.OK)
    least = min(made.values())
    written = [(item.source, item.task) for item in judged if item.source is not None]
    times = tuple(time for item in judged if (time := TranslationTime.of(item)) is not None)
    best: dict[str, float] = {}
    for time in times:
        if (ratio := time.over_c) is not None:
            best[time.task] = max(best.get(time.task, 0.0), ratio.speedup)
    functions = {task.name: task.c_source for task in tasks}
    return TranslationScores(
        tasks=len(made),
        samples=len(judged),
        compile_rate=sum(item.compiled for item in judged) / len(judged),
        pass_at_k={
            k: sum(pass_at_k(count, right[task], k) for task, count in made.items()) / len(made)
            for k in (1, 5, 10)
            if k <= least
        },
        likeness=likeness([source for source, _ in written], [functions[task] for _, task in written], "c"),
        times=times,
        mean_speedup=geometric_mean(best.values()) if best else None,
    )


def _check(name: str) -> Callable[[str], None]:
    def check(text: str) -> None:
        c_function_in(text, name)

    return check
