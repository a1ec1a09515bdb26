"""``--format`` of the verbs that show a view: on the terminal, or as a document on stdout or in a file."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from kernelforge.cli.common import console, json_text, write_text
from kernelforge.errors import UsageError

if TYPE_CHECKING:
    from pydantic import BaseModel
    from rich.console import RenderableType


V = TypeVar("V", bound="BaseModel")


class Form(StrEnum):
    """What ``--format`` may be."""

    TERMINAL = "terminal"
    MARKDOWN = "markdown"
    JSON = "json"
    CSV = "csv"


FormOption = Annotated[Form, typer.Option("--format", help="Form of the output.")]
DocumentOption = Annotated[
    Path | None, typer.Option("--output", metavar="FILE", help="Write to a file (not with --format terminal).")
]


def chosen_form(form: Form, *, as_json: bool, output: Path | None) -> Form:
    """The form that the options ask for.

    Raises:
        UsageError: the terminal's form is to be written to a file.
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
    """Write a view in a form, each made by its function."""
    if form is Form.TERMINAL:
        console().print(terminal(view))
    elif form is Form.JSON:
        write_text(json_text(view), output)
    else:
        write_text((csv if form is Form.CSV else markdown)(view), output)
