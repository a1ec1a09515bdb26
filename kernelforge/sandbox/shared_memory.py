"""Sealed memory files: pass large tensors to another process without a copy; nobody can change them.

The sender writes a file of the kernel's memory once and seals it against writing and against any other size
(``memfd_create`` and ``F_ADD_SEALS``; Linux manual pages memfd_create(2), fcntl(2)). The receiver maps it, and may
pass the same file on. What a confined child sends is read as hostile:

- A descriptor that is no fully sealed memory file of the announced size is refused. It cannot be a pipe to block on,
  nor a file that shrinks under its reader, which would end the reader with SIGBUS.
- So is a file with holes: a size that cost the sender nothing would take the reader's memory page by page, and a page
  that cannot be had ends a process with SIGBUS, too. Huge pages, which are reserved apart, are refused with them.
- The mapping is private and read-only; older kernels allow a sealed file no other.

Only children of roles with a GPU use them, in both directions. To the others ``memfd_create`` is refused: their memory
is held by a limit on address space, which does not see files that nobody has mapped.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import mmap
import os
import resource
import stat
import sys
import weakref
from typing import Any, ClassVar

from kernelforge.errors import SandboxError

Blob = bytes | memoryview
"""Raw bytes of a frame: a copy of one's own, or a read-only view of what came in a memory file."""

SMALLEST_FILE = 2 << 20
"""Bytes from which a blob travels as a file. Below, the socket is as fast; from 32 MiB on, a file takes about half of
its time (``benchmarks/transport.py``)."""

_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL
_MFD_NOEXEC_SEAL = 0x8
_SHARE_OF_DESCRIPTORS = 4
"""One in so many of the descriptors that this process may have can be a mapped file, each of which takes up to two."""


class MemoryFile(mmap.mmap):
    """What a memory file holds, mapped read-only. Its descriptor is kept where the file is to be passed on."""

    _mapped: ClassVar[weakref.WeakSet[MemoryFile]] = weakref.WeakSet()
    descriptor: int | None

    @classmethod
    def map(cls, fd: int, length: int, *, keep: bool) -> Blob:
        """A view of a received file, whose descriptor is taken over whatever happens.

        Where this process has mapped so many already that descriptors could run out, a copy.

        Raises:
            SandboxError: it is no sealed memory file of ``length`` bytes.
            MemoryError: it does not fit into this process's address space.
        """
        try:
            check_sealed(fd, length)
            made = cls._map(fd, length)
            if len(cls._mapped) >= resource.getrlimit(resource.RLIMIT_NOFILE)[0] // _SHARE_OF_DESCRIPTORS:
                with made:
                    return made[:]
            cls._mapped.add(made)
            if keep:
                made.descriptor, fd = fd, -1
        finally:
            if fd >= 0:
                os.close(fd)
        return memoryview(made)

    @classmethod
    def _map(cls, fd: int, length: int) -> MemoryFile:
        arguments: dict[str, Any] = {"flags": mmap.MAP_PRIVATE, "prot": mmap.PROT_READ}
        if sys.version_info >= (3, 13):
            arguments["trackfd"] = False
        try:
            made = cls(fd, length, **arguments)
        except OSError as error:
            if error.errno == errno.ENOMEM:
                raise MemoryError(f"no room to map {length} bytes") from error
            raise SandboxError(f"a confined child passed what cannot be mapped: {error.strerror}") from error
        made.descriptor = None
        return made

    def __del__(self) -> None:
        descriptor = getattr(self, "descriptor", None)
        if descriptor is not None:
            with contextlib.suppress(OSError):
                os.close(descriptor)


def check_sealed(fd: int, length: int) -> None:
    """Whether a descriptor is a memory file of ``length`` bytes, all of them there, that nobody can change any more.

    Raises:
        SandboxError: it is not.
    """
    try:
        sealed = fcntl.fcntl(fd, fcntl.F_GET_SEALS) & _SEALS == _SEALS
        facts = os.fstat(fd)
        plain = stat.S_ISREG(facts.st_mode) and os.fstatvfs(fd).f_bsize == mmap.PAGESIZE
        whole = sealed and plain and facts.st_size == length > 0 and os.lseek(fd, 0, os.SEEK_HOLE) == length
    except OSError as error:
        raise SandboxError(f"a confined child passed what is no memory file: {error.strerror}") from error
    if not whole:
        raise SandboxError(f"a confined child passed what is no sealed memory file of {length} bytes")


def seal(view: memoryview) -> int | None:
    """A new sealed memory file with these bytes; None where this process may not make one, or not of this size."""
    fd = _create()
    if fd is None:
        return None
    try:
        while view.nbytes:
            view = view[os.write(fd, view) :]
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
    except OSError:
        os.close(fd)
        return None
    except BaseException:
        os.close(fd)
        raise
    return fd


def _create() -> int | None:
    flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
    try:
        return os.memfd_create("kernelforge", flags | _MFD_NOEXEC_SEAL)
    except OSError as error:
        if error.errno != errno.EINVAL:
            return None
    try:
        return os.memfd_create("kernelforge", flags)  # a kernel before 6.3
    except OSError:
        return None


def descriptor_of(view: memoryview) -> int | None:
    """The descriptor of a kept memory file that ``view`` shows the whole of; None for any other memory."""
    base = view.obj
    if isinstance(base, MemoryFile) and view.nbytes == len(base):
        return base.descriptor
    return None


def same_bytes(one: Blob, other: Blob) -> bool:
    """Whether two blobs hold the same bytes. Python compares views item by item, some twenty times as slowly."""
    if len(one) != len(other):
        return False
    if isinstance(one, bytes) and isinstance(other, bytes):
        return one == other
    import numpy as np

    left, right = (np.frombuffer(blob, np.uint8) for blob in (one, other))
    return bool(_memcmp(left.ctypes.data, right.ctypes.data, len(one)) == 0)


_memcmp = ctypes.CDLL(None).memcmp
_memcmp.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
