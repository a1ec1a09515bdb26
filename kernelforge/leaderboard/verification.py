"""Verification records: files with the result of checking an entry.

A record is bound to one entry by its digest and says what was checked, and where. It is not a signature: the maintainer
of a board makes the records, or trusts their author.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Annotated, Final, Literal

from pydantic import Field, StringConstraints, model_validator

from kernelforge.leaderboard.entry import Digest, EntryFile, Line, RunId, TaskName, Timestamp
from kernelforge.records import Fingerprint, Record, Verdict
from kernelforge.report.views.board import Verified

FORMAT: Final = "kernelforge-verification/1"

Text = Annotated[str, StringConstraints(max_length=2_000)]


class Check(Record):
    """One check that needs no execution."""

    name: Line
    ok: bool
    detail: Text = ""
    """The compared value, or the disagreement."""


class TaskCheck(Record):
    """Result of one task."""

    task: TaskName
    status: Literal["agrees", "differs", "not re-run"]
    reason: Text
    """Compared values, differences, or the reason for not evaluating it again."""
    verdict: Verdict | None = None
    """Verdict of the local evaluation."""
    speedup: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    seconds: float = Field(default=0.0, ge=0, allow_inf_nan=False)

    @model_validator(mode="after")
    def _agrees_when_right(self) -> TaskCheck:
        if self.status == "agrees" and self.verdict is not Verdict.OK:
            raise ValueError(f"what came to {self.verdict} does not agree with the best of an entry")
        return self


class Verification(Record):
    """The record of one verification."""

    format: Literal["kernelforge-verification/1"] = FORMAT
    entry: Digest
    """Digest of the checked entry."""
    run: RunId
    when: Timestamp
    """UTC, ISO 8601."""
    kernelforge: Line
    host: Line
    """System and processor."""
    fingerprint: Fingerprint | None
    """Fingerprint of the local evaluations; None without any."""
    seed: int = Field(ge=0)
    """Seed of the sample. The inputs of the evaluations have another secret seed."""
    sample: int = Field(ge=0)
    """Number of sampled tasks."""
    checks: tuple[Check, ...] = Field(max_length=100)
    tasks: tuple[TaskCheck, ...] = Field(max_length=20_000)

    @model_validator(mode="after")
    def _somewhere(self) -> Verification:
        if self.rerun and self.fingerprint is None:
            raise ValueError("fingerprint: tasks were evaluated again, and it does not say where")
        return self

    @model_validator(mode="after")
    def _each_task_once(self) -> Verification:
        if len({check.task for check in self.tasks}) != len(self.tasks):
            raise ValueError("tasks: a task is listed twice")
        return self

    @property
    def rerun(self) -> int:
        """Tasks whose best candidate was evaluated again."""
        return sum(check.status != "not re-run" for check in self.tasks)

    @property
    def agrees(self) -> bool:
        """Whether all checks agree."""
        return all(check.ok for check in self.checks) and all(task.status != "differs" for task in self.tasks)

    def text(self) -> str:
        """Text of the file."""
        return self.model_dump_json(indent=1) + "\n"


def contradiction(record: Verification, entry: EntryFile) -> str | None:
    """Reason why a record does not belong to the entry that it names; None where it does."""
    if record.run != entry.run.id:
        return f"run: it is of run {record.run}, the entry of {entry.run.id}"
    if [check.task for check in record.tasks] != [row.task for row in entry.tasks]:
        return "tasks: they are not those of the entry"
    solved = {row.task for row in entry.tasks if row.best is not None}
    repeated = [check.task for check in record.tasks if check.status != "not re-run"]
    nothing = next((task for task in repeated if task not in solved), None)
    if nothing is not None:
        return f"tasks: {nothing} was evaluated again, and the entry has nothing for it"
    devices = {fingerprint.gpu or fingerprint.device for fingerprint in entry.fingerprints}
    here = record.fingerprint
    if repeated and here is not None and (here.gpu or here.device) not in devices:
        return f"fingerprint: evaluated on {here.gpu or here.device}, the entry is of {', '.join(sorted(devices))}"
    return None


def _weight(record: Verification) -> tuple[bool, int, str]:
    """Sort key: records that differ above all others, then those with the most tasks, then the latest."""
    return not record.agrees, record.rerun, datetime.fromisoformat(record.when).isoformat()


def verified(entry: EntryFile, records: Iterable[Verification]) -> Verified | None:
    """Summary of the records about an entry: a record that differs has priority, then the most thorough one."""
    about = [record for record in records if record.entry == entry.digest]
    if not about:
        return None
    best = max(about, key=_weight)
    fingerprint = best.fingerprint
    where = best.host if fingerprint is None else f"{fingerprint.gpu or fingerprint.device} on {best.host}"
    return Verified(
        by=f"KernelForge {best.kernelforge}, {where}",
        when=best.when,
        rerun=best.rerun,
        tasks=len(entry.tasks),
        agree=best.agrees,
    )
