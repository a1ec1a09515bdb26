"""Suites that are another suite at other full sizes: ``core-large``, for GPUs that measure."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from kernelforge.errors import TaskError
from kernelforge.records import Task
from kernelforge.tasks import load_suite, load_task, size_source
from tests.support.shipped_prompts import shipped

CORE, LARGE = shipped("core"), shipped("core-large")
LEAST_BYTES = 512 * 10**6


def test_the_large_suite_has_every_task_of_core_with_its_rules_and_other_sizes() -> None:
    assert [task.name for task in LARGE] == [task.name for task in CORE]
    for large, small in zip(LARGE, CORE, strict=True):
        assert large.suite == "core-large"
        assert (large.sizes, large.policy, large.tags, large.title) == (
            small.sizes, small.policy, small.tags, small.title,
        )  # fmt: skip
        assert large.source != small.source
        assert size_source(large, "small").splitlines()[0] == size_source(small, "small").splitlines()[0]
    assert load_task("core-large/softmax") == LARGE.task("softmax")
    assert LARGE.digest != CORE.digest


@pytest.mark.parametrize("task", [task for task in LARGE if "bandwidth" in task.tags], ids=lambda task: task.name)
def test_bandwidth_bound_tasks_move_half_a_gigabyte(task: Task) -> None:
    """By shapes alone: on torch's meta device nothing is allocated."""
    space: dict[str, object] = {}
    exec(size_source(task, "full"), space)
    with torch.device("meta"):
        inputs = space["get_inputs"]()  # type: ignore[operator]
        model = space["Model"](*space["get_init_inputs"]())  # type: ignore[operator]
        outputs = model(*inputs)
    assert sum(tensor.nbytes for tensor in (*inputs, outputs)) >= LEAST_BYTES


MANIFEST = """
title = "Mine"
base = "core"

[[task]]
name = "gelu"
full = { ROWS = 5 }
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "core").mkdir()
    (tmp_path / "mine").mkdir()
    for name in ("suite.toml", *(f"{task.name}.py" for task in CORE)):
        (tmp_path / "core" / name).write_bytes((Path("tasks/core") / name).read_bytes())
    (tmp_path / "mine" / "suite.toml").write_text(MANIFEST)
    return tmp_path / "mine"


def test_a_derived_suite_takes_what_it_names(folder: Path) -> None:
    (task,) = load_suite(folder)
    assert "ROWS = 5\n" in task.source


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (('base = "core"', 'base = "corn"'), "base = 'corn' names no other suite next to this one"),
        (('base = "core"', 'base = "mine"'), "names no other suite next to this one"),
        (('base = "core"', 'base = "../core"'), "names no other suite next to this one"),
        (('name = "gelu"', 'name = "gelo"'), "task 'gelo': suite 'core' has no task 'gelo'"),
        (("ROWS = 5", "ROW = 5"), "task 'gelu': there is no module constant 'ROW'"),
        (("full = {", "small = { ROWS = 4 }\nfull = {"), "sets small, which the base decides"),
    ],
)
def test_a_faulty_derived_manifest_is_named(folder: Path, change: tuple[str, str], message: str) -> None:
    (folder / "suite.toml").write_text(MANIFEST.replace(*change))
    with pytest.raises(TaskError, match=message):
        load_suite(folder)


def test_a_suite_with_files_of_its_own_sets_no_full_size(folder: Path) -> None:
    path = folder.parent / "core" / "suite.toml"
    path.write_text(path.read_text().replace('name = "gelu"', 'name = "gelu"\nfull = { ROWS = 5 }'))
    with pytest.raises(TaskError, match=r"the size full is gelu.py as it is"):
        load_suite(folder.parent / "core")
