"""CUDA-L2's release in the terminal."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from kernelforge.datasets.cuda_l2 import Release
from kernelforge.report.formatting import one_line
from kernelforge.report.tables.base import Column, Table

_SHOWN_FAULTS = 10


def release_lines(release: Release) -> Group:
    """Kernels by folder and accumulator, published speedups by baseline, and what could not be read."""
    parts: list[RenderableType] = []
    if release.folders:
        columns = (
            Column("name", "folder"),
            *(Column(key, label, str, "right") for key, label in (
                ("kernels", "kernels"), ("float32", "sums in float32"), ("float16", "in float16"), ("both", "in both"),
                ("not_seen", "not seen"), ("narrower", "narrower than declared"),
            )),
        )  # fmt: skip
        parts.append(Table.of("Kernels", columns, release.folders).to_rich())
    if release.results:
        columns = (
            Column("gpu", "GPU"),
            Column("accumulator", "sums"),
            Column("mode", "mode"),
            Column("baseline", "over"),
            Column("shapes", "shapes", str, "right"),
            Column("win_rate", "faster", "{:.1%}".format, "right"),
            Column("geomean", "geomean", "{:.3f}".format, "right"),
            Column("mean", "mean", "{:.3f}".format, "right"),
            Column("least", "least", "{:.3f}".format, "right"),
            Column("faithful", "as declared", str, "right"),
            Column("faithful_geomean", "their geomean", _ratio, "right"),
        )
        parts.append(Table.of("Published speedups", columns, release.results).to_rich())
    faults = [Text(one_line(f"not read: {reason}")) for reason in release.unread[:_SHOWN_FAULTS]]
    total = Text(f"{len(release.kernels)} kernels, {len(release.unread)} files not read")
    return Group(*parts, *faults, total)


def _ratio(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"
