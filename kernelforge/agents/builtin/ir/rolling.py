"""Loops of a reference's ``forward``, found again in its graphs, where every round is written out.

A loop over an extent makes graphs whose length differs between the full and the small size. Operators that repeat as
many times as the size says become the body of a loop: ``loop_begin``, the operators of one round, ``loop_end``. A round
may use what the round before it made (a state), elements of tensors at places that grow by the same step with each
round, and what an earlier loop made in such a round. What rounds make may be used after the loop: from the last one,
from one of them, or from all in a ``stack`` or ``cat``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

from kernelforge.agents.builtin.codegen.pointwise import POINTWISE
from kernelforge.agents.builtin.ir.nodes import operator
from kernelforge.records import Graph, Node

LEAST_ROUNDS = 3
"""Rounds of the full size from which operators that repeat are a loop."""
MOST_CANDIDATES = 256
"""Lengths of a round that are tried at one place."""
_PLACES = {"select": (2,), "slice": (2, 3), "narrow": (2,)}
"""Arguments that may grow with each round, by operator; of elementwise operators any number may."""
_JOINS = ("stack", "cat", "concat", "concatenate")


class _NotRolledError(Exception):
    """Operators that repeat are no loop that can be written."""


class _Region(NamedTuple):
    """Nodes of a graph that repeat: ``rounds`` times ``length`` nodes from ``start`` on."""

    start: int
    length: int
    rounds: int


def rolled(full: Graph, small: Graph) -> tuple[Graph, Graph]:
    """Both graphs with loops in place of rounds that are written out; unchanged where that does not make them alike."""
    if _outline(full.nodes) == _outline(small.nodes):
        return full, small
    try:
        nodes = _with_selects_at_their_users(full.nodes), _with_selects_at_their_users(small.nodes)
        regions = list(_regions(*nodes))
        by_full, by_small = (
            _Rewriter(graph, [pair[size] for pair in regions]).run() for size, graph in enumerate(nodes)
        )
        by_full, by_small = _alike(by_full, by_small)
    except _NotRolledError:
        return full, small
    return full.model_copy(update={"nodes": by_full}), small.model_copy(update={"nodes": by_small})


def _outline(nodes: Sequence[Node]) -> list[tuple[str, str]]:
    return [(node.op, node.name) for node in nodes]


def _references(argument: Any) -> Iterator[str]:
    if isinstance(argument, dict):
        if "ref" in argument:
            yield argument["ref"]
            return
        argument = list(argument.values())
    if isinstance(argument, list | tuple):
        for item in argument:
            yield from _references(item)


def _mapped(argument: Any, reference: Callable[[str], Any]) -> Any:
    """An argument with other references."""
    if isinstance(argument, dict):
        if "ref" in argument:
            return reference(argument["ref"])
        return {name: _mapped(value, reference) for name, value in argument.items()}
    if isinstance(argument, list | tuple):
        return [_mapped(item, reference) for item in argument]
    return argument


def _with_selects_at_their_users(nodes: Sequence[Node]) -> list[Node]:
    """The nodes with one ``select`` for each user, right before it: ``unbind`` and lists of elements make them at once,
    and two loops may share them.

    Raises:
        _NotRolledError: an operator changes a tensor in place, so that order matters.
    """
    by_name = {node.name: node for node in nodes}
    selects: dict[str, Node] = {}
    dropped: set[str] = set()
    for node in nodes:
        if node.kind == "op" and operator(node).endswith("_") and not operator(node).startswith("__"):
            raise _NotRolledError
        source = by_name[node.args[0]["ref"]] if operator(node) == "getitem" else node
        if operator(node) == "select" and len(node.args) == 3 and not node.kwargs:
            selects[node.name] = node
        elif source is not node and operator(source) == "unbind":
            axis = source.args[1] if len(source.args) > 1 else source.kwargs.get("dim", 0)
            args = (source.args[0], axis, node.args[1])
            selects[node.name] = node.model_copy(update={"op": "aten.select.int", "args": args})
            dropped.add(source.name)
    moved: list[Node] = []
    copies = Counter[str]()

    def copied(name: str) -> Any:
        """A reference to a copy of a select, and of those that it reads."""
        if name not in selects:
            return {"ref": name}
        copies[name] += 1
        select = selects[name]
        new = name if copies[name] == 1 else f"{name}__{copies[name]}"
        moved.append(select.model_copy(update={"name": new, "args": tuple(_mapped(select.args, copied))}))
        return {"ref": new}

    for node in nodes:
        if node.name in selects or node.name in dropped:
            continue
        args, kwargs = tuple(_mapped(node.args, copied)), _mapped(node.kwargs, copied)
        same = args == node.args and kwargs == node.kwargs
        moved.append(node if same else node.model_copy(update={"args": args, "kwargs": kwargs}))
    return moved


class _Signatures:
    """Texts that are equal for the same operator of two rounds."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self._weights = {node.name for node in nodes if node.kind == "weight"}
        self.outlines = [repr((node.op, node.kind, *self._of(node))) for node in nodes]
        """Without extents, so that they are the same at every size."""
        self.exact = [
            f"{outline} {self._numbers(node)} {node.spec}" for outline, node in zip(self.outlines, nodes, strict=True)
        ]

    def _of(self, node: Node) -> tuple[Any, Any]:
        def plain(argument: Any) -> Any:
            if isinstance(argument, dict) and "ref" not in argument:
                return {name: plain(value) for name, value in argument.items()}
            if isinstance(argument, dict):
                return argument["ref"] if argument["ref"] in self._weights else "{}"
            if isinstance(argument, list | tuple):
                return [plain(item) for item in argument]
            return "#" if type(argument) in (int, float) else argument

        return plain(node.args), plain(node.kwargs)

    def _numbers(self, node: Node) -> str:
        """The arguments that are no tensors, but for those that may grow with each round."""
        grows = _growing(node)
        return repr(
            [
                "#" if position in grows and type(argument) is int else _mapped(argument, lambda name: "{}")
                for position, argument in enumerate(node.args)
            ]
        )


def _growing(node: Node) -> tuple[int, ...]:
    """Positions of arguments that may grow with each round."""
    name = operator(node)
    return tuple(range(len(node.args))) if name in POINTWISE else _PLACES.get(name, ())


def _regions(full: Sequence[Node], small: Sequence[Node]) -> Iterator[tuple[_Region, _Region]]:
    """Yield the nodes that repeat at both sizes, and not as often.

    Raises:
        _NotRolledError: the graphs are not alike elsewhere.
    """
    of_full, of_small = _Signatures(full), _Signatures(small)
    at_full = at_small = 0
    while at_full < len(full) and at_small < len(small):
        for length in _lengths(of_full.exact, at_full):
            rounds = _repeats(of_full.exact, at_full, length)
            body = of_full.outlines[at_full : at_full + length]
            at_first = of_small.outlines[at_small : at_small + length] == body
            fewer = _repeats(of_small.exact, at_small, length) if at_first else 0
            if rounds >= LEAST_ROUNDS and fewer > 1 and rounds != fewer:
                yield _Region(at_full, length, rounds), _Region(at_small, length, fewer)
                at_full, at_small = at_full + rounds * length, at_small + fewer * length
                break
        else:
            a, b = full[at_full], small[at_small]
            if (a.op, a.kind) != (b.op, b.kind):
                raise _NotRolledError
            at_full, at_small = at_full + 1, at_small + 1
    if at_full < len(full) or at_small < len(small):
        raise _NotRolledError


def _lengths(signatures: Sequence[str], start: int) -> list[int]:
    """Lengths of a round that may begin at a place: those of which most nodes repeat come first."""
    covered: dict[int, int] = {}
    at = start
    for _ in range(MOST_CANDIDATES):
        try:
            at = signatures.index(signatures[start], at + 1)
        except ValueError:
            break
        length = at - start
        if not any(length % shorter == 0 and nodes >= LEAST_ROUNDS * length for shorter, nodes in covered.items()):
            covered[length] = length * _repeats(signatures, start, length)
    return sorted(covered, key=lambda length: (-covered[length], length))


def _repeats(signatures: Sequence[str], start: int, length: int) -> int:
    """Count how many times the ``length`` nodes from a place on stand one after another."""
    at = start + length
    while at < len(signatures) and signatures[at] == signatures[at - length]:
        at += 1
    return (at - start) // length


@dataclass(eq=False)
class _Loop:
    """Parts of one loop, collected round by round."""

    number: int
    region: _Region
    names: list[str]
    """Of the nodes of its first round, which stand for those of all."""
    starts: list[Any] = field(default_factory=list)
    """States of the first round."""
    ends: list[Any] = field(default_factory=list)
    """States of the next round, in the same order."""
    walked: list[Any] = field(default_factory=list)
    lasts: dict[int, str] = field(default_factory=dict)
    """Names of what is used after the loop from its last round, by place in a round."""
    collected: dict[int, str] = field(default_factory=dict)
    body: list[Node] = field(default_factory=list)

    def state(self, number: int) -> Any:
        return {"ref": f"loop{self.number}_state{number}"}


class _Origin(NamedTuple):
    """The loop, the place in a round and the round that a node belongs to."""

    loop: _Loop
    offset: int
    round: int


class _Part(NamedTuple):
    """A part of a ``stack`` or ``cat``: one tensor, or a tensor of all rounds of a loop."""

    tensor: Any
    direction: int
    """0 for one tensor; 1 for all rounds, or -1 where the last round comes first."""
    skipped: int
    """Rounds at the beginning of the loop that are not part of it."""
    missing: int
    """Rounds at the end that are not."""


class _Rewriter:
    """Writes one graph with loops."""

    def __init__(self, nodes: Sequence[Node], regions: Sequence[_Region]) -> None:
        self.nodes = nodes
        self.by_name = {node.name: node for node in nodes}
        self.origins: dict[str, _Origin] = {}
        self.loops: dict[int, _Loop] = {}
        self.selects = 0
        for number, region in enumerate(regions, 1):
            body = nodes[region.start : region.start + region.length]
            loop = self.loops[region.start] = _Loop(number, region, [node.name for node in body])
            for at in range(region.rounds * region.length):
                round_number, offset = divmod(at, region.length)
                self.origins[nodes[region.start + at].name] = _Origin(loop, offset, round_number)

    def run(self) -> tuple[Node, ...]:
        """The nodes of the graph with loops.

        Raises:
            _NotRolledError: a round depends on another than the one before it, or its arguments do not grow evenly.
        """
        parts: list[_Loop | list[Node]] = []
        at = 0
        while at < len(self.nodes):
            if (loop := self.loops.get(at)) is not None:
                self._write_body(loop)
                parts.append(loop)
                at += loop.region.rounds * loop.region.length
                continue
            parts.append(self._outside(self.nodes[at]))
            at += 1
        written: list[Node] = []
        for part in parts:
            written += self._loop_nodes(part) if isinstance(part, _Loop) else part
        return tuple(written)

    def _loop_nodes(self, loop: _Loop) -> list[Node]:
        begin, end = f"loop{loop.number}", f"loop{loop.number}_end"
        results = [[{"ref": loop.names[offset]} for offset in offsets] for offsets in (loop.lasts, loop.collected)]
        names = [*loop.lasts.values(), *loop.collected.values()]
        return [
            Node(name=begin, kind="op", op="loop_begin", args=(loop.region.rounds, loop.starts, loop.walked)),
            *(_item(begin, number, loop.state(number)["ref"]) for number in range(len(loop.starts))),
            *loop.body,
            Node(name=end, kind="op", op="loop_end", args=(loop.starts, loop.ends, *results)),
            *(_item(end, number, name) for number, name in enumerate(names)),
        ]

    def _write_body(self, loop: _Loop) -> None:
        start, length, rounds = loop.region
        for offset in range(length):
            nodes = [self.nodes[start + number * length + offset] for number in range(rounds)]
            first = nodes[0]
            grows = _growing(first)
            args = [
                self._unified(loop, [node.args[position] for node in nodes], position in grows)
                for position in range(len(first.args))
            ]
            kwargs = {name: self._unified(loop, [node.kwargs[name] for node in nodes], False) for name in first.kwargs}
            if operator(first) == "select" and isinstance(args[-1], dict) and args[-1]["round"][1] in (1, -1):
                base = first.args[0]["ref"]
                if base not in self.origins:
                    loop.walked.append([{"ref": base}, args[1]])
            loop.body.append(first.model_copy(update={"args": tuple(args), "kwargs": kwargs}))

    def _unified(self, loop: _Loop, arguments: Sequence[Any], grows: bool) -> Any:
        """One argument of all rounds."""
        first = arguments[0]
        if all(isinstance(argument, dict) and "ref" in argument for argument in arguments):
            return self._unified_reference(loop, [argument["ref"] for argument in arguments])
        if isinstance(first, list | tuple):
            if any(not isinstance(argument, list | tuple) or len(argument) != len(first) for argument in arguments):
                raise _NotRolledError
            return [self._unified(loop, items, False) for items in zip(*arguments, strict=True)]
        if all(argument == first and type(argument) is type(first) for argument in arguments):
            return first
        if not grows or any(type(argument) is not int for argument in arguments):
            raise _NotRolledError
        return _progression(arguments)

    def _unified_reference(self, loop: _Loop, names: Sequence[str]) -> Any:
        """A reference of all rounds: to one tensor, or to what this round, the one before or an earlier loop made."""
        origins = [self.origins.get(name) for name in names]
        first = origins[0]
        if len(set(names)) == 1 and (first is None or first.loop is not loop):
            return self._from_outside(names[0])
        if first is not None and origins == [_Origin(loop, first.offset, number) for number in range(len(names))]:
            return {"ref": loop.names[first.offset]}
        begun = next((at for at, origin in enumerate(origins) if origin is not None and origin.loop is loop), 0)
        made = origins[begun]
        if begun and made is not None:
            if origins[begun:] != [_Origin(loop, made.offset, number) for number in range(len(names) - begun)]:
                raise _NotRolledError
            return self._state(loop, made.offset, names[:begun])
        if first is None or first.loop is loop:
            raise _NotRolledError
        rounds = [origin.round for origin in origins if origin is not None and origin[:2] == first[:2]]
        if len(rounds) < len(names):
            raise _NotRolledError
        source = self._collected(first.loop, first.offset)
        loop.walked.append([source, 0])
        return self._select(loop.body, source, _progression(rounds), self.by_name[names[0]])

    def _state(self, loop: _Loop, offset: int, starts: Sequence[str]) -> Any:
        """A reference to a result of as many rounds ago as there are ``starts``, which first rounds take instead."""
        end = {"ref": loop.names[offset]}
        made = self.by_name[loop.names[offset]].spec
        for name in reversed(starts):
            begun = self.by_name[name].spec
            if made is None or begun is None or (made.shape, made.dtype) != (begun.shape, begun.dtype):
                raise _NotRolledError
            state = (self._from_outside(name), end)
            states = list(zip(loop.starts, loop.ends, strict=True))
            if state not in states:
                states.append(state)
                loop.starts.append(state[0])
                loop.ends.append(end)
            end = loop.state(states.index(state))
        return end

    def _from_outside(self, name: str, into: list[Node] | None = None) -> Any:
        """A reference from outside of the loop that a node is in."""
        origin = self.origins.get(name)
        if origin is None:
            return {"ref": name}
        loop, offset, number = origin
        if number == loop.region.rounds - 1:
            return {"ref": loop.lasts.setdefault(offset, f"loop{loop.number}_last{offset}")}
        if into is None:
            raise _NotRolledError
        return self._select(into, self._collected(loop, offset), [number, loop.region.rounds], self.by_name[name])

    def _collected(self, loop: _Loop, offset: int) -> Any:
        """A tensor of what all rounds made."""
        return {"ref": loop.collected.setdefault(offset, f"loop{loop.number}_all{offset}")}

    def _select(self, into: list[Node], source: Any, at: Any, of: Node) -> Any:
        """A reference to a new node, one element of a tensor of all rounds. ``at`` is its place or, as a list, that and
        the number of rounds."""
        self.selects += 1
        name = f"loop_select{self.selects}"
        into.append(Node(name=name, kind="op", op="aten.select.int", args=(source, 0, at), spec=of.spec))
        return {"ref": name}

    def _outside(self, node: Node) -> list[Node]:
        """A node that is in no loop, after those that it takes from the rounds of one."""
        before: list[Node] = []
        args = node.args
        if operator(node) in _JOINS and args and isinstance(args[0], list | tuple):
            parts = list(self._parts([item["ref"] for item in args[0]], before))
            if any(part.direction for part in parts):
                axis = args[1] if len(args) > 1 else node.kwargs.get("dim", 0)
                joined = ([list(part) for part in parts], axis, operator(node) == "stack")
                return [*before, node.model_copy(update={"op": "loop_join", "args": joined, "kwargs": {}})]
        update = {
            "args": tuple(_mapped(args, lambda name: self._from_outside(name, before))),
            "kwargs": _mapped(node.kwargs, lambda name: self._from_outside(name, before)),
        }
        return [*before, node.model_copy(update=update)]

    def _parts(self, names: Sequence[str], before: list[Node]) -> Iterator[_Part]:
        """Yield the parts that a list of tensors consists of."""
        at = 0
        while at < len(names):
            run = self._run(names[at:])
            if len(run) < 2:
                yield _Part(self._from_outside(names[at], before), 0, 0, 0)
            else:
                loop, offset, _ = run[0]
                numbers = sorted(origin.round for origin in run)
                backwards = run[0].round > run[1].round
                missing = loop.region.rounds - 1 - numbers[-1]
                yield _Part(self._collected(loop, offset), -1 if backwards else 1, numbers[0], missing)
            at += max(len(run), 1)

    def _run(self, names: Sequence[str]) -> list[_Origin]:
        """The origins of the first of some nodes, as far as they are the same in rounds that follow each other, up or
        down."""
        longest: list[_Origin] = []
        for step in (1, -1):
            run: list[_Origin] = []
            for name in names:
                origin = self.origins.get(name)
                if origin is None or (run and origin != run[-1]._replace(round=run[-1].round + step)):
                    break
                run.append(origin)
            longest = max(longest, run, key=len)
        return longest


def _item(source: str, number: int, name: str) -> Node:
    return Node(name=name, kind="op", op="getitem", args=({"ref": source}, number))


def _progression(numbers: Sequence[int]) -> Any:
    """Integers that grow by the same step with each round, as an argument of the graph."""
    step = numbers[1] - numbers[0]
    if any(after - before != step for before, after in pairwise(numbers)):
        raise _NotRolledError
    if min(numbers) < 0 <= max(numbers):
        raise _NotRolledError
    return {"round": [numbers[0], step]} if step else numbers[0]


def _alike(full: Sequence[Node], small: Sequence[Node]) -> tuple[tuple[Node, ...], tuple[Node, ...]]:
    """Nodes at both sizes, the small ones under the names of the others.

    Raises:
        _NotRolledError: they differ by more than numbers.
    """
    if len(full) != len(small):
        raise _NotRolledError
    names: dict[str, str] = {}
    pairs: list[tuple[Node, Node]] = []
    for node, other in zip(full, small, strict=True):
        args = tuple(_mapped(other.args, lambda name: {"ref": names[name]}))
        kwargs = _mapped(other.kwargs, lambda name: {"ref": names[name]})
        same = (node.op, list(_references(node.args))) == (other.op, list(_references(args)))
        if not same or (node.op == "loop_join" and _mapped(node.args, lambda name: {"ref": name}) != list(args)):
            raise _NotRolledError
        names[other.name] = node.name
        other = other.model_copy(update={"name": node.name, "args": args, "kwargs": kwargs})
        if operator(node) == "select" and isinstance(node.args[-1], list):
            node, other = _picked(node, other)
        pairs.append((node, other))
    of_full, of_small = zip(*pairs, strict=True)
    return of_full, of_small


def _picked(full: Node, small: Node) -> tuple[Node, Node]:
    """Two selects of one round, by a place that both sizes agree on: from the beginning, or else from the end."""
    (first, rounds), (other, other_rounds) = full.args[2], small.args[2]
    if first != other:
        first, other = first - rounds, other - other_rounds
    if first != other:
        raise _NotRolledError
    at_full, at_small = (node.model_copy(update={"args": (*node.args[:2], first)}) for node in (full, small))
    return at_full, at_small
