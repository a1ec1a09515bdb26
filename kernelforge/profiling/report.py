"""A profile as rows of text: for prompts, for the terminal, and for what changed between two."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from kernelforge.records import KernelProfile, Metric, Profile


class Row(NamedTuple):
    """One line of a table."""

    metric: str
    value: str
    origin: str


class Change(NamedTuple):
    """One metric of two profiles, parent first. ``ratio`` is child over parent; None where the parent has 0."""

    metric: str
    parent: float
    child: float
    unit: str
    ratio: float | None


_BINARY = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))
_DECIMAL = ((1e9, "G"), (1e6, "M"), (1e3, "k"))


def human(value: float, unit: str) -> str:
    """A number with its unit, short: ``12.0 MiB``, ``3.1 Msector``, ``87.5 %``."""
    if unit == "byte":
        for scale, name in _BINARY:
            if abs(value) >= scale:
                return f"{value / scale:.4g} {name}"
        return f"{value:.4g} byte"
    if unit in ("%", "us", "1", "sector/request", "flop/byte", "register/thread", "wave"):
        return f"{value:.4g}" if unit == "1" else f"{value:.4g} {unit}"
    for factor, prefix in _DECIMAL if abs(value) >= 1e5 else ():
        if abs(value) >= factor:
            return f"{value / factor:.4g} {prefix}{unit}"
    return f"{value:.6g} {unit}"


def profile_table(profile: Profile) -> list[Row]:
    """The whole plan: its place on the roofline, then its metrics in the order of the record."""
    roof = profile.roofline
    modelled = roof.time_origin.value
    rows = [
        Row("bound", roof.bound, modelled),
        Row("time", human(roof.time_us, "us"), modelled),
        Row("DRAM bytes / compulsory bytes", _excess(profile), "modelled"),
        Row("arithmetic intensity", human(roof.arithmetic_intensity, "flop/byte"), "modelled"),
        Row("ridge of the roofline", human(roof.ridge, "flop/byte"), "specification"),
    ]
    return rows + [_row(metric) for metric in profile.metrics]


def _row(metric: Metric) -> Row:
    return Row(metric.name, human(metric.value, metric.unit), metric.origin.value)


def _excess(profile: Profile) -> str:
    roof = profile.roofline
    total = f"{human(roof.dram_bytes, 'byte')} / {human(roof.compulsory_bytes, 'byte')}"
    return f"{total} = {roof.dram_bytes / roof.compulsory_bytes:.2f}" if roof.compulsory_bytes else total


def kernel_table(profile: Profile) -> list[tuple[str, list[Row]]]:
    """Per kernel: a heading that says how it was launched and how much of it ran, and its metrics."""
    return [(_heading(kernel), [_row(metric) for metric in kernel.metrics]) for kernel in profile.kernels]


def _heading(kernel: KernelProfile) -> str:
    launches = f"{kernel.launches} launch{'' if kernel.launches == 1 else 'es'}"
    ran = "" if kernel.sampled == 1 else f", {kernel.sampled:.2%} of blocks run"
    return f"{kernel.kernel}: {launches}, grid {_extents(kernel.grid)}, block {_extents(kernel.block)}{ran}"


def _extents(extents: tuple[int, int, int]) -> str:
    return "x".join(str(extent) for extent in extents)


def hot_spot_lines(profile: Profile) -> list[str]:
    """The most wasteful memory instructions of each kernel, one line each."""
    return [
        f"{kernel.kernel} line {spot.source_line}: {spot.opcode} ({spot.space} {spot.access}) "
        f"{human(spot.transactions, _transactions(spot.space))} in {human(spot.requests, 'request')}, "
        f"{human(spot.ideal_transactions, _transactions(spot.space))} would do"
        for kernel in profile.kernels
        for spot in kernel.hot_spots
        if spot.transactions > spot.ideal_transactions
    ]


def _transactions(space: str) -> str:
    return "wavefront" if space == "shared" else "sector"


def text_table(rows: Sequence[Sequence[str]]) -> str:
    """Rows as aligned plain text."""
    if not rows:
        return ""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
    return "\n".join(line.rstrip() for line in lines)


def compare(parent: Profile, child: Profile, names: Iterable[str] | None = None) -> list[Change]:
    """What changed between two profiles, for the metrics that both have (or those of ``names``), and the time."""
    ours = {metric.name: metric for metric in parent.metrics}
    theirs = {metric.name: metric for metric in child.metrics}
    wanted = list(ours) if names is None else [name.lstrip("+") for name in names]
    changes = [
        _change(name, ours[name].value, theirs[name].value, ours[name].unit)
        for name in wanted
        if name in ours and name in theirs
    ]
    if names is None:
        changes.insert(0, _change("time", parent.roofline.time_us, child.roofline.time_us, "us"))
    return changes


def _change(name: str, parent: float, child: float, unit: str) -> Change:
    return Change(name, parent, child, unit, child / parent if parent else None)


def change_table(changes: Iterable[Change]) -> list[tuple[str, str, str, str]]:
    """Changes as rows: metric, parent, child, and how many times as much."""
    return [
        (c.metric, human(c.parent, c.unit), human(c.child, c.unit), "" if c.ratio is None else f"x{c.ratio:.3g}")
        for c in changes
    ]
