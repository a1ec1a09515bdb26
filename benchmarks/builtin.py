"""Count the tasks of each suite that the built-in Coder's first design solves.

The first design (no moves: one thread per output element or row) is evaluated on an emulated device: values are
compared at every size within its reach, which leaves out the full size of the large tasks. Prints the share per suite
and its target, then each task that is not OK with the reason. Exits with 1 when a target is missed.

    python benchmarks/builtin.py [SUITE ...] [--task NAME ...] [--moves MOVE,...] [--device emulated:h100]
"""

from __future__ import annotations

import argparse
import sys
import time
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from kernelforge.agents.builtin.coder import write
from kernelforge.agents.builtin.design import Design
from kernelforge.errors import KernelForgeError, UnsupportedError
from kernelforge.evaluation import EvaluatorPool
from kernelforge.records import Candidate, Task
from kernelforge.run.task_loop import make_task_context
from kernelforge.tasks import load_suite

TARGETS = {"level1": 0.6, "level2": 0.4}


class Solved(NamedTuple):
    """Outcome of one task."""

    task: str
    ok: bool
    detail: str
    seconds: float


def solve(workshop: EvaluatorPool, task: Task, design: Design) -> Solved:
    """Write the design for one task and evaluate it."""
    start = time.perf_counter()

    def ended(ok: bool, detail: str) -> Solved:
        return Solved(task.name, ok, detail, time.perf_counter() - start)

    try:
        evaluator = workshop.evaluator(task)
    except KernelForgeError as error:
        return ended(False, f"the task has no evaluator: {error}")
    try:
        written = write(make_task_context(evaluator), design)
        candidate = Candidate(source=written.source, plan=written.plan)
        evaluation = evaluator.evaluate(candidate, seed=1).evaluation
    except UnsupportedError as error:
        return ended(False, f"not written: {error}")
    finally:
        evaluator.oracle.close()
    if evaluation.verdict == "OK":
        return ended(True, "")
    return ended(False, f"{evaluation.verdict} at {evaluation.stage}: {evaluation.reason}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("suites", nargs="*", default=list(TARGETS), metavar="SUITE")
    parser.add_argument("--task", action="append", help="only these tasks")
    parser.add_argument("--moves", default="", help="moves of the design, separated by commas; none for the first")
    parser.add_argument("--device", default="emulated:h100")
    options = parser.parse_args()
    design = Design(tuple(move for move in options.moves.split(",") if move))
    table = Table(title=f"the built-in Coder's {'first ' if not design.moves else ''}design on {options.device}")
    for column in ("suite", "tasks", "OK", "share", "target", "met"):
        table.add_column(column, justify="left" if column == "suite" else "right")
    missed: list[Solved] = []
    met = True
    with EvaluatorPool(options.device, threads=1) as workshop:
        for name in options.suites:
            tasks = [task for task in load_suite(name) if not options.task or task.name in options.task]
            solved = []
            for task in tasks:
                solved.append(solve(workshop, task, design))
                print(f"{name}/{task.name}: {solved[-1].detail or 'OK'} ({solved[-1].seconds:.1f} s)", file=sys.stderr)
            right = sum(outcome.ok for outcome in solved)
            share, target = right / max(len(solved), 1), TARGETS.get(name, 0.0)
            met = met and share >= target
            missed += [outcome._replace(task=f"{name}/{outcome.task}") for outcome in solved if not outcome.ok]
            table.add_row(
                name,
                str(len(solved)),
                str(right),
                f"{share:.0%}",
                f">= {target:.0%}",
                "yes" if share >= target else "NO",
            )
    console = Console(width=120)
    console.print(table)
    for outcome in missed:
        console.print(f"{outcome.task}: {outcome.detail}", highlight=False)
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
