"""Implausible times: below a physical floor, or worth a second measurement.

These checks only flag a timing; the evaluator repeats it in a fresh process.
"""

from __future__ import annotations

from kernelforge.evaluation.timing.sampler import SamplePlan
from kernelforge.records import Ratio, Timing
from kernelforge.records.timing import UNRANKED

JUMP = 3.0
"""Speedup above which CUDA-L1 measures again (arXiv 2507.14111, on its reward)."""

LEAP = 2.0
"""Growth over the best so far above which CUDA-L1 measures again."""

APART = 0.1
"""How far the second measurement may lie from the first: CUDA-L1 drops the evaluation beyond that."""


def physical_floor_us(
    compulsory_bytes: int,
    bandwidth_gbps: float,
    *,
    resident_bytes: int = 0,
    host_bytes: int = 0,
    host_link_gbps: float = 0.0,
) -> float:
    """Least time of one execution in µs: bytes that must be moved at the peak bandwidth of the device memory, or those
    of host memory at the raw rate of the host link where that takes longer.

    The roofline's side of memory alone (Williams, Waterman & Patterson, "Roofline", CACM 2009): what is computed may be
    rewritten into less arithmetic, what must be read and written stays. Where no bandwidth is known the floor is 0.

    Args:
        compulsory_bytes: Inputs and weights read once, outputs written once.
        bandwidth_gbps: Peak bandwidth of device memory in GB/s, or 0.
        resident_bytes: Of these, what a cache may hold already or still, see :func:`cache_resident`; of host memory
            too, for that no L2 keeps it is an assumption.
        host_bytes: What must be read of host memory.
        host_link_gbps: Raw rate of the host link in GB/s, or 0.
    """
    moved = ((compulsory_bytes, bandwidth_gbps), (host_bytes, host_link_gbps))
    return max(max(0, nbytes - resident_bytes) / (gbps * 1e3) if gbps > 0 else 0.0 for nbytes, gbps in moved)


def cache_resident(shape: SamplePlan, l2_bytes: int) -> int:
    """Most bytes of one execution that need not go to device memory, since the L2 holds them.

    Going round K sets, at most one L2 full is kept per pass, a K-th of it per execution. After a flush nothing is left
    to read, but all that is written may still be there at the end; so it is after each execution with a flush before
    each, because the flush's later write-back cannot be attributed to either.
    """
    return l2_bytes if shape.flush_each else l2_bytes // shape.sets


def implausible_reason(timing: Timing, floor_us: float) -> str | None:
    """The reason that a timing is implausible; None if it is plausible.

    It is then taken again in a fresh process, and quarantined if that is suspicious too. A time counts as under the
    floor when its whole interval is.
    """
    high = timing.candidate.interval_us[1]
    if high < floor_us:
        return (
            f"{timing.candidate.median_us:.4g} µs is below {floor_us:.4g} µs, in which the bytes that must be read and "
            "written can just be moved at peak bandwidth"
        )
    if timing.host is not None and not timing.host.agrees:
        return (
            f"the runner's events say {timing.host.events_us:.4g} µs per execution, the parent's clock "
            f"{timing.host.slope_us:.4g} µs, or its blocks or flushes took time that they should not"
        )
    return None


def clock_jump(timing: Timing, best_speedup: float | None = None) -> str | None:
    """The reason to measure a plausible speedup a second time; None if there is none.

    CUDA-L1's rule: more than 3 times as fast as the baseline, or more than twice as fast as the best so far. Here the
    speedup is against the fastest baseline, and the second measurement is on the same GPU, in a fresh process.
    """
    ratio = None if timing.fastest is None else timing.ratio(timing.fastest)
    if ratio is None:
        return None
    if ratio.speedup > JUMP:
        return f"a speedup of {ratio.speedup:.3g} over {ratio.baseline} is above {JUMP:g}"
    if best_speedup is not None and ratio.speedup > LEAP * best_speedup:
        return f"a speedup of {ratio.speedup:.3g} is more than {LEAP:g} times the best so far, {best_speedup:.3g}"
    return None


def differ(first: Timing, second: Timing) -> str | None:
    """The contradiction between two timings of one candidate; None if they agree.

    They contradict each other when their speedups are more than a tenth apart and their intervals do not meet. The
    speedups are over one baseline, for which one is the fastest may change; without a baseline that both timed,
    nothing confirms a speedup above :data:`JUMP`, which needs a second timing.
    """
    common = _common(first, second)
    if common is None:
        jump = clock_jump(first) or clock_jump(second)
        return jump and f"{jump}, and the two processes timed no baseline in common"
    before, after = common
    meet = before.interval[0] <= after.interval[1] and after.interval[0] <= before.interval[1]
    if meet or abs(after.speedup / before.speedup - 1) <= APART:
        return None
    return f"two processes gave speedups of {before.speedup:.3g} and {after.speedup:.3g} over {before.baseline}"


def _common(first: Timing, second: Timing) -> tuple[Ratio, Ratio] | None:
    """The ratios of two timings over a baseline that both were compared with, else those of the medians over one that
    both timed; the fastest come first."""
    fastest = [timing.fastest for timing in (first, second) if timing.fastest is not None]
    names = dict.fromkeys([*fastest, *(side.name for side in first.baselines if side.name not in UNRANKED)])
    for ratio in (Timing.ratio, _of_medians):
        for name in names:
            before, after = ratio(first, name), ratio(second, name)
            if before is not None and after is not None:
                return before, after
    return None


def _of_medians(timing: Timing, name: str) -> Ratio | None:
    """The ratio of a baseline's median to the candidate's, with the widest interval that theirs allow."""
    candidate = timing.candidate
    side = next((side for side in timing.baselines if side.name == name), None)
    if side is None:
        return None
    interval = side.interval_us[0] / candidate.interval_us[1], side.interval_us[1] / candidate.interval_us[0]
    return Ratio(baseline=name, speedup=side.median_us / candidate.median_us, interval=interval, blocks=1)
