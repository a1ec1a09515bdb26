"""Choice of the values of a task's extents at ``small`` and at the hidden sizes.

The search is independent of torch. It tries values, and learns from what runs and what raises which extents are free,
which have to be equal, and what has to divide them:

1. *Base*: all extents are scaled down together, so that equal ones stay equal and what divides still divides. Each is
   taken apart into primes, whose powers are capped: if *a* divides *b*, what became of *a* divides what became of *b*.
   The largest cap whose cost is within the bounds gives the base.
2. *Freedom*: from there each extent is moved alone to odd multiples of 1, 2, 4, 8 and of the other constants that
   divide it. Where it cannot move alone, it moves together with those that it equals in the file; else it stays.
3. *Sizes*: beginning with the base, one extent after the other is moved to a value of the kind that a size is for, and
   stays there if the reference still runs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Protocol

from pydantic import Field

from kernelforge.errors import TaskError
from kernelforge.evaluation.size_search.extents import Extent
from kernelforge.records.base import Record
from kernelforge.tasks.constants import Scalar

LONG = 1024
"""One hidden size goes beyond this along the longest extent, if the bounds allow: no thread block holds such a row."""

_WARP = 32
_WORTHWHILE = 0.9
_HEAVY = 64
_CAPS = tuple(2**exponent for exponent in range(1, 11))
_PRIMES = (2, 3, 5, 7)
_LEAST_CAP_OF_LARGE_PRIMES = 64
_MODULI = (1, 2, 4, 8)
_MOST_MODULI = 7
_TRIES_PER_EXTENT = 4


@dataclass(frozen=True)
class Bounds:
    """Limits on the cost of a size. Part of a cached choice's key."""

    elements: int = 1 << 17
    """Of inputs, weights and outputs together."""
    work: int = 1 << 22
    """Elements of the results of all operators."""
    calls: int = 800
    """Of operators: a recurrent layer makes some for each step."""
    flops: int = 10_000_000
    """Of matrix products and convolutions: an emulated device runs them too."""
    seconds: float = 1.0
    """Of CPU time for one run."""
    most_elements: int = 1 << 26
    """What a reference may take whose extents cannot be made smaller; the same in the next two."""
    most_flops: int = 1 << 35
    most_seconds: float = 20.0
    answer_s: float = 8.0
    """Longest wait for one try."""
    memory_bytes: int = 3 << 30
    tries: int = 160


Count = Annotated[int, Field(strict=True, ge=0, lt=2**63)]


class Cost(Record):
    """Cost of one run of the reference. ``seconds`` is None where it was run on shapes alone."""

    elements: Count
    """Of inputs, weights and outputs together."""
    bytes: Count
    outputs: Count
    """Elements of the outputs alone."""
    work: Count
    calls: Count
    flops: Count
    seconds: Annotated[float, Field(strict=True, ge=0, lt=2**63, allow_inf_nan=False)] | None = None


@dataclass(frozen=True)
class TrialOutcome:
    """Result of one try: a cost, or why there is none."""

    cost: Cost | None
    error: str = ""


class ReferenceTrial(Protocol):
    """Runs the reference at some constants.

    With ``near`` it does so for real at once, because the constants are near some that were within the bounds; else
    only after shapes alone have shown that it may.
    """

    def __call__(self, constants: Mapping[str, Scalar], *, near: bool) -> TrialOutcome: ...


@dataclass(frozen=True)
class Chosen:
    """Constants of each size, by its name, and what people should know of them."""

    sizes: Mapping[str, Mapping[str, int]]
    notes: tuple[str, ...] = ()
    heavy: bool = False
    """Whether ``small`` is far above the bounds, because the reference allows nothing smaller."""


@dataclass
class _Part:
    """Extents that move as one, and what has to divide their value."""

    members: tuple[int, ...]
    modulus: int


class TooLarge(TaskError):
    """No choice of the extents brings the reference within reach."""


Values = tuple[int, ...]


@dataclass
class ExtentSearch:
    """One search. ``others`` are further constants of the file, which may have to divide an extent."""

    extents: Sequence[Extent]
    run: ReferenceTrial
    bounds: Bounds = field(default_factory=Bounds)
    others: Sequence[int] = ()

    def __post_init__(self) -> None:
        self._known: dict[Values, TrialOutcome] = {}
        self._near: Values | None = None
        """Values that are known to be within the bounds."""
        self._limit: Cost | None = None
        """The base's cost, where that is above the bounds."""
        self._full: Values = tuple(extent.full for extent in self.extents)

    def choose(self) -> Chosen:
        """Values for ``small`` and for as many hidden sizes as the reference allows.

        Raises:
            TooLarge: it runs, but takes more than the bounds at the smallest extents.
            TaskError: it runs at none of the extents tried; the message is the reference's own.
        """
        base, heavy = self._base()
        if not self.extents:
            return Chosen({"small": {}}, ("the file has no extents to change: no hidden sizes are made",), heavy)
        parts = self._parts(base)
        sizes = {"small": self._style(base, parts, _apart)}
        notes = []
        odd = self._together(self._long(sizes["small"], parts) or self._style(base, parts, _odd), parts)
        hidden = {
            "hidden_odd": (odd, any(value % 2 for value in odd)),
            "hidden_quad": (quad := self._style(base, parts, _quad), any(v % 4 == 0 and v % 16 for v in quad)),
            "hidden_tiny": (
                tiny := self._together(self._style(base, parts, _tiny), parts),
                any(value < _WARP for value in tiny),
            ),
        }
        for name, (values, fits_kind) in hidden.items():
            if not fits_kind or values in sizes.values():
                notes.append(f"no {name}: the reference takes no other extents of this kind")
                continue
            sizes[name] = values
        if still := self._unmoved(parts):
            notes.append(f"{', '.join(still)} cannot vary: other values were refused by the reference")
        return Chosen({name: self._constants(values) for name, values in sizes.items()}, tuple(notes), heavy)

    def _try(self, values: Values) -> TrialOutcome:
        if values not in self._known:
            if len(self._known) >= self.bounds.tries:
                return TrialOutcome(None, "no tries left")
            base = self._near
            near = base is not None and all(
                value <= 2 * base_value for value, base_value in zip(values, base, strict=True)
            )
            self._known[values] = self.run(self._constants(values), near=near)
        return self._known[values]

    def _constants(self, values: Values) -> dict[str, int]:
        return {name: value for extent, value in zip(self.extents, values, strict=True) for name in extent.names}

    def _fits(self, cost: Cost | None) -> bool:
        bounds = self.bounds
        return (
            cost is not None
            and cost.elements <= bounds.elements
            and cost.work <= bounds.work
            and cost.calls <= bounds.calls
            and cost.flops <= bounds.flops
            and (cost.seconds is not None and cost.seconds <= bounds.seconds)
        )

    def _runs(self, values: Values, limit: Cost | None) -> bool:
        """Whether the reference runs there, within the bounds; or as cheaply as at the base, which is above them."""
        cost = self._try(values).cost
        if limit is None or cost is None:
            return self._fits(cost)
        return cost.seconds is not None and cost.elements <= 2 * limit.elements and cost.work <= 2 * limit.work

    def _base(self) -> tuple[Values, bool]:
        best: Values | None = None
        lightest: tuple[Values, Cost] | None = None
        error = ""
        for values in _scaled(self._full):
            outcome = self._try(values)
            if outcome.cost is None:
                error = outcome.error or error
                continue
            if self._fits(outcome.cost):
                self._near = best = values
                continue
            if lightest is None or outcome.cost.work < lightest[1].work:
                lightest = values, outcome.cost
            if best is not None or len(self._known) > len(_CAPS):
                break
        if best is not None:
            return best, False
        if lightest is None:
            raise TaskError(error)
        values, cost = self._lightened(*lightest)
        if self._fits(cost):
            self._near = values
            return values, False
        if cost.seconds is None or cost.seconds > self.bounds.most_seconds:
            raise TooLarge(_too_large(cost))
        self._limit = cost
        bounds = self.bounds
        return values, cost.elements > _HEAVY * bounds.elements or cost.seconds > bounds.seconds

    def _lightened(self, values: Values, cost: Cost) -> tuple[Values, Cost]:
        """Each extent made smaller alone, as long as that helps: for a reference in which some have to stay large."""
        helped = True
        while helped and not self._fits(cost):
            helped = False
            for position in sorted(range(len(values)), key=lambda i: -values[i]):
                for smaller in (values[position] // 4, values[position] // 2):
                    if smaller < 2:
                        continue
                    trial = (*values[:position], smaller, *values[position + 1 :])
                    lighter = self._try(trial).cost
                    if lighter is not None and lighter.work < _WORTHWHILE * cost.work:
                        values, cost, helped = trial, lighter, True
                        break
        return values, cost

    def _parts(self, base: Values) -> list[_Part]:
        """Extents that move, alone or together, and the divisors that their values keep."""
        parts: list[_Part] = []
        tied: list[int] = []
        index_bounds = {extent.full for extent in self.extents if extent.is_index_bound}
        for position in range(len(base)):
            # Below an index bound a lucky draw may hide that an axis has become too short: equals stay equal there.
            alone = self._full[position] not in index_bounds or self._full.count(self._full[position]) == 1
            modulus = self._modulus(base, (position,)) if alone else 0
            if modulus:
                parts.append(_Part((position,), modulus))
            else:
                tied.append(position)
        groups: dict[int, list[int]] = {}
        for position in tied:
            groups.setdefault(self._full[position], []).append(position)
        for group in groups.values():
            if len(group) > 1 and (modulus := self._modulus(base, tuple(group))):
                parts.append(_Part(tuple(group), modulus))
        return parts

    def _modulus(self, base: Values, members: tuple[int, ...]) -> int:
        """The least number of those tried whose odd multiples the members may be; 0 where they cannot move."""
        value = base[members[0]]
        divisors = {other for other in (*base, *self.others) if 1 < other < value and value % other == 0}
        for modulus in sorted({*_MODULI, *divisors})[:_MOST_MODULI]:
            for other in _near(value, modulus)[:2]:
                if self._runs(_moved(base, members, other), self._limit):
                    return modulus
        return 0

    def _style(self, base: Values, parts: Sequence[_Part], style: _Style) -> Values:
        """The base with one part after the other moved to a value of a kind, largest first."""
        values = base
        for part in sorted(parts, key=lambda part: -self._full[part.members[0]]):
            taken = {value for position, value in enumerate(values) if position not in part.members}
            tried = 0
            for value in style(base[part.members[0]], part.modulus):
                if value in taken or value >= 2 * max(self._full[part.members[0]], 8):
                    continue
                if tried == _TRIES_PER_EXTENT:
                    break
                tried += 1
                trial = _moved(values, part.members, value)
                if trial == values or self._runs(trial, self._limit):
                    values = trial
                    break
        return values

    def _together(self, values: Values, parts: Sequence[_Part]) -> Values:
        """Extents of which one divides the other, such as channels and groups, as odd multiples of an odd number."""
        for large in sorted(parts, key=lambda part: -part.modulus):
            for small in parts:
                old, divisor = values[large.members[0]], values[small.members[0]]
                if large.modulus % 2 or large is small or not 1 < divisor < old or old % divisor:
                    continue
                for least, times in ((3, 5), (5, 3), (3, 3)):
                    trial = _moved(_moved(values, small.members, least), large.members, least * times)
                    if self._runs(trial, self._limit):
                        values = trial
                        break
        return values

    def _long(self, base: Values, parts: Sequence[_Part]) -> Values | None:
        """Odd extents with the longest one beyond :data:`LONG`, the others as small as need be."""
        movable = [part for part in parts if part.modulus <= _MODULI[-1] and self._full[part.members[0]] > LONG]
        for part in sorted(movable, key=lambda part: -self._full[part.members[0]])[:1]:
            rest = [other for other in parts if other is not part]
            length = _near(LONG + part.modulus, part.modulus)[0]
            for style in (_odd, _tiny):
                values = self._style(base, rest, style)
                trial = _moved(values, part.members, length)
                if self._runs(trial, self._limit):
                    return trial
        return None

    def _unmoved(self, parts: Sequence[_Part]) -> list[str]:
        moved = {position for part in parts for position in part.members}
        return [extent.names[0] for position, extent in enumerate(self.extents) if position not in moved]


_Style = Callable[[int, int], Iterable[int]]
"""Values of one kind, the best first, from the value at the base and what has to divide it."""


def _scaled(full: Values) -> Iterator[Values]:
    """Scaled down together, from the smallest cap up; the file's own values last."""
    seen = set()
    for cap in _CAPS:
        values = tuple(capped(value, cap) for value in full)
        if values not in seen and values != full:
            seen.add(values)
            yield values
    yield full


def capped(value: int, cap: int) -> int:
    """``value`` with its prime powers capped; keeps equality and divisibility between values of one cap.

    How often a prime may occur depends on it and on ``cap`` alone. Primes above 7 become one of 5, 7, 11 and 13, the
    same for the same prime; they are dropped where ``cap`` is small.
    """
    result = 1
    for prime, exponent in factors(value).items():
        if prime in _PRIMES:
            most = int(math.log(cap, prime) / (1 if prime == 2 else 2) + 1e-9)
            result *= prime ** min(exponent, most)
        elif cap >= _LEAST_CAP_OF_LARGE_PRIMES:
            result *= (11, 13, 5, 7)[prime % 4]
    return min(result, value)


def factors(value: int) -> dict[int, int]:
    """Prime factors with their exponents; what is left above 2**10 counts as one prime."""
    powers: dict[int, int] = {}
    for prime in range(2, 1024):
        while value % prime == 0:
            powers[prime] = powers.get(prime, 0) + 1
            value //= prime
        if prime * prime > value:
            break
    if value > 1:
        powers[value] = powers.get(value, 0) + 1
    return powers


def _near(value: int, modulus: int) -> list[int]:
    """Odd multiples of ``modulus``, not ``value`` itself, the nearest first, above before below."""
    middle = value // modulus
    odd = [q for q in range(max(1, middle - 16), middle + 17) if q % 2]
    multiples = [q * modulus for q in odd if q * modulus != value]
    return sorted(multiples, key=lambda other: (abs(other - value), -other))


def _odd(value: int, modulus: int) -> list[int]:
    return [other for other in _near(value, modulus) if other > 2]


def _quad(value: int, modulus: int) -> list[int]:
    step = math.lcm(4, modulus)
    return _near(value, step) if step % 16 else []


def _tiny(value: int, modulus: int) -> list[int]:
    return [q * modulus for q in (7, 5, 9, 13, 3, 21, 1, 31) if 1 < q * modulus < _WARP]


def _apart(value: int, modulus: int) -> list[int]:
    """For ``small``: the base's own value first, then multiples of 8 near it, so that no two extents need be equal."""
    step = math.lcm(8 if value >= 16 else 4, modulus)
    return [value, *(value + shift * step for shift in (1, -1, 2, -2, 3) if value + shift * step > 0)]


def _moved(values: Values, members: Iterable[int], value: int) -> Values:
    inside = set(members)
    return tuple(value if position in inside else old for position, old in enumerate(values))


def _too_large(cost: Cost) -> str:
    return (
        f"even with the smallest extents that it runs with it takes {cost.elements:,} elements and {cost.flops:,} "
        "floating point operations, too much to be checked in float64 on a CPU"
    )
