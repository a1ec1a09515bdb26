"""``kernelforge compare``: two runs side by side."""

from __future__ import annotations

from typing import Annotated

import typer

from kernelforge.cli.support.output import (
    DEFAULT_RESULTS,
    DocumentOption,
    Form,
    FormOption,
    JsonOption,
    ResultsOption,
    chosen_form,
    open_store,
    write_view,
)
from kernelforge.cli.support.references import distinct_runs


def compare(
    a: Annotated[str, typer.Argument(metavar="A", help="A run, as for 'show': the one to compare with.")],
    b: Annotated[str, typer.Argument(metavar="B", help="The run that is judged: does it do better or worse than A?")],
    form: FormOption = Form.TERMINAL,
    as_json: JsonOption = False,
    output: DocumentOption = None,
    results: ResultsOption = DEFAULT_RESULTS,
) -> None:
    """Compare two runs, task by task, regressions first."""
    from kernelforge.report import RunRecords
    from kernelforge.report.exports import compare_markdown
    from kernelforge.report.tables.task import compare_table
    from kernelforge.report.terminal import compare_lines
    from kernelforge.report.views.compare import compare_view

    form = chosen_form(form, as_json=as_json, output=output)
    with open_store(results, read_only=True) as store:
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
