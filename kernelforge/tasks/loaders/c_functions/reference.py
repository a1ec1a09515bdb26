"""A torch reference that does what a C function does, and a C file that calls the function with a task's types.

A loop whose turns are independent becomes an axis of tensors; any other one becomes a loop of Python. A condition
becomes a mask. That the reference and the C agree is not believed but tried, when the task is imported.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import Final, Literal

from kernelforge.errors import TaskError
from kernelforge.records.task import C_ELEMENTS
from kernelforge.tasks.loaders.c_functions.analysis import Analysis, analysed, assigned, flat, names_in, only_added
from kernelforge.tasks.loaders.c_functions.bounds import ONE
from kernelforge.tasks.loaders.c_functions.syntax import (
    RESERVED,
    TOO_DEEP,
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
    Parameter,
    Return,
    Statement,
    Unary,
    kind_of,
    parse_function,
)

_TYPES: Final[Mapping[str, str]] = {
    "float": "float", "double": "double", "int": "int", "int32_t": "int", "signed int": "int", "signed": "int",
    "long": "long long", "long long": "long long", "int64_t": "long long", "long int": "long long",
    "unsigned char": "unsigned char", "uint8_t": "unsigned char", "signed char": "signed char",
    "int8_t": "signed char",
}  # fmt: skip
"""Types of a task's C function by those of published ones."""
_COUNTS: Final[Mapping[str, str]] = {
    **_TYPES, "unsigned int": "int", "unsigned": "int", "uint32_t": "int", "size_t": "long long",
    "unsigned long": "long long", "unsigned long long": "long long", "uint64_t": "long long",
}  # fmt: skip
"""The same of numbers, which are small and not negative."""
_FUNCTIONS: Final[Mapping[str, str]] = {
    "sqrt": "sqrt", "exp": "exp", "exp2": "exp2", "log": "log", "log2": "log2", "log10": "log10", "log1p": "log1p",
    "expm1": "expm1", "sin": "sin", "cos": "cos", "tan": "tan", "asin": "asin", "acos": "acos", "atan": "atan",
    "atan2": "atan2", "sinh": "sinh", "cosh": "cosh", "tanh": "tanh", "asinh": "asinh", "acosh": "acosh",
    "atanh": "atanh", "floor": "floor", "ceil": "ceil", "trunc": "trunc", "fabs": "abs", "pow": "pow", "fmod": "fmod",
    "erf": "erf", "fmax": "maximum", "fmin": "minimum", "hypot": "hypot", "rsqrt": "rsqrt",
}  # fmt: skip
"""Functions of torch by those of C, without the suffix of float."""
_POSITIVE: Final = frozenset({"sqrt", "log", "log2", "log10", "pow", "acos", "asin", "atanh", "rsqrt"})

_MOST_LANES, _MOST_TURNS, _MOST_WORK, _FIRST_TURNS = 1 << 22, 1024, 1 << 26, 64
"""At the full size: elements at once, statements that loops of Python run, and elements of all these together: the work
of a few seconds."""
_FIRST_LANES: Final = 1 << 20
_VALUE: Final = 3
"""A whole number that no loop counts to, where a data set gives none: a stride, an offset, a threshold."""
_FRACTION: Final = 0.75

_HELPERS: Final = '''
def span(start, stop, step, axis, axes, device):
    """A loop's variable along an axis."""
    values = torch.arange(start, max(start, stop), step, device=device)
    return values.reshape([1] * axis + [-1] + [1] * (axes - 1 - axis))


def read(array, at, where):
    """Elements of an array; its first one where the mask does not hold."""
    at = torch.as_tensor(at, device=array.device)
    return array[torch.where(torch.as_tensor(where, device=array.device), at, 0)]


def write(array, at, value, where=True):
    """The array with values at some indices, where the mask holds."""
    parts = [torch.as_tensor(part, device=array.device) for part in (at, value, where)]
    at, value, where = torch.broadcast_tensors(*parts)
    longer = torch.cat([array, array.new_zeros(1)])
    at = torch.where(where, at, array.shape[0]).flatten()
    return longer.index_put((at,), value.to(array.dtype).flatten())[:-1]


def total(value, where, axis, turns):
    """The sum of a value over the turns of a loop, where the mask holds."""
    parts = torch.broadcast_tensors(*[torch.as_tensor(part, device=turns.device) for part in (value, where, turns)])
    return torch.where(parts[1], parts[0], 0).sum(axis, keepdim=True)


def chosen(where, yes, no, dtype):
    """One value or the other."""
    if isinstance(where, bool):
        return yes if where else no
    as_tensors = [
        x if isinstance(x, torch.Tensor) else torch.tensor(x, dtype=dtype, device=where.device) for x in (yes, no)
    ]
    return torch.where(where, *as_tensors)


def neither(where):
    return not where if isinstance(where, bool) else ~where


def called(function, dtype, *values):
    """A function of torch, of tensors or numbers."""
    return function(*[x if isinstance(x, torch.Tensor) else torch.tensor(x, dtype=dtype) for x in values])


def as_real(value, dtype):
    return value.to(dtype) if isinstance(value, torch.Tensor) else float(value)


def as_int(value):
    return value.long() if isinstance(value, torch.Tensor) else int(value)


def quotient(one, other):
    """Division of whole numbers as in C."""
    if isinstance(one, torch.Tensor) or isinstance(other, torch.Tensor):
        return torch.div(one, other, rounding_mode="trunc")
    return abs(one) // abs(other) * (1 if (one < 0) == (other < 0) else -1)


def remainder(one, other):
    return one - quotient(one, other) * other
'''

_PRELUDE: Final = "#include <math.h>\n#include <stdbool.h>\n#include <stddef.h>\n#include <stdint.h>\n"


@dataclass(frozen=True)
class Written:
    """A function as the text of a task and of its C file."""

    source: str
    c_source: str
    fixed: frozenset[str]
    """Constants that no size may change."""


def written(
    text: str, name: str, title: str, *, values: Mapping[str, int | float] | None = None,
    lengths: Mapping[str, int] | None = None,
) -> Written:  # fmt: skip
    """A function of C as a task called ``name``.

    Args:
        values: of its parameters that are numbers, as the data set's tests have them.
        lengths: of its parameters that are arrays, where the data set gives their shapes.

    Raises:
        TaskError: it is no function that a task can be made of, or no sizes are surely safe; one line.
    """
    function = parse_function(text)
    try:
        return _Writer(function, text, name, title, values or {}, lengths or {}).written()
    except RecursionError:
        raise TaskError(TOO_DEEP) from None


Type = Literal["int", "float", "bool"]


@dataclass(frozen=True)
class _Value:
    text: str
    type: Type
    lanes: bool = False
    """Whether it is a tensor, and not a number of Python."""


class _Writer:
    def __init__(
        self, function: Function, text: str, name: str, title: str, values: Mapping[str, int | float],
        lengths: Mapping[str, int],
    ) -> None:  # fmt: skip
        self.function, self.text, self.name, self.title = function, text, name, title
        self.given, self.lengths = values, lengths
        self.analysis: Analysis = analysed(function)
        if not self.analysis.written and function.result == "void":
            raise TaskError("its C writes no array and returns nothing")
        self.called = _lower_names(function, name)
        self.arrays = {item.name: _type(item, _TYPES) for item in function.parameters if item.array}
        self.scalars = {item.name: _type(item, _COUNTS) for item in function.parameters if not item.array}
        self.constants = {item: self.called[item].upper() for item in self.scalars}
        self.variables: dict[str, _Value | None] = {}
        self.kinds: dict[str, str] = {
            **{item: kind_of(kind) for item, kind in (self.arrays | self.scalars).items()},
            **{item.name: item.kind for item in flat(function.body) if isinstance(item, Declare)},
        }
        self.lines: list[str] = []
        self.depth = 2
        self.axes = max([1, *(self._axes(path) for path in self.analysis.paths)])
        self.path: tuple[For, ...] = ()
        self.mask = ""
        self.masks = {"when": itertools.count(), "within": itertools.count()}
        self.taken = {*self.called.values(), *_local(function)}
        self.sums: dict[str, tuple[int, str, str]] = {}

    def _axes(self, path: tuple[For, ...]) -> int:
        return sum(1 for loop in path if self.analysis.ways[loop] != "in-turn")

    def written(self) -> Written:
        numbers = self._numbers()
        forward, outputs = self._forward()
        inputs = [item for item in self.function.parameters if self._is_input(item)]
        constants = [f"{self.constants[item]} = {numbers[item]!r}" for item in self.scalars]
        source = "\n".join(
            [f'"""{self.title}\n\nMade of a published C function."""', "", "import torch",
             "import torch.nn as nn", "", *constants, "", _HELPERS, "", "class Model(nn.Module):",
             f"    def forward(self, {', '.join(self.called[item.name] for item in inputs)}):", *forward,
             f"        return {', '.join(outputs)}", "", "", "def get_inputs():",
             f"    return [{', '.join(self._drawn(item) for item in inputs)}]", "", "", "def get_init_inputs():",
             "    return []", ""]
        )  # fmt: skip
        free = self.analysis.extents
        fixed = {self.constants[item] for item in self.scalars if item not in free}
        return Written(source, self._c_file(), frozenset(fixed))

    def _is_input(self, item: Parameter) -> bool:
        if item.array:
            return item.name not in self.analysis.written or item.name in self.analysis.kept
        return kind_of(item.type) == "float"

    def _numbers(self) -> dict[str, int | float]:
        """Values of the parameters that are numbers, at the full size."""
        analysis = self.analysis
        numbers: dict[str, int | float] = {}
        turns = frozenset(
            name for loop, way in analysis.ways.items() if way == "in-turn"
            for name in (analysis.loops[loop].high - analysis.loops[loop].low).names
        )  # fmt: skip
        extents = [item for item in self.scalars if item in analysis.extents]
        lanes, first = _FIRST_LANES, _FIRST_TURNS
        for item, kind in self.scalars.items():
            value = self.given.get(item)
            if kind_of(kind) == "float":
                numbers[item] = float(value) if value else _FRACTION
            elif item not in extents:
                numbers[item] = value if isinstance(value, int) and 0 < value < 1000 else _VALUE
        while True:
            for index, item in enumerate(extents):
                # Different parameters have different values, so that no task confuses them.
                numbers[item] = max(1, (first if item in turns else lanes) * (8 + index) // 8)
            counts = {item: number for item, number in numbers.items() if isinstance(number, int)}
            most_lanes, most_turns, work = self._work(counts)
            if most_lanes <= _MOST_LANES and most_turns <= _MOST_TURNS and work <= _MOST_WORK:
                break
            if not extents or max(lanes, first) <= 8:
                raise TaskError("its loops take too many turns for a reference in torch")
            if most_turns > _MOST_TURNS and first > 8:
                first //= 2
            else:
                lanes //= 2
        for loop, bounds in analysis.loops.items():
            if (bounds.high - bounds.low).value(counts) < 0:
                raise TaskError(f"no value of its parameters surely lets the loop over {loop.variable!r} run")
        return numbers

    def _work(self, numbers: Mapping[str, int]) -> tuple[int, int, int]:
        """At most this many elements at once, statements that loops of Python run, and elements of all these."""
        analysis = self.analysis

        def count(loop: For) -> int:
            bounds = analysis.loops[loop]
            return max(1, (bounds.high - bounds.low + ONE).value(numbers) // abs(loop.step))

        longest = max(length.value(numbers) for lengths in analysis.lengths.values() for length in lengths)
        lanes, turns = (
            [prod(count(loop) for loop in path if (analysis.ways[loop] == "in-turn") is in_turn)
             for path in analysis.paths]
            for in_turn in (False, True)
        )  # fmt: skip
        # A store makes a new array.
        work = sum(
            max(lanes_there, longest) * turns_there for lanes_there, turns_there in zip(lanes, turns, strict=True)
        )
        return max([longest, *lanes]), sum(turns), work

    def _length(self, array: str, *, c: bool = False) -> str:
        """Elements of an array, as an expression of the task file or of C."""
        if array in self.lengths:
            lengths = self.analysis.lengths[array]
            most = max(item.number or 0 for item in lengths)
            if any(item.names for item in lengths) or most > self.lengths[array]:
                raise TaskError(f"its C reaches behind the end of {array[:40]!r}, whose shape the data set gives")
            return str(self.lengths[array])
        names = {item: self.called[item] if c else self.constants[item] for item in self.scalars}
        parts = [item.text(names, "(long long)" if c else "") for item in self.analysis.lengths[array]]
        text = parts[0]
        for part in parts[1:]:
            text = f"(({text}) > ({part}) ? ({text}) : ({part}))" if c else f"max({text}, {part})"
        return text

    def _drawn(self, item: Parameter) -> str:
        if not item.array:
            return self.constants[item.name]
        length, kind = self._length(item.name), self.arrays[item.name]
        dtype = f"dtype=torch.{C_ELEMENTS[kind]}"
        if kind_of(kind) == "float":
            calls = {call.removesuffix("f") for call in _calls(self.function)}
            if "acosh" in calls:
                return f"torch.rand({length}, {dtype}) + 1"
            return f"torch.{'rand' if calls & _POSITIVE else 'randn'}({length}, {dtype})"
        low = 0 if kind == "unsigned char" else -100
        return f"torch.randint({1 if self._divides() else low}, 101, ({length},), {dtype})"

    def _divides(self) -> bool:
        return "/" in self.text or "%" in self.text

    def _c_file(self) -> str:
        """The published text, and a function with the task's name and types that calls it."""
        function = self.function
        parts, arguments, copies = [], [], []
        for item in function.parameters:
            called = self.called[item.name]
            kind = self.arrays[item.name] if item.array else self.scalars[item.name]
            if not item.array:
                parts.append(f"{kind} {called}")
                arguments.append(called)
            elif item.name not in self.analysis.written:
                parts.append(f"const {kind} *{called}")
                arguments.append(f"({item.type} *){called}")
            elif item.name not in self.analysis.kept:
                parts.append(f"{kind} *{called}")
                arguments.append(f"({item.type} *){called}")
            else:
                parts += [f"const {kind} *{called}", f"{kind} *{called}_out"]
                arguments.append(f"({item.type} *){called}_out")
                copies += [f"    for (long long each = 0; each < {self._length(item.name, c=True)}; each++)",
                           f"        {called}_out[each] = {called}[each];"]  # fmt: skip
        call = f"{function.name}({', '.join(arguments)});"
        if function.result != "void":
            result = _type(Parameter(function.result, "result", False), _TYPES)
            parts.append(f"{result} *{self._result}")
            call = f"{self._result}[0] = {call}"
        macros = "".join(
            f"#define {name}(a, b) ((a) {sign} (b) ? (a) : (b))\n"
            for name, sign in (("max", ">"), ("min", "<"))
            if name in set(_calls(function))
        )
        body = self.text.strip()
        return (
            f"{_PRELUDE}{macros}\nstatic {body}\n\n/* What is called: the function above"
            f"{', on copies of the arrays that it changes' if copies else ''}. */\n"
            f"void {self.name}({', '.join(parts)})\n{{\n"
            + "".join(f"{line}\n" for line in copies)
            + f"    {call}\n}}\n"
        )

    @property
    def _result(self) -> str:
        return "result" if "result" not in self.called.values() else "result_of_call"

    # The body of forward.

    def emit(self, line: str) -> None:
        self.lines.append("    " * self.depth + line)

    def _forward(self) -> tuple[list[str], list[str]]:
        fractions = [item for item in self.arrays if kind_of(self.arrays[item]) == "float"]
        inputs = [item for item in self.arrays if item not in self.analysis.written or item in self.analysis.kept]
        if not inputs:
            raise TaskError("its C takes no array, so its result is the same for all inputs")
        taken = next((item for item in fractions if item in inputs), None)
        self.emit(f"device = {self.called[inputs[0]]}.device")
        self.emit(f"real = {self.called[taken]}.dtype" if taken else "real = torch.float32")
        for item, kind in self.arrays.items():
            if item in self.analysis.written and item not in self.analysis.kept:
                dtype = "real" if taken and kind == self.arrays[taken] else f"torch.{C_ELEMENTS[kind]}"
                fill = 'float("nan")' if kind_of(kind) == "float" else "0"
                self.emit(
                    f"{self.called[item]} = torch.full(({self._length(item)},), {fill}, dtype={dtype}, device=device)"
                )
        for item, kind in self.scalars.items():
            name = self.called[item] if kind_of(kind) == "float" else self.constants[item]
            self.variables[item] = _Value(name, "float" if kind_of(kind) == "float" else "int")
        outputs = [self.called[item] for item in self.arrays if item in self.analysis.written]
        returned: list[str] = []
        self.statements(self.function.body[:-1] if self._returns() else self.function.body)
        if self.function.result != "void":
            last = self.function.body[-1]
            assert isinstance(last, Return)
            value = self.cast(self.expression(last.value or Number(0)), kind_of(self.function.result))
            dtype = f"torch.{C_ELEMENTS[_type(Parameter(self.function.result, 'result', False), _TYPES)]}"
            rounded = f".to({dtype})" if kind_of(self.function.result) == "int" else ""
            self.emit(f"result = torch.as_tensor({value.text}, device=device).reshape(1){rounded}")
            returned = ["result"]
        return self.lines, [*outputs, *returned]

    def _returns(self) -> bool:
        body = self.function.body
        if any(isinstance(item, Return) for item in body[:-1]):
            raise TaskError("its C returns before its end")
        last = body[-1] if body else None
        if self.function.result != "void" and not (isinstance(last, Return) and last.value is not None):
            raise TaskError("its C does not return a value at its end")
        return isinstance(last, Return)

    def statements(self, statements: tuple[Statement, ...]) -> None:
        for statement in statements:
            self.statement(statement)

    def statement(self, statement: Statement) -> None:
        match statement:
            case Declare(name=name, kind=kind, value=value, length=length):
                if length is not None:
                    size = self.expression(length)
                    fill, dtype = ("float('nan')", "real") if kind == "float" else ("0", "torch.int64")
                    self.emit(f"{name} = torch.full(({size.text},), {fill}, dtype={dtype}, device=device)")
                elif value is not None:
                    made = self.cast(self.expression(value), kind)
                    self.emit(f"{name} = {made.text}")
                    self.variables[name] = _Value(name, made.type, made.lanes)
                else:
                    self.emit(f"{name} = 0{'.0' if kind == 'float' else ''}")
                    self.variables[name] = _Value(name, "float" if kind == "float" else "int")
            case Assign(target=Name(name=name), op=op, value=value):
                self.assign(name, op, value)
            case Assign(target=Element(array=array, at=at), op=op, value=value):
                self.store(array, at, op, value)
            case If(condition=condition, yes=yes, no=no):
                where = self.truth(self.expression(condition))
                outer, name = self.mask, self.named_mask("when", where.text)
                other = self.named_mask("when", f"neither({where.text})") if no else ""
                self.mask = name
                self.statements(yes)
                if no:
                    self.mask = other
                    self.statements(no)
                self.mask = outer
            case For():
                self.loop(statement)
            case _:
                raise TaskError("its C returns from within")

    def named_mask(self, prefix: str, where: str) -> str:
        """The name of a new variable that says where the mask and ``where`` both hold."""
        name = next(name for number in self.masks[prefix] if (name := f"{prefix}_{number}") not in self.taken)
        self.emit(f"{name} = {self.both(self.mask, where)}")
        return name

    def both(self, mask: str, other: str) -> str:
        return f"({mask}) & ({other})" if mask else other

    def variable(self, name: str) -> _Value:
        value = self.variables.get(name)
        if value is None:
            raise TaskError(f"its C reads {name[:40]!r} after the loop that it belongs to")
        return value

    def assign(self, name: str, op: str, value: Expression) -> None:
        kind = self.kinds[name]
        if name in self.sums and op in ("+", "-"):
            axis, turns, _ = self.sums[name]
            old, added = self.variable(name), self.cast(self.expression(value), kind)
            self.emit(f"{name} = {old.text} {op} total({added.text}, {self.mask or 'True'}, {axis}, {turns})")
            self.variables[name] = _Value(name, "float" if kind == "float" else "int", True)
            return
        made = self.cast(self.expression(Binary(op, Name(name), value) if op else value), kind)
        lanes, text = made.lanes, made.text
        if self.mask:
            old = self.variables.get(name) or _Value("0", "int")
            old = self.cast(old, kind)
            text, lanes = f"chosen({self.mask}, {text}, {old.text}, {self.dtype(made)})", True
        self.emit(f"{name} = {text}")
        self.variables[name] = _Value(name, made.type, lanes)

    def store(self, array: str, at: Expression, op: str, value: Expression) -> None:
        where, name = self.expression(at), self.called.get(array, array)
        mask = f", {self.mask}" if self.mask else ""
        if array in self.sums and op in ("+", "-"):
            axis, turns, outer = self.sums[array]
            added = self.cast(self.expression(value), self.kinds[array])
            old = f"read({name}, {where.text}, {outer})" if outer else f"{name}[{where.text}]"
            text = f"{old} {op} total({added.text}, {self.mask or 'True'}, {axis}, {turns})"
            self.emit(f"{name} = write({name}, {where.text}, {text}{f', {outer}' if outer else ''})")
            return
        made = self.cast(self.expression(Binary(op, Element(array, at), value) if op else value), self.kinds[array])
        self.emit(f"{name} = write({name}, {where.text}, {made.text}{mask})")

    def loop(self, loop: For) -> None:
        analysis, way = self.analysis, self.analysis.ways[loop]
        bounds, name = analysis.loops[loop], loop.variable
        start, stop = self.expression(loop.start), self.expression(loop.stop)
        names = dict(self.constants)
        if start.lanes or stop.lanes:
            if loop.step < 0:
                raise TaskError("a loop of its C counts down to what differs from turn to turn")
            if loop.step != 1 and start.lanes:
                raise TaskError("a loop of its C has a step, and begins elsewhere from turn to turn")
            low, high = bounds.low.text(names), (bounds.high + ONE).text(names)
        else:
            low, high = start.text, stop.text
        axis = self._axes(self.path)
        outer = self.mask, self.path, self.sums
        self.path = (*self.path, loop)
        if way == "in-turn":
            reach = f"{low}, {high}" if loop.step > 0 else f"{low}, {high} - 1, -1"
            step = f", {loop.step}" if loop.step > 1 else ""
            self.emit(f"for {name} in range({reach}{step}):")
            self.depth += 1
            # What a turn assigns may be a tensor in the next one.
            for other in {*assigned(loop.body)}:
                if (old := self.variables.get(other)) is not None:
                    self.variables[other] = _Value(old.text, old.type, True)
        else:
            self.emit(f"{name} = span({low}, {high}, {loop.step if loop.step > 0 else 1}, {axis}, {self.axes}, device)"
                      if loop.step > 0 else
                      f"{name} = span({high}, {low} + 1, 1, {axis}, {self.axes}, device)")  # fmt: skip
        self.variables[name] = _Value(name, "int", way != "in-turn")
        if start.lanes or stop.lanes:
            self.mask = self.named_mask("within", f"({name} >= {start.text}) & ({name} < {stop.text})")
        if way == "sum":
            summed = {item for item in assigned(loop.body) if only_added(item, loop.body)} | {
                item.target.array
                for item in loop.body
                if isinstance(item, Assign) and isinstance(item.target, Element) and item.op in ("+", "-")
            }
            self.sums = {**self.sums, **{item: (axis, name, outer[0]) for item in summed if self._bound(item, loop)}}
        before = {item for item in self.variables if self.variables[item] is not None}
        if not loop.body:
            self.emit("pass")
        self.statements(loop.body)
        if way == "in-turn":
            self.depth -= 1
        kept = {item for item in before if way == "in-turn" or item in self.sums}
        self.mask, self.path, self.sums = outer
        for item in {*assigned(loop.body), name}:
            if item not in kept or item == name:
                self.variables[item] = None

    def _bound(self, name: str, loop: For) -> bool:
        """Whether the turns of a loop add to one and the same thing of this name."""
        if name not in self.arrays:
            return True
        at = next(
            item.target.at for item in loop.body
            if isinstance(item, Assign) and isinstance(item.target, Element) and item.target.array == name
        )  # fmt: skip
        return loop.variable not in set(names_in(at))

    # Expressions.

    def dtype(self, value: _Value) -> str:
        return {"int": "torch.int64", "float": "real", "bool": "torch.bool"}[value.type]

    def cast(self, value: _Value, kind: str) -> _Value:
        if kind == "float" and value.type != "float":
            return _Value(f"as_real({value.text}, real)", "float", value.lanes)
        if kind == "int" and value.type != "int":
            return _Value(f"as_int({value.text})", "int", value.lanes)
        return value

    def truth(self, value: _Value) -> _Value:
        return value if value.type == "bool" else _Value(f"({value.text} != 0)", "bool", value.lanes)

    def expression(self, expression: Expression) -> _Value:
        match expression:
            case Number(value=value):
                return _Value(repr(value), "int" if isinstance(value, int) else "float")
            case Name(name=name):
                return self.variable(name)
            case Element(array=array, at=at):
                where, name = self.expression(at), self.called.get(array, array)
                text = f"read({name}, {where.text}, {self.mask})" if self.mask else f"{name}[{where.text}]"
                if self.kinds[array] == "int":
                    return _Value(f"{text}.long()", "int", True)
                return _Value(text, "float", True)
            case Unary(op="!", value=value):
                inner = self.truth(self.expression(value))
                return _Value(f"neither({inner.text})", "bool", inner.lanes)
            case Unary(op=op, value=value):
                inner = self.expression(value)
                inner = self.cast(inner, "int") if inner.type == "bool" else inner
                return _Value(f"({op}{inner.text})", inner.type, inner.lanes)
            case Cast(kind=kind, value=value):
                return self.cast(self.expression(value), kind)
            case Choice(condition=condition, yes=yes, no=no):
                where = self.truth(self.expression(condition))
                option, other = self.under(where.text, yes), self.under(f"neither({where.text})", no)
                kind = "float" if "float" in (option.type, other.type) else "int"
                option, other = self.cast(option, kind), self.cast(other, kind)
                text = f"chosen({where.text}, {option.text}, {other.text}, {self.dtype(option)})"
                return _Value(text, option.type, where.lanes or option.lanes or other.lanes)
            case Binary(op="&&" | "||" as op, first=former, second=latter):
                first = self.truth(self.expression(former))
                then = first.text if op == "&&" else f"neither({first.text})"
                second = self.truth(self.under(then, latter))
                sign = "&" if op == "&&" else "|"
                return _Value(f"({first.text} {sign} {second.text})", "bool", first.lanes or second.lanes)
            case Binary(op=op, first=former, second=latter):
                return self.binary(op, self.expression(former), self.expression(latter))
            case Call(name=name, values=values):
                return self.call(name, tuple(map(self.expression, values)))
        raise TaskError("its C has an expression that no reference is written for")

    def under(self, where: str, expression: Expression) -> _Value:
        """A value whose loads happen only where something holds."""
        outer, self.mask = self.mask, self.both(self.mask, where)
        value = self.expression(expression)
        self.mask = outer
        return value

    def binary(self, op: str, first: _Value, second: _Value) -> _Value:
        lanes = first.lanes or second.lanes
        if op in ("<", "<=", ">", ">=", "==", "!="):
            return _Value(f"({first.text} {op} {second.text})", "bool", lanes)
        first, second = (self.cast(item, "int") if item.type == "bool" else item for item in (first, second))
        fraction = "float" in (first.type, second.type)
        if fraction:
            first, second = self.cast(first, "float"), self.cast(second, "float")
        if op in ("/", "%") and not fraction:
            name = "quotient" if op == "/" else "remainder"
            return _Value(f"{name}({first.text}, {second.text})", "int", lanes)
        if op in ("%", "&", "|", "^", "<<", ">>") and fraction:
            raise TaskError(f"its C has `{op}` of fractions")
        return _Value(f"({first.text} {op} {second.text})", "float" if fraction else "int", lanes)

    def call(self, name: str, values: tuple[_Value, ...]) -> _Value:
        plain = name.removesuffix("f") if name != "erf" else name
        lanes = True
        if name in ("max", "min") and len(values) == 2:
            kind = "float" if "float" in (values[0].type, values[1].type) else "int"
            option, other = (self.cast(value, kind) for value in values)
            sign = ">" if name == "max" else "<"
            text = f"chosen({option.text} {sign} {other.text}, {option.text}, {other.text}, {self.dtype(option)})"
            return _Value(text, option.type, option.lanes or other.lanes)
        if name == "abs" and len(values) == 1 and values[0].type == "int":
            return _Value(f"abs({values[0].text})", "int", values[0].lanes)
        if plain == "round" and len(values) == 1:
            value = self.cast(values[0], "float").text  # ties away from zero
            text = f"called(lambda x: torch.sign(x) * torch.floor(torch.abs(x) + 0.5), real, {value})"
            return _Value(text, "float", lanes)
        function = _FUNCTIONS.get(plain)
        if function is None:
            raise TaskError(f"its C calls {name[:40]!r}, which no reference is written for")
        parts = ", ".join(self.cast(value, "float").text for value in values)
        return _Value(f"called(torch.{function}, real, {parts})", "float", lanes)


def _calls(function: Function) -> list[str]:
    """Functions that a function calls."""
    calls: list[str] = []

    def visit(item: object) -> None:
        if isinstance(item, Call):
            calls.append(item.name)
        if isinstance(item, tuple):
            for part in item:
                visit(part)
        elif hasattr(item, "__dataclass_fields__"):
            for field in item.__dataclass_fields__:
                visit(getattr(item, field))

    visit(function.body)
    return calls


def _local(function: Function) -> Iterator[str]:
    """Names that a function declares itself."""
    for item in flat(function.body):
        if isinstance(item, Declare):
            yield item.name
        elif isinstance(item, For):
            yield item.variable


def _type(item: Parameter, types: Mapping[str, str]) -> str:
    if item.type not in types:
        what = f"{'array' if item.array else 'number'} {item.name[:40]!r}"
        raise TaskError(f"its C has the {what} of type `{item.type[:40]}`, which a task cannot have")
    return types[item.type]


def _lower_names(function: Function, name: str) -> dict[str, str]:
    """Names of the parameters in a task: in lower case, and each distinct from all others."""
    taken = {name, "each", function.name, *RESERVED, *(_local(function))}
    names: dict[str, str] = {}
    for item in function.parameters:
        lower, number = item.name.lower(), 1
        while lower in taken:
            number += 1
            lower = f"{item.name.lower()}_{number}"
        taken |= {lower, f"{lower}_out"}
        names[item.name] = lower
    return names
