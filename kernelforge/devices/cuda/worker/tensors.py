"""The tensors of one execution on a GPU, with guards that detect writes outside of them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from kernelforge.candidate.resolved import Buffer, ResolvedPlan
from kernelforge.devices.base import RunFailure
from kernelforge.devices.cuda.worker.driver import Driver, DriverError, Pointer
from kernelforge.sandbox.shared_memory import Blob, same_bytes

GUARD_BYTES = 16 << 10
"""Guard on either side of every buffer: one store of 16 bytes by each of the 1024 threads of a block."""


@dataclass(frozen=True)
class _GuardedBuffer:
    """One buffer on the device: ``base`` is the address of its allocation, ``pointer`` the address for kernels."""

    buffer: Buffer
    base: Pointer
    before: bytes
    after: bytes
    """Contents of its guards."""

    @property
    def pointer(self) -> Pointer:
        return self.base + GUARD_BYTES

    @property
    def end(self) -> Pointer:
        return self.pointer + self.buffer.nbytes


def allocate(driver: Driver, buffer: Buffer, nbytes: int, mapped: frozenset[int]) -> Pointer:
    """Allocate memory for a buffer of a plan; for those of ``mapped``, pinned host memory.

    Raises:
        DriverError: it does not fit; of code ``PINNED_MEMORY``, which no plan causes, where it is the host's memory.
    """
    if buffer.id not in mapped:
        return driver.allocate(nbytes)
    try:
        return driver.allocate_host(nbytes)
    except DriverError as error:
        if error.sticky:
            raise
        raise DriverError("PINNED_MEMORY", f"{buffer.label!r} was put into host memory: {error}") from error


class Tensors:
    """Buffers of one plan on the device; those of ``mapped`` in pinned host memory, with guards there.

    Each guard has its own random bytes, so that neither a constant nor data of another buffer matches them.

    Raises:
        DriverError: they do not fit: see :func:`allocate`.
    """

    def __init__(
        self, driver: Driver, plan: ResolvedPlan, mutable: frozenset[int], mapped: frozenset[int] = frozenset()
    ) -> None:
        self._driver = driver
        self._plan = plan
        self.mutable = mutable
        self._buffers: dict[int, _GuardedBuffer] = {}
        self._written: Mapping[int, Blob] = {}
        self._prepared: dict[int, Blob] = {}
        self._pristine: dict[int, Pointer] = {}
        """Copies of mutable inputs as :meth:`put` wrote them, made by :meth:`keep_pristine`."""
        try:
            for buffer in plan.buffers:
                base = allocate(driver, buffer, buffer.nbytes + 2 * GUARD_BYTES, mapped)
                guarded = _GuardedBuffer(buffer, base, os.urandom(GUARD_BYTES), os.urandom(GUARD_BYTES))
                self._buffers[buffer.id] = guarded
                driver.write(guarded.base, guarded.before)
                driver.write(guarded.end, guarded.after)
        except BaseException:
            self.close()
            raise

    def address(self, buffer: int, offset_bytes: int = 0) -> Pointer:
        """Device address of a byte of a buffer."""
        return self._buffers[buffer].pointer + offset_bytes

    def put(self, tensors: Mapping[int, Blob]) -> None:
        """Write inputs and weights.

        Raises:
            ValueError: a tensor is missing or has another size.
        """
        for guarded in self._buffers.values():
            buffer = guarded.buffer
            if not buffer.provided:
                continue
            content = tensors.get(buffer.id)
            if content is None or len(content) != buffer.nbytes:
                got = "nothing" if content is None else f"{len(content)} bytes"
                raise ValueError(f"buffer {buffer.label!r} takes {buffer.nbytes} bytes, the request has {got}")
            self._driver.write(guarded.pointer, content)
        self._written = tensors

    def keep_pristine(self) -> None:
        """Copy the mutable inputs on the device, for :meth:`reset`.

        Raises:
            DriverError: the copies do not fit.
        """
        for number in sorted(self.mutable):
            guarded = self._buffers[number]
            if number not in self._pristine:
                self._pristine[number] = self._driver.allocate(guarded.buffer.nbytes)
            self._driver.copy(self._pristine[number], guarded.pointer, guarded.buffer.nbytes)

    def reset(self, byte: int) -> None:
        """Restore everything that ``forward`` may write: asynchronous, may be captured."""
        self.poison(byte, ("workspace",))
        for number, copy in self._pristine.items():
            guarded = self._buffers[number]
            self._driver.copy(guarded.pointer, copy, guarded.buffer.nbytes)

    def poison(self, byte: int, kinds: tuple[str, ...] = ("workspace", "prepared")) -> None:
        """Fill buffers of these kinds, outputs among them."""
        for guarded in self._buffers.values():
            if guarded.buffer.kind in kinds:
                self._driver.fill(guarded.pointer, byte, guarded.buffer.nbytes)

    def keep_prepared(self) -> None:
        """Record the output of ``setup``, which ``forward`` may only read."""
        for guarded in self._buffers.values():
            if guarded.buffer.kind == "prepared":
                self._prepared[guarded.buffer.id] = self._read(guarded)

    def outputs(self) -> tuple[Blob, ...]:
        """The plan's outputs, then the mutable inputs by ascending id."""
        outputs = [self._driver.read(self.address(o.buffer, o.offset_bytes), o.nbytes) for o in self._plan.outputs]
        return (*outputs, *(self._read(self._buffers[number]) for number in sorted(self.mutable)))

    def faults(self) -> list[RunFailure]:
        """Faults of changed guards, and of changed inputs, weights and prepared buffers that are read-only."""
        messages: list[str] = []
        for guarded in self._buffers.values():
            messages += self._check_guards(guarded)
            messages += self._check_contents(guarded)
        for number, copy in self._pristine.items():
            buffer = self._buffers[number].buffer
            if not same_bytes(self._driver.read(copy, buffer.nbytes), self._written[number]):
                messages.append(f"out-of-bounds write, into the copy that {buffer.label!r} is reset from")
        return [RunFailure("sanitizer", message) for message in messages]

    def _check_guards(self, guarded: _GuardedBuffer) -> Iterator[str]:
        size = f"{guarded.buffer.label!r} ({guarded.buffer.nbytes} bytes)"
        before = first_difference(guarded.before, self._driver.read(guarded.base, GUARD_BYTES))
        if before is not None:
            yield f"out-of-bounds write, {GUARD_BYTES - before} bytes before {size}"
        after = first_difference(guarded.after, self._driver.read(guarded.end, GUARD_BYTES))
        if after is not None:
            yield f"out-of-bounds write, {after} bytes after the end of {size}"

    def _check_contents(self, guarded: _GuardedBuffer) -> Iterator[str]:
        buffer = guarded.buffer
        size = f"{buffer.label!r} ({buffer.nbytes} bytes)"
        if buffer.provided and buffer.id not in self.mutable:
            at = first_difference(self._written[buffer.id], self._read(guarded))
            if at is not None:
                yield f"write to a read-only buffer, {at} bytes into {size}"
        if buffer.id in self._prepared:
            at = first_difference(self._prepared[buffer.id], self._read(guarded))
            if at is not None:
                yield f"write to what setup prepared, {at} bytes into {size}: forward may only read it"

    def _read(self, guarded: _GuardedBuffer) -> bytes:
        return self._driver.read(guarded.pointer, guarded.buffer.nbytes)

    def close(self) -> None:
        """Free the buffers."""
        while self._pristine:
            self._driver.free(self._pristine.popitem()[1])
        while self._buffers:
            self._driver.free(self._buffers.popitem()[1].base)


def first_difference(expected: Blob, actual: Blob) -> int | None:
    """Position of the first byte that differs between two blobs of one length; None if they are equal."""
    if same_bytes(expected, actual):
        return None
    return int(np.argmax(np.frombuffer(expected, np.uint8) != np.frombuffer(actual, np.uint8)))
