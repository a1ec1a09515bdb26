"""``kernelforge compare`` and ``kernelforge diff``: two runs, or two attempts, side by side."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from kernelforge.cli.support.options import (
    DEFAULT_RESULTS,
    DocumentOption,
    Form,
    FormOption,
    JsonOption,
    ResultsOption,
    chosen_form,
    open_store,
    print_view,
    write_view,
)
from kernelforge.errors import UsageError
from kernelforge.utils.shell_hints import results_option, shell_command

if TYPE_CHECKING:
    from kernelforge.records import Attempt
    from kernelforge.store import Store


def compare(
    a: Annotated[str, typer.Argument(metavar="A", help="A run, as for 'show': the one to compare with.")],
    b: Annotated[
        str | None,
        typer.Argument(
            metavar="[B]", help="The run that is judged: better or worse than A? If left out, A's bests against starts."
        ),
    ] = None,
    form: FormOption = Form.TERMINAL,
    as_json: JsonOption = False,
    output: DocumentOption = None,
    results: ResultsOption = DEFAULT_RESULTS,
) -> None:
    """Compare two runs, or one run's bests with what it was started from, task by task, regressions first."""
    from kernelforge.report import RunRecords
    from kernelforge.report.exports import compare_markdown
    from kernelforge.report.tables.task import compare_table
    from kernelforge.report.terminal import compare_lines
    from kernelforge.report.views.compare import compare_view, start_view

    form = chosen_form(form, as_json=as_json, output=output)
    with open_store(results, read_only=True) as store:
        from kernelforge.store.references import distinct_runs

        if b is None:
            view = start_view(RunRecords.load(store, store.run(a), texts=False))
        else:
            runs = distinct_runs(store, a, b)
            view = compare_view(*(RunRecords.load(store, run, texts=False) for run in runs))
    write_view(
        view,
        form,
        output,
        markdown=compare_markdown,
        csv=lambda view: compare_table(view).to_csv(),
        terminal=compare_lines,
    )


class Against(StrEnum):
    """Attempt to compare with where none is named."""

    PARENT = "parent"
    BEST = "best"


def diff(
    attempt: Annotated[str, typer.Argument(metavar="A", help="An attempt, as for 'show': RUN/TASK/NUMBER.")],
    other: Annotated[
        str | None, typer.Argument(metavar="[B]", help="The attempt to compare it with; its parent if left out.")
    ] = None,
    against: Annotated[
        Against | None, typer.Option("--against", help="Instead of B: A's parent, or the best attempt at its task.")
    ] = None,
    source: Annotated[bool, typer.Option("--source", help="The source alone.")] = False,
    plan: Annotated[bool, typer.Option("--plan", help="The launch plan alone.")] = False,
    as_json: JsonOption = False,
    results: ResultsOption = DEFAULT_RESULTS,
) -> None:
    """Show the difference from attempt B, or from A's parent, to attempt A."""
    from kernelforge.report.terminal import diff_lines
    from kernelforge.report.views.diff import diff_view

    if other is not None and against is not None:
        raise UsageError("name another attempt or use --against, not both")
    names = [name for name, requested in (("source", source), ("plan", plan)) if requested] or ["source", "plan"]
    with open_store(results, read_only=True) as store:
        after = _attempt(store, attempt)
        before = _attempt(store, other) if other is not None else _other(store, after, against or Against.PARENT)
    for compared in (before, after):
        if compared.candidate is None:
            see = shell_command("show", compared.id, options=["--messages"], results=results_option(results))
            raise UsageError(f"the reply of attempt {compared.id} held no candidate; see it with `{see}`")
    print_view(diff_view(before, after, names), diff_lines, as_json=as_json)


def _attempt(store: Store, reference: str) -> Attempt:
    from kernelforge.store.references import resolve, the_attempt

    named = resolve(store, reference)
    if named.number is None:
        raise UsageError(f"diff needs attempts: write RUN/TASK/NUMBER, '{reference}' is none")
    return the_attempt(store, named)


def _other(store: Store, attempt: Attempt, against: Against) -> Attempt:
    from kernelforge.report.views.run_records import best_of

    if against is Against.BEST:
        best = best_of(store.attempts(attempt.run, attempt.task))
        if best is None:
            raise UsageError(f"nothing is correct yet at task '{attempt.task}' of run {attempt.run}")
        return best
    if attempt.parent is None:
        raise UsageError(f"attempt {attempt.id} has no parent: name another attempt, or use --against best")
    return store.attempt(attempt.parent)
