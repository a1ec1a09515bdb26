"""A captured model in the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from rich.console import Group, RenderableType

from kernelforge.capture.records import Capture, CapturedGroup, CapturedNode
from kernelforge.report.formatting import byte_count, number, percent, times
from kernelforge.report.tables.base import Column, Table
from kernelforge.report.terminal.widgets import field


class _Row(NamedTuple):
    group: str
    operators: str
    shapes: str
    calls: int
    bytes: int
    flops: int
    time_us: float
    share: float
    floor_us: float
    headroom: float


_COLUMNS = (
    Column("group", "group"),
    Column("operators", "operators", wide=True),
    Column("shapes", "inputs -> outputs", wide=True),
    Column("calls", "calls", number, "right"),
    Column("bytes", "bytes", byte_count, "right"),
    Column("flops", "FLOPs", number, "right"),
    Column("time_us", "us", number, "right"),
    Column("share", "share", percent, "right"),
    Column("floor_us", "floor us", number, "right"),
    Column("headroom", "headroom", times, "right"),
)


def capture_table(capture: Capture) -> Table:
    """Groups of a captured model, the largest share of the time first; bytes, FLOPs and times are of one call."""
    nodes = {node.name: node for node in capture.nodes}
    return Table.of(
        "Groups, the largest share of the time first", _COLUMNS, [_row(group, nodes) for group in capture.groups]
    )


def capture_lines(capture: Capture) -> Group:
    """The table, with what its times are."""
    level = "90" if capture.time_origin == "predicted" else "95"
    interval = f"{level} %: {number(capture.low_us)} to {number(capture.high_us)} us"
    part = f", module {capture.module}" if capture.module else ""
    kinds = f"{len(capture.groups)} groups, {sum(len(group.calls) for group in capture.groups)} calls"
    lines: list[RenderableType] = [
        field("model", f"{capture.model.path}:{capture.model.function}{part}; {kinds}"),
        field(
            "time",
            f"{number(capture.total_us)} us in eager PyTorch, {capture.time_origin} for {capture.gpu} "
            f"({interval}); kernels alone {number(capture.kernels_us)} us, of which the shares are",
        ),
    ]
    if capture.training:
        lines.append(field("note", "the model is in training mode; .eval() in the factory gives the one that serves"))
    lines.append(capture_table(capture).to_rich())
    lines += [field(group.name, f"no task: {group.no_task}") for group in capture.groups if group.no_task]
    return Group(*lines)


def _row(group: CapturedGroup, nodes: Mapping[str, CapturedNode]) -> _Row:
    call = group.calls[0]
    return _Row(
        group.name,
        " ".join(group.operators),
        f"{_tensors_text(call.inputs, nodes)} -> {_tensors_text(call.outputs, nodes)}",
        len(group.calls),
        group.bytes,
        group.flops,
        group.time_us,
        group.share,
        group.floor_us,
        group.headroom,
    )


def _tensors_text(names: Iterable[str], nodes: Mapping[str, CapturedNode]) -> str:
    """Shapes and dtypes, equal ones once with their number: ``2 x [2, 96, 128] float32``."""
    counts: dict[str, int] = {}
    for name in names:
        tensor = nodes[name].tensor
        if tensor is not None:
            text = f"{list(tensor.shape)} {tensor.dtype}"
            counts[text] = counts.get(text, 0) + 1
    return ", ".join(f"{count} x {text}" if count > 1 else text for text, count in counts.items())
