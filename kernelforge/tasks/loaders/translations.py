"""Sets of C functions and CUDA kernels as translation tasks: HPCTransEval, BabelTower with tests, MuSL, CodeRosetta.

- HPCTransEval (``jiaqiLv/HPCTransEval``, ``benchmark/*.json``): ``c_code``, with every extent a number, ``cuda_code``,
  ``op_name``, ``input_shape``, ``input_name``.
- BabelTower with tests (``kcxain/BabelTower``): ``id cpp_code cuda_code consistent_cpp_inputs``; a test is a program
  that is not run, but the numbers of its call are read.
- MuSL's training pairs (``kcxain/musl``, JSON lines): ``CPP``, or ``CPP-gen`` that a model wrote, and ``CUDA``.
- CodeRosetta (``tehranixyz/CodeRosetta``, arXiv 2410.20527): ``cpp.para.test.tok`` and ``cuda.para.test.tok``, where
  the same line of both files is one function.

:mod:`kernelforge.tasks.loaders.c_functions` writes each function's reference.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from functools import partial
from math import prod
from pathlib import Path
from typing import Any, Final

from kernelforge.errors import TaskError, UsageError
from kernelforge.tasks.constants import plain_text
from kernelforge.tasks.files import parse_task_file
from kernelforge.tasks.loaders.base import ExternalTask, Loaded, load_each
from kernelforge.tasks.loaders.c_functions.reference import written
from kernelforge.tasks.loaders.c_functions.syntax import Function, parse_function
from kernelforge.tasks.loaders.paired_files import PAIRED, pairs_of, source_files
from kernelforge.tasks.loaders.rows import Row, Taken, columns_of, data_files, distinct, rows_of, task_name

_LONGEST = 80


class _Rows(ABC):
    """A format with a function in each row of its files."""

    columns: tuple[str, ...]
    needed: frozenset[str]
    """Columns by which it is recognised."""
    suffixes: tuple[str, ...]

    def recognises(self, source: Path) -> bool:
        """Whether the first file has the columns."""
        files = data_files(source, self.suffixes)
        return bool(files) and self.needed <= columns_of(files[0])

    def load(self, source: Path) -> Loaded:
        """Every row; see :class:`kernelforge.tasks.loaders.base.Loader`."""
        files = data_files(source, self.suffixes)
        if not files:
            raise UsageError(f"{source} is no file of rows and holds none: {', '.join(self.suffixes)}")
        rows = (numbered for path in files for numbered in enumerate(rows_of(path, self.columns)))
        return load_each((row.origin, None, partial(self._task, row, number)) for number, row in rows)

    @abstractmethod
    def _task(self, row: Row, number: int, taken: Taken) -> ExternalTask: ...


class HpcTransEval(_Rows):
    """Files of the benchmark."""

    name = "hpctranseval"
    summary = "HPCTransEval: a .json file of benchmark/, or a folder of them"
    columns = ("op_name", "c_code", "cuda_code", "input_shape", "input_name")
    needed = frozenset({"c_code", "cuda_code", "op_name"})
    suffixes = (".json",)

    def _task(self, row: Row, number: int, taken: Taken) -> ExternalTask:
        operator = row.values.get("op_name")
        called = operator if isinstance(operator, str) and operator else "graph"
        text = _text(row, "c_code")
        function = parse_function(text)
        return translation_task(
            text, function, distinct(_named(called, number), taken), row.origin, "HPCTransEval",
            title=called.replace("_", " "), lengths=_lengths(function, row.values),
        )  # fmt: skip


class BabelTower(_Rows):
    """Files of the data set with tests."""

    name = "babeltower"
    summary = "BabelTower with tests: a .parquet, .arrow, .jsonl or .json file, or a folder of them"
    columns = ("id", "cpp_code", "cuda_code", "consistent_cpp_inputs")
    needed = frozenset({"cpp_code", "cuda_code"})
    suffixes = (".parquet", ".arrow", ".jsonl", ".json")

    def _task(self, row: Row, number: int, taken: Taken) -> ExternalTask:
        text = _text(row, "cpp_code")
        function = parse_function(text)
        tests = row.values.get("consistent_cpp_inputs")
        first = tests[0] if isinstance(tests, list) and tests and isinstance(tests[0], str) else ""
        return translation_task(
            text, function, distinct(_named(function.name, number), taken), row.origin, "BabelTower",
            values=_numbers_of_call(function, first),
        )  # fmt: skip


class Musl(_Rows):
    """Files of MuSL's training pairs."""

    name = "musl"
    summary = "MuSL's training pairs: a .jsonl or .json file, or a folder of them"
    columns = ("CPP", "CPP-gen", "CUDA")
    needed = frozenset({"CUDA"})
    suffixes = (".jsonl", ".json")

    def _task(self, row: Row, number: int, taken: Taken) -> ExternalTask:
        text = _text(row, "CPP-gen" if row.values.get("CPP-gen") else "CPP")
        function = parse_function(text)
        return translation_task(text, function, distinct(_named(function.name, number), taken), row.origin, "MuSL")


class CodeRosetta:
    """A folder of the pairs that CodeRosetta is trained and tested with."""

    name = "coderosetta"
    summary = "CodeRosetta: SOURCE is a folder with cpp.para.test.tok and cuda.para.test.tok, or one of these"

    def recognises(self, source: Path) -> bool:
        """Whether there are paired files by their names."""
        return bool(source_files(source, "cpp", "cuda"))

    def load(self, source: Path) -> Loaded:
        """Every line of the C++ files; see :class:`kernelforge.tasks.loaders.base.Loader`."""
        files = source_files(source, "cpp", "cuda")
        if not files:
            names = [PAIRED.format(language=language) for language in ("cpp", "cuda")]
            raise UsageError(f"{source} holds no pairs of CodeRosetta, such as {' and '.join(names)}")
        rows = (numbered for path in files for numbered in enumerate(pairs_of(path, "cpp", "cuda")))
        return load_each((row.origin, None, partial(self._task, row, number)) for number, row in rows)

    def _task(self, row: Row, number: int, taken: Taken) -> ExternalTask:
        text = _text(row, "cpp")
        function = parse_function(text)
        return translation_task(
            text, function, distinct(_named(function.name, number), taken), row.origin, "CodeRosetta"
        )


def translation_task(
    text: str,
    function: Function,
    name: str,
    origin: str,
    benchmark: str,
    *,
    title: str = "",
    values: Mapping[str, int | float] | None = None,
    lengths: Mapping[str, int] | None = None,
) -> ExternalTask:
    """The task of a published C function.

    Raises:
        TaskError: no reference is written for it, or no sizes of it are surely safe.
    """
    title = title or function.name.replace("_", " ")
    made = written(text, name, f"{title}, of {benchmark}"[:120], values=values, lengths=lengths)
    parse_task_file(made.source, name)
    return ExternalTask(
        name=name, title=title[:120], source=made.source, origin=origin, tags=("translate",), fixed=made.fixed,
        c_source=made.c_source,
    )  # fmt: skip


def _text(row: Row, column: str) -> str:
    if row.fault:
        raise TaskError(row.fault)
    text = row.values.get(column)
    if not isinstance(text, str) or not text.strip():
        raise TaskError(f"it has no text in column {column!r}")
    return plain_text(text)


def _named(called: str, number: int) -> str:
    """A name that C takes too: a letter, letters and digits."""
    return f"f{number:04d}_{task_name(called)}"[:_LONGEST].rstrip("_")


def _lengths(function: Function, values: Mapping[str, Any]) -> dict[str, int]:
    """Elements of the arrays whose names and shapes a row gives."""
    names, shapes = values.get("input_name"), values.get("input_shape")
    if not isinstance(names, list) or not isinstance(shapes, list) or len(names) != len(shapes):
        return {}
    numbers: dict[str, int] = {}
    arrays = {item.name for item in function.parameters if item.array}
    for name, shape in zip(names, shapes, strict=True):
        is_shape = isinstance(shape, list) and all(type(extent) is int and 0 < extent < 1 << 31 for extent in shape)
        if is_shape and isinstance(name, str) and name in arrays and names.count(name) == 1:
            numbers[name] = prod(shape)
    return numbers


_CALL: Final = re.compile(r"wrapper\s*\(\s*\w+\s*,([^;]*)\)\s*;")
_WHOLE: Final = re.compile(r"\s*(\d{1,9})\s*")
_REAL: Final = re.compile(r"\s*(-?\d{1,9}(?:\.\d{0,9})?)[fF]?\s*")


def _numbers_of_call(function: Function, test: str) -> dict[str, int | float]:
    """Numbers that the first call of a test passes, by parameter."""
    match = _CALL.search(test[:20_000])
    parts = match[1].split(",") if match else []
    if len(parts) != len(function.parameters):
        return {}
    numbers: dict[str, int | float] = {}
    for item, part in zip(function.parameters, parts, strict=True):
        if item.array:
            continue
        if digits := _WHOLE.fullmatch(part):
            numbers[item.name] = int(digits[1])
        elif real := _REAL.fullmatch(part):
            numbers[item.name] = float(real[1])
    return numbers
