"""Metrics to collect, by Nsight Compute's names."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

MetricSet = Literal["default", "full"]
TENSOR_INSTRUCTIONS = "sm__inst_executed_pipe_tensor.avg.pct_of_peak_sustained_active"

CUDAFORGE = (
    "sm__cycles_active.avg",
    "sm__warps_active.avg.pct_of_peak_sustained_active",
    "launch__occupancy_limit_blocks",
    "launch__occupancy_limit_registers",
    "launch__occupancy_limit_shared_mem",
    "launch__registers_per_thread",
    "sm__inst_executed.sum",
    "sm__inst_executed_pipe_fp32.avg.pct_of_peak_sustained_active",
    TENSOR_INSTRUCTIONS,
    "dram__bytes_read.sum",
    "dram__bytes_write.sum",
    "dram__throughput.avg.pct_of_peak_sustained_elapsed",
    "dram__bytes.sum.per_second",
    "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed",
    "l1tex__t_sector_hit_rate.pct",
    "l1tex__throughput.avg.pct_of_peak_sustained_active",
    "lts__t_sector_hit_rate.pct",
    "lts__throughput.avg.pct_of_peak_sustained_active",
    "smsp__warp_issue_stalled_memory_dependency_per_warp_active.pct",
    "smsp__warp_issue_stalled_short_scoreboard_per_warp_active.pct",
    "smsp__warp_issue_stalled_long_scoreboard_per_warp_active.pct",
    "smsp__warp_issue_stalled_barrier_per_warp_active.pct",
    "smsp__warp_issue_stalled_branch_resolving_per_warp_active.pct",
    "smsp__sass_average_branch_targets_threads_uniform.pct",
)
"""The 24 metrics of CudaForge (``run_ncu.py``).

Nsight Compute 2024.1 lists two of them on no chip from GV100 to GH100: ``memory_dependency`` is a stall reason of
older chips (now ``long_scoreboard`` and ``lg_throttle``), and there is no pipe ``fp32`` (now ``fma``).
"""

DURATION = "gpu__time_duration.sum"
DRAM_BYTES = "dram__bytes.sum"
L1_SECTORS = "l1tex__t_sectors.sum"
L2_SECTORS = "lts__t_sectors.sum"
FMA_PIPE = "sm__inst_executed_pipe_fma.avg.pct_of_peak_sustained_active"
TENSOR_PIPE = "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active"
ISSUE = "smsp__issue_active.avg.pct_of_peak_sustained_active"
DRAM_USE = "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed"
L2_USE = "lts__throughput.avg.pct_of_peak_sustained_active"
L1_USE = "l1tex__throughput.avg.pct_of_peak_sustained_active"
SHARED_WAVEFRONTS = "l1tex__data_pipe_lsu_wavefronts_mem_shared.sum"

_FLOPS = {"add": 1, "mul": 1, "fma": 2}
_PRECISIONS = {"fp16": "h", "fp32": "f", "fp64": "d"}


def flop_counters(precision: str) -> dict[str, int]:
    """Counters of thread instructions at one precision (``fp16 fp32 fp64``), with the operations each stands for.

    Predicated-off threads do not count. An ``h`` instruction works on a pair of values: twice the operations.
    """
    pair = 2 if precision == "fp16" else 1
    letter = _PRECISIONS[precision]
    return {
        f"smsp__sass_thread_inst_executed_op_{letter}{name}_pred_on.sum": flops * pair for name, flops in _FLOPS.items()
    }


ROOFLINE = (
    DURATION,
    DRAM_BYTES,
    "sm__throughput.avg.pct_of_peak_sustained_elapsed",
    "lts__throughput.avg.pct_of_peak_sustained_elapsed",
    "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed",
    FMA_PIPE,
    TENSOR_PIPE,
    ISSUE,
    *(counter for precision in _PRECISIONS for counter in flop_counters(precision)),
)
"""Metrics of a roofline: time, traffic, operations by precision, and utilisation of each unit."""

DIAGNOSIS = (
    "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum",
    "l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum",
    "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum",
    "l1tex__t_requests_pipe_lsu_mem_global_op_st.sum",
    "l1tex__average_t_sectors_per_request_pipe_lsu_mem_global_op_ld.ratio",
    "l1tex__average_t_sectors_per_request_pipe_lsu_mem_global_op_st.ratio",
    "l1tex__t_sectors_pipe_lsu_mem_local_op_ld.sum",
    "l1tex__t_sectors_pipe_lsu_mem_local_op_st.sum",
    SHARED_WAVEFRONTS,
    "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum",
    L1_SECTORS,
    L2_SECTORS,
    "smsp__inst_executed.sum",
    "smsp__thread_inst_executed.sum",
    "smsp__thread_inst_executed_per_inst_executed.ratio",
    "smsp__sass_data_bytes_mem_global_op_ld.sum",
    "smsp__sass_data_bytes_mem_global_op_st.sum",
    "smsp__warp_issue_stalled_lg_throttle_per_warp_active.pct",
    "smsp__warp_issue_stalled_mio_throttle_per_warp_active.pct",
    "smsp__warp_issue_stalled_math_pipe_throttle_per_warp_active.pct",
)
"""Metrics of the built-in diagnosis, with the names of emulated profiles."""

OF_SECTIONS = (
    "launch__grid_size",
    "launch__block_size",
    "launch__registers_per_thread",
    "launch__occupancy_limit_blocks",
    "launch__occupancy_limit_registers",
    "launch__occupancy_limit_shared_mem",
    "launch__occupancy_limit_warps",
    "launch__waves_per_multiprocessor",
    "sm__maximum_warps_per_active_cycle_pct",
)
"""Metrics that Nsight Compute computes, so that no chip lists them; the sections below include them."""

SECTIONS = ("LaunchStats", "Occupancy", "SourceCounters")
"""Sections of the default set: launch figures, occupancy, and counters by instruction."""


def default_metrics() -> tuple[str, ...]:
    """The default set, each name once: CudaForge's 24, the roofline's, the diagnosis'."""
    return tuple(dict.fromkeys((*CUDAFORGE, *ROOFLINE, *DIAGNOSIS)))


def base_name(metric: str) -> str:
    """The part of a name that a chip lists: ``dram__bytes`` of ``dram__bytes.sum.per_second``."""
    return metric.partition(".")[0]


def is_computed(metric: str) -> bool:
    """Whether Nsight Compute computes the metric itself, on any chip."""
    return metric.startswith("launch__") or metric in OF_SECTIONS


@dataclass(frozen=True)
class Selection:
    """Metrics to request, and metrics that the chip lacks."""

    requested: tuple[str, ...]
    absent: tuple[str, ...]

    def note(self, chip: str) -> str | None:
        """A note on the absent metrics for the profile; None if there are none."""
        if not self.absent:
            return None
        return f"{chip} has no {', '.join(self.absent)}; not collected."


def select(metrics: Iterable[str], available: frozenset[str]) -> Selection:
    """Split metrics into those to request by name and those that the chip lacks.

    Metrics that Nsight Compute computes are in neither: their sections include them. Nsight Compute refuses a run with
    one unknown name.

    Args:
        metrics: Full names.
        available: Base names that the chip lists (:func:`~kernelforge.profiling.ncu.command.base_names`).
    """
    hardware = [name for name in dict.fromkeys(metrics) if not is_computed(name)]
    requested = tuple(name for name in hardware if base_name(name) in available)
    return Selection(requested, tuple(name for name in hardware if base_name(name) not in available))
