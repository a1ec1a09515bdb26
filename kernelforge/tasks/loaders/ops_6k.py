"""CUDA-Agent-Ops-6K: rows of synthesised tasks in KernelBench's form, as parquet or JSON lines.

A row has ``code`` (``Model``, ``get_inputs``, ``get_init_inputs``), ``ops`` (the combined operators) and
``data_source`` (``torch#k``: *k* operators of torch). From "CUDA Agent", 2026, arXiv:2602.24286.
"""

from __future__ import annotations

import json
import re
from functools import partial
from pathlib import Path
from typing import Any

from kernelforge.errors import TaskError, UsageError
from kernelforge.tasks.constants import plain_text
from kernelforge.tasks.loaders.base import ExternalTask, Loaded, load_each
from kernelforge.tasks.loaders.kernelbench import kernelbench_task
from kernelforge.tasks.loaders.rows import Row, Taken, columns_of, data_files, distinct, rows_of, task_name

_COLUMNS = ("code", "ops", "data_source")
_LONGEST_OPS, _MOST_OPS = 4096, 64
"""Limits for the list of operators, which is used for names only."""
_SUFFIXES = (".parquet", ".jsonl")


class Ops6K:
    """Files of the data set."""

    name = "ops-6k"
    summary = "CUDA-Agent-Ops-6K: a .parquet or .jsonl file, or a folder of them"

    def recognises(self, source: Path) -> bool:
        """Whether the first file has the data set's columns."""
        files = data_files(source, _SUFFIXES)
        return bool(files) and {"code", "data_source"} <= columns_of(files[0])

    def load(self, source: Path) -> Loaded:
        """Every row; see :class:`kernelforge.tasks.loaders.base.Loader`."""
        files = data_files(source, _SUFFIXES)
        if not files:
            raise UsageError(f"{source} is no .parquet or .jsonl file and holds none; name CUDA-Agent-Ops-6K's rows")
        rows = (numbered for path in files for numbered in enumerate(rows_of(path, _COLUMNS)))
        return load_each((row.origin, _level(row), partial(_task, row, number)) for number, row in rows)


def _task(row: Row, number: int, taken: Taken) -> ExternalTask:
    if row.fault:
        raise TaskError(row.fault)
    code = row.values.get("code")
    if not isinstance(code, str) or not code.strip():
        raise TaskError("it has no text in column 'code'")
    operators = _operators(row.values.get("ops"))
    title = ", ".join(operators) or f"row {number}"
    return kernelbench_task(
        plain_text(code),
        name=distinct(f"{number:04d}_{task_name('_'.join(operators) or 'row')}"[:80].rstrip("_"), taken),
        title=title[:120],
        origin=row.origin,
        level=_level(row),
        benchmark="ops-6k",
    )


def _level(row: Row) -> int:
    """1 for a single operator, 2 for several, by the number after ``torch#``."""
    match = re.search(r"#(\d{1,3})$", str(row.values.get("data_source", "")))
    return 1 if match and int(match[1]) == 1 else 2


def _operators(ops: Any) -> list[str]:
    """Names of the operators, last parts alone: a list, its JSON, or names between commas."""
    if isinstance(ops, str):
        ops = ops[:_LONGEST_OPS]
        try:
            ops = json.loads(ops.replace("'", '"')) if ops.lstrip().startswith("[") else ops.split(",")
        except (ValueError, RecursionError):
            ops = ops.strip("[] ").split(",")
    if not isinstance(ops, list):
        return []
    return [name for op in ops[:_MOST_OPS] if isinstance(op, str) and (name := op.strip(" '\"").rpartition(".")[2])]
