"""What results must have in common to stand on one board."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import PurePath
from typing import Literal

from kernelforge.records import Evaluation, Origin, RunConfig, content_hash
from kernelforge.report.source import RunRecords
from kernelforge.report.summary import View

PRECISION = "float64 oracle, TF32 off, tolerance of the task's own error"
"""The one policy of arithmetic and tolerance: the oracle's reference in float64 unless the task says otherwise (the
suite's digest covers that), products and convolutions without TF32 in reference and baselines alike, and a tolerance
from the error that torch itself makes (``docs/tasks.md``). Another policy would have another name."""

_WORDS = {
    "suite_digest": "tasks and their policies (digest)",
    "task_set": "which tasks of the suite (digest)",
    "task_count": "number of tasks",
    "origin": "times",
    "protocol": "timing protocol",
}


class BoardKey(View):
    """Results with unequal keys never share a table."""

    device: str
    """The GPU by name where one measured; else the emulated device."""
    suite: str
    suite_digest: str
    """Names every task with its source, sizes and tolerance policy."""
    task_set: str
    """Names which of the suite's tasks were run."""
    task_count: int
    origin: Origin
    """Whether times are measured or modelled."""
    baseline: str
    """``fastest``: the fastest of eager, eager in a CUDA graph and torch.compile. ``eager`` under the protocol of
    KernelBench. ``none`` on a modelled board."""
    precision: str
    """Policy of arithmetic and tolerance: :data:`PRECISION`."""
    evaluator: str
    """Version of the evaluator, with limits that are not the default. Further tests that a run added are not part of
    it: they can only cost the run."""
    lane: str
    """``plan``, ``modelnew``, or both: host code plays another game than a launch plan."""
    protocol: str | None
    """Timing protocol; None where no run on the board has timed anything."""


def board_key(records: RunRecords) -> BoardKey:
    """Key of a run. One that timed nothing has no protocol: it fits the boards that differ in that alone."""
    return key_of(records.run.config, [attempt.evaluation for attempt in records.attempts])


def key_of(config: RunConfig, evaluations: Sequence[Evaluation]) -> BoardKey:
    """Key of a run with these evaluations."""
    timed = [evaluation.performance for evaluation in evaluations if evaluation.performance is not None]
    prints = [evaluation.fingerprint for evaluation in evaluations]
    measured = any(one.device_kind == "cuda" for one in prints) or (not prints and config.device.startswith("cuda"))
    published = config.measure.protocol == "kernelbench"
    return BoardKey(
        device=_joined(one.gpu or one.device for one in prints) or config.device,
        suite=PurePath(config.suite).name,
        suite_digest=config.suite_digest,
        task_set=content_hash("task set", sorted(config.tasks)),
        task_count=len(config.tasks),
        origin=Origin.MEASURED if measured else Origin.MODELLED,
        baseline=_baseline(measured, published),
        precision=PRECISION,
        evaluator=_joined(without_tests(one.evaluator) for one in prints),
        lane=_joined(evaluation.lane for evaluation in evaluations) or "plan",
        protocol=_joined(performance.protocol for performance in timed) or None,
    )


def without_tests(evaluator: str) -> str:
    """An evaluator's version without the digest of further tests, which :func:`evaluator_version` puts behind it."""
    return evaluator.partition("+tests.")[0]


def key_differences(a: BoardKey, b: BoardKey) -> tuple[str, ...]:
    """What keeps two results off one board: ``device: NVIDIA H200 and emulated:h100``; empty where nothing does.

    A missing timing protocol differs from none: whoever timed nothing fits every protocol.
    """
    found = []
    for name in BoardKey.model_fields:
        mine, theirs = getattr(a, name), getattr(b, name)
        if mine != theirs and not (name == "protocol" and None in (mine, theirs)):
            found.append(f"{_WORDS.get(name, name)}: {mine} and {theirs}")
    return tuple(found)


def settle(key: BoardKey, known: Sequence[BoardKey]) -> BoardKey:
    """The key of the board that a run belongs on; one that timed nothing, on the board that it failed to enter."""
    if key.protocol is not None:
        return key
    fitting = [one for one in known if not key_differences(one, key)]
    return max(fitting, key=lambda one: one.protocol or "", default=key)


def _baseline(measured: bool, published: bool) -> Literal["none", "eager", "fastest"]:
    if not measured:
        return "none"
    return "eager" if published else "fastest"


def _joined(names: Iterable[str]) -> str:
    return ", ".join(sorted(set(names)))
