"""How fast a candidate is, and how its time came about."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich.console import RenderableType
from rich.text import Text

from kernelforge.report.tables.attempt import timing_table
from kernelforge.report.terminal.parts import field
from kernelforge.report.text import byte_count, number, percent, times
from kernelforge.report.views.attempt import sides_of, unhidden_eager_us

if TYPE_CHECKING:
    from kernelforge.records import Build, Performance, Timing


def speed_lines(speed: Performance | None, build: Build | None) -> Iterator[RenderableType]:
    """Time, speedup, protocol and the compiler's facts; the table of sides at the end."""
    if speed is None:
        yield Text("not timed")
    else:
        spread = (
            "" if speed.interval_us is None else f" [{number(speed.interval_us[0])}, {number(speed.interval_us[1])}]"
        )
        samples = "" if speed.samples is None else f", {speed.samples} samples"
        yield field(speed.origin.value, f"{number(speed.time_us)} µs{spread}{samples}, bound by {speed.bound}")
        if speed.speedup is not None:
            unhidden = unhidden_eager_us(speed.timing)
            launched = "" if unhidden is None else f", {number(unhidden)} µs where no flush hides its launches"
            others = f"at least {times(speed.speedup_lower)}; vs eager {times(speed.speedup_eager)}{launched}"
            yield field("speedup", f"{times(speed.speedup)} ({others})")
        if speed.quarantined is not None:
            yield field("quarantined", speed.quarantined, style="red")
        if speed.timing is not None:
            yield from _timing(speed.timing)
    for kernel in build.kernels if build else ():
        spills = kernel.spill_store_bytes + kernel.spill_load_bytes
        facts = (
            f"{kernel.registers_per_thread} registers, {kernel.static_shared_bytes} B static shared, {spills} B spills"
        )
        yield field("kernel", f"{kernel.expression}: {facts}")


def _timing(timing: Timing) -> Iterator[RenderableType]:
    sets = f"{timing.sets} sets of {byte_count(timing.set_bytes)}"
    where = "before each" if timing.flush_each else "before all"
    flush = f", {byte_count(timing.flush_bytes)} flushed {where}" if timing.flush_bytes else ""
    settled = "settled" if timing.settled else f"not settled within {timing.budget_s:g} s"
    yield field("protocol", f"{timing.protocol}: {sets}{flush}; {settled}")
    if timing.host is not None:
        agrees = "agrees" if timing.host.agrees else "disagrees"
        yield field(
            "host clock", f"{agrees}: {number(timing.host.slope_us)} against {number(timing.host.events_us)} µs"
        )
    if timing.clocks is not None:
        clocks = timing.clocks
        held = f", held back by {', '.join(clocks.throttled)}" if clocks.throttled else ""
        low, high = clocks.sm_mhz
        yield field("clocks", f"{low} to {high} MHz, at most {clocks.temperature_c[1]} °C{held}")
    if timing.coverage is not None and timing.coverage < 1:
        yield field("coverage", f"{percent(timing.coverage)} of device time in the candidate's own kernels")
    if timing.setup_us is not None:
        yield field("setup", f"{number(timing.setup_us)} µs, not part of the time")
    gap = timing.candidate.node_gap_us
    if gap is not None:
        told = f"{number(gap)} µs: the gap before a kernel and the least that one takes, in every time once per kernel"
        yield field("empty kernel", told)
    for baseline, reason in timing.absent.items():
        yield field("no baseline", f"{baseline}: {reason}")
    for note in timing.notes:
        yield field("note", note)
    yield Text()
    yield timing_table(sides_of(timing)).to_rich()
