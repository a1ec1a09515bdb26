"""The gates of the cascade as a checklist: which an attempt passed, where it failed, and by how much."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

from kernelforge.records import Evaluation, Performance, SizeCheck, Stage, Verdict
from kernelforge.report.text import number
from kernelforge.report.views.base import View

GateStatus = Literal["passed", "failed", "not compared", "not reached", "not applicable"]

_ORDER: tuple[str, ...] = get_args(Stage)
_OF_BUILD = ("plan", "compile", "policy")
"""Gates that a class of lane ``modelnew`` does not have: it is no launch plan, and nothing of it is built by us."""


class Gate(View):
    """One gate of the cascade."""

    name: Stage
    status: GateStatus
    """``not compared``: no value was, ``detail`` says why. ``not reached``: an earlier gate ended the cascade, or this
    one could not judge (verdict ``INFRA``)."""
    detail: str
    """Why it failed or does not apply, or what it saw; may be empty."""
    error: float | None
    """Largest error over its sizes, as a multiple of the tolerance: above 1 fails."""
    checks: tuple[SizeCheck, ...]
    """Of the gates ``small``, ``hidden`` and ``full``: each size with its error."""


def gates_of(evaluation: Evaluation) -> tuple[Gate, ...]:
    """Every gate in the cascade's order."""
    return tuple(_gate(name, evaluation) for name in get_args(Stage) if name != "done")


def _gate(name: Stage, evaluation: Evaluation) -> Gate:
    checks = _checks(name, evaluation)
    status, detail = _judged(name, evaluation, checks)
    errors = [check.error for check in checks if check.error is not None]
    return Gate(name=name, status=status, detail=detail, error=max(errors, default=None), checks=checks)


def _judged(name: Stage, evaluation: Evaluation, checks: Sequence[SizeCheck]) -> tuple[GateStatus, str]:
    ended = evaluation.verdict is not Verdict.OK and evaluation.stage == name
    if ended and evaluation.verdict is Verdict.INFRA:
        return "not reached", f"INFRA, no statement about the candidate: {evaluation.reason}"
    if ended:
        return "failed", evaluation.reason
    reached = evaluation.verdict is Verdict.OK or _ORDER.index(evaluation.stage) > _ORDER.index(name)
    if evaluation.lane == "modelnew" and name in _OF_BUILD:
        return "not applicable", "a ModelNew class is Python: it has no launch plan and no build of ours"
    if name in ("small", "hidden", "full"):
        return _at_sizes(checks, reached)
    if name == "sanitizer":
        return _sanitizer(evaluation, reached)
    if name == "timing":
        return _timing(evaluation, evaluation.performance, reached)
    return ("passed", "") if reached else ("not reached", "")


def _checks(name: Stage, evaluation: Evaluation) -> tuple[SizeCheck, ...]:
    if name not in ("small", "hidden", "full") or evaluation.correctness is None:
        return ()
    return tuple(
        check
        for check in evaluation.correctness.sizes
        if check.size == name or (name == "hidden" and check.size.startswith("hidden"))
    )


def _at_sizes(checks: Sequence[SizeCheck], reached: bool) -> tuple[GateStatus, str]:
    """Of sizes that did not end the cascade. A further test may fail the small size once the hidden ones passed."""
    states = {check.status for check in checks}
    refused = sum(check.status == "guarded" for check in checks)
    told = f"{refused} of {len(checks)} refused by the plan's own assert" if refused else ""
    if "passed" in states:
        return "passed", "; ".join(filter(None, (told, *(check.message for check in checks if _noted(check)))))
    if not reached:
        return "not reached", ""
    if "skipped" in states:
        why = next(check.message for check in checks if check.status == "skipped")
        return "not compared", why.removeprefix("values not compared: ")
    return ("passed", told) if refused else ("not applicable", "the task has no such size")


def _noted(check: SizeCheck) -> bool:
    """Whether a size passed with a note: compared in part, or without its profile."""
    return check.status == "passed" and bool(check.message)


def _sanitizer(evaluation: Evaluation, reached: bool) -> tuple[GateStatus, str]:
    if evaluation.fingerprint.device_kind == "emulated":
        return "not applicable", "the emulated device checks every access itself"
    if "sanitizer" in evaluation.seconds and reached:
        return "passed", ""
    return ("not applicable", "compute-sanitizer was not asked for") if reached else ("not reached", "")


def _timing(evaluation: Evaluation, speed: Performance | None, reached: bool) -> tuple[GateStatus, str]:
    kind = evaluation.fingerprint.device_kind
    if kind != "cuda":
        why = "times are modelled, not measured" if kind == "emulated" else "nothing is timed on this device"
        return "not applicable", why
    if not reached:
        return "not reached", ""
    if speed is None:
        return "not applicable", "it was not timed"
    if speed.quarantined is not None:
        return "failed", f"quarantined: {speed.quarantined}"
    return "passed", f"{speed.samples} samples, {number(speed.time_us)} µs"
