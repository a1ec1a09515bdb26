"""Build a resolved plan from the interpreter's log: storages become buffers, pending steps become steps.

A buffer whose last use has passed backs a later allocation. Outputs never share, so elements that a kernel leaves
unwritten show the poison. Nor do the tensors that ``setup`` returns, and workspace of ``setup`` is kept apart from that
of ``forward``, which can run many times.

Workspace shares with workspace of exactly the same size, so the end of a buffer is the end of the tensor and an access
past it is seen; only a plan that would not fit otherwise puts smaller tensors into larger buffers. A reused buffer
holds the values of the dead tensor, not the poison.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass, field
from typing import Literal

from kernelforge.candidate.plan_language.interpreter import (
    LibraryArgument,
    Machine,
    PendingFill,
    PendingLaunch,
    PendingLibrary,
    PendingStep,
)
from kernelforge.candidate.plan_language.values import Fault, Storage, Tensor, TensorMap, bytes_text
from kernelforge.candidate.resolved import (
    Buffer,
    Fill,
    Launch,
    Library,
    LibraryValue,
    Output,
    ResolvedPlan,
    ScalarArg,
    Step,
    TensorArg,
    TensorMapArg,
    TensorView,
)


@dataclass
class Slot:
    """One buffer and the storages that it backs in turn."""

    nbytes: int
    storages: list[Storage] = field(default_factory=list)

    @property
    def kind(self) -> Literal["prepared", "workspace"]:
        return "prepared" if self.storages[0].kind == "prepared" else "workspace"

    @property
    def label(self) -> str:
        """Names of its tensors, each once, three at most."""
        names = list(dict.fromkeys(storage.label or f"tensor of line {storage.line}" for storage in self.storages))
        return " / ".join(names[:3]) + (" / ..." if names[3:] else "")


def share(groups: Sequence[Iterable[Storage]], kept: Set[Storage], limit_bytes: int) -> list[Slot]:
    """Give every used storage that the plan allocated a slot.

    Args:
        groups: Storages with their first and last use, of ``setup`` and of ``forward``; a slot serves one group.
            Unused ones get none.
        kept: Storages that ``setup`` or ``forward`` returns; each has its own slot.
        limit_bytes: Bound on the sum of all slots.

    Raises:
        Fault: the slots do not fit the limit.
    """
    used = [[storage for storage in group if storage.first_use is not None or storage in kept] for group in groups]
    slots = [slot for group in used for slot in _pack(group, kept, exact=True)]
    if sum(slot.nbytes for slot in slots) > limit_bytes:
        slots = [slot for group in used for slot in _pack(group, kept, exact=False)]
    total = sum(slot.nbytes for slot in slots)
    if total > limit_bytes:
        largest = max(slots, key=lambda slot: slot.nbytes)
        raise Fault(
            f"the plan asks for {bytes_text(total)} of workspace; the limit is {bytes_text(limit_bytes)}; "
            f"the largest tensor is {largest.label} with {bytes_text(largest.nbytes)}",
            largest.storages[0].line,
        )
    return slots


def _pack(used: list[Storage], kept: Set[Storage], *, exact: bool) -> list[Slot]:
    slots: list[Slot] = []
    busy: list[tuple[int, int]] = []
    """Heap of (last use, slot)."""
    free: list[tuple[int, int]] = []
    """Sorted (bytes, slot) of slots whose storage is dead."""
    for storage in sorted(used, key=lambda storage: -1 if storage.first_use is None else storage.first_use):
        if storage in kept or storage.first_use is None:
            slots.append(Slot(storage.nbytes, [storage]))
            continue
        while busy and busy[0][0] < storage.first_use:
            _, slot = heapq.heappop(busy)
            insort(free, (slots[slot].nbytes, slot))
        position = bisect_left(free, (storage.nbytes, -1))
        if position < len(free) and (not exact or free[position][0] == storage.nbytes):
            _, slot = free.pop(position)
        else:
            slot = len(slots)
            slots.append(Slot(storage.nbytes))
        slots[slot].storages.append(storage)
        heapq.heappush(busy, (storage.last_use, slot))
    return slots


def assemble(machine: Machine, outputs: tuple[Tensor, ...], constants: dict[str, int]) -> ResolvedPlan:
    """The plan that a machine recorded, every storage in a buffer.

    Raises:
        Fault: the buffers do not fit the limit.
    """
    groups = (machine.setup.workspaces, machine.forward.workspaces)
    prepared = {storage for storage in machine.setup.workspaces if storage.kind == "prepared"}
    slots = share(groups, prepared | {output.storage for output in outputs}, machine.limits.workspace_bytes)
    provided = [*machine.inputs, *(tensor.storage for tensor in machine.weights.values())]
    ids = {storage: position for position, storage in enumerate(provided)}
    ids |= {storage: position for position, slot in enumerate(slots, len(provided)) for storage in slot.storages}
    buffers = [
        Buffer(position, storage.kind, storage.nbytes, storage.label or "", storage.source)
        for position, storage in enumerate(provided)
    ]
    for position, slot in enumerate(slots, len(provided)):
        buffers.append(Buffer(position, slot.kind, slot.nbytes, slot.label))
    return ResolvedPlan(
        buffers=tuple(buffers),
        steps=tuple(_step(pending, ids) for pending in machine.forward.steps),
        outputs=tuple(Output(ids[out.storage], out.offset_bytes, out.shape, out.dtype) for out in outputs),
        constants=constants,
        setup=tuple(_step(pending, ids) for pending in machine.setup.steps),
    )


def _step(pending: PendingStep, ids: dict[Storage, int]) -> Step:
    if isinstance(pending, PendingFill):
        return Fill(ids[pending.storage], 0, pending.storage.nbytes, pending.line)
    if isinstance(pending, PendingLibrary):
        return Library(
            pending.operator,
            tuple(_value(value, ids) for value in pending.args),
            {name: _value(value, ids) for name, value in pending.kwargs.items()},
            tuple(_view(tensor, ids) for tensor in pending.out),
            pending.line,
        )
    return _launch(pending, ids)


def _launch(pending: PendingLaunch, ids: dict[Storage, int]) -> Launch:
    return Launch(**{**pending._asdict(), "args": tuple(_argument(arg, ids) for arg in pending.args)})


def _argument(arg: Tensor | TensorMap | ScalarArg, ids: dict[Storage, int]) -> TensorArg | TensorMapArg | ScalarArg:
    if isinstance(arg, Tensor):
        return TensorArg(ids[arg.storage], arg.offset_bytes, arg.dtype)
    if isinstance(arg, TensorMap):
        tensor = arg.tensor
        return TensorMapArg(
            ids[tensor.storage], tensor.offset_bytes, tensor.dtype, tensor.shape, arg.box, arg.swizzle_bytes, arg.pixels
        )
    return arg


def _value(value: LibraryArgument, ids: dict[Storage, int]) -> LibraryValue:
    return _view(value, ids) if isinstance(value, Tensor) else value


def _view(tensor: Tensor, ids: dict[Storage, int]) -> TensorView:
    return TensorView(ids[tensor.storage], tensor.offset_bytes, tensor.shape, tensor.stride, tensor.dtype)
