"""KernelBench's run folders: ``level_L_problem_P_sample_S_kernel.py`` files and ``eval_results.json``.

The file of results is ``{problem: [{"sample_id", "correctness", "runtime", ...}]}``, or one object per problem in runs
of older versions. References are not in a run folder: they come from a folder of KernelBench's own task files.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from kernelforge.datasets.base import Import, ImportedCandidate, UnreadableCandidate
from kernelforge.datasets.cuda_l1 import finite
from kernelforge.errors import UsageError
from kernelforge.utils.text_files import read_text

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
