"""Derived metrics of one kernel: sums, ratios, and the time under each hardware limit."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from kernelforge.hardware.specs import DeviceSpec
from kernelforge.records import DType, KernelFacts, KernelProfile, LaunchQueue, Profile, SizeFacts, TensorSpec

DRAM = "dram__bytes.sum"
LAUNCHES = "kernelforge__launches"
REQUESTED = "kernelforge__global_bytes_requested"
LOAD_BYTES = "kernelforge__global_load_bytes_requested"
STORE_BYTES = "kernelforge__global_store_bytes_requested"
SECTORS = "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum"
SECTORS_STORED = "l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum"
REQUESTS = "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum"
REQUESTS_STORED = "l1tex__t_requests_pipe_lsu_mem_global_op_st.sum"
PER_REQUEST = "l1tex__average_t_sectors_per_request_pipe_lsu_mem_global_op_ld.ratio"
PER_REQUEST_STORED = "l1tex__average_t_sectors_per_request_pipe_lsu_mem_global_op_st.ratio"
EXCESS = "kernelforge__global_sectors_excess_op_ld.sum"
EXCESS_STORED = "kernelforge__global_sectors_excess_op_st.sum"
L2_SECTORS = "lts__t_sectors.sum"
WAVEFRONTS = "memory_l1_wavefronts_shared"
CONFLICTS = "kernelforge__shared_wavefronts_excess.sum"
LOCAL_SECTORS = "ptx__local_sectors.sum"
INSTRUCTIONS = "ptx__warp_inst_executed.sum"
MACHINE_INSTRUCTIONS = "sass__warp_inst_executed.sum"
LANES = "ptx__thread_inst_executed_per_inst_executed.ratio"
UNIFORM = "ptx__branch_uniform.pct"
BARRIERS = "ptx__block_barriers.sum"
GRID = "launch__grid_size"
BLOCK = "launch__block_size"
REGISTERS = "launch__registers_per_thread"
WAVES = "launch__waves_per_multiprocessor"
OCCUPANCY = "sm__maximum_warps_per_active_cycle_pct"

TIME = "gpu__time_duration.sum"
"""In ns; only where hardware counters are read."""
EXECUTED = "smsp__inst_executed.sum"
LOCAL = ("l1tex__t_sectors_pipe_lsu_mem_local_op_ld.sum", "l1tex__t_sectors_pipe_lsu_mem_local_op_st.sum")

# Nsight Compute counts what the machine executes, the emulated device what the PTX says.
_ALSO = {
    INSTRUCTIONS: (EXECUTED,),
    LANES: ("smsp__thread_inst_executed_per_inst_executed.ratio",),
    UNIFORM: ("smsp__sass_average_branch_targets_threads_uniform.pct",),
    LOCAL_SECTORS: LOCAL,
}
COALESCED = 4.0
"""Sectors per request when the 32 threads of a warp touch 32 adjacent 4-byte words (CUDA C++ Best Practices Guide,
"Coalesced Access to Global Memory")."""


@dataclass(frozen=True)
class KernelMetrics:
    """One kernel of a profile. Sums are over all of its launches."""

    kernel: KernelProfile
    spec: DeviceSpec
    compiled: KernelFacts | None
    """What ptxas reported, where the build is at hand."""

    @cached_property
    def _values(self) -> dict[str, float]:
        return {metric.name: metric.value for metric in self.kernel.metrics}

    def has(self, name: str) -> bool:
        return name in self._values or any(also in self._values for also in _ALSO.get(name, ()))

    def value(self, name: str, default: float = 0.0) -> float:
        """A metric, by its own name or by Nsight Compute's names for what comes nearest, added up."""
        if name in self._values:
            return self._values[name]
        values = [self._values[also] for also in _ALSO.get(name, ()) if also in self._values]
        return sum(values) if values else default

    @property
    def name(self) -> str:
        return self.kernel.kernel

    @property
    def blocks(self) -> float:
        """Blocks of one launch."""
        return self.value(GRID, math.prod(self.kernel.grid))

    @property
    def threads_per_block(self) -> int:
        return math.prod(self.kernel.block)

    @property
    def threads(self) -> float:
        """Threads of one launch."""
        return self.blocks * self.threads_per_block

    @property
    def fill(self) -> float:
        """Share of the lanes of a block's warps that are threads."""
        return self.threads_per_block / (32 * math.ceil(self.threads_per_block / 32))

    @property
    def instructions(self) -> float:
        """Warp instructions."""
        return self.value(INSTRUCTIONS)

    def share(self, *classes: str) -> float:
        """Share of the warp instructions that are of some classes."""
        return sum(self.value(f"ptx__inst_{name}.sum") for name in classes) / max(self.instructions, 1)

    @property
    def local_accesses(self) -> float:
        """Accesses of warps to local memory that the machine code has, spills among them; 0 where there is none."""
        opcodes = self.kernel.sass.opcodes if self.kernel.sass is not None else ()
        return float(sum(item.warp_instructions for item in opcodes if item.opcode in ("LDL", "STL")))

    @property
    def sectors(self) -> float:
        """Sectors of global loads and stores."""
        return self.value(SECTORS) + self.value(SECTORS_STORED)

    @property
    def requests(self) -> float:
        """Requests of global loads and stores."""
        return self.value(REQUESTS) + self.value(REQUESTS_STORED)

    def excess(self, loads: bool) -> float:
        """Sectors beyond what the same bytes need; from sectors per request where that was not counted."""
        name, sectors, requests = (
            (EXCESS, SECTORS, REQUESTS) if loads else (EXCESS_STORED, SECTORS_STORED, REQUESTS_STORED)
        )
        assumed = max(self.value(sectors) - COALESCED * self.value(requests), 0.0)
        return self.value(name, assumed)

    @property
    def scattered(self) -> float:
        """Share of the global sectors that coalesced accesses would not need."""
        return (self.excess(True) + self.excess(False)) / max(self.sectors, 1)

    @cached_property
    def _lsu(self) -> tuple[float, float, float]:
        """Passes through the data path for global, local and shared memory."""
        cached = max(self.requests, self.sectors / COALESCED)
        return cached, self.value(LOCAL_SECTORS) / COALESCED, self.value(WAVEFRONTS)

    def data_path(self, space: str) -> float:
        """Time of the SM's data path that goes to ``global``, ``local`` or ``shared`` memory, in microseconds."""
        passes = dict(zip(("global", "local", "shared"), self._lsu, strict=True))
        return self.limits["data path"] * passes[space] / max(sum(self._lsu), 1)

    def memory_share(self, space: str) -> float:
        """Share of the latency chain that waits for a space: of the passes, or of the instructions for other work."""
        passes = dict(zip(("global", "local", "shared"), self._lsu, strict=True))
        return passes[space] / max(sum(self._lsu) + 0.25 * self.instructions, 1)

    @cached_property
    def limits(self) -> Mapping[str, float]:
        """Microseconds under each limit alone: ``dram l2 data_path arithmetic tensor issue latency host``.

        From the profile where the device models them and no counter measured the time; else from the counters and the
        device's public figures, with what the measured time leaves unexplained as latency. Arithmetic, matrix products
        and the host link are then the emulator's, from what no counter tells apart.
        """
        names = {"dram": ("dram",), "l2": ("l2",), "data path": ("l1", "shared"), "arithmetic": ("fp32",),
                 "tensor": ("tensor",), "issue": ("issue",), "latency": ("latency",), "host": ("host",)}  # fmt: skip
        modelled = self.kernel.limits_us
        if "dram" in modelled and not self.has(TIME):
            return {name: sum(modelled.get(limit, 0.0) for limit in source) for name, source in names.items()}
        spec, per_sm = self.spec, 1e6 / self.spec.clock_hz / self.spec.sm_count
        limits = {
            "dram": self.value(DRAM) / spec.dram_sustained_gbps * 1e-3,
            "l2": 32 * self.value(L2_SECTORS) / spec.l2_bandwidth_gbps * 1e-3,
            "data path": sum(self._lsu) * per_sm,
            "arithmetic": modelled.get("fp32", 0.0),
            "tensor": modelled.get("tensor", 0.0),
            "issue": self.value(EXECUTED, self.instructions) / spec.schedulers_per_sm * per_sm,
            "host": modelled.get("host", 0.0),
        }
        explained = max(*limits.values(), self.atomics_us)
        return {**limits, "latency": max(self.value(TIME) * 1e-3 - explained, 0.0)}

    @property
    def atomics_us(self) -> float:
        """Modelled time of the atomics on global memory, which wait for one another, in microseconds."""
        return self.kernel.limits_us.get("atomics", 0.0)

    @property
    def busy_us(self) -> float:
        """All limits together. A plain sum, not the largest: what hides behind another limit today binds tomorrow."""
        return sum(self.limits.values())


@dataclass(frozen=True)
class PlanMetrics:
    """All kernels of a profile, and what is known of the task."""

    profile: Profile
    spec: DeviceSpec
    facts: SizeFacts | None
    kernels: tuple[KernelMetrics, ...]
    eager: LaunchQueue | None = None
    """Launch and queue time of eager PyTorch."""

    @property
    def launches(self) -> float:
        return self.profile.value(LAUNCHES) or float(sum(kernel.launches for kernel in self.profile.kernels))

    @property
    def overhead_us(self) -> float:
        return self.launches * self.spec.launch_overhead_us

    @property
    def busy_us(self) -> float:
        return max(sum(kernel.busy_us for kernel in self.kernels), 1e-9)

    @property
    def compulsory_bytes(self) -> float:
        return max(self.profile.roofline.compulsory_bytes, 1.0)

    @property
    def loadable_bytes(self) -> float:
        """Bytes that a kernel has to load at most: the inputs of the task; of several kernels, all that must move."""
        if self.facts is None or len(self.kernels) > 1:
            return self.compulsory_bytes
        input_bytes = sum(spec.nbytes for spec in self._tensors) - (self.output_bytes or 0.0)
        return max(min(input_bytes, self.compulsory_bytes + self.facts.host_bytes), 1.0)

    @property
    def host_row_bytes(self) -> float:
        """Bytes of the longest row of the inputs that may be in host memory and read by index; infinite where there is
        none."""
        if self.facts is None:
            return math.inf
        inputs = [spec for spec in self.facts.inputs if isinstance(spec, TensorSpec) and spec.shape]
        gathered = [spec for spec in inputs if spec.nbytes > self.facts.host_bytes > 0]
        return max((spec.nbytes / max(spec.shape[0], 1) for spec in gathered), default=math.inf)

    @property
    def _tensors(self) -> list[TensorSpec]:
        if self.facts is None:
            return []
        inputs = [spec for spec in self.facts.inputs if isinstance(spec, TensorSpec)]
        return [*inputs, *(weight.spec for weight in self.facts.weights), *self.facts.outputs]

    @property
    def elements(self) -> float:
        """Elements of the largest tensor: how far work can be spread. From the compulsory bytes where unknown."""
        return float(max((spec.numel for spec in self._tensors), default=0)) or self.compulsory_bytes / 8

    @property
    def all_elements(self) -> float:
        """Elements of all tensors together."""
        return float(sum(spec.numel for spec in self._tensors)) or self.compulsory_bytes / 4

    @property
    def output_bytes(self) -> float | None:
        return None if self.facts is None else float(sum(spec.nbytes for spec in self.facts.outputs))

    def uses(self, *dtypes: DType) -> bool:
        """Whether any tensor of the task has one of the dtypes."""
        return any(spec.dtype in dtypes for spec in self._tensors)
