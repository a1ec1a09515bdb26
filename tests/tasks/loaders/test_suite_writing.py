"""The folder of an imported suite: written completely or not at all, never over changed files."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from kernelforge.errors import UsageError
from kernelforge.records import Size, TaskPolicy
from kernelforge.tasks import load_suite
from kernelforge.tasks.loaders import ExternalTask, NotLoaded
from kernelforge.tasks.loaders.base import licence_of
from kernelforge.tasks.loaders.write_suite import Origin, SizedTask, refuse_other_folder, write_suite
from tests.support import kernelbench_files as files

SIZES = (
    Size(name="full"),
    Size(name="small", constants={"dim": 64}),
    Size(name="hidden_odd", constants={"dim": 1027, "batch_size": 3}),
)
TASK = ExternalTask(
    name="softmax",
    title='Soft"max" \u2028 ä',
    source=files.SOFTMAX,
    origin="level1/23_Softmax.py",
    level=2,
    tags=("kernelbench",),
    policy=TaskPolicy(ties=(0,), oracle="task-precision", reduction_length="dim * 2"),
    license="MIT",
)
SIZED = SizedTask(TASK, SIZES, ("no hidden_tiny: because",))


@pytest.fixture
def origin(tmp_path: Path) -> Origin:
    return Origin("kernelbench", tmp_path / "KernelBench")


def test_what_is_written_is_what_is_loaded(tmp_path: Path, origin: Origin) -> None:
    write_suite(tmp_path / "suite", origin, "Title", [SIZED], [NotLoaded("level1/2.py", "broken")])
    suite = load_suite(tmp_path / "suite")
    (task,) = suite.tasks
    assert (suite.title, suite.name) == ("Title", "suite")
    assert (task.name, task.title, task.level, task.tags) == (TASK.name, TASK.title, 2, ("kernelbench",))
    assert task.sizes == SIZES
    assert task.policy == TASK.policy
    assert task.license == "MIT"
    assert task.source == files.SOFTMAX
    record = json.loads((tmp_path / "suite" / "import.json").read_text())
    assert record["not_loaded"] == [{"origin": "level1/2.py", "reason": "broken"}]
    assert "# no hidden_tiny: because" in (tmp_path / "suite" / "suite.toml").read_text()


@pytest.mark.parametrize(
    ("text", "licence"),
    [
        ("Permission is hereby granted, free of\ncharge, to any person ... without restriction", "MIT"),
        ("                        Apache License\n                  Version 2.0, January 2004", "Apache-2.0"),
        ("Redistribution and use in source and\nbinary forms ... Neither the name of", "BSD-3-Clause"),
        ("All rights reserved.", ""),
    ],
)
def test_the_licence_of_a_checkout_is_read_from_its_file(tmp_path: Path, text: str, licence: str) -> None:
    assert licence_of(tmp_path) == ""
    (tmp_path / "LICENSE").write_text(text)
    assert licence_of(tmp_path) == licence


def test_an_earlier_import_of_the_same_source_is_replaced_whole(tmp_path: Path, origin: Origin) -> None:
    folder = tmp_path / "suite"
    other = SizedTask(ExternalTask(name="other", title="o", source=files.SOFTMAX, origin="o"), SIZES)
    write_suite(folder, origin, "One", [SIZED, other], [])
    write_suite(folder, origin, "Two", [SIZED], [])
    assert load_suite(folder).title == "Two"
    assert not (folder / "other.py").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["suite"]


def test_an_empty_folder_is_filled(tmp_path: Path, origin: Origin) -> None:
    (tmp_path / "suite").mkdir()
    write_suite(tmp_path / "suite", origin, "Title", [SIZED], [])
    assert len(load_suite(tmp_path / "suite")) == 1


def test_a_folder_with_anything_else_is_left_alone(tmp_path: Path, origin: Origin) -> None:
    folder = tmp_path / "suite"
    folder.mkdir()
    (folder / "thesis.txt").write_text("years of work")
    with pytest.raises(UsageError, match="not empty, and no suite that was written here"):
        write_suite(folder, origin, "Title", [SIZED], [])
    assert [path.name for path in folder.iterdir()] == ["thesis.txt"]


@pytest.mark.parametrize(
    ("name", "message"), [("suite.toml", r"suite\.toml was changed"), ("mine.py", r"mine\.py was added")]
)
def test_work_done_in_an_imported_suite_is_not_written_over(
    tmp_path: Path, origin: Origin, name: str, message: str
) -> None:
    folder = tmp_path / "suite"
    write_suite(folder, origin, "Title", [SIZED], [])
    with (folder / name).open("a") as file:
        file.write("# mine\n")
    with pytest.raises(UsageError, match=message):
        write_suite(folder, origin, "Title", [SIZED], [])
    assert (folder / name).read_text().endswith("# mine\n")


def test_another_source_needs_another_folder(tmp_path: Path, origin: Origin) -> None:
    write_suite(tmp_path / "suite", origin, "Title", [SIZED], [])
    with pytest.raises(UsageError, match="was imported from"):
        write_suite(tmp_path / "suite", Origin("ops-6k", origin.source), "Title", [SIZED], [])


def test_a_write_that_fails_leaves_what_was_there(
    tmp_path: Path, origin: Origin, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "suite"
    write_suite(folder, origin, "Title", [SIZED], [])
    long = SizedTask(ExternalTask(name="n" * 300, title="o", source=files.SOFTMAX, origin="o"), SIZES)
    with pytest.raises(UsageError, match="cannot write"):
        write_suite(folder, origin, "Title", [SIZED, long], [])
    assert load_suite(folder).title == "Title"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["suite"]


def test_a_translation_task_has_its_c_beside_it(tmp_path: Path, origin: Origin) -> None:
    code = "void softmax(const float *x, float *y)\n{\n    y[0] = x[0];\n}\n"
    write_suite(tmp_path / "suite", origin, "Title", [replace(SIZED, task=replace(TASK, c_source=code))], [])
    (task,) = load_suite(tmp_path / "suite").tasks
    assert (task.c_source, task.c_language) == (code, "c")
    refuse_other_folder(tmp_path / "suite", origin)
