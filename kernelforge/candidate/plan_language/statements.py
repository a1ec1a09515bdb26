"""Compile statements of a launch plan; execution is limited in steps."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from kernelforge.candidate.plan_language.expressions import assign, binary, cost, expression, keyword_values, values
from kernelforge.candidate.plan_language.functions import FUNCTIONS, PROVIDED, RESERVED
from kernelforge.candidate.plan_language.interpreter import Machine
from kernelforge.candidate.plan_language.launches import kernel, launch, library
from kernelforge.candidate.plan_language.scope import (
    Evaluate,
    Execute,
    Frame,
    Returned,
    Routine,
    Scope,
    assigned_names,
    check_name,
)
from kernelforge.candidate.plan_language.triton_launches import launch_triton
from kernelforge.candidate.plan_language.values import Fault, KernelName, Refusal, Tensor, kind_of, sequence, truth
from kernelforge.records import Language

Values = Callable[[Frame], list[Any]]


def launch_statement(node: ast.Call, target: ast.Subscript, scope: Scope) -> Execute:
    """``name[grid, block](arguments)``."""
    name = _kernel_name(target.value, scope)
    options = values(target.slice.elts if isinstance(target.slice, ast.Tuple) else [target.slice], scope)
    args = values(node.args, scope)
    keywords = keyword_values(node, scope)
    if scope.language == "triton":
        return _triton_launch(name, options, args, keywords, node.lineno)
    if extra := keywords.keys() - {"cluster", "cooperative"}:
        raise Fault(
            f"a launch has no option {min(extra)!r}; kernel arguments go by position, "
            "options are cluster and cooperative",
            node.lineno,
        )
    cluster, cooperative = keywords.get("cluster"), keywords.get("cooperative")
    line = node.lineno

    def run(frame: Frame) -> None:
        machine: Machine = frame[0]
        launched, shape, arguments = name(frame), tuple(options(frame)), args(frame)
        extent = None if cluster is None else cluster(frame)
        is_cooperative = False if cooperative is None else cooperative(frame)
        machine.line = line
        launch(machine, launched, shape, arguments, extent, is_cooperative)

    return run


def _triton_launch(
    name: Callable[[Frame], KernelName], extents: Values, args: Values, keywords: dict[str, Evaluate], line: int
) -> Execute:
    """``name[grid](arguments, BLOCK=1024, num_warps=4)``."""

    def run(frame: Frame) -> None:
        machine: Machine = frame[0]
        launched, grid, arguments = name(frame), tuple(extents(frame)), args(frame)
        named = {key: value(frame) for key, value in keywords.items()}
        machine.line = line
        launch_triton(machine, launched, grid, arguments, named)

    return run


def library_statement(node: ast.Call, scope: Scope) -> Execute:
    """``library("operator", arguments, out=tensors)``."""
    args = values(node.args, scope)
    keywords = keyword_values(node, scope)
    if "out" not in keywords:
        raise Fault("library needs out=, the tensor or tensors that its results are put into", node.lineno)
    line = node.lineno

    def run(frame: Frame) -> None:
        machine: Machine = frame[0]
        positional = args(frame)
        named = {name: value(frame) for name, value in keywords.items()}
        machine.line = line
        results = named.pop("out")
        library(machine, positional, named, results)

    return run


def _kernel_name(node: ast.expr, scope: Scope) -> Callable[[Frame], KernelName]:
    """The kernel before ``[...]``: a name that the source defines, ``kernel("...")``, or a variable."""
    if isinstance(node, ast.Name) and scope.find(node.id) is None:
        if node.id in FUNCTIONS or node.id in RESERVED or node.id in scope.routines:
            raise Fault(f"{node.id!r} is not a kernel", node.lineno)
        if scope.module is None or scope.module.find(node.id) is None:
            check_name(node.id, node.lineno)
            fixed = kernel(node.id)
            return lambda frame: fixed
    variable = expression(node, scope)

    def run(frame: Frame) -> KernelName:
        value = variable(frame)
        if type(value) is not KernelName:
            hint = "; tensors are indexed, not launched" if type(value) is Tensor else ""
            raise Fault(f"only a kernel can be launched, this is {kind_of(value)}{hint}")
        return value

    return run


MAX_CALL_DEPTH = 24

_ABSENT: dict[type[ast.stmt], str] = {
    ast.FunctionDef: "functions inside functions: define helpers at top level", ast.AnnAssign: "type annotations",
}  # fmt: skip


@dataclass
class Program:
    """A compiled plan: its top level in order, its functions, its names."""

    module: Scope
    top_level: list[tuple[int, int, Execute]]
    """Line, steps and statement of each top-level assignment and assert."""
    constrained: bool
    """Whether there are top-level asserts."""
    routines: dict[str, Routine]

    @property
    def forward(self) -> Routine:
        return self.routines["forward"]

    @property
    def setup(self) -> Routine | None:
        return self.routines.get("setup")


def compile_program(tree: ast.Module, tunables: Sequence[str], language: Language) -> Program:
    """Compile a parsed plan that launches kernels in ``language``.

    Raises:
        Fault: with its line, when the plan uses an unsupported construct.
    """
    for name in tunables:
        check_name(name, 1)
    definitions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    statements = [node for node in tree.body if isinstance(node, ast.Assign | ast.Assert)]
    for node in tree.body:
        if not isinstance(node, ast.FunctionDef | ast.Assign | ast.Assert) and not _is_docstring(node):
            raise Fault("the top level holds def, assert and NAME = expression only", node.lineno)
    routines: dict[str, Routine] = {}
    module = Scope(None, [*tunables, *assigned_names(list(statements))], routines, None, language)
    for node in definitions:
        if node.name in routines or node.name in module.slots:
            raise Fault(f"{node.name!r} is defined twice", node.lineno)
        routines[node.name] = _signature(node)
    _check_signatures(routines)
    top_level = []
    for statement in statements:
        if any(name in tunables for name in assigned_names([statement])):
            raise Fault("a tune name cannot be assigned", statement.lineno)
        if isinstance(statement, ast.Assert):
            price = cost(statement.test) + (cost(statement.msg) if statement.msg else 0)
            top_level.append((statement.lineno, 1 + price, _assert(statement, module)))
        else:
            top_level.append((statement.lineno, 1 + cost(statement.value), _assignment(statement, module)))
    for node in definitions:
        _fill(routines[node.name], node, module)
    _refuse_recursion(routines)
    _check_prepared(routines)
    constrained = any(isinstance(statement, ast.Assert) for statement in statements)
    return Program(module, top_level, constrained, routines)


def _is_docstring(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _check_signatures(routines: dict[str, Routine]) -> None:
    if "forward" not in routines:
        raise Fault("the plan has no 'def forward(...)'")
    setup = routines.get("setup")
    if setup is not None and (setup.parameters != ("w",) or setup.defaults):
        raise Fault("setup takes the weights alone: def setup(w); attrs and constants are there by name", setup.line)


def _check_prepared(routines: dict[str, Routine]) -> None:
    """Check that ``forward`` or its helpers read ``prepared`` exactly where the plan has a ``setup``."""
    setup = routines.get("setup")
    if setup is None:
        for routine in routines.values():
            if routine.prepared_line is not None:
                raise Fault("prepared is what setup returns; the plan has no 'def setup(w)'", routine.prepared_line)
        return
    for routine in _reached(setup, routines):
        if routine.prepared_line is not None:
            raise Fault("prepared is what setup returns; setup itself cannot read it", routine.prepared_line)
    forward = routines["forward"]
    if "prepared" in forward.parameters:
        raise Fault("forward takes the task's inputs alone; prepared can be used without a parameter", forward.line)
    if all(routine.prepared_line is None for routine in _reached(forward, routines)):
        raise Fault("setup is not used: forward does not read prepared", setup.line)


def _reached(routine: Routine, routines: dict[str, Routine]) -> list[Routine]:
    """The routine and every helper that it may call, once each."""
    reached = {routine.name: routine}
    waiting = [routine]
    while waiting:
        for name in sorted(waiting.pop().calls):
            if name not in reached:
                reached[name] = routines[name]
                waiting.append(routines[name])
    return list(reached.values())


def _signature(node: ast.FunctionDef) -> Routine:
    line, spec = node.lineno, node.args
    check_name(node.name, line)
    if node.decorator_list:
        raise Fault("the plan language has no decorators", line)
    if spec.vararg or spec.kwarg or spec.kwonlyargs or spec.posonlyargs:
        raise Fault("parameters are plain names, with or without a constant default", line)
    if node.returns is not None or any(arg.annotation is not None for arg in spec.args):
        raise Fault("the plan language has no type annotations", line)
    if getattr(node, "type_params", None):
        raise Fault("the plan language has no type parameters", line)
    parameters = tuple(arg.arg if arg.arg in PROVIDED else check_name(arg.arg, line) for arg in spec.args)
    if repeated := [name for name in parameters if parameters.count(name) > 1]:
        raise Fault(f"{node.name} has two parameters {repeated[0]!r}", line)
    defaulted = parameters[len(parameters) - len(spec.defaults) :] if spec.defaults else ()
    defaults = {name: _constant(default) for name, default in zip(defaulted, spec.defaults, strict=True)}
    return Routine(node.name, line, parameters, defaults)


def _constant(node: ast.expr) -> Any:
    """The value of a constant default."""
    value: ast.expr = node
    negative = isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub)
    if isinstance(node, ast.UnaryOp) and negative:
        value = node.operand
    if not isinstance(value, ast.Constant) or (negative and type(value.value) not in (int, float)):
        raise Fault("a default is a constant", node.lineno)
    constant = expression(value, Scope(None, (), {}, None))([None])
    return -constant if negative else constant


def _fill(routine: Routine, node: ast.FunctionDef, module: Scope) -> None:
    scope = Scope(module, [*routine.parameters, *assigned_names(node.body)], module.routines, routine)
    routine.body = block(node.body, scope)
    routine.size = scope.size


def _refuse_recursion(routines: dict[str, Routine]) -> None:
    depths: dict[str, int] = {}

    def depth(name: str, path: tuple[str, ...]) -> int:
        if name in path:
            chain = " -> ".join((*path[path.index(name) :], name))
            raise Fault(f"helpers cannot call themselves: {chain}", routines[name].line)
        if name not in depths:
            callees = [depth(callee, (*path, name)) for callee in sorted(routines[name].calls)]
            depths[name] = 1 + max(callees, default=0)
        if depths[name] > MAX_CALL_DEPTH or len(path) > MAX_CALL_DEPTH:
            raise Fault(f"helpers call each other more than {MAX_CALL_DEPTH} deep", routines[name].line)
        return depths[name]

    for name in routines:
        depth(name, ())


def block(body: list[ast.stmt], scope: Scope) -> Execute:
    """Statements in order; each is charged before it runs, and adds its line to its faults."""
    statements = [(node.lineno, *_located(node, scope)) for node in body]

    def run(frame: Frame) -> Returned | None:
        machine = frame[0]
        for line, price, execute in statements:
            machine.steps += price
            try:
                if machine.steps > machine.max_steps:
                    machine.exhausted()
                returned = execute(frame)
            except Fault as error:
                if error.line is None:
                    error.line = line
                raise
            if returned is not None:
                return returned
        return None

    return run


def _located(node: ast.stmt, scope: Scope) -> tuple[int, Execute]:
    try:
        return _statement(node, scope)
    except Fault as error:
        error.line = error.line or node.lineno
        raise


def _statement(node: ast.stmt, scope: Scope) -> tuple[int, Execute]:
    """Steps and closure of one statement."""
    compiler = _COMPILERS.get(type(node))
    if compiler is None:
        absent = _ABSENT.get(type(node), type(node).__name__)
        raise Fault(f"the plan language has no {absent}", node.lineno)
    expressions = [child for child in ast.iter_child_nodes(node) if isinstance(child, ast.expr)]
    return 1 + cost(*expressions), compiler(node, scope)


def _assignment(node: ast.Assign, scope: Scope) -> Execute:
    value = expression(node.value, scope)
    binds = [assign(target, scope) for target in node.targets]

    def run(frame: Frame) -> None:
        result = value(frame)
        for bind in binds:
            bind(frame, result)

    return run


def _augmented(node: ast.AugAssign, scope: Scope) -> Execute:
    if not isinstance(node.target, ast.Name):
        raise Fault("only names can be assigned to", node.lineno)
    current = expression(ast.copy_location(ast.Name(node.target.id, ast.Load()), node.target), scope)
    value = binary(type(node.op), current, expression(node.value, scope), node.lineno)
    bind = assign(node.target, scope)
    return lambda frame: bind(frame, value(frame))


def _return(node: ast.Return, scope: Scope) -> Execute:
    if node.value is None:
        return lambda frame: Returned(None)
    value = expression(node.value, scope)
    return lambda frame: Returned(value(frame))


def _if(node: ast.If, scope: Scope) -> Execute:
    test = expression(node.test, scope)
    body = block(node.body, scope)
    other = block(node.orelse, scope) if node.orelse else None

    def run(frame: Frame) -> Returned | None:
        if truth(test(frame)):
            return body(frame)
        return None if other is None else other(frame)

    return run


def _for(node: ast.For, scope: Scope) -> Execute:
    if node.orelse:
        raise Fault("the plan language has no else after for", node.lineno)
    walked = expression(node.iter, scope)
    bind = assign(node.target, scope)
    body = block(node.body, scope)

    def run(frame: Frame) -> Returned | None:
        machine = frame[0]
        for value in sequence(walked(frame), "for"):
            machine.spend(1)
            bind(frame, value)
            returned = body(frame)
            if returned is not None:
                return returned
        return None

    return run


def _assert(node: ast.Assert, scope: Scope) -> Execute:
    test = expression(node.test, scope)
    message: Evaluate | None = None if node.msg is None else expression(node.msg, scope)
    condition = ast.unparse(node.test)[:200]

    def run(frame: Frame) -> None:
        if truth(test(frame)):
            return
        reason = condition if message is None else message(frame)
        if type(reason) is not str:
            raise Fault(f"the message of assert is a string, not {kind_of(reason)}")
        raise Refusal(reason)

    return run


def _pass(node: ast.Pass, scope: Scope) -> Execute:
    return lambda frame: None


def _bare(node: ast.Expr, scope: Scope) -> Execute:
    """A bare expression: a launch, a library call, a call of a helper, or a docstring."""
    value = node.value
    if _is_docstring(node):
        return lambda frame: None
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Subscript):
        return launch_statement(value, value.func, scope)
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id == "library":
        return library_statement(value, scope)
    call = expression(value, scope)
    if not (isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id in scope.routines):
        raise Fault("this line has no effect: its value is not used", node.lineno)

    def run(frame: Frame) -> None:
        call(frame)

    return run


_COMPILERS: dict[type[ast.stmt], Callable[[Any, Scope], Execute]] = {
    ast.Assign: _assignment, ast.AugAssign: _augmented, ast.Return: _return, ast.If: _if, ast.For: _for,
    ast.Assert: _assert, ast.Pass: _pass, ast.Expr: _bare,
}  # fmt: skip
