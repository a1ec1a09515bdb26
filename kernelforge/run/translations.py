"""Translations of CUDA into C: a Coder writes several of each task, and each is judged in the jail."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing

from pydantic import Field

from kernelforge.agents.prompting.render import render_translation
from kernelforge.candidate import parse_reply
from kernelforge.candidate.reply import c_function_in
from kernelforge.errors import CandidateError, UsageError
from kernelforge.evaluation.evaluator import rejection
from kernelforge.evaluation.oracle.task_context import public_facts
from kernelforge.llm.base import Answerer, Question
from kernelforge.records import Evaluation, Message, Task, Verdict, content_hash
from kernelforge.records.base import Record
from kernelforge.rewards.base import BEFORE_BUILT
from kernelforge.search import pass_at_k
from kernelforge.translation.evaluator import CEvaluators, c_candidate
from kernelforge.translation.likeness import Likeness, likeness


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


def translate(
    tasks: Sequence[Task],
    answerer: Answerer,
    *,
    samples: int,
    seed: int,
    full: bool = False,
    allow_unconfined: bool = False,
) -> Iterator[Translation]:
    """Let a Coder translate the CUDA of tasks into C, several times each; yields each after its verdict.

    Args:
        tasks: with a C function and a known translation of it.
        answerer: writes.
        samples: translations of each task.
        seed: from which all inputs are drawn; no candidate sees it.
        full: whether the full size is compared too, where the reference is cheap there.
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
    with CEvaluators(allow_unconfined=allow_unconfined) as evaluators:
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
    )


def _check(name: str) -> Callable[[str], None]:
    def check(text: str) -> None:
        c_function_in(text, name)

    return check
