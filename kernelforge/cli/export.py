"""``kernelforge export``: attempts as JSON lines."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kernelforge.cli.support.options import DEFAULT_RESULTS, ResultsOption, open_store, write_text
from kernelforge.errors import UsageError

if TYPE_CHECKING:
    from kernelforge.records import Message, Run
    from kernelforge.store import Store


class Format(StrEnum):
    """Values of ``--format``."""

    ATTEMPTS = "attempts"
    TRANSCRIPT = "transcript"


def export(
    run: Annotated[
        str, typer.Argument(metavar="[RUN]", help="Id of a run, a unique beginning of stored_run, 'latest', or 'all'.")
    ] = "latest",
    task: Annotated[
        list[str] | None, typer.Option("--task", metavar="NAME", help="Only this task; repeat for more.")
    ] = None,
    format_: Annotated[
        Format, typer.Option("--format", help="Attempts, or a transcript of prompts and replies for 'replay:FILE'.")
    ] = Format.ATTEMPTS,
    written_by: Annotated[
        str, typer.Option("--written-by", metavar="NAME", help="Who wrote a transcript's replies.")
    ] = "",
    output: Annotated[
        Path | None, typer.Option("--output", metavar="FILE", help="Write to a file, whole or not at all; else stdout.")
    ] = None,
    results: ResultsOption = DEFAULT_RESULTS,
) -> None:
    """Write attempts as JSONL: prompt, reply, finding, candidate, verdict, reward, metrics and fingerprint.

    With '--format transcript': every prompt with its reply, as 'replay:FILE' plays them.
    """
    from kernelforge.report import export_lines

    if format_ is Format.TRANSCRIPT and not written_by:
        raise UsageError("a transcript names its author: give --written-by, such as a model's full name")
    if format_ is Format.ATTEMPTS and written_by:
        raise UsageError("--written-by belongs to '--format transcript'")

    with open_store(results, read_only=True) as store:
        runs = store.runs() if run == "all" else [store.run(run)]
        names = {name for stored_run in runs for name in stored_run.config.tasks}
        unknown = [name for name in task or () if name not in names]
        if unknown:
            raise UsageError(f"no task '{unknown[0]}' in {run}; there is: {', '.join(sorted(names)) or 'none'}")
        attempts = [
            attempt
            for stored_run in runs
            for name in task or stored_run.config.tasks
            if name in stored_run.config.tasks
            for attempt in store.attempts(stored_run.id, name)
        ]
        if format_ is Format.ATTEMPTS:
            text, what = "".join(line + "\n" for line in export_lines(attempts)), f"{len(attempts)} attempts"
        else:
            from kernelforge.llm.recording import transcript_lines

            task_messages = _task_messages(store, runs, task)
            lines = list(transcript_lines(attempts, task_messages, written_by=written_by))
            text, what = "".join(lines), f"{len(lines) - 1} replies"
    write_text(text, output)
    if output is not None:
        typer.echo(f"{what} written to {output}", err=True)


def _task_messages(store: Store, runs: list[Run], tasks: list[str] | None) -> dict[str, list[Message]]:
    """Messages about each task outside attempts."""
    messages: dict[str, list[Message]] = {}
    for run in runs:
        for name in tasks or run.config.tasks:
            messages.setdefault(name, []).extend(store.task_messages(run.id, name))
    return messages
