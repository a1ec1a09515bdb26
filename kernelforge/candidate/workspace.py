"""Workspace reuse: a buffer whose last use has passed backs a later allocation.

Outputs never share, so what a kernel leaves unwritten in them shows the poison. Nor does what ``setup`` returns, and
workspace of ``setup`` is kept apart from that of ``forward``: ``forward`` can run again and again.

Workspace shares with workspace of exactly the same size, so the end of a buffer is the end of the tensor and an access
past it is seen; only a plan that would not fit otherwise puts smaller tensors into larger buffers. A reused buffer
holds what the dead tensor left there, not the poison.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass, field
from typing import Literal

from kernelforge.candidate.plan_language.values import Fault, Storage, bytes_text


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
        groups: Storages with their first and last use, of ``setup`` and of ``forward``; a slot serves one group. Those
            that nothing uses get none.
        kept: Those that ``setup`` or ``forward`` returns; each has a slot of its own.
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
        place = bisect_left(free, (storage.nbytes, -1))
        if place < len(free) and (not exact or free[place][0] == storage.nbytes):
            _, slot = free.pop(place)
        else:
            slot = len(slots)
            slots.append(Slot(storage.nbytes))
        slots[slot].storages.append(storage)
        heapq.heappush(busy, (storage.last_use, slot))
    return slots
