"""Part ``core``: a run of the built-in agents at sizes for a GPU, against the bandwidth of a copy there."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from benchmarks.gpu_parts.copying import measure_copy
from benchmarks.gpu_parts.machine import Machine
from benchmarks.gpu_parts.report import Report
from kernelforge.records import Budget, Run
from kernelforge.report import RunRecords, leaderboard
from kernelforge.report.views.board import Leaderboard
from kernelforge.report.views.run_records import TaskSummary
from kernelforge.run import Event, StopSignal, configure, start_run
from kernelforge.store import DATABASE_NAME, Store
from kernelforge.tasks import load_suite

SHARE = 0.85
"""Target: part of a copy's bandwidth, for tasks that are bound by it."""
SHARED = ("gelu", "swish", "bias_swish_scale", "softmax", "layernorm", "rmsnorm")
"""Elementwise tasks, softmax and norms: those the target is for."""
ROUNDS, TIMING_SECONDS, SEED = 4, 3.0, 1
RESERVE_S = 15.0
"""Of the part's time: what writing the board and closing children take."""


def core(machine: Machine, report: Report, tasks: Sequence[str] = (), rounds: int = ROUNDS) -> None:
    """Correct, fast_1, geometric mean, and each task's share of the bandwidth; writes ``board.json``."""
    folder = (report.folder or Path.cwd()) / "core"
    copy_gbps = measure_copy(machine.torch_device)
    report.facts["copy_gbps"] = round(copy_gbps, 1)
    limit = None if report.remaining == float("inf") else max(1.0, report.remaining - RESERVE_S)
    measure = machine.measure
    if not machine.device.startswith("emulated"):
        measure = measure.model_copy(update={"seconds": min(TIMING_SECONDS, measure.seconds)})
    config = configure(
        suite=str(machine.suite),
        tasks=tuple(tasks),
        device=machine.device,
        measure=measure,
        budget=Budget(rounds=rounds, wall_seconds=limit),
        seed=SEED,
    )
    with Store.open(folder / DATABASE_NAME) as store:
        run = start_run(config, store, _Watcher(report), StopSignal())
        records = RunRecords.load(store, store.run(run.id))
    summarise(records, copy_gbps, report)
    write_board(records, report)


class _Watcher:
    """Keeps what a run complains of."""

    def __init__(self, report: Report) -> None:
        self._report = report

    def on_event(self, event: Event) -> None:
        """A warning becomes a note."""
        if event.kind == "warning":
            self._report.note(f"{event.task or 'run'}: {event.message[:300]}")


def summarise(records: RunRecords, copy_gbps: float, report: Report) -> None:
    """Rows and figures of a finished run."""
    summaries = records.summaries
    shares: dict[str, float] = {}
    for summary in summaries:
        share = bandwidth_share(summary, copy_gbps)
        if share is not None:
            shares[summary.task] = share
        report.row(
            task=summary.task,
            verdict=None if summary.verdict is None else summary.verdict.value,
            attempts=summary.rounds,
            time_us=summary.time_us,
            speedup=summary.speedup,
            speedup_lower=summary.speedup_lower,
            speedup_eager=summary.speedup_eager,
            bound=summary.bound,
            share_of_copy=None if share is None else round(share, 3),
            finished=summary.finished,
        )
    board = leaderboard([records])
    entry = board.boards[0].entries[0] if board.boards else None
    correct = sum(summary.best is not None for summary in summaries)
    report.figure("correct", f"{correct} of {len(summaries)}", "all", met=correct == len(summaries))
    if entry is not None and entry.fast_p:
        fast = {summary.p: summary.value for summary in entry.fast_p}
        report.figure("fast_1, against the fastest baseline", f"{fast[1.0]:.0%}")
        for name, value in (("all tasks", entry.geomean_speedup), ("against eager, correct", entry.geomean_eager)):
            report.figure(f"geometric mean, {name}", "-" if value is None else f"{value.value:.3f}")
    names = [name for name in SHARED if any(summary.task == name for summary in summaries)]
    low = {name: shares.get(name, 0.0) for name in names}
    if low:
        worst = min(low, key=lambda name: low[name])
        report.figure(
            f"share of a copy's {copy_gbps:.0f} GB/s, least ({worst})",
            f"{low[worst]:.1%}",
            f">= {SHARE:.0%}",
            met=low[worst] >= SHARE,
        )


def bandwidth_share(summary: TaskSummary, copy_gbps: float) -> float | None:
    """Compulsory bytes per time of the best candidate, as a part of a copy's bandwidth."""
    if summary.time_us is None or summary.compulsory_bytes is None:
        return None
    return summary.compulsory_bytes / summary.time_us / 1e3 / copy_gbps


def write_board(records: RunRecords, report: Report) -> None:
    """``board.json``: the leaderboard with what made it, ready for ``results/reference``."""
    if report.folder is None:
        return
    path = report.folder / "board.json"
    path.write_text(json.dumps(reference_board(records, report), indent=1) + "\n", encoding="utf-8")
    report.note(f"the reference board is in {path.name}")


def reference_board(records: RunRecords, report: Report) -> dict[str, object]:
    """A run's board with its fingerprints, its configuration and the bandwidth that it is held against."""
    board: Leaderboard = leaderboard([records])
    fingerprints = {attempt.evaluation.fingerprint.model_dump_json() for attempt in records.attempts}
    run: Run = records.run
    return {
        "command": "python benchmarks/gpu.py --part core",
        "started": run.started,
        "ended": run.ended,
        "kernelforge": run.kernelforge,
        "suite": load_suite(run.config.suite).name,
        "suite_digest": run.config.suite_digest,
        "config": run.config.model_dump(mode="json") | {"suite": load_suite(run.config.suite).name},
        "fingerprints": [json.loads(text) for text in sorted(fingerprints)],
        "copy_gbps": report.facts.get("copy_gbps"),
        "figures": {figure.name: figure.value for figure in report.figures},
        "tasks": report.rows,
        "boards": board.model_dump(mode="json")["boards"],
    }
