"""Results over CUDA-L2's grid: its release in the terminal, and runs as a table, Markdown or CSV."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from kernelforge.datasets.cuda_l2 import EVERYWHERE, GridGroup, GridResult, KernelFolder, Release
from kernelforge.report.formatting import ABSENT, markdown, one_line
from kernelforge.report.tables.base import Column, Table
from kernelforge.report.views.grid import GridCoverage, GridReport

_SHOWN_FAULTS = 10


def release_lines(release: Release) -> Group:
    """Kernels by folder and accumulator, published speedups by baseline, and what could not be read."""
    parts: list[RenderableType] = []
    if release.folders:
        parts.append(_kernel_table("Kernels", release.folders, ("folder", "kernels")).to_rich())
    if release.results:
        parts.append(_grid_table("Published speedups", release.results).to_rich())
    faults = [Text(one_line(f"not read: {reason}")) for reason in release.unread[:_SHOWN_FAULTS]]
    total = Text(f"{len(release.kernels)} kernels, {len(release.unread)} files not read")
    return Group(*parts, *faults, total)


def grid_lines(report: GridReport) -> Group:
    """Speedups over all of the grid, by region, and the accumulators of the kernels."""
    return Group(
        *(table.to_rich() for table in _tables(report)),
        *(Text(note, style="dim", overflow="fold") for note in report.notes),
    )


def grid_markdown(report: GridReport) -> str:
    """The same tables, each below its heading."""
    tables = [f"### {table.title}\n\n{table.to_markdown()}" for table in _tables(report)]
    return "\n".join([*tables, *(markdown(note) + "\n" for note in report.notes)])


def grid_csv(report: GridReport) -> str:
    """A line for each group, baseline and region, with every field."""
    columns = [Column(name, name) for name in GridResult.model_fields]
    return Table.of("", columns, report.results).to_csv()


def _tables(report: GridReport) -> list[Table]:
    coverage = _kernel_table(
        "Tasks and accumulators",
        report.coverage,
        ("tasks", "right"),
        tuple(Column(key, key, str, "right") for key in ("grid", "tried", "timed", "refused")),
    )
    everywhere = [result for result in report.results if result.region == EVERYWHERE]
    groups: dict[tuple[object, ...], list[GridResult]] = {}
    for result in report.results:
        groups.setdefault(tuple(getattr(result, name) for name in GridGroup.model_fields), []).append(result)
    return [_grid_table("Speedups over the grid", everywhere), *map(_region_table, groups.values()), coverage]


def _region_table(results: Sequence[GridResult]) -> Table:
    """Regions of one group down, baselines across, with the shapes that are faster and the geometric mean."""
    rows: dict[str, list[object]] = {}
    columns = [Column("region", "region"), Column("grid", "grid", str, "right")]
    for result in results:
        if result.region == EVERYWHERE:
            columns += [
                Column(f"{result.baseline}_wins", f"{result.baseline}: faster", align="right"),
                Column(f"{result.baseline}_geomean", "geomean", _ratio, "right"),
            ]
        cells = rows.setdefault(result.region, [result.region, result.grid])
        cells += [f"{result.wins} of {result.shapes}", result.geomean]
    first = results[0]
    title = f"By region: {first.gpu}, sums in {first.accumulator}, {first.mode}, {first.origin}"
    title += f" ({first.protocol})" if first.protocol else ""
    return Table(title, tuple(columns), tuple(map(tuple, rows.values())))


def _kernel_table(
    title: str,
    folders: Iterable[KernelFolder | GridCoverage],
    labels: tuple[str, str],
    further: tuple[Column, ...] = (),
) -> Table:
    columns = (
        Column("name", labels[0]),
        *further,
        *(Column(key, label, str, "right") for key, label in (
            ("kernels", labels[1]), ("float32", "sums in float32"), ("float16", "in float16"), ("both", "in both"),
            ("not_seen", "not seen"), ("narrower", "narrower than declared"),
        )),
    )  # fmt: skip
    return Table.of(title, columns, folders)


def _grid_table(title: str, results: Iterable[GridResult]) -> Table:
    """A row for each result; what no row has, has no column."""
    rows = list(results)
    columns = [
        Column("gpu", "GPU"),
        Column("accumulator", "sums"),
        Column("mode", "mode"),
        Column("baseline", "over"),
        Column("origin", "times"),
        Column("protocol", "protocol"),
        Column("shapes", "shapes", align="right"),
        Column("missing", "missing", align="right"),
        Column("win_rate", "faster", _share, "right"),
        Column("grid_win_rate", "of all", _share, "right"),
        Column("geomean", "geomean", _ratio, "right"),
        Column("geomean_low", "from", _ratio, "right"),
        Column("geomean_high", "to", _ratio, "right"),
        Column("clear_wins", "clearly faster", align="right"),
        Column("clear_losses", "clearly slower", align="right"),
        Column("mean", "mean", _ratio, "right"),
        Column("least", "least", _ratio, "right"),
    ]
    if any(row.faithful != row.shapes for row in rows):
        columns += [
            Column("faithful", "not narrower", str, "right"),
            Column("faithful_geomean", "their geomean", _ratio, "right"),
        ]
    kept = [column for column in columns if any(getattr(row, column.key) is not None for row in rows)]
    return Table.of(title, kept, rows, keys=5)


def _ratio(value: float | None) -> str:
    return ABSENT if value is None else f"{value:.3f}"


def _share(value: float | None) -> str:
    return ABSENT if value is None else f"{value:.1%}"
