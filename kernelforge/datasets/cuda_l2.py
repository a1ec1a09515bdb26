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
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean, geometric_mean
from typing import Final, Literal

from pydantic import Field

from kernelforge.datasets.published import finite
from kernelforge.errors import UsageError
from kernelforge.metrics.codebleu import uncommented
from kernelforge.records.base import Record
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
    r"\bwmma::accumulator\s*,[^>]*\bhalf\s*>": "float16",
    r"\bwmma::accumulator\s*,[^>]*\bfloat\s*>": "float32",
    r"\b(?:mma\.sync|wgmma\.mma_async)[\w.]*\.f16\.f16\.f16": "float16",
    r"\b(?:mma\.sync|wgmma\.mma_async)[\w.]*\.f32\.f16\.f16": "float32",
    r"\busing\s+Elem(?:ent)?Acc\w*\s*=\s*(?:cutlass::half_t|half|half_t)\s*;": "float16",
    r"\busing\s+Elem(?:ent)?Acc\w*\s*=\s*float\s*;": "float32",
}
"""Products of float16 in CuTe's names, WMMA's fragments, PTX, and aliases for CUTLASS's builders, by the type of their
sums."""


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
    def narrower(self) -> bool:
        """Whether it has a sum in float16 where float32 is declared."""
        return self.declared == "float32" and self.accumulator in ("float16", "both")

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


class GridResult(Record):
    """Published speedups of one GPU, accumulator and mode over one baseline."""

    gpu: str
    accumulator: str
    mode: Literal["offline", "server"]
    baseline: str
    shapes: int = Field(gt=0)
    win_rate: float
    """Share of the shapes with a speedup above 1."""
    geomean: float
    mean: float
    least: float
    faithful: int
    """Shapes whose kernel has no sum in a narrower type than declared, by the kernels of the checkout."""
    faithful_geomean: float | None
    """Over these alone; None without any."""


class Release(Record):
    """A checkout."""

    kernels: tuple[ReleasedKernel, ...]
    folders: tuple[KernelFolder, ...]
    results: tuple[GridResult, ...]
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
    narrow = {(item.gpu, item.declared, f"{item.m}_{item.n}_{item.k}") for item in kernels if item.narrower}
    results: list[GridResult] = []
    for path in sorted((checkout / "eval_results").glob("*.csv")):
        try:
            results += _results(path, narrow)
        except UsageError as error:
            unread.append(str(error))
    if not kernels and not results:
        raise UsageError(
            f"{checkout} is no checkout of CUDA-L2: no kernels/*/*.cu and no eval_results/*.csv can be read"
        )
    return Release(
        kernels=tuple(kernels), folders=tuple(_folders(kernels)), results=tuple(results), unread=tuple(unread)
    )


def accumulator_of(source: str) -> Accumulator:
    """Type of the sums of a kernel's tensor-core products, by their names in its text, without comments."""
    text = uncommented(source)
    seen = {kind for pattern, kind in _OPERATIONS.items() if re.search(pattern, text)}
    return "both" if len(seen) > 1 else seen.pop() if seen else "not seen"


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


def _folders(kernels: list[ReleasedKernel]) -> list[KernelFolder]:
    by_name: dict[str, list[ReleasedKernel]] = {}
    for item in kernels:
        by_name.setdefault(item.origin.partition("/")[0], []).append(item)
    return [
        KernelFolder(
            name=name,
            kernels=len(items),
            float16=sum(item.accumulator == "float16" for item in items),
            float32=sum(item.accumulator == "float32" for item in items),
            both=sum(item.accumulator == "both" for item in items),
            not_seen=sum(item.accumulator == "not seen" for item in items),
            narrower=sum(item.narrower for item in items),
        )
        for name, items in by_name.items()
    ]


def _results(path: Path, narrow: set[tuple[str, Literal["float16", "float32"], str]]) -> list[GridResult]:
    """One result for each baseline of a file.

    Raises:
        UsageError: its name or its columns are others, or a cell is no positive number.
    """
    name = _RESULTS.fullmatch(path.name)
    if name is None:
        raise UsageError(f"{path}: its name is not cuda_l2_GPU_F32F16F16F32_speedup_MODE.csv")
    rows = list(csv.DictReader(io.StringIO(read_text(path, _MOST_BYTES))))
    if not rows or "mnk" not in rows[0]:
        raise UsageError(f"{path} has no rows with a column mnk")
    speedups: dict[str, dict[str, float]] = {}
    for line, row in enumerate(rows, start=2):
        for baseline, cell in row.items():
            if baseline == "mnk":
                continue
            value = finite(_number(cell))
            if value is None or value <= 0 or _SHAPE.fullmatch(row["mnk"] or "") is None or not baseline:
                raise UsageError(f"{path}, line {line}: {baseline} of {row['mnk']!r} is no positive speedup: {cell!r}")
            if row["mnk"] in speedups.setdefault(baseline, {}):
                raise UsageError(f"{path}, line {line}: the shape {row['mnk']} is there twice")
            speedups[baseline][row["mnk"]] = value
    declared: Literal["float16", "float32"] = "float16" if name[2] == "16" else "float32"
    return [
        _result(name[1], declared, "offline" if name[3] == "offline" else "server", baseline, values, narrow)
        for baseline, values in speedups.items()
    ]


def _result(
    gpu: str,
    declared: Literal["float16", "float32"],
    mode: Literal["offline", "server"],
    baseline: str,
    speedups: Mapping[str, float],
    narrow: set[tuple[str, Literal["float16", "float32"], str]],
) -> GridResult:
    values = list(speedups.values())
    faithful = [value for shape, value in speedups.items() if (gpu, declared, shape) not in narrow]
    return GridResult(
        gpu=gpu,
        accumulator=declared,
        mode=mode,
        baseline=baseline,
        shapes=len(values),
        win_rate=sum(value > 1 for value in values) / len(values),
        geomean=geometric_mean(values),
        mean=fmean(values),
        least=min(values),
        faithful=len(faithful),
        faithful_geomean=geometric_mean(faithful) if faithful else None,
    )


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
