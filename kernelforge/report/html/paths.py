"""Paths of pages and links between them, safe for any task name and file system."""

from __future__ import annotations

import hashlib
import posixpath
import re
from functools import lru_cache
from typing import Protocol

INDEX = "index.html"
LEADERBOARD = "leaderboard.html"
LIVE = "live.html"
TRAINING = "training.html"

_PLAIN = re.compile(r"[a-z0-9][a-z0-9_\-]*(?:\.[a-z0-9_\-]+)*")
_DERIVED = re.compile(r".*-[0-9a-f]{10}")
_RESERVED = re.compile(r"(?:con|prn|aux|nul|com[0-9]|lpt[0-9])(?:\..*)?")
_LONGEST = 60


@lru_cache(maxsize=65_536)
def slug(name: str) -> str:
    """``name`` as one part of a path. A plain name is unchanged; another keeps its plain characters and ends with ten
    digits of its SHA-256, so that different names stay different."""
    plain = _PLAIN.fullmatch(name) and len(name) <= _LONGEST
    if plain and not _DERIVED.fullmatch(name) and not _RESERVED.fullmatch(name):
        return name
    readable = re.sub(r"[^a-z0-9_]+", "-", name[:_LONGEST].lower())[:40].strip("-")
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:10]
    return f"{readable or 'x'}-{digest}"


def run_page(run: str) -> str:
    return f"runs/{slug(run)}/index.html"


def integrity_page(run: str) -> str:
    return f"runs/{slug(run)}/integrity.html"


def task_page(run: str, task: str) -> str:
    return f"runs/{slug(run)}/{slug(task)}/index.html"


def attempt_page(run: str, task: str, number: int) -> str:
    return f"runs/{slug(run)}/{slug(task)}/{number:02d}.html"


def compare_page(a: str, b: str) -> str:
    return f"compare/{slug(a)}..{slug(b)}.html"


def training_page(run: str) -> str:
    """Page of a run of the reward server."""
    return f"training/{slug(run)}.html"


def data_file(name: str, suffix: str) -> str:
    return f"data/{slug(name)}.{suffix}"


_relative = lru_cache(maxsize=4096)(posixpath.relpath)


class Links(Protocol):
    """Addresses of other pages and of parts of the page itself."""

    def to(self, path: str, part: str = "") -> str:
        """Address of a page, or of a part of it, for ``href``."""

    def id(self, part: str) -> str:
        """Id of a part of this page, unique in the document."""


class FolderLinks:
    """Relative addresses between the files of a folder."""

    def __init__(self, page: str) -> None:
        self._page = page
        self._folder = posixpath.dirname(page) or "."

    def to(self, path: str, part: str = "") -> str:
        fragment = f"#{part}" if part else ""
        if path == self._page and part:
            return fragment
        return _relative(path, self._folder) + fragment

    def id(self, part: str) -> str:
        return part


class OneFileLinks:
    """Fragments between the sections of one file.

    Args:
        twin: a page that is left out because the front page is equal.
    """

    def __init__(self, page: str, twin: str | None = None) -> None:
        self._page = page
        self._twin = twin

    def to(self, path: str, part: str = "") -> str:
        return f"#{section_id(INDEX if path == self._twin else path)}" + (f"--{part}" if part else "")

    def id(self, part: str) -> str:
        return f"{section_id(self._page)}--{part}"


def section_id(path: str) -> str:
    """Id of a page's section in the one-file form."""
    return "p-" + path.removesuffix(".html").replace("/", ":")
