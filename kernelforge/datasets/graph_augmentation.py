"""Augmentation of traced graphs: seeded edits that make another graph of one, by operators of the same kind.

Source: HPCTransCompile (arXiv 2506.10401) makes further graphs of those that a compiler has, to train translation on
more programs than there are. Which edits there are, and their lists of operators, are decided here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import Any, Final

from kernelforge.tasks.graph_tasks import SizedGraph, SizedNode, references

UNARY: Final = (
    "relu", "gelu", "silu", "sigmoid", "tanh", "elu", "softplus", "leaky_relu", "hardswish", "hardsigmoid", "mish",
    "selu", "abs", "neg", "sin", "cos", "square", "erf", "atan", "hardtanh", "relu6",
)  # fmt: skip
"""Elementwise operators of one tensor that are finite wherever their operand is of a usual size."""
KINDS: Final = (
    UNARY,
    ("add", "sub", "mul"),
    ("maximum", "minimum"),
    ("sum", "mean", "amax", "amin"),
    ("argmax", "argmin"),
    ("softmax", "log_softmax"),
)
"""Operators that take each other's place, with the same arguments."""
ALONG_AN_AXIS: Final = frozenset({
    "sum", "mean", "amax", "amin", "argmax", "argmin", "softmax", "log_softmax", "cumsum", "cumprod",
    "logsumexp", "logcumsumexp", "flip",
})  # fmt: skip
"""Operators whose second argument is an axis, or a list of axes."""
MOST_EDITS: Final = 3

Edit = Callable[[SizedGraph, Random], tuple[SizedGraph, str] | None]
"""Makes another graph, and says what it did; None where a graph gives no occasion."""


def augmented(graph: SizedGraph, rng: Random, partner: SizedGraph | None) -> tuple[SizedGraph, tuple[str, ...]] | None:
    """A graph after one to three edits, and what they did; None where no edit that was drawn has an occasion.

    It need not run: an axis may not exist where a shape has changed.

    Args:
        graph: the graph of a reference.
        rng: draws the edits.
        partner: a graph to append, for which :func:`may_follow` holds; None for no such edit.
    """
    edits: list[Edit] = [_replaced, _appended, _prepended, _along_another_axis, _with_residual]
    if partner is not None:
        edits.append(lambda item, draw: _fused(item, partner, draw))
    done: list[str] = []
    for _ in range(rng.randint(1, MOST_EDITS)):
        made = rng.choice(edits)(graph, rng)
        if made is not None:
            graph, what = made
            done.append(what)
    return (graph, tuple(done)) if done else None


def _replaced(graph: SizedGraph, rng: Random) -> tuple[SizedGraph, str] | None:
    """Another operator of the same kind in place of one."""
    places = [node for node in graph.nodes if node.kind == "op" and _alternatives(node)]
    if not places:
        return None
    node = rng.choice(places)
    name = rng.choice(_alternatives(node))
    operands = [argument for argument in node.args if references(argument)]
    args = tuple(operands) if node.operator in UNARY else node.args
    kwargs: Mapping[str, Any] = {} if node.operator in UNARY else node.kwargs
    changed = replace(node, op=f"aten.{name}", args=args, kwargs=kwargs)
    return _with_node(graph, changed), f"replace {node.operator} by {name}"


def _alternatives(node: SizedNode) -> list[str]:
    operator = node.operator
    if operator in ("sum", "mean") and len(node.args) < 2:
        return [name for name in ("sum", "mean") if name != operator]
    return [name for kind in KINDS if operator in kind for name in kind if name != operator]


def _appended(graph: SizedGraph, rng: Random) -> tuple[SizedGraph, str] | None:
    """An elementwise operator on a result."""
    output = graph.nodes[-1]
    places = [number for number, argument in enumerate(output.args) if _real(graph, argument)]
    if not places:
        return None
    position = rng.choice(places)
    node, what = _elementwise(graph, references(output.args[position])[0], rng)
    args = (*output.args[:position], {"ref": node.name}, *output.args[position + 1 :])
    return _with_nodes(graph, [node], args), f"append {what}"


def _prepended(graph: SizedGraph, rng: Random) -> tuple[SizedGraph, str] | None:
    """An elementwise operator on an input, for all that reads it."""
    places = [node for node in graph.nodes if node.kind == "input" and _real(graph, {"ref": node.name})]
    if not places:
        return None
    source = rng.choice(places)
    node, what = _elementwise(graph, source.name, rng)
    first = next(number for number, other in enumerate(graph.nodes) if other.kind in ("op", "output"))
    later = [_renamed(other, {source.name: node.name}) for other in graph.nodes[first:]]
    return replace(graph, nodes=(*graph.nodes[:first], node, *later)), f"prepend {what}"


def _along_another_axis(graph: SizedGraph, rng: Random) -> tuple[SizedGraph, str] | None:
    """Another axis of an operator along one."""
    places = []
    for node in graph.nodes:
        if node.kind == "op" and node.operator in ALONG_AN_AXIS and len(node.args) > 1:
            shape = _shape(graph, node.args[0])
            axes = node.args[1] if isinstance(node.args[1], list | tuple) else [node.args[1]]
            if shape is not None and len(shape) > 1 and len(axes) == 1 and isinstance(axes[0], int):
                places.append((node, axes[0] % len(shape), len(shape)))
    if not places:
        return None
    node, axis, rank = rng.choice(places)
    other = rng.choice([number for number in range(rank) if number != axis])
    argument = [other] if isinstance(node.args[1], list | tuple) else other
    changed = replace(node, args=(node.args[0], argument, *node.args[2:]))
    return _with_node(graph, changed, shapes=False), f"{node.operator} along axis {other} instead of {axis}"


def _with_residual(graph: SizedGraph, rng: Random) -> tuple[SizedGraph, str] | None:
    """A result joined with an input of its shape."""
    output = graph.nodes[-1]
    pairs = []
    for position, argument in enumerate(output.args):
        shape = _shape(graph, argument)
        for node in graph.nodes:
            if shape and node.kind == "input" and node.shape == shape and _real(graph, argument):
                pairs += [(position, node)] * _real(graph, {"ref": node.name})
    if not pairs:
        return None
    position, source = rng.choice(pairs)
    result = graph.nodes[-1].args[position]
    operator = rng.choice(("add", "sub", "mul", "maximum", "minimum"))
    of = _node(graph, references(result)[0])
    node = replace(of, name=_fresh(graph, operator), kind="op", op=f"aten.{operator}", kwargs={})
    node = replace(node, args=(result, {"ref": source.name}))
    args = (*output.args[:position], {"ref": node.name}, *output.args[position + 1 :])
    return _with_nodes(graph, [node], args), f"{operator} with the input {source.name}"


def _fused(graph: SizedGraph, partner: SizedGraph, rng: Random) -> tuple[SizedGraph, str] | None:
    """The operators of another graph after this one, on its first result."""
    inputs = [node for node in partner.nodes if node.kind in ("input", "weight")]
    output = graph.nodes[-1]
    shape = _shape(graph, output.args[0]) if output.args else None
    if shape is None or not _real(graph, output.args[0]):
        return None
    if (
        len(inputs[0].shape or ()) != len(shape)
        or inputs[0].dtype is not _node(graph, references(output.args[0])[0]).dtype
    ):
        return None
    names = {inputs[0].name: references(output.args[0])[0]}
    added: list[SizedNode] = []
    for node in partner.nodes:
        if node.kind == "op":
            names[node.name] = _fresh(graph, f"{node.name}_then", [other.name for other in added])
            # Its shapes are the partner's own.
            added.append(replace(_renamed(node, names), name=names[node.name], shape=None))
    (result,) = _renamed(partner.nodes[-1], names).args
    return _with_nodes(graph, added, (result, *output.args[1:])), f"fuse with {' '.join(partner.operators)}"


def may_follow(graph: SizedGraph) -> bool:
    """Whether a graph's operators can follow another graph: on one tensor, and with no extent among the arguments."""
    inputs = [node for node in graph.nodes if node.kind in ("input", "weight")]
    fixed = all(_has_no_extents([list(node.args), dict(node.kwargs)]) for node in graph.nodes if node.kind == "op")
    return len(inputs) == 1 and bool(inputs[0].shape) and len(graph.nodes[-1].args) == 1 and fixed


def _has_no_extents(argument: Any) -> bool:
    """Whether arguments hold small numbers alone, such as axes, and no number that differs by size."""
    if isinstance(argument, Mapping):
        return all(_has_no_extents(item) for item in argument.values())
    if isinstance(argument, list):
        return all(_has_no_extents(item) for item in argument)
    return not isinstance(argument, tuple) and not (type(argument) is int and abs(argument) > 8)


def _elementwise(graph: SizedGraph, name: str, rng: Random) -> tuple[SizedNode, str]:
    """A new node with an elementwise operator on a value, or its product or sum with a number."""
    of = _node(graph, name)
    if rng.random() < 0.25:
        operator = rng.choice(("mul", "add"))
        number = rng.choice((0.5, 2.0, 0.25, 1.5, -1.0, 3.0))
        args: tuple[Any, ...] = ({"ref": name}, number)
        what = f"{operator} by {number}" if operator == "mul" else f"{operator} of {number}"
    else:
        operator = rng.choice([unary for unary in UNARY if unary != of.operator])
        args, what = ({"ref": name},), operator
    node = replace(of, name=_fresh(graph, operator), kind="op", op=f"aten.{operator}", args=args, kwargs={})
    return node, what


def _real(graph: SizedGraph, argument: Any) -> bool:
    """Whether an argument is one tensor of real numbers."""
    names = references(argument)
    dtype = _node(graph, names[0]).dtype if len(names) == 1 else None
    return dtype is not None and dtype.is_floating


def _shape(graph: SizedGraph, argument: Any) -> tuple[Any, ...] | None:
    names = references(argument)
    return _node(graph, names[0]).shape if len(names) == 1 else None


def _node(graph: SizedGraph, name: str) -> SizedNode:
    return next(node for node in graph.nodes if node.name == name)


def _fresh(graph: SizedGraph, base: str, also: Sequence[str] = ()) -> str:
    taken = {node.name for node in graph.nodes} | set(also)
    return next(name for number in range(1, 1000) if (name := f"{base}_{number}") not in taken)


def _renamed(node: SizedNode, names: Mapping[str, str]) -> SizedNode:
    """A node that reads other nodes by their new names."""

    def renamed(argument: Any) -> Any:
        if isinstance(argument, Mapping):
            if "ref" in argument:
                return {"ref": names.get(argument["ref"], argument["ref"])}
            return {key: renamed(item) for key, item in argument.items()}
        if type(argument) in (list, tuple):
            return type(argument)(renamed(item) for item in argument)
        return argument

    return replace(node, args=renamed(node.args), kwargs=renamed(dict(node.kwargs)))


def _with_node(graph: SizedGraph, changed: SizedNode, *, shapes: bool = True) -> SizedGraph:
    """A graph with another node of the same name; without ``shapes`` those of it and of what follows are unknown."""
    unknown = {changed.name} if not shapes else set()
    nodes = []
    for node in graph.nodes:
        node = changed if node.name == changed.name else node
        if unknown & set(references([node.args, dict(node.kwargs)])):
            unknown.add(node.name)
        nodes.append(replace(node, shape=None) if node.name in unknown else node)
    return replace(graph, nodes=tuple(nodes))


def _with_nodes(graph: SizedGraph, added: Sequence[SizedNode], results: tuple[Any, ...]) -> SizedGraph:
    """A graph with further nodes and other results."""
    output = replace(graph.nodes[-1], args=results)
    return replace(graph, nodes=(*graph.nodes[:-1], *added, output))
