"""``kernelforge show``: a run, a task's lineage, or an attempt."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from kernelforge.cli.support.options import DEFAULT_RESULTS, JsonOption, ResultsOption, open_store, print_view
from kernelforge.errors import UsageError
from kernelforge.utils.shell_hints import results_option

if TYPE_CHECKING:
    from kernelforge.records import Attempt, Run
    from kernelforge.store import Store
    from kernelforge.store.references import Reference


def show(
    reference: Annotated[
        str,
        typer.Argument(
            metavar="[WHAT]",
            help="RUN, RUN/TASK or RUN/TASK/NUMBER. RUN is an id, a unique beginning of one, or 'latest', and may be "
            "left out before a task of the latest run.",
        ),
    ] = "latest",
    messages: Annotated[bool, typer.Option("--messages", help="With an attempt: every prompt and reply.")] = False,
    candidate: Annotated[
        bool, typer.Option("--candidate", help="With an attempt: its source and plan alone, as 'eval' reads them.")
    ] = False,
    find: Annotated[
        str | None,
        typer.Option(
            "--find", metavar="TEXT", help="Lines of prompts and replies with this text, in upper or lower case."
        ),
    ] = None,
    as_json: JsonOption = False,
    results: ResultsOption = DEFAULT_RESULTS,
) -> None:
    """Show a run, a task's lineage, or an attempt: changes, correctness, speed, and reasons."""
    if find is not None and (not find or messages or candidate):
        raise UsageError("--find needs a text, and neither --messages nor --candidate")
    with open_store(results, read_only=True) as store:
        from kernelforge.store.references import resolve

        named = resolve(store, reference)
        if named.number is None and (messages or candidate):
            option = "--messages" if messages else "--candidate"
            raise UsageError(f"{option} needs an attempt: write RUN/TASK/NUMBER, '{reference}' is none")
        if find is not None:
            _show_found(store, named, find, as_json=as_json)
        elif named.number is not None:
            _show_attempt(store, named, messages=messages, candidate=candidate, as_json=as_json)
        elif named.task is not None:
            _show_task(store, named.run, named.task, as_json=as_json)
        else:
            _show_run(store, named.run, as_json=as_json)


def _show_run(store: Store, run: Run, *, as_json: bool) -> None:
    from kernelforge.report import RunRecords, run_view
    from kernelforge.report.terminal import run_lines

    print_view(run_view(RunRecords.load(store, run, texts=False)), run_lines, as_json=as_json)


def _show_task(store: Store, run: Run, task: str, *, as_json: bool) -> None:
    from kernelforge.report import RunRecords, task_view
    from kernelforge.report.terminal import task_lines

    records = RunRecords.load(store, run, texts=False).full(store, task)
    print_view(task_view(records, task), task_lines, as_json=as_json)


def _show_attempt(store: Store, named: Reference, *, messages: bool, candidate: bool, as_json: bool) -> None:
    from kernelforge.report import attempt_view
    from kernelforge.report.terminal import attempt_lines
    from kernelforge.report.views.run_records import best_of, originals
    from kernelforge.store.references import the_attempt

    attempt = the_attempt(store, named)
    if candidate:
        _print_candidate(attempt)
        return
    attempts = store.attempts(named.run.id, attempt.task)
    view = attempt_view(
        attempt,
        store.attempt(attempt.parent) if attempt.parent else None,
        best=best_of(attempts),
        original=originals(attempts).get(attempt.id),
        task=store.task(named.run.id, attempt.task),
        facts=store.facts(named.run.id, attempt.task),
        messages=messages or as_json,
        results=results_option(store.path.parent),
    )
    print_view(view, attempt_lines, as_json=as_json)


def _show_found(store: Store, named: Reference, sought: str, *, as_json: bool) -> None:
    from kernelforge.report.terminal import search_lines
    from kernelforge.report.views.messages import SearchResults, search
    from kernelforge.store.references import the_attempt

    if named.number is not None:
        attempt = the_attempt(store, named)
        lines = list(search(sought, attempt.task, [attempt]))
    else:
        lines = []
        for task in [named.task] if named.task is not None else named.run.config.tasks:
            attempts, task_messages = store.attempts(named.run.id, task), store.task_messages(named.run.id, task)
            lines += search(sought, task, attempts, task_messages)
    view = SearchResults(run=named.run.id, sought=sought, lines=tuple(lines))
    print_view(view, search_lines, as_json=as_json)


def _print_candidate(attempt: Attempt) -> None:
    from kernelforge.candidate import format_reply
    from kernelforge.report.formatting import printable

    candidate = attempt.candidate
    if candidate is None:
        raise UsageError(f"the reply of attempt {attempt.id} held no candidate; see it with --messages")
    typer.echo(printable(format_reply(candidate, f"Attempt {attempt.id}.")), nl=False)
