"""What several verbs share: the results folder, output as JSON, consoles, and options."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kernelforge import commands
from kernelforge.errors import UsageError

if TYPE_CHECKING:
    from pydantic import BaseModel
    from rich.console import Console

    from kernelforge.store import Store

DEFAULT_RESULTS = commands.RESULTS

ResultsOption = Annotated[
    Path,
    typer.Option(
        "--results", envvar=commands.RESULTS_VARIABLE, metavar="FOLDER", help="Folder of the results database."
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
    """The results database in a folder; made if need be, unless ``read_only``."""
    from kernelforge.store import DATABASE_NAME, Store

    return Store.open(results / DATABASE_NAME, create=not read_only, read_only=read_only)


def console(*, stderr: bool = False) -> Console:
    """A console that takes no text for markup. Colours only on a terminal, and never with NO_COLOR."""
    from rich.console import Console

    return Console(stderr=stderr, highlight=False, markup=False, emoji=False)


def print_json(view: BaseModel) -> None:
    """Write a view as indented JSON."""
    write_text(json_text(view), None)


def json_text(view: BaseModel) -> str:
    """A view as indented JSON, without a character that a terminal would obey."""
    from kernelforge.report.text import json_printable

    return json_printable(view.model_dump_json(indent=2)) + "\n"


def write_text(text: str, output: Path | None) -> None:
    """Write to a file, whole or not at all, or to stdout when ``output`` is None."""
    if output is None:
        typer.echo(text, nl=not text.endswith("\n"))
        return
    write_bytes(text.encode("utf-8", "backslashreplace"), output)


def write_bytes(content: bytes, output: Path) -> None:
    """Write to a file, whole or not at all."""
    from kernelforge.parts import part_of

    if output.is_dir():
        raise UsageError(f"{output} is a folder: name a file")
    with part_of(output) as part:
        part.write_bytes(content)
        part.replace(output)


def task_reference(name: str) -> str:
    """A task as the loader wants it: a bare name is one of suite ``core``."""
    return name if "/" in name or name.endswith(".py") else f"core/{name}"
