"""Resource limits of a launch plan."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PlanLimits:
    """Bounds on one resolution of a plan. The defaults suit whole networks on one H100-class GPU.

    The limits of grid, block and cluster are those of CUDA for compute capability 9.0 (CUDA C++ Programming Guide,
    "Technical Specifications per Compute Capability").
    """

    steps: int = 400_000
    """Expression nodes and statements evaluated, of the top level, ``setup`` and ``forward``; long sequences cost
    extra."""
    launches: int = 20_000
    """Kernel launches, memsets and library calls together, of ``setup`` and ``forward``."""
    workspace_bytes: int = 16 << 30
    """All buffers that the plan allocates together, after reuse: workspace, outputs, what ``setup`` returns."""
    sequence_length: int = 65_536
    """Elements of one tuple, list or range."""
    string_length: int = 1_000
    """Characters of one string."""
    grid: tuple[int, int, int] = (2**31 - 1, 65_535, 65_535)
    block: tuple[int, int, int] = (1_024, 1_024, 64)
    threads_per_block: int = 1_024
    dynamic_shared_bytes: int = 232_448
    cluster_blocks: int = 8
    """The portable cluster size; 16 needs an opt-in that not every device of the architecture can meet."""
    parameter_bytes: int = 32_764
    """Size of one kernel's arguments."""
