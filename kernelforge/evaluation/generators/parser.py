"""Parse an input generator from a model's text to a recipe.

The text is restricted Python, as launch plans are: it is read by :mod:`ast` behind the same lexer and never compiled
or executed. What comes out is a :class:`~kernelforge.evaluation.generators.recipe.Recipe`, which is data.
``docs/input-generators.md`` is the reference page of the language.

That a model may write tests as well as candidates, kept only where the reference passes them, follows the Tester of
MuSL (QiMeng-MuPa).
"""

from __future__ import annotations

import ast
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from kernelforge.candidate.plan import reported
from kernelforge.candidate.plan_language.lexer import normalise, read
from kernelforge.candidate.plan_language.values import Fault
from kernelforge.errors import PlanError
from kernelforge.evaluation.generators.functions import CONSTANTS, FUNCTIONS
from kernelforge.evaluation.generators.recipe import MAX_AXES, MAX_STEPS, RANDOM, TEST_PREFIX, Recipe, Step
from kernelforge.records import Evaluation, InputGenerator, TensorSpec, content_hash
from kernelforge.records.task import MAX_GENERATOR_BYTES

MAX_GENERATORS = 4
"""Generators of one task."""

_BINARY: dict[type[ast.operator], str] = {
    ast.Add: "add", ast.Sub: "subtract", ast.Mult: "multiply", ast.Div: "divide", ast.FloorDiv: "floor_divide",
    ast.Mod: "remainder", ast.Pow: "power",
}  # fmt: skip
_COMPARISONS: dict[type[ast.cmpop], tuple[str, bool]] = {
    ast.Lt: ("less", False), ast.LtE: ("less_equal", False), ast.Gt: ("less", True), ast.GtE: ("less_equal", True),
    ast.Eq: ("equal", False), ast.NotEq: ("not_equal", False),
}  # fmt: skip
"""Operation of a comparison, and whether its sides change places."""

_FORM = "a generator is one function: def inputs(x, ...), assignments of names, and a return of one value per input"


def parse_generator(text: str, inputs: Sequence[TensorSpec | int | float | bool | None]) -> Recipe:
    """Read a generator for a task whose ``forward`` takes ``inputs``.

    Raises:
        PlanError: the text is not in the language, too large, or not for these inputs; with the line.
    """
    size = len(text.encode(errors="surrogatepass"))
    if size > MAX_GENERATOR_BYTES:
        raise PlanError(f"the generator has {size:,} bytes; the limit is {MAX_GENERATOR_BYTES:,}")
    text = normalise(text)
    with reported(text):
        tree, tunables = read(text)
        if tunables:
            raise Fault("a generator has no # tune: lines")
        return _Compiler(inputs).compile(tree)


def generators_digest(generators: Sequence[InputGenerator]) -> str:
    """Eight hex digits that name the admitted ones among ``generators``; empty where there are none."""
    admitted = sorted((test.name, test.plan, test.sizes) for test in generators if test.admitted)
    return content_hash("tests", admitted)[:8] if admitted else ""


def caught_by(evaluation: Evaluation) -> str | None:
    """Name of the generator whose inputs brought the verdict about; None where it came from anything else."""
    if evaluation.correctness is None:
        return None
    for check in evaluation.correctness.sizes:
        if check.status == "failed" and check.families and check.families[-1].startswith(TEST_PREFIX):
            return check.families[-1].removeprefix(TEST_PREFIX)
    return None


class _Compiler:
    """Turns a syntax tree into steps. Equal steps that draw nothing are one."""

    def __init__(self, inputs: Sequence[TensorSpec | int | float | bool | None]) -> None:
        self._inputs = inputs
        self._steps: list[Step] = []
        self._known: dict[tuple[str, tuple[int, ...], str], int] = {}
        self._parameters: dict[str, int] = {}
        self._names: dict[str, int] = {}

    def compile(self, tree: ast.Module) -> Recipe:
        if len(tree.body) != 1 or not isinstance(tree.body[0], ast.FunctionDef) or tree.body[0].name != "inputs":
            raise Fault(_FORM, tree.body[0].lineno if tree.body else None)
        function = tree.body[0]
        self._take_parameters(function)
        *assignments, last = function.body
        for statement in assignments:
            with _at(statement.lineno):
                self._assign(statement)
        with _at(last.lineno):
            if not isinstance(last, ast.Return) or last.value is None:
                raise Fault(f"the last line returns the inputs; {_FORM}")
            results = self._results(last.value)
        return Recipe(steps=tuple(self._steps), results=results)

    def emit(self, op: str, *of: int, value: int | float | None = None) -> int:
        """Add a step, or find the one that gives the same.

        Raises:
            Fault: there are too many.
        """
        # By text: -0.0 equals 0.0, and is another test.
        key = (op, of, repr(value))
        if op not in RANDOM and key in self._known:
            return self._known[key]
        if len(self._steps) >= MAX_STEPS:
            raise Fault(f"the generator takes more than {MAX_STEPS} steps")
        self._steps.append(Step(op=op, of=of, value=value))
        self._known[key] = len(self._steps) - 1
        return self._known[key]

    def _take_parameters(self, function: ast.FunctionDef) -> None:
        arguments = function.args
        plain = not (arguments.posonlyargs or arguments.kwonlyargs or arguments.vararg or arguments.kwarg)
        annotated = function.returns is not None or any(argument.annotation for argument in arguments.args)
        if not plain or arguments.defaults or function.decorator_list or annotated:
            raise Fault("inputs takes plain names, without defaults, annotations or decorators", function.lineno)
        names = [argument.arg for argument in arguments.args]
        if len(names) != len(self._inputs):
            raise Fault(f"the task has {len(self._inputs)} inputs, inputs takes {len(names)}", function.lineno)
        for position, name in enumerate(names):
            self._check_name(name, function.lineno)
            self._parameters[name] = position

    def _check_name(self, name: str, line: int) -> None:
        if name in FUNCTIONS or name in CONSTANTS or name in ("inputs", "low", "high") or name.startswith("__"):
            raise Fault(f"{name!r} is a name of the language; choose another", line)

    def _assign(self, statement: ast.stmt) -> None:
        if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
            raise Fault(_FORM)
        (target,) = statement.targets
        if not isinstance(target, ast.Name):
            raise Fault("one name is assigned at a time")
        self._check_name(target.id, statement.lineno)
        # The right side first: it may use what the name stood for.
        register = self._expression(statement.value)
        self._names[target.id] = register

    def _results(self, node: ast.expr) -> tuple[int | None, ...]:
        nodes = node.elts if isinstance(node, ast.Tuple | ast.List) else [node]
        if len(nodes) != len(self._inputs):
            raise Fault(f"return gives {len(nodes)} values, the task has {len(self._inputs)} inputs")
        registers = [self._expression(node) for node in nodes]
        results = tuple(None if self._is_own(register, at) else register for at, register in enumerate(registers))
        for position, (name, spec, result) in enumerate(zip(self._parameters, self._inputs, results, strict=True)):
            if result is not None and not isinstance(spec, TensorSpec):
                raise Fault(f"input {position} is no tensor: return {name} as it is")
        if all(result is None for result in results):
            raise Fault("every input is returned as the task draws it: nothing new is tested")
        return results

    def _is_own(self, register: int, position: int) -> bool:
        return self._steps[register] == Step(op="own", value=position)

    def _expression(self, node: ast.expr) -> int:
        with _at(node.lineno):
            match node:
                case ast.Constant():
                    return self._number(node.value)
                case ast.Name():
                    return self._name(node.id)
                case ast.BinOp() if type(node.op) in _BINARY:
                    return self.emit(_BINARY[type(node.op)], self._expression(node.left), self._expression(node.right))
                case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=value)):
                    return self._number(value, -1)
                case ast.UnaryOp(op=ast.USub()):
                    return self.emit("negative", self._expression(node.operand))
                case ast.UnaryOp(op=ast.UAdd()):
                    return self._expression(node.operand)
                case ast.Compare():
                    return self._compare(node)
                case ast.IfExp():
                    return self.emit("where", *(self._expression(part) for part in (node.test, node.body, node.orelse)))
                case ast.Call():
                    return self._call(node)
            raise Fault(_absent(node))

    def _number(self, value: object, sign: int = 1) -> int:
        if type(value) is not int and type(value) is not float:
            raise Fault(f"values are numbers, not {type(value).__name__}")
        # Every step is worked out in float64.
        number = sign * float(value) if abs(value) < 2.0**1023 else math.inf
        if not math.isfinite(number):
            raise Fault("the number is too large; inf is written inf")
        return self.emit("number", value=number)

    def _name(self, name: str) -> int:
        if name in self._names:
            return self._names[name]
        if name in self._parameters:
            return self.emit("own", value=self._parameters[name])
        if name in CONSTANTS:
            return self.emit(name)
        if name in FUNCTIONS or name in ("low", "high"):
            raise Fault(f"{name} is a function: call it")
        raise Fault(f"unknown name {name!r}; {_known_names()}")

    def _compare(self, node: ast.Compare) -> int:
        sides = [self._expression(operand) for operand in (node.left, *node.comparators)]
        result: int | None = None
        for position, kind in enumerate(node.ops):
            if type(kind) not in _COMPARISONS:
                raise Fault("the comparisons are < <= > >= == !=")
            name, swapped = _COMPARISONS[type(kind)]
            pair = sides[position : position + 2]
            holds = self.emit(name, *(reversed(pair) if swapped else pair))
            result = holds if result is None else self.emit("multiply", result, holds)
        assert result is not None
        return result

    def _call(self, node: ast.Call) -> int:
        if not isinstance(node.func, ast.Name):
            raise Fault(f"only functions of the language can be called; {_known_names()}")
        name = node.func.id
        if name in ("low", "high"):
            return self._extreme(name, node)
        function = FUNCTIONS.get(name)
        if function is None:
            raise Fault(f"unknown function {name!r}; {_known_names()}")
        bound = function.bind(name, node.args, node.keywords)
        values: list[int] = []
        axis: int | None = None
        for parameter, argument in bound:
            if parameter == "axis":
                axis = _axis(argument)
            elif isinstance(argument, ast.expr):
                values.append(self._expression(argument))
            else:
                assert argument is not None
                values.append(self._number(argument))
        return function.build(self.emit, values, axis)

    def _extreme(self, name: str, node: ast.Call) -> int:
        if len(node.args) != 1 or node.keywords or not isinstance(node.args[0], ast.Name):
            raise Fault(f"{name} takes the name of one input")
        position = self._parameters.get(node.args[0].id)
        if position is None or not isinstance(self._inputs[position], TensorSpec):
            raise Fault(f"{name} takes the name of one input that is a tensor")
        return self.emit(name, value=position)


@contextmanager
def _at(line: int) -> Iterator[None]:
    try:
        yield
    except Fault as error:
        error.line = error.line or line
        raise


def _axis(argument: ast.expr | float | None) -> int | None:
    if argument is None:
        return None
    sign = 1
    if isinstance(argument, ast.UnaryOp) and isinstance(argument.op, ast.USub):
        sign, argument = -1, argument.operand
    if isinstance(argument, ast.expr):
        argument = argument.value if isinstance(argument, ast.Constant) else None  # type: ignore[assignment]
    if type(argument) is not int or not -MAX_AXES <= sign * argument < MAX_AXES:
        raise Fault(f"an axis is a whole number between {-MAX_AXES} and {MAX_AXES - 1}")
    return sign * argument


def _absent(node: ast.expr) -> str:
    """Names the Python construct that the language lacks."""
    names: Mapping[type[ast.expr], str] = {
        ast.Attribute: "attributes", ast.Subscript: "subscripts", ast.Lambda: "lambda", ast.ListComp: "comprehensions",
        ast.GeneratorExp: "comprehensions", ast.SetComp: "comprehensions", ast.DictComp: "comprehensions",
        ast.BoolOp: "and and or: multiply conditions, or take their max", ast.Tuple: "tuples but in return",
        ast.List: "lists but in return", ast.JoinedStr: "strings", ast.Dict: "dictionaries", ast.Set: "sets",
        ast.Starred: "stars", ast.UnaryOp: "unary operators but - and +", ast.NamedExpr: "assignment expressions",
        ast.BinOp: "operators but + - * / // % **",
    }  # fmt: skip
    return f"the generator language has no {names.get(type(node), type(node).__name__)}"


def _known_names() -> str:
    return f"there are {', '.join(sorted((*FUNCTIONS, 'low', 'high')))}, and the values {', '.join(CONSTANTS)}"
