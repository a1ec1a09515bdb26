"""Precompiled headers of the sources that begin with them.

NVRTC takes seconds to read CUB, CuTe or cooperative groups, and a few tenths of that from a precompiled header. It maps
such a file at the address where it was made, so a file serves the children of one zygote (NVRTC documentation,
*Precompiled Headers*). A file is made from ``#include`` lines alone, in a confined child, and children may read it and
not write it: no candidate has a part in what others are compiled with.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from kernelforge.compile.source import CANDIDATE_FILE, without_comments
from kernelforge.errors import KernelForgeError
from kernelforge.sandbox.shared_memory import Blob
from kernelforge.utils.tree_cleanup import remove_tree

SLOW_BUILD_S = 0.5
"""A build that takes less gains little from precompiled headers."""
BUILDS = 3
"""Slow builds with the same headers before these are precompiled, which takes as long as one or two of them."""
MOST_FILES = 4
"""Files kept at a time. One takes 130 MB (cooperative groups) to 280 MB (CuTe)."""
MOST_COUNTED = 256
"""Sets of headers whose slow builds are counted, the latest."""
MOST_NAMES = 32
"""Headers that are precompiled of one source, the first."""
_PREFIX = "kernelforge-headers-"
_SETTLED_S = 60.0
"""Age from which a folder without a lock counts as abandoned."""
_INCLUDE = re.compile(r"#\s*include\s*<([\w.+-][\w./+-]*)>")


@dataclass(frozen=True)
class Headers:
    """The headers that a source includes before anything else, for one architecture."""

    names: tuple[str, ...]
    arch: str

    @classmethod
    def of(cls, source: str, arch: str) -> tuple[Headers, str]:
        """The headers of a source, and the source that begins with :attr:`text` instead of its own ``#include`` lines.

        The rest keeps its line numbers. A line that a backslash continues ends the search.
        """
        names: list[str] = []
        lines = source.split("\n")
        taken, in_comment = 0, False
        for number, line in enumerate(lines, 1):
            code, in_comment = without_comments(line, in_comment)
            if line.rstrip().endswith("\\"):
                break
            if not code.strip():
                continue
            match = _INCLUDE.fullmatch(code.strip())
            if match is None or in_comment or ".." in match[1].split("/") or len(names) == MOST_NAMES:
                break
            names.append(match[1])
            taken = number
        headers = cls(tuple(names), arch)
        return headers, "\n".join([f'{headers.text}#line {taken + 1} "{CANDIDATE_FILE}"', *lines[taken:]])

    @property
    def text(self) -> str:
        """The beginning of a source that is precompiled."""
        return "".join(f"#include <{name}>\n" for name in self.names) + "#pragma nv_hdrstop\n"


class HeaderSets:
    """Files of precompiled headers. Safe to use from several threads.

    Args:
        make: makes the file of some headers in a child of a zygote; returns it, and the process id of the zygote.
        slow_build_s: builds that take less are not counted.
        builds: slow builds with the same headers before these are precompiled.
    """

    def __init__(
        self,
        make: Callable[[Headers], tuple[Blob, int | None]],
        *,
        slow_build_s: float = SLOW_BUILD_S,
        builds: int = BUILDS,
    ) -> None:
        self._make = make
        self._slow_build_s = slow_build_s
        self._builds = builds
        self._lock = threading.Lock()
        self._closed = False
        self._folder: _Folder | None = None
        self._slow_builds: dict[Headers, int] = {}
        self._files: dict[tuple[Headers, int | None], Path] = {}
        self._threads: dict[Headers, threading.Thread] = {}
        self.failures: dict[Headers, str] = {}
        """Headers that could not be precompiled at the last try, with the reason."""

    @property
    def folder(self) -> Path:
        """The folder of the files; children may read it."""
        with self._lock:
            if self._folder is None:
                self._folder = _Folder()
                self._closed = False
            return self._folder.path

    def file(self, headers: Headers, zygote: int | None) -> Path | None:
        """The file of these headers that children of a zygote can read, if there is one."""
        with self._lock:
            file = self._files.pop((headers, zygote), None)
            if file is not None:
                self._files[headers, zygote] = file  # the latest used is the last
            return file

    def count(self, headers: Headers, seconds: float) -> None:
        """Take note of a build without a precompiled header; the last of some slow ones starts making it."""
        if not headers.names or seconds < self._slow_build_s:
            return
        with self._lock:
            builds = self._slow_builds.pop(headers, 0) + 1
            if builds < self._builds or headers in self._threads or self._folder is None or self._closed:
                self._slow_builds[headers] = builds
                if len(self._slow_builds) > MOST_COUNTED:
                    del self._slow_builds[next(iter(self._slow_builds))]
                return
            thread = threading.Thread(
                target=self._precompile, args=(headers, self._folder.path), name="precompiled headers", daemon=True
            )
            self._threads[headers] = thread
            thread.start()

    @property
    def closed(self) -> bool:
        """Whether no file may be made any more."""
        return self._closed

    def wait(self, interrupt: Callable[[], None] | None = None) -> None:
        """Wait until no file is being made. ``interrupt`` is called again and again until then."""
        with self._lock:
            threads = list(self._threads.values())
        for thread in threads:
            while thread.is_alive():
                if interrupt is not None:
                    interrupt()
                thread.join(None if interrupt is None else 0.05)

    def close(self, interrupt: Callable[[], None]) -> None:
        """Remove the files. ``interrupt`` ends the children that make some."""
        with self._lock:
            self._closed = True
        self.wait(interrupt)
        with self._lock:
            folder, self._folder, self._files = self._folder, None, {}
            self._slow_builds.clear()
        if folder is not None:
            folder.remove()

    def _precompile(self, headers: Headers, folder: Path) -> None:
        path = None
        try:
            data, zygote = self._make(headers)
            handle, name = tempfile.mkstemp(dir=folder, suffix=".pch")
            path = Path(name)
            with os.fdopen(handle, "wb") as file:
                os.fchmod(handle, 0o644)
                file.write(data)
        except (KernelForgeError, OSError) as error:
            if path is not None:
                path.unlink(missing_ok=True)
            with self._lock:
                self.failures[headers] = str(error)
                del self._threads[headers]
            return
        with self._lock:
            self.failures.pop(headers, None)
            # Files of an earlier zygote can be read no more.
            old = [key for key in self._files if key[1] != zygote]
            current = [key for key in self._files if key[1] == zygote]
            old += current[: max(0, len(current) + 1 - MOST_FILES)]
            removed = [self._files.pop(key) for key in old]
            self._files[headers, zygote] = path
            del self._threads[headers]
        for unused in removed:
            # A build that was about to read it reads the headers.
            unused.unlink(missing_ok=True)


class _Folder:
    """A folder of files that is locked while this process uses it."""

    def __init__(self) -> None:
        _remove_abandoned()
        self.path = Path(tempfile.mkdtemp(prefix=_PREFIX))
        self.path.chmod(0o755)  # children are other users
        self._handle = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        fcntl.flock(self._handle, fcntl.LOCK_EX)

    def remove(self) -> None:
        """Remove the folder."""
        remove_tree(str(self.path))
        os.close(self._handle)


def _remove_abandoned() -> None:
    """Remove the folders of processes of this user that ended without doing so."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):
            status = folder.lstat()
            if status.st_uid != os.getuid() or time.time() - status.st_mtime < _SETTLED_S:
                continue
            handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                remove_tree(str(folder))
            finally:
                os.close(handle)
