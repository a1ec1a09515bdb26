"""The main job against its targets: one run of suite core with the built-in agents.

Reports how long the run took, how many tasks ended OK with values compared at every size, how far the bandwidth-bound
ones end from the bytes they must move, and the least that an accepted move cut the counter it was made for. Exits with
1 when a target is missed.

    python benchmarks/core.py [--results FOLDER] [--seed 1]

With ``--results`` the latest run of that folder is judged and nothing is run.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from datetime import datetime
from pathlib import Path

from rich.console import Console
from rich.table import Table

from kernelforge.records import Attempt, Run, Task
from kernelforge.store import DATABASE_NAME, Store

SECONDS, TASKS_OK, DRAM_RATIO, CUT = 300.0, 15, 1.25, 0.10


def load(results: Path) -> tuple[Run, list[Task], list[Attempt]]:
    with Store.open(results / DATABASE_NAME, create=False) as store:
        run = store.run("latest")
        return run, store.tasks(run.id), store.attempts(run.id)


def best_of(attempts: list[Attempt], task: str) -> Attempt | None:
    return next((attempt for attempt in reversed(attempts) if attempt.task == task and attempt.accepted), None)


def passed_everywhere(attempt: Attempt | None) -> bool:
    """OK, and values were compared at every size: nothing guarded, nothing skipped."""
    if attempt is None or attempt.evaluation.correctness is None:
        return False
    return all(check.status == "passed" for check in attempt.evaluation.correctness.sizes)


def dram_ratio(attempt: Attempt | None) -> float:
    if attempt is None or attempt.profile is None:
        return float("inf")
    roofline = attempt.profile.roofline
    return roofline.dram_bytes / roofline.compulsory_bytes


def cut(attempt: Attempt, by_id: dict[str, Attempt]) -> float:
    """Relative fall (or rise, where the finding asks for one) of the first counter that the finding names."""
    parent = by_id[attempt.parent or ""]
    assert attempt.finding is not None
    assert attempt.profile is not None
    assert parent.profile is not None
    name = attempt.finding.metrics[0]
    before, after = (record.profile.value(name.removeprefix("+")) for record in (parent, attempt))
    assert before is not None
    assert after is not None
    change = (after - before) / before
    return change if name.startswith("+") else -change


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--results", type=Path)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        results = options.results or Path(folder)
        if options.results is None:
            command = [sys.executable, "-m", "kernelforge", "run", "--seed", str(options.seed), "--results", folder]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        run, tasks, attempts = load(results)
    assert run.ended is not None
    seconds = (datetime.fromisoformat(run.ended) - datetime.fromisoformat(run.started)).total_seconds()
    best = {task.name: best_of(attempts, task.name) for task in tasks}
    everywhere = sum(passed_everywhere(attempt) for attempt in best.values())
    bound = {task.name: dram_ratio(best[task.name]) for task in tasks if "bandwidth" in task.tags}
    worst = max(bound, key=lambda name: bound[name])
    by_id = {attempt.id: attempt for attempt in attempts}
    cuts = {attempt.id: cut(attempt, by_id) for attempt in attempts if attempt.accepted and attempt.finding is not None}
    least = min(cuts, key=lambda name: cuts[name])
    rows = [
        ("run, seconds", f"{seconds:.0f}", f"<= {SECONDS:.0f}", seconds <= SECONDS),
        (f"OK at all sizes, of {len(tasks)}", str(everywhere), f">= {TASKS_OK}", everywhere >= TASKS_OK),
        (
            f"DRAM bytes / compulsory, worst of {len(bound)} bandwidth-bound ({worst})",
            f"{bound[worst]:.4f}",
            f"<= {DRAM_RATIO}",
            bound[worst] <= DRAM_RATIO,
        ),
        (
            f"named counter cut, least of {len(cuts)} accepted moves ({least.removeprefix(run.id + '/')})",
            f"{cuts[least]:.1%}",
            f">= {CUT:.0%}",
            cuts[least] >= CUT,
        ),
    ]
    table = Table(title=f"suite core on {run.config.device}, {len(attempts)} attempts")
    for column in ("figure", "measured", "target", "met"):
        table.add_column(column, justify="left" if column == "figure" else "right")
    for figure, measured, target, met in rows:
        table.add_row(figure, measured, target, "yes" if met else "NO")
    Console(width=120).print(table)
    return 0 if all(met for *_, met in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
