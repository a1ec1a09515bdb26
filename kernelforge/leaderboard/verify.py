"""Verification of an entry: checks of its file, then a sample of its tasks evaluated again."""

from __future__ import annotations

import platform
import random
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

from kernelforge.devices import default_device
from kernelforge.errors import KernelForgeError
from kernelforge.evaluation.pool import EvaluatorPool
from kernelforge.leaderboard.checks import solved_rows, static_checks
from kernelforge.leaderboard.entry import EntryFile, TaskRow
from kernelforge.leaderboard.rerun import rerun
from kernelforge.leaderboard.verification import TaskCheck, Verification
from kernelforge.records import Fingerprint, MeasureSettings
from kernelforge.tasks.suites import Suite, list_suites, load_suite
from kernelforge.version import __version__

Watcher = Callable[[TaskCheck], None]


def suite_of(entry: EntryFile, folders: Sequence[Path] = ()) -> Suite | None:
    """The suite that an entry is about, of those that ship and of ``folders``; None where there is none of its name.

    An entry names a suite and never a place: what it says is not taken for a path.
    """
    named = [suite for suite in map(load_suite, folders) if suite.name == entry.suite]
    if not named and entry.suite in list_suites():
        named = [load_suite(entry.suite)]
    return next((suite for suite in named if suite.digest == entry.suite_digest), named[0] if named else None)


def drawn(rows: Sequence[TaskRow], sample: int | None, seed: int) -> tuple[TaskRow, ...]:
    """A sample of rows in their own order; all of them where ``sample`` is None."""
    if sample is None or sample >= len(rows):
        return tuple(rows)
    chosen = set(random.Random(seed).sample(range(len(rows)), sample))
    return tuple(row for number, row in enumerate(rows) if number in chosen)


def device_for(entry: EntryFile) -> str:
    """Where the entry's candidates can run here: the emulated device that it names, else the first GPU here that
    starts, or an emulated device; why a GPU is passed over is logged as a warning."""
    claimed = entry.fingerprints[0]
    return claimed.device if claimed.device_kind == "emulated" else default_device(measure_of(entry))


def measure_of(entry: EntryFile) -> MeasureSettings:
    """How times are taken again: by the entry's protocol, within the limits of here."""
    claimed = entry.run.measure
    return MeasureSettings(protocol=claimed.protocol, qps=claimed.qps)


def verify(
    entry: EntryFile,
    suite: Suite | None,
    *,
    sample: int | None,
    seed: int,
    open_workshop: Callable[[], EvaluatorPool],
    watch: Watcher = lambda check: None,
) -> Verification:
    """Check an entry, and evaluate a sample of its best candidates again where the file itself holds.

    Args:
        suite: The suite that it is about, as it is here; None where there is none.
        sample: How many tasks to evaluate again; None for all.
        seed: From which the sample is drawn.
        open_workshop: Starts what evaluates; called once, if at all. The caller closes it.
        watch: Told of each task that was drawn.
    """
    checks = static_checks(entry, suite)
    rows = solved_rows(entry)
    chosen = drawn(rows, sample, seed)
    fingerprint: Fingerprint | None = None
    found: dict[str, TaskCheck] = {}
    if chosen and suite is not None and all(check.ok for check in checks):
        try:
            workshop = open_workshop()
            fingerprint = workshop.fingerprint
        except KernelForgeError as error:
            found = {row.task: _left_out(row, f"nothing here to run it on: {error}") for row in chosen}
        else:
            for check in rerun(entry, chosen, suite, workshop):
                found[check.task] = check
                watch(check)
    drawn_names = {row.task for row in chosen}
    return Verification(
        entry=entry.digest,
        run=entry.run.id,
        when=datetime.now(UTC).isoformat(timespec="seconds"),
        kernelforge=__version__,
        host=f"{platform.system().lower()}-{platform.machine()}",
        fingerprint=fingerprint if any(one.status != "not re-run" for one in found.values()) else None,
        seed=seed,
        sample=len(chosen),
        checks=checks,
        tasks=tuple(found.get(row.task) or _left_out(row, _why_not(row, drawn_names)) for row in entry.tasks),
    )


def _left_out(row: TaskRow, reason: str) -> TaskCheck:
    return TaskCheck(task=row.task, status="not re-run", reason=reason[:1_900])


def _why_not(row: TaskRow, chosen: set[str]) -> str:
    if row.best is None:
        return "the entry has nothing correct to evaluate"
    return "a check of the file failed" if row.task in chosen else "not drawn"
