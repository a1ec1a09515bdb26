"""Metrics to collect, by Nsight Compute's names; ``metrics.toml`` lists the sets."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import TypeAdapter

MetricSet = Literal["default", "full"]
TENSOR_INSTRUCTIONS = "sm__inst_executed_pipe_tensor.avg.pct_of_peak_sustained_active"

DURATION = "gpu__time_duration.sum"
DRAM_BYTES = "dram__bytes.sum"
L1_SECTORS = "l1tex__t_sectors.sum"
L2_SECTORS = "lts__t_sectors.sum"
FMA_PIPE = "sm__inst_executed_pipe_fma.avg.pct_of_peak_sustained_active"
TENSOR_PIPE = "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active"
ISSUE = "smsp__issue_active.avg.pct_of_peak_sustained_active"
DRAM_USE = "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed"
L2_USE = "lts__throughput.avg.pct_of_peak_sustained_active"
MEMORY_USE = "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed"
L1_USE = "l1tex__throughput.avg.pct_of_peak_sustained_active"
DATA_PATH_WAVEFRONTS = "l1tex__data_pipe_lsu_wavefronts_mem_shared.sum"
"""Of shared memory, and of what else takes its way, such as shuffles."""

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


_SETS = TypeAdapter(dict[str, tuple[str, ...]]).validate_python(
    tomllib.loads(Path(__file__).with_name("metrics.toml").read_text(encoding="utf-8"))
)
CUDAFORGE = _SETS["cudaforge"]
"""The metrics of CudaForge."""
ROOFLINE = (*_SETS["roofline"], *(counter for precision in _PRECISIONS for counter in flop_counters(precision)))
"""Metrics of a roofline: time, traffic, utilisation of each unit, and operations by precision."""
DIAGNOSIS = _SETS["diagnosis"]
"""Metrics of the built-in diagnosis."""
HOST_LINK = _SETS["host_link"]
"""Metrics of reads of host memory, collected where a plan has inputs there."""
OF_SECTIONS = _SETS["of_sections"]
"""Metrics that Nsight Compute computes; :data:`SECTIONS` include them."""
SECTIONS = _SETS["sections"]
"""Sections of the default set."""


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
