"""Data flow of a syntax tree, as CodeBLEU's fourth part compares it: which variable's value is made of which.

The rules are those of GraphCodeBERT (arXiv 2009.08366), as the package ``codebleu`` applies them. A use of a variable
comes from its last definitions; an assignment computes the names on its left from those on its right; branches join;
the body of a loop is walked twice, so that what it computes reaches its beginning.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from tree_sitter import Node

Relation = Literal["comesFrom", "computedFrom"]
States = dict[str, list[int]]
"""Positions at which each variable was last defined."""


class DataFlow(NamedTuple):
    """One value and what it is made of; variables are numbered in the order of their use."""

    name: str
    relation: Relation
    sources: tuple[str, ...]


class NodeNames(NamedTuple):
    """Node types of a grammar that matter to data flow."""

    definition: frozenset[str]
    assignment: frozenset[str]
    increment: frozenset[str]
    branch: frozenset[str]
    """An ``if`` and its ``else``."""
    loop_once: frozenset[str]
    """Loops that are walked once."""
    loop: frozenset[str]
    """Loops that are walked twice."""


CSHARP_NODES = NodeNames(
    definition=frozenset({"variable_declarator"}),
    assignment=frozenset({"assignment_expression"}),
    increment=frozenset({"postfix_unary_expression"}),
    branch=frozenset({"if_statement", "else"}),
    loop_once=frozenset({"for_statement"}),
    loop=frozenset({"while_statement"}),
)
"""What the package reads C and C++ with. Its rules for C#'s ``foreach`` and declarations of loops fit no node of C."""
C_NODES = NodeNames(
    definition=frozenset({"init_declarator"}),
    assignment=frozenset({"assignment_expression"}),
    increment=frozenset({"update_expression"}),
    branch=frozenset({"if_statement", "else_clause"}),
    loop_once=frozenset(),
    loop=frozenset({"for_statement", "while_statement", "do_statement", "for_range_loop"}),
)
"""The same of the grammars of C, C++ and CUDA."""

_TEXTS = ("string_literal", "string", "character_literal")


class _Edge(NamedTuple):
    name: str
    position: int
    relation: Relation
    sources: tuple[str, ...] = ()
    positions: tuple[int, ...] = ()


def data_flow(root: Node, nodes: NodeNames) -> list[DataFlow]:
    """The flow of a tree, in the order of its tokens, with variables numbered.

    Raises:
        RecursionError: the tree is too deep.
    """
    leaves = list(_leaves(root))
    positions = {_span(leaf): position for position, leaf in enumerate(leaves)}
    edges, _ = _Walk(nodes, positions).walk(root, {})
    edges.sort(key=lambda edge: edge.position)
    linked = {edge.position for edge in edges if edge.positions} | {at for edge in edges for at in edge.positions}
    numbers: dict[str, str] = {}

    def numbered(name: str) -> str:
        return numbers.setdefault(name, f"var_{len(numbers)}")

    # The first edge of a token says how it is related; further ones add to its sources.
    merged: dict[int, _Edge] = {}
    for edge in edges:
        if edge.position in linked:
            before = merged.get(edge.position)
            merged[edge.position] = edge if before is None else before._replace(sources=before.sources + edge.sources)
    result = []
    for edge in merged.values():
        sources = tuple(numbered(name) for name in dict.fromkeys(edge.sources))
        result.append(DataFlow(numbered(edge.name), edge.relation, sources))
    return result


class _Walk:
    """The walk over one tree."""

    def __init__(self, nodes: NodeNames, positions: Mapping[tuple[int, int], int]) -> None:
        self._nodes = nodes
        self._positions = positions

    def walk(self, node: Node, states: States) -> tuple[list[_Edge], States]:
        """Edges of a subtree, and the states after it; those that it is handed are not changed."""
        states = dict(states)
        if _is_leaf(node):
            return self._leaf(node, states), states
        if node.type in self._nodes.definition:
            return self._definition(node, states)
        if node.type in self._nodes.assignment:
            target, value = node.child_by_field_name("left"), node.child_by_field_name("right")
            if target is not None and value is not None:  # one may lack where the text is wrong
                return self._assignment(target, value, states, "computedFrom")
        if node.type in self._nodes.increment:
            variables = self._variables(node)
            return self._computed(variables, variables, states, "computedFrom"), states
        if node.type in self._nodes.branch:
            return self._branch(node, states)
        rounds = 2 if node.type in self._nodes.loop else 1
        edges: list[_Edge] = []
        for child in list(node.children) * rounds:
            more, states = self.walk(child, states)
            edges += more
        if rounds == 2 or node.type in self._nodes.loop_once:
            edges = _merged(edges)
        return edges, states

    def _leaf(self, node: Node, states: States) -> list[_Edge]:
        text, position = _text(node), self._positions[_span(node)]
        if node.type == text:  # a word or a sign of the grammar
            return []
        if text in states:
            before = states[text]
            return [_Edge(text, position, "comesFrom", (text,), tuple(before))]
        if node.type == "identifier":
            states[text] = [position]
        return [_Edge(text, position, "comesFrom")]

    def _definition(self, node: Node, states: States) -> tuple[list[_Edge], States]:
        name, value = node.child_by_field_name("declarator"), node.child_by_field_name("value")
        if name is not None and value is not None:
            return self._assignment(name, value, states, "comesFrom")
        edges = []
        for text, position in self._variables(node.children[0]):
            edges.append(_Edge(text, position, "comesFrom"))
            states[text] = [position]
        return edges, states

    def _assignment(self, target: Node, value: Node, states: States, relation: Relation) -> tuple[list[_Edge], States]:
        edges, states = self.walk(value, states)
        states = dict(states)
        return edges + self._computed(self._variables(target), self._variables(value), states, relation), states

    def _computed(
        self,
        names: Sequence[tuple[str, int]],
        sources: Sequence[tuple[str, int]],
        states: States,
        relation: Relation,
    ) -> list[_Edge]:
        edges = []
        for name, position in names:
            edges += [_Edge(name, position, relation, (source,), (at,)) for source, at in sources]
            states[name] = [position]
        return edges

    def _branch(self, node: Node, states: States) -> tuple[list[_Edge], States]:
        """An ``if``: each further branch starts from the states before it, and all that they leave is joined."""
        edges: list[_Edge] = []
        current, ends, entered = dict(states), list[States](), False
        otherwise = "else" in node.type
        for child in node.children:
            otherwise = otherwise or "else" in child.type
            entered = entered or child.type in self._nodes.branch
            if entered:
                more, end = self.walk(child, states)
                ends.append(end)
            else:
                more, current = self.walk(child, current)
            edges += more
        ends.append(current)
        if not otherwise:
            ends.append(states)
        joined: dict[str, set[int]] = {}
        for end in ends:
            for name, positions in end.items():
                joined.setdefault(name, set()).update(positions)
        return edges, {name: sorted(positions) for name, positions in joined.items()}

    def _variables(self, node: Node) -> list[tuple[str, int]]:
        """Texts and positions of the leaves that are no words or signs of the grammar."""
        leaves = ((_text(leaf), leaf) for leaf in _leaves(node))
        return [(text, self._positions[_span(leaf)]) for text, leaf in leaves if leaf.type != text]


def _merged(edges: Iterable[_Edge]) -> list[_Edge]:
    """Edges with one for each token and relation."""
    together: dict[tuple[str, int, Relation], tuple[dict[str, None], set[int]]] = {}
    for edge in edges:
        names, positions = together.setdefault(edge[:3], ({}, set()))
        names.update(dict.fromkeys(edge.sources))
        positions.update(edge.positions)
    return [
        _Edge(*key, tuple(names), tuple(sorted(positions)))
        for key, (names, positions) in sorted(together.items(), key=lambda item: item[0][1])
    ]


def _is_leaf(node: Node) -> bool:
    return (not node.children or node.type in _TEXTS) and node.type != "comment"


def _leaves(root: Node) -> Iterator[Node]:
    nodes = [root]
    while nodes:
        node = nodes.pop()
        if _is_leaf(node):
            yield node
        else:
            nodes.extend(reversed(node.children))


def _span(node: Node) -> tuple[int, int]:
    return node.start_byte, node.end_byte


def _text(node: Node) -> str:
    return (node.text or b"").decode(errors="replace")
