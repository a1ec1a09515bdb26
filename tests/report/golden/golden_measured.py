"""Runs on a GPU that were never made: times, intervals and clocks are constructed, for tests alone."""

from __future__ import annotations

from typing import Any

from kernelforge.records import RunState, Task, Timing, Verdict
from tests.report.golden.golden_parts import BASELINES, Golden, make_task, make_timing
from tests.support import recorded_run

SHARED = ("softmax", "matmul", "argmax", "layer_norm", "gelu", "conv2d", "attention", "cumsum", "rope", "unstable")
"""Tasks that both runs have. Of ``measured-b`` against ``measured-a``: win, loss, tie, win (a failed), loss (b failed),
both failed, no ratio (a is quarantined), tie, win, tie by a wide interval."""
TASKS_A = (*SHARED, "only_in_a", "library_call")
TASKS_B = (*SHARED, "only_in_b")
TASKS_C = TASKS_A

_SPEEDS: dict[str, tuple[float | None, float | None, float | None]] = {
    # Time of a, b and c in microseconds; None fails.
    "softmax": (10.0, 7.5, 9.0),
    "matmul": (140.0, 180.0, 139.8),
    "argmax": (21.0, 21.01, 30.0),
    "layer_norm": (None, 15.0, None),
    "gelu": (8.0, None, 7.0),
    "conv2d": (None, None, 300.0),
    "cumsum": (33.0, 33.05, 33.0),
    "rope": (12.0, 6.0, 12.0),
    "unstable": (50.0, 47.0, 55.0),
}
_EAGER_US = {
    "softmax": 31.0, "matmul": 150.0, "argmax": 20.0, "layer_norm": 40.0, "gelu": 9.0, "conv2d": 250.0, "cumsum": 120.0,
    "rope": 24.0, "unstable": 60.0,
}  # fmt: skip


def measured_a() -> Golden:
    """Speedups above and below 1, and every cause for concern that a time can give."""
    golden = _run("20261120-100000-aaaa", TASKS_A, "refine", 0)
    ok = Verdict.OK
    attention = _task(golden, "attention")
    doubted = _timing(90.0, 4000.0, seed=1)
    golden.add(attention, ok, timing=doubted, time_us=90.0, quarantined="2.1 µs is below the floor of 44 µs")
    golden.add(
        attention, ok, parent=0, move="vectorise", time_us=95.0, timing=_timing(95.0, 4000.0, seed=2, agrees=False),
        accepted=True, quarantined="by the parent's clock one execution takes 152 µs, by the device's events 95 µs",
    )  # fmt: skip
    alone = _task(golden, "only_in_a")
    golden.add(alone, ok, accepted=True, untimed=True)
    golden.add(alone, Verdict.WRONG, "timing", parent=0, move="vectorise")
    golden.add(alone, Verdict.CRASH, "sanitizer", parent=0, move="shared_tiles")
    library = _task(golden, "library_call")
    golden.add(
        library, ok, accepted=True, time_us=100.0,
        timing=_timing(100.0, 101.0, seed=3, coverage=0.62, notes=("compile-max-autotune: Triton is not installed",)),
    )  # fmt: skip
    return golden


def measured_b() -> Golden:
    """Most of the same tasks under another strategy; wins, losses and ties against ``measured-a``."""
    golden = _run("20261120-110000-bbbb", TASKS_B, "best-of-n", 1, dollars=None)
    golden.add(_task(golden, "attention"), Verdict.OK, accepted=True, time_us=110.0, timing=_timing(110.0, 400.0))
    golden.add(_task(golden, "only_in_b"), Verdict.OK, accepted=True, time_us=11.0, timing=_timing(11.0, 44.0))
    return golden


def measured_c() -> Golden:
    """The tasks of ``measured-a`` under another strategy: both stand on one board."""
    golden = _run("20261120-120000-cccc", TASKS_C, "evolve", 2)
    for name in ("attention", "only_in_a", "library_call"):
        golden.add(_task(golden, name), Verdict.OK, accepted=True, time_us=80.0, timing=_timing(80.0, 96.0))
    return golden


def _run(run_id: str, names: tuple[str, ...], strategy: str, column: int, dollars: float | None = 0.03) -> Golden:
    hour = 10 + column
    run = recorded_run.make_run(
        run_id, device="cuda:0", tasks=names, strategy=strategy, coder="openai:model-x", state=RunState.FINISHED,
        started=f"2026-11-20T{hour}:00:00+00:00",
    ).model_copy(update={"ended": f"2026-11-20T{hour}:30:00+00:00"})  # fmt: skip
    golden = Golden(run, [make_task(name, level=1 + at % 3) for at, name in enumerate(names)])
    for at, (name, times) in enumerate(_SPEEDS.items()):
        task, time_us = _task(golden, name), times[column]
        if time_us is None:
            golden.add(task, Verdict.BUILD, "compile", dollars=dollars)
            golden.add(task, Verdict.WRONG, "hidden", parent=0, dollars=dollars)
            continue
        first = _timing(2.2 * time_us, _EAGER_US[name], seed=at)
        golden.add(
            task, Verdict.OK, accepted=True, time_us=2.2 * time_us, timing=first, dram_bytes=18e6, dollars=dollars
        )
        golden.add(
            task, Verdict.OK, parent=0, move="vectorise", accepted=True, time_us=time_us, dollars=dollars,
            timing=_timing(time_us, _EAGER_US[name], seed=at, **_trouble(name)), dram_bytes=9e6,
        )  # fmt: skip
    golden.finished = dict.fromkeys(names, "4 rounds are made")
    return golden


def _trouble(name: str) -> dict[str, Any]:
    if name == "unstable":
        return {"spread": 0.09, "settled": False}
    return {"throttled": ("SwPowerCap", "HwThermalSlowdown")} if name == "matmul" else {}


def _timing(time_us: float, eager_us: float, **how: Any) -> Timing:
    against = dict(zip(BASELINES, (1.0, 0.85, 0.7, 0.65), strict=True))
    return make_timing(time_us, {name: eager_us * part / time_us for name, part in against.items()}, **how)


def _task(golden: Golden, name: str) -> Task:
    return next(task for task in golden.tasks if task.name == name)
