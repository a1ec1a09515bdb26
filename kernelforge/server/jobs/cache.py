"""What was evaluated, by content: a part in memory, all of it in the journal.

A key binds candidate, task, evaluator, device and toolchain; the newest evaluation of a key answers. Only evaluations
are kept: trouble of ours is never answered twice.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from kernelforge.client.wire import RewardResult
from kernelforge.errors import StoreError
from kernelforge.records import Evaluation, Origin, Profile, Verdict
from kernelforge.server.jobs.journal import Journal
from kernelforge.store.database import Database, as_text, readable

_LOG = logging.getLogger(__name__)

Key = TypeVar("Key")
Value = TypeVar("Value")


class Recent(Generic[Key, Value]):
    """A mapping that keeps what was used last."""

    def __init__(self, most: int) -> None:
        self._most = max(most, 1)
        self._values: OrderedDict[Key, Value] = OrderedDict()

    def __len__(self) -> int:
        return len(self._values)

    def get(self, key: Key) -> Value | None:
        value = self._values.get(key)
        if value is not None:
            self._values.move_to_end(key)
        return value

    def put(self, key: Key, value: Value) -> None:
        self._values[key] = value
        self._values.move_to_end(key)
        if len(self._values) > self._most:
            self._values.popitem(last=False)

    def drop(self, key: Key) -> None:
        self._values.pop(key, None)


class Known:
    """Which keys may be in the journal. Most that are asked for are new, and a query for each would cost the event loop
    more than all else: it gives up the interpreter lock, and has to wait for it.

    Args:
        sql: a query for all keys.
    """

    def __init__(self, sql: str, journal: Journal) -> None:
        self._sql = sql
        self._hashes = _hashes(journal.read(sql))
        self._added: set[int] | None = None
        """What was added while the rest is read anew."""

    def __len__(self) -> int:
        return len(self._hashes)

    def may_have(self, *key: str) -> bool:
        return hash(key) in self._hashes

    def add(self, *key: str) -> None:
        self._hashes.add(hash(key))
        if self._added is not None:
            self._added.add(hash(key))

    async def refresh(self, reader: Database) -> None:
        """Read all keys anew, so that those which were pruned are forgotten."""
        self._added = set()
        hashes = await asyncio.to_thread(lambda: _hashes(reader.tuples(self._sql)))
        self._hashes = hashes | self._added
        self._added = None


def _hashes(keys: Iterable[tuple[str, ...]]) -> set[int]:
    return {hash(key) for key in keys}


@dataclass(slots=True)
class Scored:
    """A result as one policy makes it of an evaluation, and its JSON."""

    result: RewardResult
    text: str


@dataclass(slots=True)
class Stored:
    """An evaluation that was made, with the results that policies made of it."""

    work: int
    evaluation: Evaluation
    profile: Profile | None
    profiled: bool
    """Whether a profile was asked for."""
    source: str | None
    """Of the candidate; None where the completion held none."""
    finished_at: float
    results: dict[str, Scored] = field(default_factory=dict)

    def answers(self, *, profile: bool, max_age_s: float, now: float) -> bool:
        """Whether a request may be answered by it: the profile is there if one is wanted, and a measured time is no
        older than ``max_age_s``."""
        if profile and not self.profiled and self.evaluation.verdict is Verdict.OK:
            return False
        performance = self.evaluation.performance
        measured = performance is not None and performance.origin is Origin.MEASURED
        return not measured or now - self.finished_at <= max_age_s


_COLUMNS = "id, key, evaluation, profile, profiled, source, finished_at"


class EvaluationCache:
    """Evaluations by key."""

    def __init__(self, journal: Journal, most_in_memory: int) -> None:
        self._journal = journal
        self._by_key: Recent[str, Stored] = Recent(most_in_memory)
        self.known = Known("SELECT key FROM works WHERE state = 'done'", journal)
        self._condemned: set[int] = set()
        """Works that are about to be pruned: nothing may refer to them any more."""

    def newest(self, key: str) -> Stored | None:
        """The newest evaluation of a key."""
        found = self._by_key.get(key)
        if found is None and self.known.may_have(key):
            found = self._load("key = ? AND state = 'done' ORDER BY finished_at DESC LIMIT 1", key)
        return found

    def of_work(self, work: int, key: str | None) -> Stored | None:
        """The evaluation of a work, which may be held under this key."""
        held = None if key is None else self._by_key.get(key)
        return held if held is not None and held.work == work else self._load("id = ? AND state = 'done'", work)

    def put(self, key: str, stored: Stored) -> None:
        """Keep an evaluation in memory. It is, or will be, in the journal too."""
        self._by_key.put(key, stored)
        self.known.add(key)

    def forget(self, works: dict[int, str]) -> None:
        """These works, with their keys, did not get into the journal."""
        for work, key in works.items():
            held = self._by_key.get(key)
            if held is not None and held.work == work:
                self._by_key.drop(key)

    def condemn(self, works: dict[int, str]) -> None:
        """Answer from these works (with their keys) no more."""
        self._condemned.update(works)
        self.forget(works)

    def pruned(self, works: dict[int, str]) -> None:
        """These works were taken out of the journal, or were kept after all."""
        self._condemned.difference_update(works)

    def _load(self, where: str, parameter: str | int) -> Stored | None:
        rows = self._journal.read(f"SELECT {_COLUMNS} FROM works WHERE {where}", (parameter,))
        if not rows or rows[0][0] in self._condemned:
            return None
        work, key, evaluation, profile, profiled, source, finished_at = rows[0]
        try:
            with readable(self._journal.path, f"the evaluation of work {work}"):
                stored = Stored(
                    work=work,
                    evaluation=Evaluation.model_validate_json(evaluation),
                    profile=None if profile is None else Profile.model_validate_json(profile),
                    profiled=bool(profiled),
                    source=None if source is None else as_text(source),
                    finished_at=float(finished_at),
                )
        except StoreError as error:
            _LOG.warning("it is evaluated again: %s", error)
            return None
        if where.startswith("key"):
            self._by_key.put(key, stored)
        return stored
