"""Groups of operators that one kernel could compute, found in a captured graph. No torch here.

1. A reduction (softmax, norm, sum) takes in the pointwise operators that only it reads, unless one product's result is
   all that they read, and those that follow it; a second reduction of the same rows joins it, as in a norm that is
   written out.
2. A product, convolution, attention or lookup takes in the pointwise operators that follow it, where all that read its
   result are such, element by element.
3. The other pointwise operators and copies form chains, which end where several modules read a result; a chain that
   one product alone reads, element by element, becomes its prologue.
4. Two products with a softmax between them that nothing else reads are one attention.

Views and constants are made by each group that reads them. A merge that would let two groups wait for each other is not
made, so groups can run one after the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from kernelforge.capture.records import CapturedGraph, CapturedNode, GroupKind

_KINDS: Final[Mapping[str, GroupKind]] = {
    "attention": "attention", "matmul": "matmul", "matvec": "matmul", "recurrent": "recurrent",
    "depthwise": "convolution", "grouped_conv": "convolution", "softmax": "reduction", "layer_norm": "reduction",
    "group_norm": "reduction", "batch_norm": "reduction", "reduction": "reduction", "argreduce": "reduction",
    "loss": "reduction", "pooling": "reduction", "scan": "reduction", "gather": "gather", "sort": "other",
    "other": "other", "pointwise": "pointwise", "copy": "pointwise", "fill": "pointwise",
    **{f"conv{end}": "convolution" for end in ("1d", "2d", "3d")},
    **{f"conv_transpose{end}": "convolution" for end in ("1d", "2d", "3d")},
}  # fmt: skip
_RANK: Final[tuple[GroupKind, ...]] = (
    "attention", "recurrent", "convolution", "matmul", "reduction", "other", "gather", "pointwise"
)  # fmt: skip
"""Kind of a node, or of a group, that runs operators of several kinds: the first of them."""
_ANCHORS: Final = frozenset({"attention", "matmul", "convolution", "recurrent", "gather"})
_WHOLE: Final = frozenset({
    "view", "_unsafe_view", "reshape", "t", "transpose", "permute", "squeeze", "unsqueeze", "expand", "expand_as",
    "alias", "detach", "flatten", "unflatten", "contiguous", "view_as",
})  # fmt: skip
"""Views of every element of what they read."""
_MOVES: Final = frozenset({"copy", "fill"})


class Group(NamedTuple):
    """Nodes of one group, in order."""

    kind: GroupKind
    nodes: tuple[str, ...]
    views: tuple[str, ...]
    inputs: tuple[str, ...]
    weights: tuple[str, ...]
    outputs: tuple[str, ...]


def groups_of(graph: CapturedGraph) -> list[Group]:
    """The groups of a graph, in an order in which they can run."""
    return _Grouping(graph).groups()


def packet(op: str) -> str:
    """``softmax`` for ``aten.softmax.int``."""
    parts = op.split(".")
    return parts[1] if len(parts) > 1 else op


class _Grouping:
    def __init__(self, graph: CapturedGraph) -> None:
        self._graph = graph
        self._nodes = {node.name: node for node in graph.nodes}
        self._live = _live(graph)
        self._order: dict[str, int] = {}
        self._views: set[str] = set()
        self._kind: dict[str, GroupKind] = {}
        self._moves: set[str] = set()
        """Operators that only move elements."""
        self._of_inputs: set[str] = set()
        """Operators that read an input of the model."""
        self._parents: dict[str, str] = {}
        """Results of an operator that has several, and the operator."""
        self._reads: dict[str, dict[str, bool]] = {}
        """What each operator reads, other operators' results alone, and whether only element by element."""
        self._readers: dict[str, set[str]] = {}
        for position, node in enumerate(graph.nodes):
            if node.kind == "op" and node.name in self._live:
                self._order[node.name] = position
                self._enter(node)
        self._group: dict[str, int] = {name: position for name, position in self._order.items() if name in self._kind}
        self._members: dict[int, list[str]] = {position: [name] for name, position in self._group.items()}
        self._used = set(self._sources(graph.nodes[-1].refs))
        """Operators whose results the model returns."""
        self._direct: dict[str, list[str]] = {}
        """Live nodes that read each node."""
        for name in self._order:
            for ref in self._nodes[name].refs:
                self._direct.setdefault(ref, []).append(name)

    def _enter(self, node: CapturedNode) -> None:
        refs = node.refs
        if node.op == "getitem" and refs and refs[0] in self._kind:
            self._parents[node.name] = refs[0]
            return
        kinds = {self._graph.trace.operators[position].kind for position in node.operators}
        is_constant = kinds == {"fill"} and not refs
        if not node.operators or is_constant:
            self._views.add(node.name)
            return
        mapped = {_KINDS[kind] for kind in kinds}
        if any(self._graph.trace.operators[position].geometry.get("training") == 0 for position in node.operators):
            mapped = {"pointwise"}  # a batch norm with running statistics
        self._kind[node.name] = next(kind for kind in _RANK if kind in mapped)
        if kinds <= _MOVES:
            self._moves.add(node.name)
        self._reads[node.name] = self._sources(refs)
        if any(self._nodes[each].kind == "input" for each in self._bases(refs)):
            self._of_inputs.add(node.name)
        for source in self._reads[node.name]:
            self._readers.setdefault(source, set()).add(node.name)

    def _bases(self, refs: Iterable[str]) -> set[str]:
        """Nodes behind names, through views."""
        return {
            base for name in refs for base in (self._bases(self._nodes[name].refs) if name in self._views else {name})
        }

    def _sources(self, refs: Iterable[str]) -> dict[str, bool]:
        """Operators behind names, through views, and whether every element is read where it lies."""
        sources: dict[str, bool] = {}
        work = [(name, True) for name in refs]
        while work:
            name, exact = work.pop()
            if name in self._views:
                exact = exact and packet(self._nodes[name].op) in _WHOLE
                work += [(each, exact) for each in self._nodes[name].refs]
            elif name in self._parents:
                parent = self._parents[name]
                sources[parent] = sources.get(parent, True) and exact and self._nodes[name].args[1] == 0
            elif name in self._kind:
                sources[name] = sources.get(name, True) and exact
        return sources

    def groups(self) -> list[Group]:
        reductions = [name for name in self._group if self._kind[name] == "reduction"]
        for name in reductions:
            self._fuse_reduction(name)
        claimed = {name for group in map(self._group.__getitem__, reductions) for name in self._members[group]}
        for name in list(self._group):
            if self._kind[name] in _ANCHORS:
                self._fuse_epilogue(name, claimed)
        self._fuse_chains(claimed)
        self._fuse_prologues(claimed)
        self._fuse_attention()
        return [self._described(members) for members in self._in_order()]

    def _fuse_reduction(self, name: str) -> None:
        grown = True
        while grown:
            grown = False
            group = self._group[name]
            for member in list(self._members[group]):
                for reader in sorted(self._readers.get(member, ()), key=self._order.__getitem__):
                    if self._group[reader] != group and self._follows(reader, group, name):
                        grown |= self._merge(group, self._group[reader])
                for source in sorted(self._reads[member], key=self._order.__getitem__):
                    if (
                        self._group[source] != group
                        and self._kind[source] == "pointwise"
                        and len(self._members[self._group[source]]) == 1
                        and source not in self._used
                        and not self._is_epilogue(source)
                        and all(self._group[reader] == group for reader in self._readers[source])
                    ):
                        grown |= self._merge(group, self._group[source])

    def _is_epilogue(self, name: str) -> bool:
        """Whether all that an operator reads is one product's result, itself or through others that do only this."""
        while self._is_pure(name) and len(self._reads[name]) == 1 and name not in self._of_inputs:
            ((source, exact),) = self._reads[name].items()
            if not exact or len(self._readers[source]) > 1:
                return False
            name = source
        return self._kind[name] in _ANCHORS

    def _follows(self, reader: str, group: int, reduction: str) -> bool:
        """Whether an operator that reads a result of a reduction's group belongs to it."""
        if len(self._members[self._group[reader]]) > 1:
            return False
        sources = self._reads[reader]
        if self._kind[reader] == "reduction":
            inside = all(self._group[source] == group for source in sources)
            return inside and self._rows(reader) == self._rows(reduction)
        latest = max(sources, key=self._order.__getitem__)
        return self._kind[reader] == "pointwise" and self._group[latest] == group and sources[latest]

    def _rows(self, name: str) -> set[tuple[int, int]]:
        """Numbers and lengths of the rows that a node reduces."""
        operators = (self._graph.trace.operators[position] for position in self._nodes[name].operators)
        extents = (operator.geometry for operator in operators if _KINDS[operator.kind] == "reduction")
        return {(each.get("outer", 0), each.get("length", 0)) for each in extents}

    def _fuse_epilogue(self, name: str, claimed: set[str]) -> None:
        tips = [name]
        while tips:
            tip = tips.pop()
            readers = self._readers.get(tip, set())
            if tip in self._used or not all(self._is_pure(reader) and self._reads[reader][tip] for reader in readers):
                continue
            for reader in sorted(readers, key=self._order.__getitem__):
                group = self._group[name]
                latest = max(self._reads[reader], key=self._order.__getitem__)
                alone = len(self._members[self._group[reader]]) == 1 and reader not in claimed
                if alone and self._group[latest] == group and self._merge(group, self._group[reader]):
                    tips.append(reader)

    def _is_pure(self, name: str) -> bool:
        """Whether an operator computes each element of its result from those at the same place."""
        return self._kind[name] == "pointwise" and name not in self._moves

    def _fuse_chains(self, claimed: set[str]) -> None:
        for name in list(self._group):
            if not self._in_chain(name, claimed):
                continue
            for source in sorted(self._reads[name], key=self._order.__getitem__, reverse=True):
                if self._group[source] != self._group[name] and self._continues(source, claimed):
                    self._merge(self._group[source], self._group[name])

    def _continues(self, source: str, claimed: set[str]) -> bool:
        """Whether a chain goes on behind an operator: no other kind of group, and no second module, reads it."""
        readers = self._readers[source]
        modules = {self._nodes[reader].module for reader in readers}
        chained = all(self._in_chain(each, claimed) for each in (source, *readers))
        return chained and source not in self._used and len(modules) == 1

    def _in_chain(self, name: str, claimed: set[str]) -> bool:
        members = self._members[self._group[name]]
        return name not in claimed and all(self._kind[member] == "pointwise" for member in members)

    def _fuse_prologues(self, claimed: set[str]) -> None:
        for group in list(self._members):
            members = self._members.get(group, [])
            if not members or not all(self._is_pure(name) and name not in claimed for name in members):
                continue
            outside = {
                reader: self._reads[reader][name]
                for name in members
                for reader in self._readers.get(name, ())
                if self._group[reader] != group
            }
            targets = {self._group[reader] for reader in outside}
            if len(targets) != 1 or not all(outside.values()) or self._used.intersection(members):
                continue
            target = targets.pop()
            if _ANCHORS - {"gather"} & {self._kind[name] for name in self._members[target]}:
                self._merge(target, group)

    def _fuse_attention(self) -> None:
        for name in [name for name in self._group if self._is_softmax(name)]:
            group = self._group[name]
            before = {self._group[source] for member in self._members[group] for source in self._reads[member]}
            before = {each for each in before - {group} if self._feeds_only(each, group)}
            first = [each for each in before if self._is_product(each)]
            after = {self._group[reader] for member in self._members[group] for reader in self._readers.get(member, ())}
            after -= {group}
            between = len(first) == len(after) == 1 and all(map(self._is_product, after))
            if between and not self._used.intersection(self._members[group]) and self._merge(group, first[0]):
                self._merge(self._group[name], after.pop())

    def _is_softmax(self, name: str) -> bool:
        kinds = {self._graph.trace.operators[position].kind for position in self._nodes[name].operators}
        return "softmax" in kinds and self._kind[name] == "reduction"

    def _is_product(self, group: int) -> bool:
        kinds = [self._kind[name] for name in self._members[group]]
        return kinds.count("matmul") == 1 and set(kinds) <= {"matmul", "pointwise"}

    def _feeds_only(self, group: int, target: int) -> bool:
        members = self._members[group]
        readers = {self._group[reader] for name in members for reader in self._readers.get(name, ())}
        return readers <= {group, target} and not self._used.intersection(members)

    def _merge(self, first: int, second: int) -> bool:
        """Merge two groups, unless a third would have to run both after one and before the other."""
        if first == second or self._path(first, second) or self._path(second, first):
            return False
        self._members[first] = sorted(self._members[first] + self._members[second], key=self._order.__getitem__)
        for name in self._members.pop(second):
            self._group[name] = first
        return True

    def _path(self, start: int, end: int) -> bool:
        """Whether a path leads from one group to another through a third."""
        last = max(self._order[name] for name in self._members[end])
        seen: set[int] = set()
        work = [each for each in self._next(start, last) if each != end]
        while work:
            group = work.pop()
            if group == end:
                return True
            if group not in seen:
                seen.add(group)
                work += self._next(group, last)
        return False

    def _next(self, group: int, last: int) -> set[int]:
        """Groups that read a group's results, as far as they begin before a position."""
        readers = {self._group[reader] for name in self._members[group] for reader in self._readers.get(name, ())}
        return {each for each in readers if each != group and self._order[self._members[each][0]] <= last}

    def _in_order(self) -> list[list[str]]:
        from graphlib import TopologicalSorter

        before = {
            group: {self._group[source] for name in members for source in self._reads[name]} - {group}
            for group, members in self._members.items()
        }
        return [self._members[group] for group in TopologicalSorter(before).static_order()]

    def _described(self, members: list[str]) -> Group:
        inside = set(members)
        inside |= {name for name, parent in self._parents.items() if parent in inside and name in self._live}
        views: dict[str, None] = {}
        inputs: dict[str, None] = {}
        weights: dict[str, None] = {}

        def take(name: str) -> None:
            if name in inside or name in views or name in inputs or name in weights:
                return
            node = self._nodes[name]
            if name in self._views:
                for each in node.refs:
                    take(each)
                views[name] = None
            elif node.kind == "weight":
                weights[name] = None
            else:
                inputs[name] = None

        for name in members:
            for each in self._nodes[name].refs:
                take(each)
        ordered = sorted(inside, key=self._order.__getitem__)
        outputs = [name for name in ordered if self._nodes[name].tensor and self._read_elsewhere(name, inside)]
        kind = next(kind for kind in _RANK if kind in {self._kind[name] for name in members})
        products = [name for name in members if self._kind[name] == "matmul"]
        if len(products) == 2 and any(map(self._is_softmax, members)):
            kind = "attention"
        made = tuple(sorted(views, key=self._order.__getitem__))
        return Group(kind, tuple(ordered), made, tuple(inputs), tuple(weights), tuple(outputs))

    def _read_elsewhere(self, name: str, inside: set[str]) -> bool:
        work = [name]
        results = set(self._graph.nodes[-1].refs)
        while work:
            each = work.pop()
            if each in results:
                return True
            for reader in self._direct.get(each, ()):
                if reader in self._views:
                    work.append(reader)
                elif reader not in inside:
                    return True
        return False


def _live(graph: CapturedGraph) -> set[str]:
    """Nodes that the results depend on."""
    live: set[str] = set()
    for node in reversed(graph.nodes):
        if node.kind == "output" or node.name in live:
            live.update(node.refs)
    return live
