"""What results must have in common to stand on one board."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import PurePath

from kernelforge.records import Evaluation, Fingerprint, Origin, RunConfig, Timing, content_hash
from kernelforge.report.views.base import View
from kernelforge.report.views.source import RunRecords

PRECISION = "float64 oracle, TF32 off, tolerance of the task's own error"
"""The one policy of arithmetic and tolerance: the oracle's reference in float64 unless the task says otherwise (the
suite's digest covers that), products and convolutions without TF32 in reference and baselines alike, and a tolerance
from the error that torch itself makes (``docs/tasks.md``). Another policy would have another name."""

FASTEST_UNCOMPILED = "fastest without compile"

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
    """``fastest``: the fastest of eager, eager in a CUDA graph and torch.compile. ``fastest without compile``: the same
    where torch.compile was there at no task. ``eager`` under the protocol of KernelBench. ``none`` on a modelled
    board."""
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
    config = records.run.config
    evaluations = [attempt.evaluation for attempt in records.attempts]
    return KeyParts(
        device=config.device,
        suite=suite_name(config),
        suite_digest=config.suite_digest,
        tasks=config.tasks,
        published=config.measure.protocol == "kernelbench",
        fingerprints=[evaluation.fingerprint for evaluation in evaluations],
        lanes=[evaluation.lane for evaluation in evaluations],
        protocols=[evaluation.performance.protocol for evaluation in evaluations if evaluation.performance is not None],
        timings=timings_of(best.evaluation for best in records.bests() if best is not None),
    ).key()


def timings_of(evaluations: Iterable[Evaluation]) -> tuple[Timing, ...]:
    """How the speedups of evaluations came about, of those that have one."""
    speeds = [one.performance for one in evaluations if one.performance is not None]
    return tuple(speed.timing for speed in speeds if speed.timing is not None and speed.speedup is not None)


def suite_name(config: RunConfig) -> str:
    """Name of a run's suite; of one that was given by its path, that of the folder or of the task file."""
    path = PurePath(config.suite)
    return (path.parent if path.name == "suite.toml" else path).name or config.suite


@dataclass(frozen=True)
class KeyParts:
    """What a key is made of."""

    device: str
    """As the run was told; for one without attempts."""
    suite: str
    suite_digest: str
    tasks: Sequence[str]
    published: bool
    """Whether times were taken as KernelBench publishes them."""
    fingerprints: Sequence[Fingerprint]
    lanes: Sequence[str]
    protocols: Sequence[str]
    """Of whatever was timed."""
    timings: Sequence[Timing]
    """Of each task's best that has a speedup."""

    def key(self) -> BoardKey:
        """The key."""
        prints = self.fingerprints
        measured = any(one.device_kind == "cuda" for one in prints) or (not prints and self.device.startswith("cuda"))
        return BoardKey(
            device=_joined(one.gpu or one.device for one in prints) or self.device,
            suite=self.suite,
            suite_digest=self.suite_digest,
            task_set=content_hash("task set", sorted(self.tasks)),
            task_count=len(self.tasks),
            origin=Origin.MEASURED if measured else Origin.MODELLED,
            baseline=_baseline(measured, self.published, self.timings),
            precision=PRECISION,
            evaluator=_joined(without_tests(one.evaluator) for one in prints),
            lane=_joined(self.lanes) or "plan",
            protocol=_joined(self.protocols) or None,
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


def _baseline(measured: bool, published: bool, timings: Sequence[Timing]) -> str:
    if not measured:
        return "none"
    if published:
        return "eager"
    return FASTEST_UNCOMPILED if timings and not any(timing.compiled for timing in timings) else "fastest"


def _joined(names: Iterable[str]) -> str:
    return ", ".join(sorted(set(names)))
