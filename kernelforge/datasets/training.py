"""Training data from runs, jobs and sessions: samples, and the rows of each kind of training.

A sample is one reply with its prompt and its evaluation. Rows are plain JSON in the formats that TRL's trainers read:
conversational ``messages``, or ``prompt`` with ``completion``, or ``chosen`` and ``rejected``.

Sources: Kevin (arXiv 2507.11948) for discounted returns of turns; Critique Fine-Tuning (arXiv 2501.17703) for rows
whose target is the criticism of a reply.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import combinations
from types import MappingProxyType
from typing import Any, Literal

from kernelforge.agents.base import GeneratorForm
from kernelforge.agents.builtin.design import without_design
from kernelforge.agents.tester import TesterScore, parse_tests
from kernelforge.candidate import split_reasoning
from kernelforge.errors import CandidateError
from kernelforge.evaluation.generators.parser import caught_by
from kernelforge.llm.rate_limits import reasoning_tokens
from kernelforge.metrics import Ngrams
from kernelforge.records import (
    Attempt,
    Evaluation,
    Finding,
    Message,
    Origin,
    Profile,
    Task,
    Usage,
    Verdict,
    language_of,
)
from kernelforge.rewards import Context, discounted_returns, reward
from kernelforge.search.novelty import EarlierTexts, blind_source
from kernelforge.tasks.constants import plain_text

Row = dict[str, Any]

SHINGLE = 5
"""Tokens of a shingle, by which near duplicates are recognised."""


@dataclass(frozen=True)
class Sample:
    """One reply of a model, with what it was asked and how it was evaluated."""

    id: str
    source: Literal["run", "job", "session", "translation"]
    run: str
    task: str
    """``suite/name``, or the name alone."""
    dialogue: str
    """Id of the conversation that it belongs to; its own id outside of one."""
    turn: int
    """From 1."""
    group: str
    """Samples of equal groups are compared: those of one prompt, or of a job's ``group_id``."""
    messages: tuple[tuple[str, str], ...]
    """Role and content of what the model was asked, with earlier turns of the dialogue."""
    completion: str
    evaluation: Evaluation
    profile: Profile | None
    candidate: str | None
    """Its source; None where the reply held none."""
    reward: float | None
    """By the policy of the export."""
    policy_version: int | None = None
    finding: Finding | None = None
    """What the Judge said before this reply."""
    parent: str | None = None
    """Id of the sample whose candidate the finding is about."""
    helped: bool | None = None
    """Whether this reply became the best, or repaired a failure; None without a finding."""
    written_by: str = ""
    """Model or program that wrote the completion, as far as it was recorded."""
    reasoning: str | None = None
    """What the model showed of its reasoning before the completion, which does not hold it."""
    reasoning_tokens: int | None = None
    """Its length: as the provider counted it, or else an estimate."""
    licence: str | None = None
    """Of the task's source, which its prompt shows; None where it is not known."""
    direction: str | None = None
    """Of a translation, such as ``c-to-cuda``."""

    @property
    def correct(self) -> bool:
        return self.evaluation.verdict is Verdict.OK and not self.evaluation.uncompared

    @property
    def shared_key(self) -> str:
        """Key of the evaluation that decided: that of an equal candidate where it is shared."""
        return self.evaluation.equals or self.evaluation.key

    @property
    def time(self) -> tuple[float, float, str] | None:
        """Ends of the interval of its speed and its kind; higher is faster. None where there is no time.

        A measured time counts by its confidence interval, a modelled one by the interval of the predicted speedup.
        """
        performance = self.evaluation.performance
        if performance is None or performance.quarantined is not None:
            return None
        if performance.origin is Origin.MEASURED and performance.interval_us is not None:
            low, high = performance.interval_us
            # A class with host code is timed with its launches, a plan as a CUDA graph.
            return 1 / high, 1 / low, f"measured, {self.evaluation.lane}"
        predicted = performance.predicted
        return None if predicted is None else (predicted.low, predicted.high, "predicted")


def samples_of_attempts(attempts: Sequence[Attempt], policy: str) -> Iterator[Sample]:
    """Samples of the attempts at one task of one run, by number; attempts without a prompt and a reply are left out.

    Raises:
        UsageError: there is no such policy.
    """
    by_id = {attempt.id: attempt for attempt in attempts}
    for index, attempt in enumerate(attempts):
        words = [message for message in attempt.messages if message.agent == "coder"]
        if len(words) < 2 or words[-1].role != "reply":
            continue
        prompts = tuple(("user" if word.role == "prompt" else "assistant", word.content) for word in words[:-1])
        parent = None if attempt.parent is None else by_id.get(attempt.parent)
        candidate = None if attempt.candidate is None else attempt.candidate.source
        context = Context(candidate, tuple(before.evaluation for before in attempts[:index]), attempt.profile)
        yield Sample(
            id=attempt.id,
            source="run",
            run=attempt.run,
            task=attempt.task,
            dialogue=attempt.id,
            turn=1,
            group=prompt_hash(attempt.task, *(content for _, content in prompts)),
            messages=prompts,
            completion=without_design(words[-1].content),
            evaluation=attempt.evaluation,
            profile=attempt.profile,
            candidate=candidate,
            reward=reward(policy, attempt.evaluation, context).value,
            finding=attempt.finding,
            parent=None if parent is None else parent.id,
            helped=helped(attempt, parent),
            written_by=words[-1].provider,
            **_reasoning(words[-1].reasoning, words[-1].usage),
        )


def _reasoning(text: str | None, usage: Usage | None = None) -> dict[str, Any]:
    """The fields of a sample about its reasoning."""
    return {
        "reasoning": text or None,
        "reasoning_tokens": reasoning_tokens(text, usage).tokens if text else None,
    }


def split_completion(completion: str) -> dict[str, Any]:
    """The fields of a sample about a completion that may hold thinking between tags."""
    reasoning, answer = split_reasoning(completion)
    return {"completion": without_design(answer), **_reasoning(reasoning)}


def helped(attempt: Attempt, parent: Attempt | None) -> bool | None:
    """Whether what a finding asked for did good: a failure was repaired, or the attempt became the best.

    None without a finding, and where the attempt could not be evaluated.
    """
    if attempt.finding is None or parent is None or attempt.evaluation.verdict is Verdict.INFRA:
        return None
    if parent.evaluation.verdict is not Verdict.OK:
        return attempt.evaluation.verdict is Verdict.OK
    return attempt.accepted


def supervised(samples: Sequence[Sample]) -> Iterator[Row]:
    """Rows for supervised fine-tuning: correct replies, each with its dialogue as ``messages``."""
    for sample in samples:
        if sample.correct:
            yield {"messages": [*_chat(sample.messages), _reply(sample)], **columns(sample)}


def preferences(samples: Sequence[Sample]) -> Iterator[Row]:
    """Rows for direct preference optimisation: ``prompt``, ``chosen``, ``rejected`` of one group.

    A correct reply is preferred to a wrong one, and of two correct ones the faster, where the intervals of their
    speed do not meet. Pairs whose order is within the error are left out, and so is what could not be evaluated.
    """
    for members in groups(samples):
        for first, second in combinations(members, 2):
            better = preferred(first, second)
            if better is None or first.messages != second.messages:
                continue
            rejected = second if better is first else first
            yield {
                "prompt": _chat(better.messages),
                "chosen": [_reply(better)],
                "rejected": [_reply(rejected)],
                "reason": "correct" if not rejected.correct else "faster",
                "rejected_id": rejected.id,
                "rejected_reward": rejected.reward,
                "rejected_reasoning": rejected.reasoning,
                **columns(better),
            }


def preferred(first: Sample, second: Sample) -> Sample | None:
    """The better of two samples; None where they are equal within the error."""
    if Verdict.INFRA in (first.evaluation.verdict, second.evaluation.verdict):
        return None
    if first.correct != second.correct:
        return first if first.correct else second
    if not first.correct or first.time is None or second.time is None or first.time[2] != second.time[2]:
        return None
    if first.time[0] > second.time[1]:
        return first
    return second if second.time[0] > first.time[1] else None


def judged(samples: Sequence[Sample]) -> Iterator[Row]:
    """Rows for Kahneman-Tversky optimisation: ``prompt``, ``completion``, and whether it is correct as ``label``."""
    for sample in samples:
        if sample.evaluation.verdict is not Verdict.INFRA:
            label = {"prompt": _chat(sample.messages), "completion": [_reply(sample)], "label": sample.correct}
            yield {**label, **columns(sample)}


def grouped(samples: Sequence[Sample]) -> Iterator[Row]:
    """Rows for group-relative policy optimisation: a ``prompt`` with its ``completions`` and ``rewards``.

    Groups have two scored completions at least; a completion without a score is left out.
    """
    for members in groups([sample for sample in samples if sample.reward is not None]):
        if len(members) > 1:
            yield {
                "prompt": _chat(members[0].messages),
                "completions": [sample.completion for sample in members],
                "rewards": [sample.reward for sample in members],
                "verdicts": [sample.evaluation.outcome for sample in members],
                "policy_versions": [sample.policy_version for sample in members],
                "reasonings": [sample.reasoning for sample in members],
                "evaluations": [sample.shared_key for sample in members],
                **columns(members[0]),
            }


def trajectories(samples: Sequence[Sample], discount: float) -> Iterator[Row]:
    """Rows of whole dialogues: ``messages`` to the last reply, with reward, return and weights of each turn.

    Raises:
        UsageError: the discount is not between 0 and 1.
    """
    dialogues: dict[str, list[Sample]] = {}
    for sample in samples:
        dialogues.setdefault(sample.dialogue, []).append(sample)
    for turns in dialogues.values():
        turns.sort(key=lambda sample: sample.turn)
        last = turns[-1]
        rewards = [sample.reward for sample in turns]
        yield {
            "messages": [*_chat(last.messages), _reply(last)],
            "rewards": rewards,
            "returns": discounted_returns(rewards, discount),
            "verdicts": [sample.evaluation.outcome for sample in turns],
            "policy_versions": [sample.policy_version for sample in turns],
            **columns(last),
        }


def critiques(samples: Sequence[Sample]) -> Iterator[Row]:
    """Rows whose target is the Judge's finding about a reply, with the result."""
    by_id = {sample.id: sample for sample in samples}
    for sample in samples:
        parent = None if sample.parent is None else by_id.get(sample.parent)
        if sample.finding is None or parent is None or sample.helped is None:
            continue
        question = [*_chat(parent.messages), _reply(parent), {"role": "user", "content": _CRITIQUE}]
        finding = f"{sample.finding.headline}\n\n{sample.finding.why}\n\n{sample.finding.action}"
        answer = {"role": "assistant", "content": finding}
        yield {
            "messages": [*question, answer],
            "finding": sample.finding.kind,
            "bottleneck": sample.finding.bottleneck,
            "parent_verdict": parent.evaluation.outcome,
            "helped": sample.helped,
            **columns(sample),
        }


_CRITIQUE = "Review this candidate. Name the one issue to fix or the one bottleneck to remove, why, and what to do."


KINDS: Mapping[str, str] = MappingProxyType(
    {
        "sft": "correct replies as messages, for supervised fine-tuning",
        "dpo": "pairs whose order is beyond doubt, for direct preference optimisation",
        "kto": "replies with a label, for Kahneman-Tversky optimisation",
        "grpo": "groups of completions with rewards",
        "trajectories": "dialogues with the reward and the return of each turn",
        "critique": "findings about replies, and whether they helped",
        "translator": "correct replies to tasks that show sequential code",
        "tester": "a Tester's generators that caught wrong kernels",
    }
)
"""Every kind of rows, and what it is."""


def rows(kind: str, samples: Sequence[Sample], discount: float) -> list[Row]:
    """The rows of a kind, in the order of the samples."""
    makers: dict[str, Callable[[Sequence[Sample]], Iterator[Row]]] = {
        "sft": supervised,
        "dpo": preferences,
        "kto": judged,
        "grpo": grouped,
        "trajectories": lambda items: trajectories(items, discount),
        "critique": critiques,
        "translator": translators,
    }
    return list(makers[kind](samples))


def translations(samples: Iterable[Sample], tasks: Mapping[str, Task]) -> list[Sample]:
    """Samples of tasks that show sequential code, with their direction; tasks are by digest."""
    return [
        replace(sample, direction=f"{task.c_language}-to-cuda")
        for sample in samples
        if (task := tasks.get(sample.evaluation.task)) and task.c_source
    ]


def translators(samples: Sequence[Sample]) -> Iterator[Row]:
    """Rows for a Translator: correct translations, each with its dialogue as ``messages``, and its ``direction``."""
    for sample in samples:
        if sample.correct:
            yield _translated(sample, verified=True)


def c_translation(
    task: Task, position: int, messages: Sequence[Message], source: str | None, evaluation: Evaluation
) -> Row:
    """The row of a translation of a task's CUDA into C, right or wrong.

    ``verified`` is whether it is right at every size where it ran, which need not be the full one. No reward policy
    rewards a C function, so that ``reward`` is None.

    Args:
        task: whose known candidate was translated.
        position: of the reply, among those to the same prompt.
        messages: what was said; the last reply is the one that was judged.
        source: the C file; None where the reply holds none.
        evaluation: of the reply.
    """
    *before, reply = messages
    prompts = tuple(("user" if word.role == "prompt" else "assistant", word.content) for word in before)
    group = prompt_hash(task.digest, *(content for _, content in prompts[:1]))
    identity = prompt_hash(group, reply.provider, str(position), reply.content)
    row = _outside_of_runs(
        task, "cuda-to-c", group, identity, prompts, reply.content, evaluation, reply.provider,
        candidate=source, **_reasoning(reply.reasoning, reply.usage),
    )  # fmt: skip
    return {**row, "sample": position, "code": source, "reason": evaluation.reason}


def suite_translation(
    task: Task, direction: str, prompt: str, reply: str, evaluation: Evaluation, *, written_by: str
) -> Row:
    """The row of a translation that no model was asked for: rules or a suite have both texts.

    Args:
        task: whose reference judged both.
        direction: of the row, such as ``c-to-cuda``.
        prompt: shows the one text.
        reply: the other one, as a model would reply.
        evaluation: of the reply.
        written_by: who wrote the reply.
    """
    group = prompt_hash(task.digest, prompt)
    identity = prompt_hash(group, reply)
    return _outside_of_runs(
        task, direction, group, identity, (("user", prompt),), reply, evaluation, written_by, candidate=None
    )


def _outside_of_runs(
    task: Task,
    direction: str,
    group: str,
    identity: str,
    messages: tuple[tuple[str, str], ...],
    completion: str,
    evaluation: Evaluation,
    written_by: str,
    **fields: Any,
) -> Row:
    sample = Sample(
        id=identity,
        source="translation",
        run="",
        task=task.name,
        dialogue=identity,
        turn=1,
        group=group,
        messages=messages,
        completion=completion,
        evaluation=evaluation,
        profile=None,
        reward=None,
        written_by=written_by,
        licence=task.license or None,
        direction=direction,
        **fields,
    )
    return _translated(sample, verified=evaluation.verdict is Verdict.OK)


def _translated(sample: Sample, *, verified: bool) -> Row:
    chat = [*_chat(sample.messages), _reply(sample)]
    return {"messages": chat, "direction": sample.direction, "verified": verified, **columns(sample)}


def catching_tests(run: str, task: Task, messages: Sequence[Message], attempts: Sequence[Attempt]) -> Iterator[Row]:
    """The row of a task's Tester: its prompt, and of its last readable reply the generators that caught a wrong kernel.

    MuSL's co-evolution: kernels that no other inputs showed to be wrong train the Tester. There is no row where none
    of its generators was the first to catch one.

    Args:
        run: id of the run.
        task: the task.
        messages: about the task outside its attempts.
        attempts: at the task.
    """
    caught = Counter(caught_by(attempt.evaluation) for attempt in attempts)
    prompt, reply, forms = "", None, dict[str, GeneratorForm]()
    for message in messages:
        if message.agent != "tester":
            continue
        if message.role == "prompt":
            prompt = prompt or message.content
            continue
        with suppress(CandidateError):
            reply, forms = message, {form.name: form for form in parse_tests(message.content)}
    catching = [form for name, form in forms.items() if caught[name]]
    if reply is None or not catching:
        return
    answer = json.dumps(
        {"generators": [form.model_dump(mode="json") for form in catching]}, ensure_ascii=False, indent=1
    )
    group = f"{run}/{task.name}/tester"
    yield {
        "messages": _chat([("user", prompt), ("assistant", f"```json\n{answer}\n```\n")]),
        "caught": sum(caught[form.name] for form in catching),
        "tests": len(forms),
        **_tester_columns(group, "run", run, task, group, reply),
    }


def scored_tests(task: Task, score: TesterScore, messages: Sequence[Message]) -> Row | None:
    """The row of a Tester's reply, with its score on mutants of the task as ``reward``.

    None where no mutant counts, so that no reply can earn anything, and where there is no reply.

    Args:
        task: the task.
        score: of the generators in the last reply.
        messages: what was said; of several prompts the first counts.
    """
    prompt = next((message.content for message in messages if message.role == "prompt"), "")
    reply = next((message for message in reversed(messages) if message.role == "reply"), None)
    if reply is None or score.score is None:
        return None
    group = prompt_hash(task.digest, prompt)
    return {
        "messages": _chat([("user", prompt), ("assistant", reply.content)]),
        "tests": len(score.tests),
        "admitted": sum(test.admitted for test in score.tests),
        "counted": len(score.counted),
        "rejected": len(score.rejected),
        **_tester_columns(prompt_hash(group, reply.content), "mutants", "", task, group, reply),
        "reward": score.score,
    }


def _tester_columns(row: str, source: str, run: str, task: Task, group: str, reply: Message) -> Row:
    """Columns that every row has, for a Tester's reply: no candidate was evaluated."""
    judged = ("reward", "verdict", "stage", "lane", "speedup", "predicted_speedup", "device", "evaluator", "evaluation")
    return {
        "id": row,
        "source": source,
        "run": run,
        "task": task.name,
        "task_digest": task.digest,
        "group": group,
        **dict.fromkeys(judged),
        "written_by": reply.provider,
        "reasoning": reply.reasoning,
        "reasoning_tokens": _reasoning(reply.reasoning, reply.usage)["reasoning_tokens"],
        "licence": task.license,
    }


def groups(samples: Sequence[Sample]) -> Iterator[list[Sample]]:
    """Samples by group, in the order of their first."""
    by_group: dict[str, list[Sample]] = {}
    for sample in samples:
        by_group.setdefault(sample.group, []).append(sample)
    yield from by_group.values()


def columns(sample: Sample) -> Row:
    """Columns that every row has: where it is from, and how it was evaluated."""
    evaluation, performance = sample.evaluation, sample.evaluation.performance
    predicted = None if performance is None else performance.predicted
    return {
        "id": sample.id,
        "source": sample.source,
        "run": sample.run,
        "task": sample.task,
        "task_digest": evaluation.task,
        "group": sample.group,
        "reward": sample.reward,
        "verdict": evaluation.outcome,
        "stage": evaluation.stage,
        "lane": evaluation.lane,
        "speedup": None if performance is None else performance.speedup,
        "predicted_speedup": None if predicted is None else predicted.speedup,
        "device": evaluation.fingerprint.device,
        "evaluator": evaluation.fingerprint.evaluator,
        "evaluation": sample.shared_key,
        "written_by": sample.written_by,
        "reasoning": sample.reasoning,
        "reasoning_tokens": sample.reasoning_tokens,
        "licence": sample.licence,
    }


# Duplicates and contamination


def normalised(source: str) -> str:
    """A source without comments, preprocessor spacing and layout: equal for texts that differ in these alone."""
    return " ".join(tokens(source))


def tokens(source: str) -> list[str]:
    """Words, numbers and signs of C or Python code, without comments."""
    return _TOKEN.findall(_COMMENT.sub(" ", plain_text(source)))


_COMMENT = re.compile(
    r"/\*.*?\*/|//[^\n]*|(?m:^\s*#(?!\s*(?:include|define|if|else|elif|endif|pragma|undef))[^\n]*)", re.S
)
_TOKEN = re.compile(r"\w+|[^\w\s]")


def shingles(source: str) -> frozenset[int]:
    """Hashes of every run of :data:`SHINGLE` tokens."""
    words = tokens(source)
    runs = (" ".join(words[start : start + SHINGLE]) for start in range(max(len(words) - SHINGLE + 1, 1)))
    return frozenset(int(hashlib.blake2b(run.encode(), digest_size=8).hexdigest(), 16) for run in runs)


def likeness(first: frozenset[int], second: frozenset[int]) -> float:
    """Jaccard index of two sets of shingles."""
    return len(first & second) / len(first | second) if first or second else 1.0


def distinct(samples: Iterable[Sample], near: float, *, by_bleu: bool = False) -> list[Sample]:
    """Samples without those whose candidate repeats an earlier one of their task and their group.

    A candidate repeats another if its normalised source or its PTX is equal, or if their texts are at least ``near``
    alike; a right one never repeats a wrong one, whose plan may be the difference. What holds no candidate is kept.

    Args:
        by_bleu: texts are as alike as the BLEU of their tokens says, names apart, not their shingles.
    """
    kept: list[Sample] = []
    seen: defaultdict[tuple[str, str, bool], _Kept] = defaultdict(_Kept)
    for sample in samples:
        if sample.candidate is None:
            kept.append(sample)
            continue
        build = sample.evaluation.build
        own = {normalised(sample.candidate), *(() if build is None or build.ptx_hash is None else (build.ptx_hash,))}
        others = seen[sample.task, sample.group, sample.correct]
        if not own.isdisjoint(others.equal):
            continue
        if by_bleu:
            language = language_of(sample.candidate) if sample.evaluation.lane == "plan" else None
            text = Ngrams.of(blind_source(sample.candidate, language)[0])
            if others.texts.bleu(text, near):
                continue
            others.texts.add(text)
        else:
            parts = shingles(sample.candidate)
            if any(likeness(parts, other) >= near for other in others.shingles):
                continue
            others.shingles.append(parts)
        others.equal |= own
        kept.append(sample)
    return kept


class _Kept:
    """Candidates of one task and group that are kept."""

    def __init__(self) -> None:
        self.equal: set[str] = set()
        """Normalised sources, and hashes of PTX."""
        self.shingles: list[frozenset[int]] = []
        self.texts = EarlierTexts()


def counted_once(samples: Iterable[Sample], *, by_group: bool = False) -> list[Sample]:
    """Samples without those that an evaluation of an earlier one decided, since their candidates are equal but for
    names, even in another prompt. What holds no candidate is kept.

    Args:
        by_group: leave out only what repeats a sample of its own group.
    """
    kept: list[Sample] = []
    seen: set[tuple[str, str, str]] = set()
    for sample in samples:
        # One candidate may have an INFRA before its result.
        name = (sample.shared_key, sample.evaluation.outcome, sample.group if by_group else "")
        if sample.candidate is None or name not in seen:
            kept.append(sample)
        seen.add(name)
    return kept


def with_licences(samples: Iterable[Sample], tasks: Mapping[str, Task]) -> list[Sample]:
    """Samples with the licences of their tasks.

    Args:
        tasks: by digest, as far as they are stored.
    """
    licences = {digest: task.license or None for digest, task in tasks.items()}
    return [replace(sample, licence=licences.get(sample.evaluation.task)) for sample in samples]


def uncontaminated(
    samples: Iterable[Sample], references: Mapping[str, str], excluded: Iterable[Task], near: float
) -> list[Sample]:
    """Samples whose task is none of the excluded ones, and whose reference is not ``near`` alike any of theirs.

    Args:
        references: source of each sample's task by its digest, where it is stored.
    """
    tasks = list(excluded)
    digests = {task.digest for task in tasks}
    parts = [shingles(task.source) for task in tasks]

    def is_excluded(digest: str) -> bool:
        if digest in digests:
            return True
        if digest not in references:
            return False
        own = shingles(references[digest])
        return any(likeness(own, other) >= near for other in parts)

    of_digest: dict[str, bool] = {}
    kept = []
    for sample in samples:
        digest = sample.evaluation.task
        if digest not in of_digest:
            of_digest[digest] = is_excluded(digest)
        if not of_digest[digest]:
            kept.append(sample)
    return kept


def split(samples: Iterable[Sample], share: float) -> dict[str, list[Sample]]:
    """Samples for training and for validation: all of a task go to one of them, by a hash of its digest.

    Args:
        share: of tasks that go to validation, about.
    """
    parts: dict[str, list[Sample]] = {"train": [], "validation": []}
    for sample in samples:
        position = int(prompt_hash("split", sample.evaluation.task), 16) / 16**16
        parts["validation" if position < share else "train"].append(sample)
    return parts


def with_dialogue(turns: Sequence[Sample], system: str = "") -> list[Sample]:
    """Turns of one session, each with the earlier ones before it, and the system part of the first prompt apart."""
    history: list[tuple[str, str]] = []
    made = []
    for number, sample in enumerate(turns, 1):
        [(_, text)] = sample.messages
        if number == 1 and system and text.startswith(system):
            history += [("system", system), ("user", text[len(system) :].strip())]
        else:
            history.append(("user", text))
        made.append(
            replace(sample, messages=tuple(history), turn=number, group=prompt_hash(sample.task, *map(str, history)))
        )
        history.append(("assistant", sample.completion))
    return made


def _chat(messages: Iterable[tuple[str, str]]) -> list[dict[str, str]]:
    return [{"role": role, "content": content} for role, content in messages]


def _reply(sample: Sample) -> dict[str, str]:
    return {"role": "assistant", "content": sample.completion}


def thinking(reasoning: str | None, completion: str) -> str:
    """A completion after its reasoning between tags, as chat templates of reasoning models have it."""
    return completion if reasoning is None else f"<think>\n{reasoning}\n</think>\n\n{completion}"


def with_reasoning(samples: Iterable[Sample], form: str) -> list[Sample]:
    """Samples with their reasoning where a form wants it.

    Args:
        form: ``column``, there alone; ``think``, also in the completion, between tags; ``off``, nowhere.
    """
    if form == "off":
        return [replace(sample, reasoning=None, reasoning_tokens=None) for sample in samples]
    if form == "think":
        return [replace(sample, completion=thinking(sample.reasoning, sample.completion)) for sample in samples]
    return list(samples)


def prompt_hash(*texts: str) -> str:
    """A short hash of some texts, such as a task and its prompt, by which samples are grouped."""
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:16]
