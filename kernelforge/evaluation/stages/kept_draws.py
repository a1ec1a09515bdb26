"""Draws that the evaluations of one task share in training: made once for a batch of candidates.

A candidate's process is sent the inputs alone, as of any draw; what must come out stays with the oracle. A policy that
is trained could learn a draw that stays. So a batch ends after some evaluations or minutes (:class:`Batch`), a
share of the evaluations, chosen by their secrets, is checked again on fresh inputs, and neither the drawn size
nor the full size has a kept draw.
"""

from __future__ import annotations

from typing import Final

from kernelforge.evaluation.oracle.client import DrawHandle, Oracle
from kernelforge.records import content_hash

KEPT_BYTES: Final = 64 << 20
"""Inputs and weights that are kept for one task; the oracle has some times as much for what must come out."""
AUDITED: Final = 8
"""One evaluation of so many is checked again on fresh inputs."""


def is_audited(seed: int) -> bool:
    """Whether the evaluation of a secret seed is checked again on fresh inputs."""
    return int(content_hash(seed, "audit"), 16) % AUDITED == 0


class KeptDraws:
    """The kept draws of one task. Not for use by two threads at once.

    Args:
        oracle: the task's oracle; it keeps the expected outputs.
    """

    def __init__(self, oracle: Oracle) -> None:
        self._oracle = oracle
        self._draws: dict[tuple[str, str], DrawHandle] = {}
        self._bytes = self._child = 0
        self._seed: int | None = None
        """Of the batch; None where it was ended here."""

    def begin(self, seed: int) -> None:
        """Begin an evaluation; its secret seed is that of a new batch, if the last one has ended."""
        batch = self._oracle.begin_batch(seed)
        if batch != self._seed or self._child != self._oracle.children:
            self._release()
            self._seed = batch

    def of(self, size: str, family: str) -> DrawHandle | None:
        """The kept draw of a size and an input family, made where there is none yet; None where no more are kept.

        Raises:
            TaskError: the family is not admitted at this size.
        """
        if self._draws and self._child != self._oracle.children:
            self._forget_draws()  # the oracle's process was replaced: they went with it
        if (size, family) not in self._draws:
            if self._bytes > KEPT_BYTES:
                return None
            seed = int(content_hash(self._seed, self._oracle.task.name, size, family, "kept"), 16)
            draw = self._oracle.draw(size, family, seed, kept=True)
            self._child = self._oracle.children
            self._bytes += sum(map(len, draw.tensors.values())) + sum(map(len, draw.weights.values()))
            self._draws[size, family] = draw
        return self._draws[size, family]

    def forget(self) -> None:
        """End the batch, for every evaluator that shares it."""
        self._oracle.end_batch()
        self._release()
        self._seed = None

    def _release(self) -> None:
        if self._child == self._oracle.children:
            for draw in self._draws.values():
                self._oracle.release(draw.handle)
        self._forget_draws()

    def _forget_draws(self) -> None:
        self._draws.clear()
        self._bytes, self._child = 0, self._oracle.children
