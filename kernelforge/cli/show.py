"""``kernelforge show``: a run, a task's lineage, or an attempt."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from kernelforge.cli.common import DEFAULT_RESULTS, JsonOption, ResultsOption, console, open_store, print_json
from kernelforge.commands import command, named_results
from kernelforge.errors import UsageError

if TYPE_CHECKING:
    from kernelforge.records import Attempt, Run
    from kernelforge.store import Store


_TASKS_NAMED = 8
"""In an error."""


class Reference(NamedTuple):
    """What a reference names: a run, a task of it, or an attempt at the task."""

    run: Run
    task: str | None = None
    number: int | None = None


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
    as_json: JsonOption = False,
    results: ResultsOption = DEFAULT_RESULTS,
) -> None:
    """Show a run, a task's lineage, or an attempt: what changed, is it right, is it fast, and why."""
    with open_store(results, read_only=True) as store:
        named = resolve(store, reference)
        if named.number is None and (messages or candidate):
            option = "--messages" if messages else "--candidate"
            raise UsageError(f"{option} needs an attempt: write RUN/TASK/NUMBER, '{reference}' is none")
        if named.number is not None:
            _show_attempt(store, named, messages=messages, candidate=candidate, as_json=as_json)
        elif named.task is not None:
            _show_task(store, named.run, named.task, as_json=as_json)
        else:
            _show_run(store, named.run, as_json=as_json)


def resolve(store: Store, reference: str) -> Reference:
    """Find what a reference names.

    Raises:
        UsageError: nothing, or more than one run.
    """
    head, _, rest = reference.partition("/")
    try:
        run = store.run(head)
    except UsageError as unknown_run:
        if not store.runs():
            raise
        latest = store.run("latest")
        try:
            return _within(latest, reference)
        except UsageError:
            tasks = latest.config.tasks
            if (task := reference.rpartition("/")[0]) in tasks:
                see = command("show", task, results=named_results(store.path.parent))
                raise UsageError(f"'{reference}' ends in no attempt's number: see `{see}`") from None
            more = ", ..." if len(tasks) > _TASKS_NAMED else ""
            named = ", ".join(tasks[:_TASKS_NAMED])
            raise UsageError(f"{unknown_run}; tasks of the latest run: {named}{more}") from None
    return _within(run, rest) if rest else Reference(run)


def _within(run: Run, rest: str) -> Reference:
    """A task, or a task and a number, of a run. Names of tasks may hold slashes."""
    if rest in run.config.tasks:
        return Reference(run, rest)
    task, _, number = rest.rpartition("/")
    if task in run.config.tasks and number.isdecimal():
        return Reference(run, task, int(number))
    raise UsageError(f"run {run.id} has no task '{task or rest}'; it has: {', '.join(run.config.tasks)}")


def _show_run(store: Store, run: Run, *, as_json: bool) -> None:
    from kernelforge.report import RunRecords, run_view

    view = run_view(RunRecords.load(store, run, texts=False))
    if as_json:
        print_json(view)
    else:
        from kernelforge.report.terminal import run_lines

        console().print(run_lines(view))


def _show_task(store: Store, run: Run, task: str, *, as_json: bool) -> None:
    from kernelforge.report import RunRecords, task_view

    view = task_view(RunRecords.load(store, run, texts=False).full(store, task), task)
    if as_json:
        print_json(view)
    else:
        from kernelforge.report.terminal import task_lines

        console().print(task_lines(view))


def _show_attempt(store: Store, named: Reference, *, messages: bool, candidate: bool, as_json: bool) -> None:
    from kernelforge.report import attempt_view
    from kernelforge.report.views.summary import best_of

    attempt = the_attempt(store, named)
    if candidate:
        _print_candidate(attempt)
        return
    view = attempt_view(
        attempt,
        store.attempt(attempt.parent) if attempt.parent else None,
        best=best_of(store.attempts(named.run.id, attempt.task)),
        task=store.task(named.run.id, attempt.task),
        facts=store.facts(named.run.id, attempt.task),
        messages=messages or as_json,
        results=named_results(store.path.parent),
    )
    if as_json:
        print_json(view)
    else:
        from kernelforge.report.terminal import attempt_lines

        console().print(attempt_lines(view))


def the_attempt(store: Store, named: Reference) -> Attempt:
    """The attempt that a reference with a number names.

    Raises:
        UsageError: there is none of that number.
    """
    return store.attempt(f"{named.run.id}/{named.task}/{named.number}")


def _print_candidate(attempt: Attempt) -> None:
    from kernelforge.candidate import format_reply
    from kernelforge.report.text import printable

    candidate = attempt.candidate
    if candidate is None:
        raise UsageError(f"the reply of attempt {attempt.id} held no candidate; see it with --messages")
    typer.echo(printable(format_reply(candidate, f"Attempt {attempt.id}.")), nl=False)
