"""Count the tasks of each suite that the built-in Coder's first design solves.

The first design (no moves: one thread per output element or row) is evaluated on an emulated device: values are
compared at every size within its reach, and the full size is profiled. Prints the outcomes and the share per suite, or
per pattern of ``--select``, with its target, and the reason of each task that is not OK. Exits with 1 when a target
is missed.

    python benchmarks/builtin.py [SUITE ...] [--select PATTERN ...] [--no-full | --only-full] [--moves MOVE,...]
                                 [--device NAME]

For KernelBench, after `kernelforge tasks import KernelBench --output suites/kernelbench`:

    python benchmarks/builtin.py suites/kernelbench --select level1 --select level2 --no-full
    python benchmarks/builtin.py suites/kernelbench --select "D*" --details

Two versions of the Coder are compared by what they write. ``--write FILE`` keeps the candidates of its designs with all
moves, with and without tensor cores, and evaluates nothing; a copy of this script does so in an older checkout too.
``--before FILE`` evaluates those and today's by today's evaluator, where they differ, and compares the modelled time of
the faster right one of each; with ``--only-full`` it profiles them there, and compares no values.

    python benchmarks/builtin.py level1 level2 --write before.json
    python benchmarks/builtin.py level1 level2 --before before.json [--only-full]
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from rich.console import Console
from rich.table import Table

from kernelforge.agents.builtin.coder import write
from kernelforge.agents.builtin.design import MOVES, Design
from kernelforge.errors import KernelForgeError, UnsupportedError
from kernelforge.evaluation import Evaluator, EvaluatorPool
from kernelforge.evaluation.stages.candidate_runs import EvaluationState
from kernelforge.evaluation.stages.compile_stage import StageFailed
from kernelforge.evaluation.stages.correctness import CorrectnessStage
from kernelforge.evaluation.stages.full_size import ModelledFullSize
from kernelforge.records import Candidate, SizeCheck, Task, Verdict
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


Sizes = Literal["all", "small", "full"]
"""Sizes that are checked: all, those shown and hidden but not the full one, or the full one alone."""


def outcome_of(evaluator: Evaluator, design: Design, sizes: Sizes) -> Outcome:
    """Write the design for a task and evaluate it, or check some sizes alone."""
    name = evaluator.task.name
    try:
        written = write(make_task_context(evaluator), design)
    except UnsupportedError as error:
        return Outcome(name, NOT_WRITTEN, str(error))
    candidate = Candidate(source=written.source, plan=written.plan)
    if sizes != "all":
        return _checked(evaluator, candidate, sizes)
    evaluation = evaluator.evaluate(candidate, seed=1).evaluation
    if evaluation.verdict is not Verdict.OK:
        return Outcome(name, str(evaluation.verdict), f"at {evaluation.stage}: {evaluation.reason}")
    assert evaluation.correctness is not None, "what is OK was checked"
    full = _full_size(evaluation.correctness.sizes)
    performance = evaluation.performance
    predicted = None if performance is None else performance.predicted
    speedup = "" if predicted is None else f"{predicted.speedup:.2g} ({predicted.low:.2g} to {predicted.high:.2g})"
    return Outcome(name, "OK", "", full, speedup)


def _full_size(checks: Sequence[SizeCheck]) -> str:
    """Summary of the full size's check: how far values were compared."""
    (check,) = (check for check in checks if check.size == "full")
    return check.message or f"{check.status}, all of it"


def _checked(evaluator: Evaluator, candidate: Candidate, sizes: Sizes) -> Outcome:
    work = EvaluationState(seed=1, source=candidate.source)
    try:
        evaluator.prepare(candidate, work)
        with evaluator.runs(work) as runs:
            evaluator.oracle.require_admitted()
            if sizes == "small":
                CorrectnessStage(runs, ()).check_all(candidate, evaluator.compiler)
                return Outcome(evaluator.task.name, "OK")
            result = ModelledFullSize(runs).check(profile=True)
    except StageFailed as failure:
        return Outcome(evaluator.task.name, str(failure.verdict), f"at {failure.stage}: {failure.reason}")
    time_us = None if result is None or result.performance is None else result.performance.time_us
    profile = "no profile" if time_us is None else f"profiled, {time_us:.6g} us"
    return Outcome(evaluator.task.name, "OK", "", f"{_full_size(work.checks)}; {profile}")


def outcomes(pool: EvaluatorPool, tasks: list[Task], design: Design, sizes: Sizes) -> Iterator[Outcome]:
    for task in tasks:
        start = time.perf_counter()
        try:
            evaluator = pool.evaluator(task)
            try:
                outcome = outcome_of(evaluator, design, sizes)
            finally:
                evaluator.close()
        except KernelForgeError as error:
            outcome = Outcome(task.name, NOT_JUDGED, str(error))
        seconds = time.perf_counter() - start
        parts = [part for part in outcome[1:] if part]
        print(f"{task.name}: {'; '.join(parts)} ({seconds:.1f} s)", file=sys.stderr, flush=True)
        yield outcome


BEST = (
    Design(tuple(move for move in MOVES if move not in ("tensor-cores", "block-shape"))),
    Design(tuple(move for move in MOVES if move != "block-shape")),
)
"""Designs with all moves; ``block-shape`` is for what ``vectorise`` cannot take."""

Texts = dict[str, list[tuple[str, str]]]
"""By task, candidates of :data:`BEST` as source, without the line that states its moves, and plan."""


def texts_of(evaluator: Evaluator) -> list[tuple[str, str]]:
    """Different candidates that the Coder writes for a task; none where it writes none."""
    context, texts = make_task_context(evaluator), []
    for design in BEST:
        try:
            written = write(context, design)
        except UnsupportedError:
            continue
        texts.append((written.source.partition("\n")[2], written.plan))
    return list(dict.fromkeys(texts))


def write_texts(pool: EvaluatorPool, tasks: list[Task], path: Path) -> int:
    """Write the candidates of every task to a file."""
    texts: Texts = {}
    for task in tasks:
        try:
            evaluator = pool.evaluator(task)
            try:
                texts[task.name] = texts_of(evaluator)
            finally:
                evaluator.close()
        except KernelForgeError as error:
            print(f"{task.name}: {error}", file=sys.stderr, flush=True)
    path.write_text(json.dumps(texts))
    return 0


def modelled_us(evaluator: Evaluator, candidate: Candidate, sizes: Sizes) -> float:
    """Modelled time of a candidate that is right, or whose full size is profiled; infinite without one."""
    if sizes == "full":
        work = EvaluationState(seed=1, source=candidate.source)
        try:
            evaluator.prepare(candidate, work)
            with evaluator.runs(work) as runs:
                performance = ModelledFullSize(runs).profile_alone().performance
        except StageFailed:
            return math.inf
    else:
        performance = evaluator.evaluate(candidate, seed=1).evaluation.performance
    return math.inf if performance is None else performance.time_us


def fastest_us(
    evaluator: Evaluator, texts: list[tuple[str, str]], modelled: dict[tuple[str, str], float], sizes: Sizes
) -> float:
    """Modelled time of the fastest candidate; infinite without one. ``modelled`` keeps times of each."""
    for text in texts:
        if text not in modelled:
            source, plan = text
            modelled[text] = modelled_us(evaluator, Candidate(source=source, plan=plan), sizes)
    return min((modelled[text] for text in texts), default=math.inf)


def compare_texts(pool: EvaluatorPool, tasks: list[Task], path: Path, sizes: Sizes) -> int:
    """Print how much faster candidates became, task by task and as a geometric mean."""
    before: Texts = {
        name: [(source, plan) for source, plan in texts] for name, texts in json.loads(path.read_text()).items()
    }
    same, ratios = 0, list[float]()
    for task in tasks:
        try:
            evaluator = pool.evaluator(task)
            try:
                texts = texts_of(evaluator)
                if texts == before.get(task.name, []):
                    same += 1
                    continue
                modelled: dict[tuple[str, str], float] = {}
                was, now = (fastest_us(evaluator, each, modelled, sizes) for each in (before.get(task.name, []), texts))
            finally:
                evaluator.close()
        except KernelForgeError as error:
            print(f"{task.name}: {error}", file=sys.stderr, flush=True)
            continue
        if math.isfinite(was + now):
            ratios.append(was / now)
        print(f"{task.name}: {was:.4g} us before, {now:.4g} us now", flush=True)
    if not ratios:
        print(f"{same} tasks with equal candidates; no other has a time on both sides")
        return 1
    faster = math.exp(sum(map(math.log, ratios)) / len(ratios))
    print(f"{same} tasks with equal candidates; {len(ratios)} others, geometric mean {faster:.2f} times as fast")
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("suites", nargs="*", default=["level1", "level2"], metavar="SUITE")
    parser.add_argument("--select", action="append", metavar="PATTERN", help="tasks, as for `kernelforge run --select`")
    some = parser.add_mutually_exclusive_group()
    some.add_argument(
        "--no-full", dest="sizes", action="store_const", const="small", default="all",
        help="leave out the full size: no profile, and much faster",
    )  # fmt: skip
    some.add_argument(
        "--only-full", dest="sizes", action="store_const", const="full",
        help="leave out the other sizes: no speedup, and OK of the full size alone",
    )  # fmt: skip
    parser.add_argument("--details", action="store_true", help="list every task, not only those that are not OK")
    parser.add_argument("--moves", default="", help="moves of the design, separated by commas; none for the first")
    parser.add_argument("--device", default="emulated:h100")
    texts = parser.add_mutually_exclusive_group()
    texts.add_argument("--write", type=Path, metavar="FILE", help="write candidates there, and evaluate nothing")
    texts.add_argument("--before", type=Path, metavar="FILE", help="compare with candidates of an older version")
    options = parser.parse_args()
    if options.sizes == "small" and (options.write or options.before):
        parser.error("--no-full leaves out the times: give it without --write and --before")
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
        if options.write or options.before:
            every = [task for _, selected in rows for task in selected]
            if options.write:
                return write_texts(pool, every, options.write)
            return compare_texts(pool, every, options.before, options.sizes)
        for label, selected in rows:
            ended = list(outcomes(pool, selected, design, options.sizes))
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
