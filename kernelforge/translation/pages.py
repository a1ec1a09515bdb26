"""Addresses and protection of a child's memory, and arrays between pages that cannot be read."""

from __future__ import annotations

import ctypes
import mmap
from typing import Final

from kernelforge.sandbox.shared_memory import Blob

PROT_NONE: Final = 0
PROT_READ: Final = 1
PROT_WRITE: Final = 2

_PAGE: Final = mmap.PAGESIZE

_mprotect = ctypes.CDLL(None, use_errno=True).mprotect
_mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


def address_of(area: mmap.mmap) -> int:
    """The address at which an area begins."""
    return ctypes.addressof(ctypes.c_char.from_buffer(area))


def protect(area: mmap.mmap, start: int, size: int, protection: int) -> None:
    """Set what may be done with pages of an area.

    Args:
        area: private memory.
        start: offset in bytes of the first page.
        size: in bytes.
        protection: a sum of :data:`PROT_READ` and :data:`PROT_WRITE`.

    Raises:
        OSError: the kernel refuses.
    """
    protect_pages(address_of(area) + start, size, protection)


def protect_pages(address: int, size: int, protection: int) -> None:
    """Set what may be done with the pages that begin at an address; see :func:`protect`."""
    if _mprotect(address, size, protection):
        raise OSError(ctypes.get_errno(), "mprotect")


class GuardedArray:
    """Memory of one array between two pages that cannot be read.

    Args:
        size: in bytes.
        content: of an input, which cannot be written then; None for an output.
        poison: byte that an output holds before.
        at_end: whether the array ends, rather than begins, at an unreadable page.
    """

    def __init__(self, size: int, content: Blob | None, poison: int, *, at_end: bool) -> None:
        inside = max(-(-size // _PAGE), 1) * _PAGE
        self._map = mmap.mmap(-1, inside + 2 * _PAGE, flags=mmap.MAP_PRIVATE)
        self._start = _PAGE + (inside - size if at_end else 0)
        self._inside = inside
        self.size = size
        with memoryview(self._map) as view:
            if content is None:
                view[_PAGE : _PAGE + inside] = bytes([poison]) * inside
            else:
                view[self._start : self._start + size] = memoryview(content).cast("B")
        self._protection = PROT_READ if content is not None else PROT_READ | PROT_WRITE
        self.address = address_of(self._map) + self._start
        self.open()
        protect(self._map, 0, _PAGE, PROT_NONE)
        protect(self._map, _PAGE + inside, _PAGE, PROT_NONE)

    def open(self) -> None:
        """Let the array be read, and an output be written."""
        protect(self._map, _PAGE, self._inside, self._protection)

    def close(self) -> None:
        """Let nothing read or write the array until it is opened again."""
        protect(self._map, _PAGE, self._inside, PROT_NONE)

    def content(self) -> memoryview:
        """The bytes of the array, which must be open."""
        return memoryview(self._map)[self._start : self._start + self.size]
