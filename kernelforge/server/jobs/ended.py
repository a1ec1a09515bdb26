"""Jobs that ended with an evaluation, read from ``server.db`` beside a gateway or without one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from kernelforge.client.wire import RewardResult
from kernelforge.errors import UsageError
from kernelforge.records import Evaluation
from kernelforge.server.base import DATABASE_NAME
from kernelforge.server.jobs.schema import SERVER
from kernelforge.store.database import Database, as_text, readable

_PAGE = 500
"""Jobs that are held in memory at a time; there may be very many."""


class EndedJob(NamedTuple):
    """What a reward can be computed from again."""

    id: str
    task: str
    """``suite/name``."""
    policy: str
    reward: float | None
    """As it was answered; None for trouble."""
    source: str | None
    evaluation: Evaluation


def ended_jobs(folder: Path, run_id: str | None = None) -> Iterator[EndedJob]:
    """Jobs that an evaluation answered, in the order of submission; those of one run if it is named.

    Raises:
        StoreError: ``server.db`` cannot be read.
        UsageError: there is none, or it holds no job of that run.
    """
    if not (folder / DATABASE_NAME).is_file():
        raise UsageError(
            f"no reward server has kept jobs in {folder}: start one with 'kernelforge serve', or name another folder "
            "with --results"
        )
    database = Database(folder / DATABASE_NAME, create=False, read_only=True, schema=SERVER)
    try:
        rows = database.tuples("SELECT DISTINCT run FROM jobs ORDER BY run")
        with readable(database.path, "names of runs"):
            known = [as_text(run) for (run,) in rows]
        if run_id is not None and run_id not in known:
            raise UsageError(f"{database.path} has no job of run '{run_id}'; it has: {', '.join(known) or 'none'}")
        after = -1
        while True:
            rows = database.tuples(
                "SELECT jobs.seq, jobs.id, jobs.task, jobs.policy, jobs.result, works.source, works.evaluation "
                "FROM jobs JOIN works ON works.id = jobs.work "
                "WHERE jobs.seq > ? AND (? IS NULL OR jobs.run = ?) "
                "AND json_extract(jobs.result, '$.verdict') IS NOT NULL AND works.evaluation IS NOT NULL "
                "ORDER BY jobs.seq LIMIT ?",
                (after, run_id, run_id, _PAGE),
            )
            for _, name, task, policy, result, source, evaluation in rows:
                with readable(database.path, f"job {name}"):
                    found = RewardResult.model_validate_json(result)
                    made = Evaluation.model_validate_json(evaluation)
                    job = EndedJob(as_text(name), as_text(task), as_text(policy), found.reward, source, made)
                yield job
            if len(rows) < _PAGE:
                return
            after = rows[-1][0]
    finally:
        database.close()
