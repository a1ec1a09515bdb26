"""What a GPU is: facts over the channel, and as a Coder reads them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, NamedTuple

from kernelforge.devices.base import Capabilities
from kernelforge.devices.cuda.driver import GpuFacts
from kernelforge.errors import SandboxError
from kernelforge.hardware.specs import GIB, KIB, MIB

_WARP = 32
_MAX_THREADS_PER_BLOCK, _MAX_REGISTERS_PER_THREAD = 1024, 255


class _Generation(NamedTuple):
    """CUDA C++ Programming Guide, arithmetic instructions and technical specifications per compute capability."""

    fp32_lanes: int
    unified_l1_kib: int
    blocks: int


_GENERATIONS: Mapping[tuple[int, int], _Generation] = {
    (7, 0): _Generation(64, 128, 32),
    (7, 5): _Generation(64, 96, 16),
    (8, 0): _Generation(64, 192, 32),
    (8, 6): _Generation(128, 128, 16),
    (8, 7): _Generation(128, 192, 16),
    (8, 9): _Generation(128, 128, 24),
    (9, 0): _Generation(128, 256, 32),
    (10, 0): _Generation(128, 256, 32),
    (12, 0): _Generation(128, 128, 24),
}


def facts_from_wire(raw: Mapping[str, Any]) -> GpuFacts:
    """Inverse of ``dataclasses.asdict``.

    Raises:
        SandboxError: it is not one's.
    """
    values = {field.name: raw.get(field.name) for field in fields(GpuFacts)}
    capability = values["compute_capability"]
    if None in values.values() or not isinstance(capability, list) or len(capability) != 2:
        raise SandboxError("the runner sent facts of the GPU that cannot be read")
    return GpuFacts(**values | {"compute_capability": tuple(capability)})


def description(name: str, facts: GpuFacts, memory_bytes: int, capabilities: Capabilities) -> Mapping[str, str]:
    """Facts for a Coder, under the names that every device uses. What is not known of a GPU is left out."""
    generation = _GENERATIONS.get(facts.compute_capability)
    lacking = {
        "thread block clusters": capabilities.clusters,
        "cooperative launches": capabilities.cooperative,
        "tensor maps": capabilities.tensor_maps,
        "library calls": capabilities.library,
    }
    told = {
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
        told["memory bandwidth"] = f"{facts.memory_bandwidth_gbps:.0f} GB/s"
    if generation is not None:
        flops = 2e6 * generation.fp32_lanes * facts.sm_count * facts.max_clock_mhz
        told["fp32"] = f"{flops / 1e12:.1f} TFLOPS" if flops else ""
        told["L1 and shared memory per multiprocessor"] = f"{generation.unified_l1_kib} KiB"
        told["blocks per multiprocessor"] = str(generation.blocks)
    order = [
        "device", "architecture", "multiprocessors", "clock", "fp32", "memory", "memory bandwidth", "L2 cache",
        "L1 and shared memory per multiprocessor", "shared memory per multiprocessor", "shared memory per block",
        "registers per multiprocessor", "registers per thread", "warps per multiprocessor", "blocks per multiprocessor",
        "threads per block", "not supported here",
    ]  # fmt: skip
    return {key: told[key] for key in order if told.get(key)}
