"""Pages of the runs of a reward server, from the jobs in its database."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from kernelforge.records import UNCOMPARED
from kernelforge.report.figures.training import draw_training
from kernelforge.report.formatting import duration, number, percent
from kernelforge.report.html import paths
from kernelforge.report.html.paths import Links
from kernelforge.report.html.rendering import charts_of
from kernelforge.report.html.site import Page
from kernelforge.report.html.tables import html_table
from kernelforge.report.tables.base import Column, Table
from kernelforge.report.views.training import TrainingJob, TrainingView, training_view
from kernelforge.server.base import DATABASE_NAME
from kernelforge.server.jobs.job_store import SERVER
from kernelforge.server.jobs.results import AS_SENT, READING
from kernelforge.store.database import Database, as_text, readable


class TrainingPages:
    """Runs of the reward server of a results folder; read also while the server writes.

    Raises:
        StoreError: there is no ``server.db``, or it cannot be read.
    """

    def __init__(self, folder: Path) -> None:
        self._database = Database(folder / DATABASE_NAME, SERVER, create=False, read_only=True)

    def close(self) -> None:
        self._database.close()

    def revision(self) -> int:
        """A number that changes when a server wrote.

        Raises:
            StoreError: it cannot be read.
        """
        [(version,)] = self._database.tuples("PRAGMA data_version")
        return int(version)

    def runs(self) -> list[str]:
        """Names of the runs, the one that submitted last first.

        Raises:
            StoreError: they cannot be read.
        """
        rows = self._database.tuples("SELECT run FROM jobs GROUP BY run ORDER BY max(seq) DESC")
        with readable(self._database.path, "names of runs"):
            return [as_text(run) for (run,) in rows]

    def view(self, run: str) -> TrainingView:
        """The data of a run's page.

        Raises:
            StoreError: its jobs cannot be read.
        """
        rows = self._database.tuples(_JOBS, (run,))
        with readable(self._database.path, f"jobs of run {run}"):
            return training_view(run, [_job(*row) for row in rows])

    def pages(self, runs: list[str]) -> list[Page]:
        """A page that lists runs, and one of each; of a single run, its page alone. They read jobs when rendered."""
        return list(self._pages(runs))

    def _pages(self, runs: list[str]) -> Iterator[Page]:
        if len(runs) > 1:
            yield Page(paths.TRAINING, "Training", "trainings.html.j2", partial(self._list, runs))
        for run in runs:
            path = paths.TRAINING if len(runs) == 1 else paths.training_page(run)
            above = () if len(runs) == 1 else (("Training", paths.TRAINING),)
            yield Page(path, f"Training {run}", "training.html.j2", partial(self._run, run), above)

    def _list(self, runs: list[str], links: Links) -> dict[str, Any]:
        table = Table.of(
            "Runs of the reward server",
            (
                Column("run", "run"),
                Column("queued", "queued", number, "right"),
                Column("ended", "ended", number, "right"),
                Column("groups", "groups", number, "right"),
            ),
            [self.view(run) for run in runs[:MOST_LISTED]],
        )
        return {
            "table": html_table(table, {"run": lambda row: links.to(paths.training_page(row["run"]))}),
            "more": len(runs) - MOST_LISTED,
        }

    def _run(self, run: str, links: Links) -> dict[str, Any]:
        view = self.view(run)
        verdicts = Table.of(
            "Verdicts",
            (
                Column("verdict", "verdict"),
                Column("jobs", "jobs", number, "right"),
                Column("share", "share", percent, "right"),
            ),
            view.verdicts,
        )
        slowest = Table.of(
            "Tasks by median seconds of an evaluation, the slowest first",
            (
                Column("task", "task"),
                Column("evaluated", "evaluated", number, "right"),
                Column("median_s", "median", duration, "right"),
                Column("longest_s", "longest", duration, "right"),
                Column("correct", "correct", percent, "right"),
            ),
            view.slowest,
        )
        readings = Table.of(
            "How candidates were read",
            (
                Column("reading", "candidates"),
                Column("jobs", "jobs", number, "right"),
                Column("correct", "correct", percent, "right"),
            ),
            view.readings,
        )
        notes = Table.of(
            "Notes about conversions", (Column("note", "note"), Column("jobs", "jobs", number, "right")), view.notes
        )
        return {
            "view": view,
            "charts": charts_of(draw_training(view), links).values(),
            "verdicts": html_table(verdicts),
            "slowest": html_table(slowest),
            "readings": html_table(readings),
            "notes": html_table(notes),
        }


MOST_LISTED = 50
"""Runs on the page that lists them: the ones that submitted last."""

_JOBS = """
SELECT task, policy_version, group_id, status = 'queued',
  iif(json_extract(result, '$.cached'), NULL, finished_at - started_at),
  CASE WHEN status = 'queued' THEN NULL WHEN json_extract(result, '$.outcome') = 'withheld' THEN 'withheld'
    WHEN status = 'finished'
    THEN coalesce(json_extract(result, '$.verdict'), json_extract(result, '$.error.code'), status) ELSE status END,
  json_extract(result, '$.uncompared'), json_extract(result, '$.reward'),
  json_extract(result, '$.components.correct'),
  coalesce(json_extract(result, '$.components.speedup'), json_extract(result, '$.components.predicted')),
  reading, json_extract(result, '$.equals') IS NOT NULL
FROM jobs WHERE run = ? ORDER BY seq
"""


def _job(
    task: object,
    version: int | None,
    group: str | None,
    queued: int,
    seconds: float | None,
    verdict: str | None,
    uncompared: int | None,
    reward: float | None,
    correct: float | None,
    speedup: float | None,
    reading: str | None,
    equal: int,
) -> TrainingJob:
    is_correct = correct == 1
    read = AS_SENT if reading is None else READING.validate_json(reading)
    return TrainingJob(
        task=as_text(task),
        policy_version=version,
        group=group,
        queued=bool(queued),
        seconds=seconds,
        verdict=UNCOMPARED if uncompared else verdict,
        reward=reward,
        correct=is_correct,
        faster=is_correct and speedup is not None and speedup > 1,
        reading="converted" if read.converted else read.lane,
        notes=read.notes,
        equal=bool(equal),
    )
