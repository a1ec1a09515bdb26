"""One task file in KernelBench's format, read with ``ast`` alone."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from pathlib import Path

from kernelforge.errors import TaskError
from kernelforge.tasks.constants import Scalar, module_constants
from kernelforge.tasks.reading import read_plain_file
from kernelforge.tasks.syntax import MOST_SOURCE_BYTES, parse_python, plain_text

_MAX_C_BYTES = 1 << 16


@dataclass(frozen=True)
class TaskFile:
    """What the text of a task file says of itself."""

    source: str
    title: str
    """First line of the module's docstring, or the empty string."""
    constants: dict[str, Scalar]
    """Module constants, arithmetic folded."""
    parameters: tuple[str, ...]
    """Names of ``Model.forward``'s positional parameters, without ``self``."""
    tree: ast.Module = field(repr=False, compare=False)
    """The text, parsed."""


def read_task_source(path: Path, *, within: Path | None = None) -> str:
    """Text of a task file, which has to lie in the folder ``within`` where one is given.

    Raises:
        TaskError: the file is missing, is not text, is over 1 MiB, or lies elsewhere.
    """
    advice = "; `kernelforge tasks list` shows the tasks there are"
    return _read_text(path, MOST_SOURCE_BYTES, "task file", advice, within=within)


def read_c_source(path: Path) -> str:
    """Text of a C function that a task has translated.

    Raises:
        TaskError: the file is missing, is not text, is empty, or is over 64 KiB.
    """
    text = _read_text(path, _MAX_C_BYTES, "C file", "; c_source names a file in the suite's folder")
    if not text.strip():
        raise TaskError(f"{path} is empty; c_source names a file with the C function to translate")
    return text


def _read_text(path: Path, most: int, what: str, advice: str, *, within: Path | None = None) -> str:
    """A text file of at most ``most`` bytes; ``advice`` is what its absence is answered with."""
    try:
        raw = read_plain_file(path, most, within=within)
    except FileNotFoundError as error:
        raise TaskError(f"there is no {what} {path}{advice}") from error
    try:
        return plain_text(raw.decode())
    except UnicodeDecodeError as error:
        raise TaskError(f"{path} is not UTF-8 text (byte {error.start})") from error


def parse_task_file(source: str, name: str) -> TaskFile:
    """Check that a text is a task and read what it says. ``name`` is what errors call it.

    Raises:
        TaskError: a syntax error, or no ``Model`` with ``forward``, ``get_inputs`` or ``get_init_inputs``.
    """
    tree = parse_python(source, name)
    functions = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    model = next((node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "Model"), None)
    if model is None:
        raise TaskError(f"{name} has no `class Model(nn.Module)` at module level; a task file needs one")
    if not model.bases:
        raise TaskError(f"{name}, line {model.lineno}: `Model` must derive from `nn.Module`")
    for function in ("get_inputs", "get_init_inputs"):
        if function not in functions:
            what = "the arguments of `forward`" if function == "get_inputs" else "the arguments of `Model(...)`"
            raise TaskError(f"{name} has no `def {function}()` at module level; it returns a list of {what}")
    forward = next((node for node in model.body if isinstance(node, ast.FunctionDef) and node.name == "forward"), None)
    if forward is None:
        raise TaskError(f"{name}, line {model.lineno}: `Model` has no `forward`")
    arguments = [*forward.args.posonlyargs, *forward.args.args]
    docstring = ast.get_docstring(tree) or ""
    return TaskFile(
        source=source,
        title=docstring.split("\n")[0].strip(),
        constants=module_constants(tree),
        parameters=tuple(argument.arg for argument in arguments[1:]),
        tree=tree,
    )
