"""The built-in Judge: reads an evaluation and a profile, and names exactly one thing.

Optimising, it looks at the moves in a fixed order and takes the first whose metrics show something to gain, that the
candidate has not taken and that has not failed before. Repairing, it names the issue behind the verdict.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kernelforge.agents.base import Brief, JudgeReply, JudgeRequest
from kernelforge.agents.builtin.coder import NAME, applicable
from kernelforge.agents.builtin.design import MOVES, Design
from kernelforge.agents.prompts import judge_prompt
from kernelforge.errors import UnsupportedError
from kernelforge.records import Attempt, Finding, Message, Operator, Profile, Verdict

DRAM = "dram__bytes.sum"
LAUNCHES = "kernelforge__launches"
REQUESTED = "kernelforge__global_bytes_requested"
SECTORS = "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum"
SECTORS_STORED = "l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum"
REQUESTS = "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum"
REQUESTS_STORED = "l1tex__t_requests_pipe_lsu_mem_global_op_st.sum"
PER_REQUEST = "l1tex__average_t_sectors_per_request_pipe_lsu_mem_global_op_ld.ratio"
INSTRUCTIONS = "ptx__warp_inst_executed.sum"
WAVEFRONTS = "l1tex__data_pipe_lsu_wavefronts_mem_shared.sum"

ALL_KINDS = "rows|scan|product|conv|window|map"
"""How the built-in Coder names its kernels, after what they do."""
COALESCED = 4.0
"""Sectors per request when a warp's 32 threads read 32 adjacent floats."""
WORTH = 0.15
"""Least share of the plan's sectors that the kernels of a move must have, for a tenth of the whole to be in reach."""


@dataclass(frozen=True)
class Part:
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
class Evidence:
    """Why a move should pay, in numbers, and the counters that will show whether it did."""

    headline: str
    why: str
    metrics: tuple[str, ...]


class BuiltinJudge:
    """A Judge without a model."""

    name = NAME

    def assess(self, request: JudgeRequest) -> JudgeReply:
        """One finding on the parent: what to mend, what to improve, or that nothing is left."""
        brief, parent, history = request.brief, request.parent, request.history
        if parent.evaluation.verdict is Verdict.OK:
            finding = _optimise(brief, parent, history)
        else:
            finding = _repair(parent)
        messages = (
            Message(agent="judge", role="prompt", provider=self.name, content=judge_prompt(request).text),
            Message(agent="judge", role="reply", provider=self.name, content=finding.model_dump_json(indent=1)),
        )
        return JudgeReply(finding, messages)


def _optimise(brief: Brief, parent: Attempt, history: Sequence[Attempt]) -> Finding:
    profile = parent.profile
    if profile is None:
        return _stop("the candidate has no profile to judge by", "moves are chosen by counters")
    design = Design.of(parent.candidate.source) if parent.candidate is not None else None
    try:
        options = list(MOVES) if design is None else applicable(brief, design)
    except UnsupportedError as error:
        return _stop("the built-in Judge cannot read the reference", str(error))
    failed = failed_moves(history)
    for move, look in RULES.items():
        if move in options and move not in failed:
            evidence = look(profile)
            if evidence is not None:
                return Finding(
                    kind="optimise", headline=evidence.headline, why=evidence.why, action=_ACTIONS[move], move=move,
                    metrics=evidence.metrics,
                )  # fmt: skip
    ratio = profile.roofline.dram_bytes / max(profile.roofline.compulsory_bytes, 1)
    untold = f"; tried without gain: {', '.join(sorted(failed))}" if failed else ""
    return _stop(
        "no move that is left would pay",
        f"DRAM traffic is {ratio:.2f}x the compulsory bytes, the bound is {profile.roofline.bound}{untold}",
    )


def failed_moves(history: Sequence[Attempt]) -> set[str]:
    """Moves that were tried and did not become the best, mended or not."""
    return {
        attempt.finding.move
        for attempt in history
        if attempt.operator is Operator.OPTIMISE
        and not attempt.accepted
        and attempt.finding is not None
        and attempt.finding.move is not None
    }


def _stop(headline: str, why: str) -> Finding:
    return Finding(kind="stop", headline=headline, why=why, action="stop here")


def _part(profile: Profile, kinds: str) -> Part:
    """The kernels whose names say that they are of ``kinds``; all of them where another Coder named them."""
    chosen = [kernel for kernel in profile.kernels if re.search(rf"_({kinds})\d*\b", kernel.kernel)]
    if not any(re.search(rf"_({ALL_KINDS})\d*\b", kernel.kernel) for kernel in profile.kernels):
        chosen = list(profile.kernels)
    totals = {
        name: sum(m.value for kernel in chosen for m in kernel.metrics if m.name == name)
        for name in (SECTORS, REQUESTS, SECTORS_STORED, REQUESTS_STORED)
    }
    return Part(
        width=totals[SECTORS] / max(totals[REQUESTS], 1),
        stored_width=totals[SECTORS_STORED] / max(totals[REQUESTS_STORED], 1),
        sectors=totals[SECTORS],
        share=totals[SECTORS] / max(profile.value(SECTORS) or 0.0, 1),
        stored_share=totals[SECTORS_STORED] / max(profile.value(SECTORS_STORED) or 0.0, 1),
    )


def _warp_reduce(profile: Profile) -> Evidence | None:
    part = _part(profile, "rows|scan")
    if part.share < WORTH or part.width <= 2 * COALESCED:
        return None
    why = (
        f"kernels that walk rows read {part.width:.1f} sector/request, {part.width / COALESCED:.1f}x a coalesced read, "
        f"and make {part.share:.0%} of {SECTORS}, which is {profile.value(SECTORS) or 0:,.0f} sector"
    )
    return Evidence("threads walk rows alone, so a warp's reads are a row apart", why, (SECTORS, PER_REQUEST))


def _fuse(profile: Profile) -> Evidence | None:
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
    return Evidence(
        "intermediate tensors are written to memory and read back",
        why,
        (DRAM, LAUNCHES, REQUESTED) if by_traffic else (LAUNCHES, DRAM, REQUESTED),
    )


def _tile(profile: Profile) -> Evidence | None:
    part = _part(profile, "product|conv|map|window")
    again = 32 * part.sectors / max(profile.roofline.compulsory_bytes, 1)
    scattered = part.stored_share >= WORTH and part.stored_width > 2 * COALESCED
    if not scattered and (part.share < WORTH or (again < 2 and part.width <= 2 * COALESCED)):
        return None
    why = (
        f"{SECTORS} is {profile.value(SECTORS) or 0:,.0f} sector, {part.share:.0%} of it here, {again:.1f}x the "
        f"compulsory bytes; {part.width:.1f} sector/request loaded, {part.stored_width:.1f} stored"
    )
    only_stores = scattered and part.width <= 2 * COALESCED and again < 2
    metrics = (SECTORS_STORED, SECTORS) if only_stores else (SECTORS, SECTORS_STORED)
    return Evidence("operands are fetched from the caches again and again, or across rows", why, metrics)


def _register_tile(profile: Profile) -> Evidence | None:
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
    return Evidence(headline, why, (WAVEFRONTS, SECTORS, INSTRUCTIONS))


def _stage(profile: Profile) -> Evidence | None:
    part = _part(profile, "rows")
    again = 32 * part.sectors / max(profile.roofline.compulsory_bytes, 1)
    if part.share < WORTH:
        return None
    why = (
        f"{SECTORS} is {profile.value(SECTORS) or 0:,.0f} sector; kernels that walk rows make {part.share:.0%} of it, "
        f"{again:.2f}x the compulsory bytes"
    )
    return Evidence("every pass over a row fetches it from the caches anew", why, (SECTORS, REQUESTS))


def _vectorise(profile: Profile) -> Evidence | None:
    part = _part(profile, "rows|scan|map")
    requests, instructions = profile.value(REQUESTS) or 0.0, profile.value(INSTRUCTIONS) or 0.0
    if requests == 0 or part.share < WORTH or part.width > 2 * COALESCED:
        return None
    why = (
        f"{REQUESTS} is {requests:,.0f} request of {32 * part.width:.0f} byte each, where a warp can ask for 512; "
        f"{INSTRUCTIONS} is {instructions:,.0f} inst"
    )
    return Evidence("one element per load leaves the issue slots to address arithmetic", why, (REQUESTS, INSTRUCTIONS))


def _block_shape(profile: Profile) -> Evidence | None:
    instructions = profile.value(INSTRUCTIONS) or 0.0
    requests = (profile.value(REQUESTS) or 0.0) + (profile.value(REQUESTS_STORED) or 0.0)
    if instructions < 4 * requests:
        return None
    why = (
        f"{INSTRUCTIONS} is {instructions:,.0f} inst, {instructions / max(requests, 1):.1f} for each of "
        f"{requests:,.0f} memory requests"
    )
    return Evidence("every thread finds its coordinates by dividing its flat index", why, (INSTRUCTIONS, SECTORS))


RULES: dict[str, Callable[[Profile], Evidence | None]] = {
    "warp-reduce": _warp_reduce,
    "fuse": _fuse,
    "tile": _tile,
    "register-tile": _register_tile,
    "stage": _stage,
    "vectorise": _vectorise,
    "block-shape": _block_shape,
}
"""Moves in the order they are looked at, each with what the profile must show."""

_ACTIONS: dict[str, str] = {
    "fuse": "Fuse the chain: compute producers in registers where their values are used; keep one store per output.",
    "warp-reduce": "Give each row a warp, or a block where rows are long or few; lanes walk it together, then shuffle.",
    "tile": "Stage 16x16 tiles of both operands (32x32 for a transposing copy) in shared memory, padded by one column.",
    "register-tile": "Enlarge the tile to 64x64 and let each thread keep a 4x4 patch of results in registers.",
    "stage": "Load the row into shared memory once and let every pass read it there, where it fits in 48 KB.",
    "vectorise": "Move four adjacent elements per instruction where extents are multiples of 4; else one, as now.",
    "block-shape": "Lay blocks out in two dimensions over the result: coordinates come from thread and block ids.",
}

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


def _repair(parent: Attempt) -> Finding:
    evaluation = parent.evaluation
    design = Design.of(parent.candidate.source) if parent.candidate is not None else None
    reason = evaluation.reason.strip()
    if design is not None and not design.moves:
        return _stop(
            "the plainest design already fails", f"{evaluation.verdict} at stage {evaluation.stage}: {_short(reason)}"
        )
    issue, fix = _BY_VERDICT.get(evaluation.verdict, ("the candidate failed", "see the reason"))
    if evaluation.verdict is Verdict.BUILD and evaluation.build is not None and evaluation.build.errors:
        issue = f"the compiler refuses {_short(str(evaluation.build.errors[0]), 160)}"
    elif evaluation.verdict in (Verdict.WRONG, Verdict.CRASH):
        for pattern, known, cure in _ISSUES:
            if re.search(pattern, reason, re.IGNORECASE):
                issue, fix = known, cure
                break
    why = f"verdict {evaluation.verdict} at stage {evaluation.stage}: {_short(reason)}"
    return Finding(kind="repair", headline=issue, why=why, action=fix)


def _short(text: str, limit: int = 300) -> str:
    line = " ".join(text.split())
    return line if len(line) <= limit else line[: limit - 3] + "..."
