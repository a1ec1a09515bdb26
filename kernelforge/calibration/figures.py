"""``calibrate``: measures the figures of one device, and compares them with those that were known of it before."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

from kernelforge.calibration.measurements import CHECKS, GROUPS
from kernelforge.calibration.plan_timer import CardFacts, PlanTimer
from kernelforge.errors import UsageError
from kernelforge.hardware.specs import SECTOR_BYTES, DeviceSpec, find_spec, spec_fields
from kernelforge.records.base import Record

RUNS = 5
"""Of every measurement on a GPU."""

POWERS_OF_TWO = frozenset(
    ("fp32_lanes_per_sm", "fp64_lanes_per_sm", "int32_lanes_per_sm", "special_lanes_per_sm", "l1_bytes_per_cycle",
     "l2_fetch_bytes")
)  # fmt: skip
"""Widths and lanes, which loops approach from below: the nearest power of two is taken."""
PORT_STEP = 8
"""Bytes per cycle of the port from the L2 to an SM are rounded to a multiple of this."""
MMA_SHARES_THE_PEAK = ((9, 0), (12, 0))
"""From the first compute capability to before the second, ``mma`` reaches a part of the peak, which takes ``wgmma`` or
``tcgen05``: its rates are checks there, if measured, and the file keeps the published peaks."""
UNITS = {
    "_latency_cycles": "cycles", "block_cycles": "cycles per block", "cycles_per_warp": "cycles per warp",
    "_gbps": "GB/s", "_bytes": "bytes", "_bytes_per_cycle": "bytes per cycle and SM", "_lanes_per_sm": "lanes",
    "_tflops": "TFLOP/s", "_ns": "ns", "_us": "us",
}  # fmt: skip
"""By the end of a name; the longest end counts."""


class CalibratedFigure(Record):
    """One figure of a GPU: raw values of some runs, and what the parameter file gets of them."""

    name: str
    """Field of :class:`~kernelforge.hardware.specs.DeviceSpec`, or a check that has no field."""
    unit: str
    value: float
    """Rounded as the field takes it: to an integer, for widths and lanes to a power of two."""
    raw: float
    """Median of the runs."""
    lowest: float
    highest: float
    previous: float | None = None
    """From the figures of this GPU, or of the nearest known one, before the calibration."""
    in_file: bool = True
    """Whether the parameter file gets it; else it is a check."""

    @property
    def difference(self) -> float | None:
        """Of the value from the previous one, as a share of that."""
        return self.value / self.previous - 1 if self.previous else None


class Calibration(Record):
    """Figures of one device."""

    device: str
    gpu: str
    origin: str
    """``measured`` or ``modelled``: the origin of the times."""
    previous_of: str
    """GPU that the previous figures are of."""
    date: str
    driver: str
    runs: int
    sm_mhz: tuple[int, int] | None
    """Lowest and highest reading of the SMs' clock after each group of measurements, if the driver reports it."""
    throttled: tuple[str, ...]
    figures: tuple[CalibratedFigure, ...]

    @property
    def provenance(self) -> str:
        """Text for the parameter file: device, date, driver, runs."""
        driver = f", driver {self.driver}" if self.driver else ""
        runs = f", {self.runs} runs" if self.runs > 1 else ""
        return f"{self.origin} by kernelforge calibrate on {self.device} ({self.gpu}), {self.date}{driver}{runs}"


def calibrate(
    device: str,
    *,
    runs: int | None = None,
    cache: Path | None = None,
    allow_unconfined: bool = False,
    tell: Callable[[str], None] = lambda line: None,
) -> tuple[Calibration, CardFacts, DeviceSpec]:
    """Measure the figures of a device; on an emulated one, recover those that it models.

    Args:
        device: ``cuda:0``, or an emulated device.
        runs: Runs of every measurement; by default 5 where times are measured, 1 where they are modelled.
        cache: Folder of the build cache; None for the user's.
        allow_unconfined: Continue where no jail works.
        tell: Called with a line before each group of measurements.

    Returns:
        The calibration, facts of the GPU, and the figures known of it or of the nearest GPU.

    Raises:
        UsageError: the number of runs is not positive.
        DeviceError: there is no such device, or it cannot run the measurements.
        TimingError: its times cannot be times.
    """
    if runs is not None and runs < 1:
        raise UsageError(f"{runs} runs: give a positive number, such as 5")
    readings = []
    with PlanTimer(device, cache=cache, allow_unconfined=allow_unconfined, tell=tell) as timer:
        times = runs or (RUNS if timer.measures else 1)
        values: dict[str, list[float]] = {}
        for group in GROUPS:
            tell(f"{group.title}: {times} runs" if times > 1 else group.title)
            for _ in range(times):
                for name, value in group.measure(timer).items():
                    if name.endswith("_tensor_tflops"):  # what products of warps reach of them
                        value /= timer.device.spec.product_share
                    values.setdefault(name, []).append(value)
            readings.append(timer.device.clocks())
        spec, facts, measures = timer.device.spec, timer.facts, timer.measures
        name = timer.device.name
    low, high = MMA_SHARES_THE_PEAK
    checks = set(CHECKS)
    if measures and low <= facts.compute_capability < high:
        checks.update(("fp16_tensor_tflops", "tf32_tensor_tflops"))
    clocks = [reading for reading in readings if reading is not None]
    exact = not measures or find_spec(facts.name, facts.sm_count) is not None
    calibration = Calibration(
        device=name,
        gpu=facts.name,
        origin="measured" if measures else "modelled",
        previous_of=spec.title if exact else f"nearest known: {spec.title}",
        date=datetime.now(UTC).date().isoformat(),
        driver=facts.driver,
        runs=times,
        sm_mhz=(min(c.sm_mhz[0] for c in clocks), max(c.sm_mhz[1] for c in clocks)) if clocks else None,
        throttled=tuple(sorted({reason for reading in clocks for reason in reading.throttled})),
        figures=tuple(_figure(name, results, spec, in_file=name not in checks) for name, results in values.items()),
    )
    return calibration, facts, spec


def _figure(name: str, results: list[float], spec: DeviceSpec, *, in_file: bool) -> CalibratedFigure:
    raw = median(results)
    return CalibratedFigure(
        name=name,
        unit=CHECKS.get(name) or unit_of(name),
        value=rounded(name, raw),
        raw=raw,
        lowest=min(results),
        highest=max(results),
        previous=getattr(spec, name, None),
        in_file=in_file,
    )


def unit_of(name: str) -> str:
    """Unit of a figure, by the end of its name."""
    ends = [end for end in UNITS if name.endswith(end)]
    return UNITS[max(ends, key=len)] if ends else ""


def rounded(name: str, raw: float) -> float:
    """A raw value as its field takes it."""
    if name in POWERS_OF_TWO:
        least = SECTOR_BYTES if name in ("l1_bytes_per_cycle", "l2_fetch_bytes") else 1
        return float(max(2 ** round(math.log2(raw)), least)) if raw > 0 else float(least)
    if name == "l2_to_sm_bytes_per_cycle":
        return float(max(round(raw / PORT_STEP), 1) * PORT_STEP)
    if name in INTEGERS:
        return float(max(round(raw), 1))
    return max(float(f"{raw:.4g}"), 0.0)


INTEGERS = frozenset(name for name, kind in spec_fields().items() if kind == "int")
"""Fields of :class:`~kernelforge.hardware.specs.DeviceSpec` that are integers."""
