"""Figures of GPUs with their sources, read from ``gpus.toml``, which explains the wording of sources.

This project measured none of them. Limits and lanes are published by NVIDIA; latencies and attained bandwidths are
estimates from published measurements on one GPU of that compute capability, and their source begins with ``estimate``.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, ValidationInfo

from kernelforge.records.base import Record


def _with_titles(source: str, info: ValidationInfo) -> str:
    """A source with the titles of the works that it names in braces."""
    return source.format_map(info.context or {})


Source = Annotated[str, AfterValidator(_with_titles)]
Capability = tuple[int, int]


class Figure(Record):
    """A number and where it comes from."""

    value: float
    source: Source


class Multiprocessor(Record):
    """Figures of a streaming multiprocessor (SM) that all GPUs of one compute capability share."""

    compute_capability: Capability
    chip: str
    """Nsight Compute's name of a chip of that compute capability."""
    fp32_lanes: int
    unified_l1_kib: int
    """L1 cache and shared memory together."""
    shared_carveouts_kib: tuple[int, ...]
    """Possible sizes of shared memory in it; the last is the maximum."""
    shared_kib_per_block: int
    """With the opt-in attribute."""
    shared_reserved_bytes_per_block: int
    shared_allocation_bytes: int
    """Granularity of shared memory allocation."""
    warps: int
    blocks: int


class Generation(Record):
    """Other figures that GPUs of one compute capability share."""

    compute_capability: Capability
    arch: str
    """Real architecture that kernels are compiled for: with the architecture's own instructions from Hopper on."""
    l2_bytes_per_cycle_per_sm: Figure
    """Bandwidth that a kernel attains with its data in the L2."""
    dram_sustained_share: Figure
    """Share of the peak bandwidth that a reading kernel attains."""
    figures: Mapping[str, Figure]
    """By field of :class:`~kernelforge.hardware.specs.DeviceSpec`."""


class Card(Record):
    """One GPU as it is sold."""

    key: str
    """``rtx-4090`` in ``emulated:rtx-4090``."""
    title: str
    names: tuple[str, ...]
    """Names that the driver reports for it."""
    compute_capability: Capability
    sm_count: int
    max_clock_mhz: int
    """Boost clock, which CUDA reports as the device's clock."""
    dram_gb: float
    """Size in the name of the product; the driver reports another number of bytes."""
    dram_bandwidth_gbps: float
    l2_mib: float
    fp16_tensor_tflops: float | None = None
    """Dense, with FP32 accumulation; by default computed from :attr:`fp16_flops_per_cycle_per_sm` and the clock."""
    tf32_tensor_tflops: float | None = None
    """Dense; 0 for tensor cores without TF32; by default half of the computed peak of FP16."""
    fp16_flops_per_cycle_per_sm: int = 0
    source: Source
    """Source of every figure above that :attr:`sources` does not name."""
    sources: Mapping[str, Source] = {}
    """By field of :class:`~kernelforge.hardware.specs.DeviceSpec`."""
    dram_sustained_gbps: Figure | None = None
    """Measured on this card, or estimated otherwise than by its generation."""
    l2_bandwidth_gbps: Figure | None = None


class GpuFigures(Record):
    """The whole file, but for ``works``: the titles by name are the context of its validation."""

    every_gpu: Mapping[str, Figure]
    """By field of :class:`~kernelforge.hardware.specs.DeviceSpec`."""
    multiprocessor_sources: Mapping[str, Source]
    """By field of :class:`~kernelforge.hardware.specs.DeviceSpec`."""
    multiprocessor: tuple[Multiprocessor, ...]
    generation: tuple[Generation, ...]
    card: tuple[Card, ...]
    """The default first."""


def _read() -> GpuFigures:
    table = tomllib.loads(Path(__file__).with_name("gpus.toml").read_text(encoding="utf-8"))
    works = table.pop("works")
    return GpuFigures.model_validate(table, context=works)


FIGURES = _read()
MULTIPROCESSORS: Mapping[Capability, Multiprocessor] = {sm.compute_capability: sm for sm in FIGURES.multiprocessor}
"""By compute capability; others are unknown."""
GENERATIONS: Mapping[Capability, Generation] = {shared.compute_capability: shared for shared in FIGURES.generation}
"""By compute capability of the known cards."""
