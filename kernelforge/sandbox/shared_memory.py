"""Sealed memory files: pass large tensors to another process without a copy; no process can change their contents.

The sender writes a memory file once and seals it against writing and against a change of size (``memfd_create`` and
``F_ADD_SEALS``; Linux manual pages memfd_create(2), fcntl(2)). The receiver maps it, and may forward the same file.
Files from a confined child are treated as hostile:

- Only a fully sealed memory file of the announced size is accepted. A pipe could block the reader, and a file that
  shrinks would end it with SIGBUS.
- A file with holes is refused: its size costs the sender nothing and takes the reader's memory page by page, and a page
  that cannot be allocated ends the reader with SIGBUS, too. So are huge pages, which are reserved separately.
- The mapping is private and read-only; older kernels allow no other for a sealed file.

Children of roles with a GPU use them in both directions. Other roles may not call ``memfd_create``: their memory is
limited by address space, which does not count unmapped files. Those of a role with ``files`` receive them, sealed ones
and such as the child can write, of a fixed size (:meth:`MemoryFile.writable`): what a child leaves there needs
no reply, so that its parent may kill it, freeze the file and read.
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
import time
import weakref
from typing import Any, ClassVar

from kernelforge.errors import SandboxError

Blob = bytes | memoryview
"""Raw bytes of a frame: a copy, or a read-only view of a memory file."""

SMALLEST_FILE = 2 << 20
"""Smallest blob that is sent as a file. Below, the socket is as fast; from 32 MiB on, a file takes about half of the
socket's time (``benchmarks/transport.py``)."""

_SIZE_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
_SEALS = _SIZE_SEALS | fcntl.F_SEAL_SEAL | fcntl.F_SEAL_WRITE
_PART = 1 << 20
_MFD_NOEXEC_SEAL = 0x8
_LOOK_S = 1e-4
"""Between two tries to freeze a file that is still mapped."""
_SHARE_OF_DESCRIPTORS = 4
"""A quarter of this process's descriptors may be mapped files, each of which takes up to two."""


class MisusedFile(SandboxError):
    """A child did with a file that it was to write what leaves it unreadable."""


class MemoryFile(mmap.mmap):
    """A mapped memory file. It keeps its descriptor if the file is to be forwarded."""

    _mapped: ClassVar[weakref.WeakSet[MemoryFile]] = weakref.WeakSet()
    descriptor: int | None

    @classmethod
    def writable(cls, length: int, fill: int) -> memoryview:
        """A view of a new memory file of fixed size, full of one byte, which a child that receives it may write until
        :func:`freeze`. This process maps it private and only to read, or it could not be frozen.

        Raises:
            SandboxError: this process cannot make one.
        """
        fd = _create()
        if fd is None:
            raise SandboxError("this machine makes no memory file (memfd_create), which C functions are timed with")
        try:
            # Written, not mapped: a page that cannot be had is an error then, and no SIGBUS.
            part, done = memoryview(bytes([fill]) * min(length, _PART)), 0
            while done < length:
                done += os.write(fd, part[: length - done])
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SIZE_SEALS)
            made = cls._map(fd, length)
        except (OSError, ValueError) as error:
            os.close(fd)
            raise SandboxError(f"this machine makes no memory file of {length} bytes: {error}") from error
        except BaseException:
            os.close(fd)
            raise
        made.descriptor = fd
        return memoryview(made)

    @classmethod
    def sealed(cls, content: Blob) -> Blob:
        """A view of a new sealed memory file with these bytes, which channels forward without a copy; a copy of the
        bytes where this process makes no such file, or they are few.

        The file is new also where the bytes are in one already: a seal freezes contents alone, so that a process which
        received a file can leave word in its attributes or its open file description for the next one.
        """
        view = memoryview(content).cast("B")
        fd = seal(view) if view.nbytes >= SMALLEST_FILE else None
        return bytes(view) if fd is None else cls.map(fd, view.nbytes, keep=True)

    @classmethod
    def map(cls, fd: int, length: int, *, keep: bool, trusted: bool = False) -> Blob:
        """A view of a received file, or a copy if many mapped files could exhaust the descriptors.

        Takes over the descriptor, also after an error.

        Args:
            fd: the descriptor.
            length: the announced size.
            keep: whether the file is to be forwarded.
            trusted: whether the sender may leave the file open to writing; it is mapped so then.

        Raises:
            SandboxError: it is no sealed memory file of ``length`` bytes.
            MemoryError: it does not fit into this process's address space.
        """
        try:
            if trusted and not fcntl.fcntl(fd, fcntl.F_GET_SEALS) & fcntl.F_SEAL_WRITE:
                shared = cls(fd, length, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ | mmap.PROT_WRITE)
                shared.descriptor = None
                return memoryview(shared)
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


def is_open_to_writing(view: memoryview) -> bool:
    """Whether ``view`` shows a file of :meth:`MemoryFile.writable` that is not frozen."""
    fd = descriptor_of(view)
    return fd is not None and not fcntl.fcntl(fd, fcntl.F_GET_SEALS) & fcntl.F_SEAL_WRITE


def freeze(view: memoryview, timeout_s: float = 5.0) -> None:
    """Seal a file of :meth:`MemoryFile.writable` against writing. The kernel does so once no process maps it to write:
    this waits for the end of a killed child's last thread.

    Args:
        view: of the entire file.
        timeout_s: longest wait, in seconds.

    Raises:
        MisusedFile: a child sealed it against this.
        SandboxError: a process still maps it.
    """
    fd = descriptor_of(view)
    if fd is None:
        raise SandboxError("only a whole memory file can be frozen")
    until = time.monotonic() + timeout_s
    while True:
        try:
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
        except OSError as error:
            if error.errno == errno.EPERM:
                raise MisusedFile(f"a confined child sealed the memory file that it was to write: {error}") from error
            if error.errno != errno.EBUSY:
                raise SandboxError(f"a memory file cannot be frozen: {error}") from error
            if time.monotonic() > until:
                raise SandboxError("a confined child that was killed still maps its memory files") from error
            time.sleep(_LOOK_S)
        else:
            return


def written_bytes(view: memoryview) -> bytes:
    """Contents of a file of :meth:`MemoryFile.writable` that was frozen (:func:`freeze`).

    Raises:
        MisusedFile: the child took pages away, whose reading could end this process.
        SandboxError: it is still open to writing.
    """
    if is_open_to_writing(view):
        raise SandboxError("a memory file is read that a child could still write")
    fd = descriptor_of(view)
    if fd is None or os.lseek(fd, 0, os.SEEK_HOLE) != view.nbytes:
        raise MisusedFile("a confined child made holes in the memory file that it was to write")
    return bytes(view)


def check_sealed(fd: int, length: int) -> None:
    """Check that a descriptor is an immutable memory file of ``length`` bytes without holes.

    Raises:
        SandboxError: it is not.
    """
    try:
        sealed = fcntl.fcntl(fd, fcntl.F_GET_SEALS) & _SEALS == _SEALS
        facts = os.fstat(fd)
        plain = stat.S_ISREG(facts.st_mode) and os.fstatvfs(fd).f_bsize == mmap.PAGESIZE
        valid = sealed and plain and facts.st_size == length > 0 and os.lseek(fd, 0, os.SEEK_HOLE) == length
    except OSError as error:
        raise SandboxError(f"a confined child passed what is no memory file: {error.strerror}") from error
    if not valid:
        raise SandboxError(f"a confined child passed what is no sealed memory file of {length} bytes")


def seal(view: memoryview) -> int | None:
    """A new sealed memory file with these bytes; None if this process may not make one, or not of this size."""
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
    """The kept descriptor of a memory file if ``view`` shows all of it; None for other memory."""
    base = view.obj
    if isinstance(base, MemoryFile) and view.nbytes == len(base):
        return base.descriptor
    return None


def same_bytes(a: Blob, b: Blob) -> bool:
    """Whether two blobs hold the same bytes, some twenty times as fast as Python's comparison of views."""
    if len(a) != len(b):
        return False
    if isinstance(a, bytes) and isinstance(b, bytes):
        return a == b
    import numpy as np

    first, second = (np.frombuffer(blob, np.uint8) for blob in (a, b))
    return bool(_memcmp(first.ctypes.data, second.ctypes.data, len(a)) == 0)


_memcmp = ctypes.CDLL(None).memcmp
_memcmp.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
