"""docs/tasks.md: its examples load, and its tables name what exists."""

from __future__ import annotations

import re
from pathlib import Path

from kernelforge.evaluation.oracle import task_context
from kernelforge.records import TaskPolicy
from kernelforge.tasks import load_suite

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "tasks.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


def test_the_example_suite_loads(tmp_path: Path) -> None:
    (tmp_path / "softmax.py").write_text(blocks("python")[0])
    (tmp_path / "suite.toml").write_text(blocks("toml")[0])
    (task,) = load_suite(tmp_path).tasks
    assert [size.name for size in task.sizes] == ["full", "small", "hidden_odd", "hidden_quad", "hidden_tiny"]
    assert task.tags == ("mine", "reduction")


def test_the_python_example_runs() -> None:
    exec(blocks("python")[1], {})


def test_every_policy_is_in_the_table() -> None:
    section = PAGE.split("### Policies")[1].split("\n## ")[0]
    assert set(re.findall(r"^\| `(\w+)`", section, re.MULTILINE)) == set(TaskPolicy.model_fields)


def test_the_function_it_names_exists() -> None:
    assert "kernelforge.evaluation.oracle.task_context.shape_invariants" in PAGE
    assert callable(task_context.shape_invariants)
