"""Profiles: metrics of each kernel of a plan, and the graph of operators of a traced reference."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, field_validator, model_validator

from kernelforge.records.base import Record, restore_non_finite
from kernelforge.records.task import TensorSpec


class Node(Record):
    """One operator call. Arguments are JSON: ``{"ref": "name"}`` for a node, else a plain value or a list."""

    name: str
    kind: Literal["input", "weight", "op", "output"]
    op: str
    """ATen overload packet (``aten.softmax``), the weight's dotted name, or the input's position."""
    args: Annotated[tuple[Any, ...], BeforeValidator(restore_non_finite)] = ()
    kwargs: Annotated[dict[str, Any], BeforeValidator(restore_non_finite)] = {}
    spec: TensorSpec | None = None
    """The value's shape and dtype where it is one tensor."""


class Graph(Record):
    """Nodes in execution order; the last one is the output node whose ``args`` lists the results."""

    size: str
    nodes: tuple[Node, ...]


class Origin(StrEnum):
    """Origin of a number."""

    MEASURED = "measured"
    """Read from hardware counters or clocks."""
    COUNTED = "counted"
    """Counted exactly over the PTX that ran (or scaled from sampled blocks; then ``sampled`` is below 1)."""
    COMPILER = "compiler"
    """Reported by ptxas for the real architecture."""
    MODELLED = "modelled"
    """Computed from a model of the hardware, uncalibrated."""


class Metric(Record):
    """One number, named as in Nsight Compute if it has the same meaning, or ``ptx__*`` if it counts PTX."""

    name: str
    value: float
    unit: str
    """``byte``, ``sector``, ``inst``, ``%``, ``us``, ``warp``, ``block``, ``register/thread``, ``request``, ``1``..."""
    origin: Origin


class MemoryHotSpot(Record):
    """One memory instruction, with its cost and source line."""

    source_line: int
    opcode: str
    space: str
    access: str
    requests: int
    transactions: int
    """32-byte sectors for global and local, wavefronts for shared memory."""
    ideal_transactions: int


class KernelProfile(Record):
    """Metrics of all launches of one kernel in one run of the plan, summed where they are sums."""

    kernel: str
    launches: int = Field(ge=1)
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    sampled: float = Field(gt=0, le=1)
    """Share of executed blocks; sums are scaled up by its inverse."""
    metrics: tuple[Metric, ...]
    hot_spots: tuple[MemoryHotSpot, ...] = ()


class Roofline(Record):
    """Position of the complete plan on the device's roofline."""

    flops: float
    dram_bytes: float
    compulsory_bytes: float
    arithmetic_intensity: float
    """Flop per DRAM byte."""
    ridge: float
    """Flop per byte where the device's compute roof begins to bind."""
    bound: str
    """``dram``, ``l2``, ``l1``, ``shared``, ``fp32``, ``tensor``, ``issue``, ``latency`` or ``launch``."""
    time_us: float
    """Time under that bound."""
    time_origin: Origin

    @field_validator("time_origin")
    @classmethod
    def _a_time(cls, value: Origin) -> Origin:
        if value not in (Origin.MEASURED, Origin.MODELLED):
            raise ValueError("a time is measured or modelled")
        return value


class Profile(Record):
    """Counters of one candidate at one size on one device."""

    size: str
    device: str
    kernels: tuple[KernelProfile, ...]
    metrics: tuple[Metric, ...]
    """Totals over the plan."""
    roofline: Roofline
    notes: tuple[str, ...] = ()
    """Remarks for readers: metrics that the chip lacks, omitted launches, why counters are not measured."""

    @model_validator(mode="after")
    def _nothing_measured_when_emulated(self) -> Profile:
        if self.device.partition(":")[0] != "emulated":
            return self
        if self.roofline.time_origin is Origin.MEASURED:
            raise ValueError("an emulated device cannot carry a measured time")
        for metric in (*self.metrics, *(kernel_metric for kernel in self.kernels for kernel_metric in kernel.metrics)):
            if metric.origin is Origin.MEASURED:
                raise ValueError(f"an emulated device cannot carry the measured metric {metric.name}")
        return self

    def metric(self, name: str) -> Metric | None:
        """The plan-wide metric of that name, or None."""
        for metric in self.metrics:
            if metric.name == name:
                return metric
        return None

    def value(self, name: str) -> float | None:
        metric = self.metric(name)
        return None if metric is None else metric.value
