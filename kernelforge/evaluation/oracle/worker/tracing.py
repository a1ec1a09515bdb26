"""Trace the reference to a flat graph of ATen operators, by ``torch.export`` before any decomposition.

Operators keep their high-level names (``aten.layer_norm``, ``aten.softmax``, ``aten.conv2d``), parameters are
weight nodes by dotted name, and every value has its real shape. Runs third-party code; for confined children.
"""

from __future__ import annotations

import logging
import operator
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import fx, nn
from torch.fx import config as fx_config

from kernelforge.errors import TaskError
from kernelforge.evaluation.oracle.worker.reference import Reference, Value, remembered, tensor_spec
from kernelforge.records import Graph, Node, TensorSpec
from kernelforge.tasks.constants import Scalar

_DEPENDS_ON_VALUES = (
    "the reference's control flow or shapes depend on tensor values, so it has no graph to work from; "
    "in forward, choose by shapes or module attributes, or select values with torch.where"
)


def trace_source(source: str, constants: Mapping[str, Scalar], size: str = "full") -> Graph:
    """Graph of the ``Model`` in a task file's text, at the module constants given.

    Raises:
        TaskError: the file does not run, or its control flow depends on tensor values.
    """
    return trace_at(Reference(source, constants), size)


@remembered
def trace_at(reference: Reference, size: str) -> Graph:
    """Graph of a reference, from shapes alone where it lets that; kept, for facts and agents both ask for it.

    Raises:
        TaskError: as :func:`trace_source`.
    """
    try:
        return trace_reference(reference, reference.fake_inputs(), size)
    except TaskError:
        return trace_reference(reference, reference.inputs(0), size)


def trace_reference(reference: Reference, inputs: Sequence[Value], size: str) -> Graph:
    """Graph of a reference on its inputs. Shapes are those of ``inputs``; nothing is computed on real data."""
    reference.restore()
    try:
        program = _export(reference.model, inputs)
    finally:
        reference.restore()
    signature = program.graph_signature
    weights = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
    weights |= dict(signature.inputs_to_lifted_tensor_constants)
    canonical = {alias: spec.name for spec in reference.weight_specs() for alias in (spec.name, *spec.aliases)}
    constants = {name: value for name, value in program.constants.items() if name not in canonical}
    numbers = {name: value.item() for name, value in constants.items() if _is_number(value)}
    positions = iter(range(len(inputs)))
    user_inputs = set(signature.user_inputs)
    nodes: list[Node] = []
    for node in program.graph.nodes:
        spec = _spec(node.meta.get("val"))
        if node.op == "placeholder":
            name = weights.get(node.name, node.name)
            if name in numbers:
                # ``torch.tensor(0.5)`` in forward: no candidate is handed it.
                nodes.append(Node(name=node.name, kind="op", op="aten.scalar_tensor", args=(numbers[name],), spec=spec))
            elif node.name in weights:
                nodes.append(Node(name=node.name, kind="weight", op=canonical.get(name, name), spec=spec))
            elif spec is None:
                # A number, or None: the graph has it as a constant wherever it is used.
                position = next(positions)
                value = _plain(inputs[position])
                nodes.append(Node(name=node.name, kind="input", op=str(position), args=(value,)))
            elif node.name in user_inputs:
                nodes.append(Node(name=node.name, kind="input", op=str(next(positions)), spec=spec))
        elif node.op == "output":
            results = [_plain(arg) for arg in _flat(node.args[0])]
            nodes.append(Node(name=node.name, kind="output", op="output", args=tuple(results)))
        elif node.op == "call_function" and (node.users or _has_effect(node, weights)):
            nodes.append(
                Node(
                    name=node.name,
                    kind="op",
                    op=operator_name(node.target),
                    args=tuple(_plain(arg) for arg in node.args),
                    kwargs={name: _plain(arg) for name, arg in node.kwargs.items()},
                    spec=spec,
                )
            )
    return Graph(size=size, nodes=tuple(nodes))


def operator_name(target: Any) -> str:
    """``aten.softmax.int`` for an ATen overload, ``getitem`` for taking one of several results."""
    if target is operator.getitem:
        return "getitem"
    name = str(target)
    return name.removesuffix(".default") if name.startswith("aten.") else name


def _export(model: nn.Module, inputs: Sequence[Value]) -> torch.export.ExportedProgram:
    from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException

    # The line of the task file that a node comes from is never read; looking it up takes a fourteenth of the time.
    if hasattr(fx_config, "do_not_emit_stack_traces"):
        fx_config.do_not_emit_stack_traces = True
    logging.getLogger("torch").setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            return torch.export.export(model, tuple(inputs), strict=False)
    except (DataDependentOutputException, DynamicOutputShapeException) as error:
        raise TaskError(f"{_DEPENDS_ON_VALUES} ({error})") from error
    except Exception as error:
        if type(error).__name__ == "GuardOnDataDependentSymNode":
            raise TaskError(_DEPENDS_ON_VALUES) from error
        text = str(error).strip().split("\n")[0][:500]
        raise TaskError(f"the reference cannot be traced to a graph: {type(error).__name__}: {text}") from error


def _spec(value: Any) -> TensorSpec | None:
    """None for several results, and for complex values, which stay inside a reference (between two transforms)."""
    return tensor_spec(value) if isinstance(value, torch.Tensor) and not value.is_complex() else None


def _is_number(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and not value.is_meta and value.dim() == 0 and not value.is_complex()


def _flat(results: Any) -> list[Any]:
    if isinstance(results, tuple | list):
        return [item for result in results for item in _flat(result)]
    return [] if results is None else [results]


def _has_effect(node: fx.Node, weights: Mapping[str, str]) -> bool:
    """Whether an operator without users changes an input in place; changes of buffers do not count."""
    schema = getattr(node.target, "_schema", None)
    if schema is None or not schema.is_mutable:
        return False
    first = node.args[0] if node.args else None
    return not (isinstance(first, fx.Node) and first.name in weights)


def _plain(argument: Any) -> Any:
    """An argument as JSON."""
    if isinstance(argument, fx.Node):
        return {"ref": argument.name}
    if isinstance(argument, tuple | list):
        return [_plain(item) for item in argument]
    if isinstance(argument, torch.dtype | torch.device | torch.layout | torch.memory_format):
        return str(argument).removeprefix("torch.")
    if argument is None or isinstance(argument, int | float | bool | str):
        return argument
    return str(argument)
