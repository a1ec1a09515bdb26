"""Global memory of the emulated device."""

from __future__ import annotations

import bisect
import ctypes
import mmap
import os
import tempfile
import zlib
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from kernelforge.devices.emulated import layout as lay
from kernelforge.devices.emulated.errors import OutOfDeviceMemory
from kernelforge.devices.emulated.runtime.sanitize import OWNER_BYTES

_SLACK = 1 << 22
"""Address space for the gaps that a variation leaves between allocations."""

SPARSE_FROM_BYTES = 256 << 20
"""Ranges from this size on are filled by mapping, so that the host's memory holds only those pages that a run touches.
Smaller ones are written, which is faster than to fault their pages in."""
_PATTERN_BYTES = 16 << 20
WINDOW_BYTES = 4096
"""Size of the windows of a buffer that keep what is written while the rest of it does not."""
_MOST_RUNS = 16384
"""Runs of such windows: the kernel allows a process some 65,000 mappings."""
_PAGE = mmap.PAGESIZE
_MAP_FIXED, _MAP_NORESERVE = 0x10, 0x4000
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]


def vary(variation: int, what: str) -> int:
    """A variation's number of 31 bits for one purpose; 0 for variation 0."""
    return zlib.crc32(f"{what} {variation}".encode()) >> 1 if variation else 0


@dataclass(frozen=True)
class Allocation:
    """A live allocation. ``base`` is a device address, ``size`` is in bytes."""

    base: int
    size: int
    label: str
    flags: int = 0

    @property
    def reserved(self) -> int:
        """Bytes of address space it takes, red zone included."""
        return (self.size + lay.GRANULE - 1) // lay.GRANULE * lay.GRANULE + lay.RED_ZONE


RACES_UP_TO_BYTES = 256 << 20
"""Device memory in use up to which its words have records of their last accesses, of eight times the size."""


class Sanitizer:
    """Records of what was written to global memory in one run, and by which block of the launch.

    They are zeros at first, so that the host's memory holds only those of what a run accesses.

    Args:
        memory: with every allocation of the run; all count as written.
    """

    def __init__(self, memory: Memory) -> None:
        end = max((a.base + a.reserved for a in memory.allocations), default=memory.base)
        self.base = memory.base
        self.written = np.zeros(end - memory.base, dtype=np.uint8)
        self.undefined = np.zeros(-(-(end - memory.base) // lay.GRANULE), dtype=np.uint8)
        words = (end - memory.base) // 4 if end - memory.base <= RACES_UP_TO_BYTES else 0
        self.owners = np.zeros(words * OWNER_BYTES, dtype=np.uint8)
        self.launches = 1  # words that nothing has accessed have launch 0

    def undefine(self, address: int, nbytes: int) -> None:
        """Note that the content of an allocation, which nothing has written, is undefined."""
        start = address - self.base
        self.undefined[start // lay.GRANULE : -(-(start + nbytes) // lay.GRANULE)] = 1

    def mark(self, address: int, nbytes: int) -> None:
        """Note that a range was written."""
        self.written[address - self.base : address - self.base + nbytes] = 1

    def unwritten(self, address: int, nbytes: int) -> int:
        """Bytes of a range of one allocation that nothing has written."""
        start = address - self.base
        if nbytes == 0 or not self.undefined[start // lay.GRANULE]:
            return 0
        return nbytes - int(np.count_nonzero(self.written[start : start + nbytes]))


class Memory:
    """The device's global memory: a virtual address space with unmapped red zones around every allocation.

    Device addresses start at ``base`` and are independent of host addresses.

    Args:
        capacity_bytes: Address space to reserve, not counted as memory. Host pages are touched only when used.
    """

    def __init__(self, capacity_bytes: int) -> None:
        self.capacity_bytes = max(capacity_bytes, lay.GRANULE)
        total = self.capacity_bytes + 2 * lay.RED_ZONE + _SLACK + mmap.PAGESIZE
        self._map = mmap.mmap(-1, total, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE)
        self._bytes = np.frombuffer(self._map, dtype=np.uint8)
        self.host_base = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        self.base = lay.GLOBAL_BASE
        self._variation = 0
        self._gaps = 0
        self._bases: list[int] = []
        self._allocations: dict[int, Allocation] = {}

    def arrange(self, variation: int) -> int:
        """Move everything, content included, to the addresses of a variation; returns the distance in bytes.

        Later allocations leave gaps that the variation selects. Variation 0 is the first address, without gaps.
        """
        offset = vary(variation, "base") % (1 << 22) * (1 << 21) + vary(variation, "first") % (1 << 12) * lay.GRANULE
        distance = lay.GLOBAL_BASE + offset - self.base
        self.base += distance
        self._variation, self._gaps = variation, 0
        moved = [replace(a, base=a.base + distance) for a in self.allocations]
        self._bases = [a.base for a in moved]
        self._allocations = {a.base: a for a in moved}
        return distance

    def allocate(self, nbytes: int, label: str, read_only: bool = False, *, module: bool = False) -> int:
        """Reserve ``nbytes`` and return a 512-byte aligned device address; the content is undefined.

        Args:
            nbytes: Size in bytes; accesses beyond it fault.
            label: Name used in fault reports.
            read_only: A kernel's write is a fault.
            module: A variable of a PTX module, which kernels may only read.

        Raises:
            OutOfDeviceMemory: No gap is large enough.
        """
        flags = (lay.FLAG_READ_ONLY if read_only else 0) | (lay.FLAG_MODULE if module else 0)
        needed = Allocation(0, max(nbytes, 0), label, flags).reserved
        cursor = self.base + lay.RED_ZONE
        gap = vary(self._variation, f"gap {len(self._bases)}") % 16 * lay.GRANULE
        gap = gap if self._gaps + gap <= _SLACK else 0
        end = self.base + lay.RED_ZONE + self.capacity_bytes + self._gaps
        if self._bases:
            last = self._allocations[self._bases[-1]]
            tail = last.base + last.reserved
            if tail + needed <= end + lay.RED_ZONE:
                cursor = tail + gap
                self._gaps += gap
                end += gap
            else:
                for base in self._bases:
                    if base - cursor >= needed:
                        break
                    cursor = base + self._allocations[base].reserved
        if cursor + needed > end + lay.RED_ZONE:
            raise OutOfDeviceMemory(
                f"{label!r} needs {nbytes} bytes; {self.used_bytes} of {self.capacity_bytes} bytes are in use"
            )
        self._allocations[cursor] = Allocation(cursor, max(nbytes, 0), label, flags)
        bisect.insort(self._bases, cursor)
        return cursor

    def protect(self, address: int) -> None:
        """Make the allocation that starts at ``address`` read-only to kernels from now on.

        Raises:
            KeyError: No allocation starts there.
        """
        allocation = self._allocations[address]
        self._allocations[address] = replace(allocation, flags=allocation.flags | lay.FLAG_READ_ONLY)

    def free(self, address: int) -> None:
        """Release the allocation that starts at ``address``.

        Raises:
            KeyError: No allocation starts there.
        """
        allocation = self._allocations.pop(address)
        self._bases.remove(address)
        if allocation.size >= SPARSE_FROM_BYTES:
            self._clear(address - self.base, allocation.size)  # give its pages back to the host

    @property
    def used_bytes(self) -> int:
        """Bytes in live allocations."""
        return sum(a.size for a in self._allocations.values())

    @property
    def allocations(self) -> list[Allocation]:
        """Live allocations by ascending address."""
        return [self._allocations[base] for base in self._bases]

    def view(self, address: int, nbytes: int) -> npt.NDArray[np.uint8]:
        """Return the bytes at ``address`` without copying.

        Raises:
            ValueError: The range is not inside one allocation.
        """
        index = bisect.bisect_right(self._bases, address) - 1
        if index >= 0:
            allocation = self._allocations[self._bases[index]]
            if nbytes >= 0 and address + nbytes <= allocation.base + allocation.size:
                start = address - self.base
                return self._bytes[start : start + nbytes]
        raise ValueError(f"{nbytes} bytes at {address:#x} are not inside one allocation")

    def write(self, address: int, data: bytes | memoryview | npt.NDArray[np.generic]) -> None:
        """Copy host bytes to the device."""
        array = data if isinstance(data, np.ndarray) else np.frombuffer(data, dtype=np.uint8)
        source = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        self.view(address, source.nbytes)[:] = source

    def read(self, address: int, nbytes: int) -> bytes:
        """Copy device bytes to the host."""
        return self.view(address, nbytes).tobytes()

    def fill(self, address: int, nbytes: int, value: int) -> None:
        """Set each byte of a range to ``value``."""
        target = self.view(address, nbytes)
        if nbytes < SPARSE_FROM_BYTES:
            target[:] = value
        elif value == 0:
            self._clear(address - self.base, nbytes)
        else:
            self.repeat(address, nbytes, bytes([value]) * _PATTERN_BYTES)

    def repeat(self, address: int, nbytes: int, tile: bytes | memoryview) -> None:
        """Fill a range with a tile, again and again; pages of the host are taken as a run writes to them.

        Args:
            address: Where the range begins.
            nbytes: Its size; the last tile is cut off.
            tile: Content of a whole number of pages.

        Raises:
            OutOfDeviceMemory: the host has no room.
        """
        target = self.view(address, nbytes)
        period, host = len(tile), self.host_base + address - self.base
        content = np.frombuffer(tile, dtype=np.uint8)
        first = min(-host % _PAGE, nbytes)
        pages = (nbytes - first) // _PAGE * _PAGE
        target[:first] = content[:first]
        end = first + pages
        target[end:] = content[(end + np.arange(nbytes - end)) % period]
        with tempfile.TemporaryFile() as file:
            try:
                # What a page holds begins with the first whole page of the range.
                file.write(np.roll(content, -first).data)
                file.flush()
            except OSError as error:
                raise OutOfDeviceMemory(f"the host cannot keep a tile of {period} bytes: {error.strerror}") from error
            for start in range(0, pages, period):
                size = min(period, pages - start)
                self._remap(host + first + start, size, mmap.MAP_PRIVATE, file.fileno())

    def divert(self, address: int, nbytes: int, kept: npt.NDArray[np.int64]) -> None:
        """Let writes to a range go astray, but for those to some windows of it, which begin as zeros.

        All other pages are those of one small file, again and again: what a run leaves there means nothing, and takes
        no memory of the host. To fill the range ends that.

        Args:
            address: Where the range begins.
            nbytes: Its size.
            kept: The windows, ascending: offsets divided by :data:`WINDOW_BYTES`.

        Raises:
            OutOfDeviceMemory: the host has no room for the file, or for so many windows.
        """
        start = address - self.base
        self._clear(start, nbytes)
        first = -(self.host_base + start) % _PAGE
        pages = max(nbytes - first, 0) // _PAGE
        begins = np.clip((kept * WINDOW_BYTES - first) // _PAGE, 0, pages)
        ends = np.clip(-((first - (kept + 1) * WINDOW_BYTES) // _PAGE), 0, pages)
        first_of_run = np.append(True, begins[1:] > ends[:-1])[: kept.size]
        begins, ends = begins[first_of_run], ends[np.append(first_of_run[1:], True)[: kept.size]]
        if begins.size > _MOST_RUNS:
            raise OutOfDeviceMemory(f"the host cannot keep {begins.size} windows of a buffer apart from the rest")
        host = self.host_base + start + first
        with tempfile.TemporaryFile() as file:
            try:
                os.posix_fallocate(file.fileno(), 0, _PATTERN_BYTES)
            except OSError as error:
                raise OutOfDeviceMemory(f"the host has no room for diverted writes: {error.strerror}") from error
            for begin, end in zip([0, *ends.tolist()], [*begins.tolist(), pages], strict=True):
                for at in range(begin * _PAGE, end * _PAGE, _PATTERN_BYTES):
                    self._remap(host + at, min(_PATTERN_BYTES, end * _PAGE - at), mmap.MAP_SHARED, file.fileno())

    def _clear(self, start: int, nbytes: int) -> None:
        """Set a range of the reserved bytes to zero, and give its pages back to the host."""
        first = min(-(self.host_base + start) % _PAGE, nbytes)
        pages = (nbytes - first) // _PAGE * _PAGE
        self._bytes[start : start + first] = 0
        self._bytes[start + first + pages : start + nbytes] = 0
        if pages:
            self._remap(self.host_base + start + first, pages, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1)

    @staticmethod
    def _remap(host: int, nbytes: int, flags: int, descriptor: int) -> None:
        """Map pages of a file, or of zeros, over some of the reserved ones."""
        readable = mmap.PROT_READ | mmap.PROT_WRITE
        flags |= _MAP_NORESERVE | _MAP_FIXED
        if _libc.mmap(host, nbytes, readable, flags, descriptor, 0) != host:
            raise OutOfDeviceMemory(f"the host cannot map {nbytes} bytes: {os.strerror(ctypes.get_errno())}")

    def table(self) -> npt.NDArray[np.int64]:
        """Return the allocation table that the runtime searches: rows of (base, size, flags)."""
        rows = [(a.base, a.size, a.flags) for a in self.allocations]
        return np.array(rows or [(0, 0, 0)], dtype=np.int64)

    def nearest(self, address: int) -> str:
        """The position of ``address`` relative to the closest allocation, as text."""
        if not self._bases:
            return ""
        index = bisect.bisect_right(self._bases, address) - 1
        options: list[tuple[int, str]] = []
        if index >= 0:
            a = self._allocations[self._bases[index]]
            past = address - (a.base + a.size)
            if past < 0:
                offset = address - a.base
                return f"{offset} bytes into {a.label!r} ({a.size} bytes)"
            options.append((past, f"{past} bytes after the end of {a.label!r} ({a.size} bytes)"))
        if index + 1 < len(self._bases):
            a = self._allocations[self._bases[index + 1]]
            before = a.base - address
            options.append((before, f"{before} bytes before {a.label!r} ({a.size} bytes)"))
        distance, text = min(options)
        return text if distance < 1 << 32 else ""
