"""Kernels that a search is started from: read from a file, a text, or an attempt of another run.

A file is a reply with two fenced blocks, CUDA C++ or Triton with a launch plan, CUDA C++ with the host function of a
``load_inline`` extension, or a class ``ModelNew``; the last two are converted. What can be read as device code and a
plan is a start, right or wrong: the run evaluates it, and a wrong one is shown to the Coder with its verdict.
"""

from __future__ import annotations

import ast
import hashlib
import re
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from textwrap import dedent
from typing import NamedTuple

from pydantic import ValidationError

from kernelforge.candidate import parse_reply
from kernelforge.candidate.reply import model_new_in
from kernelforge.errors import CandidateError, StoreError, UsageError
from kernelforge.modelnew.convert import convert
from kernelforge.modelnew.convert.host_launcher import launcher_class, with_weights_after_inputs
from kernelforge.records import Candidate, SizeFacts, Start, StartOrigin, Task, first_fault
from kernelforge.records.task import language_of
from kernelforge.store import DATABASE_NAME, Store
from kernelforge.store.references import resolve, the_attempt
from kernelforge.utils.text_files import read_text

MAX_FILE_BYTES = 1 << 20
KINDS = (
    "a reply with two fenced blocks, CUDA C++ or Triton with a launch plan, CUDA C++ with the host function of a "
    "load_inline extension, or a Python file with a class ModelNew"
)
"""What a start may be, in words."""

_NAMED = 8
"""Most tasks named in an error."""
_FORWARD = re.compile(r"^[ \t]*def[ \t]+forward\b", re.MULTILINE)
_PLAN_COMMENT = re.compile(r"/\*(?:[ \t]*plan\b:?)?([^*]*+(?:\*(?!/)[^*]*+)*)\*/")
_MODEL_NEW = re.compile(r"^class[ \t]+ModelNew\b", re.MULTILINE)
_TUNE = re.compile(r"#[ \t]*tune[ \t]*:")


class _Read(NamedTuple):
    """A start without its task and origin."""

    candidate: Candidate
    converted: str = ""
    """Text that it was converted from."""


def start_from_file(task: str, path: Path) -> Start:
    """The kernel of a file as the start of a task.

    A launch plan of CUDA C++ or Triton stands in a file next to it (``NAME.plan.py``, of a ``.cu`` file also
    ``NAME.py``), or in the same file: in a block comment of CUDA C++, as ``def forward`` of Triton.

    Raises:
        UsageError: it cannot be read, or is not :data:`KINDS`; one sentence says why.
    """
    text = read_text(path, MAX_FILE_BYTES, what="the start", hint=f"name {KINDS}")
    names = [path.with_suffix(".plan.py"), *([] if path.suffix == ".py" else [path.with_suffix(".py")])]
    plan_file = next((name for name in names if name.is_file() and not _is_reply(text)), None)
    plan = None if plan_file is None else read_text(plan_file, MAX_FILE_BYTES, what="the launch plan")
    try:
        read = _read(text, plan, str(names[0]))
    except CandidateError as error:
        raise UsageError(f"cannot start from {path}: {error}") from error
    digest = hashlib.sha256("\0".join([text, *([] if plan is None else [plan])]).encode()).hexdigest()
    origin = StartOrigin(file=path.name, digest=digest, converted=bool(read.converted))
    return Start(task=task, origin=origin, candidate=read.candidate, model_new=read.converted)


def start_from_text(task: str, text: str) -> Start:
    """The kernel in a text as the start of a task: what a file may hold, its plan included.

    Raises:
        UsageError: it is not :data:`KINDS`; one sentence says why.
    """
    try:
        digest = hashlib.sha256(text.encode()).hexdigest()
        if len(text) > MAX_FILE_BYTES:
            raise CandidateError(f"it is longer than {MAX_FILE_BYTES:,} characters")
        read = _read(text, None)
    except UnicodeEncodeError:
        raise UsageError("cannot start from this text: it holds half of a surrogate pair") from None
    except CandidateError as error:
        raise UsageError(f"cannot start from this text: {error}") from error
    origin = StartOrigin(digest=digest, converted=bool(read.converted))
    return Start(task=task, origin=origin, candidate=read.candidate, model_new=read.converted)


def start_from_candidate(task: str, candidate: Candidate) -> Start:
    """A candidate as the start of a task.

    Raises:
        UsageError: it is a class ``ModelNew`` that cannot be converted.
    """
    if candidate.lane == "modelnew":
        return start_from_text(task, candidate.source)
    return Start(task=task, origin=StartOrigin(digest=candidate.hash), candidate=candidate)


def start_from_attempt(task: str, reference: str, store: Store) -> Start:
    """The candidate of an attempt as the start of a task.

    Args:
        reference: ``RUN/TASK/NUMBER``, as ``kernelforge show`` takes it.

    Raises:
        UsageError: there is no such attempt, or its reply held no candidate.
    """
    named = resolve(store, reference)
    if named.task is None or named.number is None:
        raise UsageError(f"cannot start from {named}: name one attempt, as {reference.rstrip('/')}/NUMBER")
    attempt = the_attempt(store, named)
    if attempt.candidate is None:
        raise UsageError(f"cannot start from attempt {attempt.id}: its reply held no candidate")
    start = start_from_candidate(task, attempt.candidate)
    return start.model_copy(update={"origin": start.origin.model_copy(update={"attempt": attempt.id})})


def read_start(task: str, value: str | Path, results: Path) -> Start:
    """The start of a task by the path of a file or the reference of an attempt.

    Args:
        results: folder of the results database with the attempt.

    Raises:
        UsageError: it is neither, or cannot be read as a kernel.
    """
    path = Path(value)
    if isinstance(value, Path) or path.exists() or "/" not in value:
        return start_from_file(task, path)
    try:
        if not (results / DATABASE_NAME).is_file():
            raise UsageError(f"{results} holds no results")
        with closing(Store.open(results / DATABASE_NAME, create=False, read_only=True)) as store:
            return start_from_attempt(task, value, store)
    except (StoreError, UsageError) as error:
        if path.suffix:
            raise UsageError(f"there is no file {path} to start from, and no attempt of that name: {error}") from error
        raise


def read_starts(values: Sequence[str], tasks: Sequence[str], results: Path) -> tuple[Start, ...]:
    """The starts of a run's tasks.

    Args:
        values: ``TASK=FILE`` each, or ``FILE`` where the run has one task; an attempt in the place of a file.
        tasks: names of the run's tasks.
        results: folder of the results database with the attempts.

    Raises:
        UsageError: a task that is not of the run or has two starts, or as :func:`read_start`.
    """
    starts: dict[str, Start] = {}
    for value in values:
        name, equals, rest = value.partition("=")
        if equals and name in tasks:
            task, source = name, rest
        elif len(tasks) == 1 and (not equals or Path(value).exists()):
            task, source = tasks[0], value
        else:
            some = ", ".join(tasks[:_NAMED]) + (", ..." if len(tasks) > _NAMED else "")
            what = f"{name!r} is no task of this run" if equals else f"this run has {len(tasks)} tasks"
            raise UsageError(f"--from {value}: {what}; write TASK=FILE with one of {some}")
        if task in starts:
            raise UsageError(f"--from gives task {task!r} two starts; a search is started from one kernel")
        starts[task] = read_start(task, source, results)
    return tuple(starts.values())


def fitted_start(start: Start, task: Task, facts: SizeFacts) -> Candidate:
    """The candidate of a start; a converted one with the names that the task's reference has for weights.

    A host function takes the task's inputs, and where it has as many parameters more as the reference has weights (or
    parameters, without buffers), these in their order.

    Args:
        facts: facts of one of the task's sizes.
    """
    if not start.model_new:
        return start.candidate
    if not _MODEL_NEW.search(start.model_new):
        plan, inputs = start.candidate.plan, len(facts.inputs)
        for weights in (facts.weights, [weight for weight in facts.weights if weight.kind == "parameter"]):
            plan = with_weights_after_inputs(plan, inputs, tuple(weight.name for weight in weights))
        return start.candidate.model_copy(update={"plan": plan})
    conversion = replace(convert(start.model_new), candidate=start.candidate)
    return conversion.fitted(task.source, facts)


def _is_reply(text: str) -> bool:
    return re.search(r"^[ \t]*(```|~~~)", text, re.MULTILINE) is not None


def _read(text: str, plan: str | None, plan_file: str = "") -> _Read:
    """Device code and plan of a text.

    Args:
        plan: text of a plan that belongs to it.
        plan_file: where such a plan would stand, for the error.

    Raises:
        CandidateError: there is none; the message says why.
    """
    if not text.strip():
        raise CandidateError(f"it is empty; a start is {KINDS}")
    if _is_reply(text):
        model_new = model_new_in(text)
        return _Read(parse_reply(text)) if model_new is None else _converted(model_new)
    where = f", or into {plan_file}" if plan_file else ""
    if language_of(text) == "triton":
        if plan is None:
            text, plan = _split_python(text, where)
    elif _MODEL_NEW.search(text):
        return _converted(text)
    elif "__global__" not in text:
        raise CandidateError(f"it holds no kernel; a start is {KINDS}")
    elif plan is None:
        split = _split_comment(text)
        if split is None:
            return _converted_launcher(text, where)
        text, plan = split
    if not _FORWARD.search(plan):
        raise CandidateError("its launch plan has no 'def forward(...)'")
    try:
        return _Read(Candidate(source=text, plan=plan))
    except ValidationError as error:
        raise CandidateError(f"it is no candidate: {first_fault(error)}") from error


def _converted(text: str) -> _Read:
    conversion = convert(text)
    if conversion.candidate is None:
        first, *others = conversion.problems
        more = f", and {len(others)} more: see 'kernelforge convert'" if others else ""
        raise CandidateError(f"its class ModelNew cannot be converted to device code and a plan ({first}{more})")
    return _Read(conversion.candidate, text)


def _converted_launcher(text: str, where: str) -> _Read:
    """Device code and plan of CUDA C++ with the host function of a ``load_inline`` extension.

    Raises:
        CandidateError: there is no such function, or it cannot be converted.
    """
    try:
        name, model_new = launcher_class(text)
    except CandidateError as error:
        raise CandidateError(
            f"it has no launch plan, and none can be made because {error}: write 'def forward(...)' into a block "
            f"comment, /* ... */{where} (docs/launch-plan.md)"
        ) from error
    conversion = convert(model_new)
    if conversion.candidate is None:
        first, *others = conversion.problems
        why = first.why if first.construct == "class ModelNew" else str(first)
        more = f", and {len(others)} more" if others else ""
        raise CandidateError(f"its host function {name} cannot be converted to a launch plan ({why}{more})")
    return _Read(conversion.candidate, text)


def _split_comment(text: str) -> tuple[str, str] | None:
    """CUDA C++ without the block comment that is its launch plan, lines kept, and that plan; None if there is none."""
    for match in reversed(list(_PLAN_COMMENT.finditer(text))):
        if _FORWARD.search(match[1]):
            blank = "\n" * match[0].count("\n")
            return text[: match.start()] + blank + text[match.end() :], dedent(match[1]).strip("\n") + "\n"
    return None


def _split_python(text: str, where: str) -> tuple[str, str]:
    """Triton kernels, and the functions that are no kernels as the launch plan, with its ``# tune:`` lines.

    Raises:
        CandidateError: it is no Python, or has no ``def forward``.
    """
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise CandidateError(f"its Triton source is not Python: {error}") from error
    lines, plan_lines = text.split("\n"), set[int]()
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and not node.decorator_list:
            plan_lines.update(range(node.lineno - 1, node.end_lineno or node.lineno))
        elif isinstance(node, ast.ClassDef):
            raise CandidateError(f"line {node.lineno} has a class: Triton kernels start with a launch plan alone")
    plan_lines.update(number for number, line in enumerate(lines) if _TUNE.match(line))
    plan = "\n".join(line for number, line in enumerate(lines) if number in plan_lines)
    if not _FORWARD.search(plan):
        raise CandidateError(f"it has no launch plan: write 'def forward(...)' below its kernels{where}")
    source = "\n".join("" if number in plan_lines else line for number, line in enumerate(lines))
    return source.strip("\n") + "\n", plan + "\n"
