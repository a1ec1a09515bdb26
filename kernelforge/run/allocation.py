"""Rounds that tasks leave, for those that are farthest from their floors: ``--allocate headroom``.

Speed-of-light guidance as in µCUTLASS (arXiv 2603.29010): a task whose best kernel is near the floor under its time
ends, and the rounds that it leaves go to tasks that can still gain. What each task gets is a function of the journalled
attempts and of which tasks are finished, so that ``resume`` goes on as the run would have.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kernelforge.agents.diagnosis.floor import NEAR, headroom
from kernelforge.records import Attempt
from kernelforge.search.base import best_attempt, is_step

SHARES = 4
"""Parts of a task's rounds, of which a task is granted one at a time. Ours."""


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
        if steps <= self.rounds:
            return self.rounds
        shares = -(-(steps - self.rounds) // self.share)
        return min(self.rounds + shares * self.share, steps + max(0, self._unused(attempts)))

    def grants(
        self, attempts: Sequence[Attempt], finished: Sequence[str], floors_us: Mapping[str, float], most: int
    ) -> dict[str, int]:
        """Tasks that get a share next, with their allowances: those with the largest headroom.

        A task that ended before its allowance did so by its strategy's rule, or near its floor: it gets nothing more.

        Args:
            attempts: those of all tasks.
            finished: finished tasks.
            floors_us: the floor under the time of each task that was reached.
            most: how many tasks get a share.
        """
        waiting: dict[str, float] = {}
        for task in finished:
            best = best_attempt([attempt for attempt in attempts if attempt.task == task])
            ratio = headroom(best, floors_us[task]) if task in floors_us else None
            if ratio is not None and ratio > NEAR and self._is_at_allowance(steps_of(attempts, task)):
                waiting[task] = ratio
        unused = self._unused(attempts)
        result: dict[str, int] = {}
        for task in sorted(waiting, key=lambda task: (-waiting[task], task))[:most]:
            grant = min(self.share, unused)
            if grant > 0:
                result[task] = steps_of(attempts, task) + grant
                unused -= grant
        return result

    def _is_at_allowance(self, steps: int) -> bool:
        return steps >= self.rounds and (steps - self.rounds) % self.share == 0

    def _unused(self, attempts: Sequence[Attempt]) -> int:
        return self.total - sum(map(is_step, attempts))


def steps_of(attempts: Sequence[Attempt], task: str) -> int:
    """Rounds that a task has used."""
    return sum(attempt.task == task and is_step(attempt) for attempt in attempts)
