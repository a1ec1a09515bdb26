"""Published candidates, read from CUDA-L1's JSONL, KernelBench's run folders and the AI CUDA Engineer archive.

CUDA-L1's released kernels (arXiv 2507.14111) are ``optimized_cuda_code/*.json`` and ``codes/*.json``. The first kind is
JSON lines: ``level_id task_id ref_code custom_code cuda_graph_code cudnn_code`` and ``score_default score_cuda_graph
score_cudnn ...``. The second is one object ``{"1": [...], "2": [...]}`` by level, with ``task_id ref_code custom_code
score``. A missing text is null, empty, or the string ``None``.

KernelBench's run folders hold ``level_L_problem_P_sample_S_kernel.py`` files and ``eval_results.json``. The file of
results is ``{problem: [{"sample_id", "correctness", "runtime", ...}]}``, or one object per problem in runs of older
versions. References are not in a run folder: they come from a folder of KernelBench's own task files.

The archive (``SakanaAI/AI-CUDA-Engineer-Archive``) has a row for each kernel: ``CUDA_Code`` is a C++ extension whose
``forward`` takes the place of ``module_fn`` in ``PyTorch_Code_Functional``, whose ``Model`` takes such a function as
``fn``. ``PyTorch_Code_Module`` is the reference, ``Correct`` and ``CUDA_Speedup_Native`` are as published.
"""

from __future__ import annotations

import ast
import json
import math
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from kernelforge.errors import TaskError, UsageError
from kernelforge.records import Candidate, Size, Task
from kernelforge.tasks.constants import Scalar, byte_span, line_starts, parse_python, spliced, substitute
from kernelforge.tasks.files import parse_task_file
from kernelforge.tasks.loaders.reference_text import class_renaming
from kernelforge.tasks.loaders.rows import Taken, columns_of, data_files, distinct, rows_of, task_name
from kernelforge.utils.text_files import read_text


@dataclass(frozen=True)
class ImportedCandidate:
    """One published candidate."""

    name: str
    """``level1_problem9``; with a suffix for a variant: ``level1_problem9_cuda_graph``."""
    level: int
    problem: str
    """The problem's id in its level."""
    reference: str | None
    """Text of the task file; None if the data set lacks it (KernelBench's run folders)."""
    source: str
    """Text of the file with ``ModelNew``."""
    published_score: float | None
    """Published speedup, by the publisher's own protocol; not comparable with speedups measured here."""
    published_correct: bool | None
    origin: str
    """``FILE:LINE``, or the file."""

    @property
    def candidate(self) -> Candidate:
        """The candidate, of kind ``modelnew``.

        Raises:
            pydantic.ValidationError: it is larger than a candidate may be.
        """
        return Candidate(source=self.source, plan="", lane="modelnew")


@dataclass(frozen=True)
class UnreadableCandidate:
    """An item that is no usable candidate."""

    origin: str
    name: str
    reason: str


@dataclass(frozen=True)
class Import:
    """Content of a file or folder."""

    candidates: tuple[ImportedCandidate, ...]
    unread: tuple[UnreadableCandidate, ...]


def as_task(item: ImportedCandidate, small: Mapping[str, Scalar] | None = None) -> Task:
    """The reference as a task: ``full`` is the unchanged file, ``small`` has the given constants.

    Without constants, ``small`` is the unchanged file too; then evaluate the task at ``full`` only.

    Raises:
        TaskError: there is no reference, it is no task file, or it has no such constant.
    """
    if item.reference is None:
        raise TaskError(f"{item.name} comes without its reference; give the folder of KernelBench's task files")
    parse_task_file(item.reference, item.name)
    constants = dict(small or {})
    substitute(item.reference, constants)
    sizes = (Size(name="full"), Size(name="small", constants=constants))
    title = f"KernelBench level {item.level}, problem {item.problem}"
    return Task(name=item.name, suite="imported", title=title, level=item.level, source=item.reference, sizes=sizes)


MAX_FILE_BYTES = 256 << 20
_ID = re.compile("[0-9A-Za-z]{1,40}")

_VARIANTS = (("custom_code", "", "score_default"), ("cuda_graph_code", "_cuda_graph", "score_cuda_graph"),
             ("cudnn_code", "_cudnn", "score_cudnn"))  # fmt: skip


def read_cuda_l1(path: Path) -> Import:
    """Candidates of a file of either kind; unusable rows and texts are listed with the reason.

    A missing ``custom_code`` is listed; the other variants are optional.

    Raises:
        UsageError: the file cannot be read, is not text, or is over 256 MiB.
    """
    text = read_text(path, MAX_FILE_BYTES)
    candidates: list[ImportedCandidate] = []
    unread: list[UnreadableCandidate] = []
    taken: dict[str, str] = {}
    for origin, level, row in _rows(path.name, text, unread):
        row_candidates, missing = _row(origin, level, row)
        unread += missing
        for candidate in row_candidates:
            first = taken.setdefault(candidate.name, candidate.origin)
            if first == candidate.origin:
                candidates.append(candidate)
            else:
                unread.append(UnreadableCandidate(candidate.origin, candidate.name, f"{first} has this name already"))
    return Import(tuple(candidates), tuple(unread))


def _rows(name: str, text: str, unread: list[UnreadableCandidate]) -> Iterator[tuple[str, Any, Mapping[str, Any]]]:
    """(origin, level, row) of every object; other items go to ``unread``."""
    document = _object(text)
    if isinstance(document, dict) and document and all(isinstance(value, list) for value in document.values()):
        for level, rows in document.items():
            for position, row in enumerate(rows):
                origin = f"{name}:{level}[{position}]"
                if isinstance(row, dict):
                    yield origin, level, row
                else:
                    unread.append(UnreadableCandidate(origin, "", "not an object"))
        return
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        row = _object(line)
        if isinstance(row, dict):
            yield f"{name}:{number}", row.get("level_id"), row
        else:
            unread.append(UnreadableCandidate(f"{name}:{number}", "", "not a JSON object"))


def _object(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _row(origin: str, level: Any, row: Mapping[str, Any]) -> tuple[list[ImportedCandidate], list[UnreadableCandidate]]:
    number, problem = _number(level), row.get("task_id")
    if number is None or isinstance(problem, bool) or not _ID.fullmatch(str(problem)):
        reason = f"level {level!r:.40} and task_id {problem!r:.40} name no problem"
        return [], [UnreadableCandidate(origin, "", reason)]
    name = f"level{number}_problem{problem}".lower()
    for key in ("ref_code", *(key for key, _, _ in _VARIANTS)):
        if isinstance(row.get(key), str) and not writable(row[key]):
            return [], [UnreadableCandidate(origin, name, f"{key} holds half a surrogate pair, which no file can")]
    reference = _text(row.get("ref_code"))
    if reference is None:
        return [], [UnreadableCandidate(origin, name, "no ref_code")]
    candidates: list[ImportedCandidate] = []
    for key, suffix, score in _VARIANTS:
        source = _text(row.get(key))
        if source is None:
            continue
        published = row.get(score, row.get("score") if key == "custom_code" else None)
        candidates.append(
            ImportedCandidate(
                name + suffix, number, str(problem), reference, source, finite(published), None, f"{origin}:{key}"
            )
        )
    missing = (
        []
        if _text(row.get("custom_code"))
        else [UnreadableCandidate(origin, name, "no custom_code: it is null, empty or 'None'")]
    )
    return candidates, missing


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value.strip() not in ("", "None") else None


def writable(text: str) -> bool:
    """Whether a text can be encoded: JSON may hold half a surrogate pair."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _number(value: Any) -> int | None:
    return int(value) if not isinstance(value, bool) and re.fullmatch("[0-9]{1,4}", str(value)) else None


def finite(value: Any) -> float | None:
    """The value as a finite number, or None."""
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


_ARCHIVE = (
    "Level_ID", "Task_ID", "Kernel_Name", "CUDA_Code", "PyTorch_Code_Module", "PyTorch_Code_Functional", "Correct",
    "CUDA_Speedup_Native",
)  # fmt: skip
_EXTENSION = """{model}

from torch.utils.cpp_extension import load_inline

_extension = load_inline(name={name!r}, cpp_sources=[], cuda_sources=[{source!r}])
"""


def read_ai_cuda_engineer(source: Path) -> Import:
    """Candidates of a file of the AI CUDA Engineer archive, or of a folder of them, as ``ModelNew`` classes.

    Raises:
        UsageError: there is no such file, it cannot be read, or it lacks a column.
    """
    files = data_files(source, (".parquet", ".jsonl"))
    missing = [name for name in _ARCHIVE if not files or name not in columns_of(files[0])]
    if missing:
        raise UsageError(f"{source} is no file of the AI CUDA Engineer archive: it has no column {', '.join(missing)}")
    candidates: list[ImportedCandidate] = []
    unread: list[UnreadableCandidate] = []
    names: Taken = {}
    for row in (row for path in files for row in rows_of(path, _ARCHIVE)):
        candidate = row.fault or _archived(row.origin, row.values, names)
        if isinstance(candidate, ImportedCandidate):
            candidates.append(candidate)
        else:
            unread.append(UnreadableCandidate(row.origin, "", candidate))
    return Import(tuple(candidates), tuple(unread))


def _archived(origin: str, row: Mapping[str, Any], names: Taken) -> ImportedCandidate | str:
    """The candidate of a row of the archive, or why there is none."""
    level, problem, correct = _number(row.get("Level_ID")), row.get("Task_ID"), row.get("Correct")
    if level is None or not _ID.fullmatch(str(problem)):
        return f"level {row.get('Level_ID')!r:.40} and Task_ID {problem!r:.40} name no problem"
    texts: dict[str, str] = {}
    for column in ("CUDA_Code", "PyTorch_Code_Module", "PyTorch_Code_Functional"):
        text = _text(row.get(column))
        if text is None:
            return f"no text in {column}"
        if not writable(text):
            return f"{column} holds half a surrogate pair, which no file can"
        texts[column] = text
    name = f"level{level}_problem{problem}_{task_name(str(row.get('Kernel_Name') or 'kernel'))}".lower()
    name = distinct(name, names)
    try:
        model = _calling_extension(texts["PyTorch_Code_Functional"])
    except TaskError as error:
        return str(error)
    return ImportedCandidate(
        name=name,
        level=level,
        problem=str(problem),
        reference=texts["PyTorch_Code_Module"],
        source=_EXTENSION.format(model=model, name=name, source=texts["CUDA_Code"]),
        published_score=finite(row.get("CUDA_Speedup_Native")),
        published_correct=correct if isinstance(correct, bool) else None,
        origin=origin,
    )


def _calling_extension(functional: str) -> str:
    """The archive's functional form with its ``Model`` as a ``ModelNew`` that calls the extension in place of ``fn``.

    Raises:
        TaskError: a syntax error, or no ``Model`` whose ``forward`` takes such a function.
    """
    tree = parse_python(functional, "its functional form")
    model = next((node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "Model"), None)
    body = [] if model is None else model.body
    forward = next((node for node in body if isinstance(node, ast.FunctionDef) and node.name == "forward"), None)
    arguments = [] if forward is None else forward.args.args
    if model is None or forward is None or len(arguments) < 2 or arguments[-1].arg != "fn" or not forward.args.defaults:
        raise TaskError("PyTorch_Code_Functional has no Model whose forward takes fn=")
    raw = functional.encode()
    starts = line_starts(raw)
    before = arguments[-2]
    start = starts[(before.end_lineno or before.lineno) - 1] + (before.end_col_offset or before.col_offset)
    calls = (node for node in ast.walk(forward) if isinstance(node, ast.Name) and node.id == "fn")
    edits = [
        (start, byte_span(forward.args.defaults[-1], starts)[1], ""),
        *class_renaming(functional, tree, model, "ModelNew"),
        *((*byte_span(node, starts), "_extension.forward") for node in calls),
    ]
    return spliced(raw, sorted(edits))


RESULTS = "eval_results.json"
_MAX_KERNEL_BYTES = 1 << 20
_MAX_RESULTS_BYTES = 64 << 20


class _Name(NamedTuple):
    level: int
    problem: int
    sample: int


def read_kernelbench(folder: Path, references: Path | None = None) -> Import:
    """Every kernel of a run folder.

    Args:
        folder: ``runs/NAME``.
        references: KernelBench's folder of tasks: ``level1/9_Tall_skinny_matrix_multiplication_.py``. Without it the
            candidates have no reference, and cannot be evaluated.

    Raises:
        UsageError: the folder cannot be read.
    """
    if not folder.is_dir():
        raise UsageError(f"{folder} is no folder; name a run folder of KernelBench, such as runs/my_run")
    unread: list[UnreadableCandidate] = []
    results = _results(folder / RESULTS, unread)
    candidates: list[ImportedCandidate] = []
    for path in sorted(folder.iterdir()):
        if path.name == RESULTS or path.suffix != ".py":
            continue
        name = _name(path)
        if name is None:
            unread.append(UnreadableCandidate(path.name, "", "not named level_L_problem_P_sample_S_kernel.py"))
            continue
        try:
            source = _plain_text(path)
        except UsageError as error:
            unread.append(UnreadableCandidate(path.name, "", str(error)))
            continue
        if not source.strip():
            unread.append(
                UnreadableCandidate(path.name, f"level{name.level}_problem{name.problem}", "the file is empty")
            )
            continue
        candidates.append(_candidate(path, name, source, results.get((name.problem, name.sample), {})))
    if references is not None:
        candidates = [_with_reference(candidate, references, unread) for candidate in candidates]
    return Import(tuple(candidates), tuple(unread))


def _plain_text(path: Path) -> str:
    """Text of a plain file: the folder is untrusted, so links and pipes are refused.

    Raises:
        UsageError: it is no plain file, or cannot be read.
    """
    if path.is_symlink() or not path.is_file():
        raise UsageError(f"{path} is no plain file")
    return read_text(path, _MAX_KERNEL_BYTES)


def _name(path: Path) -> _Name | None:
    parts = path.stem.split("_")
    if len(parts) != 7 or parts[0::2] != ["level", "problem", "sample", "kernel"][:4]:
        return None
    numbers = parts[1:6:2]
    return _Name(*(int(number) for number in numbers)) if all(number.isdecimal() for number in numbers) else None


def _candidate(path: Path, name: _Name, source: str, result: Mapping[str, Any]) -> ImportedCandidate:
    runtime, reference = finite(result.get("runtime")), finite(result.get("ref_runtime"))
    score = finite(reference / runtime) if runtime and reference and runtime > 0 and reference > 0 else None
    correct = result.get("correctness")
    return ImportedCandidate(
        name=f"level{name.level}_problem{name.problem}_sample{name.sample}",
        level=name.level,
        problem=str(name.problem),
        reference=None,
        source=source,
        published_score=score,
        published_correct=correct if isinstance(correct, bool) else None,
        origin=path.name,
    )


def _results(path: Path, unread: list[UnreadableCandidate]) -> dict[tuple[int, int], Mapping[str, Any]]:
    if not os.path.lexists(path):
        return {}
    try:
        if path.is_symlink() or not path.is_file():
            raise UsageError("it is no plain file")
        data = json.loads(read_text(path, _MAX_RESULTS_BYTES))
    except (UsageError, ValueError, RecursionError) as error:
        unread.append(UnreadableCandidate(path.name, "", f"cannot be read: {error}"))
        return {}
    results: dict[tuple[int, int], Mapping[str, Any]] = {}
    for problem, entry in data.items() if isinstance(data, dict) else ():
        for result in entry if isinstance(entry, list) else [entry]:
            sample = result.get("sample_id", 0) if isinstance(result, dict) else None
            if isinstance(sample, int) and re.fullmatch("[0-9]{1,6}", problem):
                results[int(problem), sample] = result
            else:
                unread.append(
                    UnreadableCandidate(path.name, str(problem)[:40], "a result that is no object with a sample_id")
                )
    return results


def _with_reference(item: ImportedCandidate, references: Path, unread: list[UnreadableCandidate]) -> ImportedCandidate:
    folder = references / f"level{item.level}"
    paths = sorted(folder.glob(f"{item.problem}_*.py")) if folder.is_dir() else []
    if len(paths) != 1:
        reason = f"{len(paths)} files {item.problem}_*.py in {folder}: its reference is not known"
        unread.append(UnreadableCandidate(item.origin, item.name, reason))
        return item
    try:
        return replace(item, reference=_plain_text(paths[0]))
    except UsageError as error:
        unread.append(UnreadableCandidate(item.origin, item.name, str(error)))
        return item
