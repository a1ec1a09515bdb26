"""Predicted times and energies of matrix products by their tiles, without a GPU."""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple

from platformdirs import user_cache_path

from kernelforge.candidate import parse_plan
from kernelforge.compile import Artifact, Compiler
from kernelforge.devices import check_device, make_device
from kernelforge.devices.base import RunFailed, RunRequest
from kernelforge.devices.emulated.device import EmulatedDevice
from kernelforge.errors import DeviceError, UsageError
from kernelforge.hardware.specs import EMULATED
from kernelforge.profiling.energy import estimate_energy
from kernelforge.profiling.model import PROTOCOL, plan_time
from kernelforge.records.base import Record

EFFORT = 0.25
"""Of a profile's: blocks of a product are alike, a few tell of all."""
DEADLINE_S = 120.0
LARGEST = 1 << 14
"""Largest extent of a product."""


class Tile(NamedTuple):
    """Sizes of tiles: a block makes ``rows`` x ``columns`` elements, ``depth`` products of each at a time; a thread
    ``thread_rows`` x ``thread_columns`` of them."""

    rows: int
    columns: int
    depth: int
    thread_rows: int
    thread_columns: int

    @property
    def threads(self) -> int:
        return self.rows // self.thread_rows * (self.columns // self.thread_columns)

    def __str__(self) -> str:
        return f"{self.rows} x {self.columns} x {self.depth}, {self.thread_rows} x {self.thread_columns} a thread"


TILES = (
    Tile(16, 16, 16, 1, 1),
    Tile(32, 32, 16, 2, 2),
    Tile(64, 32, 16, 4, 4),
    Tile(64, 64, 8, 4, 4),
    Tile(64, 64, 16, 8, 4),
    Tile(64, 64, 8, 8, 8),
    Tile(128, 64, 8, 8, 4),
    Tile(128, 64, 16, 8, 8),
    Tile(128, 128, 8, 8, 8),
    Tile(128, 128, 16, 8, 8),
)


class TilePrediction(Record):
    """Prediction for one choice of tiles."""

    tile: str
    threads: int
    """Of a block."""
    blocks: int
    registers: int
    """Of a thread, from the compiler."""
    time_us: float
    """Modelled."""
    bound: str
    energy_mj: float
    """Estimated; of bytes and arithmetic alone."""
    energy_parts_mj: dict[str, float]


class ProductPrediction(Record):
    """Predictions for one matrix product, the fastest first."""

    device: str
    m: int
    n: int
    k: int
    origin: str
    """``modelled``: no time and no energy is measured."""
    protocol: str
    """Version of the time model."""
    tiles: tuple[TilePrediction, ...]


def predict_product(
    m: int,
    n: int,
    k: int,
    *,
    device: str = "emulated:h100",
    cache: Path | None = None,
    allow_unconfined: bool = False,
    tell: Callable[[str], None] = lambda line: None,
) -> ProductPrediction:
    """Predict times and energies of ``C[m, n] = A[m, k] B[k, n]`` in FP32, for each of :data:`TILES`.

    Args:
        m: Rows of A and C.
        n: Columns of B and C.
        k: Columns of A, rows of B.
        device: An emulated device.
        cache: Folder of the build cache; None for the user's.
        allow_unconfined: Continue where no jail works.
        tell: Called with a line before each choice.

    Raises:
        UsageError: an extent is no positive number, or too large; or the device is not an emulated one.
        DeviceError: there is no such device, or it cannot run the product.
    """
    for name, extent in (("M", m), ("N", n), ("K", k)):
        if not 1 <= extent <= LARGEST:
            raise UsageError(f"{name} = {extent}: give a number from 1 to {LARGEST}")
    full = check_device(device)
    if not full.startswith(EMULATED):
        raise UsageError(f"{device!r} is no emulated device, and predictions need no GPU; name one: emulated:h100")
    opened = make_device(full, threads=os.cpu_count() or 1, allow_unconfined=allow_unconfined)
    assert isinstance(opened, EmulatedDevice)
    folder = cache or user_cache_path("kernelforge") / "builds"
    with opened, Compiler(folder, allow_unconfined=allow_unconfined) as compiler:
        predictions = []
        for tile in TILES:
            tell(str(tile))
            predictions.append(_prediction(opened, compiler, tile, m, n, k))
    return ProductPrediction(
        device=full, m=m, n=n, k=k, origin="modelled", protocol=PROTOCOL,
        tiles=tuple(sorted(predictions, key=lambda prediction: prediction.time_us)),
    )  # fmt: skip


def _prediction(device: EmulatedDevice, compiler: Compiler, tile: Tile, m: int, n: int, k: int) -> TilePrediction:
    expression = f"product<{', '.join(map(str, tile))}>"
    grid = -(-n // tile.columns), -(-m // tile.rows)
    text = f"""
def setup(w):
    a = empty(({m * k},), dtype=float32)
    b = empty(({k * n},), dtype=float32)
    touch[1, 32](a, b)
    return a, b

def forward():
    a, b = prepared
    c = empty(({m}, {n}), dtype=float32)
    kernel("{expression}")[{grid}, {tile.threads}](a, b, c, i32({m}), i32({n}), i32({k}))
    return c
"""
    plan = parse_plan(text, "cuda").resolve([], {}, {})
    source = files("kernelforge.tiles").joinpath("kernels/product.cu").read_text(encoding="utf-8")
    artifact = compiler.build(source, plan.expressions, arch=device.arch, scored=False)
    if not isinstance(artifact, Artifact):
        raise DeviceError(f"{expression} is not built for {device.arch}: {artifact.refused or artifact.errors}")
    request = RunRequest(plan.bound_to(artifact.build), {}, deadline_s=DEADLINE_S)
    with device.open(artifact) as session:
        try:
            counts = session.count(request, EFFORT)
        except RunFailed as error:
            raise DeviceError(f"{expression} does not run on {device.name}: {error}") from error
        registers = session.registers
        time = plan_time(device.spec, counts, registers, session.machine_work(counts))
    energy = estimate_energy(device.spec, counts)
    return TilePrediction(
        tile=str(tile), threads=tile.threads, blocks=grid[0] * grid[1], registers=registers[expression],
        time_us=time.time_us, bound=time.bound, energy_mj=energy.millijoules,
        energy_parts_mj={part.name: part.millijoules for part in energy.parts},
    )  # fmt: skip
