"""Choice of the values of a task's extents at ``small`` and at the hidden sizes.

The search is independent of torch and of time: it tries values, and learns from what runs, what raises and what is
counted which extents are free, which have to be equal, and what has to divide them. So it chooses the same on every
machine.

1. *Base*: all extents are scaled down together, so that equal ones stay equal, what divides still divides, and a
   divisor stays smaller than what it divides. Each is taken apart into primes, whose powers are capped. The largest
   cap whose cost is within the bounds gives the base. Where none is, each extent is made smaller alone. What costs too
   much even so, for weights that no extent changes, has the largest cap at which no other count is above the bounds.
2. *Freedom*: from there each extent is moved alone to odd multiples of 1, 2, 4, 8 and of the other constants that
   divide it. Where it cannot move alone, it moves together with those that it equals in the file; else it stays.
3. *Sizes*: ``small`` is the base, with free extents moved apart, at last by two or one where they are equal in the
   file. A hidden size begins with short extents, and one after the other is moved beyond the largest tile of a thread
   block (:data:`TILES`) that fits into it at the full size, as far as the bounds allow. What crosses its tiles at no
   hidden size yet comes first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Annotated, Any, Protocol

from pydantic import Field

from kernelforge.errors import TaskError
from kernelforge.evaluation.size_search.extents import Extent
from kernelforge.records.base import Record
from kernelforge.tasks.constants import Scalar

LONG = 1024
"""One hidden size goes beyond this along the longest extent, if the bounds allow: no thread block holds such a row."""

TILES = (16, 32, 128, 256)
"""Extents of a tile of a thread block. A hidden size has whole tiles and a part of the next on each axis that has one
at the full size, so that a kernel without a guard for the last tile fails."""

_WARP = 32
_WORTHWHILE = 0.9
_HEAVY = 64
"""How far above the bounds a base is too heavy to be run for every value that is tried."""
_ROOM = 2
"""By how many powers of two a divisor stays below what it divides, where it does at the full size: a group of one
channel has nothing to normalise."""
_MOST_WIDE = 2
_CAPS = tuple(2**exponent for exponent in range(1, 11))
_PRIMES = (2, 3, 5, 7)
_LEAST_CAP_OF_LARGE_PRIMES = 64
_MODULI = (1, 2, 4, 8)
_MOST_MODULI = 7
_TRIES_PER_EXTENT = 4


@dataclass(frozen=True)
class Ceiling:
    """Most that one run of a reference may cost, in counts that are the same on every machine."""

    elements: int
    """Of inputs, weights and outputs together."""
    work: int
    """Elements of the results of all operators."""
    calls: int
    """Of operators: a recurrent layer makes some for each step."""
    flops: int
    """Of matrix products and convolutions: an emulated device runs them too."""

    def times(self, factor: float) -> Ceiling:
        """More or less of everything but operators."""
        return Ceiling(int(factor * self.elements), int(factor * self.work), self.calls, int(factor * self.flops))

    def holds(self, cost: Cost) -> bool:
        """Whether a cost is within all of them."""
        return all(getattr(cost, name) <= most for name, most in asdict(self).items())


@dataclass(frozen=True)
class Bounds:
    """Limits on the cost of a size. All but seconds are part of a cached choice's key."""

    base: Ceiling = Ceiling(elements=1 << 17, work=1 << 22, calls=800, flops=10_000_000)
    """Of ``small``, and of the values that are tried to learn which extents are free."""
    reach: Ceiling = Ceiling(elements=1 << 18, work=1 << 22, calls=800, flops=40_000_000)
    """Of the hidden sizes, which are long along some axes."""
    most: Ceiling = Ceiling(elements=1 << 28, work=1 << 30, calls=1 << 16, flops=1 << 37)
    """What a reference may take whose extents cannot be made smaller."""
    judged_flops: int = 200 * 10**9
    """Of all sizes together of a network far above the bounds: the oracle runs each some hundred times."""
    memory_bytes: int = 3 << 30
    tries: int = 240
    filled: bool = False
    """Whether the base is to be as large as its bounds allow, not only scaled down together."""
    answer_s: float = 120.0
    """A stop for a try that does not end. What it cuts is never kept as a property of the task."""
    judge_s: float = 600.0
    """The same for the oracle's word on one size."""

    def times(self, factor: float, *, filled: bool = False) -> Bounds:
        """More or less of everything but operators, for every size."""
        return replace(self, base=self.base.times(factor), reach=self.reach.times(factor), filled=filled)

    def key(self) -> dict[str, Any]:
        """Limits that a choice depends on, by name."""
        return {name: value for name, value in asdict(self).items() if name not in ("answer_s", "judge_s")}


_NOTHING = Ceiling(0, 0, 0, 0)

Count = Annotated[int, Field(strict=True, ge=0, lt=2**63)]


class Cost(Record):
    """Cost of one run of the reference, counted."""

    elements: Count
    """Of inputs, weights and outputs together."""
    bytes: Count
    outputs: Count
    """Elements of the outputs alone."""
    work: Count
    calls: Count
    flops: Count
    ran: bool = False
    """Whether it ran on real tensors; else on shapes alone."""


@dataclass(frozen=True)
class TrialOutcome:
    """Result of one try: a cost, or why there is none."""

    cost: Cost | None
    error: str = ""


class ReferenceTrial(Protocol):
    """Runs the reference at some constants.

    With ``near`` it does so for real at once, because the constants are near some that were within the bounds; else
    only where shapes alone have shown that it stays below ``ceiling``, or do not tell.
    """

    def __call__(self, constants: Mapping[str, Scalar], *, ceiling: Ceiling, near: bool) -> TrialOutcome: ...


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
        self._known: dict[tuple[Values, Ceiling], TrialOutcome] = {}
        self._near: Values | None = None
        """Values that are known to be within the bounds."""
        self._light, self._reach = self.bounds.base, self.bounds.reach
        """In force: the bounds, or what the base costs where that is more."""
        self._on_shapes = False
        """Whether values are tried on shapes alone, because each run takes long; those taken are run at the end."""
        self._full: Values = tuple(extent.full for extent in self.extents)
        self._axes = [position for position, extent in enumerate(self.extents) if not extent.is_count]
        """Positions of those that may change."""

    def choose(self) -> Chosen:
        """Values for ``small`` and for as many hidden sizes as the reference allows.

        Raises:
            TooLarge: it runs, but takes more than the bounds at the smallest extents.
            TaskError: it runs at none of the extents tried; the message is the reference's own.
        """
        base = self._base()
        if not self._axes:
            constants = self._constants(base)
            return Chosen({"small": constants}, ("the file has no extents to change: no hidden sizes are made",))
        parts = self._parts(base)
        sizes = {"small": self._told_apart(self._style(base, parts, _apart), parts)}
        notes = []
        covered: dict[int, int] = {}
        tiny = self._together(self._style(base, parts, _tiny), parts)
        odd = self._across(tiny, parts, covered, odd=True)
        if not any(value % 2 for value in odd):
            odd = self._together(self._style(base, parts, _odd), parts)
        hidden = {
            "hidden_odd": (odd, any(value % 2 for value in odd)),
            "hidden_quad": (
                quad := self._across(self._style(base, parts, _short_quad, apart=False), parts, covered, odd=False),
                any(v % 4 == 0 and v % 16 for v in quad),
            ),
            "hidden_tiny": (tiny, any(value < _WARP for value in tiny)),
        }
        for number in range(1, _MOST_WIDE + 1):
            before = dict(covered)
            wide = self._across(tiny, parts, covered, odd=True)
            if covered == before:
                break
            hidden[f"hidden_wide{number}"] = (wide, True)
        if not self._is_real(sizes["small"]):
            sizes["small"] = base
        flops = self._heavy_flops(sizes["small"])
        for name, (values, fits_kind) in hidden.items():
            if not fits_kind or values in sizes.values() or not self._is_real(values):
                notes.append(f"no {name}: the reference takes no other extents of this kind")
                continue
            if flops + self._heavy_flops(values) > self.bounds.judged_flops:
                notes.append(f"no {name}: it takes too many operations to be judged")
                continue
            flops += self._heavy_flops(values)
            sizes[name] = values
        if still := self._unmoved(parts):
            notes.append(f"{', '.join(still)} cannot vary: other values were refused by the reference")
        return Chosen({name: self._constants(values) for name, values in sizes.items()}, tuple(notes), self._on_shapes)

    def _try(self, values: Values, ceiling: Ceiling) -> TrialOutcome:
        key = values, ceiling
        if key not in self._known:
            if len(self._known) >= self.bounds.tries:
                return TrialOutcome(None, "no tries left")
            base = self._near
            near = base is not None and all(
                value <= 2 * base_value for value, base_value in zip(values, base, strict=True)
            )
            at_most = _NOTHING if self._on_shapes and ceiling != self.bounds.most else ceiling
            self._known[key] = self.run(self._constants(values), ceiling=at_most, near=near)
        return self._known[key]

    def _is_real(self, values: Values) -> bool:
        """Whether the reference runs there on real tensors."""
        if not self._on_shapes:
            return True
        cost = self._try(values, self.bounds.most).cost
        return cost is not None and cost.ran

    def _heavy_flops(self, values: Values) -> int:
        """Of one run there, where the base is far above the bounds; else 0."""
        cost = self._try(values, self.bounds.most).cost if self._on_shapes else None
        return 0 if cost is None else cost.flops

    def _constants(self, values: Values) -> dict[str, int]:
        return {name: value for extent, value in zip(self.extents, values, strict=True) for name in extent.names}

    def _runs(self, values: Values, ceiling: Ceiling) -> bool:
        """Whether the reference runs there, within the bounds; on shapes alone where the base is above them."""
        cost = self._try(values, ceiling).cost
        if cost is None:
            return False
        return (cost.ran or self._on_shapes) and ceiling.holds(cost)

    def _base(self) -> Values:
        best: Values | None = None
        lightest: tuple[Values, Cost] | None = None
        above: list[tuple[Values, Cost]] = []
        beyond: tuple[Values, Cost] | None = None
        error = ""
        for scaled in _scaled(tuple(self._full[position] for position in self._axes)):
            values = self._with_counts(scaled)
            outcome = self._try(values, self._light)
            if outcome.cost is None:
                error = outcome.error or error
                continue
            if outcome.cost.ran and self._light.holds(outcome.cost):
                self._near = best = values
                continue
            above.append((values, outcome.cost))
            if lightest is None or outcome.cost.work < lightest[1].work:
                lightest = values, outcome.cost
            if best is not None:
                beyond = above[-1]
                break
        if best is not None:
            return self._filled(best, *beyond) if beyond and self.bounds.filled else best
        if lightest is None:
            raise TaskError(error)
        values, cost = self._lightened(*lightest)
        if cost.ran and self._light.holds(cost):
            self._near = values
            return values
        values = self._largest(above, values, cost)
        self._take_as_bounds(values)
        return values

    def _filled(self, values: Values, beyond: Values, cost: Cost) -> Values:
        """The first values beyond the bounds, halved until they are within them: where an extent such as 224 goes from
        32 to 224 at once, a network may have too few elements between for its precision."""
        halved, its_cost = self._halved(beyond, cost, self._light)
        if not self._light.holds(its_cost) or not self._runs(halved, self._light):
            return values
        self._near = halved
        return halved

    def _largest(self, above: Sequence[tuple[Values, Cost]], values: Values, least: Cost) -> Values:
        """Values that cost no more than the bounds, or than the least there is: what no extent makes less stays as it
        is, and all else may be as large as the bounds allow."""
        bounds = asdict(self._light).items()
        within = Ceiling(**{name: max(most, int(getattr(least, name) / _WORTHWHILE)) for name, most in bounds})
        work = least.work
        for trial, cost in sorted(above, key=lambda entry: entry[1].work):
            lighter, its_cost = self._halved(trial, cost, within)
            if within.holds(its_cost) and its_cost.work > work:
                values, work = lighter, its_cost.work
            if not within.holds(cost):
                break
        return values

    def _take_as_bounds(self, values: Values) -> None:
        """Put what the reference costs there in place of the bounds; far above them, values are tried on shapes."""
        outcome = self._try(values, self.bounds.most)
        if outcome.cost is None:
            raise TaskError(outcome.error)
        cost = outcome.cost
        if not cost.ran or not self.bounds.most.holds(cost):
            raise TooLarge(_too_large(cost))
        base = self.bounds.base
        self._light = self._reach = Ceiling(
            **{name: max(2 * getattr(cost, name), most) for name, most in asdict(base).items()}
        )
        self._on_shapes = any(getattr(cost, name) > _HEAVY * most for name, most in asdict(base).items())

    def _with_counts(self, axes: Values) -> Values:
        """Values of all extents: of axes the given ones, of counts those of the file."""
        of_axes = iter(axes)
        return tuple(extent.full if extent.is_count else next(of_axes) for extent in self.extents)

    def _halved(self, values: Values, cost: Cost, within: Ceiling) -> tuple[Values, Cost]:
        """The largest extent halved, as often as that helps, until no count is above the ceiling."""
        helped = True
        while helped and not within.holds(cost):
            helped = False
            exceeded = {
                name: getattr(cost, name) for name, most in asdict(within).items() if getattr(cost, name) > most
            }
            for position in sorted(self._axes, key=lambda i: -values[i]):
                trial = _moved(values, (position,), max(2, values[position] // 2))
                lighter = self._try(trial, self._light).cost
                if lighter and any(getattr(lighter, name) < _WORTHWHILE * now for name, now in exceeded.items()):
                    values, cost, helped = trial, lighter, True
                    break
        return values, cost

    def _lightened(self, values: Values, cost: Cost) -> tuple[Values, Cost]:
        """Each extent made smaller alone, as long as that helps: for a reference in which some have to stay large."""
        helped = True
        while helped and not (cost.ran and self._light.holds(cost)):
            helped = False
            for position in sorted(self._axes, key=lambda i: -values[i]):
                for smaller in (values[position] // 4, values[position] // 2):
                    if smaller < 2:
                        continue
                    trial = (*values[:position], smaller, *values[position + 1 :])
                    lighter = self._try(trial, self._light).cost
                    if lighter is not None and lighter.work < _WORTHWHILE * cost.work:
                        values, cost, helped = trial, lighter, True
                        break
        return values, cost

    def _parts(self, base: Values) -> list[_Part]:
        """Extents that move, alone or together, and the divisors that their values keep."""
        parts: list[_Part] = []
        tied: list[int] = []
        index_bounds = {extent.full for extent in self.extents if extent.is_index_bound}
        for position in self._axes:
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
                if self._runs(_moved(base, members, other), self._light):
                    return modulus
        return 0

    def _style(self, base: Values, parts: Sequence[_Part], style: _Style, *, apart: bool = True) -> Values:
        """The base with one part after the other moved to a value of a kind, largest first; to one that no other part
        has, where ``apart`` says so."""
        values = base
        for part in sorted(parts, key=lambda part: -self._full[part.members[0]]):
            taken = {value for position, value in enumerate(values) if apart and position not in part.members}
            tried = 0
            for value in style(base[part.members[0]], part.modulus):
                if value in taken or value >= 2 * max(self._full[part.members[0]], 8):
                    continue
                if tried == _TRIES_PER_EXTENT:
                    break
                tried += 1
                trial = _moved(values, part.members, value)
                if trial == values or self._runs(trial, self._light):
                    values = trial
                    break
        return values

    def _told_apart(self, values: Values, parts: Sequence[_Part]) -> Values:
        """Values at which extents that are equal in the file, but need not be, differ as far as the bounds allow: who
        sees the full and the small size alone cannot tell apart what is equal at both."""
        for part in sorted(parts, key=lambda part: -self._extent(part)):
            first = part.members[0]
            if any(
                self._full[position] == self._full[first] and value == values[first]
                for position, value in enumerate(values)
                if position not in part.members
            ):
                values = self._style(values, [part], _slightly_apart)
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
                    if self._runs(trial, self._light):
                        values = trial
                        break
        return values

    def _across(self, start: Values, parts: Sequence[_Part], covered: dict[int, int], *, odd: bool) -> Values:
        """From ``start``, each part beyond the largest tile that the bounds allow; ``covered`` has these tiles by part,
        and those that have crossed none of their tiles yet come first."""
        values = start
        order = sorted(
            range(len(parts)),
            key=lambda number: (-self._uncovered(parts[number], covered.get(number, 0)), -self._extent(parts[number])),
        )
        for position, number in enumerate(order):
            part = parts[number]
            tiles = [tile for tile in TILES if tile <= self._extent(part)]
            if odd and position == 0 and self._extent(part) > LONG and not covered:
                tiles.append(LONG)
            for tile in reversed(tiles):
                taken = {value for index, value in enumerate(values) if index not in part.members}
                trials = [
                    _moved(values, part.members, value)
                    for value in self._beyond(tile, part, parts, values, odd=odd)
                    if value not in taken and value < 2 * self._extent(part)
                ]
                trial = next((trial for trial in trials[:2] if self._runs(trial, self._reach)), None)
                if trial is not None:
                    values = trial
                    covered[number] = max(covered.get(number, 0), min(tile, TILES[-1]))
                    break
        return values

    def _extent(self, part: _Part) -> int:
        return self._full[part.members[0]]

    def _uncovered(self, part: _Part, covered: int) -> int:
        """Tiles of a part's full extent that no hidden size has crossed yet."""
        return sum(1 for tile in TILES if covered < tile <= self._extent(part))

    def _beyond(self, tile: int, part: _Part, parts: Sequence[_Part], values: Values, *, odd: bool) -> list[int]:
        """Values just above a tile that no such tile divides: multiples of what has to divide the part, or of the other
        parts that divide it at present, such as groups of channels."""
        present = values[part.members[0]]
        divisors = [values[other.members[0]] for other in parts if other is not part]
        steps = [part.modulus, math.lcm(*(d for d in divisors if 1 < d < present and present % d == 0))]
        multiples: list[int] = []
        for step in steps if odd else [math.lcm(4, step) for step in steps]:
            first = tile // step + 1
            candidates = [q * step for q in range(first, first + 16) if q % 2 and q * step % tile]
            multiples += candidates[1:4] if step == 1 else candidates[:1]
        return multiples

    def _unmoved(self, parts: Sequence[_Part]) -> list[str]:
        moved = {position for part in parts for position in part.members}
        return [self.extents[position].names[0] for position in self._axes if position not in moved]


_Style = Callable[[int, int], Iterable[int]]
"""Values of one kind, the best first, from the value at the base and what has to divide it."""


def _scaled(full: Values) -> Iterator[Values]:
    """Scaled down together, from the smallest cap up; the file's own values last."""
    seen = set()
    for cap in _CAPS:
        values = scaled_together(full, cap)
        if values not in seen and values != full:
            seen.add(values)
            yield values
    yield full


def scaled_together(full: Values, cap: int) -> Values:
    """Values with their prime powers capped; keeps equality, divisibility and, as far as ``cap`` has room for it, that
    a divisor is smaller than what it divides.

    Primes above 7 become one of 5, 7, 11 and 13, the same for the same prime; they are dropped where ``cap`` is small.
    """
    powers = [factors(value) for value in full]
    exponents = {
        prime: _compressed({power.get(prime, 0) for power in powers}, _most_exponent(prime, cap)) for prime in _PRIMES
    }
    return tuple(min(_product(power, exponents, cap), value) for power, value in zip(powers, full, strict=True))


def _most_exponent(prime: int, cap: int) -> int:
    return int(math.log(cap, prime) / (1 if prime == 2 else 2) + 1e-9)


def _compressed(exponents: set[int], most: int) -> dict[int, int]:
    """Exponents of one prime, capped: the larger keep their order, with gaps of at most :data:`_ROOM`."""
    result: dict[int, int] = {}
    above = None
    for exponent in sorted(exponents, reverse=True):
        capped = min(exponent, most)
        if above is not None:
            old, new = above
            # Two from the bottom there is no room left: an extent of one would be no axis at all.
            capped = min(exponent, new, max(new - min(old - exponent, _ROOM), min(exponent, 2)))
        result[exponent] = capped
        above = exponent, capped
    return result


def _product(powers: Mapping[int, int], exponents: Mapping[int, Mapping[int, int]], cap: int) -> int:
    result = 1
    for prime, exponent in powers.items():
        if prime in _PRIMES:
            result *= prime ** exponents[prime][exponent]
        elif cap >= _LEAST_CAP_OF_LARGE_PRIMES:
            result *= (11, 13, 5, 7)[prime % 4]
    return result


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


def _short_quad(value: int, modulus: int) -> list[int]:
    step = math.lcm(4, modulus)
    return [q * step for q in (1, 3, 5, 7)] if step % 16 else []


def _tiny(value: int, modulus: int) -> list[int]:
    return [q * modulus for q in (7, 5, 9, 13, 3, 21, 1, 31) if 1 < q * modulus < _WARP]


def _apart(value: int, modulus: int) -> list[int]:
    """For ``small``: the base's own value first, then multiples of 8 near it, so that no two extents need be equal."""
    step = math.lcm(8 if value >= 16 else 4, modulus)
    return [value, *(value + shift * step for shift in (1, -1, 2, -2, 3) if value + shift * step > 0)]


def _slightly_apart(value: int, modulus: int) -> list[int]:
    """For ``small``, where bounds or other extents leave no room for a multiple of 8 or 4: even values, then any."""
    even = math.lcm(2, modulus)
    shifts = [*(shift * even for shift in (1, -1, 2, -2, 3)), modulus, -modulus]
    return [value + shift for shift in shifts if value + shift > 1]


def _moved(values: Values, members: Iterable[int], value: int) -> Values:
    inside = set(members)
    return tuple(value if position in inside else old for position, old in enumerate(values))


def _too_large(cost: Cost) -> str:
    return (
        f"even with the smallest extents that it runs with it takes {cost.elements:,} elements and {cost.flops:,} "
        "floating point operations, too much to be checked in float64 on a CPU"
    )
