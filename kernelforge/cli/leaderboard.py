"""``kernelforge leaderboard show``: comparable results side by side."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from kernelforge.cli.common import DEFAULT_RESULTS, JsonOption, ResultsOption, console, open_store, write_text
from kernelforge.errors import UsageError

app = typer.Typer(
    help="Compare runs. Only results of equal device, tasks, baseline, precision and timing share a board.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


class Format(StrEnum):
    TERMINAL = "terminal"
    MARKDOWN = "markdown"
    JSON = "json"
    CSV = "csv"


@app.callback()
def _group() -> None:
    """Keeps ``show`` a verb of its own while it is the only one."""


@app.command("show")
def show(
    run: Annotated[
        list[str] | None, typer.Option("--run", metavar="RUN", help="Only this run; repeat for more. All if left out.")
    ] = None,
    form: Annotated[Format, typer.Option("--format", help="Form of the output.")] = Format.TERMINAL,
    as_json: JsonOption = False,
    output: Annotated[
        Path | None, typer.Option("--output", metavar="FILE", help="Write to a file (not with --format terminal).")
    ] = None,
    results: ResultsOption = DEFAULT_RESULTS,
) -> None:
    """Show every board: its runs, and the best result per task."""
    from kernelforge.report import RunRecords, leaderboard
    from kernelforge.report.documents import leaderboard_csv, leaderboard_markdown

    if as_json:
        form = Format.JSON
    if output is not None and form is Format.TERMINAL:
        raise UsageError("--output needs --format markdown, json or csv")
    with open_store(results, read_only=True) as store:
        chosen = {store.run(which).id for which in run or ()}
        runs = [one for one in store.runs() if not chosen or one.id in chosen]
        view = leaderboard([RunRecords.load(store, one) for one in runs])
    if form is Format.JSON:
        write_text(view.model_dump_json(indent=2) + "\n", output)
    elif form is Format.CSV:
        write_text(leaderboard_csv(view), output)
    elif form is Format.MARKDOWN:
        write_text(leaderboard_markdown(view), output)
    else:
        from kernelforge.report.terminal import leaderboard_lines

        console().print(leaderboard_lines(view))
