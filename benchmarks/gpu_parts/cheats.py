"""Part ``cheats``: candidates that cheat, each with its honest twin."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchmarks.gpu_parts.machine import Machine, evaluator_of
from benchmarks.gpu_parts.report import Report
from kernelforge.evaluation import Evaluator
from kernelforge.evaluation.pool import EvaluatorPool
from kernelforge.records import Evaluation
from kernelforge.tasks import load_suite
from tests.adversarial.corpus import Case, read_cases

if TYPE_CHECKING:
    from kernelforge.modelnew.evaluator import ModelNewEvaluators

HONEST = 0.95
"""A cheat gains when it takes less than this share of its twin's time, and the time is believed."""

TWINS = ("gpu-honest-", "gpu-class-honest")
"""How the names of those begin that cheats are held against."""


def is_twin(case: Case) -> bool:
    """Whether cheats are held against its time."""
    return case.name.startswith(TWINS)


def read_cheats() -> list[Case]:
    """Cases of the corpus for a GPU; a twin stands before the cheats that are held against it."""
    return sorted((case for case in read_cases() if "gpu" in case.devices), key=lambda case: not is_twin(case))


@dataclass(frozen=True)
class Tried:
    """Outcome of a cheat."""

    cheat: Case
    evaluation: Evaluation
    seconds: float
    ratio: float | None
    """Its time over its twin's; None where one of the two was not timed."""

    @property
    def gained(self) -> bool:
        """Whether it is thought right and faster than honest work."""
        performance = self.evaluation.performance
        believed = performance is not None and performance.quarantined is None
        return believed and self.ratio is not None and self.ratio < HONEST

    @property
    def as_expected(self) -> bool:
        return self.evaluation.verdict.value in self.cheat.verdicts and (is_twin(self.cheat) or not self.gained)


def try_cheats(cheats: list[Case], machine: Machine) -> Iterator[Tried]:
    """Evaluate each in turn, those of one task and lane by one warm evaluator or bench."""
    suite = load_suite(machine.cheats)
    twins: dict[tuple[str, str], float] = {}
    with ExitStack() as stack:
        workshop: EvaluatorPool | None = None
        modelnew: ModelNewEvaluators | None = None
        evaluators: dict[str, Evaluator] = {}
        for cheat in cheats:
            task = suite.task(cheat.task)
            started = time.perf_counter()
            if cheat.language == "plan":
                workshop = workshop or stack.enter_context(machine.workshop())
                if task.name not in evaluators:
                    evaluators[task.name] = stack.enter_context(evaluator_of(workshop, task))
                evaluation = _by_plan(cheat, evaluators[task.name])
            else:
                modelnew = modelnew or stack.enter_context(machine.modelnew())
                seed = secrets.randbits(63)
                evaluation = modelnew.evaluate(task, cheat.candidate(), seed=seed).evaluation
            seconds = time.perf_counter() - started
            time_us = None if evaluation.performance is None else evaluation.performance.time_us
            if is_twin(cheat) and time_us is not None:
                twins[cheat.language, cheat.task] = time_us
            twin = twins.get((cheat.language, cheat.task))
            ratio = None if twin is None or time_us is None else time_us / twin
            yield Tried(cheat, evaluation, seconds, ratio)


def _by_plan(cheat: Case, evaluator: Evaluator) -> Evaluation:
    return evaluator.evaluate(cheat.candidate(), seed=secrets.randbits(63), profile=False).evaluation


def cheats(machine: Machine, report: Report, cases: list[Case] | None = None) -> None:
    """Every cheat: expected verdict, verdict, and time over the honest twin's."""
    todo = read_cheats() if cases is None else cases
    right = done = 0
    for tried in try_cheats(todo, machine):
        done += 1
        right += tried.as_expected
        performance = tried.evaluation.performance
        report.row(
            cheat=tried.cheat.name,
            expected="/".join(tried.cheat.verdicts),
            got=tried.evaluation.verdict.value,
            stage=tried.evaluation.stage,
            over_twin=None if tried.ratio is None else round(tried.ratio, 3),
            quarantined=None if performance is None else performance.quarantined,
            held=tried.as_expected,
            seconds=round(tried.seconds, 2),
            reason=tried.evaluation.reason[:160],
        )
        if done < len(todo) and report.out_of_time(done, len(todo)):
            break
    report.figure("cheats that ended as they should", f"{right} of {done}", "all", met=right == done)
