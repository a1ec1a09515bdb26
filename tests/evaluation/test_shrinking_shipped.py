"""Sizes that ship: numbers under a digest, believed only where they fit the task."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from importlib.resources import files as resources
from pathlib import Path

import pytest

from kernelforge.errors import SandboxError
from kernelforge.evaluation import size_search
from kernelforge.evaluation.size_search import Bounds, SizeChoice, SizeChooser
from kernelforge.evaluation.size_search import chooser as chooser_module
from kernelforge.evaluation.size_search.choice import sizes_of
from kernelforge.evaluation.size_search.client import SizeSearchClient
from kernelforge.evaluation.size_search.shipped import (
    FILE,
    Entry,
    entry_of,
    read_entries,
    shipped_choice,
    shipped_entries,
    text_digest,
    written_entries,
)
from kernelforge.tasks.loaders import ExternalTask
from kernelforge.tasks.loaders.kernelbench import kernelbench_task
from tests.support import kernelbench_files as files

DOCS = Path(__file__).resolve().parents[2] / "docs" / "loaders.md"


def task_of(text: str) -> ExternalTask:
    return kernelbench_task(text, name="level1_1_own", title="own", origin="level1/1_own.py", level=1)


SOFTMAX = task_of(files.SOFTMAX)
CHOICE = SizeChoice(
    sizes=sizes_of({"small": {"batch_size": 8, "dim": 264}, "hidden_odd": {"batch_size": 7, "dim": 1027}}),
    notes=("dim cannot vary: other values were refused by the reference",),
    admitted=True,
)


def test_an_entry_is_the_choice_without_the_names_of_the_tasks_constants() -> None:
    entry = entry_of(SOFTMAX, CHOICE)
    assert entry.sizes == {"small": (8, 264), "hidden_odd": (7, 1027)}
    assert entry.notes == ("{1} cannot vary: other values were refused by the reference",)
    text = written_entries({text_digest(SOFTMAX): entry})
    assert not re.search("batch|dim", text)
    assert shipped_choice(SOFTMAX, read_entries(text)) == CHOICE


def test_a_refusal_ships_with_its_reason_but_without_the_names_in_it() -> None:
    refused = SizeChoice(refused="module 'inner' (Dropout, p=0.2) of task 'level1_1_own' is active")
    text = written_entries({text_digest(SOFTMAX): entry_of(SOFTMAX, refused)})
    choice = shipped_choice(SOFTMAX, read_entries(text))
    assert choice is not None
    assert choice.refused == "a module (Dropout, p=0.2) is active"
    assert not choice.sizes


@pytest.mark.parametrize(
    "sizes",
    [{}, {"small": (8,)}, {"small": (8, 264, 9)}, {"hidden_odd": (7, 9)}],
    ids=["no size", "too few values", "too many values", "no small size"],
)
def test_an_entry_that_does_not_fit_its_task_is_ignored(sizes: dict[str, tuple[int, ...]]) -> None:
    assert shipped_choice(SOFTMAX, {text_digest(SOFTMAX): Entry(sizes=sizes)}) is None


def test_one_letter_more_is_another_task() -> None:
    entries = {text_digest(SOFTMAX): entry_of(SOFTMAX, CHOICE)}
    assert shipped_choice(replace(SOFTMAX, source=SOFTMAX.source + " "), entries) is None
    assert shipped_choice(replace(SOFTMAX, fixed=frozenset({"dim"})), entries) is None


def test_a_chooser_takes_what_ships_and_searches_where_it_is_to_refresh(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SizeChooser, "_find", lambda self, task: (SizeChoice(refused="a new search"), False))
    entries = {text_digest(SOFTMAX): entry_of(SOFTMAX, CHOICE)}
    with SizeChooser(tmp_path_factory.mktemp("sizes"), shipped=entries) as chooser:
        assert chooser.choose(SOFTMAX) == CHOICE
    with SizeChooser(tmp_path_factory.mktemp("sizes"), shipped=entries, refresh=True) as chooser:
        assert chooser.choose(SOFTMAX).refused == "a new search"


@pytest.mark.slow
def test_what_cannot_be_judged_at_a_small_size_gets_a_larger_one(tmp_path_factory: pytest.TempPathFactory) -> None:
    beyond = files.SOFTMAX.replace("torch.softmax(x, dim=1)", "x[:, 64:].sum(dim=1)")
    bounds = Bounds()
    narrow = replace(bounds, base=replace(bounds.base, elements=1 << 11))
    with SizeChooser(tmp_path_factory.mktemp("sizes"), shipped={}, bounds=narrow) as chooser:
        prober = SizeSearchClient(chooser._zygote, task_of(beyond).source, narrow)
        at_first, _ = chooser._within(narrow, task_of(beyond), prober, [])
        choice = chooser.choose(task_of(beyond))
    assert "a trivial answer passes: zeros" in at_first.refused
    assert choice.admitted
    small = next(size for size in choice.sizes if size.name == "small")
    assert small.constants["dim"] > 64


@pytest.mark.slow
def test_what_is_far_above_the_bounds_is_judged_and_keeps_its_layers(tmp_path_factory: pytest.TempPathFactory) -> None:
    bounds = Bounds()
    narrow = replace(bounds, base=replace(bounds.base, elements=0))
    with SizeChooser(tmp_path_factory.mktemp("sizes"), shipped={}, bounds=narrow) as chooser:
        choice = chooser.choose(task_of(files.LAYERS))
    assert choice.admitted
    assert not choice.unchecked
    assert len(choice.sizes) >= 4
    assert all(size.constants["LAYERS"] == 9 for size in choice.sizes if size.name != "full")


@pytest.mark.slow
def test_what_is_far_above_the_bounds_stays_where_the_oracle_has_no_room_and_is_judged_next_time(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*arguments: object, **options: object) -> dict[str, str]:
        raise SandboxError("the oracle child ended without an answer: signal 9")

    monkeypatch.setattr(chooser_module, "rejected_sizes", killed)
    bounds = Bounds()
    narrow = replace(bounds, base=replace(bounds.base, elements=0))
    with SizeChooser(tmp_path_factory.mktemp("sizes"), shipped={}, bounds=narrow) as chooser:
        choice = chooser.choose(task_of(files.LAYERS))
        assert not chooser.is_settled(task_of(files.LAYERS))
    assert "signal 9" in choice.unchecked
    assert not choice.refused
    with SizeChooser(tmp_path_factory.mktemp("sizes"), shipped={}) as chooser:
        assert "signal 9" in chooser.choose(task_of(files.LAYERS)).refused


def test_the_file_that_ships_is_as_the_script_writes_it() -> None:
    text = resources(size_search.__name__).joinpath(FILE).read_text(encoding="utf-8")
    entries = shipped_entries()
    assert written_entries(entries) == text
    assert all(re.fullmatch("[0-9a-f]{32}", digest) for digest in entries)
    for entry in entries.values():
        assert bool(entry.refused) != ("small" in entry.sizes)
        assert len({len(values) for values in entry.sizes.values()}) <= 1
    assert all(isinstance(text, str) for text in json.loads(text)["texts"])
    assert f"hidden sizes of {len(entries)} tasks" in DOCS.read_text()


def test_what_the_loader_makes_of_a_text_stays_or_the_sizes_have_to_be_written_again() -> None:
    # The digests in the file are of the text after the loader's edits: .ci/kernelbench_sizes.py writes it again.
    assert text_digest(SOFTMAX) == "f8fb9b03534dd156322b38e5127fcad9"
    assert text_digest(task_of(files.INLINE)) == "1c58113e83c1a097e5fb4ed017d22d02"
