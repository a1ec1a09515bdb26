"""A task file is checked without being run."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernelforge.errors import TaskError
from kernelforge.tasks import load_task, parse_task_file

GOOD = """
N = 4

class Model(nn.Module):
    def forward(self, x, y):
        return x + y

def get_inputs():
    return []

def get_init_inputs():
    return []
"""


def test_a_good_file_gives_constants_and_parameters() -> None:
    parsed = parse_task_file(GOOD, "t.py")
    assert parsed.constants == {"N": 4}
    assert parsed.parameters == ("x", "y")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("class Model", "class Net"), "no `class Model"),
        (("(nn.Module)", ""), "must derive from `nn.Module`"),
        (("def get_inputs", "def inputs"), r"no `def get_inputs\(\)`"),
        (("def get_init_inputs", "def init"), r"no `def get_init_inputs\(\)`"),
        (("def forward", "def call"), "no `forward`"),
        (("N = 4", "N = = 4"), "t.py, line 2: invalid syntax"),
        (("N = 4", "N = \0"), "t.py"),
    ],
)
def test_what_is_missing_is_named(change: tuple[str, str], message: str) -> None:
    with pytest.raises(TaskError, match=message):
        parse_task_file(GOOD.replace(*change), "t.py")


def test_a_missing_file_is_named() -> None:
    with pytest.raises(TaskError, match=r"no task file .*nowhere\.py"):
        load_task("nowhere.py")


def test_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    (tmp_path / "t.py").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(TaskError, match="not UTF-8"):
        load_task(tmp_path / "t.py")


def test_reading_a_file_never_runs_it(tmp_path: Path) -> None:
    canary = tmp_path / "ran"
    (tmp_path / "t.py").write_text(f"open({str(canary)!r}, 'w')\n" + GOOD)
    load_task(tmp_path / "t.py")
    assert not canary.exists()


def test_a_loose_file_has_its_own_constants_at_both_sizes(tmp_path: Path) -> None:
    (tmp_path / "19_ReLU.py").write_text(GOOD)
    task = load_task(tmp_path / "19_ReLU.py")
    assert (task.name, task.suite) == ("19_relu", "file")
    assert [(size.name, size.constants) for size in task.sizes] == [("full", {}), ("small", {})]
