"""Files of a suite: ``suite.toml``, and task files in KernelBench's format.

They are plain files, read within limits, task files then with ``ast`` alone. ``docs/tasks.md`` describes the keys of
``suite.toml``.
"""

from __future__ import annotations

import ast
import os
import re
import stat
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from kernelforge.candidate.reply import parse_reply
from kernelforge.errors import CandidateError, TaskError
from kernelforge.records import SourceLanguage, first_fault
from kernelforge.tasks.constants import MOST_SOURCE_BYTES, Scalar, module_constants, parse_python, plain_text

_MOST_TOML_BYTES = 8 << 20

_LONG_KEY = re.compile(r"""(?<![\w-])(?:(?:[\w-]+|"[^"\n]*"|'[^'\n]*')[ \t]*\.[ \t]*){32}""")
"""``a.a.a...``: ``tomllib`` takes quadratic time over the parts of a key."""


def read_plain_file(path: Path, most: int, *, within: Path | None = None) -> bytes:
    """Content of a plain file of at most ``most`` bytes.

    Args:
        within: a folder that must contain the file, after links are followed.

    Raises:
        FileNotFoundError: there is no such file.
        TaskError: it is a folder, a pipe or a device, is too large, cannot be read, or lies outside ``within``.
    """
    if within is not None and not is_within(path, within):
        raise TaskError(f"{path} lies outside the folder {within}")
    try:
        # A plain open of a pipe without a writer would block.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise
    except (OSError, ValueError) as error:
        raise TaskError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise TaskError(f"{path} is no plain file")
    with os.fdopen(descriptor, "rb") as file:
        try:
            raw = file.read(most + 1)
        except OSError as error:
            raise TaskError(f"cannot read {path}: {error.strerror}") from error
    if len(raw) > most:
        raise TaskError(f"{path} has more than {most:,} bytes")
    return raw


def is_within(path: Path, folder: Path) -> bool:
    """Whether a path, after links are followed, is the folder or below it; False for an invalid path."""
    try:
        return path.resolve().is_relative_to(folder.resolve())
    except (OSError, ValueError, RuntimeError):
        # A null byte in the name, a name that is too long, circular links.
        return False


def read_toml(path: Path) -> dict[str, Any]:
    """Parse a TOML file.

    Raises:
        TaskError: it cannot be read, or is not TOML; the message names it.
    """
    try:
        raw = read_plain_file(path, _MOST_TOML_BYTES)
    except FileNotFoundError as error:
        raise TaskError(f"cannot read {path}: {error.strerror}") from error
    try:
        text = raw.decode("utf-8")
        if _LONG_KEY.search(text):
            raise TaskError(f"{path}: a key has more than 32 parts")
        return tomllib.loads(text)
    except RecursionError as error:
        raise TaskError(f"{path} cannot be read as TOML: it is nested too deeply") from error
    except ValueError as error:
        raise TaskError(f"{path} is not TOML: {error}") from error


_MAX_C_BYTES = 1 << 16


@dataclass(frozen=True)
class TaskFile:
    """The parsed text of a task file."""

    source: str
    title: str
    """First line of the module's docstring, or the empty string."""
    constants: dict[str, Scalar]
    """Module constants, arithmetic folded."""
    parameters: tuple[str, ...]
    """Names of ``Model.forward``'s positional parameters, without ``self``."""
    tree: ast.Module = field(repr=False, compare=False)
    """Syntax tree of the text."""


def read_task_source(path: Path, *, within: Path | None = None) -> str:
    """Text of a task file, which must lie in the folder ``within`` if given.

    Raises:
        TaskError: the file is missing, is not text, is over 1 MiB, or lies elsewhere.
    """
    advice = "; `kernelforge tasks list` shows the tasks there are"
    return _read_text(path, MOST_SOURCE_BYTES, "task file", advice, within=within)


LANGUAGES: Final[dict[str, SourceLanguage]] = {".c": "c", ".cpp": "cpp", ".f90": "fortran"}
"""Languages of sequential code by the ends of file names."""


def read_c_source(path: Path) -> str:
    """Text of the function of a translation task.

    Raises:
        TaskError: the file is missing, is not text, is empty, is over 64 KiB, or its name has another end.
    """
    if path.suffix not in LANGUAGES:
        raise TaskError(f"{path} is of no known language; c_source names a file that ends in {', '.join(LANGUAGES)}")
    text = _read_text(path, _MAX_C_BYTES, "C file", "; c_source names a file in the suite's folder")
    if not text.strip():
        raise TaskError(f"{path} is empty; c_source names a file with the function to translate")
    return text


def read_translation(path: Path) -> str:
    """Text of the right candidate of a translation task, as a reply.

    Raises:
        TaskError: the file is missing, is not text, is over 64 KiB, or holds no candidate.
    """
    text = _read_text(path, _MAX_C_BYTES, "reply", "; translation names a file in the suite's folder")
    try:
        parse_reply(text)
    except CandidateError as error:
        raise TaskError(f"{path} is no right candidate: {error}") from error
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


MANIFEST = "suite.toml"

Plain = Annotated[str, Field(pattern=r"^[^\x00-\x1f\x7f-\x9f]+$", max_length=1000)]
"""A name or a path: errors quote it, on one line."""


class Entry(BaseModel):
    """Common keys of ``[[task]]`` and ``[[grid]]``."""

    model_config = ConfigDict(extra="forbid", strict=True)

    name: Plain
    file: Plain | None = None
    c_source: Plain | None = None
    translation: Plain | None = None
    """A reply with a right candidate, for a task with ``c_source``."""
    title: str | None = None
    level: int | None = None
    tags: list[str] = []
    small: dict[str, Scalar] = {}
    hidden: dict[str, dict[str, Scalar]] = {}
    policy: dict[str, Any] = {}
    license: str | None = None


class TaskEntry(Entry):
    """One ``[[task]]``."""

    full: dict[str, Scalar] = {}
    """Constants of the size ``full``, for a suite that has a ``base``."""


class GridEntry(Entry):
    """One ``[[grid]]``: a task for each combination of values. ``name`` and ``title`` are ``str.format`` templates."""

    file: Plain
    full: dict[str, list[Scalar]] = Field(min_length=1)


class Manifest(BaseModel):
    """A complete ``suite.toml``."""

    model_config = ConfigDict(extra="forbid", strict=True)

    title: str
    base: Plain | None = None
    description: str = ""
    level: int = Field(default=1, ge=0)
    tags: list[str] = []
    policy: dict[str, Any] = {}
    license: str = ""
    task: list[TaskEntry] = []
    grid: list[GridEntry] = []

    @model_validator(mode="after")
    def _makes_tasks(self) -> Manifest:
        if self.base is None and not (self.task or self.grid):
            raise ValueError("there is no [[task]], no [[grid]] and no base, so the suite would be empty")
        if self.base is not None and self.grid:
            raise ValueError("a suite with a base takes its tasks from there; it has no [[grid]] of its own")
        if self.base is not None and "level" in self.model_fields_set:
            raise ValueError("a suite with a base takes its tasks' levels from there; it sets no level")
        return self


def read_manifest(path: Path) -> Manifest:
    """Read a ``suite.toml``.

    Raises:
        TaskError: it cannot be read, is not TOML, or has invalid keys.
    """
    try:
        return Manifest.model_validate(read_toml(path))
    except ValidationError as error:
        raise TaskError(f"{path}: {first_fault(error)}") from error
