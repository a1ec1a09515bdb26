"""KernelBench's problems, from its folders or from Parquet files of its dataset."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from kernelforge.errors import TaskError, UsageError
from kernelforge.records import TaskPolicy
from kernelforge.tasks.constants import called_name, parse_python, plain_text
from kernelforge.tasks.files import read_task_source
from kernelforge.tasks.loaders.base import ExternalTask, Loaded, load_each
from kernelforge.tasks.loaders.rows import (
    Row,
    Taken,
    columns_of,
    data_files,
    distinct,
    problem_name,
    rows_of,
    task_title,
)
from kernelforge.tasks.loaders.source_rewrite import lift

_COLUMNS = ("code", "level", "name", "problem_id")
_MOST_LEVEL = 1000
_SUFFIXES = (".parquet",)


class KernelBenchParquet:
    """Parquet files of the data set."""

    name = "kernelbench-parquet"
    summary = "KernelBench's Hugging Face data set: one .parquet file, or a folder of them"

    def recognises(self, source: Path) -> bool:
        """Whether the first file has the data set's columns; a file that cannot be read counts as such."""
        files = data_files(source, _SUFFIXES)
        return bool(files) and set(_COLUMNS) <= (columns_of(files[0]) or set(_COLUMNS))

    def load(self, source: Path) -> Loaded:
        """Every row; see :class:`kernelforge.tasks.loaders.base.Loader`."""
        files = data_files(source, _SUFFIXES)
        if not files:
            raise UsageError(f"{source} is no .parquet file and holds none; name KernelBench's data set")
        rows = (row for path in files for row in rows_of(path, _COLUMNS))
        return load_each((row.origin, _row_level(row), partial(_row_task, row)) for row in rows)


def _row_level(row: Row) -> int | None:
    level = row.values.get("level")
    return level if type(level) is int and 0 <= level < _MOST_LEVEL else None


def _row_task(row: Row, taken: Taken) -> ExternalTask:
    code, name, problem = row.values.get("code"), row.values.get("name"), row.values.get("problem_id")
    if row.fault:
        raise TaskError(row.fault)
    if not isinstance(code, str) or not code.strip():
        raise TaskError("it has no text in column 'code'")
    called = name if isinstance(name, str) and name else f"problem_{problem}"
    if isinstance(problem, int) and not called.startswith(f"{problem}_"):
        called = f"{problem}_{called}"
    return _named_task(plain_text(code), called, row.origin, _row_level(row), taken)


def _named_task(text: str, called: str, origin: str, level: int | None, taken: Taken) -> ExternalTask:
    """The task of a problem with that name, which also gives its title."""
    name = distinct(problem_name(level, called), taken)
    return kernelbench_task(text, name=name, title=task_title(called), origin=origin, level=level)


_LEVEL = re.compile(r"level_?(\d{1,3})")
_PROBLEM = re.compile(r"\d+_.*\.py")
_FETCHERS = ("transformers", "diffusers", "huggingface_hub", "datasets", "timm")
"""Packages whose models come from the network."""
_SELECTIONS = ("argmax", "argmin")


class KernelBench:
    """A checkout of KernelBench."""

    name = "kernelbench"
    summary = "KernelBench: its checkout, or a folder of its files (level1/1_Square_matrix_multiplication_.py)"

    def recognises(self, source: Path) -> bool:
        """Whether there are level folders, or problems by their names."""
        try:
            return any(True for _ in _problems(source))
        except OSError:
            return False

    def load(self, source: Path) -> Loaded:
        """Every problem of the checkout; see :class:`kernelforge.tasks.loaders.base.Loader`."""
        if not source.exists():
            raise UsageError(f"there is no {source}; name a checkout of KernelBench, or a folder of its files")
        try:
            problems = sorted(
                _problems(source), key=lambda problem: (problem.level or 0, _number(problem.path.stem), problem.origin)
            )
        except OSError as error:
            raise UsageError(f"cannot read {source}: {error.strerror}") from error
        if not problems:
            raise UsageError(
                f"{source} is no checkout of KernelBench: neither level1 to level4, nor files NUMBER_Name.py"
            )
        return load_each((problem.origin, problem.level, partial(_file_task, source, problem)) for problem in problems)


def _file_task(source: Path, problem: _Problem, taken: Taken) -> ExternalTask:
    if problem.path.is_symlink() or not problem.path.is_file():
        raise TaskError("it is no plain file")
    text = read_task_source(problem.path, within=source)
    return _named_task(text, problem.path.stem, problem.origin, problem.level, taken)


def kernelbench_task(
    source: str, *, name: str, title: str, origin: str, level: int | None, benchmark: str = "kernelbench"
) -> ExternalTask:
    """Make a task from a text in KernelBench's format; the benchmark's name is its tag.

    Raises:
        TaskError: it is malformed, or needs something that the oracle's jail lacks.
    """
    lifted = lift(source, origin)
    tree = parse_python(lifted, origin)
    needs = fetched_models(tree)
    if needs:
        raise TaskError(f"it takes a model from the network with {needs}; the oracle that runs references has none")
    return ExternalTask(
        name=name,
        title=title,
        source=lifted,
        origin=origin,
        level=1 if level is None else level,
        tags=(benchmark,),
        policy=TaskPolicy(ties=_tied_outputs(tree)),
    )


def fetched_models(tree: ast.Module) -> str:
    """The package with which a file downloads a model, or an empty string."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            modules = [node.module or ""]
        else:
            continue
        for module in modules:
            if module.split(".")[0] in _FETCHERS:
                return module.split(".")[0]
    return ""


def _tied_outputs(tree: ast.Module) -> tuple[int, ...]:
    """Output 0 if ``forward`` returns an index by ``argmax`` or ``argmin``, where ties are equally correct."""
    for model in tree.body:
        if isinstance(model, ast.ClassDef) and model.name == "Model":
            for node in ast.walk(model):
                value = node.value if isinstance(node, ast.Return) else None
                if isinstance(value, ast.Call) and called_name(value.func) in _SELECTIONS:
                    return (0,)
    return ()


@dataclass(frozen=True)
class _Problem:
    path: Path
    origin: str
    level: int | None


def _problems(source: Path) -> Iterator[_Problem]:
    if source.is_file():
        if source.suffix == ".py":
            yield _Problem(source, source.name, _level_of(source.parent))
        return
    levels = _level_folders(source) or _level_folders(source / "KernelBench")
    if levels:
        for level, folder in levels:
            for path in sorted(folder.glob("*.py")):
                if not path.name.startswith("_"):
                    yield _Problem(path, f"{folder.name}/{path.name}", level)
        return
    for path in sorted(source.glob("*.py")):
        if _PROBLEM.fullmatch(path.name):
            yield _Problem(path, path.name, _level_of(source))


def _level_folders(source: Path) -> list[tuple[int, Path]]:
    if not source.is_dir():
        return []
    return sorted(
        (level, path) for path in source.iterdir() if path.is_dir() and (level := _level_of(path)) is not None
    )


def _level_of(folder: Path) -> int | None:
    match = _LEVEL.fullmatch(folder.name.lower())
    return int(match[1]) if match else None


def _number(stem: str) -> int:
    match = re.match(r"\d{1,9}", stem)
    return int(match[0]) if match else 0
