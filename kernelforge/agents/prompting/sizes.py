"""Sizes of a task in a prompt: shapes, attributes and work at each that may be seen, and what holds at all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any

from kernelforge.agents.prompting.text import inline, scaled, tensors
from kernelforge.evaluation.oracle.task_context import extent_key, labelled_tensors
from kernelforge.records import SizeFacts, TaskFacts

AT_SOME = "a multiple of 4 at some sizes only"
"""What the prompt says of hidden sizes in any case."""


def symbolic_sizes(facts: TaskFacts, shared: Mapping[str, str], *, eager: bool = True) -> str:
    """Shapes in terms of extents ``s0``, ``s1``, ..., their values where they may be seen, and what they share.

    Extents are one symbol where ``shared`` says that they are equal at every size. Empty where that does not say all:
    ranks or dtypes that differ, strides, numbers or tensors without extents among the inputs, no statements.
    """
    full = facts.at("full")
    named = [key.partition(".shape[")[0] for key in shared if ".shape[" in key and not key.startswith("w[")]
    parameters = list(dict.fromkeys(named))
    tables = {size.size: dict(labelled_tensors(size, parameters)) for size in facts.sizes}
    if len(tables["full"]) != len(full.inputs) + len(full.weights) + len(full.outputs):
        return ""
    symbols: dict[str, str] = {}
    traits: dict[str, list[str]] = {}
    values: dict[str, list[int]] = {size: [] for size in tables}
    shapes: dict[str, list[str]] = {}
    for label, spec in tables["full"].items():
        specs = {size: table[label] for size, table in tables.items() if label in table}
        if len(specs) != len(tables) or any(other.dtype != spec.dtype for other in specs.values()):
            return ""
        if not all(other.is_contiguous for other in specs.values()):
            return ""
        extents = []
        for axis, extent in enumerate(spec.shape):
            key = extent_key(label, axis)
            fact = shared.get(key, "")
            equal = fact.removeprefix("equal to ").removesuffix(" at every size")
            if fact.startswith("varies; "):
                symbols[key] = f"s{len(values['full'])}"
                traits.setdefault(fact.removeprefix("varies; "), []).append(symbols[key])
                for size, other in specs.items():
                    values[size].append(other.shape[axis])
            elif equal in symbols:
                symbols[key] = symbols[equal]
            elif equal != str(extent):
                return ""
            extents.append(symbols.get(key, equal))
        name = "output" if len(full.outputs) == 1 and label == "output 0" else label.replace("'", '"')
        shapes.setdefault(f"{spec.dtype}[{', '.join(extents)}]", []).append(inline(name))
    lines = ["; ".join(f"{', '.join(names)} {shape}" for shape, names in shapes.items())]
    if symbols:
        of_sizes = ", ".join(f"{inline(size)} {_numbers(extents)}" for size, extents in values.items())
        names = list(dict.fromkeys(symbols.values()))
        first = f"{names[0]} to {names[-1]}" if len(names) > 2 else ", ".join(names)
        every = [f"{', '.join(names)}: {trait}" for trait, names in traits.items() if trait != AT_SOME]
        lines.append("; ".join([f"{first}: {of_sizes}", *every]))
    lines.append(f"at full: {'; '.join(_constants(full, None, eager))}")
    for further in facts.sizes:
        if further is not full and (constants := _constants(further, full, eager)):
            lines.append(f"at {inline(further.size)}: {'; '.join(constants)}")
    if "elements" in shared:
        lines.append(inline(shared["elements"].removesuffix(" at every size")))
    return "\n".join(f"- {line}" for line in lines)


def _numbers(items: Sequence[int]) -> str:
    return f"({', '.join(map(str, items))})" if len(items) > 1 else str(items[0])


def _constants(size: SizeFacts, full: SizeFacts | None, eager: bool) -> list[str]:
    """Attributes, of a size other than ``full`` those that differ from it, and the work of ``full``."""
    attributes = {} if full is None else full.attrs
    attrs = {name: value for name, value in size.attrs.items() if attributes.get(name) != value}
    parts = [f"attrs {attributes_text(attrs)}"] if attrs else []
    return [*parts, _work(size, eager)] if full is None else parts


def sizes_text(facts: TaskFacts, *, eager: bool = True) -> str:
    """A line per size that may be seen; of sizes other than ``full``, only what differs from it.

    ``eager`` says how many operators PyTorch calls: of interest where the Coder sees a module, not a C function.
    """
    full = facts.at("full")
    return "\n".join(_line(size, None if size is full else full, eager) for size in facts.sizes)


def shared_text(shared: Mapping[str, str]) -> str:
    """A line for each fact that all sizes have in common, after the names that it is about.

    Extents of outputs that equal others or vary follow from the reference, and are left out.
    """
    names: dict[str, list[str]] = {}
    for name, fact in shared.items():
        if name.startswith("output ") and fact.startswith(("equal to ", "varies")):
            continue
        names.setdefault(fact.removesuffix(" at every size"), []).append(name)
    return "\n".join(f"- {_joined(group)}: {inline(fact, 600)}" for fact, group in names.items())


def _joined(names: Sequence[str]) -> str:
    """Names in one line; of extents of one tensor, one after another, the later ones by their index alone."""
    parts, last = [], ""
    for name in names:
        tensor, bracket, index = name.rpartition("[")
        repeats = bool(bracket) and tensor == last
        parts.append(inline(bracket + index if repeats else name))
        last = tensor
    return ", ".join(parts)


def attributes_text(attributes: Mapping[str, Any]) -> str:
    """Scalar attributes with their values, in braces those of one module, indices of one sequence, equal neighbours.

    ``conv.stride.0`` and ``.1``, both 1, the same of ``conv.padding``, and ``conv.groups`` are
    ``conv.{{stride,padding}.{0,1}=1, groups=2}``.
    """
    modules: dict[str, dict[str, list[tuple[str, Any]]]] = {}
    for path, value in attributes.items():
        module, dot, name = path.partition(".")
        stem, point, index = name.rpartition(".")
        if not point or not index.isdecimal():
            stem, index = name, ""
        modules.setdefault(module, {}).setdefault(stem if dot else "", []).append((index, value))
    return ", ".join(_of_module(inline(module), stems) for module, stems in modules.items())


def _of_module(module: str, stems: Mapping[str, Sequence[tuple[str, Any]]]) -> str:
    if set(stems) == {""}:
        return f"{module}={inline(stems[''][0][1])}"
    entries: list[tuple[str, str]] = []
    for stem, items in stems.items():
        values: dict[str, list[str]] = {}
        for index, value in items:
            values.setdefault(inline(value), []).append(index)
        entries += [(inline(stem), f"{_indices(indices)}={value}") for value, indices in values.items()]
    parts = [f"{_braced([stem for stem, _ in equal])}{end}" for end, equal in groupby(entries, key=itemgetter(1))]
    return f"{module}.{{{', '.join(parts)}}}" if len(parts) > 1 else f"{module}.{parts[0]}"


def _indices(indices: Sequence[str]) -> str:
    return f".{_braced(indices)}" if indices != [""] else ""


def _braced(names: Sequence[str]) -> str:
    return f"{{{','.join(names)}}}" if len(names) > 1 else names[0]


def _line(size: SizeFacts, full: SizeFacts | None, eager: bool) -> str:
    before = {} if full is None else {weight.name: weight.spec for weight in full.weights}
    inputs, outputs = ((), ()) if full is None else (full.inputs, full.outputs)
    parts = [f"inputs {tensors(size.inputs, inputs)}", f"outputs {tensors(size.outputs, outputs)}"]
    weights: dict[str, list[str]] = {}
    for weight in size.weights:
        if (spec := before.get(weight.name)) != weight.spec:
            text = tensors([weight.spec], () if spec is None else [spec])
            weights.setdefault(text, []).append(f'w["{inline(weight.name)}"]')
    if weights:
        parts.append("weights " + "; ".join(f"{', '.join(names)} {text}" for text, names in weights.items()))
    parts += _constants(size, full, eager)
    if full is not None and (size.weights or size.attrs):
        parts.append("all else as at full")
    return f"- {size.size}: {'; '.join(parts)}"


def _work(size: SizeFacts, eager: bool) -> str:
    flops = f", {scaled(size.flops, 'FLOP')}" if size.flops else ""
    host = f", reads at least {scaled(size.host_bytes, 'B')} of host memory" if size.host_bytes else ""
    moved = f"moves at least {scaled(size.compulsory_bytes, 'B')}{host}{flops}"
    operators = "1 operator" if size.eager_launches == 1 else f"{size.eager_launches} operators"
    return f"{moved}; eager PyTorch calls {operators}" if eager else moved
