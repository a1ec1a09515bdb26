"""``kernelforge select-metrics``: the metrics that go with the time of a run's candidates."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kernelforge.cli.support.options import DEFAULT_RESULTS, JsonOption, ResultsOption, console, open_store, write_text
from kernelforge.errors import UsageError

if TYPE_CHECKING:
    from kernelforge.report.views.metric_selection import MetricSelection


def select_metrics(
    run: Annotated[
        list[str] | None,
        typer.Argument(metavar="[RUN]...", help="Ids of runs, 'latest' (if left out), or 'all'."),
    ] = None,
    task: Annotated[
        list[str] | None, typer.Option("--task", metavar="NAME", help="Only this task; repeat for more.")
    ] = None,
    gpu: Annotated[
        str | None, typer.Option("--gpu", metavar="NAME", help="Only this GPU, by the name in the table.")
    ] = None,
    ends: Annotated[
        int, typer.Option("--ends", metavar="N", min=2, help="Fastest, and slowest, candidates of a task that count.")
    ] = 5,
    top: Annotated[
        int, typer.Option("--top", metavar="N", min=1, help="Strongest correlations of a task that count.")
    ] = 20,
    tasks: Annotated[
        int, typer.Option("--tasks", metavar="N", min=1, help="Tasks in which a metric has to recur.")
    ] = 2,
    percentile: Annotated[
        float,
        typer.Option("--percentile", metavar="P", min=0, max=100, help="Of mean correlations; chosen ones are above."),
    ] = 75,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write the chosen names here, for --metrics.")
    ] = None,
    as_json: JsonOption = False,
    results: ResultsOption = DEFAULT_RESULTS,
) -> None:
    """Choose the metrics that go with the time of correct candidates, per GPU, as CudaForge chose its 24.

    'kernelforge run --metrics FILE' shows these to the agents. The exit code is 1 if none is chosen.
    """
    from pydantic import RootModel

    from kernelforge.cli.support.options import print_json
    from kernelforge.report.terminal import selection_lines
    from kernelforge.report.views.metric_selection import MetricSelection, metric_selections, names_file

    with open_store(results, read_only=True) as store:
        named = run or ["latest"]
        runs = {item.id: item for name in named for item in (store.runs() if name == "all" else [store.run(name)])}
        names = {name for item in runs.values() for name in item.config.tasks}
        if unknown := next((name for name in task or () if name not in names), None):
            raise UsageError(f"no task '{unknown}' there; there is: {', '.join(sorted(names)) or 'none'}")
        attempts = [
            attempt
            for item in runs.values()
            for name in item.config.tasks
            if task is None or name in task
            for attempt in store.attempts(item.id, name)
        ]
    selections = metric_selections(attempts, ends=ends, top=top, tasks=tasks, percentile=percentile)
    selections = tuple(item for item in selections if gpu is None or item.gpu == gpu)
    if not selections:
        raise UsageError("there is no attempt" if gpu is None else f"there is no attempt on '{gpu}'")
    if output is not None:
        write_text(names_file(_only_gpu(selections), list(runs)), output)
    if as_json:
        print_json(RootModel[tuple[MetricSelection, ...]](selections))
    else:
        console().print(selection_lines(selections))
    if not any(item.names for item in selections):
        raise typer.Exit(1)


def _only_gpu(selections: tuple[MetricSelection, ...]) -> MetricSelection:
    if len(selections) > 1:
        raise UsageError(f"metrics are chosen per GPU: say --gpu, one of {', '.join(item.gpu for item in selections)}")
    if not selections[0].names:
        raise UsageError("no metric recurs with one sign and a strong correlation; nothing is written")
    return selections[0]
