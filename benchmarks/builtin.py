"""Count the tasks of each suite that the built-in Coder's first design solves.

The first design (no moves: one thread per output element or row) is evaluated on an emulated device: values are
compared at every size within its reach, and the full size is profiled. Prints the outcomes and the share per suite, or
per pattern of ``--select``, with its target, and the reason of each task that is not OK. Exits with 1 when a target
is missed.

    python benchmarks/builtin.py [SUITE ...] [--select PATTERN ...] [--no-full] [--moves MOVE,...] [--device NAME]

For KernelBench, after `kernelforge tasks import KernelBench --output suites/kernelbench`:

    python benchmarks/builtin.py suites/kernelbench --select level1 --select level2 --no-full
    python benchmarks/builtin.py suites/kernelbench --select "D*" --details
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from kernelforge.agents.builtin.coder import write
from kernelforge.agents.builtin.design import Design
from kernelforge.errors import KernelForgeError, UnsupportedError
from kernelforge.evaluation import Evaluator, EvaluatorPool
from kernelforge.evaluation.stages.candidate_runs import EvaluationState
from kernelforge.evaluation.stages.compile_stage import StageFailed
from kernelforge.evaluation.stages.correctness import CorrectnessStage
from kernelforge.records import Candidate, Task, Verdict
from kernelforge.run.task_loop import make_task_context
from kernelforge.tasks import load_suite
from kernelforge.tasks.selection import selected_names

TARGETS = {"level1": 0.9, "level2": 0.85, "D*": 22 / 24}
NOT_WRITTEN, NOT_JUDGED = "not written", "not judged"


class Outcome(NamedTuple):
    """Result of one task."""

    task: str
    result: str
    """The verdict, or that nothing was written, or that the task itself could not be judged."""
    detail: str = ""
    full: str = ""
    """How far values were compared at the full size."""
    speedup: str = ""
    """As predicted over eager PyTorch, with its 90 % interval."""


def outcome_of(evaluator: Evaluator, design: Design, full: bool) -> Outcome:
    """Write the design for a task and evaluate it, or check the shown and hidden sizes alone."""
    name = evaluator.task.name
    try:
        written = write(make_task_context(evaluator), design)
    except UnsupportedError as error:
        return Outcome(name, NOT_WRITTEN, str(error))
    candidate = Candidate(source=written.source, plan=written.plan)
    if not full:
        return _checked(evaluator, candidate)
    evaluation = evaluator.evaluate(candidate, seed=1).evaluation
    if evaluation.verdict is not Verdict.OK:
        return Outcome(name, str(evaluation.verdict), f"at {evaluation.stage}: {evaluation.reason}")
    assert evaluation.correctness is not None, "what is OK was checked"
    (check,) = (check for check in evaluation.correctness.sizes if check.size == "full")
    performance = evaluation.performance
    predicted = None if performance is None else performance.predicted
    speedup = "" if predicted is None else f"{predicted.speedup:.2g} ({predicted.low:.2g} to {predicted.high:.2g})"
    return Outcome(name, "OK", "", check.message or f"{check.status}, all of it", speedup)


def _checked(evaluator: Evaluator, candidate: Candidate) -> Outcome:
    work = EvaluationState(seed=1, source=candidate.source)
    try:
        evaluator.prepare(candidate, work)
        with evaluator.runs(work) as runs:
            evaluator.oracle.require_admitted()
            CorrectnessStage(runs, ()).check_all(candidate, evaluator.compiler)
    except StageFailed as failure:
        return Outcome(evaluator.task.name, str(failure.verdict), f"at {failure.stage}: {failure.reason}")
    return Outcome(evaluator.task.name, "OK")


def outcomes(pool: EvaluatorPool, tasks: list[Task], design: Design, full: bool) -> Iterator[Outcome]:
    for task in tasks:
        start = time.perf_counter()
        try:
            evaluator = pool.evaluator(task)
            try:
                outcome = outcome_of(evaluator, design, full)
            finally:
                evaluator.close()
        except KernelForgeError as error:
            outcome = Outcome(task.name, NOT_JUDGED, str(error))
        seconds = time.perf_counter() - start
        parts = [part for part in outcome[1:] if part]
        print(f"{task.name}: {'; '.join(parts)} ({seconds:.1f} s)", file=sys.stderr, flush=True)
        yield outcome


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("suites", nargs="*", default=["level1", "level2"], metavar="SUITE")
    parser.add_argument("--select", action="append", metavar="PATTERN", help="tasks, as for `kernelforge run --select`")
    parser.add_argument("--no-full", action="store_true", help="leave out the full size: no profile, and much faster")
    parser.add_argument("--details", action="store_true", help="list every task, not only those that are not OK")
    parser.add_argument("--moves", default="", help="moves of the design, separated by commas; none for the first")
    parser.add_argument("--device", default="emulated:h100")
    options = parser.parse_args()
    design = Design(tuple(move for move in options.moves.split(",") if move))
    table = Table(title=f"the built-in Coder's {'first ' if not design.moves else ''}design on {options.device}")
    for column in ("tasks", "number", "OK", "share", "target", "others"):
        table.add_column(column, justify="left" if column in ("tasks", "others") else "right")
    rows: list[tuple[str, list[Task]]] = []
    for suite in options.suites:
        tasks = {task.name: task for task in load_suite(suite)}
        for pattern in options.select or ["*"]:
            names = selected_names([pattern], list(tasks), f"suite '{suite}'")
            rows.append((pattern if options.select else suite, [tasks[name] for name in names]))
    listed: list[Outcome] = []
    met = True
    with EvaluatorPool(options.device, threads=1) as pool:
        for label, selected in rows:
            ended = list(outcomes(pool, selected, design, not options.no_full))
            counts = Counter(outcome.result for outcome in ended)
            share, target = counts["OK"] / len(ended), TARGETS.get(label, 0.0)
            met = met and share >= target
            others = ", ".join(f"{result} {count}" for result, count in counts.most_common() if result != "OK")
            table.add_row(label, str(len(ended)), str(counts["OK"]), f"{share:.0%}", f"{target:.0%}", others or "none")
            listed += [outcome for outcome in ended if options.details or outcome.result != "OK"]
    console = Console(width=120)
    console.print(table)
    for outcome in listed:
        console.print(" | ".join(part for part in outcome if part), highlight=False, markup=False, soft_wrap=True)
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
