"""Facts about a task that agents may see: its public sizes, and shape statements that hold at all sizes.

A Coder has to write for sizes that it is not shown. It sees what they have in common, never an extent of one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from kernelforge.records import SizeFacts, Task, TaskFacts, TensorSpec
from kernelforge.tasks.files import parse_task_file

_PUBLIC_SIZES = ("full", "small")


def public_facts(facts: TaskFacts) -> TaskFacts:
    """Facts without those of hidden sizes."""
    public = tuple(size for size in facts.sizes if size.size in _PUBLIC_SIZES)
    return TaskFacts(task_digest=facts.task_digest, sizes=public)


_DIVISORS = (4, 2)
"""Divisibility worth saying: the width of a vector access."""

_INT32_ELEMENTS = 2**31


def shape_invariants(task: Task, facts: TaskFacts) -> dict[str, str]:
    """Statements on every input, weight and output: which extents are fixed, and what the others share.

    ``facts`` must hold every size of the task. Keys are as a plan writes them (``x.shape[1]``, ``w['bias'].shape[0]``,
    ``output 0 shape[0]``); no statement names or bounds a hidden size, beyond what divides all of them.
    """
    names = parse_task_file(task.source, task.name).parameters
    by_size = [dict(labelled_tensors(size, names)) for size in facts.sizes]
    full = dict(labelled_tensors(facts.at("full"), names))
    shared: dict[str, str] = {}
    first_with: dict[tuple[int, ...], str] = {}
    for label, spec in full.items():
        specs = [tensors[label] for tensors in by_size if label in tensors]
        if len(specs) != len(by_size) or any(len(other.shape) != len(spec.shape) for other in specs):
            shared[label] = "differs in rank between sizes"
            continue
        for axis in range(len(spec.shape)):
            extents = tuple(other.shape[axis] for other in specs)
            key = extent_key(label, axis)
            if len(set(extents)) == 1:
                shared[key] = f"{extents[0]} at every size"
            elif extents in first_with:
                shared[key] = f"equal to {first_with[extents]} at every size"
            else:
                first_with[extents] = key
                shared[key] = f"varies; {_divisibility(extents)}"
    largest = max(spec.numel for tensors in by_size for spec in tensors.values())
    if largest < _INT32_ELEMENTS:
        shared["elements"] = "every tensor has fewer than 2**31 elements at every size"
    return shared


def keeps_shared(task: Task, facts: TaskFacts, further: SizeFacts) -> bool:
    """Whether every statement of :func:`shape_invariants` about ``facts`` also holds for one further size."""
    also = shape_invariants(task, facts.model_copy(update={"sizes": (*facts.sizes, further)}))
    statements = shape_invariants(task, facts).items()
    return all(also.get(label) == statement for label, statement in statements if statement.endswith("at every size"))


def extent_key(label: str, axis: int) -> str:
    """Name of an extent in statements, as plans write those of inputs and weights."""
    return f"{label} shape[{axis}]" if label.startswith("output ") else f"{label}.shape[{axis}]"


def labelled_tensors(size: SizeFacts, names: Sequence[str]) -> Iterator[tuple[str, TensorSpec]]:
    """Tensors of a size by the names that statements use: inputs by ``names``, then weights, then outputs."""
    for position, value in enumerate(size.inputs):
        if isinstance(value, TensorSpec):
            yield names[position] if position < len(names) else f"input {position}", value
    for weight in size.weights:
        yield f"w[{weight.name!r}]", weight.spec
    for position, spec in enumerate(size.outputs):
        yield f"output {position}", spec


def _divisibility(extents: tuple[int, ...]) -> str:
    common = math.gcd(*extents)
    for divisor in _DIVISORS:
        if common % divisor == 0:
            return f"a multiple of {divisor} at every size"
    for divisor in _DIVISORS:
        if any(extent % divisor == 0 for extent in extents):
            return f"a multiple of {divisor} at some sizes only"
    return "odd at some sizes"
