"""Published pairs of a PyTorch module and a kernel as rows of training data.

- ConCuR (arXiv 2510.07356; ``lkongam/ConCuR``): one arrow stream of modules, reasoning and CUDA kernels. Its columns
  are documented nowhere, so they are recognised by their names and their texts, or named by the caller.
- KernelBook (``GPUMODE/KernelBook``): ``python_code``, ``triton_code``, ``entry_point``, ``repo_name``, ``licenses``.
- The AI CUDA Engineer archive (``SakanaAI/AI-CUDA-Engineer-Archive``, CC-BY-4.0): ``Op_Name Level_ID Task_ID
  Kernel_Name CUDA_Runtime PyTorch_Native_Runtime CUDA_Speedup_Native CUDA_Code PyTorch_Code_Module
  PyTorch_Code_Functional Correct Error``.
- BabelTower with tests (``kcxain/BabelTower``; QiMeng-MuPa, arXiv 2506.11153): ``id cpp_code cuda_code``, and columns
  of its tests, which are programs and not read. Code is spaced token by token.
- MuSL's training pairs (``kcxain/musl``, JSON lines): ``CPP`` and ``CUDA``; a ``CPP-gen`` is C that a model wrote back
  from the CUDA, and stands in place of ``CPP``.
- HPCTransEval (``jiaqiLv/HPCTransEval``, ``benchmark/*.json``): ``op_name cuda_code c_code``, made by TVM from one
  graph: CUDA to be written in C with OpenMP.
- CodeRosetta (``tehranixyz/CodeRosetta``, arXiv 2410.20527): two files, of which the same line is a pair; C++ and CUDA
  as text, Fortran and C++ as JSON lines with a column ``text``.

Correctness and speedups are the publishers', by their protocols. Nothing is executed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import Any

from kernelforge.candidate import split_reasoning
from kernelforge.datasets.published import UnreadableCandidate, finite, writable
from kernelforge.datasets.training import Row, likeness, shingles, thinking
from kernelforge.errors import UsageError
from kernelforge.llm.rate_limits import estimate_tokens
from kernelforge.records import Task
from kernelforge.tasks.loaders.kernelbook import licence_in
from kernelforge.tasks.loaders.paired_files import PAIRED, pairs_of, source_files
from kernelforge.tasks.loaders.rows import Row as FileRow
from kernelforge.tasks.loaders.rows import columns_of, data_files, rows_of

SUFFIXES = (".parquet", ".arrow", ".jsonl", ".json")


@dataclass(frozen=True)
class PublishedPair:
    """A module and a kernel that replaces it, or a program and its translation."""

    name: str
    """``kernelbook/17``: the data set, and the row."""
    origin: str
    """File and row."""
    reference: str
    kernel: str
    language: str
    """``CUDA``, ``Triton``, ``C`` or ``C++``: that of the kernel, or of the translation."""
    fence: str
    """Label of the kernel's code block."""
    reasoning: str | None = None
    correct: bool | None = None
    """As published; None where nothing is said."""
    speedup: float | None = None
    """Over eager PyTorch, as published."""
    licence: str = ""
    task: str = ""
    """What the publisher calls the task, or the module."""
    original: str = "python"
    """Label of the reference's code block; any other than ``python`` makes it a translation."""


@dataclass(frozen=True)
class PublishedSet:
    """Content of the files of a data set."""

    pairs: tuple[PublishedPair, ...]
    unread: tuple[UnreadableCandidate, ...]


FORMATS: Mapping[str, str] = MappingProxyType(
    {
        "concur": "ConCuR: modules, reasoning and CUDA kernels",
        "kernelbook": "KernelBook: modules and Triton kernels of torch.compile",
        "ai-cuda-engineer": "The AI CUDA Engineer archive: tasks of KernelBench and CUDA kernels, right and wrong",
        "babeltower": "BabelTower: C functions and CUDA kernels, spaced token by token",
        "musl": "MuSL: C functions, some written back by a model, and CUDA kernels",
        "hpctranseval": "HPCTransEval: CUDA kernels and C with OpenMP, both made by TVM",
        "coderosetta": "CodeRosetta: C++ and CUDA, or Fortran and C++, in two files each",
    }
)
"""Every format, and what it holds."""

_COLUMNS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "kernelbook": ("python_code", "triton_code", "entry_point", "licenses"),
        "ai-cuda-engineer": (
            "PyTorch_Code_Module", "CUDA_Code", "Correct", "CUDA_Speedup_Native", "Level_ID", "Task_ID", "Op_Name",
        ),
        "babeltower": ("cpp_code", "cuda_code", "id"),
        "musl": ("CPP", "CPP-gen", "CUDA"),
        "hpctranseval": ("cuda_code", "c_code", "op_name"),
    }
)  # fmt: skip
_NEEDED: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "kernelbook": ("python_code", "triton_code"),
        "ai-cuda-engineer": ("PyTorch_Code_Module", "CUDA_Code", "Correct"),
        "babeltower": ("cpp_code", "cuda_code"),
        "musl": ("CUDA",),
        "hpctranseval": ("cuda_code", "c_code"),
    }
)

ROLES = ("reference", "reasoning", "kernel")
"""Columns of ConCuR that can be named."""
_NAMES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "reference": ("pytorch", "torch", "reference", "ref", "python_code", "problem", "question", "task", "input"),
        "reasoning": ("reasoning", "cot", "think", "thought", "trace"),
        "kernel": ("cuda", "kernel", "custom", "optimized", "answer", "response", "output", "solution", "generated"),
    }
)
"""Parts of names by which ConCuR's columns are recognised, the most telling first."""
_PEEKED_ROWS = 20


def read_published(source: Path, format_name: str, columns: Mapping[str, str] | None = None) -> PublishedSet:
    """Pairs of a file, or of the files of a folder, in a format of :data:`FORMATS`.

    Args:
        columns: ConCuR's columns by their role, where they are not to be recognised.

    Raises:
        UsageError: there is no such file, it cannot be read, or it lacks a column.
    """
    if format_name == "coderosetta":
        return _paired(source)
    files = data_files(source, SUFFIXES)
    if not files:
        raise UsageError(f"{source} is no file of rows and holds none: {', '.join(SUFFIXES)}")
    present = columns_of(files[0])
    if format_name == "concur":
        roles = _concur_columns(files[0], present, columns or {})
        names_read = tuple(roles.values())
    else:
        names_read, roles = _COLUMNS[format_name], {}
        missing = [name for name in _NEEDED[format_name] if name not in present]
        if missing:
            has = ", ".join(sorted(present)) or "none that can be read"
            raise UsageError(f"{files[0]} has no column {', '.join(missing)}, so it is not {format_name}; it has {has}")
    pairs: list[PublishedPair] = []
    unread: list[UnreadableCandidate] = []
    rows = (row for path in files for row in rows_of(path, names_read))
    for number, row in enumerate(rows):
        made = _pair(f"{format_name}/{number}", format_name, row, roles)
        if isinstance(made, PublishedPair):
            pairs.append(made)
        else:
            unread.append(UnreadableCandidate(row.origin, "", made))
    return PublishedSet(tuple(pairs), tuple(unread))


def _pair(name: str, format_name: str, row: FileRow, roles: Mapping[str, str]) -> PublishedPair | str:
    """The pair of a row, or why there is none."""
    values = row.values
    if row.fault:
        return row.fault
    keys = {
        "concur": (roles.get("reference", ""), roles.get("kernel", "")),
        "kernelbook": ("python_code", "triton_code"),
        "ai-cuda-engineer": ("PyTorch_Code_Module", "CUDA_Code"),
        "babeltower": ("cpp_code", "cuda_code"),
        "musl": ("CPP-gen" if values.get("CPP-gen") else "CPP", "CUDA"),
        "hpctranseval": ("cuda_code", "c_code"),
    }[format_name]
    texts = _texts(row, keys)
    if isinstance(texts, str):
        return texts
    reference, kernel = texts
    if format_name == "kernelbook":
        task = str(values.get("entry_point") or "")
        licence = licence_in(row)
        return PublishedPair(name, row.origin, reference, kernel, "Triton", "python", licence=licence, task=task)
    if format_name == "ai-cuda-engineer":
        correct = values.get("Correct")
        task = f"level_{values.get('Level_ID')}/{values.get('Task_ID')} {values.get('Op_Name')}"
        return PublishedPair(
            name, row.origin, reference, kernel, "CUDA", "cpp", correct=correct if isinstance(correct, bool) else None,
            speedup=finite(values.get("CUDA_Speedup_Native")), licence="CC-BY-4.0", task=task,
        )  # fmt: skip
    if format_name in ("babeltower", "musl"):
        return PublishedPair(name, row.origin, reference, kernel, "CUDA", "cuda", original="cpp")
    if format_name == "hpctranseval":
        task = str(values.get("op_name") or "")
        return PublishedPair(name, row.origin, reference, kernel, "C", "c", task=task, original="cuda")
    inline, kernel = split_reasoning(kernel)
    text = values.get(roles.get("reasoning", ""))
    reasoning = text if isinstance(text, str) and text.strip() and writable(text) else inline
    return PublishedPair(
        name, row.origin, reference, kernel, "CUDA", "python", reasoning=_without_tags(reasoning), correct=True
    )


def _texts(row: FileRow, keys: Sequence[str]) -> tuple[str, ...] | str:
    """The texts of some columns, or why one has none."""
    texts: list[str] = []
    for key in keys:
        text = row.values.get(key)
        if not isinstance(text, str) or not text.strip():
            return f"no text in column {key!r}"
        if not writable(text):
            return f"column {key!r} holds half a surrogate pair, which no file can"
        texts.append(text)
    return tuple(texts)


_PAIRED = (("cpp", "cuda", "CUDA", "cuda"), ("fortran", "cpp", "C++", "cpp"))
"""Languages of CodeRosetta's files, and of the translation, and the label of its code block."""


def _paired(source: Path) -> PublishedSet:
    """Pairs of CodeRosetta's files.

    Raises:
        UsageError: there is no file that is paired, or one cannot be read.
    """
    pairs: list[PublishedPair] = []
    unread: list[UnreadableCandidate] = []
    files = [(path, languages) for languages in _PAIRED for path in source_files(source, languages[0], languages[1])]
    if not files:
        raise UsageError(
            f"{source} holds no pairs of CodeRosetta, such as {PAIRED.format(language='cpp')} and "
            f"{PAIRED.format(language='cuda')}"
        )
    number = 0
    for path, (original, other, language, fence) in files:
        for row in pairs_of(path, original, other):
            texts = row.fault or _texts(row, (original, other))
            if isinstance(texts, str):
                unread.append(UnreadableCandidate(row.origin, "", texts))
            else:
                name = f"coderosetta/{number}"
                text, translation = texts
                pairs.append(PublishedPair(name, row.origin, text, translation, language, fence, original=original))
            number += 1
    return PublishedSet(tuple(pairs), tuple(unread))


def _without_tags(reasoning: str) -> str | None:
    """Reasoning without the tags that may surround it."""
    inside, outside = split_reasoning(reasoning)
    return (inside or outside).strip() or None


def _concur_columns(path: Path, present: set[str], named: Mapping[str, str]) -> dict[str, str]:
    """ConCuR's columns by their role.

    Raises:
        UsageError: they cannot be recognised.
    """
    for role, name in named.items():
        if role not in ROLES:
            raise UsageError(f"--column names a {', a '.join(ROLES)}, not {role!r}")
        if name not in present:
            raise UsageError(f"{path} has no column {name!r}; it has {', '.join(sorted(present)) or 'none'}")
    rows = [row.values for row in islice(rows_of(path, sorted(present)), _PEEKED_ROWS)]
    texts = {name: [row[name] for row in rows if isinstance(row.get(name), str)] for name in sorted(present)}
    kernels = {name for name, column in texts.items() if _share(column, ("ModelNew", "__global__")) > 0.5}
    references = {
        name for name, column in texts.items() if name not in kernels and _share(column, ("class Model",)) > 0.5
    }
    others = {name for name, column in texts.items() if column and name not in kernels | references}
    found_columns = dict(named)
    for role, choices in (("reference", references), ("kernel", kernels), ("reasoning", kernels | others)):
        free = choices - set(found_columns.values())
        by_name = [name for part in _NAMES[role] for name in sorted(free) if part in name.lower()]
        if role not in found_columns and (by_name or (len(free) == 1 and role != "reasoning")):
            found_columns[role] = (by_name or sorted(free))[0]
    missing = [role for role in ("reference", "kernel") if role not in found_columns]
    if missing:
        raise UsageError(
            f"which columns of {path} hold the {' and the '.join(missing)} cannot be recognised; it has "
            f"{', '.join(sorted(present)) or 'none'}: name them, as in --column {missing[0]}=NAME"
        )
    return found_columns


def _share(column: Sequence[str], words: Sequence[str]) -> float:
    """Share of texts that hold one of the words."""
    return sum(any(word in text for word in words) for text in column) / len(column) if column else 0.0


def unlike(pairs: Iterable[PublishedPair], excluded: Iterable[Task], near: float) -> list[PublishedPair]:
    """Pairs whose reference is not ``near`` alike that of any excluded task."""
    parts = [shingles(task.source) for task in excluded]
    return [pair for pair in pairs if not any(likeness(shingles(pair.reference), other) >= near for other in parts)]


def published_rows(pairs: Iterable[PublishedPair], kind: str, data_set: str, form: str = "column") -> Iterator[Row]:
    """Rows of some pairs, with the columns of every row of training data; what we did not judge is None.

    Args:
        kind: ``sft``, of pairs that are not said to be wrong; ``kto``, of those of which it is said.
        data_set: its format.
        form: of the reasoning, as :func:`~kernelforge.datasets.training.with_reasoning` takes it.
    """
    for pair in pairs:
        if form == "off":
            pair = replace(pair, reasoning=None)
        request = _PROMPT if pair.original == "python" else _TRANSLATION[pair.language]
        user = {"role": "user", "content": request.format(language=pair.language, reference=pair.reference.strip())}
        answer = f"```{pair.fence}\n{pair.kernel.strip()}\n```\n"
        reply = {"role": "assistant", "content": thinking(pair.reasoning, answer) if form == "think" else answer}
        if kind == "sft" and pair.correct is not False:
            yield {"messages": [user, reply], **_columns(pair, data_set)}
        elif kind == "kto" and pair.correct is not None:
            yield {"prompt": [user], "completion": [reply], "label": pair.correct, **_columns(pair, data_set)}


_PROMPT = "Write {language} kernels that replace the operators of this PyTorch module.\n\n```python\n{reference}\n```\n"

_TRANSLATION: Mapping[str, str] = MappingProxyType(
    {
        "CUDA": "Write CUDA kernels that do in parallel what this sequential C function does.\n\n"
        "```cpp\n{reference}\n```\n",
        "C": "Write a C function, parallel with OpenMP, that does what these CUDA kernels do.\n\n"
        "```cuda\n{reference}\n```\n",
        "C++": "Write C++ that does what this Fortran program does.\n\n```fortran\n{reference}\n```\n",
    }
)
"""Requests for a translation, by the language that it is in."""


def _columns(pair: PublishedPair, data_set: str) -> dict[str, Any]:
    judged = ("task_digest", "reward", "verdict", "stage", "lane", "speedup", "predicted_speedup", "device")
    return {
        "id": pair.name,
        "source": "published",
        "run": data_set,
        "task": pair.task,
        "group": pair.task or pair.name,
        **dict.fromkeys((*judged, "evaluator", "evaluation")),
        "written_by": FORMATS[data_set].partition(":")[0],
        "reasoning": pair.reasoning,
        "reasoning_tokens": None if pair.reasoning is None else estimate_tokens(pair.reasoning),
        "published_correct": pair.correct,
        "published_speedup": pair.speedup,
        "licence": pair.licence,
    }
