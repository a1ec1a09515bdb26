"""The tensors of one execution on a GPU, with guards that prove that nothing else was written."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from kernelforge.candidate.resolved import Buffer, ResolvedPlan
from kernelforge.devices.base import RunFailure
from kernelforge.devices.cuda.worker.driver import Driver, Pointer
from kernelforge.sandbox.shared_memory import Blob, same_bytes

GUARD_BYTES = 16 << 10
"""On either side of every buffer: one store of 16 bytes by each of the 1024 threads of a block."""


@dataclass(frozen=True)
class _Held:
    """One buffer where it lies: ``base`` is what was allocated, ``pointer`` what kernels are given."""

    buffer: Buffer
    base: Pointer
    before: bytes
    after: bytes
    """What its guards hold."""

    @property
    def pointer(self) -> Pointer:
        return self.base + GUARD_BYTES

    @property
    def end(self) -> Pointer:
        return self.pointer + self.buffer.nbytes


class Tensors:
    """Buffers of one plan on the device.

    Guards hold random bytes, each its own: neither a constant nor what lies beyond another buffer looks the same.

    Raises:
        DriverError: they do not fit.
    """

    def __init__(self, driver: Driver, plan: ResolvedPlan, mutable: frozenset[int]) -> None:
        self._driver = driver
        self._plan = plan
        self.mutable = mutable
        self._held: dict[int, _Held] = {}
        self._written: Mapping[int, Blob] = {}
        self._prepared: dict[int, Blob] = {}
        self._pristine: dict[int, Pointer] = {}
        """Copies of mutable inputs as they were put, where :meth:`keep_pristine` made them."""
        try:
            for buffer in plan.buffers:
                base = driver.allocate(buffer.nbytes + 2 * GUARD_BYTES)
                held = _Held(buffer, base, os.urandom(GUARD_BYTES), os.urandom(GUARD_BYTES))
                self._held[buffer.id] = held
                driver.write(held.base, held.before)
                driver.write(held.end, held.after)
        except BaseException:
            self.close()
            raise

    def address(self, buffer: int, offset_bytes: int = 0) -> Pointer:
        """Device address of a byte of a buffer."""
        return self._held[buffer].pointer + offset_bytes

    def put(self, tensors: Mapping[int, Blob]) -> None:
        """Write inputs and weights.

        Raises:
            ValueError: one is missing or has another size.
        """
        for held in self._held.values():
            buffer = held.buffer
            if not buffer.given:
                continue
            content = tensors.get(buffer.id)
            if content is None or len(content) != buffer.nbytes:
                got = "nothing" if content is None else f"{len(content)} bytes"
                raise ValueError(f"buffer {buffer.label!r} takes {buffer.nbytes} bytes, the request has {got}")
            self._driver.write(held.pointer, content)
        self._written = tensors

    def keep_pristine(self) -> None:
        """Copy the mutable inputs, which hold what was put into them, to where :meth:`reset` finds them.

        Raises:
            DriverError: the copies do not fit.
        """
        for number in sorted(self.mutable):
            held = self._held[number]
            if number not in self._pristine:
                self._pristine[number] = self._driver.allocate(held.buffer.nbytes)
            self._driver.copy(self._pristine[number], held.pointer, held.buffer.nbytes)

    def reset(self, byte: int) -> None:
        """Put everything that ``forward`` may write back to what it held before: asynchronous, may be captured."""
        self.poison(byte, ("workspace",))
        for number, copy in self._pristine.items():
            held = self._held[number]
            self._driver.copy(held.pointer, copy, held.buffer.nbytes)

    def poison(self, byte: int, kinds: tuple[str, ...] = ("workspace", "prepared")) -> None:
        """Fill buffers of these kinds, outputs among them."""
        for held in self._held.values():
            if held.buffer.kind in kinds:
                self._driver.fill(held.pointer, byte, held.buffer.nbytes)

    def keep_prepared(self) -> None:
        """Note what ``setup`` left behind, which ``forward`` may only read."""
        for held in self._held.values():
            if held.buffer.kind == "prepared":
                self._prepared[held.buffer.id] = self._read(held)

    def outputs(self) -> tuple[Blob, ...]:
        """The plan's outputs, then the mutable inputs by ascending id."""
        found = [self._driver.read(self.address(o.buffer, o.offset_bytes), o.nbytes) for o in self._plan.outputs]
        return (*found, *(self._read(self._held[number]) for number in sorted(self.mutable)))

    def faults(self) -> list[RunFailure]:
        """Guards that changed, and inputs, weights and prepared buffers that should not have."""
        found: list[RunFailure] = []
        for held in self._held.values():
            found += self._guards(held)
            told = self._changed(held)
            if told is not None:
                found.append(RunFailure("sanitizer", told))
        for number, copy in self._pristine.items():
            if not same_bytes(self._driver.read(copy, self._held[number].buffer.nbytes), self._written[number]):
                label = self._held[number].buffer.label
                found.append(
                    RunFailure("sanitizer", f"out-of-bounds write, into the copy that {label!r} is reset from")
                )
        return found

    def _guards(self, held: _Held) -> list[RunFailure]:
        found: list[RunFailure] = []
        size = f"{held.buffer.label!r} ({held.buffer.nbytes} bytes)"
        before = first_difference(held.before, self._driver.read(held.base, GUARD_BYTES))
        if before is not None:
            text = f"out-of-bounds write, {GUARD_BYTES - before} bytes before {size}"
            found.append(RunFailure("sanitizer", text))
        after = first_difference(held.after, self._driver.read(held.end, GUARD_BYTES))
        if after is not None:
            found.append(RunFailure("sanitizer", f"out-of-bounds write, {after} bytes after the end of {size}"))
        return found

    def _changed(self, held: _Held) -> str | None:
        buffer = held.buffer
        if buffer.given and buffer.id not in self.mutable:
            at = first_difference(self._written[buffer.id], self._read(held))
            if at is not None:
                return f"write to a read-only buffer, {at} bytes into {buffer.label!r} ({buffer.nbytes} bytes)"
        if buffer.id in self._prepared:
            at = first_difference(self._prepared[buffer.id], self._read(held))
            if at is not None:
                return (
                    f"write to what setup prepared, {at} bytes into {buffer.label!r} ({buffer.nbytes} bytes): "
                    "forward may only read it"
                )
        return None

    def _read(self, held: _Held) -> bytes:
        return self._driver.read(held.pointer, held.buffer.nbytes)

    def close(self) -> None:
        """Free the buffers."""
        while self._pristine:
            self._driver.free(self._pristine.popitem()[1])
        while self._held:
            self._driver.free(self._held.popitem()[1].base)


def first_difference(expected: Blob, found: Blob) -> int | None:
    """Position of the first byte that differs between two texts of one length."""
    if same_bytes(expected, found):
        return None
    return int(np.argmax(np.frombuffer(expected, np.uint8) != np.frombuffer(found, np.uint8)))
