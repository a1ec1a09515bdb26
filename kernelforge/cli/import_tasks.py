"""``kernelforge tasks import``: another benchmark's tasks as a suite, with sizes chosen for it."""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kernelforge.cli.support.options import PATTERNS, JsonOption, UnconfinedOption, console
from kernelforge.errors import UsageError
from kernelforge.utils.machine import installed_memory_bytes, usable_cpus

if TYPE_CHECKING:
    from kernelforge.evaluation.size_search import SizeChoice
    from kernelforge.tasks.loaders import ExternalTask, Loaded, NotLoaded
    from kernelforge.tasks.loaders.write_suite import SizedTask

FORMATS = (
    "kernelbench", "kernelbench-parquet", "robust-kbench", "ops-6k", "kernelbook", "flashinfer-bench", "sol-execbench",
    "hpctranseval", "babeltower", "musl", "coderosetta",
)  # fmt: skip
"""Names of the loaders; importing them for this would take long."""

_WIDEST = 2000
_FREQUENT = 3
"""Problems with one reason, from which on they are counted."""
_PROGRESS_S = 5.0
"""Between two lines on what is done."""


def import_tasks(
    source: Annotated[Path, typer.Argument(metavar="SOURCE", help="A checkout, a folder or a file, see --format.")],
    output: Annotated[
        Path,
        typer.Option("--output", "-o", metavar="FOLDER", help="The suite to make: a folder that does not exist yet."),
    ],
    format_name: Annotated[
        str | None,
        typer.Option(
            "--format",
            metavar="NAME",
            help=f"What SOURCE is: {', '.join(FORMATS)}. Detected from its files if left out.",
        ),
    ] = None,
    level: Annotated[int | None, typer.Option("--level", min=0, help="Only this level.")] = None,
    select: Annotated[
        list[str] | None,
        typer.Option("--select", metavar="NAME", help=f"Only {PATTERNS}; repeat for more."),
    ] = None,
    limit: Annotated[int | None, typer.Option("--limit", min=1, metavar="N", help="Only the first N tasks.")] = None,
    jobs: Annotated[
        int | None,
        typer.Option(
            "--jobs", min=1, metavar="N", help="Tasks at a time; one per core, as memory allows, if left out."
        ),
    ] = None,
    library: Annotated[
        list[str] | None,
        typer.Option("--library", metavar="OPERATOR", help="A torch operator that plans may call; repeat for more."),
    ] = None,
    refresh: Annotated[
        bool,
        typer.Option("--refresh", help="Search for sizes again, also where they ship with KernelForge or were kept."),
    ] = False,
    license_: Annotated[
        str | None,
        typer.Option("--license", metavar="TEXT", help="Licence of the tasks; that of SOURCE's LICENSE if left out."),
    ] = None,
    allow_unconfined: UnconfinedOption = False,
    as_json: JsonOption = False,
) -> None:
    """Make a suite of another benchmark's tasks, with small and hidden sizes. Leaves with 1 if none can be used."""
    from kernelforge.evaluation.size_search import SizeChooser
    from kernelforge.tasks.loaders import loader_for, loader_named
    from kernelforge.tasks.loaders.base import licence_of
    from kernelforge.tasks.loaders.write_suite import Origin, refuse_other_folder, write_suite

    loader = loader_for(source) if format_name is None else loader_named(format_name)
    origin = Origin(loader.name, source)
    refuse_other_folder(output, origin)
    operators = _operators(library or ())
    loaded = _select(loader.load(source), level, select or (), limit)
    with SizeChooser(allow_unconfined=allow_unconfined, refresh=refresh) as chooser:
        tasks, missing, rows = sized_tasks(
            chooser, loaded, jobs or most_jobs(chooser.bounds.memory_bytes), quiet=as_json
        )
    tasks, missing, rows = _agreeing(tasks, missing, rows, allow_unconfined=allow_unconfined, quiet=as_json)
    if tasks:
        licence = licence_of(source) if license_ is None else license_
        tasks = [replace(sized, task=_completed(sized.task, operators, licence)) for sized in tasks]
        write_suite(output, origin, f"{source.resolve().name} ({loader.name})", tasks, missing)
    _print(output, rows, missing, as_json)
    raise typer.Exit(0 if tasks else 1)


def _agreeing(
    tasks: list[SizedTask],
    missing: list[NotLoaded],
    rows: list[dict[str, Any]],
    *,
    allow_unconfined: bool,
    quiet: bool,
) -> tuple[list[SizedTask], list[NotLoaded], list[dict[str, Any]]]:
    """The same without the tasks whose C function and written reference disagree. Others have no C function."""
    written = [sized for sized in tasks if sized.task.c_source]
    if not written:
        return tasks, missing, rows
    from kernelforge.evaluation.size_search.choice import as_task
    from kernelforge.tasks.loaders import NotLoaded
    from kernelforge.translation.evaluator import CEvaluators
    from kernelforge.translation.published import disagreement

    refused: dict[str, str] = {}
    started = printed = time.monotonic()
    with CEvaluators(allow_unconfined=allow_unconfined) as functions:
        for number, sized in enumerate(written, 1):
            refused[sized.task.name] = disagreement(as_task(sized.task, sized.sizes), functions.evaluator)
            now = time.monotonic()
            if not quiet and now - printed >= _PROGRESS_S:
                printed = now
                typer.echo(progress(number, len(written), now - started, "compared with their C"), err=True)
    wrong = [sized.task for sized in written if refused[sized.task.name]]
    names = {task.name for task in wrong}
    return (
        [sized for sized in tasks if sized.task.name not in names],
        [*missing, *(NotLoaded(task.origin, refused[task.name], task.level) for task in wrong)],
        [row for row in rows if row["name"] not in names],
    )


def _completed(task: ExternalTask, operators: tuple[str, ...], licence: str) -> ExternalTask:
    """The task with the operators that its plans may call, and the licence of its source if it has none of its own."""
    return replace(task.with_policy(library=operators), license=task.license or licence)


def _operators(names: Sequence[str]) -> tuple[str, ...]:
    """Names of torch operators; refused where torch has none of that name."""
    from kernelforge.devices.library_calls import operator

    for name in names:
        try:
            operator(name)
        except KeyError:
            raise UsageError(f"--library: torch and torch.nn.functional have no function {name!r}") from None
    return tuple(dict.fromkeys(names))


def most_jobs(memory_bytes: int) -> int:
    """One per core, as long as all together cannot fill the memory: a hostile reference uses all it may."""
    return max(1, min(usable_cpus(), installed_memory_bytes() // memory_bytes))


def _select(loaded: Loaded, level: int | None, patterns: Sequence[str], limit: int | None) -> Loaded:
    from kernelforge.tasks.loaders import Loaded
    from kernelforge.tasks.loaders.rows import problem_name
    from kernelforge.tasks.selection import selected_names

    tasks = tuple(task for task in loaded.tasks if level is None or task.level == level)
    missing = tuple(task for task in loaded.not_loaded if level is None or task.level in (None, level))
    if not tasks and not missing:
        levels = {task.level for task in loaded.tasks}
        levels |= {item.level for item in loaded.not_loaded if item.level is not None}
        raise UsageError(f"there is no task of level {level}; levels: {', '.join(map(str, sorted(levels)))}")
    if patterns:
        names = {item.origin: problem_name(item.level, Path(item.origin).stem) for item in missing}
        offered = dict.fromkeys([*(task.name for task in tasks), *names.values()])
        selected = set(selected_names(patterns, list(offered), "SOURCE"))
        tasks = tuple(task for task in tasks if task.name in selected)
        missing = tuple(item for item in missing if names[item.origin] in selected)
    return Loaded(tasks[:limit], missing)


def sized_tasks(
    chooser: Any, loaded: Loaded, jobs: int, *, quiet: bool
) -> tuple[list[SizedTask], list[NotLoaded], list[dict[str, Any]]]:
    """Tasks with sizes, tasks without, and a row for each task, in the loader's order; printed as they come."""
    from kernelforge.evaluation.size_search.chooser import choose_all
    from kernelforge.report.formatting import one_line
    from kernelforge.tasks.loaders import NotLoaded
    from kernelforge.tasks.loaders.write_suite import SizedTask

    out = console()
    choices: dict[str, SizeChoice] = {}
    started = printed = time.monotonic()
    for task, choice in choose_all(chooser, loaded.tasks, jobs):
        choices[task.name] = choice
        now = time.monotonic()
        if not quiet and now - printed >= _PROGRESS_S:
            printed = now
            typer.echo(progress(len(choices), len(loaded.tasks), now - started), err=True)
        if not quiet and not choice.refused:
            out.print(one_line(f"{task.name}: {_line(choice)}", _WIDEST), soft_wrap=True)
    tasks, missing, rows = [], list(loaded.not_loaded), []
    for task in loaded.tasks:
        choice = choices[task.name]
        if choice.refused:
            missing.append(NotLoaded(task.origin, choice.refused, task.level))
            continue
        notes = (*choice.notes, *([f"not checked: {choice.unchecked}"] if choice.unchecked else []))
        tasks.append(SizedTask(choice.applied_to(task), choice.sizes, notes))
        rows.append(_row(task, choice))
    return tasks, missing, rows


def progress(done: int, total: int, elapsed_s: float, what: str = "have sizes") -> str:
    """A line that says how much of an import is done, and about how long the rest takes at the same pace."""
    minutes = elapsed_s / done * (total - done) / 60
    rest = f"about {minutes:.0f} min" if minutes >= 1 else "less than a minute"
    return f"{done} of {total} tasks {what}; {rest} to go"


def _line(choice: SizeChoice) -> str:
    sizes = []
    for size in choice.sizes:
        if size.name != "full":
            values = " ".join(f"{name}={value}" for name, value in size.constants.items())
            sizes.append(f"{size.name.removeprefix('hidden_')} {values}".rstrip())
    notes = [*choice.notes, *([f"not checked: {choice.unchecked}"] if choice.unchecked else [])]
    return "; ".join([" | ".join(sizes), *notes])


def _row(task: ExternalTask, choice: SizeChoice) -> dict[str, Any]:
    return {
        "name": task.name,
        "title": task.title,
        "level": task.level,
        "origin": task.origin,
        "sizes": {size.name: size.constants for size in choice.sizes if size.name != "full"},
        "notes": list(choice.notes),
        "admitted": choice.admitted,
        "unchecked": choice.unchecked,
    }


def frequent_reasons(missing: Sequence[NotLoaded]) -> list[tuple[str, int]]:
    """Reasons that three problems or more have, names in quotes and numbers aside, the most frequent first."""
    counts = Counter(re.sub(r"'[^']*'|\d+", "…", item.reason) for item in missing)
    return [(reason, count) for reason, count in counts.most_common() if count >= _FREQUENT]


def _print(output: Path, rows: list[dict[str, Any]], missing: list[NotLoaded], as_json: bool) -> None:
    from kernelforge.report.formatting import one_line

    if as_json:
        not_loaded = [{"origin": item.origin, "reason": item.reason} for item in missing]
        suite = str(output) if rows else None
        typer.echo(json.dumps({"suite": suite, "tasks": rows, "not_loaded": not_loaded}, indent=2))
        return
    out = console()
    for item in missing:
        out.print(one_line(f"not loaded: {item.origin}: {item.reason}", _WIDEST), soft_wrap=True)
    for reason, count in frequent_reasons(missing):
        out.print(one_line(f"not loaded, {count} times: {reason}", _WIDEST), soft_wrap=True)
    unchecked = sum(1 for row in rows if not row["admitted"])
    summary = f"{len(rows)} tasks" + (f" ({unchecked} not checked)" if unchecked else "")
    out.print(f"{summary}, {len(missing)} not loaded" + (f"; suite {output}" if rows else ""), soft_wrap=True)
