"""The data of a leaderboard: its rows, and what makes entries comparable."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import PurePath

from kernelforge.records import Evaluation, Fingerprint, Message, Origin, RunConfig, Timing, Verdict, content_hash
from kernelforge.report.views import View, statistics
from kernelforge.report.views.curves import FastPoint, headline, per_task
from kernelforge.report.views.messages import total_cost
from kernelforge.report.views.run_records import DisplayedState, RunRecords, TaskSummary, is_uncompiled
from kernelforge.report.views.samples import (
    SampleCounts,
    compile_rate,
    mean_pass_at,
    sample_counts,
    translated,
    translation_likeness,
)
from kernelforge.report.views.statistics import Estimate
from kernelforge.translation.likeness import Likeness

PRECISION = "float64 oracle, TF32 off, tolerance of the task's own error"
"""The policy of arithmetic and tolerance: the oracle's reference in float64 unless the task says otherwise (the suite's
digest covers that), products and convolutions without TF32 in reference and baselines, and a tolerance from the error
that torch itself makes (``docs/tasks.md``). Another policy would have another name."""

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
    """Digest of every task with its source, sizes and tolerance policy."""
    task_set: str
    """Digest of the names of the tasks that were run."""
    task_count: int
    origin: Origin
    """Whether times are measured or modelled."""
    baseline: str
    """``fastest``: the fastest of eager, eager in a CUDA graph, torch.compile and, for a product, cuBLAS and cuBLASLt.
    ``fastest without compile``: the same where no task had torch.compile. ``eager`` under the protocol of KernelBench.
    ``none`` for a modelled board."""
    precision: str
    """Policy of arithmetic and tolerance: :data:`PRECISION`."""
    evaluator: str
    """Version of the evaluator, with limits that are not the default. Further tests of a run are not part of it: they
    can only lower its result."""
    lane: str
    """Candidate kind: ``plan``, ``modelnew``, or both. Results of host code and of launch plans are not comparable."""
    protocol: str | None
    """Timing protocol; None where no run on the board has timed a candidate."""


def board_key(records: RunRecords) -> BoardKey:
    """Key of a run. A run without timings has no protocol: it fits boards that differ in the protocol alone."""
    config = records.run.config
    # What was predicted and not measured stands on no board.
    evaluations = [attempt.evaluation for attempt in records.attempts if not attempt.evaluation.passed_over]
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
    """Timings of the evaluations that have a speedup."""
    speeds = [evaluation.performance for evaluation in evaluations if evaluation.performance is not None]
    return tuple(speed.timing for speed in speeds if speed.timing is not None and speed.speedup is not None)


def suite_name(config: RunConfig) -> str:
    """Name of a run's suite; for a suite given by path, the name of its folder or task file."""
    path = PurePath(config.suite)
    return (path.parent if path.name == "suite.toml" else path).name or config.suite


@dataclass(frozen=True)
class KeyParts:
    """Input of a key."""

    device: str
    """Device option of the run; used without attempts."""
    suite: str
    suite_digest: str
    tasks: Sequence[str]
    published: bool
    """Whether times were measured by the protocol of KernelBench."""
    fingerprints: Sequence[Fingerprint]
    lanes: Sequence[str]
    protocols: Sequence[str]
    """Of all timed attempts."""
    timings: Sequence[Timing]
    """Of the best attempts with a speedup."""

    def key(self) -> BoardKey:
        """The key."""
        prints = self.fingerprints
        kinds: set[str] = {fingerprint.device_kind for fingerprint in prints} or {self.device.partition(":")[0]}
        measured = "cuda" in kinds
        return BoardKey(
            device=_joined(fingerprint.gpu or fingerprint.device for fingerprint in prints) or self.device,
            suite=self.suite,
            suite_digest=self.suite_digest,
            task_set=content_hash("task set", sorted(self.tasks)),
            task_count=len(self.tasks),
            origin=Origin.MEASURED if measured else Origin.MODELLED,
            baseline=_baseline(measured, self.published, self.timings),
            precision=PRECISION,
            evaluator=_joined(without_tests(fingerprint.evaluator) for fingerprint in prints),
            lane=_joined(self.lanes) or "plan",
            protocol=_joined(self.protocols) or None,
        )


def without_tests(evaluator: str) -> str:
    """An evaluator's version without the digest of further tests, which :func:`evaluator_version` appends."""
    return evaluator.partition("+tests.")[0]


def key_differences(a: BoardKey, b: BoardKey) -> tuple[str, ...]:
    """Reasons why two results do not share a board: ``device: NVIDIA H200 and emulated:h100``; empty if they do.

    A missing timing protocol equals every protocol.
    """
    differences = []
    for name in BoardKey.model_fields:
        left_value, right_value = getattr(a, name), getattr(b, name)
        if left_value != right_value and not (name == "protocol" and None in (left_value, right_value)):
            differences.append(f"{_WORDS.get(name, name)}: {left_value} and {right_value}")
    return tuple(differences)


def matching_key(key: BoardKey, keys: Sequence[BoardKey]) -> BoardKey:
    """The key of a run's board; for a run without timings, that of the board with the latest protocol that fits."""
    if key.protocol is not None:
        return key
    fitting = [candidate for candidate in keys if not key_differences(candidate, key)]
    return max(fitting, key=lambda candidate: candidate.protocol or "", default=key)


def _baseline(measured: bool, published: bool, timings: Sequence[Timing]) -> str:
    if not measured:
        return "none"
    if published:
        return "eager"
    return FASTEST_UNCOMPILED if timings and not any(timing.compiled for timing in timings) else "fastest"


def _joined(names: Iterable[str]) -> str:
    return ", ".join(sorted(set(names)))


MONEY_DIGITS = 9
"""Sums of dollars are rounded to a billionth, so that the order of adding does not matter."""


class Verified(View):
    """Result of the verification of a submitted entry."""

    by: str
    """Host, device and version of KernelForge of the verification."""
    when: str
    """UTC, ISO 8601."""
    rerun: int
    """Tasks whose best candidate was evaluated again."""
    tasks: int
    """Tasks of the result."""
    agree: bool
    """Whether everything that was checked agrees."""

    @property
    def text(self) -> str:
        """The result of the verification in one line."""
        agrees = "everything that was checked agrees" if self.agree else "something DIFFERS"
        return f"{self.rerun} of {self.tasks} tasks evaluated again, {agrees}; {self.by}, {self.when}"


class Result(View):
    """Input of a board: one run, with a row per task."""

    key: BoardKey
    run: str
    by: str = ""
    """Submitter; empty for a run of this results folder."""
    note: str = ""
    """Note by the submitter."""
    digest: str | None = None
    """Digest of the submitted file."""
    verified: Verified | None = None
    started: str
    state: DisplayedState
    strategy: str
    coder: str
    judge: str
    confined: bool
    """False when untrusted code ran without a jail: shown, but never rewarded."""
    further_tests: bool = False
    """Whether it was also judged on a Tester's inputs, which can only lower its result."""
    starts: int = 0
    """Tasks whose search was started from a kernel that was there: what it ends with is not the Coder's alone."""
    attempts: int
    infra: int
    """Attempts that ended in INFRA: a fault of the machine, or unsupported here; not a statement about the
    candidate."""
    quarantined: int = 0
    """Attempts with a quarantined time: they have no speedup."""
    tokens: int | None = None
    """Of all models, input and output; None where a part is unknown."""
    dollars: float | None = None
    """Price of all model calls; None where a part is unknown."""
    compile_rate: float | None = None
    """Share of the samples that compile, of ``best-of-n`` on tasks with known translations; None otherwise, as are the
    following."""
    pass_at_1: float | None = None
    """Probability that a sample of a task is right, mean over tasks; None where a task has no sample yet."""
    pass_at_5: float | None = None
    """That one of five is, by the estimator of ``best-of-n``."""
    pass_at_10: float | None = None
    bleu: float | None = None
    """Of the samples' device code to that of the known translations, as one corpus; an entry has no samples."""
    codebleu: float | None = None
    """The same; None without the extra ``metrics``."""
    tasks: tuple[TaskSummary, ...]


class Entry(Result):
    """A result on a board, with its statistics. Intervals: :mod:`kernelforge.report.views.statistics`."""

    rank: int
    tasks_ok: int
    tasks_total: int
    uncompared: int = 0
    """Tasks whose best was compared only at smaller sizes: they are not correct."""
    correct: Estimate
    """Share of all tasks with a correct attempt."""
    median_dram_ratio: Estimate | None
    """Median over correct tasks of DRAM bytes over compulsory bytes."""
    fast_p: tuple[FastPoint, ...] = ()
    """Measured boards only, as are the following fields. The denominator is all tasks."""
    uncompiled: int = 0
    """Tasks with a speedup without torch.compile among their baselines: that baseline is weaker."""
    untimed: int = 0
    """Correct tasks without a measured speedup: they count for fast_0 only, and as 1 in ``geomean_speedup``."""
    median_speedup: Estimate | None = None
    """Median over correct tasks, against the board's baseline."""
    geomean_speedup: Estimate | None = None
    """Geometric mean over all tasks of max(speedup, 1), a failure as 1: the gain from deploying the better of both."""
    geomean_correct: Estimate | None = None
    """Geometric mean over correct tasks only; favours a run that fails the hard ones."""
    geomean_eager: Estimate | None = None
    """The same against eager PyTorch, as others publish it."""
    geomean_energy: Estimate | None = None
    """Geometric mean over correct tasks of the fastest baseline's energy over the candidate's, where measured."""
    win_rate: Estimate | None = None
    """Share of all tasks with a speedup above 1 beyond its noise."""
    floor_share: Estimate | None = None
    """Mean over all tasks of floor / time, a task without a time as 0. None where the GPU's bandwidth is unknown."""
    predicted_fast_1: Estimate | None = None
    """Modelled boards only, as is the next: share of all tasks that are predicted to be faster than eager PyTorch."""
    predicted_geomean: Estimate | None = None
    """Geometric mean over all tasks of max(predicted speedup over eager, 1), a failure as 1."""
    tokens_per_task: float | None
    """Over all tasks, solved or not."""
    dollars_per_task: float | None


class Board(View):
    """Comparable results."""

    key: BoardKey
    entries: tuple[Entry, ...]
    """Best first."""
    records: tuple[TaskSummary, ...]
    """The best result of any run on the board, per task."""


class Leaderboard(View):
    """All boards; results on different boards are not comparable."""

    boards: tuple[Board, ...]


def leaderboard(runs: Iterable[RunRecords]) -> Leaderboard:
    """Boards of runs; those with the newest run come first."""
    return boards_of(run_result(records) for records in runs if records.attempts)


def boards_of(results: Iterable[Result]) -> Leaderboard:
    """Boards of results; those with the newest result come first."""
    ranked = list(results)
    keys = [result.key for result in ranked if result.key.protocol is not None]
    settled = [(matching_key(result.key, keys), result) for result in ranked]
    settled.sort(key=lambda pair: pair[0].model_dump_json())
    boards = [_board(key, [result for _, result in group]) for key, group in groupby(settled, key=lambda pair: pair[0])]
    boards.sort(key=lambda board: max(entry.started for entry in board.entries), reverse=True)
    return Leaderboard(boards=tuple(boards))


def run_result(records: RunRecords) -> Result:
    """Board result of a run of this results folder."""
    run = records.run
    evaluations = [attempt.evaluation for attempt in records.attempts]
    tokens, dollars = token_and_dollar_totals(list(records.all_messages()), (*run.config.coders, run.config.judge))
    return Result.of(
        run,
        run.config,
        key=board_key(records),
        run=run.id,
        state=records.state,
        confined=all(evaluation.fingerprint.jail != "none" for evaluation in evaluations),
        further_tests=any(has_tests(evaluation.fingerprint.evaluator) for evaluation in evaluations),
        starts=len(run.config.starts),
        attempts=len(evaluations),
        infra=sum(evaluation.verdict is Verdict.INFRA for evaluation in evaluations),
        quarantined=sum(
            bool(evaluation.performance and evaluation.performance.quarantined) for evaluation in evaluations
        ),
        tokens=tokens,
        dollars=dollars,
        tasks=records.summaries,
        **translation_scores(
            [sample_counts(records, task) for task in translated(records)],
            translation_likeness(records),
            all_measured=run.config.measure_top is None,
        ),
    )


def translation_scores(
    counts: Sequence[SampleCounts], alike: Likeness | None, *, all_measured: bool
) -> dict[str, float | None]:
    """Scores of samples that translate, as a result has them; none without samples.

    Args:
        counts: Of each task with a known translation.
        alike: Likeness of the samples to these.
        all_measured: Whether each sample was measured; else there is no pass@k, for one that was not is not wrong.
    """
    rate = compile_rate(counts)
    if rate is None:
        return {}
    return {
        "compile_rate": rate,
        **{f"pass_at_{k}": mean_pass_at(k, counts) if all_measured else None for k in (1, 5, 10)},
        "bleu": alike.bleu if alike else None,
        "codebleu": alike.codebleu if alike else None,
    }


def has_tests(evaluator: str) -> bool:
    """Whether further tests were in use."""
    return evaluator != without_tests(evaluator)


def token_and_dollar_totals(messages: Sequence[Message], agents: Sequence[str]) -> tuple[int | None, float | None]:
    """Tokens and dollars of messages; None where a part is unknown.

    The built-in agents cost nothing. Other agents without a price (an exchange folder, an agent that submits by itself)
    have an unknown cost.
    """
    replies = [message for message in messages if message.role == "reply" and message.provider != "builtin"]
    if any(reply.usage is None for reply in replies) or (not replies and set(agents) - {"builtin", "none", ""}):
        return None, None
    cost = total_cost(replies)
    counted = cost.input_tokens is not None and cost.output_tokens is not None
    dollars = None if cost.dollars is None else round(cost.dollars, MONEY_DIGITS)
    return (cost.input_tokens or 0) + (cost.output_tokens or 0) if counted else None, dollars


def _board(key: BoardKey, results: Sequence[Result]) -> Board:
    entries = sorted((_entry(key, result) for result in results), key=_standing)
    ranked = tuple(entry.model_copy(update={"rank": rank}) for rank, entry in enumerate(entries, 1))
    names = [task.task for task in results[0].tasks]
    best = tuple(
        min((task for entry in ranked for task in entry.tasks if task.task == name), key=_merit) for name in names
    )
    return Board(key=key, entries=ranked, records=best)


def _standing(entry: Entry) -> tuple[float | str, ...]:
    """Sort key, best first: fast_1 when measured, the geometric mean of measured or predicted speedups, correctness."""
    fast_1 = next((point.value for point in entry.fast_p if point.p == 1.0), 0.0)
    geomean = entry.geomean_speedup or entry.predicted_geomean
    gain = geomean.value if geomean else 0.0
    return (-fast_1, -gain, -entry.correct.value, entry.attempts, entry.started, entry.run, entry.digest or "")


def _merit(task: TaskSummary) -> tuple[float, ...]:
    """Sort key, best first. Predicted speedups of a task have the order of its modelled times."""
    # A measured time that is not believed, or was compared with nothing, beats none that was.
    doubtful = task.origin is Origin.MEASURED and task.speedup is None
    return (not task.correct, task.best is None, doubtful, math.inf if task.time_us is None else task.time_us)


def _entry(key: BoardKey, result: Result) -> Entry:
    tasks = result.tasks
    count = len(tasks)
    solved = [task.correct for task in tasks]
    correct = statistics.correct_share(solved)
    assert correct is not None  # a run has tasks
    return Entry.model_validate(
        {
            **dict(result),
            "key": key,
            "rank": 0,
            "tasks_ok": sum(solved),
            "uncompared": sum(task.best is not None and task.uncompared for task in tasks),
            "tasks_total": count,
            "correct": correct,
            "median_dram_ratio": statistics.median_correct(per_task(tasks, "dram_ratio")),
            "tokens_per_task": None if result.tokens is None else result.tokens / count,
            "dollars_per_task": None if result.dollars is None else result.dollars / count,
            **(_speeds(key, tasks, solved) if key.origin is Origin.MEASURED else _predicted(tasks)),
        }
    )


def _predicted(tasks: Sequence[TaskSummary]) -> dict[str, object]:
    """Predicted statistics of a modelled result."""
    shared = headline(tasks, measured=False)
    return {"predicted_fast_1": shared.predicted_fast_1, "predicted_geomean": shared.predicted_geomean}


def _speeds(key: BoardKey, tasks: Sequence[TaskSummary], solved: Sequence[bool]) -> dict[str, object]:
    """Speed statistics of a measured result."""
    speedups = per_task(tasks, "speedup")
    points = [(p, statistics.fast_p(speedups, p, solved)) for p in statistics.FAST_P]
    shared = headline(tasks, measured=True)
    return {
        **{name: getattr(shared, name) for name in _SHARED},
        "fast_p": tuple(FastPoint(p=p, **dict(share)) for p, share in points if share is not None),
        "uncompiled": 0 if key.baseline == "eager" else sum(map(is_uncompiled, tasks)),
        "untimed": sum(ok and math.isnan(speedup) for ok, speedup in zip(solved, speedups, strict=True)),
        "median_speedup": statistics.median_correct(speedups),
        "geomean_eager": statistics.geomean_correct(per_task(tasks, "speedup_eager")),
        "geomean_energy": statistics.geomean_correct(per_task(tasks, "energy_ratio")),
    }


_SHARED = ("geomean_speedup", "geomean_correct", "win_rate", "floor_share")
"""Statistics of an entry that are also headline numbers of its run."""
