"""``kernelforge figure``: charts of a run, a task, an attempt, two runs or a leaderboard."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kernelforge.cli.support.options import (
    DEFAULT_RESULTS,
    JsonOption,
    ResultsOption,
    console,
    open_store,
    write_bytes,
    write_text,
)
from kernelforge.errors import UsageError

if TYPE_CHECKING:
    from kernelforge.report.figures import Drawing, Figure
    from kernelforge.store import Store

    Render = Callable[[Figure, str], bytes]

_BOARD = "leaderboard"
_FORMS = (".svg", ".png")


def figure(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="Which figure; see --list.")] = None,
    what: Annotated[
        str | None,
        typer.Argument(
            metavar="[WHAT]",
            help="Of what: RUN, RUN/TASK or RUN/TASK/NUMBER as in 'show'; RUN..RUN compares two; 'leaderboard' is the "
            "newest board, 'leaderboard/2' the one after it. The latest run if left out.",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", metavar="FILE", help="FILE.svg or FILE.png; with --all a folder; with --json any file."
        ),
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Write every figure as SVG and PNG to a folder.")] = False,
    listed: Annotated[bool, typer.Option("--list", help="List the figures, and why others cannot be drawn.")] = False,
    width: Annotated[
        int | None,
        typer.Option(
            "--width", metavar="PIXELS", min=120, max=4000, help="Of the picture; else one column of a paper."
        ),
    ] = None,
    height: Annotated[
        int | None,
        typer.Option("--height", metavar="PIXELS", min=60, max=8000, help="Of the plot; else the figure's own."),
    ] = None,
    scale: Annotated[
        float | None,
        typer.Option("--scale", metavar="FACTOR", min=0.5, max=10, help="Pixels of a PNG per pixel of the picture; 3."),
    ] = None,
    bare: Annotated[bool, typer.Option("--bare", help="Without the title: a paper has a caption.")] = False,
    as_json: JsonOption = False,
    results: ResultsOption = DEFAULT_RESULTS,
) -> None:
    """Draw a figure as SVG or PNG, or write its Vega-Lite specification."""
    if listed or every:
        if what is not None:
            raise UsageError("--list and --all take WHAT alone, without the NAME of a figure")
        if listed and every:
            raise UsageError("--list and --all are two commands")
        name, what = None, name
    with open_store(results, read_only=True) as store:
        drawings = _drawings(store, what or "latest")
    if listed:
        _list(drawings, as_json=as_json)
        return
    render = _renderer(width, height, scale, bare)
    if every:
        _write_all(drawings, output, render, as_json=as_json)
        return
    if name is None:
        raise UsageError(f"say which figure; there are: {_names(drawings)}")
    _write_one(_find(drawings, name), output, render, as_json=as_json)


def _renderer(width: int | None, height: int | None, scale: float | None, bare: bool) -> Render:
    """Gives the bytes of a file; None takes the default of :mod:`kernelforge.report.render_image`."""
    from kernelforge.report import render_image

    size: dict[str, Any] = {"width": width or render_image.WIDTH, "height": height, "title": not bare}

    def render(figure: Figure, form: str) -> bytes:
        if form == ".svg":
            return render_image.svg(figure, **size).encode()
        return render_image.png(figure, **size, scale=scale or render_image.PNG_SCALE)

    return render


def _drawings(store: Store, what: str) -> tuple[Drawing, ...]:
    """Every figure of a reference, drawn or absent."""
    from kernelforge.report import RunRecords, attempt_view, run_view, task_view
    from kernelforge.report.figures import draw_attempt, draw_compare, draw_run, draw_task
    from kernelforge.report.views.compare import compare_view
    from kernelforge.store.references import resolve, resolve_pair, the_attempt

    if what == _BOARD or what.startswith(_BOARD + "/"):
        return _board_drawings(store, what)
    if runs := resolve_pair(store, what):
        return draw_compare(compare_view(*(RunRecords.load(store, run, texts=False) for run in runs)))
    named = resolve(store, what)
    if named.number is not None:
        attempt = the_attempt(store, named)
        return draw_attempt(attempt_view(attempt, store.attempt(attempt.parent) if attempt.parent else None))
    records = RunRecords.load(store, named.run, texts=False)
    if named.task is None:
        return draw_run(run_view(records))
    return draw_task(task_view(records.full(store, named.task), named.task))


def _board_drawings(store: Store, what: str) -> tuple[Drawing, ...]:
    from kernelforge.report import RunRecords, leaderboard
    from kernelforge.report.figures import draw_board

    boards = leaderboard(RunRecords.load(store, run, texts=False) for run in store.runs()).boards
    number = what.partition("/")[2] or "1"
    if not (number.isdecimal() and 1 <= int(number) <= len(boards)):
        raise UsageError(f"there is no board '{what}'; there are {len(boards)}, and leaderboard/1 is the newest")
    return draw_board(boards[int(number) - 1])


def _find(drawings: tuple[Drawing, ...], name: str) -> Figure:
    from kernelforge.report.figures import Absent

    match = next((drawing for drawing in drawings if drawing.name == name), None)
    if match is None:
        raise UsageError(f"there is no figure '{name}'; there are: {_names(drawings)}")
    if isinstance(match, Absent):
        raise UsageError(f"'{name}' cannot be drawn: {match.why}; there are: {_names(drawings)}")
    return match


def _names(drawings: tuple[Drawing, ...]) -> str:
    from kernelforge.report.figures import figures_of

    return ", ".join(figure.name for figure in figures_of(drawings)) or "none"


def _list(drawings: tuple[Drawing, ...], *, as_json: bool) -> None:
    from kernelforge.report.figures import Figure
    from kernelforge.report.formatting import printable

    if as_json:
        import json

        rows = [drawing.model_dump(exclude={"spec"}) for drawing in drawings]
        typer.echo(json.dumps(rows, indent=2))
        return
    from rich.table import Table

    lines = Table.grid(padding=(0, 2))
    for drawing in drawings:
        lines.add_row(
            drawing.name, printable(drawing.title) if isinstance(drawing, Figure) else f"– ({printable(drawing.why)})"
        )
    console().print(lines)


def _write_one(figure: Figure, output: Path | None, render: Render, *, as_json: bool) -> None:
    if as_json:
        write_text(_spec(figure), output)
        return
    if output is None or output.suffix.lower() not in _FORMS:
        raise UsageError("name the file of the picture: --output FILE.svg or --output FILE.png")
    write_bytes(render(figure, output.suffix.lower()), output)
    console(stderr=True).print(f"{output}: {figure.title}")


def _write_all(drawings: tuple[Drawing, ...], output: Path | None, render: Render, *, as_json: bool) -> None:
    from kernelforge.report.figures import Absent, figures_of

    if output is None:
        raise UsageError("--all needs a folder: --output FOLDER")
    figures = figures_of(drawings)
    if not figures:
        raise UsageError(
            "; ".join(
                f"'{figure.name}' cannot be drawn: {figure.why}" for figure in drawings if isinstance(figure, Absent)
            )
        )
    output.mkdir(parents=True, exist_ok=True)
    for figure in figures:
        if as_json:
            write_text(_spec(figure), output / f"{figure.name}.json")
        else:
            for form in _FORMS:
                write_bytes(render(figure, form), output / f"{figure.name}{form}")
    console(stderr=True).print(f"{output}: {len(figures)} figures")


def _spec(figure: Figure) -> str:
    import json

    return json.dumps(figure.spec, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
