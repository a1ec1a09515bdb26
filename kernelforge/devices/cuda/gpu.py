"""A GPU as it is found, before anything runs on it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class GpuInfo:
    """One GPU that CUDA would see."""

    ordinal: int
    """CUDA's number of it in this process's environment: ``cuda:0``."""
    name: str
    uuid: str
    """``GPU-...``."""
    memory_bytes: int
    driver: str
    """Release of the driver: ``580.159.03``; empty where nothing says it."""
    cuda: str
    """Version of CUDA that the driver supports: ``13.0``."""
