"""Polynomials of a C function's whole numbers, and what they can at most and at least be.

Every parameter is at least 1. A loop's variable, and what stands for a quotient or remainder, has bounds that are
polynomials of what surrounds it; their names have an ``@``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Final

Monomial = tuple[str, ...]
_MOST_TERMS: Final = 200
"""Of a polynomial; what would have more has no known bounds."""


@dataclass(frozen=True)
class Polynomial:
    """Whole coefficients by the sorted names of a product."""

    terms: tuple[tuple[Monomial, int], ...] = ()

    @staticmethod
    def of(terms: Mapping[Monomial, int]) -> Polynomial:
        return Polynomial(tuple(sorted((key, value) for key, value in terms.items() if value)))

    @staticmethod
    def constant(value: int) -> Polynomial:
        return Polynomial.of({(): value})

    @staticmethod
    def symbol(name: str) -> Polynomial:
        return Polynomial.of({(name,): 1})

    def __add__(self, other: Polynomial) -> Polynomial:
        terms = dict(self.terms)
        for key, value in other.terms:
            terms[key] = terms.get(key, 0) + value
        return Polynomial.of(terms)

    def __neg__(self) -> Polynomial:
        return Polynomial(tuple((key, -value) for key, value in self.terms))

    def __sub__(self, other: Polynomial) -> Polynomial:
        return self + -other

    def __mul__(self, other: Polynomial) -> Polynomial:
        terms: dict[Monomial, int] = {}
        for key, value in self.terms:
            for further, factor in other.terms:
                both = tuple(sorted((*key, *further)))
                terms[both] = terms.get(both, 0) + value * factor
        return Polynomial.of(terms)

    @property
    def names(self) -> frozenset[str]:
        return frozenset(name for key, _ in self.terms for name in key)

    @property
    def number(self) -> int | None:
        """Its value where it has no names."""
        return None if self.names else sum(value for _, value in self.terms)

    def coefficient(self, name: str) -> Polynomial | None:
        """The factor of ``name``; None where it is multiplied by itself."""
        if any(key.count(name) > 1 for key, _ in self.terms):
            return None
        return Polynomial.of({tuple(x for x in key if x != name): value for key, value in self.terms if name in key})

    def without(self, name: str) -> Polynomial:
        """The terms that do not have ``name``."""
        return Polynomial(tuple(item for item in self.terms if name not in item[0]))

    def value(self, numbers: Mapping[str, int]) -> int:
        total = 0
        for key, value in self.terms:
            for name in key:
                value *= numbers[name]
            total += value
        return total

    def text(self, names: Mapping[str, str], first: str = "") -> str:
        """As an expression of Python or C.

        Args:
            first: stands in front of each product of names.
        """
        parts = []
        for key, value in sorted(self.terms, key=lambda item: (-len(item[0]), item)):
            factors = [names[name] for name in key]
            if abs(value) != 1 or not factors:
                factors.insert(0, str(abs(value)))
            sign = "-" if value < 0 else "+"
            parts.append(f"{sign} {first if key else ''}{' * '.join(factors)}")
        text = " ".join(parts).removeprefix("+ ") or "0"
        return f"-{text[2:]}" if text.startswith("- ") else text


ZERO, ONE = Polynomial.constant(0), Polynomial.constant(1)


def at_least_zero(polynomial: Polynomial) -> bool:
    """Whether it is 0 or more for all parameters, which are 1 or more: in ``name - 1`` no coefficient is negative."""
    terms: dict[Monomial, int] = {}
    if any("@" in name for name in polynomial.names):
        return False
    if len(polynomial.terms) > _MOST_TERMS or any(len(key) > 8 for key, _ in polynomial.terms):
        return False
    for key, value in polynomial.terms:
        for count in range(len(key) + 1):
            for some in combinations(key, count):
                terms[some] = terms.get(some, 0) + value
    return all(value >= 0 for value in terms.values())


@dataclass(frozen=True)
class Scope:
    """Bounds of names, the innermost last, and what is known to be at most 0."""

    bounds: tuple[tuple[str, Polynomial, Polynomial], ...] = ()
    facts: tuple[Polynomial, ...] = ()

    def bounded(self, name: str, low: Polynomial, high: Polynomial) -> Scope:
        return Scope((*self.bounds, (name, low, high)), self.facts)

    def knowing(self, facts: Iterable[Polynomial]) -> Scope:
        return Scope(self.bounds, (*self.facts, *facts))

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(name for name, _, _ in self.bounds)

    def most(self, polynomial: Polynomial, over: Sequence[str] | None = None) -> Polynomial | None:
        """Its upper bound, in names that have no bounds; None where that is unknown.

        Args:
            over: names to eliminate; all with bounds if left out.
        """
        bounds = self._mosts(polynomial, over)
        least = [bound for bound in bounds if all(at_least_zero(other - bound) for other in bounds)]
        return next(iter([*least, *bounds]), None)

    def _mosts(self, polynomial: Polynomial, over: Sequence[str] | None = None) -> list[Polynomial]:
        """Upper bounds that are known, that of the names' bounds first."""
        bounded = self.names if over is None else over
        plain = self._eliminated(polynomial, bounded)
        # Where a fact is at most 0, what is less by it is at least as large.
        reduced = [polynomial - fact for fact in (self.facts if over is None else ())]
        bounds = [] if plain is None else [plain]
        return [*bounds, *(bound for bound in reduced if not bound.names & set(bounded))]

    def _eliminated(self, polynomial: Polynomial, bounded: Sequence[str]) -> Polynomial | None:
        for name, low, high in reversed(self.bounds):
            if name not in bounded or name not in polynomial.names:
                continue
            factor = polynomial.coefficient(name)
            if factor is None:
                return None
            rest = polynomial.without(name)
            if self._sign(factor) > 0:
                polynomial = rest + factor * self._upper(name, high)
            elif self._sign(factor) < 0:
                polynomial = rest + factor * self._lower(name, low)
            else:
                return None
            if len(polynomial.terms) > _MOST_TERMS:
                return None
        return polynomial if not polynomial.names & set(bounded) else None

    def least(self, polynomial: Polynomial, over: Sequence[str] | None = None) -> Polynomial | None:
        """Its lower bound; as :meth:`most`."""
        most = self.most(-polynomial, over)
        return None if most is None else -most

    def not_negative(self, polynomial: Polynomial) -> bool:
        """Whether it is surely 0 or more."""
        return any(at_least_zero(-most) for most in self._mosts(-polynomial))

    def _sign(self, factor: Polynomial) -> int:
        plain = Scope(self.bounds)
        if plain.not_negative(factor):
            return 1
        return -1 if plain.not_negative(-factor) else 0

    def _upper(self, name: str, high: Polynomial) -> Polynomial:
        """The least known upper bound of a name; one of a condition, where which is less is unknown."""
        for fact in self.facts:
            if fact.coefficient(name) == ONE and not self._inner(-fact.without(name), name):
                other = -fact.without(name)
                high = high if at_least_zero(other - high) else other
        return high

    def _lower(self, name: str, low: Polynomial) -> Polynomial:
        for fact in self.facts:
            if fact.coefficient(name) == -ONE and not self._inner(fact.without(name), name):
                other = fact.without(name)
                low = low if at_least_zero(low - other) else other
        return low

    def _inner(self, polynomial: Polynomial, name: str) -> bool:
        """Whether it has names that are bounded within ``name``, or that name."""
        names = self.names
        return any(item in polynomial.names for item in names[names.index(name) :])
