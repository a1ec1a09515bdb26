"""``kernelforge leaderboard``: comparable results side by side, of runs here and of entries that others submit."""

from __future__ import annotations

from pathlib import Path
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
    console,
    json_text,
    open_store,
    warn,
    write_text,
    write_view,
)
from kernelforge.errors import UsageError

if TYPE_CHECKING:
    from kernelforge.evaluation.pool import RunPool
    from kernelforge.leaderboard.entry import EntryFile
    from kernelforge.leaderboard.verification import TaskCheck, Verification

app = typer.Typer(
    help="Compare results. Only those of equal device, tasks, baseline, precision and timing share a board.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@app.command("show")
def show(
    run: Annotated[
        list[str] | None, typer.Option("--run", metavar="RUN", help="Only this run; repeat for more. All if left out.")
    ] = None,
    form: FormOption = Form.TERMINAL,
    as_json: JsonOption = False,
    output: DocumentOption = None,
    results: ResultsOption = DEFAULT_RESULTS,
) -> None:
    """Show every board: its runs, and the best result per task."""
    from kernelforge.report import RunRecords, leaderboard
    from kernelforge.report.exports import leaderboard_csv, leaderboard_markdown
    from kernelforge.report.terminal import leaderboard_lines

    form = chosen_form(form, as_json=as_json, output=output)
    with open_store(results, read_only=True) as store:
        selected = {store.run(which).id for which in run or ()}
        runs = [item for item in store.runs() if not selected or item.id in selected]
        view = leaderboard([RunRecords.load(store, item, texts=False) for item in runs])
    write_view(view, form, output, markdown=leaderboard_markdown, csv=leaderboard_csv, terminal=leaderboard_lines)


@app.command("grid")
def grid(
    run: Annotated[
        list[str] | None,
        typer.Argument(metavar="[RUN]...", help="Runs of hgemm or hgemm-f16; every one there if left out."),
    ] = None,
    baseline: Annotated[
        str | None, typer.Option("--baseline", metavar="NAME", help="Only speedups over this baseline.")
    ] = None,
    published: Annotated[
        Path | None,
        typer.Option("--published", metavar="CHECKOUT", help="Also CUDA-L2's own, of its release, over these shapes."),
    ] = None,
    form: FormOption = Form.TERMINAL,
    as_json: JsonOption = False,
    output: DocumentOption = None,
    results: ResultsOption = DEFAULT_RESULTS,
) -> None:
    """Show win rate and geometric mean over CUDA-L2's 1,000 products and their regions, by baseline and mode."""
    from kernelforge.datasets.cuda_l2 import read_release
    from kernelforge.report import RunRecords
    from kernelforge.report.terminal.cuda_l2 import grid_csv, grid_lines, grid_markdown
    from kernelforge.report.views.grid import grid_report, on_grid

    form = chosen_form(form, as_json=as_json, output=output)
    release = None if published is None else read_release(published)
    with open_store(results, read_only=True) as store:
        selected = [store.run(which) for which in run or ()] or [item for item in store.runs() if on_grid(item.config)]
        if other := next((item for item in selected if not on_grid(item.config)), None):
            raise UsageError(f"run {other.id} is of suite {other.config.suite}: the grid is of hgemm and hgemm-f16")
        distinct = {item.id: item for item in selected}.values()
        view = grid_report((RunRecords.load(store, item, texts=False) for item in distinct), release, baseline=baseline)
    write_view(view, form, output, markdown=grid_markdown, csv=grid_csv, terminal=grid_lines)


@app.command("entry")
def entry(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run, the beginning of its id, or 'latest'.")],
    output: Annotated[Path, typer.Option("--output", metavar="FILE", help="Where to write the entry.")],
    by: Annotated[str, typer.Option("--by", metavar="NAME", help="Submitter, as shown on the board.")],
    note: Annotated[str, typer.Option("--note", metavar="TEXT", help="A one-line remark.")] = "",
    results: ResultsOption = DEFAULT_RESULTS,
) -> None:
    """Write a run as an entry that anyone can put on a board and verify."""
    from kernelforge.leaderboard.entry import MAX_FILE_BYTES, entry_text
    from kernelforge.leaderboard.make_entry import make_entry
    from kernelforge.report import RunRecords

    if not by.strip():
        raise UsageError("--by: name the submitter of the entry")
    with open_store(results, read_only=True) as store:
        records = RunRecords.load(store, store.run(run))
        digests = {task.name: task.digest for task in store.tasks(records.run.id)}
    made = make_entry(records, digests, by=by, note=note)
    text = entry_text(made)
    if len(text.encode()) > MAX_FILE_BYTES:
        raise UsageError(f"the entry is larger than {MAX_FILE_BYTES >> 20} MiB, which no board takes")
    write_text(text, output)
    console(stderr=True).print(f"{output}: {len(made.tasks)} tasks, digest {made.digest[:16]}")


@app.command("schema")
def schema(
    output: Annotated[Path | None, typer.Option("--output", metavar="FILE", help="Write to a file.")] = None,
) -> None:
    """Print the JSON Schema of entries."""
    from kernelforge.leaderboard.entry import entry_schema

    write_text(entry_schema(), output)


@app.command("build")
def build(
    output: Annotated[Path, typer.Option("--output", metavar="FOLDER", help="Where the board's files go.")],
    sources: Annotated[
        list[Path] | None,
        typer.Argument(metavar="SOURCE...", help="Entries and verification records: files, or folders of them."),
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Write nothing; leave with 1 if the files there would change.")
    ] = False,
    html: Annotated[
        Path | None, typer.Option("--html", metavar="FOLDER", help="Also write the boards as web pages to this folder.")
    ] = None,
) -> None:
    """Build boards from entries: every entry is checked, and every statistic computed from its rows per task."""
    from kernelforge.leaderboard.build import board_texts, read_submitted, stale, write_texts
    from kernelforge.leaderboard.build import build as build_boards

    if check and html is not None:
        raise UsageError("--check writes nothing: leave --html out")
    submitted = read_submitted(sources or [output / "entries"])
    view = build_boards(submitted)
    texts = board_texts(view)
    out = console(stderr=True)
    if check:
        changed = stale(texts, output)
        if changed:
            out.print(f"{output}: {', '.join(changed)} would change; build the board again")
            raise typer.Exit(1)
    else:
        write_texts(texts, output)
        if html is not None:
            from kernelforge.leaderboard.build import BoardSite
            from kernelforge.report.html.writer import write_folder

            write_folder(BoardSite(view), html)
    out.print(f"{output}: {_count(len(submitted.entries), 'entry')} on {_count(len(view.boards), 'board')}")


@app.command("verify")
def verify(
    entries: Annotated[list[Path], typer.Argument(metavar="ENTRY...", help="Entries, as files.")],
    sample: Annotated[
        str, typer.Option("--sample", metavar="N", help="Tasks to evaluate again, drawn at random; 'all' for all.")
    ] = "3",
    seed: Annotated[
        int | None, typer.Option("--seed", min=0, help="Seed of the draw; if left out, a fresh one, which is printed.")
    ] = None,
    device: Annotated[
        str | None,
        typer.Option("--device", metavar="NAME", help="Where to run; by the entry's kind of device if left out."),
    ] = None,
    suites: Annotated[
        list[Path] | None,
        typer.Option("--suite", metavar="FOLDER", help="A suite that does not ship with KernelForge; repeat for more."),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", metavar="FILE", help="Write the verification record; for several entries, a folder."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Check entries, and evaluate a sample of their tasks again. Leaves with 1 if anything differs."""
    import secrets
    from contextlib import ExitStack

    from kernelforge.leaderboard.entry import load_entry
    from kernelforge.leaderboard.verify import device_for, measure_of, suite_of
    from kernelforge.leaderboard.verify import verify as verify_entry
    from kernelforge.report.formatting import one_line

    count = _sample(sample)
    drawn_from = secrets.randbits(32) if seed is None else seed
    if output is not None and len(entries) > 1 and not output.is_dir():
        raise UsageError(f"--output {output}: for several entries, give a folder that exists")
    loaded = [(path, load_entry(path)) for path in entries]
    records = []
    for path, submitted in loaded:
        with ExitStack() as stack:

            def start(submitted: EntryFile = submitted, stack: ExitStack = stack) -> RunPool:
                from kernelforge.evaluation.remote.machines import open_pool

                where = device or device_for(submitted)
                opened = open_pool(where, measure=measure_of(submitted), tell=warn)
                return stack.enter_context(opened)

            if not as_json:
                console().print(f"{one_line(str(path))}: drawing {sample} of its tasks with seed {drawn_from}")
            record = verify_entry(
                submitted,
                suite_of(submitted, suites or ()),
                sample=count,
                seed=drawn_from,
                open_pool=start,
                watch=None if as_json else _print_check,
            )
        records.append(record)
        if not as_json:
            _summarise(record)
        if output is not None:
            write_text(record.text(), output / f"{path.stem}.verification.json" if output.is_dir() else output)
    if as_json:
        typer.echo("[" + ",".join(json_text(record).rstrip() for record in records) + "]")
    raise typer.Exit(0 if all(record.agrees for record in records) else 1)


def _count(count: int, what: str) -> str:
    """``1 entry``, ``2 entries``."""
    many = f"{what[:-1]}ies" if what.endswith("y") else f"{what}s"
    return f"{count} {what if count == 1 else many}"


def _sample(text: str) -> int | None:
    """Number of tasks to draw; None for all."""
    if text == "all":
        return None
    if not (text.isascii() and text.isdecimal() and len(text) < 7):
        raise UsageError(f"--sample {text!r}: give a number of tasks, 0 to evaluate none, or 'all'")
    return int(text)


def _print_check(check: TaskCheck) -> None:
    from kernelforge.report.formatting import one_line

    console().print(f"  {one_line(check.task)}: {check.status}: {one_line(check.reason, 300)}")


def _summarise(record: Verification) -> None:
    from kernelforge.report.formatting import one_line

    for check in record.checks:
        if not check.ok:
            console().print(f"  {check.name}: differs: {one_line(check.detail, 300)}")
    verdict = "nothing differs" if record.agrees else "it differs"
    fine = sum(check.ok for check in record.checks)
    console().print(
        f"  {verdict}: {fine} of {len(record.checks)} checks of the file hold, "
        f"{record.rerun} of {len(record.tasks)} tasks re-run"
    )
    if record.sample and not record.rerun and all(check.ok for check in record.checks):
        reasons = {task.reason for task in record.tasks if task.reason not in ("not drawn", "")}
        console().print(f"  nothing was re-run: {one_line('; '.join(sorted(reasons)), 300)}")
