"""Checks that a task tells an honest answer from a trivial one.

At every (size, family) torch itself must pass, and each trivial predictor must fail: zeros, a constant, an input
returned, one batch row repeated, the answer to an earlier draw. On the task's own inputs alone one may pass that
another family at the same size exposes, as the identity does for ReLU on inputs from [0, 1). A predictor that passes
everywhere would let a candidate score without computing anything.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from kernelforge.errors import TaskError
from kernelforge.evaluation.generators.recipe import TEST_PREFIX
from kernelforge.evaluation.oracle.worker.comparison import Got
from kernelforge.evaluation.oracle.worker.reference_runner import ADMISSION_SEEDS, ReferenceRunner
from kernelforge.evaluation.oracle.worker.trivial import trivial_answers

_DEGENERATE = ("edge", "sparse")
"""Families of few distinct values or many zeros on purpose, where a trivial answer may be right."""


def admission_findings(reckoner: ReferenceRunner, sizes: Sequence[str]) -> list[dict[str, Any]]:
    """One finding for each (size, family): ``ok``, ``admitted`` and a text that says why."""
    findings: list[dict[str, Any]] = []
    for size in sizes:
        reckoner.make_room(size)
        try:
            scales = reckoner.scales(size)
        except TaskError as error:
            findings.append({"size": size, "family": "task", "ok": False, "admitted": False, "text": str(error)})
            continue
        results: dict[str, _Result] = {
            family: _check_family(reckoner, size, family) for family in reckoner.families if family in scales
        }
        for family in reckoner.families:
            finding: dict[str, Any] = {"size": size, "family": family, "admitted": family in scales, "ok": True}
            if family in results:
                ok, text = _verdict(family, results)
                finding |= {"ok": ok, "text": f"inputs x {scales[family]:g}; {text}"}
            else:
                finding["text"] = (
                    "not admitted: torch itself is not finite or not accurate enough on such inputs, or its outputs "
                    "are saturated"
                )
            findings.append(finding)
    return findings


def generator_findings(reckoner: ReferenceRunner, name: str, sizes: Sequence[str]) -> list[dict[str, Any]]:
    """One finding for each size: whether candidates may be checked on a generator's inputs there, or why not.

    The rule is that of our own families: torch itself passes, on several draws. Trivial answers are not asked
    after: a generator adds to families that they fail on.
    """
    findings: list[dict[str, Any]] = []
    for size in sizes:
        reckoner.make_room(size)
        try:
            for seed in ADMISSION_SEEDS:
                _check_test(reckoner, size, f"{TEST_PREFIX}{name}", seed)
            findings.append({"size": size, "ok": True, "text": ""})
        except TaskError as error:
            findings.append({"size": size, "ok": False, "text": str(error)})
    return findings


def _check_test(reckoner: ReferenceRunner, size: str, family: str, seed: int) -> None:
    drawn, repeated = reckoner.draw(size, family, seed), reckoner.draw(size, family, seed, expected=False)
    for first, second in zip(drawn.inputs, repeated.inputs, strict=True):
        if isinstance(first, torch.Tensor) and isinstance(second, torch.Tensor) and not torch.equal(first, second):
            raise TaskError("two draws with one seed differ: the task's own inputs do not follow torch's seed")
    assert drawn.expected is not None
    own = reckoner.compare(drawn, [Got.of(output.reference) for output in drawn.expected])
    if not own.ok:
        raise TaskError(f"torch itself fails: {own.message}")


@dataclass(frozen=True)
class _Result:
    """Result for one family at one size."""

    fault: str = ""
    """Why torch's own answers cannot be judged; empty where they can."""
    tried: frozenset[str] = frozenset()
    """Trivial predictors that could be tried."""
    passed: tuple[str, ...] = ()
    """Those that passed."""
    factor: float = 0.0


def _check_family(reckoner: ReferenceRunner, size: str, family: str) -> _Result:
    previous, drawn = reckoner.admission_draws(size, family, reckoner.scales(size)[family])
    assert drawn.expected is not None
    own = reckoner.compare(drawn, [Got.of(output.reference) for output in drawn.expected])
    if not own.ok:
        return _Result(fault=f"torch itself fails: {own.message}")
    if not all(output.sound for output in drawn.expected):
        return _Result(fault="torch at the task's precision is too far from float64 on the task's own inputs")
    assert previous.expected is not None
    earlier = [output.reference for output in previous.expected]
    answers = dict(trivial_answers(drawn.inputs, drawn.expected, earlier))
    passed = tuple(name for name, answer in answers.items() if reckoner.compare(drawn, answer).ok)
    factor = max((output.factor for output in drawn.expected), default=0.0)
    return _Result(tried=frozenset(answers), passed=passed, factor=factor)


def _verdict(family: str, results: Mapping[str, _Result]) -> tuple[bool, str]:
    """Whether a family is as it should be, in the light of the others at the same size."""
    result = results[family]
    if result.fault:
        return False, result.fault
    factor = f"tolerance factor {result.factor:.3g}"
    if not result.passed or family in _DEGENERATE:
        return True, f"torch passes, trivial answers fail, {factor}"
    names = ", ".join(result.passed)
    others = {name: other for name, other in results.items() if name not in (family, *_DEGENERATE) and not other.fault}
    exposed = [
        name
        for name, other in others.items()
        if set(result.passed) <= other.tried and not set(result.passed) & set(other.passed)
    ]
    if family == "task" and exposed:
        # The author's inputs may be of one sign only; every check draws the other families as well.
        return True, f"torch passes; a trivial answer ({names}) passes here and fails on {exposed[0]}, {factor}"
    return False, f"a trivial answer passes: {names}"
