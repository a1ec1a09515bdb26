"""Text of a task file that computes what a captured group computes, with its extents as module constants.

Each whole number of 8 or more in the shape of an input or a weight becomes a constant, one for each value, so that
extents that are equal in the model stay equal at every size. Other numbers of the operators are written in these terms
where they follow from them (``A * B``, ``A // 2``, the extent of an operand), and as they are where they do not.
"""

from __future__ import annotations

import keyword
import math
import string
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from kernelforge.capture.client import in_order
from kernelforge.capture.grouping import packet
from kernelforge.capture.records import CapturedGroup, CapturedNode, references
from kernelforge.errors import TaskError
from kernelforge.records import DType, TensorSpec

_SMALLEST: Final = 8
"""Smaller extents stay as they are; the size search leaves them alone as well."""
_ALL: Final = 2**63 - 1
"""End of a slice that has none."""

_METHODS: Final = frozenset({
    "view", "reshape", "transpose", "permute", "unsqueeze", "squeeze", "expand", "flatten", "unflatten", "t",
    "contiguous", "clone", "chunk", "unbind", "select", "expand_as", "view_as", "detach", "narrow", "repeat",
})  # fmt: skip
"""Called as methods, with the arguments of the operator."""
_TORCH: Final = frozenset({
    "abs", "add", "amax", "amin", "argmax", "argmin", "bmm", "cat", "ceil", "clamp", "clamp_max", "clamp_min", "cos",
    "cumsum", "div", "einsum", "eq", "erf", "exp", "expm1", "floor", "gather", "ge", "gt", "index_select", "le", "log",
    "log1p", "log2", "logical_and", "logical_not", "logical_or", "logsumexp", "lt", "masked_fill", "matmul",
    "maximum", "mean", "minimum", "mm", "mul", "ne", "neg", "outer", "pow", "reciprocal", "relu", "round", "rsqrt",
    "sigmoid", "sign", "sin", "softmax", "log_softmax", "sqrt", "square", "stack", "sub", "sum", "tan", "tanh", "tril",
    "triu", "where", "flip", "roll", "baddbmm", "addmm",
})  # fmt: skip
"""Functions of ``torch`` that take the arguments of the operator in their order."""
_FUNCTIONAL: Final = frozenset(
    {"elu", "gelu", "hardswish", "leaky_relu", "linear", "mish", "relu6", "silu", "softplus"}
)
_SYMBOLS: Final = {"__and__": "&", "__or__": "|", "bitwise_and": "&", "bitwise_or": "|"}
_POSITIVE: Final = frozenset({"log", "log2", "rsqrt", "sqrt"})
_FIRST: Final = frozenset({"_native_batch_norm_legit_no_training"})
"""Operators whose first result alone is written."""
_LOOKUPS: Final = frozenset({"embedding", "index", "index_select", "gather"})


class TaskText:
    """The text of one group's task, and the constants in it that no size may change.

    Raises:
        TaskError: No text can be written for it.
    """

    def __init__(self, group: CapturedGroup, nodes: Mapping[str, CapturedNode], where: str) -> None:
        self._group, self._nodes, self._where = group, nodes, where
        call = group.calls[0]
        self._names = {name: f"x{number}" for number, name in enumerate(call.inputs)}
        weights = _weight_nodes(group, nodes)
        self._names |= {name: f"self.p{number}" for number, name in enumerate(weights)}
        self._weights = dict(zip(weights, group.weights, strict=True))
        self._order = in_order(call, nodes)
        self.constants: dict[str, int] = {}
        """By name, in order of first use."""
        self._by_value: dict[int, str] = {}
        for spec in (*group.input_specs, *(weight.spec for weight in group.weights)):
            for extent in spec.shape:
                self._constant(extent)
        self.source = self._text()

    def _constant(self, value: int) -> None:
        if value >= _SMALLEST and value not in self._by_value:
            name = _letters(len(self._by_value))
            self._by_value[value] = name
            self.constants[name] = value

    def _text(self) -> str:
        group = self._group
        lines = [f'"""{_title(group)}: {len(group.calls)} x in {_words(self._where)}."""', "", "import torch"]
        body = list(self._body())
        functional = ["import torch.nn.functional as F"] if any("F." in line for line in body) else []
        lines += ["import torch.nn as nn", *functional, ""]
        lines += [f"{name} = {value}" for name, value in self.constants.items()]
        lines += ["", "", "class Model(nn.Module):"]
        made = [self._weight(name, number) for number, name in enumerate(self._weights)]
        if made:
            lines += ["    def __init__(self) -> None:", "        super().__init__()"]
            lines += [f"        {line}" for line in made] + [""]
        parameters = ", ".join(["self", *(f"{self._names[name]}: torch.Tensor" for name in group.calls[0].inputs)])
        lines += [f"    def forward({parameters}):", *(f"        {line}" for line in body), "", ""]
        drawn = [self._input(name) for name in group.calls[0].inputs]
        lines += ["def get_inputs():", "    return [", *(f"        {text}," for text in drawn), "    ]", "", ""]
        lines += ["def get_init_inputs():", "    return []", ""]
        return "\n".join(lines)

    def _body(self) -> Iterator[str]:
        for number, name in enumerate(self._order):
            node = self._nodes[name]
            expression = self._call(node)
            self._names[name] = f"v{number}"
            yield f"v{number} = {expression}"
        results = [self._names[name] for name in self._group.calls[0].outputs]
        yield f"return {', '.join(results)}"

    def _call(self, node: CapturedNode) -> str:
        name = packet(node.op)
        if node.op == "getitem" and packet(self._op(node.args[0])) in _FIRST:
            return self._value(node.args[0])
        if node.op == "getitem":
            return f"{self._value(node.args[0])}[{int(node.args[1])}]"
        args = list(node.args)
        if name in ("view", "_unsafe_view", "reshape"):
            return self._reshaped(node)
        if name == "expand":
            return self._expanded(node)
        if name == "slice":
            return self._sliced(node)
        if name in ("split", "split_with_sizes"):
            return self._split(node)
        if name == "_to_copy" and node.kwargs.keys() <= {"dtype", "memory_format"} and node.kwargs.get("dtype"):
            return f"{self._value(args[0])}.to({self._value(node.kwargs['dtype'])})"
        if name == "alias":
            return self._value(args[0])
        if name == "_native_batch_norm_legit_no_training":
            source, weight, bias, mean, variance, momentum, eps = map(self._value, args)
            return f"F.batch_norm({source}, {mean}, {variance}, {weight}, {bias}, False, {momentum}, {eps})"
        if name in _SYMBOLS and len(args) == 2:
            return f"{self._value(args[0])} {_SYMBOLS[name]} {self._value(args[1])}"
        values = [self._value(each) for each in args]
        keywords = [f"{key}={self._value(each)}" for key, each in node.kwargs.items() if _is_name(key)]
        if name in _METHODS:
            return f"{values[0]}.{name}({', '.join([*values[1:], *keywords])})"
        if name in _TORCH:
            return f"torch.{name}({', '.join([*values, *keywords])})"
        if name in _FUNCTIONAL:
            return f"F.{name}({', '.join([*values, *keywords])})"
        if name == "scaled_dot_product_attention":
            names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
            texts = [*values[:3], *(f"{key}={each}" for key, each in zip(names[3:], values[3:], strict=False))]
            return f"F.{name}({', '.join([*texts, *keywords])})"
        if not node.op.startswith("aten."):
            raise TaskError(f"{node.op} is no operator of torch itself")
        overload = node.op.split(".")[2] if node.op.count(".") > 1 else "default"
        return f"torch.ops.aten.{name}.{overload}({', '.join([*values, *keywords])})"

    def _reshaped(self, node: CapturedNode) -> str:
        source, shape = node.args[0], list(node.args[1])
        parts = [self._extent(extent) for extent in shape]
        unknown = [axis for axis, part in enumerate(parts) if part is None]
        if len(unknown) == 1 and -1 not in shape:
            parts[unknown[0]] = "-1"
        texts = [str(extent) if part is None else part for part, extent in zip(parts, shape, strict=True)]
        method = "view" if packet(node.op) == "view" else "reshape"
        return f"{self._value(source)}.{method}({', '.join(texts)})"

    def _expanded(self, node: CapturedNode) -> str:
        before = self._spec(node.args[0])
        extents = [int(extent) for extent in node.args[1]]
        offset = len(extents) - len(before.shape) if before is not None else 0
        texts = []
        for axis, extent in enumerate(extents):
            same = before is not None and axis >= offset and before.shape[axis - offset] == extent
            texts.append("-1" if same else self._extent(extent) or str(extent))
        return f"{self._value(node.args[0])}.expand({', '.join(texts)})"

    def _sliced(self, node: CapturedNode) -> str:
        source, axis, start, end, step = [*node.args, *[0, None, None, 1][len(node.args) - 1 :]][:5]
        spec, value = self._spec(source), self._value(source)
        axis = int(axis) % len(spec.shape) if spec is not None else int(axis)
        extent = spec.shape[axis] if spec is not None else 0
        bounds = ["" if start in (0, None) else self._offset(int(start), extent, f"{value}.shape[{axis}]")]
        ends = end is None or int(end) >= min(extent or _ALL, _ALL)
        bounds.append("" if ends else self._offset(int(end), extent, f"{value}.shape[{axis}]"))
        if step not in (1, None):
            bounds.append(str(int(step)))
        return f"{value}[{', '.join([':'] * axis + [':'.join(bounds)])}]"

    def _offset(self, offset: int, extent: int, length: str) -> str:
        """An offset along an axis, as a part of its length where it is a half, a third or a quarter."""
        if offset < 0 or offset in self._by_value:
            return self._by_value.get(offset, str(offset))
        for parts in (2, 3, 4):
            if extent >= _SMALLEST and offset * parts % extent == 0 and extent % parts == 0:
                count = offset * parts // extent
                return f"{length} // {parts}" if count == 1 else f"{count} * {length} // {parts}"
        return self._extent(offset) or str(offset)

    def _split(self, node: CapturedNode) -> str:
        source, sizes = node.args[0], node.args[1]
        axis = int(node.args[2]) if len(node.args) > 2 else 0
        spec, value = self._spec(source), self._value(source)
        if spec is not None:
            axis %= len(spec.shape)
            listed = list(sizes) if isinstance(sizes, list | tuple) else [sizes]
            extent = spec.shape[axis]
            if len(set(listed)) == 1 and extent % int(listed[0]) == 0 and listed[0] not in self._by_value:
                return f"{value}.split({value}.shape[{axis}] // {extent // int(listed[0])}, {axis})"
        return f"{value}.split({self._value(sizes)}, {axis})"

    def _extent(self, value: int) -> str | None:
        """A number in terms of the constants; None where it does not follow from them."""
        if value < _SMALLEST:
            return str(value)
        if value in self._by_value:
            return self._by_value[value]
        names = self._by_value
        for first in names:
            rest, remainder = divmod(value, first)
            if not remainder and rest in names:
                return f"{names[first]} * {names[rest]}"
        for first in names:
            rest, remainder = divmod(value, first)
            if not remainder and rest < _SMALLEST:
                return f"{names[first]} * {rest}"
        return None

    def _value(self, value: Any) -> str:
        if isinstance(value, dict):
            if "ref" in value:
                return self._names[value["ref"]]
            if "dtype" in value:
                return f"torch.{value['dtype']}"
            return f"torch.{value['memory_format']}"
        if isinstance(value, list | tuple):
            return f"[{', '.join(map(self._value, value))}]"
        if isinstance(value, float) and not math.isfinite(value):
            return f'float("{value}")'
        if type(value) is int:
            return self._by_value.get(value, str(value))
        return repr(value)

    def _spec(self, value: Any) -> TensorSpec | None:
        names = references(value)
        return self._nodes[names[0]].spec if names else None

    def _op(self, value: Any) -> str:
        names = references(value)
        return self._nodes[names[0]].op if names else ""

    def _shape(self, spec: TensorSpec) -> str:
        return ", ".join(self._by_value.get(extent, str(extent)) for extent in spec.shape)

    def _weight(self, name: str, number: int) -> str:
        weight = self._weights[name]
        spec, shape = weight.spec, self._shape(weight.spec)
        dtype = "" if spec.dtype is DType.FLOAT32 else f", dtype=torch.{spec.dtype.value}"
        if not spec.dtype.is_floating:
            made = self._whole_numbers(name, spec)
        elif len(spec.shape) > 1:
            fan_in = max(1, math.prod(spec.shape[1:]))
            made = f"torch.randn({shape}{dtype}) * {fan_in**-0.5:.6g}"
        else:
            made = f"torch.ones({shape or '()'}{dtype})"
        return (
            f"self.p{number} = nn.Parameter({made})"
            if weight.role == "parameter"
            else (f'self.register_buffer("p{number}", {made})')
        )

    def _input(self, name: str) -> str:
        spec = self._nodes[name].spec
        if spec is None:
            raise TaskError(f"the input {name} is no tensor")
        shape, positive = self._shape(spec), self._is_read_by(name, _POSITIVE)
        dtype = "" if spec.dtype is DType.FLOAT32 else f", dtype=torch.{spec.dtype.value}"
        if not spec.dtype.is_floating:
            return self._whole_numbers(name, spec)
        made = f"torch.rand({shape or '()'}{dtype}) + 0.1" if positive else f"torch.randn({shape or '()'}{dtype})"
        order = memory_order(spec)
        if order is None:
            return made
        moved = ", ".join(self._by_value.get(spec.shape[axis], str(spec.shape[axis])) for axis in order)
        back = ", ".join(str(order.index(axis)) for axis in range(len(order)))
        draw = f"torch.rand({moved}{dtype}) + 0.1" if positive else f"torch.randn({moved}{dtype})"
        return f"({draw}).permute({back})" if positive else f"{draw}.permute({back})"

    def _whole_numbers(self, name: str, spec: TensorSpec) -> str:
        """Indices below the extent that they look up, masks that leave something of each row, else small numbers."""
        shape = self._shape(spec)
        if spec.dtype is DType.BOOL:
            return (
                f"torch.ones({shape}, dtype=torch.bool).tril()"
                if len(spec.shape) > 1
                else (f"torch.rand({shape or '()'}) > 0.5")
            )
        bound = self._bound(name)
        return (
            f"torch.randint(0, {bound}, ({shape}{',' if len(spec.shape) == 1 else ''}), dtype=torch.{spec.dtype.value})"
        )

    def _bound(self, name: str) -> str:
        """Smallest extent that an operator behind this tensor, through views, looks up with it."""
        readers = self._readers(name)
        bounds = []
        for node in self._lookups():
            source, others = node.args[0], references(list(node.args[1:]))
            spec = self._spec(source)
            if spec is None or not readers.intersection(others):
                continue
            axes = {axis for axis, each in enumerate(_indices(node)) if readers.intersection(references(each))}
            bounds += [spec.shape[axis] for axis in axes if axis < len(spec.shape)]
        return self._extent(min(bounds)) or str(min(bounds)) if bounds else str(_SMALLEST - 4)

    def _lookups(self) -> list[CapturedNode]:
        return [node for name in self._order if packet((node := self._nodes[name]).op) in _LOOKUPS]

    def _readers(self, name: str) -> set[str]:
        """A tensor and what is made of it by views."""
        readers = {name}
        for each in self._order:
            node = self._nodes[each]
            if not node.operators and readers.intersection(node.refs):
                readers.add(each)
        return readers

    def _is_read_by(self, name: str, operators: frozenset[str]) -> bool:
        readers = self._readers(name)
        nodes = (self._nodes[each] for each in self._order)
        return any(packet(node.op) in operators and readers.intersection(node.refs) for node in nodes)


def _indices(node: CapturedNode) -> Sequence[Any]:
    """Indices along each axis of a lookup's first operand; None along the others."""
    name = packet(node.op)
    if name == "index":
        return list(node.args[1])
    if name == "embedding":
        return [node.args[1]]
    axis = int(node.args[1])
    return [*[None] * max(axis, 0), node.args[2]]


def memory_order(spec: TensorSpec) -> list[int] | None:
    """Axes in the order of memory, of a dense tensor that is not contiguous; None for any other."""
    if spec.is_contiguous or 0 in spec.stride:
        return None
    order = sorted(range(len(spec.shape)), key=lambda axis: (-spec.stride[axis], -spec.shape[axis]))
    step = 1
    for axis in reversed(order):
        if spec.shape[axis] != 1 and spec.stride[axis] != step:
            return None
        step *= spec.shape[axis]
    return order


def _weight_nodes(group: CapturedGroup, nodes: Mapping[str, CapturedNode]) -> list[str]:
    """Nodes of the weights of a group's first call, in its order."""
    call = group.calls[0]
    read = {name for each in (*call.nodes, *call.views) for name in nodes[each].refs}
    by_name = {nodes[name].op: name for name in nodes if nodes[name].kind == "weight" and name in read}
    missing = [name for name in call.weights if name not in by_name]
    if missing:
        raise TaskError(f"the weight {missing[0]} is not in the graph")
    return [by_name[name] for name in call.weights]


def _letters(number: int) -> str:
    """A, B, ... Z, A1, B1, ...: without F, which names torch's functions."""
    letters = string.ascii_uppercase.replace("F", "")
    turn, letter = divmod(number, len(letters))
    return letters[letter] + (str(turn) if turn else "")


def _title(group: CapturedGroup) -> str:
    return _words(" ".join(dict.fromkeys(group.operators)))[:100]


def _words(text: str) -> str:
    return "".join(character for character in text if character.isalnum() or character in " ._-/[]")


def _is_name(text: str) -> bool:
    return text.isidentifier() and not keyword.iskeyword(text)
