"""Suites: manifests, sizes, digests."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from kernelforge.errors import TaskError, UsageError
from kernelforge.records import Task
from kernelforge.tasks import data_path, list_suites, load_suite, load_task, parse_task_file, size_source
from tests.support.shipped_prompts import shipped

TASK = """
N = 64
class Model(nn.Module):
    def forward(self, x):
        return x
def get_inputs():
    return []
def get_init_inputs():
    return []
"""

MANIFEST = """
title = "Mine"
level = 3
tags = ["all"]

[[task]]
name = "one"
tags = ["first"]
small = { N = 8 }
hidden.odd = { N = 7 }
policy.ties = [0]
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "one.py").write_text(TASK)
    (tmp_path / "mine" / "suite.toml").write_text(MANIFEST)
    return tmp_path / "mine"


def test_a_manifest_becomes_tasks(folder: Path) -> None:
    suite = load_suite(folder)
    (task,) = suite.tasks
    assert (suite.name, suite.title, task.level, task.tags) == ("mine", "Mine", 3, ("all", "first"))
    assert [size.name for size in task.sizes] == ["full", "small", "hidden_odd"]
    assert task.policy.ties == (0,)
    assert "N = 7\n" in size_source(task, "hidden_odd")


def test_the_digest_names_the_content(folder: Path) -> None:
    before = load_suite(folder).digest
    assert load_suite(folder / "suite.toml").digest == before
    (folder / "one.py").write_text(TASK.replace("return x", "return -x"))
    assert load_suite(folder).digest != before


def test_a_licence_is_stated_for_a_suite_or_a_task_and_no_part_of_the_digest(folder: Path) -> None:
    before = load_suite(folder)
    (folder / "suite.toml").write_text(MANIFEST.replace("level = 3", 'level = 3\nlicense = "MIT"'))
    stated = load_suite(folder)
    assert (before.tasks[0].license, stated.tasks[0].license, stated.digest) == ("", "MIT", before.digest)
    (folder / "suite.toml").write_text(MANIFEST.replace("level = 3", 'license = "MIT"') + 'license = "BSD-3-Clause"\n')
    assert load_suite(folder).tasks[0].license == "BSD-3-Clause"


def test_a_file_listed_in_a_suite_keeps_its_sizes(folder: Path) -> None:
    assert load_task(folder / "one.py").policy.ties == (0,)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("title =", "titel ="), "title"),
        (("N = 8", "M = 8"), "task 'one': there is no module constant 'M'"),
        (('name = "one"', 'name = "two"'), r"no task file .*two\.py"),
        (('name = "one"', 'name = "one"\nfile = "../../etc/x.py"'), "outside the suite"),
        (("policy.ties", "policy.tie"), "task 'one': tie"),
        (("level = 3", "level = "), "not TOML"),
        (("small =", "smal ="), "smal"),
    ],
)
def test_a_faulty_manifest_is_named(folder: Path, change: tuple[str, str], message: str) -> None:
    (folder / "suite.toml").write_text(MANIFEST.replace(*change))
    with pytest.raises(TaskError, match=message):
        load_suite(folder)


def test_repeated_names_are_refused(folder: Path) -> None:
    (folder / "suite.toml").write_text(MANIFEST + '\n[[task]]\nname = "one"\n')
    with pytest.raises(TaskError, match="names repeat: one"):
        load_suite(folder)


def test_unknown_names_list_what_there_is() -> None:
    with pytest.raises(UsageError, match=r"shipped suites: .*core"):
        load_suite("cor")
    with pytest.raises(UsageError, match=r"has no task 'soft'; it has: .*softmax"):
        load_task("core/soft")
    with pytest.raises(UsageError, match="no size 'huge'; it has: full, small"):
        size_source(load_task("core/softmax"), "huge")


def test_shipped_suites_are_found() -> None:
    assert "core" in list_suites()
    assert (data_path("tasks") / "core" / "suite.toml").is_file()
    assert load_task("softmax").suite == "core"


CORE = shipped("core").tasks


def test_core_has_sixteen_tasks() -> None:
    assert len(CORE) == 16


@pytest.mark.parametrize("task", CORE, ids=lambda task: task.name)
def test_core_hidden_sizes_come_in_three_classes(task: Task) -> None:
    """Odd; a multiple of 4 but not of a tile (32); below 32."""
    own = parse_task_file(task.source, task.name).constants
    extents = {size.name: size.constants for size in task.sizes}
    assert set(extents) == {"full", "small", "hidden_odd", "hidden_quad", "hidden_tiny"}
    assert all(set(constants) <= set(own) for constants in extents.values())
    odd, quad, tiny = (extents[f"hidden_{name}"] for name in ("odd", "quad", "tiny"))
    assert all(value % 2 == 1 for value in odd.values())
    assert all(value % 4 == 0 for value in quad.values())
    assert any(value % 32 != 0 for value in quad.values())
    assert all(value < 32 for value in tiny.values())
    # The same names everywhere: no size forgets an extent.
    assert set(extents["small"]) == set(odd) == set(quad) == set(tiny)
    assert math.prod(extents["small"].values()) < math.prod(own[name] for name in extents["small"])
