"""``kernelforge tasks import``: another benchmark's tasks as a suite, with sizes chosen for it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kernelforge.cli.support.output import JsonOption, UnconfinedOption, console
from kernelforge.errors import UsageError

if TYPE_CHECKING:
    from kernelforge.evaluation.size_search import SizeChoice
    from kernelforge.tasks.loaders import ExternalTask, Loaded, NotLoaded
    from kernelforge.tasks.loaders.write_suite import SizedTask

FORMATS = ("kernelbench", "kernelbench-parquet", "robust-kbench", "ops-6k", "flashinfer-bench", "sol-execbench")
"""Names of the loaders, which are not imported only to be named."""

_WIDEST = 2000


def import_tasks(
    source: Annotated[Path, typer.Argument(metavar="SOURCE", help="A checkout, a folder or a file, see --format.")],
    output: Annotated[
        Path,
        typer.Option("--output", "-o", metavar="FOLDER", help="The suite to make: a folder that is not there yet."),
    ],
    format_name: Annotated[
        str | None,
        typer.Option(
            "--format",
            metavar="NAME",
            help=f"What SOURCE is: {', '.join(FORMATS)}. Found out by its files if left out.",
        ),
    ] = None,
    level: Annotated[int | None, typer.Option("--level", min=0, help="Only this level.")] = None,
    limit: Annotated[int | None, typer.Option("--limit", min=1, metavar="N", help="Only the first N tasks.")] = None,
    jobs: Annotated[
        int | None,
        typer.Option(
            "--jobs", min=1, metavar="N", help="Tasks at a time; one per core, as memory allows, if left out."
        ),
    ] = None,
    allow_unconfined: UnconfinedOption = False,
    as_json: JsonOption = False,
) -> None:
    """Make a suite of another benchmark's tasks, with small and hidden sizes. Leaves with 1 if none can be used."""
    from kernelforge.evaluation.size_search import SizeChooser
    from kernelforge.tasks.loaders import loader_for, loader_named
    from kernelforge.tasks.loaders.write_suite import Origin, refuse_other_folder, write_suite

    loader = loader_for(source) if format_name is None else loader_named(format_name)
    origin = Origin(loader.name, source)
    refuse_other_folder(output, origin)
    loaded = _chosen(loader.load(source), level, limit)
    with SizeChooser(allow_unconfined=allow_unconfined) as shrinker:
        tasks, missing, rows = _sized(shrinker, loaded, jobs or _jobs(shrinker.bounds.memory_bytes), quiet=as_json)
    if tasks:
        write_suite(output, origin, f"{source.resolve().name} ({loader.name})", tasks, missing)
    _tell(output, rows, missing, as_json)
    raise typer.Exit(0 if tasks else 1)


def _jobs(memory_bytes: int) -> int:
    """One per core, as far as all of them together cannot fill the memory: hostile references take what they get."""
    installed = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return max(1, min(len(os.sched_getaffinity(0)), installed // memory_bytes))


def _chosen(loaded: Loaded, level: int | None, limit: int | None) -> Loaded:
    from kernelforge.tasks.loaders import Loaded

    tasks = tuple(one for one in loaded.tasks if level is None or one.level == level)
    missing = tuple(one for one in loaded.not_loaded if level is None or one.level in (None, level))
    if not tasks and not missing:
        raise UsageError(f"there is no task of level {level}")
    return Loaded(tasks[:limit], missing)


def _sized(
    shrinker: Any, loaded: Loaded, jobs: int, *, quiet: bool
) -> tuple[list[SizedTask], list[NotLoaded], list[dict[str, Any]]]:
    """Tasks with sizes, what has none, and a row for each task, all in the loader's order; told as they come."""
    from kernelforge.evaluation.size_search.chooser import choose_all
    from kernelforge.report.formatting import one_line
    from kernelforge.tasks.loaders import NotLoaded
    from kernelforge.tasks.loaders.write_suite import SizedTask

    out = console()
    found: dict[str, SizeChoice] = {}
    for task, chosen in choose_all(shrinker, loaded.tasks, jobs):
        found[task.name] = chosen
        if not quiet and not chosen.refused:
            out.print(one_line(f"{task.name}: {_line(chosen)}", _WIDEST), soft_wrap=True)
    tasks, missing, rows = [], list(loaded.not_loaded), []
    for task in loaded.tasks:
        chosen = found[task.name]
        if chosen.refused:
            missing.append(NotLoaded(task.origin, chosen.refused, task.level))
            continue
        notes = (*chosen.notes, *([f"not checked: {chosen.unchecked}"] if chosen.unchecked else []))
        tasks.append(SizedTask(chosen.applied_to(task), chosen.sizes, notes))
        rows.append(_row(task, chosen))
    return tasks, missing, rows


def _line(chosen: SizeChoice) -> str:
    sizes = []
    for size in chosen.sizes:
        if size.name != "full":
            values = " ".join(f"{name}={value}" for name, value in size.constants.items())
            sizes.append(f"{size.name.removeprefix('hidden_')} {values}".rstrip())
    notes = [*chosen.notes, *([f"not checked: {chosen.unchecked}"] if chosen.unchecked else [])]
    return "; ".join([" | ".join(sizes), *notes])


def _row(task: ExternalTask, chosen: SizeChoice) -> dict[str, Any]:
    return {
        "name": task.name,
        "title": task.title,
        "level": task.level,
        "origin": task.origin,
        "sizes": {size.name: size.constants for size in chosen.sizes if size.name != "full"},
        "notes": list(chosen.notes),
        "admitted": chosen.admitted,
        "unchecked": chosen.unchecked,
    }


def _tell(output: Path, rows: list[dict[str, Any]], missing: list[NotLoaded], as_json: bool) -> None:
    from kernelforge.report.formatting import one_line

    if as_json:
        not_loaded = [{"origin": one.origin, "reason": one.reason} for one in missing]
        suite = str(output) if rows else None
        typer.echo(json.dumps({"suite": suite, "tasks": rows, "not_loaded": not_loaded}, indent=2))
        return
    out = console()
    for one in missing:
        out.print(one_line(f"not loaded: {one.origin}: {one.reason}", _WIDEST), soft_wrap=True)
    unchecked = sum(1 for row in rows if not row["admitted"])
    said = f"{len(rows)} tasks" + (f" ({unchecked} not checked)" if unchecked else "")
    out.print(f"{said}, {len(missing)} not loaded" + (f"; suite {output}" if rows else ""), soft_wrap=True)
