"""C functions of a lowered reference: loop nests over the elements of each stored value, with OpenMP.

The values are those that kernels are made of, but stored by another rule: what a loop would compute again in each of
its steps has an array of its own, so that no statement repeats the work of another.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

from kernelforge.agents.builtin.codegen.cpp_emitter import INFINITY, NOT_A_NUMBER, indent
from kernelforge.agents.builtin.codegen.kernel import cone, in_order
from kernelforge.agents.builtin.codegen.loops import LoopEmitter, start_of
from kernelforge.agents.builtin.codegen.render import stored_readers
from kernelforge.agents.builtin.ir.iteration_space import C_TYPES, ZERO, Coordinate, LoopGroup, Signature, compute_type
from kernelforge.agents.builtin.ir.lowering import RESERVED
from kernelforge.agents.builtin.ir.nodes import (
    ANCHORS,
    Attention,
    Dim,
    Loop,
    LoopResult,
    Program,
    Recurrence,
    Reduce,
    Scalar,
    Scan,
    StoredTensor,
    Value,
    computes,
    product,
)
from kernelforge.errors import UnsupportedError
from kernelforge.records import DType

_WITHOUT_LOOPS: Final = (Attention, Recurrence, Loop, LoopResult)

_CALL: Final = re.compile(r"(?<![\w.])([A-Za-z_]\w*)(?:<[a-z ]+>)?\(")
_NAME: Final = re.compile(r"[A-Za-z_]\w*")
_EXTENT: Final = re.compile(r"attrs\[\"[^\"]*\"\]|[A-Za-z_]\w*")
_FACTOR: Final = re.compile(r"(?<!\w)\((\w+)\) \*")
_BRACKETS: Final = re.compile(r"(?<!\w)\((\w+)\)")
_SAME: Final = frozenset({
    "exp", "expm1", "log", "log1p", "log2", "log10", "exp2", "sqrt", "erf", "erfc", "sin", "cos", "tan", "asin",
    "acos", "atan", "atan2", "sinh", "cosh", "tanh", "floor", "ceil", "rint", "trunc", "pow", "fmod", "hypot",
    "lgamma", "for", "if",
})  # fmt: skip
"""Functions that ``tgmath.h`` has for float and double alike, as CUDA C++ has, and words before a bracket."""
_OTHER: Final = {
    "abs": "fabs", "rsqrt": "RSQRT", "max": "MAX", "min": "MIN", "max_of": "MAX", "min_of": "MIN",
}  # fmt: skip
"""What C calls functions of CUDA C++ and of kernels."""
_MACROS: Final = {
    "MAX": "#define MAX(a, b) ((a) > (b) || (a) != (a) ? (a) : (b))",
    "MIN": "#define MIN(a, b) ((a) < (b) || (a) != (a) ? (a) : (b))",
    "RSQRT": "#define RSQRT(x) (1 / sqrt(x))",
}
"""Of extremes NaN wins, as in PyTorch."""
_KEYWORDS: Final = frozenset({
    "auto", "break", "case", "char", "const", "continue", "default", "do", "double", "else", "enum", "extern",
    "float", "for", "goto", "if", "inline", "int", "long", "register", "restrict", "return", "short", "signed",
    "sizeof", "static", "struct", "switch", "typedef", "union", "unsigned", "void", "volatile", "while", "bool",
    "true", "false", "malloc", "free", "I", "complex", "imaginary", "NAN", "INFINITY",
})  # fmt: skip


def is_c_name(name: str) -> bool:
    """Whether a parameter of a C function here may have the name."""
    return not (name in _KEYWORDS | _SAME | RESERVED or name in _OTHER or re.fullmatch(r"out(_\d+)?", name))


def write_c_function(
    name: str, program: Program, extents: Mapping[str, str], numbers: Mapping[str, str], title: str = ""
) -> str:
    """The text of a C file with one function that computes the outputs of a program.

    Its parameters are the inputs by name, the extents among ``extents`` that it uses, and the outputs: ``out``, or
    ``out_0``, ``out_1`` and so on. Arrays are contiguous.

    Args:
        name: of the function.
        program: the lowered reference; it has no weights.
        extents: C expression of each extent of an input and of each attribute, by its text in the program, such as
            ``x_0``.
        numbers: C type of each input that is a number, and of what ``extents`` has that is no integer.
        title: a comment above the function; none if empty.

    Raises:
        UnsupportedError: the program holds a recurrence, a loop of rounds, an element type or a function without a C
            counterpart here.
    """
    order = _stored(program)
    tensors = _names(program, order)
    types = {value: C_TYPES[value.dtype] for value in tensors}
    body: list[str] = []
    for value in order:
        if value not in program.outputs:
            body.append(f"{types[value]} *{tensors[value]} = malloc({_bytes(value, extents)});")
        body += _statements(value, frozenset(order), tensors, extents)
    body += [f"free({tensors[value]});" for value in order if value not in program.outputs]
    parameters = []
    for leaf in program.leaves:
        if isinstance(leaf, Scalar):
            parameters.append(f"{numbers[leaf.text]} {leaf.text}")
        else:
            parameters.append(f"const {C_TYPES[leaf.dtype]} *{leaf.name}")
    words = {word for line in body for word in _NAME.findall(line)}
    taken = {leaf.text for leaf in program.leaves}
    used = dict.fromkeys(word for text in extents.values() for word in _NAME.findall(text) if word in words - taken)
    parameters += [f"{numbers.get(extent, 'int')} {extent}" for extent in used]
    parameters += [f"{types[value]} *{tensors[value]}" for value in program.outputs]
    text = "\n".join(body)
    macros = [macro for word, macro in _MACROS.items() if f"{word}(" in text]
    head = [
        "#include <stdbool.h>",
        "#include <stdlib.h>",
        "#include <tgmath.h>",
        "",
        *macros,
        *([""] if macros else []),
    ]
    comment = [f"/* {title.replace('*/', '')} */"] if title else []
    return "\n".join([*head, *comment, f"void {name}({', '.join(parameters)})", "{", *indent(body), "}", ""])


def _stored(program: Program) -> list[Value]:
    """The values that have an array, in an order in which they can be computed."""
    everything = in_order(program)
    for value in (*everything, *program.leaves):
        if isinstance(value, _WITHOUT_LOOPS):
            raise UnsupportedError(f"there is no C loop for a {type(value).__name__.lower()}")
        if value.dtype in (DType.FLOAT16, DType.BFLOAT16):
            raise UnsupportedError(f"C has no elements of type {value.dtype}")
    outputs = set(program.outputs)
    users: dict[Value, list[Value]] = {value: [] for value in everything}
    for value in everything:
        for operand in value.operands:
            users.setdefault(operand, []).append(value)
    stored = {value for value in everything if computes(value) or value in outputs}
    for value in reversed(everything):
        if value not in stored or value in outputs or isinstance(value, Scan):
            continue
        reading = stored_readers(value, users, stored)
        if len(reading) == 1 and _may_be_inside(value, reading.pop(), frozenset(stored - {value})):
            stored.discard(value)
    return [value for value in everything if value in stored]


def _may_be_inside(value: Value, reader: Value, stored: frozenset[Value]) -> bool:
    """Whether the loops that compute ``reader`` compute each element of ``value`` once."""
    inside = cone(reader, stored - {reader})
    anchors = [other for other in inside if isinstance(other, ANCHORS) and other is not value]
    elements = product(value.shape).value
    if isinstance(value, ANCHORS):
        return not anchors and elements == product(reader.shape).value
    for anchor in anchors:
        if value in cone(anchor, stored - {anchor}):
            is_read_once = isinstance(anchor, Reduce) and product(anchor.arg.shape).value == elements
            return is_read_once or isinstance(anchor, Scan)
    return elements == product(reader.shape).value


def _names(program: Program, order: Sequence[Value]) -> dict[Value, str]:
    """Names of the arrays: inputs, then the stored values."""
    names: dict[Value, str] = {}
    for leaf in program.leaves:
        if isinstance(leaf, StoredTensor):
            if not leaf.is_contiguous or leaf.text != leaf.name:
                raise UnsupportedError(f"a C function takes contiguous inputs alone, which {leaf.text} is not")
            names[leaf] = leaf.name
    outputs = {value: position for position, value in enumerate(program.outputs)}
    taken = set(names.values())
    for value in order:
        if value in outputs:
            names[value] = "out" if len(outputs) == 1 else f"out_{outputs[value]}"
            continue
        base = f"{value.origin or 'copy'}_of"
        name = next(text for text in (base, *(f"{base}_{number}" for number in range(2, 1000))) if text not in taken)
        names[value] = name
        taken.add(name)
    return names


def _bytes(value: Value, extents: Mapping[str, str]) -> str:
    factors = [_extent(dim, extents) for dim in value.shape]
    return " * ".join([f"sizeof({C_TYPES[value.dtype]})", *(factor for factor in factors if factor != "1")])


def _statements(
    value: Value, stored: frozenset[Value], tensors: Mapping[Value, str], extents: Mapping[str, str]
) -> list[str]:
    """Loops that compute all elements of a stored value."""
    emitter = _CEmitter(stored - {value}, tensors, extents)
    axes = [LoopGroup(f"i{axis}", (dim,)) for axis, dim in enumerate(value.shape)]
    coords = tuple(ZERO if axis.dims[0].text == "1" else axis.coords()[0] for axis in axes)
    target = f"{tensors[value]}[{emitter.offset(value.shape, coords)}]"
    if isinstance(value, Scan):
        along = axes.pop(value.axis)
        emitter.scan(value, along, coords, target)
    else:
        element = emitter.read(value, coords)
        emitter.add(f"{target} = {element};")
    lines = emitter.lines
    for axis in reversed(axes):
        if axis.dims[0].text != "1":
            emitter.lines = []
            emitter.count(axis.var, emitter.signature.extent(axis.extent), lines)
            lines = emitter.lines
    return ["#pragma omp parallel for", *lines] if lines[0].startswith("for (int i") else ["{", *indent(lines), "}"]


def _extent(dim: Dim, extents: Mapping[str, str]) -> str:
    """An extent in C, safe as an operand."""

    def named(match: re.Match[str]) -> str:
        if match[0] not in extents:
            raise UnsupportedError(f"C has no name for {match[0]}, of the extent {dim.text}")
        return extents[match[0]]

    text = _BRACKETS.sub(r"\1", _EXTENT.sub(named, dim.text).replace("//", "/"))
    text = _unwrapped(text)
    return text if text.isidentifier() or text.isdigit() else f"({text})"


def _unwrapped(text: str) -> str:
    """An expression without brackets around all of it."""
    while text.startswith("(") and text.endswith(")"):
        depth = 0
        for position, sign in enumerate(text):
            depth += (sign == "(") - (sign == ")")
            if depth == 0 and position < len(text) - 1:
                return text
        text = text[1:-1]
    return text


class _CNames(Signature):
    """Names of a C function's parameters and arrays."""

    def __init__(self, arrays: Mapping[Value, str], extents: Mapping[str, str]) -> None:
        super().__init__()
        self._arrays, self._extents = arrays, extents

    def tensor(self, value: Value) -> str:
        return self._arrays[value]

    def extent(self, dim: Dim) -> str:
        return _extent(dim, self._extents)

    def scalar(self, value: Scalar) -> str:
        if value.text.isidentifier():
            return value.text
        if value.text in self._extents:
            return self._extents[value.text]
        # A scale: the root of an extent, or its reciprocal.
        inside = re.fullmatch(r"(1 / )?(sqrt)?\(?(.+?)\)?", value.text)
        if inside is None or not inside[3]:
            raise UnsupportedError(f"C has no name for {value.text}")
        dim = f"({compute_type(value.dtype)}){_extent(Dim(inside[3], 0), self._extents)}"
        root = f"sqrt({dim})" if inside[2] else dim
        return f"(1 / {root})" if inside[1] else root


class _CEmitter(LoopEmitter):
    """Collects the statements of one loop nest in C: every variable has its type, every function its name in C."""

    def __init__(self, stored: frozenset[Value], arrays: Mapping[Value, str], extents: Mapping[str, str]) -> None:
        super().__init__(stored)
        self.signature = _CNames(arrays, extents)
        self._used = {*arrays.values(), *(word for text in extents.values() for word in _NAME.findall(text))}

    def fresh(self, prefix: str = "t") -> str:
        while (name := super().fresh(prefix)) in self._used:
            pass
        return name

    def add(self, line: str) -> None:
        line = line.replace(INFINITY, "INFINITY").replace(NOT_A_NUMBER, "NAN")
        self.lines.append(_CALL.sub(_in_c, _FACTOR.sub(r"\1 *", line)))

    def declare(self, value: Value, expression: str) -> str:
        name = self.fresh()
        self.add(f"const {compute_type(value.dtype)} {name} = {expression};")
        return name

    def _reduce(self, value: Value, coords: tuple[Coordinate, ...], slot: str) -> str:
        """Nested loops over the axes that are reduced."""
        assert isinstance(value, Reduce)
        if value.parts is not None:
            raise UnsupportedError("a C function has no sums of parts")
        dims = value.arg.shape[value.first : value.last + 1]
        axes = [LoopGroup(self.fresh("r"), (dim,)) for dim in dims]
        places = tuple(axis.coords()[0] for axis in axes)
        self._write_outside(coords)
        with_place = value.op in ("argmax", "argmin")
        ctype = compute_type(value.arg.dtype if with_place else value.dtype)
        start = start_of(value)
        if with_place:
            start = INFINITY if value.op == "argmin" else f"-{INFINITY}"
        total = self.fresh("best" if with_place else "acc")
        self.add(f"{ctype} {total} = {start};")
        at = self.fresh("at")
        if with_place:
            self.add(f"int {at} = 0;")

        def take() -> None:
            element = self.read(value.arg, (*coords[: value.first], *places, *coords[value.last + 1 :]))
            self._take(value.op, total, element, value.arg.dtype, at, self.offset(dims, places))

        self._nest(axes, "", take)
        return f"(long long){at}" if with_place else total

    def _take(self, op: str, total: str, element: str, dtype: DType, at: str, where: str) -> None:
        """Statements that let a running value take one more element."""
        sign = "<" if op in ("min", "argmin") else ">"
        if op == "sum":
            self.add(f"{total} += {element};")
        elif op == "prod":
            self.add(f"{total} *= {element};")
        elif op in ("max", "min"):
            nan = f" || {element} != {element}" if dtype.is_floating else ""
            self.add(f"if ({element} {sign} {total}{nan}) {total} = {element};")
        else:
            nan = f" || ({element} != {element} && {total} == {total})" if dtype.is_floating else ""
            self.add(f"if ({element} {sign} {total}{nan}) {{")
            self.lines += [f"    {total} = {element};", f"    {at} = {where};", "}"]

    def scan(self, value: Scan, along: LoopGroup, coords: tuple[Coordinate, ...], target: str) -> None:
        """The loop along a scan's axis, which stores each prefix."""
        ctype = compute_type(value.dtype)
        carry = self.fresh("carry")
        if value.op not in ("sum", "prod") and not value.dtype.is_floating:
            raise UnsupportedError(f"there is no C loop for the prefix {value.op} of integers")
        start = {"sum": "0", "prod": "1", "min": "INFINITY"}.get(value.op, "-INFINITY")
        self.add(f"{ctype} {carry} = {start};")
        with self.scope() as body:
            element = self.read(value.arg, coords)
            if value.op == "logaddexp":
                joined = f"max({carry}, {element}) + log1p(exp(-abs({carry} - {element})))"
                first = f"{carry} == -INFINITY ? {element} : {joined}"
                self.add(f"{carry} = {element} == -INFINITY ? {carry} : {first};")
            else:
                self._take(value.op, carry, element, value.dtype, "", "")
            self.add(f"{target} = {carry};")
        self.count(along.var, self.signature.extent(along.extent), body)


def _in_c(match: re.Match[str]) -> str:
    """The call of a function of CUDA C++ in C."""
    name = match[1]
    if name in _SAME:
        return f"{name}("
    if name not in _OTHER:
        raise UnsupportedError(f"there is no C function for {name}")
    return f"{_OTHER[name]}("
