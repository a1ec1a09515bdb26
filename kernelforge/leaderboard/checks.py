"""Checks of an entry that need no execution, in addition to those of reading it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from statistics import median

from kernelforge.evaluation.timing import physical_floor_us
from kernelforge.evaluation.timing.candidate_timer import performance
from kernelforge.leaderboard.entry import Best, EntryFile, TaskRow
from kernelforge.leaderboard.verification import Check
from kernelforge.records import Origin, Performance, SideTimes, Task, Timing
from kernelforge.records.timing import UNRANKED
from kernelforge.report.views.board import PRECISION
from kernelforge.report.views.roofline import spec_of_fingerprint
from kernelforge.tasks.suites import Suite

_SLACK = 1.05
"""Of very many samples every n-th is stored, so the stored ones may span a little less than all."""

_CLEARLY = 1.1
"""The fastest baseline is chosen by a few blocks, so another may be a little faster."""


def static_checks(entry: EntryFile, suite: Suite | None) -> tuple[Check, ...]:
    """Checks of an entry against a local suite, and of its numbers against each other.

    Reading the file has already checked the digest, the hashes, the evaluation keys, the board key and every record's
    own rules.
    """
    solved = sum(row.best is not None for row in entry.tasks)
    return (
        Check(name="entry", ok=True, detail=f"digest {entry.digest[:16]}, {len(entry.tasks)} tasks"),
        Check(name="hashes", ok=True, detail=f"of {solved} candidates and their evaluations"),
        *_suite_checks(entry, suite),
        _check("sizes", _sizes(entry, suite), _compared(entry, solved)),
        _check("times", _all(entry, _times), f"{solved} agree with what they are said to be made of"),
        _check("precision", _precision(entry), entry.key.precision),
    )


def _compared(entry: EntryFile, solved: int) -> str:
    """Summary of the candidates that were compared at every size."""
    uncompared = sum(row.best is not None and row.best.evaluation.uncompared for row in entry.tasks)
    without = f"; the full size of {uncompared} was not compared, which are not correct" if uncompared else ""
    return f"{solved - uncompared} candidates passed or guarded every size of their task{without}"


def _check(name: str, problems: Iterator[str], fine: str) -> Check:
    messages = list(problems)
    more = f" (and {len(messages) - 3} more)" if len(messages) > 3 else ""
    return Check(name=name, ok=not messages, detail="; ".join(messages[:3])[:1_900] + more if messages else fine)


def _suite_checks(entry: EntryFile, suite: Suite | None) -> Iterator[Check]:
    if suite is None:
        detail = f"there is no suite {entry.suite!r} here; name its folder with --suite"
        yield Check(name="suite", ok=False, detail=detail)
        return
    same = suite.digest == entry.suite_digest
    here = f"{entry.suite} is {suite.digest} here" + ("" if same else f", {entry.suite_digest} in the entry")
    yield Check(name="suite", ok=same, detail=here)
    yield _check("tasks", _tasks(entry, suite), f"{len(entry.tasks)} of {len(suite)} tasks of the suite")


def _tasks(entry: EntryFile, suite: Suite) -> Iterator[str]:
    here = {task.name: task.digest for task in suite}
    for row in entry.tasks:
        if row.task not in here:
            yield f"{row.task} is no task of the suite"
        elif row.task_digest not in (None, here[row.task]):
            yield f"{row.task} is {here[row.task]} here, {row.task_digest} in the entry"


def _sizes(entry: EntryFile, suite: Suite | None) -> Iterator[str]:
    tasks: Mapping[str, Task] = {task.name: task for task in suite or ()}
    for row in entry.tasks:
        correctness = row.best.evaluation.correctness if row.best else None
        if row.task not in tasks or correctness is None:
            continue
        checked = {check.size for check in correctness.sizes}
        missing = [size.name for size in tasks[row.task].sizes if size.name not in checked]
        if missing:
            yield f"{row.task} was not checked at {', '.join(missing)}"


def _all(entry: EntryFile, look: Callable[[Best], Iterator[str]]) -> Iterator[str]:
    for row in entry.tasks:
        if row.best is not None:
            yield from (f"{row.task}: {problem}" for problem in look(row.best))


def _times(best: Best) -> Iterator[str]:
    """Contradictions between a time and the numbers that it is computed from."""
    claimed = best.evaluation.performance
    if claimed is None:
        return
    if claimed.origin is Origin.MODELLED:
        roofline = best.profile.roofline if best.profile else None
        if roofline is not None and (claimed.time_us, claimed.bound) != (roofline.time_us, roofline.bound):
            yield f"{claimed.time_us:.6g} us, its roofline has {roofline.time_us:.6g} us"
    elif claimed.timing is None:
        yield "a measured time without its samples"
    else:
        yield from _measured(claimed, claimed.timing, best)


def _measured(claimed: Performance, timing: Timing, best: Best) -> Iterator[str]:
    made = performance(timing, claimed.quarantined, best.profile)
    for name in Performance.model_fields:
        if getattr(made, name) != getattr(claimed, name):
            yield f"{name} is {getattr(claimed, name)}, its samples give {getattr(made, name)}"
    least = _floor_us(best)
    if claimed.quarantined is None and timing.candidate.interval_us[1] < least:
        yield f"{claimed.time_us:.4g} us, in which the GPU cannot move the bytes: that takes {least:.4g} us"
    for side in (timing.candidate, *timing.baselines):
        if not _spans(side):
            yield f"{side.name}: a median of {side.median_us:.6g} us, its samples have {median(side.samples_us):.6g} us"
    sides = {side.name: side for side in timing.baselines}
    fastest = sides.get(timing.fastest or "")
    for side in () if timing.protocol.startswith("kernelbench") else timing.baselines:
        if side.name in UNRANKED:
            continue
        if fastest and side.interval_us[1] * _CLEARLY < fastest.interval_us[0]:
            yield f"{side.name} at {side.median_us:.6g} us beats {fastest.name}, which is called the fastest baseline"
    for ratio in timing.ratios:
        fast, slow = timing.candidate.samples_us, sides[ratio.baseline].samples_us
        if not min(slow) / max(fast) / _SLACK <= ratio.speedup <= max(slow) / min(fast) * _SLACK:
            yield f"no pair of samples is {ratio.speedup:.4g} times as fast as {ratio.baseline}"


def _floor_us(best: Best) -> float:
    """Least time on the GPU in µs, with its L2 full of needed data; 0 where bytes or bandwidth are unknown."""
    spec, nbytes = spec_of_fingerprint(best.evaluation.fingerprint), best.compulsory_bytes
    if spec is None or nbytes is None:
        return 0.0
    return physical_floor_us(int(nbytes), spec.dram_bandwidth_gbps, resident_bytes=spec.l2_bytes)


def _spans(side: SideTimes) -> bool:
    """Whether the median agrees with the samples."""
    low, high = side.interval_us
    return low / _SLACK <= median(side.samples_us) <= high * _SLACK and (
        min(side.samples_us) / _SLACK <= side.median_us <= max(side.samples_us) * _SLACK
    )


def _precision(entry: EntryFile) -> Iterator[str]:
    if entry.key.precision != PRECISION:
        yield f"{entry.key.precision!r} is not the policy of this version, {PRECISION!r}"


def solved_rows(entry: EntryFile) -> tuple[TaskRow, ...]:
    """Rows with a candidate to evaluate again."""
    return tuple(row for row in entry.tasks if row.best is not None)
