"""Operators of a task's reference at many batches, for the batch from which on a GPU is what the call waits for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import chain
from typing import Final, NamedTuple

from kernelforge.errors import SandboxError, TaskError
from kernelforge.evaluation.oracle.client import Oracle
from kernelforge.prediction.operators import OperatorTrace
from kernelforge.records import Size, SizeFacts, Task, TaskFacts, TensorSpec
from kernelforge.tasks import parse_task_file, size_source

NAMES: Final = ("BATCH", "batch_size")
"""Constants that are a batch: of the suites that ship, and of KernelBench's files."""
LARGEST: Final = 4096
"""Of a sweep, where the task's own batch is no larger."""
MAX_WEIGHT_BYTES: Final = 128 << 20
"""Of references that are swept, for the oracle has one at each batch."""


class BatchConstant(NamedTuple):
    """The constant of a task's file that is its batch."""

    name: str
    value: int

    @property
    def is_named(self) -> bool:
        """Whether its name says that it is a batch; else its place in shapes does."""
        return self.name in NAMES

    @property
    def label(self) -> str:
        """Word for it in texts: ``batch``, or the constant's own name, such as ``TOKENS``."""
        return "batch" if self.is_named else self.name


def batch_constant(task: Task, facts: TaskFacts) -> BatchConstant | None:
    """The constant that is the task's batch, or None.

    That is one of :data:`NAMES`, or else the first constant that is the extent of the first axis, at every size and of
    no other axis, of the first input and the first output: rows, tokens or heads that are worked on alike. Further
    inputs and outputs may have it as their first axis or not at all, weights not at all.
    """
    constants = _integers(task.source, task.name)
    for name in NAMES:
        if name in constants:
            return BatchConstant(name, constants[name])
    at_sizes = [(_integers(size_source(task, size.size), task.name), size) for size in facts.sizes]
    for name, value in constants.items():
        if _is_batch([(values.get(name, 0), size) for values, size in at_sizes]):
            return BatchConstant(name, value)
    return None


def _integers(source: str, name: str) -> dict[str, int]:
    """Constants of a file that may be extents."""
    constants = parse_task_file(source, name).constants
    return {name: value for name, value in constants.items() if type(value) is int and value > 0}


def _is_batch(sizes: Sequence[tuple[int, SizeFacts]]) -> bool:
    """Whether a constant with these values is a batch. One that never changes may be an extent by chance."""
    extents = [value for value, _ in sizes]
    if len(set(extents)) == 1:
        return False
    inputs = _axes(extents, [_tensors(facts.inputs) for _, facts in sizes])
    outputs = _axes(extents, [facts.outputs for _, facts in sizes])
    weights = _axes(extents, [[weight.spec for weight in facts.weights] for _, facts in sizes])
    first = [axes[0] for axes in (inputs, outputs) if axes]
    return first == [{0}, {0}] and not any(weights) and all(axes <= {0} for axes in chain(inputs, outputs))


def _tensors(values: Sequence[object]) -> list[TensorSpec]:
    return [value for value in values if isinstance(value, TensorSpec)]


def _axes(extents: Sequence[int], tensors: Sequence[Sequence[TensorSpec]]) -> list[set[int]]:
    """Axes of each tensor, over the sizes, that have these extents; none where sizes have unlike tensors."""
    return [
        {
            axis
            for axis, lengths in enumerate(zip(*(spec.shape for spec in same), strict=False))
            if list(lengths) == list(extents)
        }
        for same in zip(*tensors, strict=False)
    ]


def batch_sweep(
    open_oracle: Callable[[Task], Oracle],
    task: Task,
    full: SizeFacts,
    batch: BatchConstant,
    ends: Callable[[OperatorTrace], bool],
) -> Iterator[tuple[int, OperatorTrace]]:
    """Yield operators at powers of two, from shapes alone.

    A batch by its place is swept only if each more costs the same number of operations, and up to the task's own value
    in any case: what is predicted for few rows may be slower than for more.

    Args:
        open_oracle: Opens an oracle for the task with further sizes.
        task: The task.
        full: Its facts at the full size.
        batch: Its batch.
        ends: Whether no larger batch is needed, by the operators at one.
    """
    if sum(weight.spec.nbytes for weight in full.weights) > MAX_WEIGHT_BYTES:
        return
    needed = 1 if batch.is_named else batch.value
    batches = [1 << power for power in range(max(LARGEST, needed).bit_length())]
    sizes = [Size(name=f"hidden_batch_{extent}", constants={batch.name: extent}) for extent in batches]
    swept = task.model_copy(update={"sizes": (*task.sizes, *sizes)})
    # A reference that takes no other batch, or that cannot be followed by shapes alone, ends the sweep.
    with suppress(TaskError, SandboxError), open_oracle(swept) as oracle:
        if not batch.is_named and not _is_even([oracle.operators(size.name, run=False) for size in sizes[:3]]):
            return
        for extent, size in zip(batches, sizes, strict=True):
            trace = oracle.operators(size.name, run=False)
            yield extent, trace
            if extent >= needed and ends(trace):
                return


def _is_even(traces: Sequence[OperatorTrace]) -> bool:
    """Whether operations grow evenly over the batches 1, 2 and 4."""
    at_1, at_2, at_4 = (sum(operator.flops * operator.calls for operator in trace.operators) for trace in traces)
    return at_4 - at_2 == 2 * (at_2 - at_1)
