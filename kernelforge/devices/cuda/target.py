"""Facts of a GPU: those that discovery finds before anything runs on it, and those that the runner reports."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

from kernelforge.devices.base import Capabilities
from kernelforge.devices.cuda.worker.driver import Feature, GpuFacts
from kernelforge.errors import SandboxError
from kernelforge.hardware.specs import GIB, KIB, MIB, MULTIPROCESSORS, NearestSpec, nearest_spec
from kernelforge.profiling.ncu.catalogue import MetricSet

ComputeMode = Literal["default", "exclusive process", "prohibited"]

_MODES: Mapping[int, ComputeMode] = {1: "exclusive process", 2: "prohibited", 3: "exclusive process"}
"""``CUcomputemode`` and ``nvmlComputeMode_t``, which agree; 1 is the exclusive mode of drivers before CUDA 8."""


def compute_mode(number: int) -> ComputeMode:
    """Compute mode by its number in CUDA and NVML; an unknown number counts as the default."""
    return _MODES.get(number, "default")


@dataclass(frozen=True)
class GpuInfo:
    """One GPU, or MIG instance, that CUDA would see."""

    ordinal: int
    """Its number in CUDA, in the environment of this process: 0 in ``cuda:0``."""
    name: str
    uuid: str
    """``GPU-...``, or ``MIG-...`` of a MIG instance: as ``CUDA_VISIBLE_DEVICES`` and NVML have it."""
    memory_bytes: int
    driver: str
    """Release of the driver: ``580.159.03``; empty if unknown."""
    cuda: str
    """Version of CUDA that the driver supports: ``13.0``."""
    compute_capability: tuple[int, int] | None = None
    """None if unknown."""
    compute_mode: ComputeMode = "default"
    """Processes that may have a context on it: all, one at a time, or none."""

    @classmethod
    def from_wire(cls, raw: Mapping[str, Any]) -> GpuInfo:
        """A GPU from the JSON of its fields."""
        capability = raw.get("compute_capability")
        return cls(**{**raw, "compute_capability": None if capability is None else (capability[0], capability[1])})


USABLE_SHARE = 0.9
"""Of the GPU's memory; contexts, modules and the other processes of an evaluation take the rest."""


@dataclass(frozen=True)
class GpuTarget:
    """One GPU as sessions and tools use it."""

    name: str
    """``cuda:0``."""
    facts: GpuFacts
    lacks: frozenset[Feature]
    """Features that its driver lacks."""
    arch: str
    """Real architecture to compile for: see :meth:`kernelforge.compile.Toolchain.architecture`."""
    driver_options: Mapping[str, Any]
    """How a process opens the GPU: see :func:`kernelforge.devices.cuda.worker.main.open_driver`."""
    environment: Mapping[str, str]
    """Environment in which a process sees this GPU alone."""
    counters: MetricSet
    """Metrics that a profile collects."""
    grace_s: float
    """Time after its deadline in which a child may still answer: allocating, loading, comparing."""
    allow_unconfined: bool
    """Run children without a jail where none works."""

    @property
    def memory_bytes(self) -> int:
        """Device memory that one run may use."""
        return int(USABLE_SHARE * self.facts.memory_bytes)


_WARP = 32
_MAX_THREADS_PER_BLOCK, _MAX_REGISTERS_PER_THREAD = 1024, 255


def facts_from_wire(raw: Mapping[str, Any]) -> GpuFacts:
    """Inverse of ``dataclasses.asdict``.

    Raises:
        SandboxError: a field is missing or malformed.
    """
    values = {field.name: raw.get(field.name) for field in fields(GpuFacts)}
    capability = values["compute_capability"]
    if None in values.values() or not isinstance(capability, list) or len(capability) != 2:
        raise SandboxError("the runner sent facts of the GPU that cannot be read")
    return GpuFacts(**values | {"compute_capability": tuple(capability)})


def nearest_figures(facts: GpuFacts) -> NearestSpec:
    """Public figures of a GPU, or of the GPU nearest to it."""
    return nearest_spec(facts.name, facts.arch, facts.sm_count)


def figures_note(facts: GpuFacts, *, launch_overhead: bool) -> tuple[str, ...]:
    """A note that names the figures of another GPU in a profile; empty if all are the GPU's own.

    Args:
        facts: The GPU.
        launch_overhead: Whether the profile uses it; it uses the peak bandwidth if the driver gives none.
    """
    nearest = nearest_figures(facts)
    borrowed = ["launch overhead"] if launch_overhead else []
    if not facts.memory_bandwidth_gbps:
        borrowed.append("peak memory bandwidth (of the ridge)")
    if nearest.exact or not borrowed:
        return ()
    return (f"Figures of another GPU than {facts.name} ({nearest.label}): {', '.join(borrowed)}.",)


def description(name: str, facts: GpuFacts, memory_bytes: int, capabilities: Capabilities) -> Mapping[str, str]:
    """Facts for a Coder, under the names that every device uses; unknown facts are omitted."""
    sm = MULTIPROCESSORS.get(facts.compute_capability)
    nearest = nearest_figures(facts)
    lacking = {
        "thread block clusters": capabilities.clusters,
        "cooperative launches": capabilities.cooperative,
        "tensor maps": capabilities.tensor_maps,
        "library calls": capabilities.library,
    }
    rows = {
        "device": f"{facts.name} ({name})",
        "architecture": facts.arch,
        "multiprocessors": str(facts.sm_count),
        "clock": f"{facts.max_clock_mhz} MHz" if facts.max_clock_mhz else "",
        "memory": f"{memory_bytes / GIB:.3g} GiB usable here ({facts.memory_bytes / 1e9:.3g} GB on the GPU)",
        "L2 cache": f"{facts.l2_bytes // MIB} MiB",
        "shared memory per multiprocessor": f"{facts.shared_bytes_per_sm // KIB} KiB",
        "shared memory per block": f"{facts.shared_bytes_per_block // KIB} KiB",
        "registers per multiprocessor": str(facts.registers_per_sm),
        "registers per thread": f"{_MAX_REGISTERS_PER_THREAD} at most",
        "warps per multiprocessor": f"{facts.threads_per_sm // _WARP} of {_WARP} threads",
        "threads per block": f"{_MAX_THREADS_PER_BLOCK} at most",
        "not supported here": ", ".join(name for name, there in lacking.items() if not there),
    }
    if facts.memory_bandwidth_gbps:
        rows["memory bandwidth"] = f"{facts.memory_bandwidth_gbps:.0f} GB/s"
    if sm is not None:
        flops = 2e6 * sm.fp32_lanes * facts.sm_count * facts.max_clock_mhz
        rows["fp32"] = f"{flops / 1e12:.1f} TFLOPS" if flops else ""
        rows["L1 and shared memory per multiprocessor"] = f"{sm.unified_l1_kib} KiB"
        rows["blocks per multiprocessor"] = str(sm.blocks)
    if nearest.exact:
        rows["tensor cores"] = nearest.spec.tensor_peaks_text
    else:
        rows["modelled as"] = nearest.label
    order = [
        "device", "architecture", "multiprocessors", "clock", "fp32", "tensor cores", "memory",
        "memory bandwidth", "L2 cache",
        "L1 and shared memory per multiprocessor", "shared memory per multiprocessor", "shared memory per block",
        "registers per multiprocessor", "registers per thread", "warps per multiprocessor", "blocks per multiprocessor",
        "threads per block", "not supported here", "modelled as",
    ]  # fmt: skip
    return {key: rows[key] for key in order if rows.get(key)}
