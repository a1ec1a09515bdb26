"""``kernelforge compare``: two runs side by side."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from kernelforge.cli.common import (
    DEFAULT_RESULTS,
    JsonOption,
    ResultsOption,
    console,
    json_text,
    open_store,
    write_text,
)
from kernelforge.errors import UsageError


class Form(StrEnum):
    """What ``--format`` may be."""

    TERMINAL = "terminal"
    MARKDOWN = "markdown"
    JSON = "json"
    CSV = "csv"


def compare(
    a: Annotated[str, typer.Argument(metavar="A", help="A run, as for 'show': the one to compare with.")],
    b: Annotated[str, typer.Argument(metavar="B", help="The run that is judged: does it do better or worse than A?")],
    form: Annotated[Form, typer.Option("--format", help="Form of the output.")] = Form.TERMINAL,
    as_json: JsonOption = False,
    output: Annotated[
        Path | None, typer.Option("--output", metavar="FILE", help="Write to a file (not with --format terminal).")
    ] = None,
    results: ResultsOption = DEFAULT_RESULTS,
) -> None:
    """Compare two runs, task by task, regressions first."""
    from kernelforge.report import RunRecords
    from kernelforge.report.tables.compare import compare_table
    from kernelforge.report.views.compare import compare_view

    if as_json:
        form = Form.JSON
    if output is not None and form is Form.TERMINAL:
        raise UsageError("--output needs --format markdown, json or csv")
    with open_store(results, read_only=True) as store:
        runs = [store.run(which) for which in (a, b)]
        if runs[0].id == runs[1].id:
            raise UsageError(f"'{a}' and '{b}' are one run, {runs[0].id}: name two")
        view = compare_view(*(RunRecords.load(store, run, texts=False) for run in runs))
    if form is Form.JSON:
        write_text(json_text(view), output)
    elif form is Form.CSV:
        write_text(compare_table(view).to_csv(), output)
    elif form is Form.MARKDOWN:
        from kernelforge.report.documents.compare import compare_markdown

        write_text(compare_markdown(view), output)
    else:
        from kernelforge.report.terminal import compare_lines

        console().print(compare_lines(view))
