"""Standard advice: for each bottleneck of a correct candidate, and for each verdict of a failed one."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from kernelforge.agents.builtin.design import Design
from kernelforge.agents.diagnosis.rules import Bottleneck
from kernelforge.records import Attempt, Finding, Verdict


class Advice(NamedTuple):
    headline: str
    action: str


REMEDIES: Mapping[Bottleneck, Advice] = MappingProxyType(
    {
        Bottleneck.UNCOALESCED: Advice(
            "global accesses are not coalesced",
            "Let neighbouring threads touch neighbouring words: index the contiguous dimension by threadIdx.x, give a "
            "row to a warp instead of a thread, turn structures into arrays, or stage a tile in shared memory and "
            "transpose there.",
        ),
        Bottleneck.UNVECTORISED: Advice(
            "memory is moved a word at a time",
            "Load and store float4 (or eight halves) per thread where extents and alignment allow it, with a scalar "
            "tail.",
        ),
        Bottleneck.REDUNDANT_LOADS: Advice(
            "the same data is loaded from global memory again and again",
            "Load what threads share once per block into shared memory (tiles, coefficient tables), or keep it in "
            "registers across the loop; compute more results per thread from what is loaded.",
        ),
        Bottleneck.INTERMEDIATE_TRAFFIC: Advice(
            "intermediate tensors pass through memory",
            "Fuse the kernels: compute the producer where its value is used, and store only the outputs.",
        ),
        Bottleneck.BANK_CONFLICT: Advice(
            "accesses to shared memory conflict in its banks",
            "Pad the leading dimension by one element or swizzle the column by the row, so that a warp's words fall "
            "into different banks.",
        ),
        Bottleneck.SPILLS: Advice(
            "registers or indexed arrays live in local memory",
            "Unroll loops over local arrays so that every index is a constant; else move the array to shared memory. "
            "Keep fewer values alive, or relax __launch_bounds__.",
        ),
        Bottleneck.LOW_OCCUPANCY_REGISTERS: Advice(
            "registers per thread leave too few warps resident",
            "Keep fewer values alive per thread (smaller tiles, less unrolling), or bound registers by "
            "__launch_bounds__ as far as nothing spills.",
        ),
        Bottleneck.LOW_OCCUPANCY_SHARED: Advice(
            "shared memory per block leaves too few warps resident",
            "Shrink or reuse the shared buffers, store them in a narrower type, or give the block more threads for "
            "the same buffer.",
        ),
        Bottleneck.LOW_OCCUPANCY_BLOCK: Advice(
            "the block's shape leaves lanes or warp slots empty",
            "Use 128 to 256 threads per block, a multiple of 32.",
        ),
        Bottleneck.TINY_GRID: Advice(
            "too few blocks for the multiprocessors",
            "Split the work over more blocks: smaller tiles, several blocks per row with a second pass, or a split of "
            "the reduction; at least two blocks per multiprocessor.",
        ),
        Bottleneck.DIVERGENCE: Advice(
            "threads of a warp take different paths",
            "Branch by warp or block instead of by lane, sort work by kind, compute both sides where they are cheap, "
            "and give every lane of a warp work.",
        ),
        Bottleneck.ATOMICS_CONTENTION: Advice(
            "many threads update one address",
            "Reduce within the warp by shuffles and within the block in shared memory first, then update once per "
            "block; give blocks private copies of a histogram.",
        ),
        Bottleneck.SYNCHRONISATION: Advice(
            "warps wait at barriers",
            "Do more work between barriers (larger tiles, double buffering), use __syncwarp and shuffles within a "
            "warp, and leave out barriers that protect nothing.",
        ),
        Bottleneck.LAUNCH_BOUND: Advice(
            "launches cost more than their work",
            "Do the work of the launches in one: a grid dimension for the loop of the plan, or a loop inside the "
            "kernel.",
        ),
        Bottleneck.DOUBLE_PRECISION: Advice(
            "arithmetic runs in float64 that the task does not ask for",
            "Write literals with an f (0.5f) and call the float functions (sqrtf, expf); keep float64 for what needs "
            "it.",
        ),
        Bottleneck.REDUNDANT_WORK: Advice(
            "threads compute again what is known",
            "Compute what is the same for many threads once, outside the loop, per block in shared memory, or in the "
            "plan's setup; keep it and use it.",
        ),
        Bottleneck.TENSOR_CORES_UNUSED: Advice(
            "a product of half-precision matrices runs on ordinary cores",
            "Use tensor cores: load fragments by ldmatrix (or wmma) from shared memory, multiply by mma.sync with "
            "float32 accumulators.",
        ),
        Bottleneck.TENSOR_BOUND: Advice(
            "the matrix instructions' own pipeline is the limit",
            "Feed tensor cores from larger tiles with asynchronous copies in several stages.",
        ),
        Bottleneck.ISSUE_BOUND: Advice(
            "instructions that compute nothing fill the issue slots",
            "Take coordinates from blockIdx and threadIdx instead of dividing a flat index; make divisors constants "
            "or powers of two; use 32-bit indices; unroll; compute more elements per thread.",
        ),
        Bottleneck.FP32_BOUND: Advice(
            "arithmetic is the limit",
            "Use fused multiply-adds, strength reduction and shared subexpressions; halve precision only where the "
            "task allows it.",
        ),
        Bottleneck.SFU_BOUND: Advice(
            "divisions, roots and transcendental functions are the limit",
            "Multiply by a reciprocal computed once, replace exp and log pairs, and use the fast intrinsics where the "
            "tolerance holds.",
        ),
        Bottleneck.L2_BOUND: Advice(
            "traffic between L1, L2 and the multiprocessors is the limit",
            "Reuse what is loaded: larger tiles in shared memory and registers, and block order that keeps "
            "neighbours close.",
        ),
        Bottleneck.SHARED_BOUND: Advice(
            "bandwidth of shared memory is the limit",
            "Keep operands in registers: let each thread compute a patch of results, and read shared memory by float4.",
        ),
        Bottleneck.LATENCY_BOUND: Advice(
            "too few independent operations are in flight",
            "Give each thread several independent elements (unroll by four with separate accumulators), issue loads "
            "before they are used, and keep more warps resident.",
        ),
        Bottleneck.DRAM_BOUND: Advice(
            "device memory's bandwidth is the limit",
            "Move fewer bytes: fuse with neighbours, or nothing at the compulsory traffic.",
        ),
    }
)


_ISSUES: tuple[tuple[str, str, str], ...] = (
    (r"out.of.bounds|outside (of )?(the|its|any)|beyond the end", "a thread reads or writes outside its allocation",
     "guard the access by the real extents of this size"),
    (r"misalign|alignment", "a vector access is not aligned to its width",
     "use the vector form only where extents are multiples of it"),
    (r"race|barrier", "threads of a block use shared memory without agreeing on the order",
     "put __syncthreads() between writing and reading it, reached by all threads"),
    (r"uninitiali[sz]ed|poison|never written", "memory is read before anything wrote it",
     "write every element of each output and workspace before reading it"),
    (r"\bnan\b|\binf\b", "a value overflows or is undefined where the reference is finite",
     "subtract the maximum before exp, and treat padding apart"),
)  # fmt: skip

_BY_VERDICT: dict[Verdict, tuple[str, str]] = {
    Verdict.BUILD: ("the source does not compile", "correct the line that the compiler names"),
    Verdict.POLICY: ("the candidate uses what is not allowed", "leave out what the reason names"),
    Verdict.WRONG: ("values differ from the reference", "check index arithmetic and guards at the size named"),
    Verdict.CRASH: ("a kernel faults", "check pointers and extents of the launch named"),
    Verdict.TIMEOUT: ("a kernel does not end in time", "bound its loops by the extents and do less work per thread"),
    Verdict.LIMIT: ("a resource limit is exceeded", "use less memory, smaller templates or fewer launches"),
    Verdict.INFRA: ("this device cannot run the candidate", "use plainer instructions"),
}


def advise(parent: Attempt) -> Finding:
    """The issue behind the verdict of an attempt that failed, why it matters, and the minimal fix."""
    evaluation = parent.evaluation
    design = Design.of(parent.candidate.source) if parent.candidate is not None else None
    reason = evaluation.reason.strip()
    if design is not None and not design.moves:
        why = f"{evaluation.verdict} at stage {evaluation.stage}: {_short(reason)}"
        return Finding(kind="stop", headline="the plainest design already fails", why=why, action="stop here")
    issue, fix = _BY_VERDICT.get(evaluation.verdict, ("the candidate failed", "see the reason"))
    if evaluation.verdict is Verdict.BUILD and evaluation.build is not None and evaluation.build.errors:
        issue = f"the compiler refuses {_short(str(evaluation.build.errors[0]), 160)}"
    elif evaluation.verdict in (Verdict.WRONG, Verdict.CRASH):
        for pattern, cause, cure in _ISSUES:
            if re.search(pattern, reason, re.IGNORECASE):
                issue, fix = cause, cure
                break
    why = f"verdict {evaluation.verdict} at stage {evaluation.stage}: {_short(reason)}"
    return Finding(kind="repair", headline=issue, why=why, action=fix)


def _short(text: str, limit: int = 300) -> str:
    line = " ".join(text.split())
    return line if len(line) <= limit else line[: limit - 3] + "..."
