"""Compiled candidates: PTX, cubin and build record of one, and the cache of them on disk."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import os
import tempfile
import threading
import zlib
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from kernelforge.records import Build
from kernelforge.utils.atomic_files import exclusive


@dataclass(frozen=True)
class Artifact:
    """A good build with its code. ``ptx`` is text, ``cubin`` an ELF for ``build.arch``."""

    build: Build
    ptx: bytes
    cubin: bytes

    def symbol(self, expression: str) -> str:
        """Lowered name of a kernel the plan launches as ``expression``."""
        for kernel in self.build.kernels:
            if kernel.expression == expression:
                return kernel.symbol
        raise KeyError(expression)


_MAGIC = b"KFB1"
_MEMORY_ENTRIES = 256
_MEMORY_BYTES = 256 << 20
_WRITES_BETWEEN_PRUNES = 200


class BuildCache:
    """A folder of builds, with the latest also in memory. Safe across threads and processes.

    Args:
        folder: made when it is missing; None keeps builds in memory only.
        max_bytes: the oldest entries go when the folder outgrows this.
    """

    def __init__(self, folder: Path | None, *, max_bytes: int = 4 << 30) -> None:
        self.folder = folder
        self.max_bytes = max_bytes
        self._until_prune = 0
        self.write_error: str | None = None
        """Error of the last write, such as a full disk or a read-only folder; None if it succeeded."""
        self._memory: OrderedDict[str, Artifact] = OrderedDict()
        self._lock = threading.Lock()
        self._keys: dict[str, tuple[threading.Lock, int]] = {}

    def get(self, key: str) -> Artifact | None:
        """The build stored under ``key``; None if there is none or it is damaged (then it is removed)."""
        with self._lock:
            if key in self._memory:
                self._memory.move_to_end(key)
                return self._memory[key]
        if self.folder is None:
            return None
        path = self._path(key)
        try:
            raw = path.read_bytes()
        except OSError:
            return None
        artifact = decoded(raw, key)
        if artifact is None:
            with contextlib.suppress(OSError):
                path.unlink()
            return None
        self._remember(key, artifact)
        return artifact

    def put(self, key: str, artifact: Artifact) -> None:
        """Store a build. A failed write sets :attr:`write_error`; the build stays in memory."""
        self._remember(key, artifact)
        if self.folder is None:
            return
        path = self._path(key)
        temporary = ""
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".writing-")
            with os.fdopen(handle, "wb") as file:
                file.write(encoded(artifact))
            os.replace(temporary, path)
            self.write_error = None
            self._prune()
        except OSError as error:
            self.write_error = f"the build cache in {self.folder} cannot be written: {error.strerror or error}"
            if temporary:
                with contextlib.suppress(OSError):
                    os.unlink(temporary)

    @contextlib.contextmanager
    def exclusive(self, key: str) -> Iterator[None]:
        """Hold ``key`` alone, among the threads of this process and among processes that share the folder."""
        with self._lock:
            lock, users = self._keys.get(key, (threading.Lock(), 0))
            self._keys[key] = (lock, users + 1)
        try:
            with lock, self._file_lock(key):
                yield
        finally:
            with self._lock:
                users = self._keys[key][1] - 1
                if users:
                    self._keys[key] = (lock, users)
                else:
                    del self._keys[key]

    def _file_lock(self, key: str) -> contextlib.AbstractContextManager[None]:
        """A lock file per first byte of the key: few files, and a rare wait that was not needed."""
        return exclusive(None if self.folder is None else self.folder / "locks" / key[:2])

    def _prune(self) -> None:
        """Drop the oldest entries of a folder that is too large, down to three quarters; not at every write."""
        with self._lock:
            self._until_prune -= 1
            if self._until_prune >= 0:
                return
            self._until_prune = _WRITES_BETWEEN_PRUNES
        assert self.folder is not None
        entries = []
        for path in self.folder.glob("*/*.build"):
            with contextlib.suppress(OSError):
                facts = path.stat()
                entries.append((facts.st_mtime_ns, facts.st_size, path))
        total = sum(size for _, size, _ in entries)
        if total <= self.max_bytes:
            return
        for _, size, path in sorted(entries):
            with contextlib.suppress(OSError):
                path.unlink()
            total -= size
            if total <= self.max_bytes * 3 // 4:
                return

    def _path(self, key: str) -> Path:
        assert self.folder is not None
        return self.folder / key[:2] / f"{key}.build"

    def _remember(self, key: str, artifact: Artifact) -> None:
        with self._lock:
            self._memory[key] = artifact
            self._memory.move_to_end(key)
            while len(self._memory) > _MEMORY_ENTRIES or self._size() > _MEMORY_BYTES:
                self._memory.popitem(last=False)

    def _size(self) -> int:
        return sum(len(artifact.ptx) + len(artifact.cubin) for artifact in self._memory.values())


def encoded(artifact: Artifact) -> bytes:
    """A build as bytes, as in the cache's files."""
    head = json.dumps(
        {"build": artifact.build.model_dump(mode="json"), "ptx": len(artifact.ptx), "cubin": len(artifact.cubin)}
    ).encode()
    body = len(head).to_bytes(4, "little") + head + artifact.ptx + artifact.cubin
    return _MAGIC + hashlib.sha256(body).digest() + body


def decoded(raw: bytes, key: str) -> Artifact | None:
    """The build of :func:`encoded` bytes; None if they are damaged, or not those of ``key``."""
    body = raw[36:]
    if raw[:4] != _MAGIC or hashlib.sha256(body).digest() != raw[4:36]:
        return None
    try:
        size = int.from_bytes(body[:4], "little")
        head = json.loads(body[4 : 4 + size])
        ptx_end = 4 + size + head["ptx"]
        build = Build.model_validate(head["build"])
        artifact = Artifact(build, body[4 + size : ptx_end], body[ptx_end : ptx_end + head["cubin"]])
    except (ValueError, KeyError, TypeError, ValidationError):
        return None
    return artifact if build.key == key else None


def packed_build(artifact: Artifact) -> str:
    """A build as text."""
    return base64.b85encode(zlib.compress(encoded(artifact), 1)).decode()


def unpacked_build(text: str, key: str) -> Artifact | None:
    """The build of a text of :func:`packed_build`; None if it is damaged."""
    try:
        return decoded(zlib.decompress(base64.b85decode(text)), key)
    except (ValueError, zlib.error):
        return None
