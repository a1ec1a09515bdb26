"""Rounds of which a GPU measures some candidates only: those that are predicted to be the fastest.

A round is what a strategy can name at once: all samples of ``best-of-n``, a generation, one step of ``refine``. Its
candidates run on the emulated device in front of the GPU, all of them before the first is measured. A candidate without
a predicted time cannot be ruled out: it is measured besides the others, and has no rank.
"""

from __future__ import annotations

from collections.abc import Mapping

from kernelforge.evaluation.evaluator import BegunEvaluation
from kernelforge.records import Evaluation, Rank


class RoundRanking:
    """Ranks the candidates of one round after another.

    Args:
        measured: candidates of a round that are measured.
    """

    def __init__(self, measured: int) -> None:
        self._measured = measured
        self.steps = range(0)
        """Steps of the round under way."""
        self._begun: dict[int, BegunEvaluation | None] = {}

    def reach(self, step: int, named: int) -> None:
        """Go on to a step, from which on ``named`` steps can be named now; a step beyond the round begins the next."""
        if step not in self.steps:
            self.steps = range(step, step + named)
            self._begun = {}

    def lacks(self, step: int) -> bool:
        """Whether a step of the round was not begun."""
        return step in self.steps and step not in self._begun

    def begin(self, step: int, begun: BegunEvaluation | None) -> None:
        """Enter the evaluation of a step; None where the reply holds no candidate, or it could not be begun."""
        self._begun[step] = begun

    def rank(self, earlier: Mapping[int, Evaluation]) -> None:
        """Give a rank to every begun evaluation with a predicted time; equal candidates share one.

        Args:
            earlier: evaluations of the round that are concluded, by step: those of an earlier sitting.
        """
        timed = [
            (time, step, evaluation.candidate)
            for step, evaluation in earlier.items()
            if (time := predicted_us(evaluation)) is not None
        ]
        for step, begun in self._begun.items():
            screening = None if begun is None else begun.work.screening
            if step not in earlier and begun is not None and screening is not None and screening.forecast is not None:
                timed.append((screening.forecast.modelled_us, step, begun.candidate.hash))
        places: dict[str, int] = {}
        for _, _, candidate in sorted(timed):
            places.setdefault(candidate, len(places) + 1)
        for begun in self._begun.values():
            if begun is None or begun.candidate.hash not in places or begun.work.screening is None:
                continue
            rank = Rank(position=places[begun.candidate.hash], of=len(places), measured=self._measured)
            begun.work.screening = begun.work.screening.model_copy(update={"rank": rank})

    def take(self, step: int) -> BegunEvaluation | None:
        """The begun evaluation of a step, which is not kept any longer."""
        begun = self._begun.get(step)
        if begun is not None:
            self._begun[step] = None
        return begun


def predicted_us(evaluation: Evaluation) -> float | None:
    """Modelled time of a candidate before it was measured, in microseconds; None where there is none."""
    screening = evaluation.screening
    return None if screening is None or screening.forecast is None else screening.forecast.modelled_us
