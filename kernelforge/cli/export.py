"""``kernelforge export``: attempts as JSON lines."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kernelforge.cli.common import DEFAULT_RESULTS, ResultsOption, open_store, write_text
from kernelforge.errors import UsageError


def export(
    run: Annotated[
        str, typer.Argument(metavar="[RUN]", help="Id of a run, a unique beginning of one, 'latest', or 'all'.")
    ] = "latest",
    task: Annotated[
        list[str] | None, typer.Option("--task", metavar="NAME", help="Only this task; repeat for more.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", metavar="FILE", help="Write to a file, whole or not at all; else stdout.")
    ] = None,
    results: ResultsOption = DEFAULT_RESULTS,
) -> None:
    """Write attempts as JSONL: prompt, reply, finding, candidate, verdict, reward, metrics and fingerprint."""
    from kernelforge.report import export_lines

    with open_store(results, read_only=True) as store:
        runs = store.runs() if run == "all" else [store.run(run)]
        known = {name for one in runs for name in one.config.tasks}
        unknown = [name for name in task or () if name not in known]
        if unknown:
            raise UsageError(f"no task '{unknown[0]}' in {run}; there is: {', '.join(sorted(known)) or 'none'}")
        lines = [
            line
            for one in runs
            for name in (task or [None])  # type: ignore[list-item]
            for line in export_lines(store.attempts(one.id, name))
        ]
    write_text("".join(line + "\n" for line in lines), output)
    if output is not None:
        typer.echo(f"{len(lines)} attempts written to {output}", err=True)
