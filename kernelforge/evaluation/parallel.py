"""Process many tasks in parallel, once per distinct task content."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from kernelforge.records import Task, content_hash
from kernelforge.tasks import size_source
from kernelforge.tasks.constants import parse_python

Item = TypeVar("Item")
Result = TypeVar("Result")


def parallel_map(work: Callable[[Item], Result], items: Iterable[Item], jobs: int) -> Iterator[Result]:
    """The results of ``work``, in the order of ``items``, each as soon as it and those before it are there.

    Args:
        jobs: How many are worked on at a time, in threads: the work itself is done by children.
    """
    if jobs <= 1:
        yield from map(work, items)
        return
    with ThreadPoolExecutor(jobs) as pool:
        try:
            yield from pool.map(work, items)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def map_unique(
    items: Sequence[Item], task_of: Callable[[Item], Task], work: Callable[[Item], Result], jobs: int
) -> Iterator[tuple[Item, Item, Result]]:
    """Each item, the first one whose task is judged on the same things, and what came of the work on that one.

    In the order of ``items``, each as soon as it is known; ``jobs`` as in :func:`side_by_side`.
    """
    contents = [judged_content(task_of(item)) for item in items]
    firsts: dict[str, Item] = {}
    for content, item in zip(contents, items, strict=True):
        firsts.setdefault(content, item)
    results = parallel_map(work, firsts.values(), jobs)
    found: dict[str, Result] = {}
    for content, item in zip(contents, items, strict=True):
        if content not in found:
            found[content] = next(results)
        yield item, firsts[content], found[content]


def judged_content(task: Task) -> str:
    """Names what a task is checked on: its program and policy at every size but ``full``, comments and titles aside.

    Tasks of a generated suite that differ at their full size alone have one name.
    """
    sizes = [(size.name, size_source(task, size.name)) for size in task.sizes if size.name != "full"]
    return content_hash([(name, _program(source)) for name, source in sizes], task.policy.model_dump(mode="json"))


def _program(source: str) -> str:
    """The text's syntax without the module's docstring."""
    tree = parse_python(source, "the task file")
    if tree.body and isinstance(tree.body[0], ast.Expr) and isinstance(tree.body[0].value, ast.Constant):
        tree.body = tree.body[1:]
    return ast.dump(tree)
