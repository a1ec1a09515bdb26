"""Order and errors of modelled times against measured ones. Needs nothing but Python: GPU machines have no more."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from statistics import median
from typing import NamedTuple

APART = 1.1
"""Times closer than this are in no order."""
Times = Sequence[tuple[float, float]]
"""Pairs of a measured and a modelled time."""


class Order(NamedTuple):
    """Pairs of measured times, and how modelled times order them."""

    pairs: int
    right: float
    """Pairs in the right order; equal modelled times are half right."""
    inverted: int
    """Pairs in the wrong order whose measured times differ more than twofold."""

    def __add__(self, other: object) -> Order:
        """Both sets of pairs together."""
        if not isinstance(other, Order):
            return NotImplemented
        return Order(self.pairs + other.pairs, self.right + other.right, self.inverted + other.inverted)

    @property
    def tau(self) -> float:
        """Kendall's tau of the pairs that are apart."""
        return (2 * self.right - self.pairs) / self.pairs if self.pairs else 1.0

    @property
    def text(self) -> str:
        """Kendall's tau, and the share of pairs in the right order."""
        if not self.pairs:
            return "no pairs"
        share = self.right / self.pairs
        return f"tau {self.tau:.2f}, {self.right:.0f} of {self.pairs} pairs in order ({share:.1%})"


def order_of(times: Times) -> Order:
    """The pairs of times whose measured ones are apart."""
    pairs = inverted = 0
    right = 0.0
    for (a, x), (b, y) in itertools.combinations(times, 2):
        if max(a, b) < APART * min(a, b):
            continue
        pairs += 1
        agreed = 0.5 if x == y else float((a < b) == (x < y))
        right += agreed
        inverted += agreed == 0 and max(a, b) > 2 * min(a, b)
    return Order(pairs, right, inverted)


class Falls(NamedTuple):
    """Falls of the modelled time from one launch to another of the same problem, by their size."""

    real: tuple[int, int]
    """How many by ``least`` or more were falls of the measured time too, and of how many."""
    smaller: tuple[int, int]
    """The same of those that are less than that."""

    @property
    def text(self) -> str:
        words = [f"{real} of {count} ({real / count:.0%})" if count else "none" for real, count in self]
        return f"real {words[0]}; of the smaller ones {words[1]}"


def falls_of(problems: Iterable[Times], least: float) -> Falls:
    """Falls of the modelled time between launches of a problem, and how many of them are real."""
    counts = {True: [0, 0], False: [0, 0]}
    for times in problems:
        for pair in itertools.combinations(times, 2):
            (after, fast), (before, slow) = sorted(pair, key=lambda launch: launch[1])
            counted = counts[fast <= (1 - least) * slow]
            counted[0] += after < before
            counted[1] += 1
    return Falls(*((real, count) for real, count in counts.values()))


def scale_of(times: Times) -> float:
    """The factor on modelled times that brings their geometric mean to the measured ones'."""
    return math.exp(sum(math.log(measured / modelled) for measured, modelled in times) / len(times)) if times else 1.0


def mean_error(times: Times, scale: float = 1.0) -> float:
    """Mean absolute error of modelled times after a factor, as a share of the measured ones."""
    return sum(abs(scale * modelled / measured - 1) for measured, modelled in times) / len(times)


def errors_of(times: Times) -> str:
    """Mean absolute errors of modelled times, without a scale and with one."""
    scale = scale_of(times)
    spread = math.exp(sum(abs(math.log(scale * modelled / measured)) for measured, modelled in times) / len(times))
    plain, scaled = mean_error(times), mean_error(times, scale)
    return f"MAPE {plain:.0%}, with one scale ({scale:.2f}) {scaled:.0%}, geometric x{spread:.2f}"


class Agreement(NamedTuple):
    """Errors of a counted metric against a measured one, over launches."""

    launches: int
    exact: int
    """Equal to a millionth."""
    errors: tuple[float, ...]
    """Absolute errors as shares of the measured value, sorted; launches where it is 0 have none unless both are."""

    @property
    def median(self) -> float:
        return median(self.errors) if self.errors else 0.0

    def at_most(self, error: float) -> int:
        """Launches whose error is no larger."""
        return sum(each <= error for each in self.errors)

    def within(self, share: float) -> float:
        """The error that a share of the launches does not exceed."""
        return self.errors[int(share * (len(self.errors) - 1))] if self.errors else 0.0

    @property
    def text(self) -> str:
        return (
            f"equal {self.exact} of {self.launches}, median error {self.median:.2%}, "
            f"nine tenths within {self.within(0.9):.1%}"
        )


def agreement_of(values: Iterable[tuple[float, float]]) -> Agreement:
    """Agreement of pairs of a measured and a counted value."""
    pairs = list(values)
    exact = sum(abs(real - soft) <= 1e-6 * max(abs(real), 1.0) for real, soft in pairs)
    errors = sorted(abs(soft / real - 1) if real else 0.0 for real, soft in pairs if real or not soft)
    return Agreement(len(pairs), exact, tuple(errors))
