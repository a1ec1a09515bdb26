"""Golden runs for the tests of reports: what every page, table and figure has to cope with.

All numbers are constructed. No GPU has run the project yet, so the measured runs say nothing about any kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from kernelforge.report import RunRecords
from kernelforge.store import DATABASE_NAME, Store
from tests.report.golden.golden_hostile import escaping, hostile
from tests.report.golden.golden_measured import measured_a, measured_b, measured_c
from tests.report.golden.golden_modelled import modelled
from tests.report.golden.golden_parts import Golden

GOLDEN: Mapping[str, Callable[[], Golden]] = {
    "modelled": modelled,
    "measured-a": measured_a,
    "measured-b": measured_b,
    "measured-c": measured_c,
    "hostile": hostile,
    "escaping": escaping,
}
"""By the name that tests ask for; a run's id is ``golden(name).run.id``."""


def golden(name: str) -> Golden:
    """The run of that name, made anew."""
    return GOLDEN[name]()


def golden_records(name: str) -> RunRecords:
    """The run as views take it, without a store."""
    return golden(name).records()


def golden_store(folder: Path, *names: str) -> Path:
    """Journal runs (all but the hostile ones, if none is named) into a results folder.

    Returns:
        The database; its folder is what ``--results`` takes.
    """
    path = folder / DATABASE_NAME
    with Store.open(path) as store:
        for name in names or ("modelled", "measured-a", "measured-b", "measured-c"):
            golden(name).journal(store)
    return path
