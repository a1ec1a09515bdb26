"""Rounds that tasks leave, for those that are farthest from their floors: ``--allocate headroom``.

Speed-of-light guidance as in µCUTLASS (arXiv 2603.29010): a task whose best kernel is near the floor under its time
ends, and the rounds that it leaves go to tasks that can still gain. What each task gets is a function of the journalled
attempts and of which tasks are finished, so that ``resume`` goes on as the run would have.
"""

from __future__ import annotations

from collections.abc import Sequence

from kernelforge.agents.diagnosis.floor import NEAR
from kernelforge.records import Attempt
from kernelforge.search.base import best_attempt, is_step

SHARES = 4
"""Parts of a task's rounds, of which a task is granted one at a time. Ours."""


def headroom(best: Attempt | None) -> float | None:
    """A kernel's time as a multiple of the floor under its task's; None where one of them is not known."""
    if best is None or best.profile is None or best.evaluation.performance is None:
        return None
    floor_us, performance = best.profile.roofline.floor_us, best.evaluation.performance
    return None if floor_us is None or performance.quarantined is not None else performance.time_us / floor_us


def is_near_floor(best: Attempt | None) -> bool:
    """Whether a task's best kernel is so near its floor that more rounds would gain next to nothing."""
    ratio = headroom(best)
    return ratio is not None and ratio <= NEAR


class RoundPool:
    """The rounds of a run's tasks together.

    Args:
        rounds: of each task.
        tasks: how many tasks there are.
    """

    def __init__(self, rounds: int, tasks: int) -> None:
        self.rounds = rounds
        self.total = rounds * tasks
        self.share = max(1, rounds // SHARES)

    def allowance(self, attempts: Sequence[Attempt], task: str) -> int:
        """Steps after which a task waits: its own rounds, then one share more at a time, while there are any.

        Args:
            attempts: those of all tasks.
            task: the task.
        """
        steps = steps_of(attempts, task)
        shares = max(0, -(-(steps - self.rounds) // self.share))
        return self._within(attempts, steps, self.rounds + shares * self.share)

    def grants(self, attempts: Sequence[Attempt], finished: Sequence[str], most: int) -> dict[str, int]:
        """Tasks that get a share next, with their allowances: those with the largest headroom.

        A task that ended before its allowance did so by its strategy's rule, or near its floor: it gets nothing more.

        Args:
            attempts: those of all tasks.
            finished: finished tasks.
            most: how many tasks get a share.
        """
        waiting: dict[str, float] = {}
        for task in finished:
            best = best_attempt([attempt for attempt in attempts if attempt.task == task])
            ratio = headroom(best)
            if ratio is not None and ratio > NEAR and self._is_at_allowance(steps_of(attempts, task)):
                waiting[task] = ratio
        chosen_tasks = sorted(waiting, key=lambda task: (-waiting[task], task))[:most]
        unused = self.total - sum(is_step(attempt) for attempt in attempts)
        result: dict[str, int] = {}
        for task in chosen_tasks:
            grant = min(self.share, unused)
            if grant > 0:
                result[task] = steps_of(attempts, task) + grant
                unused -= grant
        return result

    def _is_at_allowance(self, steps: int) -> bool:
        return steps >= self.rounds and (steps - self.rounds) % self.share == 0

    def _within(self, attempts: Sequence[Attempt], steps: int, allowance: int) -> int:
        if allowance <= self.rounds:
            return allowance
        unused = self.total - sum(is_step(attempt) for attempt in attempts)
        return min(allowance, steps + max(0, unused))


def steps_of(attempts: Sequence[Attempt], task: str) -> int:
    """Rounds that a task has used."""
    return sum(attempt.task == task and is_step(attempt) for attempt in attempts)
