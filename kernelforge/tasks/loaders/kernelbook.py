"""KernelBook: modules of public repositories with Triton code that torch.compile made of them.

A row has ``python_code`` (the module, ``get_inputs`` and ``get_init_inputs``), ``entry_point`` (the name of its class),
``triton_code``, and where it is from: ``repo_name``, ``module_name``, ``licenses``, ``sha``, ``uuid``. From the card of
``GPUMODE/KernelBook``; its files are ``dataset_permissive.parquet`` and ``.json``.
"""

from __future__ import annotations

import ast
from dataclasses import replace
from functools import partial
from pathlib import Path

from kernelforge.errors import TaskError, UsageError
from kernelforge.tasks.constants import byte_span, line_starts, parse_python, plain_text, spliced
from kernelforge.tasks.loaders.base import ExternalTask, Loaded, load_each
from kernelforge.tasks.loaders.kernelbench import kernelbench_task
from kernelforge.tasks.loaders.reference_text import class_renaming
from kernelforge.tasks.loaders.rows import Row, Taken, columns_of, data_files, distinct, rows_of, task_name

COLUMNS = ("python_code", "entry_point", "triton_code", "repo_name", "module_name", "licenses", "uuid")
SUFFIXES = (".parquet", ".json", ".jsonl")


class KernelBook:
    """Files of the data set."""

    name = "kernelbook"
    summary = "KernelBook: a .parquet, .json or .jsonl file, or a folder of them"

    def recognises(self, source: Path) -> bool:
        """Whether the first file has the data set's columns."""
        files = data_files(source, SUFFIXES)
        return bool(files) and {"python_code", "entry_point"} <= columns_of(files[0])

    def load(self, source: Path) -> Loaded:
        """Every row; see :class:`kernelforge.tasks.loaders.base.Loader`."""
        files = data_files(source, SUFFIXES)
        if not files:
            raise UsageError(f"{source} is no .parquet, .json or .jsonl file and holds none; name KernelBook's rows")
        rows = (numbered for path in files for numbered in enumerate(rows_of(path, COLUMNS)))
        return load_each((row.origin, 1, partial(_task, row, number)) for number, row in rows)


def _task(row: Row, number: int, taken: Taken) -> ExternalTask:
    if row.fault:
        raise TaskError(row.fault)
    code, entry = row.values.get("python_code"), row.values.get("entry_point")
    if not isinstance(code, str) or not isinstance(entry, str):
        raise TaskError("it has no text in the columns 'python_code' and 'entry_point'")
    repository = row.values.get("repo_name")
    task = kernelbench_task(
        reference_of(code, entry),
        name=distinct(f"{number:05d}_{task_name(entry)}"[:80].rstrip("_"), taken),
        title=f"{entry}, of {repository}"[:120] if isinstance(repository, str) else entry[:120],
        origin=row.origin,
        level=1,
        benchmark="kernelbook",
    )
    return replace(task, license=licence_in(row))


def licence_in(row: Row) -> str:
    """Licences of a row's repository, as its column has them."""
    licences = row.values.get("licenses")
    return ", ".join(map(str, licences)) if isinstance(licences, list) else str(licences or "")


def reference_of(code: str, entry_point: str) -> str:
    """A row's module as a task file: its class is called ``Model``, and ``get_init_inputs`` returns its arguments.

    KernelBook's ``get_init_inputs`` returns ``[positional, by keyword]``.

    Raises:
        TaskError: a syntax error, no such class, or arguments that are no literal list and dictionary.
    """
    text = plain_text(code)
    tree = parse_python(text, "its module")
    classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    if entry_point not in classes:
        raise TaskError(f"its module has no class {entry_point[:80]!r}")
    if entry_point != "Model" and "Model" in classes:
        raise TaskError("its module has another class 'Model'")
    model, raw = classes[entry_point], text.encode()
    starts = line_starts(raw)
    init = next((node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == _INIT), None)
    returned = [
        (*byte_span(part.value, starts), _arguments(part.value, model))
        for part in (ast.walk(init) if init is not None else ())
        if isinstance(part, ast.Return) and part.value is not None
    ]
    # A use of the class within what is returned goes with it.
    uses = [
        edit
        for edit in class_renaming(text, tree, model, "Model")
        if not any(start <= edit[0] < end for start, end, _ in returned)
    ]
    return spliced(raw, sorted([*returned, *uses]))


_INIT = "get_init_inputs"


def _arguments(value: ast.expr, model: ast.ClassDef) -> str:
    """The arguments of ``Model(...)`` as a list, or as a dictionary where some have keywords."""
    parts = value.elts if isinstance(value, ast.List | ast.Tuple) else []
    if len(parts) != 2 or not isinstance(parts[0], ast.List | ast.Tuple) or not isinstance(parts[1], ast.Dict):
        raise TaskError("its get_init_inputs() does not return [positional, by keyword]")
    positional, keywords = parts[0].elts, parts[1]
    if not keywords.keys:
        return ast.unparse(ast.List(positional, ast.Load()))
    init = next((node for node in model.body if isinstance(node, ast.FunctionDef) and node.name == "__init__"), None)
    names = [] if init is None else [argument.arg for argument in [*init.args.posonlyargs, *init.args.args][1:]]
    if len(names) < len(positional):
        raise TaskError("its get_init_inputs() has more positional arguments than its class")
    named: list[ast.expr | None] = [ast.Constant(name) for name in names[: len(positional)]]
    return ast.unparse(ast.Dict([*named, *keywords.keys], [*positional, *keywords.values]))
