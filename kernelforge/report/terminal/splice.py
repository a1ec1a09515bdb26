"""A model with packaged operators in the terminal."""

from __future__ import annotations

from typing import NamedTuple

from rich.console import Group, RenderableType

from kernelforge.packaging.splice_check import ModelTime, PredictedNumber, Splice, SplicedPackage
from kernelforge.report.formatting import number, percent, times_between
from kernelforge.report.tables.base import Column, Table
from kernelforge.report.terminal.widgets import field


class _Row(NamedTuple):
    package: str
    calls: str
    speedup: str
    group_us: float | None
    operator_us: float | None
    share: float | None
    eager: str
    graph: str


_COLUMNS = (
    Column("package", "package", wide=True),
    Column("calls", "calls", align="right"),
    Column("speedup", "kernel", align="right"),
    Column("group_us", "us before", number, "right"),
    Column("operator_us", "us after", number, "right"),
    Column("share", "share", percent, "right"),
    Column("eager", "model, eager", align="right"),
    Column("graph", "model, CUDA graph", align="right"),
)


def splice_table(splice: Splice) -> Table:
    """Packages, each alone in the model, then all together: speedup of the kernel, and gain of the model."""
    rows = [_row(package) for package in splice.packages]
    share = sum(package.share for package in splice.packages if package.replaced)
    total = _Row("all packages", "", "", None, None, share, _ratio(splice.eager.gain), _ratio(splice.graph.gain))
    return Table.of("Speedup of kernels, and gain of the model", _COLUMNS, [*rows, total])


def splice_lines(splice: Splice) -> Group:
    """The table, with the comparison of outputs and the time of a call."""
    check, part = splice.check, f", module {splice.module}" if splice.module else ""
    error = "" if check.error is None else f", largest error {number(check.error)} of the tolerance"
    lines: list[RenderableType] = [
        field("model", f"{splice.model.path}:{splice.model.function}{part}"),
        field(
            "outputs", f"{check.verdict}{error}: {check.operator_calls} calls of operators, {check.elements} numbers"
        ),
    ]
    if check.message:
        lines.append(field("why", check.message))
    lines += [
        field("time", _change("in eager PyTorch", splice.eager, splice.gpu)),
        field("", _change("in a CUDA graph", splice.graph, splice.gpu)),
        splice_table(splice).to_rich(),
    ]
    lines += [field(each.group, f"not replaced: {each.reason}") for each in splice.packages if each.reason]
    return Group(*lines)


def _change(how: str, time: ModelTime, gpu: str) -> str:
    before, after = (f"{number(each.value)} us" for each in (time.before_us, time.after_us))
    return f"{before} -> {after} {how}: the model is {_ratio(time.gain)} as fast, predicted for {gpu}"


def _row(package: SplicedPackage) -> _Row:
    speedup, name = package.speedup, package.name.removeprefix("kernelforge-op-")
    return _Row(
        package.group if name == package.group else f"{name}, {package.group}",
        f"{package.replaced} of {package.calls}",
        "" if speedup is None else f"{times_between(speedup.value, speedup.low, speedup.high)}, {speedup.origin}",
        package.group_us,
        package.operator_us,
        package.share,
        _ratio(package.eager.gain),
        _ratio(package.graph.gain),
    )


def _ratio(value: PredictedNumber) -> str:
    return times_between(value.value, value.low, value.high)
