"""Profiles as prompts show them: the metrics that the visibility allows, and changes against another profile."""

from __future__ import annotations

import math
from collections.abc import Sequence

from kernelforge.agents.prompting.text import inline
from kernelforge.hardware.specs import nearest_spec
from kernelforge.prediction import idle_share, modelled_interval_us
from kernelforge.profiling.ncu.catalogue import CUDAFORGE, DURATION
from kernelforge.records import KernelProfile, Metric, Origin, Profile, SassProfile
from kernelforge.search.base import ProfileVisibility

MAX_KERNELS = 8
"""Kernels of a plan that are shown one by one; those launched most often come first."""
MAX_LIMITS = 3
"""Largest of the limits on a kernel's modelled time that are named."""
LEAST_CHANGE = 0.01
"""Relative change below which a metric counts as unchanged."""
MAX_CHANGES = 12
MAX_OPCODES = 10
"""Opcodes and source lines of the machine code that are named for a kernel."""
MAX_LINES = 4

_NCU_FIRST = ("dram__", "lts__", "l1tex__", "ptx__", "smsp__", "sm__", "launch__", "kernelforge__")
TIME_UNITS = frozenset({"ns", "us", "ms", "s", "nsecond", "usecond", "msecond", "second"})


def shown_names(sight: ProfileVisibility) -> tuple[str, ...] | None:
    """Names of the metrics that ``sight`` shows alone; None where it shows all or none."""
    if sight.metrics in ("none", "full"):
        return None
    return CUDAFORGE if sight.metrics == "subset" else tuple(sight.metrics.split())


def seen(profile: Profile, sight: ProfileVisibility) -> list[Metric]:
    """The plan-wide metrics that ``sight`` shows, in the order of a table; the estimated energy only where named."""
    if sight.metrics == "none":
        return []
    if (names := shown_names(sight)) is not None:
        named = (profile.metric(name) for name in names)
        return [metric for metric in named if metric is not None]
    allowed = (metric for metric in profile.metrics if sight.latency or metric.unit not in TIME_UNITS)
    return sorted(allowed, key=lambda metric: _table_rank(metric.name))


def _table_rank(name: str) -> tuple[int, str]:
    return next((at for at, start in enumerate(_NCU_FIRST) if name.startswith(start)), len(_NCU_FIRST)), name


def profile_table(profile: Profile, sight: ProfileVisibility, also: Sequence[str] = ()) -> str:
    """A profile as Markdown: a row per metric with unit and origin, and a line per kernel with its time and the share
    of its blocks that ran; for a full sight roofline, hot spots and machine code too.

    ``also`` names metrics that a finding speaks of, which are shown even outside the subset.
    """
    kernels = _shown_kernels(profile)
    columns = kernels if len(profile.kernels) > 1 else []
    heads = [
        f"whole plan, size {inline(profile.size, 20)}",
        *(f"`{inline(column.kernel, 60)}`" for column in columns),
    ]
    lines = [f"| metric | {' | '.join(heads)} | unit | origin |", "|---" * (len(heads) + 3) + "|"]
    by_kernel = [{metric.name: metric.value for metric in column.metrics} for column in columns]
    metrics = seen(profile, sight)
    if shown_names(sight) is not None:
        named = {name.removeprefix("+") for name in also} - {metric.name for metric in metrics}
        allowed = (metric for metric in profile.metrics if sight.latency or metric.unit not in TIME_UNITS)
        metrics = [*metrics, *(metric for metric in allowed if metric.name in named)]
    for metric in metrics:
        values = [_number(metric.value), *(_number(column.get(metric.name)) for column in by_kernel)]
        unit = inline(metric.unit, 20)
        lines.append(f"| {inline(metric.name)} | {' | '.join(values)} | {unit} | {metric.origin} |")
    lines.append("")
    if sight.metrics == "full":
        lines += [_roofline(profile, sight), ""]
    for kernel in kernels:
        lines += _kernel_lines(kernel, profile.device, sight)
        if sight.latency and profile.roofline.time_origin is Origin.MODELLED:
            lines += _limits(kernel)
    if len(profile.kernels) > len(kernels):
        lines.append(f"- and {len(profile.kernels) - len(kernels)} more kernels")
    lines += [f"- Note: {inline(note, 300)}" for note in profile.notes]
    return "\n".join(lines).rstrip()


def _shown_kernels(profile: Profile) -> list[KernelProfile]:
    return sorted(profile.kernels, key=lambda kernel: -kernel.launches)[:MAX_KERNELS]


def _kernel_lines(kernel: KernelProfile, device: str, sight: ProfileVisibility) -> list[str]:
    parts = [f"{kernel.launches} launches, grid {kernel.grid}, block {kernel.block}"]
    if sight.latency and (time := _time(kernel, device)):
        parts.append(time)
    if kernel.sampled < 1:
        parts.append(f"counts scaled up from {kernel.sampled:.2%} of its blocks")
    lines = [f"- `{inline(kernel.kernel)}`: {', '.join(parts)}"]
    if sight.metrics == "full":
        lines += [] if kernel.sass is None else _machine_code(kernel.sass)
        lines += [
            f"  - line {spot.source_line}: {inline(spot.space, 20)} {inline(spot.access, 20)}, "
            f"{spot.transactions:,} transactions in {spot.requests:,} requests ({spot.ideal_transactions:,} would do)"
            for spot in kernel.hot_spots
        ]
    return lines


def _time(kernel: KernelProfile, device: str) -> str:
    """The time of all launches of a kernel, with its origin: a measured one if there is any; empty without one."""
    for metric in kernel.metrics:
        if metric.name == DURATION:
            return f"{metric.value / 1e3:,.4g} us ({metric.origin})"
    if kernel.modelled_us is None:
        return ""
    return f"{kernel.modelled_us:,.4g} us ({modelled_text(kernel.modelled_us, device, (kernel,))})"


def modelled_text(time_us: float, device: str, kernels: Sequence[KernelProfile]) -> str:
    """The origin of the modelled time of ``kernels``, with its 90 % interval."""
    low, high = modelled_interval_us(time_us, idle_share(nearest_spec(device).spec, kernels))
    return f"modelled, 90 %: {low:,.3g} to {high:,.3g} us"


def _limits(kernel: KernelProfile) -> list[str]:
    """The largest limits on a kernel's modelled time, which hide in part behind each other."""
    largest = sorted(kernel.limits_us.items(), key=lambda limit: -limit[1])[:MAX_LIMITS]
    text = ", ".join(f"{inline(name, 20)} {value:,.3g}" for name, value in largest)
    return [f"  - modelled us under each limit alone: {text}"] if text else []


def _machine_code(sass: SassProfile) -> list[str]:
    """Opcodes and source lines with the most machine instructions."""
    opcodes = ", ".join(f"{inline(row.opcode, 20)} {row.warp_instructions:,}" for row in sass.opcodes[:MAX_OPCODES])
    lines = ", ".join(
        f"line {row.source_line} {row.warp_instructions:,} (most {inline(row.opcode, 20)})"
        for row in sass.lines[:MAX_LINES]
    )
    executed = f"machine code ({sass.origin}): {sass.warp_instructions:,} warp instructions"
    return [f"  - {executed}: {opcodes}", *([f"  - most machine instructions: {lines}"] if lines else [])]


def _roofline(profile: Profile, sight: ProfileVisibility) -> str:
    roofline = profile.roofline
    ratio = roofline.dram_bytes / roofline.compulsory_bytes if roofline.compulsory_bytes else math.nan
    has_time = sight.latency and roofline.time_origin is Origin.MEASURED  # a modelled one is the attempt's time
    time = f", {roofline.time_us:,.4g} us ({roofline.time_origin})" if has_time else ""
    return (
        f"Roofline: bound by {roofline.bound}{time}; "
        f"{roofline.arithmetic_intensity:.3g} flop/byte, ridge at {roofline.ridge:.3g}; "
        f"DRAM traffic {roofline.dram_bytes:,.0f} bytes, {ratio:.2f}x the compulsory {roofline.compulsory_bytes:,.0f}."
    )


def changes(
    before: Profile, after: Profile, sight: ProfileVisibility, limit: int = MAX_CHANGES, named: Sequence[str] = ()
) -> list[str]:
    """Metrics of the whole plan that differ by 1 % or more: those that are ``named``, then the largest change first.

    Each as ``name: 5 -> 4 byte (-20.0%)``.
    """
    rows = []
    for metric in seen(after, sight):
        old = before.value(metric.name)
        if old is None:
            continue
        change = relative_change(old, metric.value)
        if abs(change) >= LEAST_CHANGE:
            relative = f"{change:+.1%}" if math.isfinite(change) else "new"
            unit = "" if metric.unit == "1" else f" {inline(metric.unit, 20)}"
            text = f"{inline(metric.name)}: {_number(old)} -> {_number(metric.value)}{unit} ({relative})"
            rows.append((metric.name not in named, -_magnitude(change), text))
    rows.sort(key=lambda row: row[:2])
    return [text for _, _, text in rows[:limit]]


def relative_change(before: float, after: float) -> float:
    """``after / before - 1``; from zero, any rise is without bound."""
    if before == 0:
        return 0.0 if after == 0 else math.copysign(math.inf, after)
    return (after - before) / abs(before)


def _magnitude(change: float) -> float:
    """So that halving weighs as much as doubling."""
    return math.inf if change <= -1 else abs(math.log1p(change))


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if value == round(value) and abs(value) < 1e15 else f"{value:,.6g}"
