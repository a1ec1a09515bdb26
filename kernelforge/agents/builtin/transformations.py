"""Evidence for each transformation of the built-in Coder, as numbers from a candidate's profile."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass

from kernelforge.agents.diagnosis.metrics import (
    COALESCED,
    DRAM,
    GRID,
    INSTRUCTIONS,
    LAUNCHES,
    PER_REQUEST,
    REQUESTED,
    REQUESTS,
    REQUESTS_STORED,
    SECTORS,
    SECTORS_STORED,
    WAVEFRONTS,
    WAVES,
)
from kernelforge.agents.diagnosis.rules import Bottleneck
from kernelforge.records import Profile

ALL_KINDS = "rows|scan|product|conv|window|attention|map"
"""How the built-in Coder names its kernels, after what they do."""
WORTH = 0.15
"""Least share of the plan's sectors that the kernels of a move must have, for a tenth of the whole to be in reach."""


@dataclass(frozen=True)
class KernelPart:
    """Global accesses of some of a plan's kernels."""

    width: float
    """Sectors per load request."""
    stored_width: float
    """Sectors per store request."""
    sectors: float
    """Sectors loaded."""
    share: float
    """Of all sectors that the plan loads."""
    stored_share: float
    """Of all sectors that the plan stores."""


@dataclass(frozen=True)
class TransformEvidence:
    """Numbers that suggest a move, and the counters that will show whether it paid."""

    headline: str
    why: str
    metrics: tuple[str, ...]
    bottleneck: Bottleneck | None = None
    """What the numbers show, where it is not what the move is against by its advice."""


def _part(profile: Profile, kinds: str) -> KernelPart:
    """The kernels whose names say that they are of ``kinds``; all of them where another Coder named them."""
    kernels = [kernel for kernel in profile.kernels if re.search(rf"_({kinds})\d*\b", kernel.kernel)]
    if not any(re.search(rf"_({ALL_KINDS})\d*\b", kernel.kernel) for kernel in profile.kernels):
        kernels = list(profile.kernels)
    totals = {
        name: sum(m.value for kernel in kernels for m in kernel.metrics if m.name == name)
        for name in (SECTORS, REQUESTS, SECTORS_STORED, REQUESTS_STORED)
    }
    return KernelPart(
        width=totals[SECTORS] / max(totals[REQUESTS], 1),
        stored_width=totals[SECTORS_STORED] / max(totals[REQUESTS_STORED], 1),
        sectors=totals[SECTORS],
        share=totals[SECTORS] / max(profile.value(SECTORS) or 0.0, 1),
        stored_share=totals[SECTORS_STORED] / max(profile.value(SECTORS_STORED) or 0.0, 1),
    )


def _warp_reduce(profile: Profile) -> TransformEvidence | None:
    part = _part(profile, "rows|scan")
    if part.share < WORTH:
        return None
    if part.width <= 2 * COALESCED:
        if profile.roofline.bound != "latency":
            return None
        why = f"the bound is latency; kernels that walk rows or columns make {part.share:.0%} of {SECTORS}"
        return TransformEvidence(
            "each thread walks its row or column alone, so that its loads wait for one another",
            why,
            (f"+{GRID}", f"+{WAVES}"),
            Bottleneck.LATENCY_BOUND,
        )
    why = (
        f"kernels that walk rows read {part.width:.1f} sector/request, {part.width / COALESCED:.1f}x a coalesced read, "
        f"and make {part.share:.0%} of {SECTORS}, which is {profile.value(SECTORS) or 0:,.0f} sector"
    )
    return TransformEvidence("threads walk rows alone, so a warp's reads are a row apart", why, (SECTORS, PER_REQUEST))


def _fuse(profile: Profile) -> TransformEvidence | None:
    launches = profile.value(LAUNCHES) or len(profile.kernels)
    if launches < 2:
        return None
    roofline = profile.roofline
    ratio = roofline.dram_bytes / max(roofline.compulsory_bytes, 1)
    why = (
        f"{LAUNCHES} is {launches:.0f}; {DRAM} is {roofline.dram_bytes:,.0f} byte, {ratio:.2f}x the compulsory "
        f"{roofline.compulsory_bytes:,.0f} byte; {REQUESTED} is {profile.value(REQUESTED) or 0:,.0f} byte"
    )
    # Intermediates that fit the L2 cost launches, not DRAM traffic.
    by_traffic = ratio > 1.25 and roofline.bound == "dram"
    return TransformEvidence(
        "intermediate tensors are written to memory and read back",
        why,
        (DRAM, LAUNCHES, REQUESTED) if by_traffic else (LAUNCHES, DRAM, REQUESTED),
    )


def _tile(profile: Profile) -> TransformEvidence | None:
    part = _part(profile, "product|conv|map|window")
    reload_factor = 32 * part.sectors / max(profile.roofline.compulsory_bytes, 1)
    scattered = part.stored_share >= WORTH and part.stored_width > 2 * COALESCED
    if not scattered and (part.share < WORTH or (reload_factor < 2 and part.width <= 2 * COALESCED)):
        return None
    why = (
        f"{SECTORS} is {profile.value(SECTORS) or 0:,.0f} sector, {part.share:.0%} of it here, {reload_factor:.1f}x "
        f"the compulsory bytes; {part.width:.1f} sector/request loaded, {part.stored_width:.1f} stored"
    )
    only_stores = scattered and part.width <= 2 * COALESCED and reload_factor < 2
    metrics = (SECTORS_STORED, SECTORS) if only_stores else (SECTORS, SECTORS_STORED)
    return TransformEvidence("operands are fetched from the caches again and again, or across rows", why, metrics)


def _tensor_cores(profile: Profile) -> TransformEvidence | None:
    kernels = [kernel for kernel in profile.kernels if re.search(r"_(product|conv)\d*\b", kernel.kernel)]
    total = profile.value(INSTRUCTIONS) or 0.0
    here = sum(m.value for kernel in kernels for m in kernel.metrics if m.name == INSTRUCTIONS)
    if here < WORTH * total or total == 0:
        return None
    why = (
        f"{INSTRUCTIONS} is {total:,.0f} inst, {here / total:.0%} of it in products, of which none is a matrix "
        f"instruction; {SECTORS} is {profile.value(SECTORS) or 0:,.0f} sector"
    )
    return TransformEvidence("products run on ordinary cores", why, (INSTRUCTIONS, SECTORS, WAVEFRONTS))


def _stream_k(profile: Profile) -> TransformEvidence | None:
    kernels = [kernel for kernel in profile.kernels if re.search(r"_(product|conv)\d*\b", kernel.kernel)]
    if not kernels:
        return None
    blocks = max(math.prod(kernel.grid) for kernel in kernels)
    waves = max((item.value for kernel in kernels for item in kernel.metrics if item.name == WAVES), default=0.0)
    why = (
        f"{GRID} is {blocks:,} block at most in products and {WAVES} {waves:.2f}; "
        f"{LAUNCHES} is {profile.value(LAUNCHES) or len(profile.kernels):.0f}; {DRAM} is "
        f"{profile.value(DRAM) or profile.roofline.dram_bytes:,.0f} byte"
    )
    headline = "tiles of products may leave multiprocessors idle in the last wave, or their sums pass through memory"
    return TransformEvidence(headline, why, (DRAM, LAUNCHES, f"+{GRID}"))


def _register_tile(profile: Profile) -> TransformEvidence | None:
    waves = profile.value(WAVEFRONTS) or 0.0
    if waves == 0 or profile.roofline.bound in ("dram", "launch"):
        return None
    instructions = profile.value(INSTRUCTIONS) or 0.0
    share = waves / max(instructions, 1)
    why = (
        f"{WAVEFRONTS} is {waves:,.0f}, {share:.2f} per warp instruction; {INSTRUCTIONS} is {instructions:,.0f} inst; "
        f"{SECTORS} is {profile.value(SECTORS) or 0:,.0f} sector"
    )
    headline = "each multiply-add loads both its operands from shared memory"
    return TransformEvidence(headline, why, (WAVEFRONTS, SECTORS, INSTRUCTIONS))


def _stage(profile: Profile) -> TransformEvidence | None:
    part = _part(profile, "rows")
    reload_factor = 32 * part.sectors / max(profile.roofline.compulsory_bytes, 1)
    if part.share < WORTH:
        return None
    why = (
        f"{SECTORS} is {profile.value(SECTORS) or 0:,.0f} sector; kernels that walk rows make {part.share:.0%} of it, "
        f"{reload_factor:.2f}x the compulsory bytes"
    )
    return TransformEvidence("every pass over a row fetches it from the caches again", why, (SECTORS, REQUESTS))


def _vectorise(profile: Profile) -> TransformEvidence | None:
    part = _part(profile, "rows|scan|map")
    requests, instructions = profile.value(REQUESTS) or 0.0, profile.value(INSTRUCTIONS) or 0.0
    if requests == 0 or part.share < WORTH or part.width > 2 * COALESCED:
        return None
    why = (
        f"{REQUESTS} is {requests:,.0f} request of {32 * part.width:.0f} byte each, where a warp can ask for 512; "
        f"{INSTRUCTIONS} is {instructions:,.0f} inst"
    )
    return TransformEvidence(
        "one element per load leaves the issue slots to address arithmetic", why, (REQUESTS, INSTRUCTIONS)
    )


def _block_shape(profile: Profile) -> TransformEvidence | None:
    instructions = profile.value(INSTRUCTIONS) or 0.0
    requests = (profile.value(REQUESTS) or 0.0) + (profile.value(REQUESTS_STORED) or 0.0)
    if instructions < 4 * requests:
        return None
    why = (
        f"{INSTRUCTIONS} is {instructions:,.0f} inst, {instructions / max(requests, 1):.1f} for each of "
        f"{requests:,.0f} memory requests"
    )
    return TransformEvidence(
        "every thread finds its coordinates by dividing its flat index", why, (INSTRUCTIONS, SECTORS)
    )


RULES: dict[str, Callable[[Profile], TransformEvidence | None]] = {
    "warp-reduce": _warp_reduce,
    "fuse": _fuse,
    "tensor-cores": _tensor_cores,
    "stream-k": _stream_k,
    "tile": _tile,
    "register-tile": _register_tile,
    "stage": _stage,
    "vectorise": _vectorise,
    "block-shape": _block_shape,
}
"""Moves in the order they are looked at, each with what the profile must show."""
