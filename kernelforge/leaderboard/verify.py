"""Verification of an entry: checks of its file, then some of its best candidates evaluated again on fresh inputs.

Values that must agree:

- On an emulated device: the verdict and the outcome at every size. The modelled time and the main counters must agree
  within a tenth, because a profile samples its blocks at random. If they do not agree exactly, the candidate is
  evaluated once more with the seed of the run, and every counter must be equal. A run of submissions has no
  seed: where two draws give two profiles, its counters are not compared exactly.
- On a GPU: the verdict, the compulsory bytes, and the speedup. The two 95 % intervals must overlap; the entry's
  interval counts no further than a tenth from the speedup that it claims. The claimed time may be shorter than the
  time here by the effect of clocks and cooling (:data:`FASTER`).

A candidate is evaluated again only where numbers are comparable: the same evaluator version, the same toolchain for
counters, the same GPU for measured times, the same protocol for modelled ones.
"""

from __future__ import annotations

import platform
import random
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import NamedTuple

from kernelforge.devices import default_device
from kernelforge.errors import KernelForgeError
from kernelforge.evaluation.evaluator import EvaluationResult
from kernelforge.evaluation.pool import RunPool
from kernelforge.evaluation.timing import physical_floor_us
from kernelforge.evaluation.timing.candidate_timer import performance
from kernelforge.evaluation.timing.plausibility import APART
from kernelforge.leaderboard.entry import Best, EntryFile, TaskRow
from kernelforge.leaderboard.verification import Check, TaskCheck, Verification
from kernelforge.profiling.model import PROTOCOL as MODEL
from kernelforge.records import (
    DRAWN_SIZE,
    Correctness,
    Evaluation,
    Fingerprint,
    MeasureSettings,
    Metric,
    Origin,
    Performance,
    Profile,
    SideTimes,
    Task,
    TaskFacts,
    Timing,
    Verdict,
    content_hash,
)
from kernelforge.records.evaluation import without_prediction
from kernelforge.records.timing import UNRANKED
from kernelforge.report.views.board import PRECISION, without_tests
from kernelforge.report.views.roofline import spec_of_fingerprint
from kernelforge.run.runner import EXTERNAL
from kernelforge.tasks.suites import Suite, list_suites, load_suite
from kernelforge.version import __version__


def suite_of(entry: EntryFile, folders: Sequence[Path] = ()) -> Suite | None:
    """The suite of an entry, among the shipped ones and ``folders``; None where there is none of its name.

    An entry names a suite: its text is never used as a path.
    """
    named = [suite for suite in map(load_suite, folders) if suite.name == entry.suite]
    if not named and entry.suite in list_suites():
        named = [load_suite(entry.suite)]
    return next((suite for suite in named if suite.digest == entry.suite_digest), named[0] if named else None)


def drawn(rows: Sequence[TaskRow], sample: int | None, seed: int) -> tuple[TaskRow, ...]:
    """A sample of rows in their order; all of them where ``sample`` is None."""
    if sample is None or sample >= len(rows):
        return tuple(rows)
    indices = set(random.Random(seed).sample(range(len(rows)), sample))
    return tuple(row for number, row in enumerate(rows) if number in indices)


def device_for(entry: EntryFile) -> str:
    """Local device for the entry's candidates: the emulated device that it names, else the first GPU that starts, or an
    emulated device. The log has a warning for each GPU that is skipped."""
    claimed = entry.fingerprints[0]
    return claimed.device if claimed.device_kind == "emulated" else default_device(measure_of(entry))


def measure_of(entry: EntryFile) -> MeasureSettings:
    """Settings for timing again: the entry's protocol within local limits."""
    claimed = entry.run.measure
    return MeasureSettings(protocol=claimed.protocol, qps=claimed.qps)


def verify(
    entry: EntryFile,
    suite: Suite | None,
    *,
    sample: int | None,
    seed: int,
    open_pool: Callable[[], RunPool],
    watch: Callable[[TaskCheck], None] | None = None,
) -> Verification:
    """Check an entry, and where its checks pass, evaluate a sample of its best candidates again.

    Args:
        suite: The local suite of the entry; None where there is none.
        sample: Number of tasks to evaluate again; None for all.
        seed: Seed of the sample.
        open_pool: Starts the evaluator pool; called once at most. The caller closes it.
        watch: Called with the result of each sampled task.
    """
    checks = static_checks(entry, suite)
    rows = solved_rows(entry)
    sampled = drawn(rows, sample, seed)
    fingerprint: Fingerprint | None = None
    results: dict[str, TaskCheck] = {}
    if sampled and suite is not None and all(check.ok for check in checks):
        try:
            pool = open_pool()
            fingerprint = pool.fingerprint
        except KernelForgeError as error:
            results = {row.task: _not_rerun(row, f"nothing here to run it on: {error}") for row in sampled}
        else:
            for check in rerun(entry, sampled, suite, pool):
                results[check.task] = check
                if watch is not None:
                    watch(check)
    drawn_names = {row.task for row in sampled}
    return Verification(
        entry=entry.digest,
        run=entry.run.id,
        when=datetime.now(UTC).isoformat(timespec="seconds"),
        kernelforge=__version__,
        host=f"{platform.system().lower()}-{platform.machine()}",
        fingerprint=fingerprint if any(check.status != "not re-run" for check in results.values()) else None,
        seed=seed,
        sample=len(sampled),
        checks=checks,
        tasks=tuple(results.get(row.task) or _not_rerun(row, _why_not(row, drawn_names)) for row in entry.tasks),
    )


def _not_rerun(row: TaskRow, reason: str) -> TaskCheck:
    return TaskCheck(task=row.task, status="not re-run", reason=reason[:1_900])


def _why_not(row: TaskRow, sampled: set[str]) -> str:
    if row.best is None:
        return "the entry has nothing correct to evaluate"
    return "a check of the file failed" if row.task in sampled else "not drawn"


CHANCE = 0.1
"""Largest relative difference of counters between two draws of inputs and sampled blocks."""

_MAIN = (
    "dram__bytes.sum",
    "ptx__thread_inst_executed.sum",
    "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum",
    "l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum",
)

FASTER = 1.5
"""Largest factor by which a kernel may be faster on another GPU of the same name."""


def rerun(entry: EntryFile, rows: Iterable[TaskRow], suite: Suite, pool: RunPool) -> Iterator[TaskCheck]:
    """Evaluate the best candidates of some rows again, one by one."""
    here = pool.fingerprint
    tasks = {task.name: task for task in suite}
    for row in rows:
        assert row.best is not None  # rows are drawn from those with a best attempt
        task = tasks.get(row.task)
        why = incomparable(row.best.evaluation, here)
        if task is None or task.digest != row.task_digest:
            why = "the suite here has no such task"
        if why is not None or task is None:
            yield _not_rerun(row, why or "")
            continue
        start = time.perf_counter()
        try:
            local = _evaluate_again(entry, row.best, task, pool)
        except KernelForgeError as error:
            yield _not_rerun(row, f"it could not be: {error}")
            continue
        yield _task_check(row, local, round(time.perf_counter() - start, 3))


def incomparable(evaluation: Evaluation, here: Fingerprint) -> str | None:
    """Reason why the numbers of a claimed evaluation are not comparable with local ones; None where they are."""
    claimed, speed = evaluation.fingerprint, evaluation.performance
    if without_tests(claimed.evaluator) != here.evaluator:
        return f"judged by evaluator {claimed.evaluator}, here is {here.evaluator}"
    if claimed.device_kind != here.device_kind or (claimed.gpu or claimed.device) != (here.gpu or here.device):
        return f"made on {claimed.gpu or claimed.device}, here is {here.gpu or here.device}"
    if claimed.gpu is None and claimed.toolchain != here.toolchain:
        return f"compiled by {claimed.toolchain}, here is {here.toolchain}: counters would differ"
    if speed is not None and speed.origin is Origin.MODELLED and speed.protocol != MODEL:
        return f"its time was modelled by protocol {speed.protocol}, here is {MODEL}"
    return None


class _LocalResult(NamedTuple):
    """Result of a local evaluation."""

    result: EvaluationResult
    problems: tuple[str, ...]
    """Disagreements with the entry."""


def _evaluate_again(entry: EntryFile, best: Best, task: Task, pool: RunPool) -> _LocalResult:
    evaluator = pool.evaluator(task)
    try:
        result = evaluator.evaluate(best.candidate, seed=secrets.randbits(63))
        problems = (*_bytes(best, evaluator.facts), *_problems(best, result))
        if problems and _right(result) and best.evaluation.fingerprint.gpu is None:
            # Right on fresh inputs, other counters: perhaps because they hang on the values, or on what was sampled.
            external = entry.run.strategy == EXTERNAL
            own = int(content_hash(entry.run.seed, task.name, best.number), 16)
            second = evaluator.evaluate(best.candidate, seed=secrets.randbits(63) if external else own)
            vary = external and _counted(second.profile) != _counted(result.profile)
            exact = _problems(best, second, counters=not vary)
            problems = (*_bytes(best, evaluator.facts), *_far(best, result), *exact)
            return _LocalResult(second, problems)
        return _LocalResult(result, problems)
    finally:
        evaluator.close()
        pool.done(task)


def _bytes(best: Best, facts: TaskFacts) -> Iterator[str]:
    """Disagreement on the compulsory bytes, and on those of host memory."""
    least, from_host = facts.at("full").compulsory_bytes, facts.at("full").host_bytes
    if best.profile and best.profile.roofline.host_bytes != from_host:
        yield f"{from_host} bytes of host memory are read, the entry says {best.profile.roofline.host_bytes:.0f}"
    claimed = best.profile.roofline.compulsory_bytes if best.profile else best.compulsory_bytes
    if claimed not in (None, least):
        yield f"{least:.0f} bytes must move at least, the entry says {claimed:.0f}"


def _right(result: EvaluationResult) -> bool:
    return result.evaluation.verdict is Verdict.OK


def _task_check(row: TaskRow, local: _LocalResult, seconds: float) -> TaskCheck:
    evaluation = local.result.evaluation
    if evaluation.verdict is Verdict.INFRA:
        reason = f"it could not be judged here: {evaluation.reason}"
        return TaskCheck(task=row.task, status="not re-run", reason=reason[:1_900], verdict=evaluation.verdict)
    speed = evaluation.performance
    measured = evaluation.fingerprint.gpu is not None
    agreed = "verdict, and overlapping intervals of the speedup" if measured else "verdict, time and counters"
    agreed += "; the full size is compared in neither" if evaluation.uncompared else ""
    return TaskCheck(
        task=row.task,
        status="differs" if local.problems else "agrees",
        reason="; ".join(local.problems)[:1_900] if local.problems else agreed,
        verdict=evaluation.verdict,
        speedup=speed.speedup if speed else None,
        seconds=seconds,
    )


def _problems(best: Best, result: EvaluationResult, *, counters: bool = True) -> Iterator[str]:
    claimed, here = best.evaluation, result.evaluation
    if here.verdict is not Verdict.OK:
        yield f"verdict {here.verdict} at {here.stage}: {here.reason}"
        return
    if _outcomes(claimed.correctness) != _outcomes(here.correctness):
        yield f"sizes came to {_outcomes(here.correctness)}, the entry says {_outcomes(claimed.correctness)}"
    if claimed.fingerprint.gpu is not None:
        yield from _speeds(claimed.performance, here.performance)
        return
    if not counters:
        return
    if without_prediction(claimed.performance) != without_prediction(here.performance):
        yield f"the modelled time is {_time(here.performance)}, the entry says {_time(claimed.performance)}"
    if _counted(best.profile) != _counted(result.profile):
        yield _counters(best.profile, result.profile)


def _far(best: Best, result: EvaluationResult) -> Iterator[str]:
    """Differences on new inputs and samples beyond :data:`CHANCE`."""
    claimed, here = best.evaluation.performance, result.evaluation.performance
    pairs = [("modelled time", None if claimed is None else claimed.time_us, None if here is None else here.time_us)]
    for name in _MAIN:
        claimed_value = None if best.profile is None else best.profile.value(name)
        pairs.append((name, claimed_value, None if result.profile is None else result.profile.value(name)))
    for name, claimed_value, value in pairs:
        if claimed_value is None and value is None:
            continue
        if claimed_value is None or value is None or abs(claimed_value - value) > CHANCE * max(claimed_value, value):
            yield f"{name} is {_plain(value)} on fresh samples, the entry says {_plain(claimed_value)}"


def _plain(value: float | None) -> str:
    return "none" if value is None else f"{value:.6g}"


def _outcomes(correctness: Correctness | None) -> dict[str, str]:
    """Outcome by size, without sizes of further tests and the size that each evaluation draws."""
    sizes = [check for check in (correctness.sizes if correctness else ()) if check.size != DRAWN_SIZE]
    return {check.size: check.status for check in sizes if check.size in ("full", "small") or "hidden" in check.size}


def _speeds(claimed: Performance | None, here: Performance | None) -> Iterator[str]:
    """Disagreement of two measured speedups beyond their noise, and of a time that this GPU cannot reach."""
    if claimed is not None and claimed.quarantined is None and here is not None and here.interval_us is not None:
        least = here.interval_us[0] / FASTER
        if claimed.time_us < least:
            yield f"{here.time_us:.4g} us here, the entry says {claimed.time_us:.4g} us"
    entry_interval, interval = _interval(claimed), _interval(here)
    if claimed is None or claimed.speedup is None or entry_interval is None:
        return  # the entry gains nothing by a time without a speedup
    # A very wide interval would agree with every result.
    low = max(entry_interval[0], claimed.speedup * (1 - APART))
    high = min(entry_interval[1], claimed.speedup * (1 + APART))
    says = f"the entry says {low:.4g} to {high:.4g}"
    if interval is None:
        why = here.quarantined if here is not None and here.quarantined else "none was measured"
        yield f"no speedup here ({why}), {says}"
    elif low > interval[1] or interval[0] > high:
        yield f"a speedup of {interval[0]:.4g} to {interval[1]:.4g}, {says}"


def _interval(performance: Performance | None) -> tuple[float, float] | None:
    """95 % interval of the speedup against the fastest baseline."""
    if performance is None or performance.speedup is None or performance.timing is None:
        return None
    timing = performance.timing
    ratio = None if timing.fastest is None else timing.ratio(timing.fastest)
    return None if ratio is None else ratio.interval


def _time(performance: Performance | None) -> str:
    return "none" if performance is None else f"{performance.time_us:.6g} us ({performance.bound})"


def _counted(profile: Profile | None) -> Profile | None:
    """A profile without its notes and its estimates of machine code and energy; the modelled time is compared."""
    if profile is None:
        return None

    def exact(metrics: Iterable[Metric]) -> tuple[Metric, ...]:
        return tuple(metric for metric in metrics if metric.origin is not Origin.ESTIMATED)

    kernels = tuple(
        kernel.model_copy(update={"sass": None, "metrics": exact(kernel.metrics)}) for kernel in profile.kernels
    )
    return profile.model_copy(
        update={"kernels": kernels, "metrics": exact(profile.metrics), "notes": (), "energy": None}
    )


def _counters(claimed: Profile | None, here: Profile | None) -> str:
    if claimed is None or here is None:
        return f"the entry has {'no' if claimed is None else 'a'} profile, here is {'none' if here is None else 'one'}"
    claimed_values = {metric.name: metric.value for metric in claimed.metrics}
    for metric in (metric for metric in here.metrics if metric.origin is not Origin.ESTIMATED):
        if claimed_values.get(metric.name) != metric.value:
            return f"{metric.name} is {metric.value:g}, the entry says {claimed_values.get(metric.name)}"
    return "the profiles differ in a kernel's counters, or in the roofline"


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
    return physical_floor_us(
        int(nbytes),
        spec.dram_bandwidth_gbps,
        resident_bytes=spec.l2_bytes,
        host_bytes=int(best.profile.roofline.host_bytes) if best.profile else 0,
        host_link_gbps=spec.host_link_raw_gbps,
    )


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
