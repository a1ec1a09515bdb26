"""``contrast``: new candidates written from scored examples.

CUDA-L1's contrastive prompting, without the training: the Coder is shown earlier kernels of different speeds with their
scores, says what makes the fast one fast, and writes another. Correct kernels are bucketed by score; a proposal draws
distinct buckets, P(bucket) ~ exp(mean score / temperature), and from each bucket one kernel, all alike. (The paper
subtracts the mean of all scores in the exponent, which changes no probability.)

The score here is the logarithm of the speed relative to the first correct kernel: 0.69 is twice as fast. It means the
same for a measured and for a modelled time; the paper's is the speedup over the reference.

While nothing is correct, every proposal is a seed, because the paper's first stages sample and never repair; only a
wrong kernel that the search was started from is repaired, by the first samples. With one
bucket, the Coder sees one example. CUDA-L2 shows the profile in the prompt as well: ``metrics=subset``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, ClassVar

from pydantic import Field

from kernelforge.records import Attempt, Operator
from kernelforge.search.base import (
    GenerationalStrategy,
    Proposal,
    ShownMetrics,
    StrategyOptions,
    best_per_step,
    best_scoring,
    score,
)
from kernelforge.search.novelty import Likeness

ROUNDS = 20
"""Steps of a task by default. Ours: CUDA-L1 has no such number for one task; collecting its first kernels it gave each
model 20 tries at a task."""


class ContrastOptions(StrategyOptions):
    """Options of ``contrast``."""

    metrics: ShownMetrics = "none"
    """What the Coder sees of the profiles of its examples: nothing as in CUDA-L1, 24 metrics as in CUDA-L2, all, or the
    metrics with these names, spaces between them."""
    exemplars: int = Field(default=2, ge=2, le=5)
    """Kernels that the Coder is shown, each of another bucket. CUDA-L1: 2."""
    temperature: float = Field(default=0.5, gt=0, allow_inf_nan=False)
    """How evenly buckets are drawn: at 0.5, one that is twice as fast is four times as likely. Not published, ours."""
    bucket: float = Field(default=0.1, gt=0, allow_inf_nan=False)
    """Width of a bucket, in log speed: kernels less than about 10 % apart are alike. Not published, ours."""
    alike: float = Field(default=1.0, gt=0, le=1)
    """Token BLEU to a kernel of its bucket from which on a later one is a near copy, and is not shown. At 1, the
    default, only the same candidate is one. Ours: 0.9 separates copies from rewritten kernels; replies that
    repeat an exemplar fill a bucket otherwise."""
    samples: int = Field(default=4, ge=1)
    """Steps that draw from the same past, so that they can be asked for at once. Ours, in place of the group of replies
    that a training step compares."""


@dataclass(frozen=True)
class SpeedBucket:
    """Correct kernels with scores in [``low``, ``low`` + width)."""

    low: float
    mean: float
    attempts: tuple[Attempt, ...]


class Contrast(GenerationalStrategy[ContrastOptions]):
    """One task's contrastive search."""

    name: ClassVar[str] = "contrast"
    source: ClassVar[str] = "CUDA-L1 (arXiv 2507.14111); with metrics=subset, CUDA-L2 (arXiv 2512.02551)"
    Options = ContrastOptions

    def __init__(
        self, options: ContrastOptions, *, rounds: int | None = None, stop_after: int | None = None, coders: int = 1
    ) -> None:
        super().__init__(options, rounds=rounds, stop_after=stop_after, coders=coders)
        self._buckets: list[SpeedBucket] = []
        self._likeness = Likeness(options.alike) if options.alike < 1 else None

    @classmethod
    def default_rounds(cls, options: ContrastOptions) -> int:
        return ROUNDS

    def _size(self) -> int:
        return self.options.samples

    def _learn(self, attempts: Sequence[Attempt]) -> None:
        if self._likeness is not None:
            for attempt in attempts:
                self._likeness.add(attempt)
        self._buckets = bucketed(self.known, self.options.bucket, self._likeness)

    def _member(self, slot: int, rng: Random) -> Proposal:
        step = self._index * self.options.samples + slot
        coder = self.turn(step)
        exemplars = sample_bucket(self._buckets, self.options.exemplars, self.options.temperature, rng)
        if not exemplars and (best := best_scoring(self.known)) is not None:
            exemplars = [best]  # correct, but without a time: no score tells it from others
        if not exemplars and self._failed_start is not None:
            return Proposal(Operator.REPAIR, parent=self._failed_start.number, coder=coder, sample=slot)
        if not exemplars:
            return Proposal(Operator.SEED, coder=coder, sample=step)
        parent, *others = (attempt.number for attempt in exemplars)
        return Proposal(
            Operator.CONTRAST,
            parent=parent,
            inspirations=tuple(others),
            coder=coder,
            sample=slot,
        )

    def _state(self) -> dict[str, Any]:
        return {
            "buckets": [
                {"low": bucket.low, "mean": bucket.mean, "attempts": [attempt.number for attempt in bucket.attempts]}
                for bucket in self._buckets
            ]
        }


def bucketed(attempts: Sequence[Attempt], width: float, likeness: Likeness | None = None) -> list[SpeedBucket]:
    """Correct kernels by score, the slowest bucket first.

    A tuned child stands for its parent where it is faster; of equal candidates the first one counts.

    Args:
        likeness: has taken the attempts in; of kernels of a bucket that it says are alike the first one counts too.
    """
    first = next((value for attempt in attempts if (value := score(attempt)) is not None), 0.0)
    members: dict[int, list[tuple[float, Attempt]]] = {}
    seen: set[str] = set()
    for attempt in best_per_step(attempts):
        value = score(attempt)
        if value is None or attempt.evaluation.candidate in seen:
            continue
        seen.add(attempt.evaluation.candidate)
        bucket = members.setdefault(math.floor((value - first) / width), [])
        if likeness is None or not any(likeness.between(other.number, attempt.number) for _, other in bucket):
            bucket.append((value - first, attempt))
    return [
        SpeedBucket(
            low=index * width,
            mean=math.fsum(value for value, _ in members[index]) / len(members[index]),
            attempts=tuple(attempt for _, attempt in members[index]),
        )
        for index in sorted(members)
    ]


def sample_bucket(buckets: Sequence[SpeedBucket], count: int, temperature: float, rng: Random) -> list[Attempt]:
    """One kernel from each of ``count`` distinct buckets (of all, where there are fewer), the fastest first.

    Buckets are drawn one after the other without replacement, P ~ exp(mean / temperature) among those that are left;
    within a bucket all kernels are equally likely.
    """
    remaining, drawn = list(buckets), list[SpeedBucket]()
    while remaining and len(drawn) < count:
        highest = max(bucket.mean for bucket in remaining)
        weights = [math.exp((bucket.mean - highest) / temperature) for bucket in remaining]
        drawn.append(remaining.pop(rng.choices(range(len(remaining)), weights)[0]))
    drawn.sort(key=lambda bucket: -bucket.low)
    return [rng.choice(bucket.attempts) for bucket in drawn]
