"""CUDA-L2's release (``deepreinforce-ai/CUDA-L2``): its kernels by accumulator, and its published speedups.

A checkout has ``kernels/GPU_ACCUMULATOR/M_N_K.cu``, one file for each shape, and
``eval_results/cuda_l2_GPU_ACCUMULATOR_speedup_MODE.csv``: rows of ``mnk`` and the speedup over each baseline. cuBLAS
and cuBLASLt have a column for each layout (``-tn``, ``-nn``) and one for the better of both, ``-max``. Texts and
numbers are read; nothing is compiled or run.
"""

from __future__ import annotations

import csv
import io
import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from itertools import product
from pathlib import Path
from statistics import fmean, geometric_mean
from typing import Annotated, Final, Literal, NamedTuple

from pydantic import Field

from kernelforge.datasets.published import finite
from kernelforge.errors import UsageError
from kernelforge.metrics.codebleu import uncommented
from kernelforge.records.base import Record
from kernelforge.utils.commas import comma_parts
from kernelforge.utils.text_files import read_text

Accumulator = Literal["float16", "float32", "both", "not seen"]

_MOST_BYTES: Final = 1 << 20
_FOLDER: Final = re.compile(r"(\w+?)_F(16|32)F16F16F\2")
_RESULTS: Final = re.compile(r"cuda_l2_(\w+?)_F(16|32)F16F16F\2_speedup_(offline|server)\.csv")
_SHAPE: Final = re.compile(r"(\d{1,6})_(\d{1,6})_(\d{1,6})")
_FUNCTION: Final = re.compile(r"^void\s+(cuda_l2_\w+)\s*\(\s*torch::Tensor\s+a\b", re.MULTILINE)
_OPERATIONS: Final[Mapping[str, Accumulator]] = {
    r"\bSM\d+_\d+x\d+x\d+_F16F16F16": "float16",
    r"\bSM\d+_\d+x\d+x\d+_F32F16F16": "float32",
    r"\b(?:mma\.sync|wgmma\.mma_async)[\w.]{0,100}\.f16\.f16\.f16": "float16",
    r"\b(?:mma\.sync|wgmma\.mma_async)[\w.]{0,100}\.f32\.f16\.f16": "float32",
    r"\busing\s+Elem(?:ent)?Acc\w*\s*=\s*(?:cutlass::half_t|half|half_t)\s*;": "float16",
    r"\busing\s+Elem(?:ent)?Acc\w*\s*=\s*float\s*;": "float32",
}
"""Products of float16 in CuTe's names, PTX, and aliases for CUTLASS's builders, by the type of their sums."""
_FRAGMENT: Final = re.compile(
    r"\bfragment\s{0,20}<\s{0,20}(?:\w{1,40}::){0,3}accumulator\s{0,20},[^<>;]{0,200}\b(float|(?:__)?half)\s{0,20}>"
)
_VARIABLE: Final = re.compile(r"[\s&*(]{0,40}(\w{1,80})[\s)]{0,40}(?:\[[^\[\];]{0,80}\]\s{0,20}){0,4}")
_MMA: Final = re.compile(r"\bmma_sync\s{0,20}\(([^;]{0,400})")
_MOST_VARIABLES: Final = 64
"""Of one declaration that are read."""


class ReleasedKernel(Record):
    """One file of the release."""

    gpu: str
    declared: Literal["float16", "float32"]
    """Accumulator by the name of its folder."""
    m: int = Field(gt=0)
    n: int = Field(gt=0)
    k: int = Field(gt=0)
    accumulator: Accumulator
    """By the products in its text; ``not seen`` where it names none that is known."""
    function: str
    """Host function that takes the tensors; empty where there is none."""
    origin: str

    @property
    def problem(self) -> str:
        """Its shape, as its file is named."""
        return f"{self.m}_{self.n}_{self.k}"

    @property
    def narrower(self) -> bool:
        """Whether it has a sum in float16 where float32 is declared."""
        return is_narrower(self.declared, self.accumulator)

    @property
    def task(self) -> str:
        """The shipped task that judges it as what it is: by its operations, or by its folder without any."""
        half = self.accumulator in ("float16", "both") or (
            self.accumulator == "not seen" and self.declared == "float16"
        )
        return f"{'hgemm-f16' if half else 'hgemm'}/m{self.m}_n{self.n}_k{self.k}"


class KernelFolder(Record):
    """Counts of one folder of kernels."""

    name: str
    kernels: int
    float16: int
    float32: int
    both: int
    not_seen: int
    narrower: int
    """Kernels with a sum in float16 where the folder declares float32."""


Shape = tuple[int, int, int]
"""M, N and K of a product."""

EXTENTS: Final = (64, 128, 256, 512, 1024, 2048, 4096, 8192, 12288, 16384)
GRID: Final[tuple[Shape, ...]] = tuple((m, n, k) for m, n, k in product(EXTENTS, repeat=3))
"""CUDA-L2's shapes."""

_BANDS: Final = ((64, 256), (512, 2048), (4096, 16384))
_SMALL_WORK, _LARGE_WORK = 1 << 28, 1 << 36
_WORK_BANDS: Final = ("MNK under 2^28", "MNK 2^28 to 2^36", "MNK from 2^36")

EVERYWHERE: Final = "all"
REGIONS: Final = (EVERYWHERE, *(f"{name} {low} to {high}" for name in "MNK" for low, high in _BANDS), *_WORK_BANDS)
"""Names of the regions that results are divided by: bands of each extent, and of the multiply-adds M N K."""


class Speedup(NamedTuple):
    """Times of a baseline over a kernel's, with the ends of its interval where there is one."""

    value: float
    low: float | None = None
    high: float | None = None


class GridGroup(Record):
    """The settings that results over the grid share where they are compared."""

    gpu: str
    accumulator: Literal["float16", "float32"]
    """Type of the sums that is declared, or that the task asks for."""
    mode: Literal["offline", "server"]
    """``offline``: call after call. ``server``: requests at random intervals, between which the GPU idles."""
    origin: Literal["measured", "predicted", "published"]
    protocol: str | None = None
    """Timing protocol; None for published times."""


class GridResult(GridGroup):
    """Speedups of one group over one baseline, in one region of the grid."""

    baseline: str
    region: str = EVERYWHERE
    """One of :data:`REGIONS`."""
    grid: int = Field(gt=0)
    """Shapes of the region."""
    shapes: int = Field(ge=0)
    """Those with a speedup."""
    missing: int = Field(ge=0)
    """Those without: not tried, not right, or not timed. They are no wins."""
    wins: int
    """Shapes with a speedup above 1."""
    win_rate: float | None
    """Their share of the shapes with a speedup."""
    grid_win_rate: float
    """Their share of all shapes of the region."""
    clear_wins: int | None
    """Shapes whose whole interval lies above 1; None where a shape has none."""
    clear_losses: int | None
    """Shapes whose whole interval lies below 1."""
    geomean: float | None
    """Over the shapes with a speedup, as are the following."""
    geomean_low: float | None
    geomean_high: float | None
    """Geometric means of the intervals' ends: as if all shapes erred alike."""
    mean: float | None
    least: float | None
    faithful: int
    """Shapes whose kernel has no sum in a narrower type than declared that is seen in its text."""
    faithful_geomean: float | None
    """Over these alone; None without any."""


def grid_results(
    group: GridGroup,
    baseline: str,
    speedups: Mapping[Shape, Speedup],
    *,
    narrower: Collection[Shape] = (),
    grid: Collection[Shape] = GRID,
    every_region: bool = False,
) -> Iterator[GridResult]:
    """Results over a grid: of all of it, then of its regions.

    Args:
        group: What they are of.
        baseline: What the speedups are over.
        speedups: By shape; those outside of ``grid`` are left out.
        narrower: Shapes whose kernel has sums in a narrower type than declared.
        grid: Shapes that there could be.
        every_region: Whether to divide it by bands of M, of N, of K, and of their product.
    """
    sizes = Counter(region for shape in grid for region in regions(shape))
    for region in REGIONS if every_region else (EVERYWHERE,):
        if size := sizes[region]:
            inside = {shape: speedups[shape] for shape in grid if shape in speedups and region in regions(shape)}
            yield _result(group, baseline, region, size, inside, narrower)


def regions(shape: Shape) -> tuple[str, ...]:
    """The regions of the grid that a shape belongs to."""
    m, n, k = shape
    work = m * n * k
    bands = [
        f"{name} {low} to {high}"
        for name, extent in (("M", m), ("N", n), ("K", k))
        for low, high in _BANDS
        if low <= extent <= high
    ]
    return EVERYWHERE, *bands, _WORK_BANDS[(work >= _SMALL_WORK) + (work >= _LARGE_WORK)]


def _result(
    group: GridGroup,
    baseline: str,
    region: str,
    size: int,
    speedups: Mapping[Shape, Speedup],
    narrower: Collection[Shape],
) -> GridResult:
    values = [speedup.value for speedup in speedups.values()]
    lows = [speedup.low for speedup in speedups.values() if speedup.low is not None]
    highs = [speedup.high for speedup in speedups.values() if speedup.high is not None]
    bounded = bool(values) and len(lows) == len(highs) == len(values)
    faithful = [speedup.value for shape, speedup in speedups.items() if shape not in narrower]
    wins = sum(value > 1 for value in values)
    return GridResult(
        **dict(group),
        baseline=baseline,
        region=region,
        grid=size,
        shapes=len(values),
        missing=size - len(values),
        wins=wins,
        win_rate=wins / len(values) if values else None,
        grid_win_rate=wins / size,
        clear_wins=sum(low > 1 for low in lows) if bounded else None,
        clear_losses=sum(high < 1 for high in highs) if bounded else None,
        geomean=geometric_mean(values) if values else None,
        geomean_low=geometric_mean(lows) if bounded else None,
        geomean_high=geometric_mean(highs) if bounded else None,
        mean=fmean(values) if values else None,
        least=min(values, default=None),
        faithful=len(faithful),
        faithful_geomean=geometric_mean(faithful) if faithful else None,
    )


class PublishedSpeedups(Record):
    """One column of a file of results."""

    group: GridGroup
    baseline: str
    speedups: dict[Shape, Annotated[float, Field(gt=0)]]
    narrower: frozenset[Shape]
    """Shapes whose kernel in the checkout has sums in a narrower type than declared."""

    def results(self, grid: Collection[Shape] | None = None, *, every_region: bool = False) -> Iterator[GridResult]:
        """Results over a grid, as :func:`grid_results`; CUDA-L2's, and what the file has beyond it, if left out."""
        values = {shape: Speedup(value) for shape, value in self.speedups.items()}
        shapes = {*GRID, *values} if grid is None else grid
        return grid_results(
            self.group, self.baseline, values, narrower=self.narrower, grid=shapes, every_region=every_region
        )


class Release(Record):
    """A checkout."""

    kernels: tuple[ReleasedKernel, ...]
    folders: tuple[KernelFolder, ...]
    results: tuple[GridResult, ...]
    """Over the whole grid."""
    speedups: tuple[PublishedSpeedups, ...] = Field(exclude=True)
    """What these are made of."""
    unread: tuple[str, ...]
    """Files that could not be read, each with the reason."""


def read_release(checkout: Path) -> Release:
    """Kernels and results of a checkout; what cannot be read is listed with the reason.

    Raises:
        UsageError: the folder has neither kernels nor results.
    """
    kernels: list[ReleasedKernel] = []
    unread: list[str] = []
    for path in sorted((checkout / "kernels").glob("*/*.cu")):
        try:
            kernels.append(_kernel(path))
        except UsageError as error:
            unread.append(str(error))
    narrower: dict[tuple[str, str], set[Shape]] = {}
    for item in kernels:
        if item.narrower:
            narrower.setdefault((item.gpu, item.declared), set()).add((item.m, item.n, item.k))
    speedups: list[PublishedSpeedups] = []
    for path in sorted((checkout / "eval_results").glob("*.csv")):
        try:
            speedups += _speedups(path, narrower)
        except UsageError as error:
            unread.append(str(error))
    if not kernels and not speedups:
        raise UsageError(
            f"{checkout} is no checkout of CUDA-L2: no kernels/*/*.cu and no eval_results/*.csv can be read"
        )
    return Release(
        kernels=tuple(kernels),
        folders=tuple(_folders(kernels)),
        results=tuple(result for item in speedups for result in item.results()),
        speedups=tuple(speedups),
        unread=tuple(unread),
    )


def select_release(release: Release, gpu: str | None, problems: Collection[str]) -> Release:
    """The part of a release of one GPU, and its kernels of some shapes.

    Args:
        gpu: As the release spells it; every one if None.
        problems: Shapes as ``M_N_K``; every one if empty. Results stay over the whole grid.

    Raises:
        UsageError: There is no such GPU, or a shape has no kernel.
    """
    gpus = sorted({item.gpu for item in release.kernels} | {item.gpu for item in release.results})
    if gpu is not None and gpu not in gpus:
        raise UsageError(f"the release has no kernel and no result of GPU {gpu!r}; it has: {', '.join(gpus)}")
    kernels = tuple(item for item in release.kernels if gpu in (None, item.gpu))
    if problems:
        kernels = tuple(item for item in kernels if item.problem in problems)
        if missing := sorted(set(problems) - {item.problem for item in kernels}):
            where = "" if gpu is None else f" for GPU {gpu!r}"
            raise UsageError(f"the release has no kernel of shape {', '.join(missing)}{where}; a shape is M_N_K")
    return release.model_copy(
        update={
            "kernels": kernels,
            "results": tuple(item for item in release.results if gpu in (None, item.gpu)),
            "folders": tuple(item for item in release.folders if gpu is None or item.name.startswith(f"{gpu}_")),
        }
    )


def is_narrower(declared: Literal["float16", "float32"], accumulator: Accumulator) -> bool:
    """Whether a kernel has a sum in float16 where float32 is declared."""
    return declared == "float32" and accumulator in ("float16", "both")


def accumulator_of(source: str) -> Accumulator:
    """Type of the sums of a kernel's tensor-core products, by their names in its text, without comments."""
    text = uncommented(source)
    seen = {kind for pattern, kind in _OPERATIONS.items() if re.search(pattern, text)} | _wmma_sums(text)
    return "both" if len(seen) > 1 else seen.pop() if seen else "not seen"


def _wmma_sums(text: str) -> set[Accumulator]:
    """Types of the fragments that WMMA's products sum in: a fragment that is only stored is none of them."""
    declared: dict[str, list[tuple[int, Accumulator]]] = {}
    kinds: set[Accumulator] = set()
    for match in _FRAGMENT.finditer(text):
        kind: Accumulator = "float32" if match[1] == "float" else "float16"
        kinds.add(kind)
        for name in _variables(text, match.end()):
            declared.setdefault(name, []).append((match.end(), kind))
    sums: set[Accumulator] = set()
    for match in _MMA.finditer(text):
        arguments = comma_parts(match[1])
        for argument in (arguments[0], *arguments[3:4]):
            variable = _VARIABLE.match(argument)
            places = declared.get(variable[1], []) if variable else []
            before = bisect_left(places, (match.start(), ""))
            if before:
                sums.add(places[before - 1][1])
            elif len(kinds) == 1:
                sums |= kinds
    return sums


def _variables(text: str, start: int) -> Iterator[str]:
    """Names that a declaration goes on with behind its type."""
    for _ in range(_MOST_VARIABLES):
        match = _VARIABLE.match(text, start)
        if match is None:
            return
        yield match[1]
        if not text.startswith(",", match.end()):
            return
        start = match.end() + 1


def _kernel(path: Path) -> ReleasedKernel:
    folder, shape = _FOLDER.fullmatch(path.parent.name), _SHAPE.fullmatch(path.stem)
    if folder is None or shape is None or not all(map(int, shape.groups())):
        raise UsageError(f"{path}: its name is not kernels/GPU_F32F16F16F32/M_N_K.cu")
    source = read_text(path, _MOST_BYTES)
    function = _FUNCTION.search(source)
    m, n, k = map(int, shape.groups())
    return ReleasedKernel(
        gpu=folder[1],
        declared="float16" if folder[2] == "16" else "float32",
        m=m,
        n=n,
        k=k,
        accumulator=accumulator_of(source),
        function=function[1] if function else "",
        origin=f"{path.parent.name}/{path.name}",
    )


def _folders(kernels: list[ReleasedKernel]) -> Iterator[KernelFolder]:
    by_name: dict[str, list[ReleasedKernel]] = {}
    for item in kernels:
        by_name.setdefault(item.origin.partition("/")[0], []).append(item)
    for name, items in by_name.items():
        yield count_kernels(name, items[0].declared, [item.accumulator for item in items])


def count_kernels(
    name: str, declared: Literal["float16", "float32"], accumulators: Collection[Accumulator]
) -> KernelFolder:
    """Counts of kernels that declare one accumulator, by those of their texts."""
    counts = Counter(accumulators)
    return KernelFolder(
        name=name,
        kernels=len(accumulators),
        float16=counts["float16"],
        float32=counts["float32"],
        both=counts["both"],
        not_seen=counts["not seen"],
        narrower=sum(is_narrower(declared, accumulator) for accumulator in accumulators),
    )


def _speedups(path: Path, narrower: Mapping[tuple[str, str], set[Shape]]) -> Iterator[PublishedSpeedups]:
    """The columns of a file.

    Raises:
        UsageError: its name or its columns are others, or a cell is no positive number.
    """
    name = _RESULTS.fullmatch(path.name)
    if name is None:
        raise UsageError(f"{path}: its name is not cuda_l2_GPU_F32F16F16F32_speedup_MODE.csv")
    rows = list(csv.DictReader(io.StringIO(read_text(path, _MOST_BYTES))))
    if not rows or "mnk" not in rows[0]:
        raise UsageError(f"{path} has no rows with a column mnk")
    columns: dict[str, dict[Shape, float]] = {}
    for line, row in enumerate(rows, start=2):
        extents = _SHAPE.fullmatch(row["mnk"] or "")
        for baseline, cell in row.items():
            if baseline == "mnk":
                continue
            value = finite(_number(cell))
            if value is None or value <= 0 or extents is None or not baseline:
                raise UsageError(f"{path}, line {line}: {baseline} of {row['mnk']!r} is no positive speedup: {cell!r}")
            shape = (int(extents[1]), int(extents[2]), int(extents[3]))
            if shape in columns.setdefault(baseline, {}):
                raise UsageError(f"{path}, line {line}: the shape {row['mnk']} is there twice")
            columns[baseline][shape] = value
    group = GridGroup(
        gpu=name[1],
        accumulator="float16" if name[2] == "16" else "float32",
        mode="offline" if name[3] == "offline" else "server",
        origin="published",
    )
    narrow = frozenset(narrower.get((group.gpu, group.accumulator), ()))
    for baseline, speedups in columns.items():
        yield PublishedSpeedups(group=group, baseline=baseline, speedups=speedups, narrower=narrow)


def _number(cell: object) -> float | None:
    try:
        return float(cell) if isinstance(cell, str) else None
    except ValueError:
        return None


def as_model_new(kernel: ReleasedKernel, source: str) -> str:
    """A KernelBench class that builds a released kernel and calls it, for the task of its shape.

    It needs nvcc and the headers of the extra ``cutlass``. The kernel is also handed B in column order, which the class
    makes in every call.

    Raises:
        UsageError: the kernel has no host function.
    """
    if not kernel.function:
        raise UsageError(f"{kernel.origin} has no host function that takes torch's tensors")
    return f'''"""CUDA-L2, {kernel.origin}: a product of {kernel.m} x {kernel.k} by {kernel.k} x {kernel.n}."""

import importlib.util
from pathlib import Path

import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

FOLDER = Path(importlib.util.find_spec("cutlass_library").origin).parent
SOURCE = {source!r}
DECLARATION = "void {kernel.function}(torch::Tensor a, torch::Tensor b, torch::Tensor b_col_major, torch::Tensor c);"
EXTENSION = load_inline(
    "{kernel.function}",
    cpp_sources=[DECLARATION],
    cuda_sources=[SOURCE],
    functions=["{kernel.function}"],
    extra_include_paths=[str(FOLDER / "source" / "include")],
    extra_cuda_cflags=["-O3", "-std=c++17"],
)


class ModelNew(nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        c = torch.empty(a.shape[0], b.shape[1], dtype=a.dtype, device=a.device)
        EXTENSION.{kernel.function}(a, b, b.t().contiguous(), c)
        return c
'''
