"""Loops inside one thread: reductions, contractions, convolutions and windows as straightforward ``for`` loops."""

from __future__ import annotations

from collections.abc import Callable

from kernelforge.agents.builtin.emit import Coord, Emitter, Group, compute_type
from kernelforge.agents.builtin.helpers import INFINITY
from kernelforge.agents.builtin.ir import Contraction, Conv2d, Dim, Reduce, Value, Window, literal
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


def start_of(reduce: Reduce) -> str:
    """The value that a reduction starts from."""
    dtype = reduce.arg.dtype
    if reduce.op in ("argmax", "argmin"):
        return f"Best{{-{INFINITY}, 2147483647}}"
    if reduce.op == "max":
        return f"-{INFINITY}" if dtype.is_floating else _LOWEST[dtype]
    if reduce.op == "min":
        return INFINITY if dtype.is_floating else _HIGHEST[dtype]
    return "0" if reduce.op == "sum" else "1"


def type_of(reduce: Reduce) -> str:
    return "Best" if reduce.op in ("argmax", "argmin") else compute_type(reduce.dtype)


def combine_of(reduce: Reduce) -> str:
    """Name of the device function that combines two partial results."""
    return "best_of" if reduce.op in ("argmax", "argmin") else f"{reduce.op}_of"


def step_of(reduce: Reduce, into: str, element: str, at: str) -> str:
    """Statement that takes one more element in."""
    if reduce.op == "sum":
        return f"{into} += {element};"
    if reduce.op == "prod":
        return f"{into} *= {element};"
    if reduce.op in ("max", "min"):
        return f"{into} = {reduce.op}_of({into}, ({compute_type(reduce.dtype)})({element}));"
    sign = "-" if reduce.op == "argmin" else ""
    return f"{into} = best_of({into}, Best{{{sign}{element}, {at}}});"


def result_of(reduce: Reduce, accumulator: str) -> str:
    if reduce.op in ("argmax", "argmin"):
        return f"(long long){accumulator}.at"
    return accumulator


class LoopEmitter(Emitter):
    """An emitter whose threads loop on their own over whatever their element needs."""

    def loop(self, value: Value, coords: tuple[Coord, ...]) -> str:
        if isinstance(value, Reduce):
            body = self._reduce
        elif isinstance(value, Contraction):
            body = self._contraction
        elif isinstance(value, Conv2d):
            body = self._conv2d
        elif isinstance(value, Window):
            body = self._window
        else:
            raise UnsupportedError(f"the built-in Coder has no single-thread loop for a {type(value).__name__}")
        if self.hoisted is None:
            return body(value, coords, "")
        if not all(coord.lives_everywhere for coord in coords):
            raise UnsupportedError("the lanes' loop would use coordinates of another scope")
        hoisted, lines = self.hoisted, self.lines
        self.lines, self.hoisted = hoisted, None
        result = body(value, coords, "[k]")
        self.lines, self.hoisted = lines, hoisted
        return result

    def accumulator(self, ctype: str, start: str, lane: str) -> str:
        name = self.fresh("acc")
        if lane:
            self.add(f"{ctype} {name}[V];")
            self.add("#pragma unroll")
            self.add(f"for (int k = 0; k < V; ++k) {name}[k] = {start};")
        else:
            self.add(f"{ctype} {name} = {start};")
        return name + lane

    def inner(self, lane: str, write: Callable[[], None]) -> None:
        """Statements of the innermost loop: once, or once per lane after the vector loads they need."""
        if not lane:
            write()
            return
        with self.lanes() as (before, body):
            write()
        self.lines += [*before, "#pragma unroll", "for (int k = 0; k < V; ++k) {", *indent(body), "}"]

    def count(self, var: str, extent: str, body: list[str]) -> None:
        self.add(f"for (int {var} = 0; {var} < {extent}; ++{var}) {{")
        self.lines += [*indent(body), "}"]

    def _reduce(self, value: Value, coords: tuple[Coord, ...], lane: str) -> str:
        assert isinstance(value, Reduce)
        total = self.accumulator(type_of(value), start_of(value), lane)
        group = Group(self.fresh("j"), value.arg.shape[value.first : value.last + 1])
        inner = (*coords[: value.first], *group.coords(), *coords[value.last + 1 :])
        with self.scope() as body:
            self.inner(lane, lambda: self.add(step_of(value, total, self.read(value.arg, inner), group.var)))
        self.count(group.var, self.signature.extent(group.extent), body)
        return result_of(value, total)

    def _contraction(self, value: Value, coords: tuple[Coord, ...], lane: str) -> str:
        assert isinstance(value, Contraction)
        total = self.accumulator("float", "0", lane)
        group = Group(self.fresh("k"), value.a.shape[-1:])
        (step,) = group.coords()
        *batch, row, column = coords

        def write() -> None:
            a = self.read(value.a, (*batch, row, step))
            b = self.read(value.b, (*batch, step, column))
            self.add(f"{total} += {a} * {b};")

        with self.scope() as body:
            self.inner(lane, write)
        self.count(group.var, self.signature.extent(group.extent), body)
        return total

    def _conv2d(self, value: Value, coords: tuple[Coord, ...], lane: str) -> str:
        assert isinstance(value, Conv2d)
        total = self.accumulator("float", "0", lane)
        channels, height, width = (
            Group(self.fresh(v), (d,)) for v, d in zip("cyx", value.weight.shape[1:], strict=True)
        )

        def write() -> None:
            image, out_channel = coords[:2]
            channel = channels.coords()[0]
            weight = self.read(value.weight, (out_channel, channel, height.coords()[0], width.coords()[0]))
            source = channel
            if value.groups > 1:
                per_group = f"({self.signature.extent(value.shape[1])} / {value.groups})"
                width_of = self.signature.extent(value.weight.shape[1])
                source = Coord(f"({self.text(out_channel)} / {per_group} * {width_of} + {channels.var})")
            positions = self.window_positions(value, coords[2:], (height.var, width.var))
            element = self.guarded(value.x, (image, source), positions, "0.0f")
            self.add(f"{total} += {element} * {weight};")

        with self.scope() as innermost:
            self.inner(lane, write)
        with self.scope() as middle:
            self.count(width.var, self.signature.extent(width.extent), innermost)
        with self.scope() as outer:
            self.count(height.var, self.signature.extent(height.extent), middle)
        self.count(channels.var, self.signature.extent(channels.extent), outer)
        return total

    def window_positions(
        self, value: Conv2d | Window, coords: tuple[Coord, ...], steps: tuple[str, str]
    ) -> tuple[str, str]:
        """Row and column of the input under one tap, declared as integers."""
        names = []
        for axis in (0, 1):
            at = self.text(coords[axis])
            text = at if value.stride[axis] == 1 else f"{at} * {value.stride[axis]}"
            text += f" + {steps[axis]}" if value.dilation[axis] == 1 else f" + {steps[axis]} * {value.dilation[axis]}"
            if value.padding[axis]:
                text += f" - {value.padding[axis]}"
            name = self.fresh("w" if axis else "h")
            self.add(f"const int {name} = {text};")
            names.append(name)
        return names[0], names[1]

    def guarded(self, x: Value, lead: tuple[Coord, ...], at: tuple[str, str], outside: str) -> str:
        """An element of the last two axes of ``x``, or ``outside`` in the padding."""
        extents = [self.signature.extent(dim) for dim in x.shape[-2:]]
        name = self.fresh()
        self.add(f"{compute_type(x.dtype)} {name} = {outside};")
        with self.scope() as body:
            self.add(f"{name} = {self.read(x, (*lead, Coord(at[0]), Coord(at[1])))};")
        inside = " && ".join(f"{p} >= 0 && {p} < {n}" for p, n in zip(at, extents, strict=True))
        self.lines += [f"if ({inside}) {{", *indent(body), "}"]
        return name

    def _window(self, value: Value, coords: tuple[Coord, ...], lane: str) -> str:
        assert isinstance(value, Window)
        start = f"-{INFINITY}" if value.op == "max" else "0"
        total = self.accumulator("float", start, lane)
        counts = value.op == "avg" and not value.count_padding
        taps = self.accumulator("int", "0", lane) if counts else ""
        height, width = (Group(self.fresh(v), (literal(n),)) for v, n in zip("yx", value.kernel, strict=True))

        def write() -> None:
            at = self.window_positions(value, coords[-2:], (height.var, width.var))
            element = self.guarded(value.x, coords[:-2], at, start)
            if value.op == "max":
                self.add(f"{total} = max_of({total}, {element});")
            else:
                self.add(f"{total} += {element};")
            if counts:
                h, w = (self.signature.extent(dim) for dim in value.x.shape[-2:])
                self.add(f"{taps} += {at[0]} >= 0 && {at[0]} < {h} && {at[1]} >= 0 && {at[1]} < {w};")

        with self.scope() as innermost:
            self.inner(lane, write)
        with self.scope() as middle:
            self.count(width.var, width.extent.text, innermost)
        self.count(height.var, height.extent.text, middle)
        if value.op == "max":
            return total
        return f"{total} / {taps or value.kernel[0] * value.kernel[1]}"


def indent(lines: list[str]) -> list[str]:
    """One level deeper."""
    return ["    " + line for line in lines]


def output_dim(extent: Dim, kernel: int, stride: int, padding: int, dilation: int) -> Dim:
    """Extent of a window's output along one axis."""
    reach = dilation * (kernel - 1) + 1 - 2 * padding
    text = f"({extent.atom} - {reach}) // {stride} + 1"
    if reach < 0:
        text = f"({extent.atom} + {-reach}) // {stride} + 1"
    return Dim(text if stride > 1 or reach != 1 else extent.text, (extent.value - reach) // stride + 1)
