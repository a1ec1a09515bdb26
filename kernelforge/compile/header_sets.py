"""Precompiled headers of the sources that begin with them.

NVRTC takes seconds to read CUB, CuTe or cooperative groups, and a few tenths of that from a precompiled header. It maps
such a file at the address where it was made, so a file serves the children of one zygote (NVRTC documentation,
*Precompiled Headers*). A file is made from ``#include`` lines alone, in a confined child, and children may read it and
not write it: no candidate has a part in what others are compiled with.
"""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
import threading
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
_PREFIX = "kernelforge-headers-"
_INCLUDE = re.compile(r"#\s*include\s*<([\w./+-]+)>")


@dataclass(frozen=True)
class Headers:
    """The headers that a source includes before anything else, for one architecture."""

    names: tuple[str, ...]
    arch: str

    @classmethod
    def of(cls, source: str, arch: str) -> tuple[Headers, str]:
        """The headers of a source, and the source that begins with :attr:`text` instead of its own ``#include`` lines.

        The rest keeps its line numbers.
        """
        names: list[str] = []
        lines = source.split("\n")
        taken, in_comment = 0, False
        for number, line in enumerate(lines, 1):
            code, in_comment = without_comments(line, in_comment)
            if not code.strip():
                continue
            match = _INCLUDE.fullmatch(code.strip())
            if match is None or in_comment:
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
        self._folder: Path | None = None
        self._slow_builds: dict[Headers, int] = {}
        self._files: dict[tuple[Headers, int | None], Path] = {}
        self._threads: list[threading.Thread] = []
        self.failures: dict[Headers, str] = {}
        """Headers that could not be precompiled, with the reason."""

    @property
    def folder(self) -> Path:
        """The folder of the files; children may read it."""
        with self._lock:
            if self._folder is None:
                _remove_abandoned()
                self._folder = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-"))
                self._folder.chmod(0o755)  # children are other users
            return self._folder

    def file(self, headers: Headers, zygote: int | None) -> Path | None:
        """The file of these headers that children of a zygote can read, if there is one."""
        with self._lock:
            return self._files.get((headers, zygote))

    def count(self, headers: Headers, seconds: float) -> None:
        """Take note of a build without a precompiled header; the last of some slow ones starts making it."""
        if not headers.names or seconds < self._slow_build_s:
            return
        with self._lock:
            self._slow_builds[headers] = self._slow_builds.get(headers, 0) + 1
            if self._slow_builds[headers] != self._builds or self._folder is None:
                return
            thread = threading.Thread(target=self._precompile, args=(headers,), name="precompiled headers", daemon=True)
            self._threads.append(thread)
        thread.start()

    def wait(self) -> None:
        """Wait until no file is being made."""
        with self._lock:
            threads = list(self._threads)
        for thread in threads:
            thread.join()

    def close(self) -> None:
        """Remove the files. The children that make some must have been interrupted."""
        with self._lock:
            folder, self._folder, self._files = self._folder, None, {}
        self.wait()
        if folder is not None:
            remove_tree(str(folder))

    def _precompile(self, headers: Headers) -> None:
        folder = self.folder
        try:
            data, zygote = self._make(headers)
            handle, name = tempfile.mkstemp(dir=folder, suffix=".pch")
            with os.fdopen(handle, "wb") as file:
                os.fchmod(handle, 0o644)
                file.write(data)
        except (KernelForgeError, OSError) as error:
            self.failures[headers] = str(error)
            return
        with self._lock:
            self._files[headers, zygote] = Path(name)
            oldest = next(iter(self._files))
            old = self._files.pop(oldest) if len(self._files) > MOST_FILES else None
        if old is not None:
            # A build that was about to read it reads the headers.
            old.unlink(missing_ok=True)


def _remove_abandoned() -> None:
    """Remove the folders of processes of this user that ended without doing so."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*-*"):
        pid = folder.name.removeprefix(_PREFIX).split("-")[0]
        with contextlib.suppress(OSError):
            if pid.isdigit() and not Path("/proc", pid).exists() and folder.stat().st_uid == os.getuid():
                remove_tree(str(folder))
