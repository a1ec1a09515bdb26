"""Parse a Coder's reply: the last CUDA or Triton block and the last plan block are the candidate.

Tolerated: prose anywhere, several drafts (the last complete block of each kind counts, so a later correction of one
of the two is enough), labels in any case or none at all, fences of backticks or tildes, indented fences, thinking
between ``<think>`` tags that start a line. Errors name everything that is missing, with the line of the reply.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Literal, NamedTuple

from kernelforge.candidate.plan import plan_as_chosen
from kernelforge.errors import CandidateError
from kernelforge.records.task import MAX_PLAN_BYTES, MAX_SOURCE_BYTES, Candidate, LanguageChoice, language_of

MAX_REPLY_CHARS = 2 << 20
_MAX_BLOCKS = 2_000
"""Code blocks of a reply: more are no answer, and take long to parse."""
_MAX_EXCERPT = 300
"""Characters that the verdict quotes of a reply without code."""

Kind = Literal["cuda", "triton", "plan"]

_LABELS: dict[str, Kind] = {
    **dict.fromkeys(("cuda", "cu", "cpp", "c++", "c", "cc", "cxx", "cuda-c++", "cuda-cpp", "cuda_cpp"), "cuda"),
    "triton": "triton",
    **dict.fromkeys(("python", "python3", "py", "plan"), "plan"),
}
_NAMES: dict[Kind, str] = {
    "cuda": "```cuda block with the device source",
    "triton": "```triton block with the device source",
    "plan": "```python block with the launch plan",
}
_FENCE = re.compile(r"([ \t]*)(`{3,}|~{3,})[ \t]*([^\n]*)")
_THOUGHT = re.compile(r"^[ \t]*<(think|thinking|reasoning)>.*?(?:</\1>|\Z)", re.DOTALL | re.IGNORECASE | re.MULTILINE)
_THOUGHT_END = re.compile(r"</(?:think|thinking|reasoning)>[ \t\r]*$", re.IGNORECASE | re.MULTILINE)
_TAG = re.compile(r"^[ \t]*</?(?:think|thinking|reasoning)>|</?(?:think|thinking|reasoning)>[ \t\r]*$", re.I | re.M)
_FORWARD = re.compile(r"^[ \t]*def[ \t]+forward\b", re.MULTILINE)
_PLAN = re.compile(r"^def[ \t]+forward\b", re.MULTILINE)
_MODEL_NEW = re.compile(r"^class[ \t]+ModelNew\b", re.MULTILINE)


@dataclass(frozen=True)
class _Block:
    line: int
    """1-based line of the opening fence."""
    kind: Kind | None
    text: str
    closed: bool
    label: str = ""


class CodeBlock(NamedTuple):
    """A fenced block of a reply."""

    label: str
    """Its language in lower case, as the reply spells it; empty where it names none."""
    text: str


def parse_reply(text: str, language: LanguageChoice = "any") -> Candidate:
    """Read the candidate, in the language asked for, out of a reply.

    Raises:
        CandidateError: nothing usable; the message names the missing part and its line.
    """
    blocks = _blocks_of(text)
    if len(blocks) > _MAX_BLOCKS:
        raise CandidateError(f"the reply has more than {_MAX_BLOCKS:,} code blocks; it needs two")
    _refuse_unclosed(blocks)
    source, plan = _last(blocks, "cuda", "triton"), _last(blocks, "plan")
    if source is None and plan is None:
        raise CandidateError(
            f"the reply holds no code{_excerpt(text)}; it needs a {_NAMES['cuda']} and a {_NAMES['plan']}, "
            "each closed by ```"
        )
    if source is None or plan is None:
        missing: Kind = "cuda" if source is None else "plan"
        present = plan if source is None else source
        assert present is not None
        hint = _hint(missing, present)
        raise CandidateError(f"the reply has no {_NAMES[missing]}; its only code starts on line {present.line}{hint}")
    if language not in ("any", source.kind):
        message = f"the source on line {source.line} is a {source.kind} block; here it has to be a {language} block"
        raise CandidateError(message, line=source.line)
    _check(source, "source", MAX_SOURCE_BYTES)
    _check(plan, "plan", MAX_PLAN_BYTES)
    if source.kind == "triton" and language_of(source.text) != "triton":
        message = f"the Triton block on line {source.line} defines no function under @triton.jit"
        raise CandidateError(message, line=source.line)
    if source.kind == "cuda" and "__global__" not in source.text:
        raise CandidateError(f"the CUDA block on line {source.line} defines no __global__ kernel", line=source.line)
    if not _FORWARD.search(plan.text):
        hint = _hint("plan", plan)
        raise CandidateError(f"the plan on line {plan.line} has no 'def forward(...)'{hint}", line=plan.line)
    return Candidate(source=source.text, plan=plan.text)


def model_new_in(text: str) -> str | None:
    """The Python file with a class ``ModelNew`` that a reply answers with, as KernelBench asks for: in its last block
    with such a class or a launch plan. A reply without any block may be the file itself. None if there is none."""
    if "ModelNew" not in text or len(text) > MAX_REPLY_CHARS:
        return None
    answer = _without_thoughts(_with_newlines(text))
    blocks = list(islice(_blocks(answer), _MAX_BLOCKS + 1))
    answers = [block.text for block in blocks if block.closed and (_MODEL_NEW.search(block.text) or _is_plan(block))]
    last = answers[-1] if answers else answer if not blocks else ""
    return last if _MODEL_NEW.search(last) else None


def c_function_in(text: str, name: str) -> Candidate:
    """Read a C file with a function of this name out of a reply: the last block of C in which it is called so.

    Raises:
        CandidateError: there is none; the message says what is missing, with the line.
    """
    blocks = _blocks_of(text)
    _refuse_unclosed(blocks)
    called = re.compile(rf"\b{re.escape(name)}\s*\(")
    answers = [block for block in blocks if block.kind != "plan" and called.search(block.text)]
    if not answers:
        raise CandidateError(f"the reply has no ```c block that defines `{name}`{'' if blocks else _excerpt(text)}")
    _check(answers[-1], "source", MAX_SOURCE_BYTES)
    if "__global__" in answers[-1].text:
        line = answers[-1].line
        raise CandidateError(f"the block on line {line} is CUDA; write a C function that runs on the CPU", line=line)
    return Candidate(source=answers[-1].text, plan="", lane="c")


def code_blocks(text: str) -> list[CodeBlock]:
    """Every fenced block of a reply, in order, thinking left out; one that is never closed ends with the reply.

    Raises:
        CandidateError: the reply is too long, or has too many blocks.
    """
    blocks = _blocks_of(text)
    if len(blocks) > _MAX_BLOCKS:
        raise CandidateError(f"the reply has more than {_MAX_BLOCKS:,} code blocks")
    return [CodeBlock(block.label, block.text) for block in blocks]


def _is_plan(block: _Block) -> bool:
    return block.kind == "plan" and _PLAN.search(block.text) is not None


def format_reply(candidate: Candidate, prose: str = "") -> str:
    """Write a candidate as a reply that :func:`parse_reply` reads back: same source, same plan.

    A reply holds no choices of tunables, so the plan gets the chosen values first on its ``# tune:`` lines: the
    candidate that is read back has another hash then, and the same behaviour. ``prose`` goes first, without fences.
    """
    parts = [prose.strip()] if prose.strip() else []
    for label, code in ((candidate.language or "python", candidate.source), ("python", plan_as_chosen(candidate))):
        runs = [len(run) for run in re.findall(r"`{3,}", code)]
        fence = "`" * max([3, *(run + 1 for run in runs)])
        parts.append(f"{fence}{label}\n{code}\n{fence}")
    return "\n\n".join(parts) + "\n"


def split_reasoning(text: str) -> tuple[str, str]:
    """The thinking in a reply, and the reply without it. Some models send only the closing tag, as their template
    opens it: all before it is thinking."""
    thoughts: list[str] = []

    def take(match: re.Match[str]) -> str:
        thoughts.append(_TAG.sub("", match.group()).strip())
        return ""

    answer = _THOUGHT.sub(take, text)
    ends = list(_THOUGHT_END.finditer(answer))
    if ends:
        thoughts.insert(0, _TAG.sub("", answer[: ends[-1].end()]).strip())
        answer = answer[ends[-1].end() :]
    return "\n\n".join(filter(None, thoughts)), answer.lstrip("\r\n") if len(answer) < len(text) else text


def _without_thoughts(text: str) -> str:
    """Blank out thinking, line numbers kept."""

    def blank(match: re.Match[str]) -> str:
        return "\n" * match.group().count("\n")

    text = _THOUGHT.sub(blank, text)
    ends = list(_THOUGHT_END.finditer(text))
    return "\n" * text.count("\n", 0, ends[-1].end()) + text[ends[-1].end() :] if ends else text


def _blocks_of(text: str) -> list[_Block]:
    """Fenced blocks of a reply, thinking left out: at most one more than a reply may have.

    Raises:
        CandidateError: the reply is too long.
    """
    if len(text) > MAX_REPLY_CHARS:
        raise CandidateError(f"the reply has {len(text):,} characters; the limit is {MAX_REPLY_CHARS:,}")
    return list(islice(_blocks(_without_thoughts(_with_newlines(text))), _MAX_BLOCKS + 1))


def _with_newlines(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _blocks(text: str) -> Iterator[_Block]:
    lines = text.split("\n")
    position = 0
    while position < len(lines):
        opening = _opening(lines[position])
        if opening is None:
            position += 1
            continue
        end, closed = _closing(lines, position + 1, opening)
        indent, label = len(opening.group(1)), _label(opening)
        body = "\n".join(_dedent(line, indent) for line in lines[position + 1 : end])
        yield _Block(position + 1, _kind(label, body), body, closed, label)
        position = end + (1 if closed else 0)


def _opening(line: str) -> re.Match[str] | None:
    if "```" not in line and "~~~" not in line:  # most lines; a reply may have a hundred thousand of them
        return None
    match = _FENCE.fullmatch(line)
    # Backticks in the info string make it inline code (CommonMark, section 4.5).
    return None if match is None or "`" in match.group(3) else match


def _label(opening: re.Match[str]) -> str:
    words = re.split(r"[\s{}:,]+", opening.group(3).strip().lower().lstrip("{.:"))
    return words[0]


def _closing(lines: list[str], start: int, opening: re.Match[str]) -> tuple[int, bool]:
    """Index where a block ends, and whether a fence ends it. A labelled opening of our two kinds ends it unclosed."""
    fence = opening.group(2)
    for position in range(start, len(lines)):
        match = _opening(lines[position])
        if match is None or match.group(2)[0] != fence[0] or len(match.group(2)) < len(fence):
            continue
        if not match.group(3).strip():
            return position, True
        if _label(match) in _LABELS:
            return position, False
    return len(lines), False


def _dedent(line: str, indent: int) -> str:
    return line[min(indent, len(line) - len(line.lstrip(" \t"))) :] if indent else line


def _kind(label: str, body: str) -> Kind | None:
    kind = _LABELS.get(label) or (_guess(body) if not label else None)
    # Kernels in Triton are often labelled as the Python that they are.
    return "triton" if kind == "plan" and language_of(body) == "triton" else kind


def _guess(body: str) -> Kind | None:
    """Kind of a block without a label."""
    if "__global__" in body:
        return "cuda"
    return "plan" if _FORWARD.search(body) or language_of(body) == "triton" else None


def _refuse_unclosed(blocks: list[_Block]) -> None:
    for block in blocks:
        if not block.closed and block.kind is not None:
            raise CandidateError(
                f"the code block that opens on line {block.line} is never closed: end it with ``` on a line of its own",
                line=block.line,
            )


def _last(blocks: list[_Block], *kinds: Kind) -> _Block | None:
    """The last complete block of one of these kinds, or else the last one, so that its fault can be named."""
    same_kind = [block for block in blocks if block.kind in kinds]
    complete = [block for block in same_kind if _is_complete(block)]
    return next(reversed(complete or same_kind), None)


def _is_complete(block: _Block) -> bool:
    if block.kind == "cuda":
        return "__global__" in block.text
    if block.kind == "triton":
        return language_of(block.text) == "triton"
    return _FORWARD.search(block.text) is not None


def _hint(missing: Kind, present: _Block) -> str:
    if "class ModelNew" in present.text or "load_inline" in present.text:
        return "; send device source and a launch plan, not a ModelNew class"
    if missing == "cuda" and "__global__" in present.text:
        return "; the kernel belongs into a block of its own, not into the plan"
    return ""


def _excerpt(text: str) -> str:
    """The text of a reply without code, shortened: a refusal states its reason there."""
    words = _without_thoughts(text).encode(errors="replace").decode().split(maxsplit=80)[:80]
    if not words:
        return ", it is empty"
    excerpt = " ".join(words)
    return f", it says: {excerpt[:_MAX_EXCERPT] + '…' if len(excerpt) > _MAX_EXCERPT else excerpt.rstrip('.')}"


def _check(block: _Block, what: str, limit: int) -> None:
    if not block.text.strip():
        raise CandidateError(f"the {what} block on line {block.line} is empty", line=block.line)
    try:
        size = len(block.text.encode())
    except UnicodeEncodeError:
        raise CandidateError(
            f"the {what} on line {block.line} holds half of a surrogate pair", line=block.line
        ) from None
    if size > limit:
        raise CandidateError(
            f"the {what} on line {block.line} has {size:,} bytes; the limit is {limit:,}", line=block.line
        )
    if "\0" in block.text:
        raise CandidateError(f"the {what} on line {block.line} holds a NUL character", line=block.line)
