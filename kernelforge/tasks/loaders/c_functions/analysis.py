"""The bounds of every index of a C function, and which of its loops may run all turns at once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from kernelforge.errors import TaskError
from kernelforge.tasks.loaders.c_functions.bounds import ONE, ZERO, Polynomial, Scope, at_least_zero
from kernelforge.tasks.loaders.c_functions.syntax import (
    Assign,
    Binary,
    Call,
    Cast,
    Choice,
    Declare,
    Element,
    Expression,
    For,
    Function,
    If,
    Name,
    Number,
    Return,
    Statement,
    Unary,
    kind_of,
)

Way = Literal["at-once", "sum", "in-turn"]
"""How the turns of a loop are run: all at once; all at once and what they add is summed; one after the other."""


@dataclass(frozen=True)
class Access:
    """A load from an array, or a store to it."""

    array: str
    at: Polynomial
    store: bool
    adds: bool
    """Whether it is part of ``array[at] += ...``."""
    guarded: bool
    """Whether a condition decides if it happens."""
    scope: Scope
    loops: tuple[For, ...]


@dataclass(frozen=True)
class Bounds:
    """Of a loop's variable, in parameters alone, and how many turns there are at most."""

    atom: str
    low: Polynomial
    high: Polynomial


@dataclass
class Analysis:
    """Result of :func:`analysed`."""

    lengths: dict[str, tuple[Polynomial, ...]]
    """Of each array that is a parameter: the longest of these."""
    written: frozenset[str]
    """Arrays that are stored to."""
    kept: frozenset[str]
    """Those of them that keep some elements, or are read before: their contents are an input."""
    loops: dict[For, Bounds] = field(default_factory=dict)
    ways: dict[For, Way] = field(default_factory=dict)
    extents: frozenset[str] = frozenset()
    """Parameters that a loop counts to."""
    paths: tuple[tuple[For, ...], ...] = ()
    """Loops around each statement that stores or assigns."""


def analysed(function: Function) -> Analysis:
    """Bounds and independence of a function's loops.

    Raises:
        TaskError: an index has no bound that follows from the loops and conditions around it.
    """
    walk = _Walk(function)
    walk.statements(function.body)
    result = walk.result()
    for loop in result.loops:
        result.ways[loop] = _way(loop, walk, result)
    return result


_OPPOSITE: Final[Mapping[str, str]] = {"<": ">=", "<=": ">", ">": "<=", ">=": "<", "==": "!=", "!=": "=="}


class _Walk:
    def __init__(self, function: Function) -> None:
        self.function = function
        self.arrays = {item.name for item in function.parameters if item.array}
        self.numbers = {item.name for item in function.parameters if not item.array and kind_of(item.type) == "int"}
        self.values: dict[str, Polynomial | None] = {name: Polynomial.symbol(name) for name in self.numbers}
        self.scope = Scope()
        self.path: tuple[For, ...] = ()
        self.conditions = 0
        self.accesses: list[Access] = []
        self.local: dict[str, Polynomial] = {}
        self.loops: dict[For, Bounds] = {}
        self.paths: list[tuple[For, ...]] = []
        self.quiet = False
        self.fractions = {item.name for item in function.parameters if kind_of(item.type) == "float"}
        self.opaque: dict[tuple[str, Polynomial, Polynomial], str] = {}

    def statements(self, statements: Iterable[Statement]) -> None:
        for statement in statements:
            self.statement(statement)

    def statement(self, statement: Statement) -> None:
        match statement:
            case Declare(name=name, value=value, length=length, wide=wide):
                if length is not None:
                    size = self.expression(length)
                    if size is None or value is not None or size.names - self.numbers:
                        raise TaskError("its C declares an array whose length is not known, or that has values")
                    self.local[name] = size
                else:
                    new = None if value is None else self.expression(value)
                    self.values[name] = new if wide else None
                    if not wide:
                        self.fractions.add(name)
            case Assign(target=Element(array=array, at=at), op=op, value=value):
                self.expression(value)
                where = self.expression(at)
                adds = op in ("+", "-")
                if op:
                    self.access(array, where, store=False, adds=adds)
                self.access(array, where, store=True, adds=adds)
                self.paths.append(self.path)
            case Assign(target=Name(name=name), op=op, value=value):
                if name in self.arrays or name in self.local:
                    raise TaskError(f"its C moves the pointer {name[:40]!r}")
                new = self.expression(Binary(op, Name(name), value) if op else value)
                self.values[name] = None if name in self.fractions else new
                self.paths.append(self.path)
            case If(condition=condition, yes=yes, no=no):
                self.expression(condition)
                before, scope = dict(self.values), self.scope
                self.conditions += 1
                self.know(condition, True)
                self.statements(yes)
                self.values, self.scope = dict(before), scope
                self.know(condition, False)
                self.statements(no)
                self.conditions -= 1
                self.values, self.scope = dict(before), scope
                self.forget((*yes, *no))
            case For():
                self.loop(statement)
            case Return(value=value):
                if self.path or self.conditions:
                    raise TaskError("its C returns from within")
                if value is not None:
                    self.expression(value)
            case _:
                raise TaskError("its C has a `continue` that no condition alone leads to")

    def loop(self, loop: For) -> None:
        start, stop = self.expression(loop.start), self.expression(loop.stop)
        if start is None or stop is None:
            raise TaskError("a loop of its C has a bound that is not known before it runs")
        low, high = (start, stop - ONE) if loop.step > 0 else (stop, start)
        atom = f"{loop.variable}@{len(self.loops)}"
        least, most = self.scope.least(low), self.scope.most(high)
        if least is None or most is None:
            raise TaskError("a loop of its C has a bound that no parameter decides")
        self.loops[loop] = Bounds(atom, least, most)
        if changed := set(names_in(loop.stop)) & {*assigned(loop.body), loop.variable}:
            raise TaskError(f"a loop of its C changes its own bound {min(changed)[:40]!r}")
        if loop.variable in set(assigned(loop.body)):
            raise TaskError(f"a loop of its C changes its own variable {loop.variable[:40]!r}")
        outer = self.scope, self.path, dict(self.values)
        self.scope = self.scope.bounded(atom, low, high)
        self.path = (*self.path, loop)
        self.forget(loop.body)
        self.values[loop.variable] = Polynomial.symbol(atom)
        self.statements(loop.body)
        self.scope, self.path, self.values = outer
        self.forget(loop.body)
        self.values[loop.variable] = None

    def forget(self, statements: Iterable[Statement]) -> None:
        """Take the known values from what statements assign."""
        for name in assigned(statements):
            if name in self.values:
                self.values[name] = None

    def access(self, array: str, at: Polynomial | None, *, store: bool, adds: bool = False) -> None:
        if self.quiet:
            return
        if array not in self.arrays and array not in self.local:
            raise TaskError(f"its C takes an element of {array[:40]!r}, which is no array")
        if at is None:
            raise TaskError(f"its C finds an element of {array[:40]!r} by data, so no length of it is surely enough")
        if not self.scope.not_negative(at):
            raise TaskError(f"its C may reach an element before the first of {array[:40]!r}")
        self.accesses.append(Access(array, at, store, adds, self.conditions > 0, self.scope, self.path))

    def expression(self, expression: Expression) -> Polynomial | None:
        """Its value as a polynomial of whole numbers, None where it has none; loads are noted."""
        match expression:
            case Number(value=value):
                return Polynomial.constant(value) if isinstance(value, int) else None
            case Name(name=name):
                if name in self.arrays or name in self.local:
                    raise TaskError(f"its C takes the address {name[:40]!r}")
                return self.values.get(name)
            case Element(array=array, at=at):
                self.access(array, self.expression(at), store=False)
                return None
            case Unary(op=op, value=value):
                inner = self.expression(value)
                return None if inner is None else -inner if op == "-" else inner if op == "+" else None
            case Cast(kind=kind, value=value):
                inner = self.expression(value)
                return inner if kind == "int" else None
            case Call(values=values):
                for item in values:
                    self.expression(item)
                return None
            case Choice(condition=condition, yes=yes, no=no):
                self.expression(condition)
                self.branch(condition, True, yes)
                self.branch(condition, False, no)
                return None
            case Binary(op="&&" | "||" as op, first=first, second=second):
                self.expression(first)
                self.branch(first, op == "&&", second)
                return None
            case Binary(op=op, first=first, second=second):
                return self.binary(op, self.expression(first), self.expression(second))
        return None

    def branch(self, condition: Expression, holds: bool, value: Expression) -> None:
        scope = self.scope
        self.know(condition, holds)
        self.conditions += 1
        self.expression(value)
        self.conditions -= 1
        self.scope = scope

    def binary(self, op: str, first: Polynomial | None, second: Polynomial | None) -> Polynomial | None:
        if first is None or second is None:
            return None
        number = second.number
        if op == "+":
            return first + second
        if op == "-":
            return first - second
        if op == "*":
            return first * second
        if op == "<<" and number is not None and 0 <= number < 31:
            return first * Polynomial.constant(1 << number)
        if op == ">>" and number is not None and 0 <= number < 31:
            return self.divided(first, Polynomial.constant(1 << number))
        if op == "/":
            return self.divided(first, second)
        if op == "%" and self.scope.not_negative(first) and self.positive(second):
            return self.stands("%", first, second, second - ONE)
        if op == "&" and number is not None and number >= 0 and self.scope.not_negative(first):
            return self.stands("&", first, second, second)
        return None

    def positive(self, polynomial: Polynomial) -> bool:
        return self.scope.not_negative(polynomial - ONE)

    def divided(self, first: Polynomial, second: Polynomial) -> Polynomial | None:
        if not self.scope.not_negative(first) or not self.positive(second):
            return None
        most = self.scope.most(first)
        if most is None:
            return None
        number, by = most.number, second.number
        high = Polynomial.constant(number // by) if number is not None and by else most
        return self.stands("/", first, second, high)

    def stands(self, op: str, first: Polynomial, second: Polynomial, high: Polynomial) -> Polynomial:
        """A name for a quotient or remainder, which is from 0 to ``high``."""
        key = (op, first, second)
        name = self.opaque.setdefault(key, f"{op}@{len(self.opaque)}")
        if name not in self.scope.names:
            self.scope = self.scope.bounded(name, ZERO, high)
        return Polynomial.symbol(name)

    def know(self, condition: Expression, holds: bool) -> None:
        facts = tuple(self.facts(condition, holds))  # bounds the names that it makes
        self.scope = self.scope.knowing(facts)

    def facts(self, condition: Expression, holds: bool) -> Iterator[Polynomial]:
        """Polynomials that are at most 0 where a condition holds, or where it does not."""
        match condition:
            case Unary(op="!", value=value):
                yield from self.facts(value, not holds)
            case Binary(op="&&", first=first, second=second) if holds:
                yield from self.facts(first, True)
                yield from self.facts(second, True)
            case Binary(op="||", first=first, second=second) if not holds:
                yield from self.facts(first, False)
                yield from self.facts(second, False)
            case Binary(op="<" | "<=" | ">" | ">=" | "==" | "!=" as op, first=first, second=second):
                a, b = self.silent(first), self.silent(second)
                if a is None or b is None:
                    return
                kept = op if holds else _OPPOSITE[op]
                if kept in ("<", "<=", "=="):
                    yield a - b + (ONE if kept == "<" else ZERO)
                if kept in (">", ">=", "=="):
                    yield b - a + (ONE if kept == ">" else ZERO)
                if kept == "!=" and self.scope.not_negative(a - b):
                    yield b - a + ONE
                if kept == "!=" and self.scope.not_negative(b - a):
                    yield a - b + ONE

    def silent(self, expression: Expression) -> Polynomial | None:
        """The value of an expression whose loads are noted already."""
        noted, self.quiet = self.quiet, True
        value = self.expression(expression)
        self.quiet = noted
        return value

    def result(self) -> Analysis:
        written = frozenset(item.array for item in self.accesses if item.store) & self.arrays
        lengths: dict[str, tuple[Polynomial, ...]] = {}
        for array in [*self.arrays, *self.local]:
            longest: list[Polynomial] = []
            for item in self.accesses:
                if item.array != array:
                    continue
                most = item.scope.most(item.at)
                if most is None or most.names - self.numbers:
                    raise TaskError(f"its C may reach any element of {array[:40]!r}: no length is surely enough")
                longest.append(most + ONE)
            if array in self.local:
                if not all(at_least_zero(self.local[array] - length) for length in longest):
                    raise TaskError(f"its C may reach behind the end of its own array {array[:40]!r}")
                continue
            if not longest:
                raise TaskError(f"its C does not use the array {array[:40]!r}")
            lengths[array] = _longest(longest)
        extents = frozenset(name for bounds in self.loops.values() for name in bounds.high.names) & self.numbers
        kept = frozenset(array for array in written if not self.filled(array, lengths[array]))
        return Analysis(lengths, written, kept, dict(self.loops), extents=extents, paths=tuple(self.paths))

    def filled(self, array: str, lengths: tuple[Polynomial, ...]) -> bool:
        """Whether the first access to an array, in the order of the text, is a store to every element of it."""
        first = next(item for item in self.accesses if item.array == array)
        if not first.store or first.guarded or len(lengths) != 1:
            return False
        rest, extent = first.at, ONE
        free = list(first.loops)
        while rest.terms:
            loop = next(
                (
                    item
                    for item in free
                    if rest.coefficient(self.loops[item].atom) == extent
                    and not self.loops[item].low.terms
                    and item.step == 1
                    and any(
                        entry == (self.loops[item].atom, ZERO, self.loops[item].high) for entry in first.scope.bounds
                    )
                ),
                None,
            )
            if loop is None:
                return False
            free.remove(loop)
            rest = rest.without(self.loops[loop].atom)
            extent *= self.loops[loop].high + ONE
        return extent == lengths[0]


def _longest(lengths: Sequence[Polynomial]) -> tuple[Polynomial, ...]:
    """Lengths without those that are surely no longer than another."""
    longest: list[Polynomial] = []
    for length in dict.fromkeys(lengths):
        if not any(at_least_zero(other - length) for other in longest):
            longest = [*(other for other in longest if not at_least_zero(length - other)), length]
    return tuple(longest)


def assigned(statements: Iterable[Statement]) -> Iterator[str]:
    """Names that statements assign, at any depth."""
    for statement in flat(statements):
        match statement:
            case Assign(target=Name(name=name)) | For(variable=name):
                yield name


def names_in(item: Expression | Statement | Sequence[Statement] | None) -> Iterator[str]:
    """Names that an expression or statement has, once for each time."""
    match item:
        case None | Number():
            return
        case Name(name=name):
            yield name
        case Element(array=array, at=at):
            yield array
            yield from names_in(at)
        case Unary(value=value) | Cast(value=value) | Return(value=value):
            yield from names_in(value)
        case Binary(first=first, second=second):
            yield from names_in(first)
            yield from names_in(second)
        case Choice(condition=condition, yes=yes, no=no):
            for part in (condition, yes, no):
                yield from names_in(part)
        case Call(values=values):
            for value in values:
                yield from names_in(value)
        case Declare(value=value, length=length):
            yield from names_in(value)
            yield from names_in(length)
        case Assign(target=target, value=value):
            yield from names_in(target)
            yield from names_in(value)
        case If(condition=condition, yes=yes, no=no):
            yield from names_in(condition)
            yield from names_in(yes)
            yield from names_in(no)
        case For(variable=variable, start=start, stop=stop, body=body):
            yield variable
            yield from names_in(start)
            yield from names_in(stop)
            yield from names_in(body)
        case tuple() | list():
            for part in item:
                yield from names_in(part)


def only_added(name: str, statements: Sequence[Statement]) -> bool:
    """Whether statements do nothing with a name but add to it."""
    adding = sum(
        1
        for item in flat(statements)
        if isinstance(item, Assign) and item.target == Name(name) and item.op in ("+", "-")
    )
    return adding == sum(1 for other in names_in(tuple(statements)) if other == name)


def flat(statements: Iterable[Statement]) -> Iterator[Statement]:
    """Statements at any depth."""
    for statement in statements:
        yield statement
        match statement:
            case If(yes=yes, no=no):
                yield from flat((*yes, *no))
            case For(body=body):
                yield from flat(body)


def private(name: str, statements: Sequence[Statement]) -> bool:
    """Whether each turn assigns a name before it reads it."""
    for statement in statements:
        match statement:
            case Assign(target=Name(name=target), op="", value=value) if target == name:
                return name not in set(names_in(value))
            case For(variable=variable, start=start, stop=stop) if variable == name:
                return name not in {*names_in(start), *names_in(stop)}
            case For(start=start, stop=stop, body=body) if name not in {*names_in(start), *names_in(stop)}:
                if name in set(names_in(body)):
                    return private(name, body)
        if name in set(names_in(statement)):
            return False
    return True


def _way(loop: For, walk: _Walk, result: Analysis) -> Way:
    """The way in which the turns of a loop can be run."""
    body = loop.body
    declared = [item for item in flat(body) if isinstance(item, Declare)]
    if any(item.length is not None for item in declared):
        return "in-turn"
    own = {item.name for item in declared} | {
        item.variable for item in flat(body) if isinstance(item, For) and item.own
    }
    carried = {name for name in assigned(body) if name not in own and not private(name, body)}
    inside = [item for item in walk.accesses if loop in item.loops]
    bound = {
        array
        for array in {item.array for item in inside if item.store}
        if not _apart(result.loops[loop], loop.step, [item for item in inside if item.array == array])
    }
    if not carried and not bound:
        return "at-once"
    innermost = not any(isinstance(item, For) for item in flat(body))
    sums = all(only_added(name, body) for name in carried) and all(
        item.adds and not item.guarded and result.loops[loop].atom not in item.at.names
        and not item.at.names & {name for name in item.scope.names if "@" in name and name[0] in "/%&"}
        for item in inside
        if item.array in bound
    )  # fmt: skip
    return "sum" if innermost and sums else "in-turn"


def _apart(bounds: Bounds, step: int, accesses: Sequence[Access]) -> bool:
    """Whether no turn of a loop touches an element that another one stores."""
    return all(_differ(bounds.atom, abs(step), store, other) for store in accesses if store.store for other in accesses)


def _differ(atom: str, step: int, store: Access, other: Access) -> bool:
    factor = store.at.coefficient(atom)
    if factor is None or other.at.coefficient(atom) != factor or factor.names & set(store.scope.names):
        return False
    if not at_least_zero(factor - ONE):
        if not at_least_zero(-factor - ONE):
            return False
        factor = -factor
    room = factor * Polynomial.constant(step) - ONE
    ends, others = _ends(atom, store), _ends(atom, other)
    if ends is None or others is None:
        return False
    (low, high), (other_low, other_high) = ends, others
    index = store.scope.names.index(atom)
    outer = Scope(store.scope.bounds[:index])
    return outer.not_negative(room - (high - other_low)) and outer.not_negative(room - (other_high - low))


def _ends(atom: str, access: Access) -> tuple[Polynomial, Polynomial] | None:
    """Of an index without its loop's part: what it is at least and at most, as the inner names go."""
    rest = access.at.without(atom)
    inner = access.scope.names[access.scope.names.index(atom) + 1 :]
    low, high = access.scope.least(rest, inner), access.scope.most(rest, inner)
    if low is None or high is None or atom in low.names | high.names:
        return None
    return low, high
