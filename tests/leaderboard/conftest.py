"""Entries made of golden runs and of the reference run, and forgeries of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from kernelforge.leaderboard.entry import EntryFile, digest_of, entry_text, parse_entry
from kernelforge.leaderboard.make_entry import make_entry

REFERENCE = Path(__file__).resolve().parents[2] / "results" / "reference" / "leaderboard"


@pytest.fixture(scope="session")
def made() -> Callable[..., EntryFile]:
    """``made("measured-a", by="Ada")``: the entry of a golden run."""
    from tests.report.golden.golden_runs import golden_records

    @cache
    def make(name: str, *, by: str = "Ada", note: str = "") -> EntryFile:
        records = golden_records(name)
        return make_entry(records, {task: record.digest for task, record in records.tasks.items()}, by=by, note=note)

    return make


@pytest.fixture(scope="session")
def forged() -> Callable[..., EntryFile]:
    """``forged(entry, change)``: the entry after ``change`` of its JSON, with all hashes made right again."""

    def forge(entry: EntryFile, change: Callable[[dict[str, Any]], None]) -> EntryFile:
        data = json.loads(entry_text(entry))
        change(data)
        rehash(data)
        return parse_entry(data, "forged.json")

    return forge


def rehash(data: dict[str, Any]) -> None:
    """Update the hashes of a changed entry, as a careful forger does."""
    from kernelforge.records import Candidate, Evaluation

    for row in data["tasks"]:
        best = row["best"]
        if best is not None:
            best["candidate_hash"] = best["evaluation"]["candidate"] = Candidate.model_validate(best["candidate"]).hash
            best["evaluation_key"] = Evaluation.model_validate(best["evaluation"]).key
    data["digest"] = digest_of(data)


@pytest.fixture(scope="session")
def reference_folder() -> Path:
    """The leaderboard that is kept in the repository."""
    return REFERENCE


@pytest.fixture(scope="session")
def reference() -> EntryFile:
    """The entry that is kept in the repository: a real run."""
    from kernelforge.leaderboard.entry import load_entry

    return load_entry(REFERENCE / "entries" / "builtin-core-h100.json")
