"""Metrics of a profile, by Nsight Compute's names where the meaning is equal, else ``ptx__*``.

``smsp__sass_average_branch_targets_threads_uniform.pct`` is omitted: it counts branches in the machine code, and ptxas
turns many PTX branches into predicates. ``ptx__branch_uniform.pct`` counts branches in PTX.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from kernelforge.hardware.specs import DeviceSpec
from kernelforge.profiling.counts import (
    CLASSES,
    KernelCounts,
    PlanCounts,
    by_class,
    hot_spots,
    integer_divisions,
    matrix_instructions,
)
from kernelforge.profiling.demand import shared_wavefronts
from kernelforge.profiling.energy import estimate_energy
from kernelforge.profiling.floor import attainable_us
from kernelforge.profiling.model import PROTOCOL, PlanTime, kernel_occupancy, launch_time, plan_time
from kernelforge.profiling.sass import NO_WORK, PlanWork, sass_metrics, sass_profile
from kernelforge.records import (
    MODELLED_TIME,
    KernelProfile,
    Metric,
    Origin,
    Performance,
    Profile,
    Roofline,
    SizeFacts,
    limit_metric,
)

MATRIX_INSTRUCTIONS = "ptx__inst_matrix.sum"
MATRIX_OPERATIONS = "ptx__matrix_operations.sum"
SHARED_WAVEFRONTS = "memory_l1_wavefronts_shared"
"""Of accesses to shared memory alone: Nsight Compute's ``l1tex__data_pipe_lsu_wavefronts_mem_shared.sum`` counts
shuffles and others too."""
MACHINE_WAVEFRONTS = "sass__shared_wavefronts.sum"
"""The same of accesses as the machine makes them: ptxas joins loads of words that follow each other."""
SHARED_EXCESS = "kernelforge__shared_wavefronts_excess.sum"
"""Beyond those without bank conflicts: Nsight Compute's ``l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum`` holds
waits for the unit too."""
HOST_SECTORS = "lts__t_sectors_aperture_sysmem_op_read.sum"
HOST_REQUESTS = "kernelforge__host_read_requests.sum"
"""On the host link. Nsight Compute's ``pcie__read_bytes.sum`` counts bytes of the whole GPU, with headers."""
HOST_PER_REQUEST = "kernelforge__host_read_sectors_per_request.ratio"
_LD = "l1tex__{}_pipe_lsu_mem_global_op_ld{}"
_ST = "l1tex__{}_pipe_lsu_mem_global_op_st{}"
_EXCESS = {
    "load": "kernelforge__global_sectors_excess_op_ld.sum",
    "store": "kernelforge__global_sectors_excess_op_st.sum",
}


def build_profile(
    spec: DeviceSpec,
    device: str,
    counts: PlanCounts,
    registers: Mapping[str, int],
    facts: SizeFacts,
    work: PlanWork = NO_WORK,
) -> tuple[Profile, Performance]:
    """Profile and modelled performance of one run of a plan.

    Args:
        spec: The device that is modelled.
        device: Its name on records: ``emulated:h100``.
        counts: Counters of the run.
        registers: Registers per thread by kernel expression, from ptxas.
        facts: Facts of the task at this size, from the oracle.
        work: Estimated work of the machine code of its kernels.
    """
    time = plan_time(spec, counts, registers, work)
    profile = Profile(
        size=facts.size,
        device=device,
        kernels=tuple(_kernel_profiles(spec, counts.kernels, registers, work)),
        metrics=(*plan_metrics(spec, counts, registers, work), *_machine_metrics(counts.kernels, work)),
        roofline=_roofline(spec, counts, time, facts),
        notes=work.notes,
        energy=estimate_energy(spec, counts),
    )
    performance = Performance(time_us=time.time_us, origin=Origin.MODELLED, protocol=PROTOCOL, bound=time.bound)
    return profile, performance


def _roofline(spec: DeviceSpec, counts: PlanCounts, time: PlanTime, facts: SizeFacts) -> Roofline:
    dram_bytes = sum(kernel.dram_bytes for kernel in counts.kernels) + counts.memset_bytes
    return Roofline(
        flops=float(facts.flops),
        dram_bytes=dram_bytes,
        compulsory_bytes=float(facts.compulsory_bytes),
        host_bytes=float(facts.host_bytes),
        arithmetic_intensity=facts.flops / dram_bytes if dram_bytes else 0.0,
        ridge=spec.ridge_flop_per_byte,
        bound=time.bound,
        time_us=time.time_us,
        time_origin=Origin.MODELLED,
        floor_us=attainable_us(spec, facts),
    )


def _kernel_profiles(
    spec: DeviceSpec, kernels: Sequence[KernelCounts], registers: Mapping[str, int], work: PlanWork
) -> Iterable[KernelProfile]:
    by_expression: dict[str, list[KernelCounts]] = {}
    for kernel in kernels:
        by_expression.setdefault(kernel.expression, []).append(kernel)
    for expression, group in by_expression.items():
        main = _dominant(spec, group, registers, work)
        yield KernelProfile(
            kernel=expression,
            launches=sum(kernel.launches for kernel in group),
            grid=main.grid,
            block=main.block,
            sampled=sum(k.blocks_run for k in group) / sum(k.blocks for k in group),
            metrics=(
                *summed_metrics(group),
                *_machine_metrics(group, work),
                *_launch(spec, main, registers),
                *_limits(spec, group, registers, work),
            ),
            hot_spots=hot_spots(op for kernel in group for op in kernel.memory if op.requests),
            sass=sass_profile(work.of(group)),
        )


def _machine_metrics(kernels: Sequence[KernelCounts], work: PlanWork) -> list[Metric]:
    """Estimates of the machine code of some kernels; empty unless all have one."""
    code = work.of(kernels)
    metrics = sass_metrics(code)
    wavefronts = sum(shared_wavefronts(counts, of_kernel) for counts, of_kernel in zip(kernels, code, strict=False))
    if wavefronts:
        value = float(round(wavefronts))
        metrics.append(Metric(name=MACHINE_WAVEFRONTS, value=value, unit="wavefront", origin=Origin.ESTIMATED))
    return metrics


def plan_metrics(
    spec: DeviceSpec, counts: PlanCounts, registers: Mapping[str, int], work: PlanWork = NO_WORK
) -> tuple[Metric, ...]:
    """Metrics of a whole plan; those of a launch are of the kernel with the most modelled time."""
    launches = sum(kernel.launches for kernel in counts.kernels)
    metrics = [_counted("kernelforge__launches", launches, "launch")]
    if counts.memsets:
        metrics.append(_counted("kernelforge__memsets", counts.memsets, "launch"))
    metrics += summed_metrics(counts.kernels, counts.memset_bytes)
    if counts.kernels:
        metrics += _launch(spec, _dominant(spec, counts.kernels, registers, work), registers)
    return tuple(metrics)


def _dominant(
    spec: DeviceSpec, kernels: Sequence[KernelCounts], registers: Mapping[str, int], work: PlanWork
) -> KernelCounts:
    """The group of launches with most of the modelled time."""

    def spent(kernel: KernelCounts) -> float:
        occupied = kernel_occupancy(spec, kernel, registers[kernel.expression])
        return launch_time(spec, kernel, occupied, work.kernel(kernel)).time_us * kernel.launches

    return max(kernels, key=spent)


def _counted(name: str, value: float, unit: str) -> Metric:
    return Metric(name=name, value=float(value), unit=unit, origin=Origin.COUNTED)


def _modelled(name: str, value: float, unit: str) -> Metric:
    return Metric(name=name, value=float(value), unit=unit, origin=Origin.MODELLED)


def _ratio(part: float, total: float, scale: float = 1.0) -> float | None:
    return scale * part / total if total else None


def summed_metrics(kernels: Sequence[KernelCounts], memset_bytes: int = 0) -> list[Metric]:
    """Metrics that add up over launches, and ratios of such sums; ratios with a zero denominator are omitted."""

    def add(attribute: str) -> float:
        return float(sum(getattr(kernel, attribute) for kernel in kernels))

    def memory(attribute: str, space: str, *accesses: str, bulk: bool | None = None) -> float:
        return sum(kernel.total(attribute, space, *accesses, bulk=bulk) for kernel in kernels)

    read, written = add("dram_read_bytes"), add("dram_write_bytes") + memset_bytes
    host_sectors, host_requests = add("host_read_sectors"), add("host_read_requests")
    l2_sectors = add("l2_read_sectors") + add("l2_write_sectors") + host_sectors
    # Writes always hit the L2, as in Nsight Compute's count.
    l2_hits = add("l2_read_hits") + add("l2_write_sectors")
    metrics = [
        _modelled("dram__bytes.sum", read + written, "byte"),
        _modelled("dram__bytes_read.sum", read, "byte"),
        _modelled("dram__bytes_write.sum", written, "byte"),
        _modelled("lts__t_sectors.sum", l2_sectors, "sector"),
    ]
    for name, hits, sectors in (
        ("lts__t_sector_hit_rate.pct", l2_hits, l2_sectors),
        ("l1tex__t_sector_hit_rate.pct", add("l1_read_hits"), add("l1_read_sectors")),
    ):
        rate = _ratio(hits, sectors, 100.0)
        if rate is not None:
            metrics.append(_modelled(name, min(rate, 100.0), "%"))
    if host_sectors:
        metrics += [
            _modelled(HOST_SECTORS, host_sectors, "sector"),
            _modelled(HOST_REQUESTS, host_requests, "request"),
            _modelled(HOST_PER_REQUEST, host_sectors / host_requests, "sector/request"),
        ]
    requested = 0.0
    for template, access in ((_LD, "load"), (_ST, "store")):
        sectors = memory("transactions", "global", access, bulk=False)
        requests = memory("requests", "global", access, bulk=False)
        metrics.append(_counted(template.format("t_sectors", ".sum"), sectors, "sector"))
        metrics.append(_counted(template.format("t_requests", ".sum"), requests, "request"))
        excess = max(sectors - memory("ideal_transactions", "global", access, bulk=False), 0.0)
        metrics.append(_counted(_EXCESS[access], excess, "sector"))
        per_request = _ratio(sectors, requests)
        if per_request is not None:
            name = template.format("average_t_sectors_per_request", ".ratio")
            metrics.append(_counted(name, per_request, "sector/request"))
    loaded = stored = 0.0
    for kernel in kernels:
        requested += sum(op.threads * op.bytes_per_thread for op in kernel.select("global"))
        loaded += sum(op.threads * op.bytes_per_thread for op in kernel.select("global", "load"))
        stored += sum(op.threads * op.bytes_per_thread for op in kernel.select("global", "store"))
    wavefronts = memory("transactions", "shared")
    excess = wavefronts - memory("ideal_transactions", "shared")
    metrics += [
        _counted("kernelforge__global_bytes_requested", requested, "byte"),
        _counted("kernelforge__global_load_bytes_requested", loaded, "byte"),
        _counted("kernelforge__global_store_bytes_requested", stored, "byte"),
        _counted(SHARED_WAVEFRONTS, wavefronts, "wavefront"),
        _counted(SHARED_EXCESS, max(excess, 0.0), "wavefront"),
        _counted("ptx__thread_inst_executed.sum", add("thread_instructions"), "inst"),
        _counted("ptx__warp_inst_executed.sum", add("warp_instructions"), "inst"),
    ]
    for access, short in (("load", "ld"), ("store", "st")):
        if requests := memory("requests", "dshared", access):
            sectors = memory("transactions", "dshared", access)
            metrics.append(_counted(f"l1tex__t_requests_pipe_lsu_mem_dshared_op_{short}.sum", requests, "request"))
            metrics.append(_counted(f"l1tex__t_sectors_pipe_lsu_mem_dshared_op_{short}.sum", sectors, "sector"))
    for name, sectors in (
        ("ptx__local_sectors.sum", memory("transactions", "local")),
        ("ptx__bulk_copy_sectors.sum", memory("transactions", "global", bulk=True)),
    ):
        if sectors:
            metrics.append(_counted(name, sectors, "sector"))
    branches = add("branches")
    uniform = _ratio(branches - add("divergent_branches"), branches, 100.0)
    if uniform is not None:
        metrics.append(_counted("ptx__branch_uniform.pct", uniform, "%"))
    lanes = _ratio(add("thread_instructions"), add("warp_instructions"))
    if lanes is not None:
        metrics.append(_counted("ptx__thread_inst_executed_per_inst_executed.ratio", lanes, "thread/inst"))
    if add("barriers"):
        metrics.append(_counted("ptx__block_barriers.sum", add("barriers"), "barrier"))
    metrics += _atomics(kernels)
    for width in (32, 64):
        divisions = sum(integer_divisions(kernel.mix)[width] for kernel in kernels)
        if divisions:
            metrics.append(_counted(f"ptx__inst_int_division_{width}.sum", divisions, "inst"))
    matrix = sum(matrix_instructions(kernel.mix) for kernel in kernels)
    if matrix:
        metrics.append(_counted(MATRIX_INSTRUCTIONS, matrix, "inst"))
    if any(kernel.matrix for kernel in kernels):
        operations = sum(count for kernel in kernels for count, _ in kernel.matrix.values())
        metrics.append(_counted(MATRIX_OPERATIONS, operations, "op"))
    classes = [by_class(kernel.mix) for kernel in kernels]
    for name in CLASSES:
        count = sum(by_name[name] for by_name in classes)
        if count:
            metrics.append(_counted(f"ptx__inst_{name}.sum", count, "inst"))
    return metrics


def _atomics(kernels: Sequence[KernelCounts]) -> list[Metric]:
    """Atomics by thread, and atomics per word and launch (of shared memory: per word and block)."""
    metrics: list[Metric] = []
    for space in ("global", "shared"):
        threads = sum(kernel.total("threads", space, "atomic") for kernel in kernels)
        if not threads:
            continue
        metrics.append(_counted(f"ptx__{space}_atomics.sum", threads, "inst"))
        # Each block has its own shared memory, so only one block updates a word there.
        most = max(
            updates / (kernel.blocks if space == "shared" else kernel.launches)
            for kernel in kernels
            for _, updates in kernel.most_updated_words(space)
        )
        metrics.append(_modelled(f"ptx__{space}_atomics_per_address.max", most, "inst"))
    return metrics


def _limits(
    spec: DeviceSpec, kernels: Sequence[KernelCounts], registers: Mapping[str, int], work: PlanWork
) -> list[Metric]:
    """Modelled time of all launches, in all and under each limit alone, for the diagnosis and for the report."""
    totals: dict[str, float] = {}
    time_us = 0.0
    for kernel in kernels:
        occupied = kernel_occupancy(spec, kernel, registers[kernel.expression])
        time = launch_time(spec, kernel, occupied, work.kernel(kernel))
        time_us += time.time_us * kernel.launches
        for name, limit in {**time.limits_us, "launch": time.overhead_us}.items():
            totals[name] = totals.get(name, 0.0) + limit * kernel.launches
    limits = [_modelled(limit_metric(name), limit, "us") for name, limit in totals.items()]
    return [_modelled(MODELLED_TIME, time_us, "us"), *limits]


def _launch(spec: DeviceSpec, kernel: KernelCounts, registers: Mapping[str, int]) -> list[Metric]:
    """Launch configuration and theoretical occupancy of one kernel."""
    used = registers[kernel.expression]
    occupied = kernel_occupancy(spec, kernel, used)
    blocks = math.prod(kernel.grid)

    def compiled(name: str, value: float, unit: str) -> Metric:
        return Metric(name=name, value=float(value), unit=unit, origin=Origin.COMPILER)

    waves = blocks / (max(occupied.blocks_per_sm, 1) * spec.sm_count)
    clusters = []
    if math.prod(kernel.cluster) > 1:
        clusters = [
            _counted(f"launch__cluster_dim_{a}", n, "block") for a, n in zip("xyz", kernel.cluster, strict=True)
        ]
        clusters.append(_counted("launch__cluster_size", math.prod(kernel.cluster), "block"))
    return [
        *clusters,
        _counted("launch__grid_size", blocks, "block"),
        _counted("launch__block_size", kernel.threads_per_block, "thread"),
        compiled("launch__registers_per_thread", used, "register/thread"),
        compiled("launch__occupancy_limit_blocks", occupied.limit_blocks, "block"),
        compiled("launch__occupancy_limit_registers", occupied.limit_registers, "block"),
        compiled("launch__occupancy_limit_shared_mem", occupied.limit_shared_mem, "block"),
        compiled("launch__occupancy_limit_warps", occupied.limit_warps, "block"),
        compiled("sm__maximum_warps_per_active_cycle_pct", occupied.percent, "%"),
        compiled("launch__waves_per_multiprocessor", waves, "wave"),
    ]
