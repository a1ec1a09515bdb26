"""Compile expressions to closures: each takes a frame and returns a value.

A construct that the language lacks is refused here, before anything runs.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any

from kernelforge.candidate.plan_language.functions import (
    CONSTANTS,
    COPY_PER_STEP,
    FUNCTIONS,
    binary_operator,
    comparison,
    negate,
    plus,
)
from kernelforge.candidate.plan_language.scope import UNBOUND, Evaluate, Frame, Scope, target_names
from kernelforge.candidate.plan_language.tensors import METHODS, PROPERTIES, index, slice_of
from kernelforge.candidate.plan_language.values import (
    ATTRS,
    INT_BOUND,
    WEIGHTS,
    Fault,
    Named,
    Tensor,
    as_int,
    kind_of,
    sequence,
    truth,
)

Assign = Callable[[Frame, Any], None]
Loop = Callable[[Frame, list[Any]], None]

_ABSENT = {
    ast.Dict: "dictionaries", ast.DictComp: "dictionaries", ast.Set: "sets", ast.SetComp: "sets", ast.Lambda: "lambda",
    ast.NamedExpr: "the operator :=", ast.Await: "await", ast.Yield: "yield", ast.YieldFrom: "yield",
    ast.Starred: "starred values here", ast.Slice: "slices here",
}  # fmt: skip

_CALLABLE_HINT = "a kernel is launched as name[grid, block](arguments)"


def cost(*nodes: ast.AST | None) -> int:
    """Steps that evaluating these expressions once takes: their nodes."""
    return sum(isinstance(part, ast.expr) for node in nodes if node is not None for part in ast.walk(node))


def expression(node: ast.expr, scope: Scope) -> Evaluate:
    """Compile one expression.

    Raises:
        Fault: with its line, when the expression uses an unsupported construct.
    """
    compiler = _COMPILERS.get(type(node))
    if compiler is None:
        absent = _ABSENT.get(type(node), type(node).__name__)
        raise Fault(f"the plan language has no {absent}", node.lineno)
    return compiler(node, scope)


def _constant(node: ast.Constant, scope: Scope) -> Evaluate:
    value = node.value
    if type(value) not in (int, float, bool, str, type(None)):
        raise Fault(f"the plan language has no {type(value).__name__} constants", node.lineno)
    if type(value) is int and value > INT_BOUND:
        raise Fault("the integer does not fit 64 bits", node.lineno)
    return lambda frame: value


def _name(node: ast.Name, scope: Scope) -> Evaluate:
    name = node.id
    slot = scope.find(name)
    if slot is not None:
        return _local(name, slot)
    if name in CONSTANTS:
        value = CONSTANTS[name]
        return lambda frame: value
    if name in ("w", "attrs"):
        if scope.module is None:
            raise Fault(f"{name} is known inside forward and helpers only", node.lineno)
        named = WEIGHTS if name == "w" else ATTRS
        return lambda frame: named
    if name == "prepared":
        return _prepared(node, scope)
    if scope.module is not None and (shared := scope.module.find(name)) is not None:
        return lambda frame: frame[0].module[shared]
    if name in FUNCTIONS or name in scope.routines or name == "library":
        raise Fault(f"{name} is a function: call it, it is not a value", node.lineno)
    hint = "; dtypes are bare names such as float32" if name in ("torch", "np", "numpy") else ""
    raise Fault(f"unknown name {name!r}{hint}", node.lineno)


def _prepared(node: ast.Name, scope: Scope) -> Evaluate:
    if scope.owner is None:
        raise Fault("prepared is known inside forward and helpers only", node.lineno)
    scope.owner.prepared_line = scope.owner.prepared_line or node.lineno
    return lambda frame: frame[0].prepared


def _local(name: str, slot: int) -> Evaluate:
    def run(frame: Frame) -> Any:
        value = frame[slot]
        if value is UNBOUND:
            raise Fault(f"{name!r} has no value yet")
        return value

    return run


def _binary(node: ast.BinOp, scope: Scope) -> Evaluate:
    return binary(type(node.op), expression(node.left, scope), expression(node.right, scope), node.lineno)


def binary(kind: type[ast.operator], first: Evaluate, second: Evaluate, line: int) -> Evaluate:
    """``first op second``, also for ``op=``."""
    apply = binary_operator(kind, line)
    return lambda frame: apply(first(frame), second(frame), frame[0])


def _unary(node: ast.UnaryOp, scope: Scope) -> Evaluate:
    operand = expression(node.operand, scope)
    if isinstance(node.op, ast.Not):
        return lambda frame: not truth(operand(frame))
    if isinstance(node.op, ast.USub):
        return lambda frame: negate(operand(frame))
    if isinstance(node.op, ast.UAdd):
        return lambda frame: plus(operand(frame))
    raise Fault("the plan language has no bitwise operators", node.lineno)


def _boolean(node: ast.BoolOp, scope: Scope) -> Evaluate:
    operands = [expression(value, scope) for value in node.values]
    stop_at = isinstance(node.op, ast.Or)

    def run(frame: Frame) -> Any:
        value = None
        for operand in operands:
            value = operand(frame)
            if truth(value) is stop_at:
                break
        return value

    return run


def _compare(node: ast.Compare, scope: Scope) -> Evaluate:
    first = expression(node.left, scope)
    rest = [
        (comparison(type(op)), expression(right, scope)) for op, right in zip(node.ops, node.comparators, strict=True)
    ]

    def run(frame: Frame) -> bool:
        value = first(frame)
        for holds, operand in rest:
            right = operand(frame)
            if not holds(value, right, frame[0]):
                return False
            value = right
        return True

    return run


def _conditional(node: ast.IfExp, scope: Scope) -> Evaluate:
    test, body, other = (expression(part, scope) for part in (node.test, node.body, node.orelse))
    return lambda frame: body(frame) if truth(test(frame)) else other(frame)


def values(nodes: list[ast.expr], scope: Scope) -> Arguments:
    """Several expressions, starred ones spread, as one closure that returns a list."""
    if not any(isinstance(node, ast.Starred) for node in nodes):
        plain = [expression(node, scope) for node in nodes]
        return lambda frame: [evaluate(frame) for evaluate in plain]
    parts = [
        (expression(node.value if isinstance(node, ast.Starred) else node, scope), isinstance(node, ast.Starred))
        for node in nodes
    ]

    def run(frame: Frame) -> list[Any]:
        items: list[Any] = []
        for evaluate, starred in parts:
            if not starred:
                items.append(evaluate(frame))
                continue
            spread = sequence(evaluate(frame), "*")
            frame[0].spend(len(spread))
            items.extend(spread)
            frame[0].check_length(len(items))
        return items

    return run


def keyword_values(node: ast.Call, scope: Scope) -> dict[str, Evaluate]:
    """The keyword arguments of a call. Python's parser accepts repeated ones."""
    keywords: dict[str, Evaluate] = {}
    for keyword in node.keywords:
        if keyword.arg is None:
            raise Fault("the plan language has no ** in calls", node.lineno)
        if keyword.arg in keywords:
            raise Fault(f"the argument {keyword.arg!r} is given twice", node.lineno)
        keywords[keyword.arg] = expression(keyword.value, scope)
    return keywords


def _sequence(node: ast.Tuple | ast.List, scope: Scope) -> Evaluate:
    items = values(node.elts, scope)
    return lambda frame: tuple(items(frame))


def _text(node: ast.JoinedStr, scope: Scope) -> Evaluate:
    parts: list[str | Evaluate] = []
    for part in node.values:
        if isinstance(part, ast.Constant):
            parts.append(str(part.value))
        elif isinstance(part, ast.FormattedValue):
            if part.format_spec is not None or part.conversion != -1:
                raise Fault("f-strings have no format specs, conversions or '='", node.lineno)
            parts.append(expression(part.value, scope))

    def run(frame: Frame) -> str:
        text = "".join(part if isinstance(part, str) else _field_text(part(frame)) for part in parts)
        frame[0].check_string(len(text))
        return text

    return run


def _field_text(value: Any) -> str:
    if type(value) is bool:
        return "true" if value else "false"
    if type(value) is int or type(value) is str:
        return str(value)
    raise Fault(f"an f-string holds ints, bools and strings, not {kind_of(value)}")


def _attribute(node: ast.Attribute, scope: Scope) -> Evaluate:
    read = PROPERTIES.get(node.attr)
    if read is None:
        hint = f"; call it: .{node.attr}(...)" if node.attr in METHODS else ""
        raise Fault(f"the plan language has no attribute {node.attr!r}{hint}", node.lineno)
    target = expression(node.value, scope)

    def run(frame: Frame) -> Any:
        tensor = target(frame)
        if type(tensor) is not Tensor:
            raise Fault(f"{kind_of(tensor)} has no attribute {node.attr!r}")
        return read(tensor)

    return run


def _subscript(node: ast.Subscript, scope: Scope) -> Evaluate:
    target = expression(node.value, scope)
    several = isinstance(node.slice, ast.Tuple)
    nodes = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    keys = [_key(part, scope) for part in nodes]

    def run(frame: Frame) -> Any:
        value = target(frame)
        indices = tuple(key(frame) for key in keys)
        if type(value) is Tensor:
            return index(value, indices)
        if several:
            raise Fault(f"{kind_of(value)} takes one index, not {len(indices)}")
        if isinstance(value, Named):
            return frame[0].look_up(value, indices[0])
        return _item(value, indices[0], frame)

    return run


def _item(value: Any, key: Any, frame: Frame) -> Any:
    items = sequence(value, "[...]")
    if type(key) is slice:
        part = items[key]
        frame[0].spend(len(part) // COPY_PER_STEP)
        return part
    position = as_int(key, "an index")
    if not -len(items) <= position < len(items):
        raise Fault(f"index {position} is out of range: the sequence has {len(items)} items")
    return items[position]


def _key(node: ast.expr, scope: Scope) -> Evaluate:
    if not isinstance(node, ast.Slice):
        return expression(node, scope)
    parts = [None if part is None else expression(part, scope) for part in (node.lower, node.upper, node.step)]
    return lambda frame: slice_of(*(None if part is None else part(frame) for part in parts))


def _comprehension(node: ast.ListComp | ast.GeneratorExp, scope: Scope) -> Evaluate:
    first = expression(node.generators[0].iter, scope)
    scope.enter(name for generator in node.generators for name in target_names(generator.target))
    emit = expression(node.elt, scope)
    price = 1 + cost(node.elt)

    def innermost(frame: Frame, items: list[Any]) -> None:
        frame[0].spend(price)
        items.append(emit(frame))
        frame[0].check_length(len(items))

    loop: Loop = innermost
    for position, generator in reversed(list(enumerate(node.generators))):
        if generator.is_async:
            raise Fault("the plan language has no async", node.lineno)
        walked = first if position == 0 else expression(generator.iter, scope)
        loop = _generator(generator, walked, loop, scope)
    scope.leave()

    def run(frame: Frame) -> tuple[Any, ...]:
        items: list[Any] = []
        loop(frame, items)
        return tuple(items)

    return run


def _generator(generator: ast.comprehension, walked: Evaluate, inner: Loop, scope: Scope) -> Loop:
    bind = assign(generator.target, scope)
    tests = [expression(test, scope) for test in generator.ifs]
    price = 1 + cost(generator.iter, *generator.ifs)

    def loop(frame: Frame, items: list[Any]) -> None:
        for value in sequence(walked(frame), "for"):
            frame[0].spend(price)
            bind(frame, value)
            if all(truth(test(frame)) for test in tests):
                inner(frame, items)

    return loop


def assign(target: ast.expr, scope: Scope) -> Assign:
    """Binding of a name, or of several by unpacking."""
    if isinstance(target, ast.Name):
        slot = scope.find(target.id)
        assert slot is not None
        return _bind(target.id, slot)
    if not isinstance(target, ast.Tuple | ast.List):
        raise Fault("a starred name stands among others: a, *rest = ...", target.lineno)
    elements = [element.value if isinstance(element, ast.Starred) else element for element in target.elts]
    stars = [position for position, element in enumerate(target.elts) if isinstance(element, ast.Starred)]
    if len(stars) > 1:
        raise Fault("one starred name at most", target.lineno)
    binds = [assign(element, scope) for element in elements]
    star, count = stars[0] if stars else None, len(binds)

    def unpack(frame: Frame, value: Any) -> None:
        items = sequence(value, "unpacking")
        if len(items) != count if star is None else len(items) < count - 1:
            raise Fault(f"{len(items)} values cannot be unpacked into {count} names")
        if star is not None:
            after = len(items) - (count - star - 1)
            frame[0].spend(len(items) // COPY_PER_STEP)
            items = (*items[:star], tuple(items[star:after]), *items[after:])
        for bind, item in zip(binds, items, strict=True):
            bind(frame, item)

    return unpack


def _bind(name: str, slot: int) -> Assign:
    def bind(frame: Frame, value: Any) -> None:
        frame[slot] = value
        if type(value) is Tensor and value.storage.label is None:
            value.storage.label = name

    return bind


def _call(node: ast.Call, scope: Scope) -> Evaluate:
    target = node.func
    if isinstance(target, ast.Subscript):
        raise Fault("a launch stands on a line of its own: it gives no value", node.lineno)
    args = values(node.args, scope)
    keywords = keyword_values(node, scope)
    if isinstance(target, ast.Attribute):
        return _method(node, target, args, scope)
    if not isinstance(target, ast.Name):
        raise Fault(f"only functions can be called; {_CALLABLE_HINT}", node.lineno)
    name = target.id
    if scope.find(name) is not None:
        raise Fault(f"{name!r} is a variable, not a function; {_CALLABLE_HINT}", node.lineno)
    if name in scope.routines:
        return helper_call(name, args, keywords, scope, node.lineno)
    if name == "library":
        raise Fault("library stands on a line of its own: it gives no value, its results go into out=", node.lineno)
    if name not in FUNCTIONS:
        raise Fault(f"unknown function {name!r}; {_CALLABLE_HINT}", node.lineno)
    return function_call(name, args, keywords, node.lineno)


def _method(node: ast.Call, target: ast.Attribute, args: Arguments, scope: Scope) -> Evaluate:
    name = target.attr
    if name == "append":
        raise Fault("sequences never change; write outs += [value]", node.lineno)
    receiver = expression(target.value, scope)
    if name not in METHODS:
        raise Fault(f"the plan language has no method {name!r}", node.lineno)
    if node.keywords:
        raise Fault(f"{name} takes no keyword arguments in a plan", node.lineno)
    return method_call(receiver, name, args)


_COMPILERS: dict[type[ast.expr], Callable[[Any, Scope], Evaluate]] = {
    ast.Constant: _constant, ast.Name: _name, ast.BinOp: _binary, ast.UnaryOp: _unary, ast.BoolOp: _boolean,
    ast.Compare: _compare, ast.IfExp: _conditional, ast.Tuple: _sequence, ast.List: _sequence, ast.JoinedStr: _text,
    ast.Attribute: _attribute, ast.Subscript: _subscript, ast.ListComp: _comprehension,
    ast.GeneratorExp: _comprehension, ast.Call: _call,
}  # fmt: skip


Arguments = Callable[[Frame], list[Any]]
"""Positional arguments as one closure."""


def function_call(name: str, args: Arguments, keywords: dict[str, Evaluate], line: int) -> Evaluate:
    """A function of the language."""
    function = FUNCTIONS[name]
    if extra := keywords.keys() - function.keywords:
        raise Fault(f"{name} has no argument {min(extra)!r}", line)

    def run(frame: Frame) -> Any:
        positional = args(frame)
        named = {key: value(frame) for key, value in keywords.items()}
        if not function.least <= len(positional) <= function.most:
            raise Fault(f"{name} takes {_count(function.least, function.most)}, got {len(positional)}")
        if "start" in named and len(positional) > 1:
            raise Fault(f"the start of {name} is given twice")
        frame[0].line = line
        return function.call(frame[0], *positional, **named)

    return run


def _count(least: int, most: int) -> str:
    if least == most:
        return f"{least} argument{'s' * (least != 1)}"
    return f"at least {least}" if most > 100 else f"{least} to {most} arguments"


def method_call(receiver: Evaluate, name: str, args: Arguments) -> Evaluate:
    """``tensor.name(...)`` of an existing method."""
    function, least, most = METHODS[name]

    def run(frame: Frame) -> Any:
        tensor = receiver(frame)
        positional = args(frame)
        if type(tensor) is not Tensor:
            raise Fault(f"{kind_of(tensor)} has no method {name!r}")
        if not least <= len(positional) <= most:
            raise Fault(f"{name} takes {_count(least, most)}, got {len(positional)}")
        return function(tensor, *positional)

    return run


def helper_call(name: str, args: Arguments, keywords: dict[str, Evaluate], scope: Scope, line: int) -> Evaluate:
    if scope.owner is None:
        raise Fault("helpers are called inside forward and helpers only", line)
    if name in ("forward", "setup"):
        raise Fault(f"{name} cannot be called", line)
    scope.owner.calls.add(name)
    routine = scope.routines[name]
    return lambda frame: routine.call(frame[0], args(frame), {key: value(frame) for key, value in keywords.items()})
