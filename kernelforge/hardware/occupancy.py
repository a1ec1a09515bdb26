"""Theoretical occupancy: how many blocks of a kernel one SM holds, and what limits it.

The rules are those of NVIDIA's ``cuda_occupancy.h`` from compute capability 7.0 on; the names follow Nsight
Compute's ``launch__occupancy_limit_*``.
"""

from __future__ import annotations

from dataclasses import dataclass

from kernelforge.hardware.specs import KIB, DeviceSpec


@dataclass(frozen=True)
class Occupancy:
    """Blocks per SM under each limit, and the occupancy. With a limit of 0 the kernel cannot be launched."""

    limit_blocks: int
    limit_warps: int
    limit_registers: int
    limit_shared_mem: int
    warps_per_block: int
    shared_bytes_per_block: int
    """Static, dynamic and reserved, rounded up to the allocation granularity."""
    max_warps_per_sm: int

    @property
    def blocks_per_sm(self) -> int:
        return min(self.limit_blocks, self.limit_warps, self.limit_registers, self.limit_shared_mem)

    @property
    def warps_per_sm(self) -> int:
        return self.blocks_per_sm * self.warps_per_block

    @property
    def percent(self) -> float:
        """Theoretical occupancy in percent: Nsight Compute's ``sm__maximum_warps_per_active_cycle_pct``."""
        return 100.0 * self.warps_per_sm / self.max_warps_per_sm

    @property
    def limiters(self) -> tuple[str, ...]:
        """The limits that bind: some of ``blocks warps registers shared_mem``."""
        named = {
            "blocks": self.limit_blocks,
            "warps": self.limit_warps,
            "registers": self.limit_registers,
            "shared_mem": self.limit_shared_mem,
        }
        return tuple(name for name, limit in named.items() if limit == self.blocks_per_sm)


def _round_up(value: int, step: int) -> int:
    return -(-value // step) * step


def occupancy(spec: DeviceSpec, *, threads_per_block: int, registers_per_thread: int, shared_bytes: int) -> Occupancy:
    """Blocks that fit on one SM.

    Args:
        threads_per_block: Any positive number; partial warps count as full ones.
        registers_per_thread: From ptxas.
        shared_bytes: Static plus dynamic shared memory per block, without the driver's reservation.
    """
    if threads_per_block < 1:
        raise ValueError("a block has at least one thread")
    warps = -(-threads_per_block // spec.warp_size)
    by_warps = spec.warps_per_sm // warps if threads_per_block <= spec.threads_per_block else 0
    allocated = _round_up(shared_bytes + spec.shared_reserved_bytes_per_block, spec.shared_allocation_bytes)
    if shared_bytes > spec.shared_bytes_per_block:
        by_shared = 0
    else:  # before compute capability 8.0 nothing is reserved, and a block may have none
        by_shared = spec.shared_bytes_per_sm // allocated if allocated else spec.blocks_per_sm
    return Occupancy(
        limit_blocks=spec.blocks_per_sm,
        limit_warps=by_warps,
        limit_registers=_limit_registers(spec, warps, registers_per_thread),
        limit_shared_mem=by_shared,
        warps_per_block=warps,
        shared_bytes_per_block=allocated,
        max_warps_per_sm=spec.warps_per_sm,
    )


def _limit_registers(spec: DeviceSpec, warps: int, registers_per_thread: int) -> int:
    if registers_per_thread == 0:
        return spec.blocks_per_sm
    per_warp = _round_up(registers_per_thread * spec.warp_size, spec.register_allocation)
    # The check of a launch assumes that its warps fill all partitions equally.
    assumed = per_warp * _round_up(warps, spec.schedulers_per_sm)
    if registers_per_thread > spec.registers_per_thread or assumed > spec.registers_per_block:
        return 0
    warps_per_partition = spec.registers_per_sm // spec.schedulers_per_sm // per_warp
    return warps_per_partition * spec.schedulers_per_sm // warps


def l1_bytes(spec: DeviceSpec, occupied: Occupancy) -> int:
    """L1 cache of one SM besides the shared memory of its resident blocks.

    The driver chooses among fixed carve-outs; this assumes the smallest that holds all resident blocks.
    """
    needed = max(occupied.blocks_per_sm, 1) * occupied.shared_bytes_per_block
    for carveout in spec.shared_carveouts_kib:
        if carveout * KIB >= needed:
            return spec.unified_l1_bytes_per_sm - carveout * KIB
    return spec.unified_l1_bytes_per_sm - spec.shared_carveouts_kib[-1] * KIB
