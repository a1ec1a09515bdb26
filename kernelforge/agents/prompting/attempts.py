"""Attempts as prompts show them: times, changes, and the history within a length limit."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence

from kernelforge.agents.acceptance import Outcome
from kernelforge.agents.base import TaskContext
from kernelforge.agents.prompting.profiles import changes, modelled_text
from kernelforge.agents.prompting.text import inline
from kernelforge.profiling.floor import HOST_LINE_BYTES, arithmetic_floor, host_link_us
from kernelforge.records import Attempt, Operator, Origin, PredictedSpeedup, Verdict
from kernelforge.search.base import ProfileVisibility

HISTORY_SHARED = 10
"""Latest attempts that are named at all; KernelAgent shares as many between its workers."""
HISTORY_DETAILED = 5
"""Latest of those that are shown with finding and outcome; KernelAgent prompts with as many."""
HISTORY_CHARS = 6_000


def label(attempt_id: str) -> str:
    """``attempt 3`` for ``<run>/<task>/03``."""
    return f"attempt {int(attempt_id.rpartition('/')[2])}"


def timing(attempt: Attempt, *, short: bool = False) -> str:
    """The attempt's time with its origin and its uncertainty, and its speedup, which is predicted where the time is
    modelled. ``short`` leaves a predicted speedup out."""
    performance = attempt.evaluation.performance
    if performance is None:
        return "no time is known"
    time = f"{performance.time_us:,.4g} us"
    if performance.origin is Origin.MODELLED or performance.interval_us is None:
        predicted = None if short else performance.predicted
        speedup = "" if predicted is None else f"; predicted {_predicted(predicted)}"
        return f"{time} ({_modelled(attempt, performance.time_us)}){speedup}"
    low, high = performance.interval_us
    text = f"{time} (measured, confidence interval {low:,.4g} to {high:,.4g} us, {performance.samples} samples)"
    if performance.quarantined is not None:
        return f"{text}; quarantined, so it has no speedup: {inline(performance.quarantined, 300)}"
    if performance.speedup is None:
        text += "; no baseline was timed"
    else:
        lower = performance.speedup_lower
        bound = "" if lower is None else f" (at least {lower:.3g}x)"
        baseline = performance.time_us * performance.speedup
        text += f"; speedup {performance.speedup:.3g}x{bound} over the fastest baseline, which takes {baseline:,.4g} us"
    if performance.speedup_eager is not None:
        text += f"; {performance.speedup_eager:.3g}x over eager PyTorch"
    return text


def _modelled(attempt: Attempt, time_us: float) -> str:
    """The origin of a modelled time, with its 90 % interval and the share of its blocks that ran, if not all did."""
    profile = attempt.profile
    kernels = () if profile is None else profile.kernels
    blocks = [kernel.launches * math.prod(kernel.grid) for kernel in kernels]
    ran = sum(count * kernel.sampled for count, kernel in zip(blocks, kernels, strict=True))
    sampled = f", from {ran / sum(blocks):.2%} of its blocks" if ran < sum(blocks) else ""
    return f"{modelled_text(time_us, '' if profile is None else profile.device, kernels)}{sampled}"


def _predicted(speedup: PredictedSpeedup) -> str:
    return f"{speedup.speedup:.3g}x over eager PyTorch (90 %: {speedup.low:.3g}x to {speedup.high:.3g}x)"


def timing_details(attempt: Attempt) -> list[str]:
    """Details of a time, a line each: of a measured one its baselines with their uncertainty, and what it includes; of
    a modelled one PyTorch's time."""
    performance = attempt.evaluation.performance
    eager = None if performance is None else performance.predicted
    if eager is not None:
        return [f"Eager PyTorch takes {eager.eager_us:,.4g} us ({eager.eager_origin})."]
    details = None if performance is None else performance.timing
    if performance is None or details is None:
        return []
    lines = []
    for side in details.baselines:
        low, high = side.interval_us
        line = f"Baseline {inline(side.name, 40)}: {side.median_us:,.4g} us ({low:,.4g} to {high:,.4g})"
        ratio = details.ratio(side.name)
        if ratio is not None and performance.quarantined is None:
            least, most = ratio.interval
            line += f"; the candidate is {ratio.speedup:.3g}x as fast ({least:.3g}x to {most:.3g}x)"
        lines.append(line + ".")
    if not details.candidate.captured:
        lines.append("Its launches were not captured in a CUDA graph: their cost on the host is part of the time.")
    if details.coverage is not None and details.coverage < 1:
        lines.append(f"Its own kernels take {details.coverage:.0%} of that time; library calls and memsets the rest.")
    if details.setup_us:
        lines.append(f"Its `setup` takes {details.setup_us:,.4g} us, which is not part of the time.")
    if not details.settled:
        lines.append("The interval is wider than asked for: small differences are not significant.")
    return lines


def emulated(brief: TaskContext) -> bool:
    """Whether the device stands in for a GPU that is not there."""
    return "emulated" in brief.device.get("device", "")


def floor_us(brief: TaskContext) -> float | None:
    """Compulsory bytes of the full size at the device's peak bandwidth, or those of host memory on the host link where
    that takes longer, in microseconds; None where the bandwidth is unknown."""
    stated = re.match(r"([\d.]+) GB/s", brief.device.get("memory bandwidth", ""))
    if stated is None or not float(stated[1]):
        return None
    return max(brief.facts.at("full").compulsory_bytes / (float(stated[1]) * 1e3), _host_us(brief))


def _host_us(brief: TaskContext) -> float:
    """Least time of the full size's bytes of host memory on the host link."""
    host_bytes = brief.facts.at("full").host_bytes
    return host_link_us(brief.spec, host_bytes, host_bytes / HOST_LINE_BYTES)


def floor_text(brief: TaskContext) -> str:
    """The least time of the full size in words, by memory or by arithmetic; empty where the bandwidth is unknown."""
    least = floor_us(brief)
    if least is None:
        return ""
    arithmetic = arithmetic_floor(brief.spec, brief.facts.at("full"))
    memory = f"{least:,.4g} us, for the compulsory bytes at peak memory bandwidth"
    if least and least == _host_us(brief):
        memory = f"{least:,.4g} us, for the bytes of host memory on the host link"
    if arithmetic.time_us <= least:
        return memory
    return f"{arithmetic.time_us:,.4g} us, for the reference's operations at {arithmetic.unit} ({memory})"


def find(history: Sequence[Attempt], attempt_id: str | None) -> Attempt | None:
    """The attempt of that id, if it is in the history."""
    return next((attempt for attempt in history if attempt.id == attempt_id), None)


def changes_since_parent(
    attempt: Attempt, history: Sequence[Attempt], sight: ProfileVisibility, limit: int = 12
) -> list[str]:
    """Changes from the profile of the parent, the metrics of the finding first; empty where either has no profile."""
    parent = find(history, attempt.parent)
    if parent is None or parent.profile is None or attempt.profile is None:
        return []
    named = [] if attempt.finding is None else [name.removeprefix("+") for name in attempt.finding.metrics]
    return changes(parent.profile, attempt.profile, sight, limit, named)


def history_text(
    history: Sequence[Attempt], sight: ProfileVisibility, budget: int = HISTORY_CHARS, detailed: int = HISTORY_DETAILED
) -> str:
    """The latest attempts with their outcomes, oldest first, within ``budget`` characters."""
    shared = list(history)[-max(HISTORY_SHARED, detailed) :]
    entries: list[str] = []
    for age, attempt in enumerate(reversed(shared)):
        text = _entry(attempt, history, sight, detailed=age < detailed)
        if entries and len(text) + sum(map(len, entries)) > budget:
            break
        entries.insert(0, text)
    left_out = len(history) - len(entries)
    if left_out:
        entries.insert(0, f"({left_out} earlier attempts are left out)")
    return "\n".join(entries)


def _entry(attempt: Attempt, history: Sequence[Attempt], sight: ProfileVisibility, *, detailed: bool) -> str:
    origin = "" if attempt.parent is None else f" from {label(attempt.parent)}"
    evaluation, correct = attempt.evaluation, attempt.evaluation.verdict is Verdict.OK
    head = f"- {label(attempt.id)}, {attempt.operator}{origin}: {evaluation.outcome}"
    if correct:
        head += f", {_standing(attempt)}"
        if sight.latency:
            head += f"; {timing(attempt, short=True)}"
    else:
        head += f" at stage {evaluation.stage}: {inline(evaluation.reason, 300 if detailed else 120)}"
    lines = [head]
    if detailed:
        if attempt.technique:
            lines.append(f"  technique asked for: {inline(attempt.technique)}")
        if attempt.finding is not None:
            finding = attempt.finding
            lines.append(f"  the Judge had said: {inline(finding.headline, 240)}; do: {inline(finding.action, 240)}")
        if correct and attempt.note and sight.latency and sight.metrics != "none":
            lines.append(f"  outcome: {inline(attempt.note, 240)}")
        moved = changes_since_parent(attempt, history, sight, 3)
        if moved:
            lines.append(f"  changed: {'; '.join(moved)}")
    return "\n".join(lines)


def _standing(attempt: Attempt) -> str:
    """Outcome of the comparison with the best before it, in words."""
    if attempt.accepted:
        return "became the best"
    words = {Outcome.UNDECIDED: "not clearly apart from the best", Outcome.NOT_COMPARED: "could not be compared"}
    return next((text for outcome, text in words.items() if attempt.note.startswith(outcome)), "is no better")


def trials_text(attempt: Attempt, history: Sequence[Attempt]) -> str:
    """Results of tuning by combination, the fastest first; a tuned child has those of its parent.

    Empty when nothing was tuned.
    """
    parent = find(history, attempt.parent) if attempt.operator is Operator.TUNE else None
    trials = attempt.trials or (parent.trials if parent is not None else ())
    ordered = sorted(trials, key=lambda trial: (-trial.rung, trial.time_us is None, trial.time_us or 0.0))
    return "\n".join(
        f"{tuned(trial.choices)}: "
        + (inline(trial.problem, 160) if trial.time_us is None else f"{trial.time_us:,.4g} us")
        for trial in ordered
    )


def tuned(choices: Mapping[str, int]) -> str:
    """``BLOCK = 128, TILE = 4``."""
    return ", ".join(f"{inline(name, 60)} = {value}" for name, value in choices.items())
