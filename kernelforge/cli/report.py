"""``kernelforge report``: runs as web pages."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kernelforge.cli.common import DEFAULT_RESULTS, ResultsOption, open_store


def report(
    run: Annotated[
        list[str] | None,
        typer.Argument(metavar="[RUN]...", help="Ids of runs, unique beginnings of them, or 'latest'."),
    ] = None,
    output: Annotated[Path | None, typer.Option("--output", metavar="FOLDER", help="Where the report goes.")] = None,
    results: ResultsOption = DEFAULT_RESULTS,
) -> None:
    """Write runs as web pages that need no network."""
    from kernelforge.report import RunRecords
    from kernelforge.report.html.site import Site
    from kernelforge.report.html.write import write_folder

    with open_store(results, read_only=True) as store:
        found = {one.id: one for one in map(store.run, run or ["latest"])}
        records = [RunRecords.load(store, one) for one in found.values()]
    folder = output or results / "report"
    write_folder(Site(records), folder)
    typer.echo(str(folder / "index.html"))
