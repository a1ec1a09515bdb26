"""CUDA C++ text of expressions and loops, with the device functions that they call."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from kernelforge.agents.builtin.ir.iteration_space import (
    MOST_ELEMENTS,
    ZERO,
    Coordinate,
    LoopGroup,
    Signature,
    compute_type,
    from_storage,
)
from kernelforge.agents.builtin.ir.nodes import (
    Concat,
    Dim,
    Extent,
    Gather,
    Iota,
    Padded,
    Pointwise,
    Reshape,
    Scalar,
    StoredTensor,
    Value,
    View,
    product,
)
from kernelforge.errors import UnsupportedError
from kernelforge.records import DType

INFINITY = "__int_as_float(0x7f800000)"
NOT_A_NUMBER = "__int_as_float(0x7fffffff)"

_HELPERS = tomllib.loads(Path(__file__).with_name("helpers.toml").read_text(encoding="utf-8"))["helper"]


def helpers_for(text: str) -> str:
    """The device functions and includes that ``text`` uses."""
    parts = [helper["source"] for helper in _HELPERS if re.search(helper["uses"], text)]
    includes = [
        f"#include <{header}>"
        for word, header in (("__half", "cuda_fp16.h"), ("__nv_bfloat16", "cuda_bf16.h"))
        if word in text
    ]
    return "\n".join(includes + parts)


def indent(lines: list[str]) -> list[str]:
    """One level deeper."""
    return ["    " + line for line in lines]


class CppEmitter:
    """Collects the statements of one kernel body.

    ``stored`` are the values that live in memory; anything else is computed where it is read. ``bound`` gives values
    that the kernel already holds (an accumulator, a row's sum) their C++ names, and the coordinates they belong to.
    """

    def __init__(self, stored: frozenset[Value]) -> None:
        self.stored = stored
        self.signature = Signature()
        self.bound: dict[Value, tuple[str, tuple[Coordinate, ...] | None]] = {}
        self.lines: list[str] = []
        self.hoisted: list[str] | None = None
        """Where vector loads go while the lanes' loop is written; None outside of it."""
        self.divisors: dict[str, None] = {}
        """Extents that the vector width must divide."""
        self.cached_rows: dict[Value, str] = {}
        """Stored values that a row kernel keeps in shared memory: their name there."""
        self._memo: dict[tuple[object, ...], str] = {}
        self._names = 0
        self._guarded = False
        """Whether statements run under a condition, where no load may be hoisted or widened."""

    def fresh(self, prefix: str = "t") -> str:
        self._names += 1
        return f"{prefix}{self._names}"

    def add(self, line: str) -> None:
        self.lines.append(line)

    @contextmanager
    def scope(self) -> Iterator[list[str]]:
        """A nested block: its statements and names end with it."""
        outer, memo = self.lines, dict(self._memo)
        self.lines = []
        try:
            yield self.lines
        finally:
            self.lines, self._memo = outer, memo

    @contextmanager
    def lanes(self) -> Iterator[tuple[list[str], list[str]]]:
        """The loop over the ``V`` lanes of a vector group: (statements before it, statements in it)."""
        before: list[str] = []
        self.hoisted = before
        try:
            with self.scope() as body:
                yield before, body
        finally:
            self.hoisted = None

    def read(self, value: Value, coords: tuple[Coordinate, ...]) -> str:
        """C++ name or expression of one element."""
        coords = _trim(coords, value)
        if value in self.bound:
            name, where = self.bound[value]
            if where is not None and where != coords:
                raise UnsupportedError("a value that the kernel holds is read at other coordinates")
            return name
        key = (value, coords, self.hoisted is not None)
        if key not in self._memo:
            expression = self._element(value, coords)
            if re.fullmatch(r"[A-Za-z_][\w.]*(\[k\])?|-?[\d.]+f?", expression):
                return expression
            self._memo[key] = self.declare(value, expression)
        return self._memo[key]

    def declare(self, value: Value, expression: str) -> str:
        """Declare a variable for an element of ``value``; returns its name."""
        name = self.fresh()
        self.add(f"const auto {name} = {expression};")
        return name

    def _element(self, value: Value, coords: tuple[Coordinate, ...]) -> str:
        if isinstance(value, StoredTensor) or value in self.stored:
            return self.load(value, coords)
        if isinstance(value, Scalar):
            return self.signature.scalar(value)
        if isinstance(value, Pointwise):
            return value.template.format(*(self.read(arg, coords) for arg in value.args))
        if isinstance(value, Extent):
            return self.signature.extent(value.dim)
        if isinstance(value, Iota):
            return self.text(coords[value.axis])
        if isinstance(value, View):
            return self.read(value.base, self._remapped(value, coords))
        if isinstance(value, Reshape):
            return self._reshaped(value, coords)
        if isinstance(value, Gather):
            at = self.read(value.index, coords)
            moved = (*coords[: value.axis], Coordinate(f"(int){at}"), *coords[value.axis + 1 :])
            return self.read(value.base, moved)
        if isinstance(value, Padded):
            return self._padded(value, coords)
        if isinstance(value, Concat):
            return self._concat(value, coords)
        if self._guarded and self.hoisted is not None:
            raise UnsupportedError("a loop under a condition cannot move out of the lanes' loop")
        return self.loop(value, coords)

    def guarded(self, dtype: DType, start: str, cases: Sequence[tuple[str, Value, tuple[Coordinate, ...]]]) -> str:
        """A variable that is ``start``, or the element of the first of ``cases`` whose condition holds."""
        name = self.fresh()
        self.add(f"{compute_type(dtype)} {name} = {start};")
        outer, self._guarded = self._guarded, True
        for number, (condition, value, coords) in enumerate(cases):
            with self.scope() as body:
                self.add(f"{name} = {self.read(value, coords)};")
            self.lines += [f"{'else ' if number else ''}if ({condition}) {{", *indent(body), "}"]
        self._guarded = outer
        return name

    def _padded(self, value: Padded, coords: tuple[Coordinate, ...]) -> str:
        places: list[Coordinate] = []
        conditions: list[str] = []
        for coord, template, dim in zip(self._remapped(value, coords), value.index, value.base.shape, strict=True):
            if re.fullmatch(r"\{\d+\}|\d+", template):
                places.append(coord)
                continue
            name = self.fresh("p")
            self.add(f"const int {name} = {coord.text};")
            places.append(Coordinate(name))
            conditions.append(f"{name} >= 0 && {name} < {self.signature.extent(dim)}")
        return self.guarded(value.dtype, value.outside, [(" && ".join(conditions), value.base, tuple(places))])

    def _concat(self, value: Concat, coords: tuple[Coordinate, ...]) -> str:
        at, begin = self.fresh("p"), "0"
        self.add(f"const int {at} = {self.text(coords[value.axis])};")
        cases = []
        for part in value.parts:
            moved = Coordinate(f"({at} - {begin})" if begin != "0" else at)
            end = self.fresh("p")
            self.add(f"const int {end} = {begin} + {self.signature.extent(part.shape[value.axis])};")
            cases.append((f"{at} < {end}", part, (*coords[: value.axis], moved, *coords[value.axis + 1 :])))
            begin = end
        return self.guarded(value.dtype, "0", cases)

    def loop(self, value: Value, coords: tuple[Coordinate, ...]) -> str:
        """Compute a value that needs a loop; :mod:`loops` knows how."""
        raise UnsupportedError(f"the built-in Coder cannot compute a {type(value).__name__} in place")

    def _remapped(self, value: View | Padded, coords: tuple[Coordinate, ...]) -> tuple[Coordinate, ...]:
        """Coordinates of the base of a view."""
        coordinates = []
        for template in value.index:
            single_axis = re.fullmatch(r"\{(\d+)\}", template)
            if single_axis:
                coordinates.append(coords[int(single_axis[1])])
                continue
            texts = [self.text(coord) if f"{{{axis}}}" in template else "" for axis, coord in enumerate(coords)]
            extents = {
                f"e{k}": self.signature.extent(dim) for k, dim in enumerate(value.extents) if f"{{e{k}}}" in template
            }
            coordinates.append(Coordinate(template.format(*texts, **extents)))
        return tuple(coordinates)

    def _reshaped(self, value: Reshape, coords: tuple[Coordinate, ...]) -> str:
        base = value.base
        if (isinstance(base, StoredTensor) or base in self.stored) and value.dtype == base.dtype:
            return self.load(value, coords, of=base)
        regrouped = _regrouped(value.shape, coords, base.shape)
        if regrouped is not None:
            return self.read(base, regrouped)
        flat = self.fresh("f")
        self.add(f"const int {flat} = {self.offset(value.shape, coords)};")
        return self.read(base, tuple(Coordinate(text) for text in self._decompose(flat, base.shape)))

    def _decompose(self, flat: str, shape: tuple[Dim, ...]) -> list[str]:
        texts: list[str] = []
        for k in range(len(shape)):
            after = product(shape[k + 1 :])
            text = flat if after.text == "1" else f"{flat} / {self.signature.extent(after)}"
            if k > 0:
                text += f" % {self.signature.extent(shape[k])}"
            texts.append("0" if shape[k].text == "1" else f"({text})")
        return texts

    def _var(self, group: LoopGroup) -> str:
        return f"({group.var} + k)" if group.vector and self.hoisted is not None else group.var

    def text(self, coord: Coordinate) -> str:
        """C++ expression of one coordinate, decomposing its group on first use."""
        group = coord.group
        if group is None:
            return coord.text
        var = self._var(group)
        if len(group.dims) == 1:
            return var
        key = ("coordinate", coord, self.hoisted is not None)
        if key not in self._memo:
            after = product(group.dims[coord.position + 1 :])
            text = var if after.text == "1" else f"{var} / {self.signature.extent(after)}"
            if coord.position > 0:
                text = f"{text} % {self.signature.extent(group.dims[coord.position])}"
            name = coord.text if var == group.var else f"{coord.text}k"
            self.add(f"const int {name} = {text};")
            self._memo[key] = name
        return self._memo[key]

    def offset(self, shape: tuple[Dim, ...], coords: tuple[Coordinate, ...]) -> str:
        """Row-major offset of an element; adjacent coordinates that make up a whole group stay one term."""
        return self._horner(_pieces(shape, coords))

    def _horner(self, pieces: list[_Piece]) -> str:
        result, count = "", 1
        for piece in pieces:
            narrow, count = count < MOST_ELEMENTS, count * int(piece.extent.value)
            if piece.group is None:
                term = self.text(piece.coord)
            else:
                term = self._var(piece.group)
                if not piece.complete:
                    term = f"{term} % {self.signature.extent(piece.extent)}"
            if not result:
                result = term
            else:
                wide = "(long long)" if narrow and count >= MOST_ELEMENTS else ""
                result = f"{wide}({result}) * {self.signature.extent(piece.extent)} + {term}"
        return result or "0"

    def load(self, value: Value, coords: tuple[Coordinate, ...], *, of: Value | None = None) -> str:
        """Load an element; in the lanes' loop, adjacent elements come in one vector load."""
        holder = of if of is not None else value
        pieces = _pieces(value.shape, coords)
        tail = pieces[-1] if pieces else None
        group = tail.group if tail is not None else None
        row = self.cached_rows.get(holder) if _is_row(pieces) else None
        movable = all(piece.coord.lives_everywhere for piece in pieces)
        if self.hoisted is None or self._guarded or tail is None or group is None or not group.vector or not movable:
            where = self._horner(pieces) if row is None or group is None else self._var(group)
            return from_storage(f"{row or self.signature.tensor(holder)}[{where}]", holder.dtype)
        key = ("vector", holder, coords)
        if key not in self._memo:
            if row is None:
                self.divisors.setdefault(tail.extent.text)
            base = row or self.signature.tensor(holder)
            where = group.var if row else self._vector_base(pieces)
            name = self.fresh("p")
            self.hoisted.append(f"const auto {name} = load<V>({base} + {where});")
            self._memo[key] = name
        return from_storage(f"{self._memo[key]}.v[k]", holder.dtype)

    def pointer(self, value: Value, coords: tuple[Coordinate, ...]) -> str | None:
        """C++ pointer to an element in memory; None where finding the element takes more than views of a tensor."""
        address = self._address(value, coords)
        return None if address is None else f"{self.signature.tensor(address[0])} + {self._horner(address[1])}"

    def walk(self, value: Value, coords: tuple[Coordinate, ...]) -> tuple[Value, tuple[LoopGroup, ...]] | None:
        """The tensor in memory that is read, and the loops that walk over all of it, outermost first; None where it
        takes more than that to find an element."""
        address = self._address(value, coords)
        if address is None or not all(piece.complete for piece in address[1]):
            return None
        groups = tuple(piece.group for piece in address[1] if piece.group is not None)
        elements = product(tuple(group.extent for group in groups))
        return (address[0], groups) if elements.value == product(address[0].shape).value else None

    def _address(self, value: Value, coords: tuple[Coordinate, ...]) -> tuple[Value, list[_Piece]] | None:
        """The tensor in memory that an element is part of, and the terms of its offset; None where that takes more than
        views."""
        coords = _trim(coords, value)
        while isinstance(value, View) and value not in self.stored:
            coords = self._remapped(value, coords)
            value = value.base
            coords = _trim(coords, value)
        holder = value
        if isinstance(value, Reshape) and value not in self.stored and value.dtype == value.base.dtype:
            holder = value.base
        if not (isinstance(holder, StoredTensor) or holder in self.stored):
            return None
        return holder, _pieces(value.shape, coords)

    def _vector_base(self, pieces: list[_Piece]) -> str:
        """Offset of lane 0, written with names that live before the lanes' loop."""
        assert self.hoisted is not None
        hoisted, lines, self.hoisted = self.hoisted, self.lines, None
        self.lines = hoisted
        tail = pieces[-1]
        assert tail.group is not None
        if not tail.complete:
            name = self.fresh("c")
            hoisted.append(f"const int {name} = {tail.group.var} % {self.signature.extent(tail.extent)};")
            pieces = [*pieces[:-1], _Piece(Coordinate(name), None, tail.extent, False)]
        text = self._horner(pieces)
        self.hoisted, self.lines = hoisted, lines
        return text


@dataclass(frozen=True)
class _Piece:
    """One term of an offset: a single coordinate, a whole group, or the trailing part of one."""

    coord: Coordinate
    group: LoopGroup | None
    extent: Dim
    complete: bool


def _is_row(pieces: list[_Piece]) -> bool:
    """Whether an element is of the row that a row kernel's threads share, at its place in it."""
    rows = [piece.group.var for piece in pieces if piece.group is not None and piece.complete]
    return len(rows) == len(pieces) and rows in (["j"], ["row", "j"])


def _trim(coords: tuple[Coordinate, ...], value: Value) -> tuple[Coordinate, ...]:
    """Coordinates for an operand that broadcasts: trailing axes, 0 where its extent is 1."""
    coords = coords[len(coords) - len(value.shape) :]
    return tuple(
        ZERO if dim.value == 1 and not _spans_one(coord) else coord
        for coord, dim in zip(coords, value.shape, strict=True)
    )


def _spans_one(coord: Coordinate) -> bool:
    """Whether the coordinate runs over an extent of 1 itself (then it is no broadcast)."""
    return coord.group is not None and coord.group.dims[coord.position].value == 1


def _regrouped(
    shape: tuple[Dim, ...], coords: tuple[Coordinate, ...], base: tuple[Dim, ...]
) -> tuple[Coordinate, ...] | None:
    """Coordinates under the shape ``base`` of the same elements, where whole groups become axes; None where not."""
    moved: list[Coordinate] = []
    rest = list(base)
    for piece in _pieces(shape, coords):
        while rest and rest[0].value == 1 != piece.extent.value:
            moved.append(ZERO)
            rest.pop(0)
        if not rest or rest[0].value != piece.extent.value or (piece.group is not None and not piece.complete):
            return None
        dim = rest.pop(0)
        flat = None if piece.group is None else replace(piece.group, dims=(dim,))
        moved.append(piece.coord if flat is None else flat.coords()[0])
    return (*moved, *(ZERO for _ in rest)) if all(dim.value == 1 for dim in rest) else None


def _fills(shape: tuple[Dim, ...], group: LoopGroup, position: int, at: int) -> bool:
    """Whether axes have the extents that the group steps over; the first axis of all may be longer."""
    pairs = zip(shape, group.dims[position:], strict=True)
    return all(dim.value == step.value for axis, (dim, step) in enumerate(pairs) if at + axis > 0)


def _pieces(shape: tuple[Dim, ...], coords: tuple[Coordinate, ...]) -> list[_Piece]:
    pieces: list[_Piece] = []
    at = 0
    while at < len(coords):
        coord = coords[at]
        group = coord.group
        if group is not None:
            run = 0
            while (
                at + run < len(coords)
                and coords[at + run].group is group
                and coords[at + run].position == coord.position + run
            ):
                run += 1
            ends = coord.position + run == len(group.dims) and _fills(shape[at : at + run], group, coord.position, at)
            if ends and coord.position == 0:
                pieces.append(_Piece(coord, group, group.extent, True))
                at += run
                continue
            if ends and group.vector and at + run == len(coords):
                tail = product(group.dims[coord.position :])
                pieces.append(_Piece(coord, group, tail, False))
                at += run
                continue
        if not (coord == ZERO and shape[at].value == 1):
            pieces.append(_Piece(coord, None, shape[at], False))
        at += 1
    return pieces
