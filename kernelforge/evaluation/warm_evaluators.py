"""Evaluators of recent tasks, kept with their oracles running; the least recently used one is closed first."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from kernelforge.errors import EvaluationCancelled
from kernelforge.evaluation.oracle.client import Oracle
from kernelforge.records import Task

WARM_TASKS = 4
"""Oracles kept by default, so that the next candidate for their task starts at once."""

WARM_BYTES = 4 << 30
"""Memory that they may hold together between two evaluations, by default. An oracle keeps the memory of its largest
draw, up to its limit of 8 GiB; during an evaluation only that limit applies."""


class TaskEvaluator(Protocol):
    """An evaluator of one task, which holds the task's oracle."""

    task: Task
    oracle: Oracle


EvaluatorT = TypeVar("EvaluatorT", bound=TaskEvaluator)


@dataclass
class _WarmEvaluator(Generic[EvaluatorT]):
    evaluator: EvaluatorT
    initial_bytes: int
    """Memory of the oracle before it has drawn anything; most of it is shared with all others."""
    kept_bytes: int = 0
    """Memory that it kept beyond that."""


class WarmEvaluators(Generic[EvaluatorT]):
    """Keeps one evaluator per task digest. For one thread, except :attr:`digests`.

    Args:
        open_evaluator: opens the evaluator of a task.
        on_close: called with the task once its evaluator is closed.
        max_tasks: evaluators kept, at least one.
        max_bytes: memory that their oracles may hold together between two evaluations.
    """

    def __init__(
        self,
        open_evaluator: Callable[[Task], EvaluatorT],
        on_close: Callable[[Task], None] | None = None,
        *,
        max_tasks: int = WARM_TASKS,
        max_bytes: int = WARM_BYTES,
    ) -> None:
        self._open = open_evaluator
        self._on_close = on_close
        self._max_tasks, self._max_bytes = max(max_tasks, 1), max_bytes
        self._warm: OrderedDict[str, _WarmEvaluator[EvaluatorT]] = OrderedDict()

    @property
    def digests(self) -> frozenset[str]:
        """Digests of the tasks whose evaluators are kept."""
        return frozenset(tuple(self._warm))

    def of(self, task: Task) -> EvaluatorT:
        """The evaluator of a task, opened if it is not warm.

        Raises:
            TaskError: the task cannot be judged.
            DeviceError: no device can be used.
        """
        warm = self._warm.pop(task.digest, None)
        if warm is None:
            while len(self._warm) >= self._max_tasks:
                self._close(next(iter(self._warm)))
            evaluator = self._open(task)
            warm = _WarmEvaluator(evaluator, evaluator.oracle.held_bytes())
        self._warm[task.digest] = warm
        return warm.evaluator

    @contextmanager
    def using(self, task: Task) -> Iterator[EvaluatorT]:
        """The evaluator of a task for one evaluation. An error closes it, so that the next one gets a fresh oracle;
        cancellation does not. Afterwards oracles are closed until the others hold at most ``max_bytes``.

        Raises:
            TaskError: the task cannot be judged.
            DeviceError: no device can be used.
        """
        evaluator = self.of(task)
        try:
            yield evaluator
        except EvaluationCancelled:
            raise
        except Exception:
            self._close(task.digest)
            raise
        used = self._warm[task.digest]
        used.kept_bytes = max(evaluator.oracle.held_bytes() - used.initial_bytes, 0)
        while sum(warm.kept_bytes for warm in self._warm.values()) > self._max_bytes:
            self._close(next(iter(self._warm)))

    def close(self) -> None:
        """Close every evaluator's oracle."""
        while self._warm:
            self._close(next(iter(self._warm)))

    def _close(self, digest: str) -> None:
        warm = self._warm.pop(digest)
        warm.evaluator.oracle.close()
        if self._on_close is not None:
            self._on_close(warm.evaluator.task)
