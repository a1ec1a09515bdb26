"""Resolve a request's task: by name, by digest, or by the text of its file. Nothing is opened or executed."""

from __future__ import annotations

import hashlib
from typing import NamedTuple

from kernelforge.records import Task
from kernelforge.server.base import RequestRejected
from kernelforge.tasks.catalogue import Catalogue
from kernelforge.tasks.constants import plain_text


class Registered(NamedTuple):
    """A task that is offered."""

    name: str
    """``suite/name``."""
    task: Task
    digest: str


def reference_hash(text: str) -> str:
    """SHA-256 of a task's file, in hex; ends of lines and space around the text do not count."""
    return hashlib.sha256(plain_text(text).strip().encode()).hexdigest()


class Registry:
    """The tasks of a catalogue by all that names them."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._by_name: dict[str, Registered] = {}
        self._by_digest: dict[str, Registered] = {}
        self._by_code: dict[str, Registered] = {}
        for suite in catalogue.names:
            for task in catalogue.tasks(suite):
                one = Registered(f"{suite}/{task.name}", task, task.digest)
                self._by_name[one.name] = one
                self._by_digest.setdefault(one.digest, one)
                self._by_code.setdefault(reference_hash(task.source), one)
        for task in catalogue.tasks(catalogue.default):
            self._by_name.setdefault(task.name, self._by_name[f"{catalogue.default}/{task.name}"])

    def of_digest(self, digest: str) -> Registered | None:
        return self._by_digest.get(digest)

    def find(self, reference: str | None, reference_code: str | None = None) -> Registered:
        """
        Raises:
            RequestRejected: 422: it is not registered, or the code is another task's.
        """
        if reference is None:
            return self._of_code(reference_code or "")
        found = self._by_name.get(reference) or self._by_digest.get(reference)
        if found is None:
            raise RequestRejected(
                422, "unknown_task", f"there is no task {reference[:80]!r} here; GET /v1/tasks lists those there are"
            )
        if reference_code is not None and reference_hash(reference_code) != reference_hash(found.task.source):
            raise RequestRejected(
                422, "other_reference", f"the reference code is not that of {found.name}; nothing of it was executed"
            )
        return found

    def _of_code(self, code: str) -> Registered:
        found = self._by_code.get(reference_hash(code))
        if found is None:
            raise RequestRejected(
                422,
                "unknown_reference",
                "the reference code is no registered task's, and was not executed; name a task, or offer its suite "
                "when the server is started",
            )
        return found
