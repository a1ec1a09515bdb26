"""Charts of modelled times: what binds each kernel, and a prediction against the least time there can be."""

from __future__ import annotations

from collections.abc import Sequence

from kernelforge.report.figures import base
from kernelforge.report.figures.base import Absent, Drawing, Row, figure
from kernelforge.report.formatting import number, percent, times
from kernelforge.report.views.bounds import KernelBounds, Reach

MOST_KERNELS = 6
_BINDS, _HIDES, _ALL = "the longest", "others", "modelled time"


def kernel_limits(kernels: Sequence[KernelBounds]) -> Drawing:
    """One bar per limit of each kernel, and its modelled time: where the time goes."""
    name = "bounds"
    if not kernels:
        return Absent(name=name, why="the attempt has no profile with modelled limits")
    drawn = kernels[:MOST_KERNELS]
    rows: list[Row] = []
    for kernel, label in zip(drawn, base.labels([kernel.kernel for kernel in drawn]), strict=True):
        prefix = f"{label[:40]}: " if len(drawn) > 1 else ""
        if kernel.time_us is not None:
            rows.append({"limit": f"{prefix}time", "us": kernel.time_us, "what": _ALL, "kernel": label})
        for place, bound in enumerate(kernel.bounds):
            what = _HIDES if place else _BINDS
            rows.append({"limit": f"{prefix}{base.words(bound.title)}", "us": bound.time_us, "what": what,
                         "kernel": label})  # fmt: skip
    omitted = f" ({len(kernels) - len(drawn)} shorter kernels left out)" if len(kernels) > len(drawn) else ""
    kinds = [kind for kind in (_ALL, _BINDS, _HIDES) if any(row["what"] == kind for row in rows)]
    colours = {_ALL: base.GREY, _BINDS: base.VERMILLION, _HIDES: base.BLUE}
    colour = base.coloured("what", kinds, [colours[kind] for kind in kinds])
    tip = base.tip(kernel="kernel", limit="limit", us="µs (modelled)")
    value = {"field": "us", "type": "quantitative", "format": ".3~r"}
    x = base.below(base.quantity("us", "µs under each limit alone (modelled)"), ticks=4)
    x["scale"] |= {"domain": [0, 1.15 * max(row["us"] for row in rows)]}  # room for the numbers next to the bars
    return figure(
        name,
        "Where the time goes" + omitted,
        "Modelled time of each kernel under each limit of the GPU alone; work under one hides behind work under "
        f"another{omitted}. " + " ".join(map(_described, drawn)),
        [
            base.layer(base.BAR, y=base.names("limit"), x=x, color=colour, tooltip=tip),
            base.layer({"type": "text", "align": "left", "dx": 5}, y=base.names("limit"), x=x, text=value),
        ],
        height=base.rows_height(len(rows)),
        rows=rows,
    )


def _described(kernel: KernelBounds) -> str:
    parts = ", ".join(f"{bound.title} {number(bound.time_us)} µs" for bound in kernel.bounds[:3])
    total = "" if kernel.time_us is None else f" of {number(kernel.time_us)} µs"
    return f"{base.words(kernel.kernel)}{total}: {parts}."


def against_floor(reach: Reach | None) -> Drawing:
    """The predicted time with its interval between the least there can be and PyTorch's."""
    name = "predicted"
    if reach is None:
        return Absent(name=name, why="no speedup is predicted for the attempt")
    marks = [
        ("floor: least bytes", reach.floor_us, None, None),
        ("roofline", reach.ceiling_us, None, None),
        ("this attempt", reach.time_us, reach.low_us, reach.high_us),
        (f"eager PyTorch ({reach.eager_origin})", reach.eager_us, None, None),
    ]
    rows: list[Row] = []
    for label, time_us, low, high in marks:
        if time_us is None or not base.positive(time_us):
            continue
        row: Row = {"what": label, "us": time_us, "speedup": reach.eager_us / time_us}
        rows.append(row if low is None else row | {"low": low, "high": high})
    ends = [row[end] for row in rows for end in ("us", "low", "high") if end in row]
    x = base.logarithmic("us", "µs at the full size (modelled)", ends)
    y = base.names("what")
    tip = base.tip(what="", us="µs", low="from", high="to", speedup="times as fast as eager")
    interval = {"type": "rule", "strokeWidth": 1.4, "color": base.GREY}
    speedup = reach.eager_us / reach.time_us
    most = "" if reach.floor_us is None else f"; the memory allows {times(reach.eager_us / reach.floor_us)} at most, " \
        f"of which {percent(reach.floor_us / reach.time_us)} is reached"  # fmt: skip
    return figure(
        name,
        "Predicted against the floor",
        f"Predicted on {base.words(reach.gpu)}: {number(reach.time_us)} µs "
        f"({number(reach.low_us)} to {number(reach.high_us)}), {times(speedup)} eager PyTorch, which takes "
        f"{number(reach.eager_us)} µs ({reach.eager_origin}){most}.",
        [
            base.layer(base.point(70, color=base.BLUE), y=y, x=x, tooltip=tip),
            {
                "transform": [{"filter": "isValid(datum.low) && isValid(datum.high)"}],
                **base.layer(interval, y=y, x=x | {"field": "low"}, x2={"field": "high"}),
            },
        ],
        height=base.rows_height(len(rows)) + base.ROW,
        rows=rows,
    )
