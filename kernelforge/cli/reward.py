"""``kernelforge reward``: the policies, and what stored attempts earn under them."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kernelforge.cli.common import DEFAULT_RESULTS, JsonOption, ResultsOption, console, open_store, write_text
from kernelforge.errors import UsageError

if TYPE_CHECKING:
    from kernelforge.records import Run
    from kernelforge.report.rescored import Rescored
    from kernelforge.store import Store

app = typer.Typer(help="List reward policies, and compute rewards again.", no_args_is_help=True, rich_markup_mode=None)


class Format(StrEnum):
    TABLE = "table"
    JSON = "json"
    CSV = "csv"


@app.command("list")
def list_policies(as_json: JsonOption = False) -> None:
    """List the reward policies: what each rewards, its bounds, where it comes from and what was decided here."""
    from kernelforge.rewards import POLICIES

    if as_json:
        import json

        found = [
            {"name": one.name, "title": one.title, "bounds": one.bounds, "parts": one.parts, "source": one.source}
            for one in POLICIES.values()
        ]
        typer.echo(json.dumps(found, indent=2))
        return
    out = console()
    for one in POLICIES.values():
        low, high = one.bounds
        out.print(f"{one.name}  {one.title}", style="bold", soft_wrap=True)
        out.print(f"  from {low:g} to {high:g}; components: {', '.join(one.parts)}", soft_wrap=True)
        out.print(f"  {one.source}\n", soft_wrap=True)


@app.command("recompute")
def recompute(
    run: Annotated[
        str, typer.Argument(metavar="[RUN]", help="Id of a run, a unique beginning of one, 'latest', or 'all'.")
    ] = "latest",
    policy: Annotated[
        list[str] | None,
        typer.Option("--policy", metavar="NAME", help="Policy; repeat for more. The run's own if left out."),
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
    """Compute rewards again from stored evaluations. Needs no device, and changes nothing in the results."""
    from kernelforge.report.rescored import rescored_view
    from kernelforge.rewards import find_policy

    form = Format.JSON if as_json else form
    if output is not None and form is Format.TABLE:
        raise UsageError("--output needs --format json or csv")
    policies = list(dict.fromkeys(find_policy(name).name for name in policy or ()))
    with open_store(results, read_only=True) as store:
        runs = store.runs() if run == "all" else [store.run(run)]
        _check_tasks(runs, task or [])
        rows = [row for one in runs for row in _rescored(store, one, policies, task)]
    view = rescored_view(rows)
    if form is Format.JSON:
        write_text(view.model_dump_json(indent=2) + "\n", output)
    elif form is Format.CSV:
        write_text(view.to_csv(), output)
    else:
        console().print(view.table().to_rich())
    typer.echo(f"{view.summary()}; the journal was not changed", err=True)


def _check_tasks(runs: list[Run], tasks: list[str]) -> None:
    known = {name for one in runs for name in one.config.tasks}
    unknown = [name for name in tasks if name not in known]
    if unknown:
        raise UsageError(f"no task '{unknown[0]}' in these runs; there is: {', '.join(sorted(known)) or 'none'}")


def _rescored(store: Store, run: Run, policies: list[str], tasks: list[str] | None) -> list[Rescored]:
    """Every attempt of a run under every policy, by task and number."""
    from kernelforge.report.rescored import rescored

    names = policies or [run.config.reward]
    chosen = [name for name in run.config.tasks if not tasks or name in tasks]
    return [row for name in chosen for row in rescored(store.attempts(run.id, name), names)]
