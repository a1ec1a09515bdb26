"""Prompts of a task: selection of their kind, and rendering from the templates in ``prompts/``.

Every prompt begins with a preamble that is the same for all calls of that agent on the task, so that a provider can
cache it: role, language, device, precision, task and sizes. Then comes what varies. Text that others wrote (tasks,
candidates, compiler messages, findings, lessons) is always fenced, by a fence longer than any inside it, and
introduced as data.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from kernelforge.agents.base import CoderRequest, JudgeRequest, TaskContext
from kernelforge.agents.diagnosis.diagnose import Note, diagnose, notes_for
from kernelforge.agents.prompting.attempts import history_text
from kernelforge.agents.prompting.render import launch_plan_page, page_sections, render
from kernelforge.agents.prompting.text import fenced, inline
from kernelforge.errors import CandidateError
from kernelforge.llm.base import Prompt
from kernelforge.records import AgentName, Attempt, Operator, Verdict
from kernelforge.search.base import ProfileVisibility

__all__ = [
    "PROMPTS",
    "PromptKind",
    "check_three_parts",
    "coder_prompt",
    "coder_prompt_name",
    "fenced",
    "inline",
    "judge_prompt",
    "launch_plan_page",
    "reflexion_prompt",
    "requested_sections",
    "tester_prompt",
]


class PromptKind(NamedTuple):
    agent: AgentName
    summary: str


PROMPTS: dict[str, PromptKind] = {
    "seed": PromptKind("coder", "a first candidate"),
    "repair": PromptKind("coder", "repair a candidate that failed"),
    "optimise": PromptKind("coder", "make the one change that the Judge names"),
    "contrast": PromptKind("coder", "write a new candidate from scored examples, in three parts (CUDA-L1, CUDA-L2)"),
    "fsr": PromptKind("coder", "write a new candidate from the fastest correct or from a failed one (CUDA-LLM)"),
    "crossover": PromptKind("coder", "join the strengths of two candidates"),
    "judge-repair": PromptKind("judge", "name the one issue to fix (CudaForge)"),
    "judge-optimise": PromptKind("judge", "name the one bottleneck to remove (CudaForge)"),
    "reflexion": PromptKind("reflexion", "draw lessons for later tasks from a task's attempts (KernelAgent)"),
    "tester": PromptKind("tester", "propose further test inputs as restricted plans (MuSL)"),
}
"""Every prompt by name: who is asked, and for what."""

REFLEXION_ATTEMPTS = 24
"""Latest attempts that a reflexion is shown."""
REFLEXION_CHARS = 16_000

THREE_PARTS = ("Performance Analysis", "Algorithm Design", "Code Implementation")
"""The parts of a reply to ``contrast``, in order (CUDA-L1, section on contrastive reinforcement learning)."""


def coder_prompt_name(request: CoderRequest) -> str:
    """Name of the prompt for a request: that of its operator, or a simpler one where it lacks what that one shows."""
    operator = request.operator
    if operator is Operator.CROSSOVER and _partner(request) is None:
        operator = Operator.OPTIMISE
    if operator is Operator.CONTRAST and not _exemplars(request):
        operator = Operator.SEED
    if operator in (Operator.REPAIR, Operator.OPTIMISE, Operator.CROSSOVER) and not _has_code(request.parent):
        operator = Operator.SEED
    return operator.value


def coder_prompt(request: CoderRequest, *, asks: bool = True, dialogue: bool = False) -> Prompt:
    """The prompt of a Coder for a proposal.

    Args:
        asks: whether the Coder can ask for sections of the launch plan's page (see :func:`requested_sections`).
        dialogue: whether the request continues a dialogue that has the parent as a reply: it names the turn, and does
            not repeat the code.
    """
    return render(
        coder_prompt_name(request),
        "coder",
        request.brief,
        parent=request.parent,
        finding=request.finding,
        history=tuple(request.history),
        best=request.best,
        exemplars=_exemplars(request),
        partner=_partner(request),
        technique=request.technique,
        sample=request.sample,
        sight=request.sight,
        asks=asks,
        dialogue=dialogue,
    )


def requested_sections(text: str, brief: TaskContext) -> str:
    """The sections of the launch plan's page that a reply asks for, fenced; empty where it asks for none.

    A reply asks by lines ``page: SECTION`` and by nothing else, so that no candidate is taken for a request.
    """
    lines = [line.strip() for line in text.strip().splitlines() if line.strip()]
    titles = [match[1] for line in lines[:_MOST_SECTIONS] if (match := _ASKED.fullmatch(line))]
    if not titles or len(titles) != len(lines):
        return ""
    sections = page_sections(brief)
    names = {name.casefold(): name for name in sections}
    parts, unknown = [], []
    for title in dict.fromkeys(title.casefold() for title in titles):
        if title in names:
            parts.append(f"## {names[title]}\n\n{sections[names[title]]}")
        else:
            unknown.append(inline(title, 60))
    if unknown:
        parts.append(f"There is no section {', '.join(unknown)}; there are {', '.join(sections)}.")
    return fenced("\n\n".join(parts), "markdown")


_MOST_SECTIONS = 16
_ASKED = re.compile(r"page: ?([^`]{1,80}?)\.?")


def judge_prompt(request: JudgeRequest) -> Prompt:
    """The prompt of a Judge: ``judge-optimise`` for a correct parent, ``judge-repair`` for a failed one."""
    correct = request.parent.evaluation.verdict is Verdict.OK
    return render(
        "judge-optimise" if correct else "judge-repair",
        "judge",
        request.brief,
        parent=request.parent,
        history=tuple(request.history),
        best=request.best,
        rank=request.rank,
        sight=request.sight,
        notes=_notes(request),
    )


def reflexion_prompt(brief: TaskContext, history: Sequence[Attempt], families: Sequence[str]) -> Prompt:
    """The prompt after a task has ended, for at most three lessons, each for one of the operator ``families``.

    The questions are those of KernelAgent's reflexion: was the diagnosis right, was the fix effective, what to avoid.
    """
    return render(
        "reflexion",
        "reflexion",
        brief,
        history=tuple(history),
        attempts=history_text(history, ProfileVisibility("full"), REFLEXION_CHARS, detailed=REFLEXION_ATTEMPTS),
        families=tuple(families),
    )


def tester_prompt(brief: TaskContext, language_page: str) -> Prompt:
    """The prompt of a Tester: the task, and the language of input plans in which it proposes further test inputs."""
    return render("tester", "tester", brief, language=language_page)


def check_three_parts(text: str) -> None:
    """See that a reply has the three parts that ``contrast`` asks for, in order, none of them empty.

    Headings are lines of their own outside of fenced blocks, with or without ``#``, number, emphasis and colon.

    Raises:
        CandidateError: a part is missing, empty or out of order; the message names it.
    """
    headings: list[tuple[str, int]] = []
    lines = text.splitlines()
    fence = ""
    for at, line in enumerate(lines):
        mark = _FENCE.match(line)
        if mark is not None:
            if not fence:
                fence = mark[1]
            elif mark[1].startswith(fence) and not mark[2].strip():
                fence = ""
        elif not fence and len(line) < 200:
            heading = _HEADING.sub("", line).rstrip(" *_:").casefold()
            headings += [(part, at) for part in THREE_PARTS if part.casefold() == heading]
    names = [name for name, _ in headings]
    if names != list(THREE_PARTS):
        missing = [part for part in THREE_PARTS if part not in names]
        what = f"{missing[0]!r} is missing" if missing else f"it has {', '.join(names[:6])}"
        expected = ", ".join(f"'## {part}'" for part in THREE_PARTS)
        raise CandidateError(
            f"the reply needs three parts, each once, under the headings {expected}, in this order; {what}"
        )
    ends = [at for _, at in headings[1:]] + [len(lines)]
    for (name, start), end in zip(headings, ends, strict=True):
        if not any(line.strip() for line in lines[start + 1 : end]):
            raise CandidateError(f"the part {name!r} of the reply is empty")


_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})(.*)")
_HEADING = re.compile(r"^[ #]*(?:\d{1,2}[.)] *)?[*_ ]*")


def _notes(request: JudgeRequest) -> tuple[Note, ...]:
    """Notes about what the profile suggests; none for a Judge that may not see the profile."""
    profile = request.parent.profile
    if profile is None or request.sight.metrics == "none":
        return ()
    sizes = {item.size: item for item in request.brief.facts.sizes}
    diagnoses = diagnose(profile, request.parent.evaluation.build, sizes.get(profile.size), request.brief.spec)
    bottlenecks = [item.bottleneck for item in diagnoses[request.rank - 1 :]]
    graph = request.brief.graph
    dtypes = {node.spec.dtype for node in graph.nodes if node.kind in ("input", "weight") and node.spec is not None}
    return notes_for(bottlenecks, graph.families, request.brief.spec, dtypes)


def _has_code(attempt: Attempt | None) -> bool:
    return attempt is not None and attempt.candidate is not None


def _exemplars(request: CoderRequest) -> tuple[Attempt, ...]:
    """Scored examples: the inspirations, after the parent where they are fewer than two."""
    examples = list(request.inspirations)
    if (
        len(examples) < 2
        and request.parent is not None
        and request.parent.id not in {example.id for example in examples}
    ):
        examples.insert(0, request.parent)
    return tuple(example for example in examples if _has_code(example))


def _partner(request: CoderRequest) -> Attempt | None:
    """The second parent of a crossover."""
    return next(
        (example for example in request.inspirations if _has_code(example) and example is not request.parent), None
    )
