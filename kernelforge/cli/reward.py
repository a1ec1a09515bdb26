"""``kernelforge reward``: list reward policies, and compute rewards of stored attempts again."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kernelforge.cli.support.options import (
    DEFAULT_RESULTS,
    JsonOption,
    ResultsOption,
    console,
    json_text,
    open_store,
    write_text,
)
from kernelforge.errors import UsageError

if TYPE_CHECKING:
    from kernelforge.report.views.recomputed_rewards import Rescored

app = typer.Typer(help="List reward policies, and compute rewards again.", no_args_is_help=True, rich_markup_mode=None)


class Format(StrEnum):
    TABLE = "table"
    JSON = "json"
    CSV = "csv"


@app.command("list")
def list_policies(as_json: JsonOption = False) -> None:
    """List the reward policies with their bounds, components and sources."""
    from kernelforge.rewards import POLICIES

    if as_json:
        import json

        rows = [
            {
                "name": policy.name,
                "title": policy.title,
                "bounds": policy.bounds,
                "parts": policy.parts,
                "source": policy.source,
            }
            for policy in POLICIES.values()
        ]
        typer.echo(json.dumps(rows, indent=2))
        return
    out = console()
    for policy in POLICIES.values():
        low, high = policy.bounds
        out.print(f"{policy.name}  {policy.title}", style="bold", soft_wrap=True)
        out.print(f"  from {low:g} to {high:g}; components: {', '.join(policy.parts)}", soft_wrap=True)
        out.print(f"  {policy.source}\n", soft_wrap=True)


@app.command("recompute")
def recompute(
    run: Annotated[
        str | None,
        typer.Argument(
            metavar="[RUN]",
            help="Id of a run, a unique beginning of one, 'latest' (if left out), or 'all'. With --jobs a run_id, "
            "or 'all' (if left out).",
        ),
    ] = None,
    jobs: Annotated[
        bool, typer.Option("--jobs", help="Jobs of the reward server that have an evaluation, not attempts of runs.")
    ] = False,
    policy: Annotated[
        list[str] | None,
        typer.Option("--policy", metavar="NAME", help="Policy; repeat for more. The one that scored it if left out."),
    ] = None,
    task: Annotated[
        list[str] | None, typer.Option("--task", metavar="NAME", help="Only this task; repeat for more.")
    ] = None,
    form: Annotated[Format, typer.Option("--format", help="Form of the output.")] = Format.TABLE,
    as_json: JsonOption = False,
    output: Annotated[
        Path | None, typer.Option("--output", metavar="FILE", help="Write to a file (not with --format table).")
    ] = None,
    results: ResultsOption = DEFAULT_RESULTS,
) -> None:
    """Compute rewards again from stored evaluations. Needs no device, and leaves the results unchanged."""
    from kernelforge.report.tables.task import rescored_csv, rescored_table
    from kernelforge.report.views.recomputed_rewards import RescoredView
    from kernelforge.rewards import find_policy

    form = Format.JSON if as_json else form
    if output is not None and form is Format.TABLE:
        raise UsageError("--output needs --format json or csv")
    policies = list(dict.fromkeys(find_policy(name).name for name in policy or ()))
    rows = _of_jobs(results, run, policies, task) if jobs else _of_runs(results, run or "latest", policies, task)
    view = RescoredView(rows=rows)
    if form is Format.JSON:
        write_text(json_text(view), output)
    elif form is Format.CSV:
        write_text(rescored_csv(view), output)
    else:
        console().print(rescored_table(view).to_rich())
    typer.echo(f"{view.summary()}; the journal was not changed", err=True)


def _of_runs(results: Path, which: str, policies: list[str], tasks: list[str] | None) -> list[Rescored]:
    """Attempts of one run or of all, under every policy, by task and number."""
    from kernelforge.report.views.recomputed_rewards import rescored_attempts

    rows: list[Rescored] = []
    with open_store(results, read_only=True) as store:
        runs = store.runs() if which == "all" else [store.run(which)]
        _check_tasks({name for item in runs for name in item.config.tasks}, tasks)
        for item in runs:
            names = policies or [item.config.reward]
            for task in item.config.tasks:
                if not tasks or task in tasks:
                    rows += rescored_attempts(store.attempts(item.id, task), names)
    return rows


def _of_jobs(results: Path, run_id: str | None, policies: list[str], tasks: list[str] | None) -> list[Rescored]:
    """Jobs with an evaluation, under every policy, in the order of submission.

    Each job is scored alone: the completions of a group have no order.
    """
    from kernelforge.report.views.recomputed_rewards import rescored
    from kernelforge.rewards import Context
    from kernelforge.server.jobs.results import completed_jobs

    completed = list(completed_jobs(results, None if run_id == "all" else run_id))
    _check_tasks({job.task for job in completed}, tasks)
    return [
        row
        for job in completed
        if not tasks or job.task in tasks
        for row in rescored(
            job.id,
            job.evaluation,
            Context(job.source, profile=job.profile),
            (job.policy, job.reward),
            policies or [job.policy],
        )
    ]


def _check_tasks(names: set[str], requested: list[str] | None) -> None:
    unknown = [name for name in requested or () if name not in names]
    if unknown:
        raise UsageError(f"no task '{unknown[0]}' here; there is: {', '.join(sorted(names)) or 'none'}")
