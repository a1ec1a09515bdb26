"""CUDA-L1's released kernels (arXiv 2507.14111): ``optimized_cuda_code/*.json`` and ``codes/*.json``.

The first kind is JSON lines: ``level_id task_id ref_code custom_code cuda_graph_code cudnn_code`` and ``score_default
score_cuda_graph score_cudnn ...``. The second is one object ``{"1": [...], "2": [...]}`` by level, with ``task_id
ref_code custom_code score``. A missing text is null, empty, or the string ``None``.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from kernelforge.datasets.base import Import, ImportedCandidate, UnreadableCandidate
from kernelforge.utils.text_files import read_text

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
