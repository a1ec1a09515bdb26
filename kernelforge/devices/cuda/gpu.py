"""A GPU as it is found, before anything runs on it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

ComputeMode = Literal["default", "exclusive process", "prohibited"]

_MODES: Mapping[int, ComputeMode] = {1: "exclusive process", 2: "prohibited", 3: "exclusive process"}
"""``CUcomputemode`` and ``nvmlComputeMode_t``, which agree; 1 is the exclusive mode of drivers before CUDA 8."""


def compute_mode(number: int) -> ComputeMode:
    """The compute mode that CUDA and NVML number so; one that is not known counts as the default."""
    return _MODES.get(number, "default")


@dataclass(frozen=True)
class GpuInfo:
    """One GPU, or MIG instance, that CUDA would see."""

    ordinal: int
    """CUDA's number of it in this process's environment: ``cuda:0``."""
    name: str
    uuid: str
    """``GPU-...``, or ``MIG-...`` of a MIG instance: as ``CUDA_VISIBLE_DEVICES`` and NVML have it."""
    memory_bytes: int
    driver: str
    """Release of the driver: ``580.159.03``; empty where nothing says it."""
    cuda: str
    """Version of CUDA that the driver supports: ``13.0``."""
    compute_capability: tuple[int, int] | None = None
    """None where nothing says it."""
    compute_mode: ComputeMode = "default"
    """Who may have a context on it: every process, one process at a time, or none."""

    @classmethod
    def from_wire(cls, raw: Mapping[str, Any]) -> GpuInfo:
        """A GPU from the JSON of its fields."""
        capability = raw.get("compute_capability")
        return cls(**{**raw, "compute_capability": None if capability is None else (capability[0], capability[1])})
