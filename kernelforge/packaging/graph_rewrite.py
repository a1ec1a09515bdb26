"""The graph of a model with calls of groups replaced by modules. Runs no operator itself."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import getitem
from typing import Any, NamedTuple

import torch
from torch import fx, nn
from torch.export.graph_signature import InputKind, InputSpec, OutputKind

from kernelforge.capture.records import GroupCall


class Replacement(NamedTuple):
    """One call of a group, and the module that computes it."""

    call: GroupCall
    module: nn.Module
    """Takes the call's inputs, then its weights in ``order``; gives its outputs in C order."""
    order: tuple[int, ...]
    restored: tuple[tuple[int, ...] | None, ...]
    """See :attr:`.Match.restored`."""


def replaced_graph(
    program: torch.export.ExportedProgram, wrapped: nn.Module, replacements: Sequence[Replacement]
) -> fx.GraphModule:
    """The graph of a model with calls replaced: a module that takes the flat inputs and gives the flat tensors.

    Args:
        program: The graph, as :func:`.exported` gives it.
        wrapped: What was exported; parameters and buffers of the result are its own.
        replacements: Calls, none of which shares a node with another.
    """
    return _Rewriting(program, wrapped, replacements).module()


class _Rewriting:
    def __init__(
        self, program: torch.export.ExportedProgram, wrapped: nn.Module, replacements: Sequence[Replacement]
    ) -> None:
        self._program, self._wrapped, self._replacements = program, wrapped, replacements
        self._nodes = {node.name: node for node in program.graph.nodes}
        self._graph = fx.Graph()
        self._copies: dict[str, fx.Node] = {}
        """Nodes of the new graph, by name in the old one."""
        self._objects: dict[str, Any] = {}
        """Weights and operators by name, which the new graph refers to."""
        self._inputs: dict[str, InputSpec] = {spec.arg.name: spec for spec in program.graph_signature.input_specs}
        """Inputs and weights by node."""
        self._weights = {str(spec.target).removeprefix("model."): name for name, spec in self._inputs.items()}
        """Nodes of weights by dotted name."""
        self._call_of = {
            name: number for number, replacement in enumerate(replacements) for name in replacement.call.nodes
        }

    def module(self) -> fx.GraphModule:
        self._take_arguments()
        live = self._live()
        last = {replacement.call.nodes[-1]: number for number, replacement in enumerate(self._replacements)}
        for node in self._program.graph.nodes:
            if node.name in live and node.op == "call_function":
                if node.name in last:
                    self._replace(last[node.name])
                elif node.name not in self._call_of:
                    self._copy(node)
        self._finish()
        module = fx.GraphModule(self._objects, self._graph)
        module.graph.lint()
        module.recompile()
        return module

    def _live(self) -> set[str]:
        """Nodes that the results depend on where calls are replaced; all nodes of a call whose result is read."""
        live: set[str] = set()
        work = [node for node in self._program.graph.nodes if node.op == "output"]
        while work:
            node = work.pop()
            if node.name in live:
                continue
            number = self._call_of.get(node.name)
            if number is None:
                live.add(node.name)
                work += node.all_input_nodes
            else:
                call = self._replacements[number].call
                live.update(call.nodes)
                weights = [self._weights[name] for name in call.weights]
                work += [self._nodes[name] for name in (*call.inputs, *weights)]
        return live

    def _take_arguments(self) -> None:
        """The model's inputs, in order; weights follow where something reads them."""
        for node in self._program.graph.nodes:
            if node.op == "placeholder" and self._inputs[node.name].kind == InputKind.USER_INPUT:
                self._copies[node.name] = self._graph.node_copy(node)

    def _copy(self, node: fx.Node) -> fx.Node:
        """The node in the new graph, with all that it reads."""
        if node.name not in self._copies:
            number = self._call_of.get(node.name)
            if number is not None:
                self._replace(number)
            elif node.op == "placeholder":
                self._copies[node.name] = self._weight(self._inputs[node.name])
            else:
                for source in node.all_input_nodes:
                    self._copy(source)
                self._copies[node.name] = self._graph.node_copy(node, lambda each: self._copies[each.name])
        return self._copies[node.name]

    def _weight(self, spec: InputSpec) -> fx.Node:
        name = str(spec.target)
        path = name.removeprefix("model.")
        if spec.kind in (InputKind.PARAMETER, InputKind.BUFFER):
            self._objects[path] = reduce(getattr, name.split("."), self._wrapped)
        else:
            path = f"kernelforge_constants.{name.replace('.', '_')}"
            self._objects[path] = self._program.constants[name]
        return self._graph.get_attr(path)

    def _replace(self, number: int) -> None:
        """Put the operator of a call where its inputs are ready."""
        call, module, order, restored = self._replacements[number]
        if call.outputs[0] in self._copies:
            return
        path = f"kernelforge_operators.call_{number}"
        self._objects[path] = module
        inputs = [self._copy(self._nodes[name]) for name in call.inputs]
        weights = [self._copy(self._nodes[self._weights[call.weights[position]]]) for position in order]
        results = self._graph.call_module(path, (*inputs, *weights))
        for position, (name, axes) in enumerate(zip(call.outputs, restored, strict=True)):
            output = self._graph.call_function(getitem, (results, position))
            self._copies[name] = output if axes is None else self._restored(output, axes)

    def _restored(self, output: fx.Node, axes: tuple[int, ...]) -> fx.Node:
        """The same values, where the axes lie in memory in the order that the model has them."""
        aten = torch.ops.aten
        moved = self._graph.call_function(aten.permute.default, (output, list(axes)))
        copied = self._graph.call_function(aten.clone.default, (moved,), {"memory_format": torch.contiguous_format})
        back = [axes.index(axis) for axis in range(len(axes))]
        return self._graph.call_function(aten.permute.default, (copied, back))

    def _finish(self) -> None:
        """Write the buffers and inputs that the model changes; return its tensors."""
        signature = self._program.graph_signature
        (results,) = next(node.args for node in reversed(self._program.graph.nodes) if node.op == "output")
        targets = {str(spec.target): spec.arg.name for spec in signature.input_specs if spec.target is not None}
        returned = []
        for spec, result in zip(signature.output_specs, results, strict=True):
            value = self._copy(result) if isinstance(result, fx.Node) else result
            if spec.kind == OutputKind.USER_OUTPUT:
                returned.append(value)
            else:
                target = str(spec.target)
                changed = self._copy(self._nodes[targets.get(target, target)])
                self._graph.call_function(torch.ops.aten.copy_.default, (changed, value))
        self._graph.output(tuple(returned))
