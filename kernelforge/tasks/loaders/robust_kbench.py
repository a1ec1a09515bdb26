"""robust-kbench: folders with ``func_forward.py`` and ``config_forward.json``.

The module has ``Model``, ``get_inputs`` with keyword arguments, and ``forward_fn``, which ``Model.forward`` takes as a
default argument. The configuration lists keyword arguments: ``single_input_configs`` for ``get_inputs``,
``single_init_configs`` for ``Model``, ``single_shared_configs`` for both, and the same with ``multi_``. From Lange et
al., "Towards Robust Agentic CUDA Kernel Benchmarking, Verification, and Optimization", 2025, arXiv:2509.14279.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from kernelforge.errors import TaskError, UsageError
from kernelforge.tasks.constants import parse_python
from kernelforge.tasks.files import read_plain_file, read_task_source
from kernelforge.tasks.loaders.base import ExternalTask, Loaded, Problem, load_each
from kernelforge.tasks.loaders.kernelbench import kernelbench_task
from kernelforge.tasks.loaders.rows import Taken, distinct, task_name, task_title
from kernelforge.tasks.loaders.source_rewrite import edited

_MODULE, _CONFIG = "func_forward.py", "config_forward.json"
_BACKWARD = "func_backward.py"
_DRAWN = "_get_inputs_of"
"""Name of the benchmark's ``get_inputs`` in the task."""
_MAX_CONFIG_BYTES = 1 << 20
_DEEPEST_SETTING = 8
_LARGEST_SETTING = 1e300

Settings = dict[str, Any]


class RobustKBench:
    """A checkout of robust-kbench, its folder of tasks, or one task."""

    name = "robust-kbench"
    summary = "robust-kbench: its checkout, a folder of tasks, or one task (func_forward.py, config_forward.json)"

    def recognises(self, source: Path) -> bool:
        """Whether there is a ``func_forward.py``."""
        return any(True for _ in _folders(source))

    def load(self, source: Path) -> Loaded:
        """Every task; see :class:`kernelforge.tasks.loaders.base.Loader`."""
        folders = sorted(_folders(source))
        if not folders:
            raise UsageError(f"{source} has no {_MODULE} in it or below; name a checkout of robust-kbench")
        return load_each(problem for folder in folders for problem in _problems(source, folder))


def _problems(source: Path, folder: Path) -> Iterator[Problem]:
    named = folder.relative_to(source).as_posix() if folder != source else folder.name
    if (folder / _MODULE).exists():
        origin = f"{named}/{_MODULE}"
        yield origin, None, partial(_task, folder, source, origin)
    if (folder / _BACKWARD).exists():
        yield f"{named}/{_BACKWARD}", None, _backward_task


def _backward_task(taken: Taken) -> ExternalTask:
    raise TaskError("it compares gradients by torch's autograd, which candidates here do not use")


def _folders(source: Path) -> Iterator[Path]:
    if source.is_dir():
        folders = {path.parent for name in (_MODULE, _BACKWARD) for path in source.rglob(name)}
        yield from (folder for folder in folders if not any(part.startswith(".") for part in folder.parts[1:]))


def _task(folder: Path, within: Path, origin: str, taken: Taken) -> ExternalTask:
    source = read_task_source(folder / _MODULE, within=within)
    config = _config(folder / _CONFIG, within)
    shared = _first(config, "single_shared_configs")
    init = {**_first(config, "single_init_configs"), **shared}
    inputs = {**_first(config, "single_input_configs"), **shared}
    text = as_task_file(source, inputs, init, origin)
    name, title = distinct(task_name(folder.name), taken), task_title(folder.name)
    return kernelbench_task(text, name=name, title=title, origin=origin, level=None, benchmark="robust-kbench")


def as_task_file(source: str, inputs: Mapping[str, Any], init: Mapping[str, Any], origin: str) -> str:
    """A module of robust-kbench as a task file: settings in module constants, and ``get_inputs`` without arguments.

    Raises:
        TaskError: a part is missing, or the settings do not fit.
    """
    tree = parse_python(source, origin)
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    model = next((node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "Model"), None)
    if model is None or "get_inputs" not in functions:
        raise TaskError("it has no `class Model` or no `def get_inputs`")
    methods = {node.name: node for node in model.body if isinstance(node, ast.FunctionDef)}
    settings = {**inputs, **init}
    names = {name: _constant_name(name) for name in settings}
    if len(set(names.values())) < len(names):
        raise TaskError("its settings have names that differ only in case")
    inputs = _accepted(functions["get_inputs"], inputs)
    init = _accepted(methods["__init__"], init) if "__init__" in methods else {}
    edits = [*_rename_get_inputs(source, functions["get_inputs"]), *_without_function(methods.get("forward"))]
    head = [f"{names[name]} = {settings[name]!r}" for name in settings]
    arguments = ", ".join(f"{name}={names[name]}" for name in inputs)
    members = ", ".join(f"{name!r}: {names[name]}" for name in init)
    tail = [
        *head,
        "",
        "",
        "def get_inputs():",
        f"    return {_DRAWN}({arguments})",
        "",
        "",
        "def get_init_inputs():",
        f"    return {{{members}}}",
        "",
    ]
    return edited(source, edits).rstrip("\n") + "\n\n\n" + "\n".join(tail)


def _constant_name(name: str) -> str:
    return re.sub(r"\W", "_", name).upper()


def _accepted(function: ast.FunctionDef, values: Mapping[str, Any]) -> Settings:
    """The settings that a function accepts; shared settings go to both functions."""
    arguments = function.args
    if arguments.kwarg is not None:
        return dict(values)
    names = {argument.arg for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)}
    return {name: value for name, value in values.items() if name in names}


def _rename_get_inputs(source: str, function: ast.FunctionDef) -> list[tuple[int, int, int, str]]:
    line = source.split("\n")[function.lineno - 1]
    at = line.find("get_inputs", function.col_offset)
    if at < 0:
        raise TaskError("the name `get_inputs` does not stand on the line of its `def`")
    start = len(line[:at].encode())
    return [(function.lineno, start, start + len("get_inputs"), _DRAWN)]


def _without_function(forward: ast.FunctionDef | None) -> list[tuple[int, int, int, str]]:
    """``forward(self, x, fn=forward_fn)`` as ``forward(self, x)``, with ``fn = forward_fn`` as its first statement."""
    if forward is None or not forward.args.defaults:
        return []
    argument, default = forward.args.args[-1], forward.args.defaults[-1]
    if not isinstance(default, ast.Name) or default.id != "forward_fn" or len(forward.args.args) < 2:
        return []
    before = forward.args.args[-2]
    end = before.annotation or before
    first = forward.body[0]
    is_docstring = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and len(forward.body) > 1
    first = forward.body[1] if is_docstring else first
    if end.end_lineno != default.end_lineno:
        raise TaskError("the parameters of `forward` span several lines, which this loader cannot edit")
    assert end.end_col_offset is not None
    assert default.end_col_offset is not None
    return [
        (default.lineno, end.end_col_offset, default.end_col_offset, ""),
        (first.lineno, first.col_offset, first.col_offset, f"{argument.arg} = forward_fn\n{' ' * first.col_offset}"),
    ]


def _config(path: Path, within: Path) -> Mapping[str, Any]:
    try:
        config = json.loads(read_plain_file(path, _MAX_CONFIG_BYTES, within=within))
    except FileNotFoundError:
        raise TaskError(f"there is no {path.name} next to it") from None
    except (ValueError, RecursionError) as error:
        raise TaskError(f"{path.name} cannot be read: {error}") from error
    if not isinstance(config, dict):
        raise TaskError(f"{path.name} is no JSON object")
    return config


def _first(config: Mapping[str, Any], key: str) -> Settings:
    """The first of a list of settings, or an empty one."""
    settings = config.get(key, [])
    first = settings[0] if isinstance(settings, list) and settings else {}
    if not isinstance(first, dict) or not all(isinstance(name, str) and name.isidentifier() for name in first):
        raise TaskError(f"{_CONFIG}: {key} is no list of settings by name")
    if not all(_is_plain(value) for value in first.values()):
        raise TaskError(f"{_CONFIG}: {key} has a setting that is no number, text, or list of them")
    return first


def _is_plain(value: Any, depth: int = 0) -> bool:
    if isinstance(value, list):
        return all(not isinstance(item, list) or depth < _DEEPEST_SETTING for item in value) and all(
            _is_plain(item, depth + 1) for item in value
        )
    if isinstance(value, int | float):
        return abs(value) <= _LARGEST_SETTING
    return value is None or isinstance(value, str)
