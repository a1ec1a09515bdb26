"""The statements that leave a step in the plan: launches and library calls."""

from __future__ import annotations

import ast
from collections.abc import Callable

from kernelforge.candidate.language.expressions import expression, keyword_values, values
from kernelforge.candidate.language.functions import FUNCTIONS, RESERVED
from kernelforge.candidate.language.launches import kernel, launch
from kernelforge.candidate.language.library import library
from kernelforge.candidate.language.machine import Machine
from kernelforge.candidate.language.scope import Execute, Frame, Scope, check_name
from kernelforge.candidate.language.values import Fault, KernelName, Tensor, kind_of


def launch_statement(node: ast.Call, target: ast.Subscript, scope: Scope) -> Execute:
    """``name[grid, block](arguments)``."""
    name = _kernel_name(target.value, scope)
    options = values(target.slice.elts if isinstance(target.slice, ast.Tuple) else [target.slice], scope)
    args = values(node.args, scope)
    given = keyword_values(node, scope)
    if extra := given.keys() - {"cluster", "cooperative"}:
        raise Fault(
            f"a launch has no option {min(extra)!r}; kernel arguments go by position, "
            "options are cluster and cooperative",
            node.lineno,
        )
    cluster, cooperative = given.get("cluster"), given.get("cooperative")
    line = node.lineno

    def run(frame: Frame) -> None:
        machine: Machine = frame[0]
        called, chosen, passed = name(frame), tuple(options(frame)), args(frame)
        extent = None if cluster is None else cluster(frame)
        whole_grid = False if cooperative is None else cooperative(frame)
        machine.line = line
        launch(machine, called, chosen, passed, extent, whole_grid)

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
        given = args(frame)
        named = {name: value(frame) for name, value in keywords.items()}
        machine.line = line
        results = named.pop("out")
        library(machine, given, named, results)

    return run


def _kernel_name(node: ast.expr, scope: Scope) -> Callable[[Frame], KernelName]:
    """The kernel before ``[...]``: a name that the source defines, ``kernel("...")``, or a variable that holds one."""
    if isinstance(node, ast.Name) and scope.find(node.id) is None:
        if node.id in FUNCTIONS or node.id in RESERVED or node.id in scope.routines:
            raise Fault(f"{node.id!r} is not a kernel", node.lineno)
        if scope.module is None or scope.module.find(node.id) is None:
            check_name(node.id, node.lineno)
            fixed = kernel(node.id)
            return lambda frame: fixed
    held = expression(node, scope)

    def run(frame: Frame) -> KernelName:
        value = held(frame)
        if type(value) is not KernelName:
            hint = "; tensors are indexed, not launched" if type(value) is Tensor else ""
            raise Fault(f"only a kernel can be launched, this is {kind_of(value)}{hint}")
        return value

    return run
