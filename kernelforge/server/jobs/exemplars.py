"""Exemplars of runs: evaluated candidates of a run's jobs, for prompts that show some (CUDA-L1, CUDA-L2, CUDA-LLM).

A row enters in the transaction that ends a job, so a kill loses none. A caller's jobs make a caller's exemplars: two
that use the same name for a run do not see each other's candidates. Duplicates by normalised text and by PTX, and what
exceeds the capacity, are removed when exemplars are read: fingerprints cost milliseconds, which the end of a job has
not.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from kernelforge.records import (
    Attempt,
    Candidate,
    Evaluation,
    Fingerprint,
    Operator,
    Profile,
    Reward,
    Verdict,
)
from kernelforge.search.base import score_of
from kernelforge.search.contrast import ContrastOptions, bucketed
from kernelforge.search.novelty import fingerprints
from kernelforge.server.base import LRUCache
from kernelforge.server.jobs.job_store import Batch, JobStore, KeptExemplar, NewExemplar
from kernelforge.store.database import readable

CAPACITY = 64
"""Exemplars of a task that a run keeps by default. Ours: CUDA-L1 does not say how many it keeps."""
_CACHED = 2_000


class ExemplarKey(NamedTuple):
    caller: str
    run: str
    task: str
    """Digest."""


def exemplar_of(key: ExemplarKey, work: int, evaluation: Evaluation) -> NewExemplar | None:
    """The row of an evaluated candidate; None if it is no example: nothing was evaluated, no value was compared at its
    full size, or it has host code, which a prompt for device code and a plan does not show.

    Args:
        work: number of its evaluation task.
    """
    nothing = evaluation.verdict is Verdict.INFRA or evaluation.stage == "parse" or evaluation.uncompared
    if nothing or evaluation.lane == "modelnew":
        return None
    right = evaluation.verdict is Verdict.OK
    return NewExemplar(*key, work, evaluation.candidate, right, score_of(evaluation))


class _Row(NamedTuple):
    id: int
    work: int
    right: bool
    text: str | None
    ptx: str | None


class Exemplars:
    """Exemplars of all runs, over the job store. Used from one event loop; it reads in threads.

    Args:
        fingerprint: of the evaluations that this server makes; those of another device are not shown with its own.
    """

    def __init__(self, store: JobStore, fingerprint: Fingerprint) -> None:
        self._store = store
        self._reader = store.reader()
        self._device = (fingerprint.device, fingerprint.gpu)
        self._attempts: LRUCache[tuple[int, int], Attempt] = LRUCache(_CACHED)
        self._lock = asyncio.Lock()
        """One reader at a time: it also removes."""

    def close(self) -> None:
        self._reader.close()

    async def of(self, key: ExemplarKey, capacity: int) -> list[Attempt]:
        """The right candidates of a task, oldest first, at most ``capacity``; the latest failed ones where none is.

        Raises:
            StoreError: the database cannot be used.
        """
        async with self._lock:
            attempts, changes = await asyncio.to_thread(self._settled, key, capacity)
            if changes:
                await asyncio.shield(self._store.commit(changes))
        return attempts

    def _settled(self, key: ExemplarKey, capacity: int) -> tuple[list[Attempt], Batch]:
        rows = [
            _Row(*row)
            for row in self._reader.tuples(
                "SELECT id, work, right, text, ptx FROM exemplars WHERE caller = ? AND run = ? AND task = ? "
                "ORDER BY id",
                key,
            )
        ]
        right = [row for row in rows if row.right]
        here = [attempt for row in right or rows if (attempt := self._attempt(key, row)) is not None]
        if not right:
            return here, Batch()
        marked, distinct = _distinct(here, {row.id: row for row in right})
        kept = evicted(distinct, capacity)
        remaining = {attempt.number for attempt in kept}
        changes = Batch(
            kept_exemplars=[mark for mark in marked if mark.id in remaining],
            dropped_exemplars=[attempt.number for attempt in here if attempt.number not in remaining]
            + [row.id for row in rows if not row.right],
        )
        return kept, changes

    def _attempt(self, key: ExemplarKey, row: _Row) -> Attempt | None:
        """An exemplar as an attempt with its row as its number; None if it is another device's."""
        cached = self._attempts.get((row.id, row.work))
        if cached is None:
            rows = self._reader.tuples(
                "SELECT task, source, plan, choices, evaluation, profile FROM works WHERE id = ? AND state = 'done'",
                (row.work,),
            )
            if not rows:
                return None
            name, source, plan, choices, evaluation, profile = rows[0]
            with readable(self._store.path, f"exemplar {row.id}"):
                evaluated = Evaluation.model_validate_json(evaluation)
                cached = Attempt(
                    id=f"{key.run}/{name}/{row.id:02d}",
                    run=key.run,
                    task=name,
                    number=row.id,
                    operator=Operator.SEED,
                    candidate=Candidate(source=source, plan=plan, choices=json.loads(choices)),
                    evaluation=evaluated,
                    profile=None if profile is None else Profile.model_validate_json(profile),
                    reward=Reward(policy="", value=None, components={}),
                    accepted=False,
                    started="",
                    seconds=0.0,
                )
            self._attempts.put((row.id, row.work), cached)
        made = cached.evaluation.fingerprint
        return cached if (made.device, made.gpu) == self._device else None


def _distinct(attempts: Sequence[Attempt], rows: dict[int, _Row]) -> tuple[list[KeptExemplar], list[Attempt]]:
    """Attempts without those whose text or PTX an earlier one has, and marks for rows without fingerprints.

    Of two that are the same, the one with a time is kept, else the earlier.
    """
    marks: list[KeptExemplar] = []
    kept: list[Attempt] = []
    seen: set[str] = set()
    for attempt in sorted(attempts, key=lambda attempt: (score_of(attempt.evaluation) is None, attempt.number)):
        row = rows[attempt.number]
        names: Sequence[str] = (row.text, *((row.ptx,) if row.ptx else ())) if row.text else fingerprints(attempt)
        if not seen.isdisjoint(names):
            continue
        seen.update(names)
        kept.append(attempt)
        if row.text is None:
            marks.append(KeptExemplar(names[0], names[1] if len(names) > 1 else None, row.id))
    return marks, sorted(kept, key=lambda attempt: attempt.number)


def evicted(attempts: Sequence[Attempt], capacity: int) -> list[Attempt]:
    """Attempts without those that exceed the capacity: the oldest of the fullest speed bucket, one after the other.

    Buckets are those of ``contrast``, so examples of every speed stay; those without a time are one bucket. The fastest
    stays. Ours: CUDA-L1 does not evict.
    """
    kept = list(attempts)
    if len(kept) <= capacity:
        return kept
    bucket_of: dict[int, float | None] = {attempt.number: None for attempt in kept}
    buckets = bucketed(kept, ContrastOptions().bucket)
    for bucket in buckets:
        bucket_of.update({attempt.number: bucket.low for attempt in bucket.attempts})
    fastest = max(kept, key=lambda attempt: _speed(attempt), default=None)
    while len(kept) > capacity:
        sizes = Counter(bucket_of[attempt.number] for attempt in kept)
        spare = [attempt for attempt in kept if attempt is not fastest or len(kept) == 1]
        largest = max(sizes[bucket_of[attempt.number]] for attempt in spare)
        kept.remove(next(attempt for attempt in spare if sizes[bucket_of[attempt.number]] == largest))
    return kept


def _speed(attempt: Attempt) -> float:
    value = score_of(attempt.evaluation)
    return float("-inf") if value is None else value
