"""Loops inside one thread: reductions, contractions, convolutions and windows as straightforward ``for`` loops."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from kernelforge.agents.builtin.codegen.cpp_emitter import INFINITY, CppEmitter, indent
from kernelforge.agents.builtin.ir.iteration_space import Coordinate, LoopGroup, compute_type, sum_type
from kernelforge.agents.builtin.ir.nodes import Contraction, Convolution, Dim, Reduce, Value, Window, product
from kernelforge.errors import UnsupportedError
from kernelforge.records import DType

_LOWEST = {
    DType.INT64: "(-9223372036854775807LL - 1)", DType.INT32: "(-2147483647 - 1)", DType.INT16: "-32768",
    DType.INT8: "-128", DType.UINT8: "0", DType.BOOL: "0",
}  # fmt: skip
_HIGHEST = {
    DType.INT64: "9223372036854775807LL", DType.INT32: "2147483647", DType.INT16: "32767",
    DType.INT8: "127", DType.UINT8: "255", DType.BOOL: "1",
}  # fmt: skip

LONGEST_RUN = 16384
"""Terms that one accumulator takes one after the other; longer sums are split. The tolerance allows for runs of 65,536
where its cap does not cut it, which it does for the softmax of 131,072 equal-signed terms of KernelBench 2/38."""


def start_of(reduce: Reduce) -> str:
    """The value that a reduction starts from."""
    dtype = reduce.arg.dtype
    if reduce.op in ("argmax", "argmin"):
        return f"Best{{-{INFINITY}, 2147483647}}"
    if reduce.op == "spread":
        return "Moments{0, 0, 0}"
    if reduce.op == "max":
        return f"-{INFINITY}" if dtype.is_floating else _LOWEST[dtype]
    if reduce.op == "min":
        return INFINITY if dtype.is_floating else _HIGHEST[dtype]
    return "0" if reduce.op == "sum" else "1"


def type_of(reduce: Reduce) -> str:
    if reduce.op == "spread":
        return "Moments"
    return "Best" if reduce.op in ("argmax", "argmin") else compute_type(reduce.dtype)


def combine_of(reduce: Reduce) -> str:
    """Name of the device function that combines two partial results."""
    if reduce.op == "spread":
        return "moments_of"
    return "best_of" if reduce.op in ("argmax", "argmin") else f"{reduce.op}_of"


def step_of(reduce: Reduce, into: str, element: str, at: str) -> str:
    """Statement that takes one more element in."""
    if reduce.op == "sum":
        return f"{into} += {element};"
    if reduce.op == "prod":
        return f"{into} *= {element};"
    if reduce.op in ("max", "min"):
        return f"{into} = {reduce.op}_of({into}, ({compute_type(reduce.dtype)})({element}));"
    if reduce.op == "spread":
        return f"take({into}, {element});"
    sign = "-" if reduce.op == "argmin" else ""
    return f"{into} = best_of({into}, Best{{{sign}{element}, {at}}});"


def result_of(reduce: Reduce, accumulator: str) -> str:
    if reduce.op in ("argmax", "argmin"):
        return f"(long long){accumulator}.at"
    if reduce.op == "spread":
        return f"{accumulator}.spread"
    return accumulator


class LoopEmitter(CppEmitter):
    """An emitter whose threads each loop over all that their element needs."""

    def loop(self, value: Value, coords: tuple[Coordinate, ...]) -> str:
        if isinstance(value, Reduce):
            body = self._reduce
        elif isinstance(value, Contraction):
            body = self._contraction
        elif isinstance(value, Convolution):
            body = self._convolution
        elif isinstance(value, Window):
            body = self._window
        else:
            raise UnsupportedError(f"the built-in Coder has no single-thread loop for a {type(value).__name__}")
        if self.hoisted is None:
            return body(value, coords, "")
        if _tests_edges(value):
            raise UnsupportedError("each lane would test the edges of its window at every step")
        if not all(coord.lives_everywhere for coord in coords):
            raise UnsupportedError("the lanes' loop would use coordinates of another scope")
        hoisted, lines = self.hoisted, self.lines
        self.lines, self.hoisted = hoisted, None
        result = body(value, coords, "[k]")
        self.lines, self.hoisted = lines, hoisted
        return result

    def accumulator(self, ctype: str, start: str, slot: str) -> str:
        name = self.fresh("acc")
        if slot:
            self.add(f"{ctype} {name}[V];")
            self.add("#pragma unroll")
            self.add(f"for (int k = 0; k < V; ++k) {name}[k] = {start};")
        else:
            self.add(f"{ctype} {name} = {start};")
        return name + slot

    def inner(self, slot: str, write: Callable[[], None]) -> None:
        """Statements of the innermost loop: once, or once per lane after the vector loads they need."""
        if not slot:
            write()
            return
        with self.lanes() as (before, body):
            write()
        self.lines += [*before, "#pragma unroll", "for (int k = 0; k < V; ++k) {", *indent(body), "}"]

    def count(self, var: str, extent: str, body: list[str], start: str = "0", step: str = "1") -> None:
        advance = f"++{var}" if step == "1" else f"{var} += {step}"
        self.add(f"for (int {var} = {start}; {var} < {extent}; {advance}) {{")
        self.lines += [*indent(body), "}"]

    def _reduce(self, value: Value, coords: tuple[Coordinate, ...], slot: str) -> str:
        assert isinstance(value, Reduce)
        if value.parts is not None:
            raise UnsupportedError("results of parts are written by blocks of columns alone")
        total = self.accumulator(type_of(value), start_of(value), slot)
        group = LoopGroup(self.fresh("j"), value.arg.shape[value.first : value.last + 1])
        inner = (*coords[: value.first], *group.coords(), *coords[value.last + 1 :])

        def take(into: str) -> None:
            self.add(step_of(value, into, self.read(value.arg, inner), group.var))

        self.over(group, total, slot, take, summed=type_of(value) if value.op == "sum" else None)
        return result_of(value, total)

    def over(self, group: LoopGroup, total: str, slot: str, take: Callable[[str], None], summed: str | None) -> None:
        """Let an accumulator, ``total``, take what there is in each step of a group.

        Args:
            group: What is reduced.
            total: C++ name.
            slot: Of a lane.
            take: Adds the statements that let one accumulator take one step.
            summed: Type of a sum; a long one is that of sums of runs.
        """
        extent = self.signature.extent(group.extent)
        if summed is None or group.extent.value <= LONGEST_RUN:
            with self.scope() as body:
                self.inner(slot, lambda: take(total))
            self.count(group.var, extent, body)
            return
        first, end = self.fresh("first"), self.fresh("end")
        with self.scope() as run:
            self.add(f"const int {end} = {extent} - {first} < {LONGEST_RUN} ? {extent} : {first} + {LONGEST_RUN};")
            part = self.accumulator(summed, "0", slot)
            with self.scope() as body:
                self.inner(slot, lambda: take(part))
            self.count(group.var, end, body, first)
            self.inner(slot, lambda: self.add(f"{total} += {part};"))
        self.count(first, extent, run, step=str(LONGEST_RUN))

    def _contraction(self, value: Value, coords: tuple[Coordinate, ...], slot: str) -> str:
        assert isinstance(value, Contraction)
        if value.parts is not None:
            raise UnsupportedError("sums of parts are written on tensor cores alone")
        total = self.accumulator(sum_type(value.dtype), "0", slot)
        group = LoopGroup(self.fresh("k"), value.a.shape[-1:])
        (step,) = group.coords()
        *batch, row, column = coords

        def take(into: str) -> None:
            a = self.read(value.a, (*batch, row, step))
            b = self.read(value.b, (*batch, step, column))
            self.add(f"{into} += {a} * {b};")

        self.over(group, total, slot, take, summed=sum_type(value.dtype))
        return total

    def _convolution(self, value: Value, coords: tuple[Coordinate, ...], slot: str) -> str:
        """Loops over the window around one over channels, whose places and conditions they decide; in lanes, whose
        places differ, all of it is in the innermost loop."""
        assert isinstance(value, Convolution)
        total = self.accumulator(sum_type(value.dtype), "0", slot)
        depth, per_group = channels_of(value)
        channels = LoopGroup(self.fresh("c"), (depth,))
        image, out_channel, *spots = coords
        taps = self._taps(value.weight.shape[2:])
        stepped = value.transposed and all(dim.text == "1" for dim in value.dilation)

        def of_channel() -> tuple[Coordinate, Coordinate]:
            """The input channel, and the output channel within its group; lanes may have different ones."""
            if value.groups == 1:
                return channels.coords()[0], out_channel
            channel, group_size = self.text(out_channel), self.signature.extent(per_group)
            first = f"{channel} / {group_size} * {self.signature.extent(depth)}"
            return Coordinate(f"({first} + {channels.var})"), Coordinate(f"({channel} % {group_size})")

        def places() -> tuple[tuple[str, ...], str]:
            steps = [tap.var for tap in taps]
            if value.transposed:
                return self._sources(value, tuple(spots), steps, every=not stepped)
            at = self.window_positions(value, tuple(spots), steps)
            return at, self.inside(value, at)

        def multiply(at: Sequence[str]) -> None:
            source, inside = of_channel()
            lead = (source, inside) if value.transposed else (out_channel, channels.coords()[0])
            weight = self.read(value.weight, (*lead, *(tap.coords()[0] for tap in taps)))
            element = self.tap(value.x, (image, source), at, "", "0.0f")
            self.add(f"{total} += {element} * {weight};")

        def over_channels() -> None:
            at, condition = places()
            with self.scope() as body:
                self._nest([channels], "", lambda: multiply(at))
            self.lines += [f"if ({condition}) {{", *indent(body), "}"] if condition else body

        if slot:
            self._nest([channels, *taps], slot, lambda: multiply(places()[0]))
            return total
        self._write_outside(coords)
        firsts = {}
        if stepped:
            for axis, tap in enumerate(taps):
                stride, padding = (self.signature.extent(dims[axis]) for dims in (value.stride, value.padding))
                firsts[tap] = (f"({self.text(spots[axis])} + {padding}) % {stride}", stride)
        self._nest(taps, "", over_channels, firsts)
        return total

    def _write_outside(self, coords: Sequence[Coordinate]) -> None:
        """Compute coordinates here, outside of the loops that read them."""
        for coord in coords:
            self.text(coord)

    def _taps(self, extents: tuple[Dim, ...]) -> list[LoopGroup]:
        """Loop variables over the window's axes."""
        return [LoopGroup(self.fresh(v), (dim,)) for v, dim in zip("zyx"[-len(extents) :], extents, strict=True)]

    def _nest(
        self,
        groups: list[LoopGroup],
        slot: str,
        write: Callable[[], None],
        steps: Mapping[LoopGroup, tuple[str, str]] | None = None,
    ) -> None:
        """Loops over ``groups``, the last innermost, around what ``write`` adds; ``steps`` are other starts and
        steps than 0 and 1."""
        with self.scope() as body:
            self.inner(slot, write)
        for group in reversed(groups):
            with self.scope() as outer:
                self.count(group.var, self.signature.extent(group.extent), body, *(steps or {}).get(group, ()))
            body = outer
        self.lines += body

    def window_positions(
        self, value: Convolution | Window, coords: tuple[Coordinate, ...], steps: Sequence[str]
    ) -> tuple[str, ...]:
        """Coordinates of the input under one tap, declared as integers."""
        names = []
        for axis, letter in enumerate("dhw"[-len(steps) :]):
            numbers = (value.stride[axis], value.dilation[axis], value.padding[axis])
            stride, dilation, padding = (self.signature.extent(dim) for dim in numbers)
            at = self.text(coords[axis])
            text = at if stride == "1" else f"{at} * {stride}"
            text += f" + {steps[axis]}" if dilation == "1" else f" + {steps[axis]} * {dilation}"
            if padding != "0":
                text += f" - {padding}"
            name = self.fresh(letter)
            self.add(f"const int {name} = {text};")
            names.append(name)
        return tuple(names)

    def _sources(
        self, value: Convolution, coords: tuple[Coordinate, ...], steps: Sequence[str], every: bool
    ) -> tuple[tuple[str, ...], str]:
        """Coordinates of the input that one tap of a transposed convolution comes from, and whether there is one.

        Args:
            every: the taps are not only those that some element of the input comes to.
        """
        names, conditions = [], []
        for axis, letter in enumerate("dhw"[-len(steps) :]):
            numbers = (value.stride[axis], value.dilation[axis], value.padding[axis])
            stride, dilation, padding = (self.signature.extent(dim) for dim in numbers)
            far, name = self.fresh("q"), self.fresh(letter)
            text = f"{self.text(coords[axis])} + {padding} - {steps[axis]}"
            self.add(f"const int {far} = {text if dilation == '1' else f'{text} * {dilation}'};")
            self.add(f"const int {name} = {far} / {stride};")
            even = f" && {far} % {stride} == 0" if every and stride != "1" else ""
            conditions.append(f"{far} >= 0{even} && {name} < {self.signature.extent(value.x.shape[2 + axis])}")
            names.append(name)
        return tuple(names), " && ".join(conditions)

    def inside(self, value: Convolution | Window, at: Sequence[str]) -> str:
        """The condition that a place lies in the input, where the window may hang over; empty where it cannot."""
        conditions = []
        for spot, dim, padding in zip(at, value.x.shape[-len(at) :], value.padding, strict=True):
            if padding.text != "0":
                conditions.append(f"{spot} >= 0")
            if padding.text != "0" or isinstance(value, Window):
                conditions.append(f"{spot} < {self.signature.extent(dim)}")
        return " && ".join(conditions)

    def tap(self, x: Value, lead: tuple[Coordinate, ...], at: Sequence[str], condition: str, outside: str) -> str:
        """An element of ``x``, or ``outside`` in the padding."""
        if not condition:
            return self.read(x, (*lead, *(Coordinate(text) for text in at)))
        return self.guarded(x.dtype, outside, [(condition, x, (*lead, *(Coordinate(text) for text in at)))])

    def _window(self, value: Value, coords: tuple[Coordinate, ...], slot: str) -> str:
        assert isinstance(value, Window)
        assert not slot, "a window tests its edges"
        start = f"-{INFINITY}" if value.op == "max" else "0"
        total = self.accumulator(sum_type(value.dtype), start, "")
        counts = value.op == "avg" and not value.count_padding
        taken = self.accumulator("int", "0", "") if counts else ""
        rank = len(value.kernel)
        taps = self._taps(value.kernel)

        def write() -> None:
            at = self.window_positions(value, coords[-rank:], [tap.var for tap in taps])
            condition = self.inside(value, at)
            element = self.tap(value.x, coords[:-rank], at, condition, start)
            if value.op == "max":
                self.add(f"{total} = max_of({total}, {element});")
            else:
                self.add(f"{total} += {element};")
            if counts:
                self.add(f"{taken} += {condition or 1};")

        self._write_outside(coords)
        self._nest(taps, "", write)
        if value.op == "max":
            return total
        return f"{total} / {taken or self.signature.extent(product(value.kernel))}"


def _tests_edges(value: Value) -> bool:
    """Whether each step of a window tests whether its place lies in the input."""
    if isinstance(value, Convolution):
        return value.transposed or any(dim.text != "0" for dim in value.padding)
    return isinstance(value, Window)


def channels_of(value: Convolution) -> tuple[Dim, Dim]:
    """Input and output channels of one group."""
    x, weight = value.x.shape[1], value.weight.shape[1]
    if value.groups == 1:
        return (x, weight) if value.transposed else (weight, value.shape[1])
    if value.transposed:
        return Dim(f"{x.atom} * {weight.atom} // {value.shape[1].atom}", x.value // value.groups), weight
    out = value.shape[1]
    return weight, Dim(f"{out.atom} * {weight.atom} // {x.atom}", out.value // value.groups)


def output_dim(extent: Dim, kernel: Dim, stride: Dim, padding: Dim, dilation: Dim) -> Dim:
    """Extent of a window's output along one axis."""
    reach = dilation.value * (kernel.value - 1) + 1 - 2 * padding.value
    value = (extent.value - reach) // stride.value + 1
    if not (kernel.is_literal and padding.is_literal and dilation.is_literal):
        spread = f"{dilation.atom} * ({kernel.text} - 1) + 1 - 2 * {padding.atom}"
        return Dim(f"({extent.atom} - ({spread})) // {stride.atom} + 1", value)
    if stride.text == "1":
        less = reach - 1
        return Dim(f"{extent.atom} {'-' if less > 0 else '+'} {abs(less)}", value) if less else extent
    text = f"{extent.atom} - {reach}" if reach >= 0 else f"{extent.atom} + {-reach}"
    return Dim(f"({text}) // {stride.atom} + 1", value)
