"""Every suite that ships keeps the rules of docs/tasks.md; read as text, nothing is run."""

from __future__ import annotations

import ast

import pytest

from kernelforge.records import Task
from kernelforge.tasks import list_suites, module_constants, size_source
from tests.support.shipped_prompts import shipped

LEAST_TASKS = {
    "core": 16, "level1": 50, "level2": 30, "level3": 10, "llm": 15, "hpc": 10, "papers": 12, "backward": 8,
    "translate": 12, "low-precision": 16, "hgemm": 1000, "hgemm-f16": 1000,
}  # fmt: skip
BOUNDS = {"bandwidth", "compute", "latency"}
WRITTEN = [name for name in LEAST_TASKS if not name.startswith("hgemm")]
TASKS = [task for name in WRITTEN for task in shipped(name)]

each_task = pytest.mark.parametrize("task", TASKS, ids=lambda task: f"{task.suite}/{task.name}")


def varied(task: Task, size: str) -> dict[str, int]:
    """Whole-number constants that a size sets to another value than the file has."""
    own = module_constants(ast.parse(task.source))
    return {
        name: value
        for name, value in task.size(size).constants.items()
        if type(value) is int and type(own[name]) is int and value != own[name]
    }


def test_the_suites_that_ship_are_these() -> None:
    assert set(list_suites()) == {*LEAST_TASKS, "core-large", "translate-cpp", "translate-fortran"}


@pytest.mark.parametrize("name", LEAST_TASKS)
def test_a_suite_has_as_many_tasks_as_it_promises_each_with_a_title_of_its_own(name: str) -> None:
    suite = shipped(name)
    assert len(suite) >= LEAST_TASKS[name]
    assert suite.title
    assert suite.description
    titles = [task.title for task in suite]
    assert len(set(titles)) == len(titles)


@each_task
def test_a_task_says_what_it_is_and_what_binds_it(task: Task) -> None:
    assert ast.get_docstring(ast.parse(task.source))
    assert len(task.title) <= 60
    assert len(BOUNDS & set(task.tags)) == 1, task.tags


@each_task
def test_a_task_has_a_small_size_and_three_hidden_ones(task: Task) -> None:
    names = [size.name for size in task.sizes]
    assert names[:2] == ["full", "small"]
    assert {"hidden_odd", "hidden_quad", "hidden_tiny"} <= set(names)
    texts = {size_source(task, name) for name in names}
    assert len(texts) == len(names), "two sizes are the same"


@each_task
def test_hidden_sizes_are_odd_then_of_whole_vectors_and_then_tiny(task: Task) -> None:
    odd, quad, tiny = (varied(task, f"hidden_{kind}") for kind in ("odd", "quad", "tiny"))
    assert any(value % 2 for value in odd.values()), odd
    assert any(value % 4 == 0 and value % 32 for value in quad.values()), quad
    assert all(value < 32 for value in tiny.values()), tiny
