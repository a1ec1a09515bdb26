"""Output of commands: databases opened with clear errors, text for people or JSON for programs."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from kernelforge.errors import UsageError
from kernelforge.utils import shell_hints

if TYPE_CHECKING:
    from pydantic import BaseModel
    from rich.console import Console, RenderableType

    from kernelforge.store import Store


DEFAULT_RESULTS = shell_hints.RESULTS

ResultsOption = Annotated[
    Path,
    typer.Option(
        "--results", envvar=shell_hints.RESULTS_VARIABLE, metavar="FOLDER", help="Folder of the results database."
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for programs instead of text for people.")]
DeviceOption = Annotated[
    str | None, typer.Option("--device", metavar="NAME", help="Where candidates run; the best device here if left out.")
]
OfferedSuites = Annotated[
    list[str] | None,
    typer.Option("--suite", metavar="SUITE", help="Offer this suite, or folder; repeat for more. Else all shipped."),
]
OfferedTasks = Annotated[
    list[str] | None,
    typer.Option("--task", metavar="NAME", help="Offer only this task of the suite; repeat for more."),
]
UnconfinedOption = Annotated[
    bool,
    typer.Option(
        "--allow-unconfined",
        help="Go on where no jail works. Recorded on every result; such results are never rewarded.",
    ),
]


def open_store(results: Path, *, read_only: bool = False) -> Store:
    """Results database in a folder; created if missing, unless ``read_only``."""
    from kernelforge.store import DATABASE_NAME, Store

    return Store.open(results / DATABASE_NAME, create=not read_only, read_only=read_only)


def console(*, stderr: bool = False) -> Console:
    """Console without markup. Colours only on a terminal, and never with NO_COLOR."""
    from rich.console import Console

    return Console(stderr=stderr, highlight=False, markup=False, emoji=False)


def print_json(view: BaseModel) -> None:
    """Write a view as indented JSON."""
    write_text(json_text(view), None)


def json_text(view: BaseModel) -> str:
    """A view as indented JSON, without control characters."""
    from kernelforge.report.formatting import json_printable

    return json_printable(view.model_dump_json(indent=2)) + "\n"


def write_text(text: str, output: Path | None) -> None:
    """Write to a file, atomically, or to stdout when ``output`` is None."""
    if output is None:
        typer.echo(text, nl=not text.endswith("\n"))
        return
    write_bytes(text.encode("utf-8", "backslashreplace"), output)


def write_bytes(content: bytes, output: Path) -> None:
    """Write to a file, atomically."""
    from kernelforge.utils.atomic_files import atomic_write

    if output.is_dir():
        raise UsageError(f"{output} is a folder: name a file")
    with atomic_write(output) as part:
        part.write_bytes(content)
        part.replace(output)


def task_reference(name: str) -> str:
    """Task reference for the loader: a bare name is a task of suite ``core``."""
    return name if "/" in name or name.endswith(".py") else f"core/{name}"


V = TypeVar("V", bound="BaseModel")


class Form(StrEnum):
    """Values of ``--format``."""

    TERMINAL = "terminal"
    MARKDOWN = "markdown"
    JSON = "json"
    CSV = "csv"


FormOption = Annotated[Form, typer.Option("--format", help="Form of the output.")]
DocumentOption = Annotated[
    Path | None, typer.Option("--output", metavar="FILE", help="Write to a file (not with --format terminal).")
]


def chosen_form(form: Form, *, as_json: bool, output: Path | None) -> Form:
    """Form of the output, from the options.

    Raises:
        UsageError: the terminal form with a file.
    """
    form = Form.JSON if as_json else form
    if output is not None and form is Form.TERMINAL:
        raise UsageError("--output needs --format markdown, json or csv")
    return form


def write_view(
    view: V,
    form: Form,
    output: Path | None,
    *,
    markdown: Callable[[V], str],
    csv: Callable[[V], str],
    terminal: Callable[[V], RenderableType],
) -> None:
    """Write a view in the form, with the function for that form."""
    if form is Form.TERMINAL:
        console().print(terminal(view))
    elif form is Form.JSON:
        write_text(json_text(view), output)
    else:
        write_text((csv if form is Form.CSV else markdown)(view), output)
