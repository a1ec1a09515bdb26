"""One profiled launch, whichever way its report was read."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kernelforge.errors import DeviceError
from kernelforge.profiling.ncu.units import Value

Triple = tuple[int, int, int]
MAX_ROWS = 20_000
MAX_METRICS = 5_000
MAX_INSTRUCTIONS = 100_000


@dataclass(frozen=True)
class Instruction:
    """One memory instruction of the machine code: what it did in one launch."""

    line: int
    """Of the source, 1-based; 0 where the report does not say."""
    file: str
    """The source's file; empty where the report does not say."""
    sass: str
    executed: float
    """Warps that executed it."""
    sectors: float = 0.0
    """32-byte sectors of global memory that it asked the L2 for, by its addresses."""
    ideal_sectors: float = 0.0
    wavefronts: float = 0.0
    """Passes through shared memory."""
    ideal_wavefronts: float = 0.0


@dataclass(frozen=True)
class LaunchRow:
    """One launch: exact kernel, shape, metrics in base units, memory instructions."""

    symbol: str
    """Mangled name."""
    grid: Triple
    block: Triple
    metrics: Mapping[str, Value]
    instructions: tuple[Instruction, ...] = field(default=())

    def value(self, name: str) -> float | None:
        found = self.metrics.get(name)
        return None if found is None else found.value

    def to_wire(self) -> dict[str, Any]:
        """Plain JSON."""
        return {
            "symbol": self.symbol,
            "grid": list(self.grid),
            "block": list(self.block),
            "metrics": {name: [one.value, one.unit] for name, one in self.metrics.items()},
            "instructions": [
                [one.line, one.file, one.sass, one.executed, one.sectors, one.ideal_sectors, one.wavefronts,
                 one.ideal_wavefronts]
                for one in self.instructions
            ],
        }  # fmt: skip


def rows_from_wire(wire: Any) -> list[LaunchRow]:
    """Inverse of :meth:`LaunchRow.to_wire`, for a list of them.

    Raises:
        DeviceError: it is something else.
    """
    try:
        if not isinstance(wire, list) or len(wire) > MAX_ROWS:
            raise ValueError("not a list of launches")
        return [_row(raw) for raw in wire]
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise DeviceError(f"a profile's report was read into something else: {error}") from error


def rows_from_output(text: str) -> list[LaunchRow]:
    """The launches in the last line that a reader of reports printed.

    Raises:
        DeviceError: it is something else, or cut short.
    """
    lines = text.splitlines()
    try:
        wire = json.loads(lines[-1] if lines else "")
    except (ValueError, RecursionError) as error:
        raise DeviceError(f"a profile's report was read into no JSON: {error}") from error
    return rows_from_wire(wire)


def _row(raw: Any) -> LaunchRow:
    metrics, instructions = raw["metrics"], raw["instructions"]
    if len(metrics) > MAX_METRICS or len(instructions) > MAX_INSTRUCTIONS:
        raise ValueError("more metrics than ncu has")
    return LaunchRow(
        symbol=_text(raw["symbol"]),
        grid=_triple(raw["grid"]),
        block=_triple(raw["block"]),
        metrics={_text(name): Value(_number(value), _text(unit)) for name, (value, unit) in metrics.items()},
        instructions=tuple(
            Instruction(int(_number(line)), _text(file), _text(sass), *(max(_number(one), 0.0) for one in counts))
            for line, file, sass, *counts in instructions
        ),
    )


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{value!r} is not a number")
    return float(value)


def _text(value: Any) -> str:
    if not isinstance(value, str) or len(value) > 4096:
        raise ValueError("text expected")
    return value


def _triple(value: Any) -> Triple:
    x, y, z = (int(_number(extent)) for extent in value)
    if min(x, y, z) < 1:
        raise ValueError(f"{value!r} is not a grid or a block")
    return x, y, z
