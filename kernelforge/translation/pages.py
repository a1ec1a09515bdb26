"""Addresses and protection of a child's memory."""

from __future__ import annotations

import ctypes
import mmap
from typing import Final

PROT_NONE: Final = 0
PROT_READ: Final = 1


def address_of(area: mmap.mmap) -> int:
    """The address at which an area begins."""
    return ctypes.addressof(ctypes.c_char.from_buffer(area))


def protect(area: mmap.mmap, start: int, size: int, protection: int) -> None:
    """Set what may be done with pages of an area."""
    change = ctypes.CDLL(None, use_errno=True).mprotect
    change.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    if change(address_of(area) + start, size, protection):
        raise OSError(ctypes.get_errno(), "mprotect")
