"""Operators of a task's reference at many batches, for the batch from which on a GPU is what the call waits for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Final

from kernelforge.errors import SandboxError, TaskError
from kernelforge.evaluation.oracle.client import Oracle
from kernelforge.prediction.operators import OperatorTrace
from kernelforge.records import Size, SizeFacts, Task
from kernelforge.tasks import parse_task_file

NAMES: Final = ("BATCH", "batch_size")
"""Constants that are a batch: of the suites that ship, and of KernelBench's files."""
LARGEST: Final = 4096
MAX_WEIGHT_BYTES: Final = 128 << 20
"""Of references that are swept, for the oracle has one at each batch."""


def batch_constant(task: Task) -> tuple[str, int] | None:
    """Name and value of the constant that is the task's batch, or None."""
    constants = parse_task_file(task.source, task.name).constants
    named = ((name, constants.get(name)) for name in NAMES)
    return next(((name, value) for name, value in named if type(value) is int and value > 0), None)


def batch_sweep(
    open_oracle: Callable[[Task], Oracle], task: Task, full: SizeFacts, ends: Callable[[OperatorTrace], bool]
) -> Iterator[tuple[int, OperatorTrace]]:
    """Yield operators at the powers of two up to :data:`LARGEST`, from shapes alone; nothing without a batch.

    Args:
        open_oracle: Opens an oracle for the task with further sizes.
        task: The task.
        full: Its facts at the full size.
        ends: Whether no larger batch is needed, by the operators at one.
    """
    batch = batch_constant(task)
    if batch is None or sum(weight.spec.nbytes for weight in full.weights) > MAX_WEIGHT_BYTES:
        return
    batches = [1 << power for power in range(LARGEST.bit_length())]
    sizes = [Size(name=f"hidden_batch_{extent}", constants={batch[0]: extent}) for extent in batches]
    swept = task.model_copy(update={"sizes": (*task.sizes, *sizes)})
    # A reference that takes no other batch, or that cannot be followed by shapes alone, ends the sweep.
    with suppress(TaskError, SandboxError), open_oracle(swept) as oracle:
        for extent, size in zip(batches, sizes, strict=True):
            trace = oracle.operators(size.name, run=False)
            yield extent, trace
            if ends(trace):
                return
