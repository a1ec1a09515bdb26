"""A failure at a hidden size, shown at a size that its author may see.

Nothing may be said of a hidden size but the verdict. So other sizes are tried, in an order that is fixed: they follow
from the full and the small size and from the statements about every size, all of which an author sees. Which of them a
candidate fails at says something about the candidate; with other hidden sizes the same would be said.
"""

from __future__ import annotations

import contextlib
import copy
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple, Protocol, TypeVar

from kernelforge.compile import Artifact, Compiler
from kernelforge.errors import ChildDied, ChildTimeout, PlanGuard, TaskError
from kernelforge.evaluation.oracle.task_context import keeps_shared
from kernelforge.evaluation.stages.candidate_runs import SMALL_SIZE_INSTRUCTIONS, CandidateRuns, EvaluationState
from kernelforge.evaluation.stages.compile_stage import BuildState, StageFailed, compile_plans, resolve_plans
from kernelforge.evaluation.stages.correctness import CorrectnessStage
from kernelforge.evaluation.stages.tuning import Preparing
from kernelforge.records import VISIBLE_SIZE, Build, Candidate, Size, Task, Verdict, content_hash
from kernelforge.tasks import parse_task_file

LONG: Final = (33, 7, 129, 20, 257, 68, 1025)
"""Extents that kernels for whole tiles, for whole warps or vectors, or for one block per row do not expect."""
SHORT: Final = (3, 5, 7, 9)
STEPS: Final = (1, 4, 16)
"""What extents are made multiples of, where the task allows no others."""
MOST_ELEMENTS: Final = 1 << 16
"""Most elements of a size, as the product of what varies; as many as the small size has, if that is more."""
MOST_TRIES, MOST_RUNS, MOST_INSTRUCTIONS = 120, 24, 4 * SMALL_SIZE_INSTRUCTIONS
"""Sizes looked at, sizes that a candidate is run at, and thread instructions of the longest run of each, summed up."""


class Reproduction(NamedTuple):
    """A failure at a visible size."""

    constants: dict[str, int | float | bool]
    """Module constants of the size."""
    verdict: Verdict
    reason: str


class VisibleBuild(NamedTuple):
    """A build at the sizes that an author may see."""

    build: Build | None
    artifact: Artifact | None
    """Its code at the full size; None where it failed."""
    failure: StageFailed | None


class Running(Preparing, Protocol):
    """An evaluator, as far as a search of sizes needs one."""

    compiler: Compiler

    def runs(self, work: EvaluationState) -> CandidateRuns: ...


PreparingT = TypeVar("PreparingT", bound=Preparing)


def build(evaluator: Preparing, candidate: Candidate, *, stopped: Callable[[], bool] | None = None) -> VisibleBuild:
    """Resolve and compile at visible sizes alone: whether more compiles would tell hidden extents at no cost.

    Raises:
        EvaluationCancelled: ``stopped``, which is asked before each part of the work, said so.
    """
    state = BuildState()
    if stopped is not None:
        state.stopped = stopped
    try:
        with_visible_sizes(evaluator).prepare(candidate, state)
    except StageFailed as failure:
        return VisibleBuild(state.build, None, failure)
    return VisibleBuild(state.build, state.artifacts["full"], None)


def with_visible_sizes(evaluator: PreparingT) -> PreparingT:
    """The same evaluator without hidden sizes: what it prepares is independent of them. It shares the oracle."""
    narrow = copy.copy(evaluator)
    sizes = tuple(size for size in evaluator.task.sizes if not size.is_hidden)
    narrow.task = evaluator.task.model_copy(update={"sizes": sizes})
    return narrow


def reproduce(evaluator: Running, candidate: Candidate, verdict: Verdict | None, *, seed: int) -> Reproduction | None:
    """The first visible size at which a candidate fails with a verdict, or with any, reduced; None if there is none.

    A size is reduced by giving constants back the values of the small size, as long as the candidate fails there with
    the same verdict.

    Args:
        evaluator: of the task; the candidate has passed at its small size and failed at a hidden one.
        candidate: what failed.
        verdict: the verdict, where its author knows it.
        seed: secret seed of the inputs.

    Raises:
        SandboxError: a child failed more than once, or cannot be started.
        DeviceError: the device failed.
    """
    search = _Search(evaluator, candidate, seed)
    small = evaluator.task.size("small")
    for size in visible_sizes(evaluator.task):
        failure = search.failure_at(size)
        if failure is None or verdict not in (None, failure.verdict):
            continue
        for name, value in small.constants.items():
            if size.constants.get(name) == value:
                continue
            nearer = Size(name=VISIBLE_SIZE, constants={**size.constants, name: value})
            nearer_failure = search.failure_at(nearer)
            if nearer_failure is not None and nearer_failure.verdict is failure.verdict:
                size, failure = nearer, nearer_failure
        return Reproduction(dict(size.constants), failure.verdict, failure.reason)
    return None


def visible_sizes(task: Task) -> Iterator[Size]:
    """Sizes that follow from the full and the small one, each once: first those that change all that varies.

    No extent is larger than at the full size.
    """
    own, small = parse_task_file(task.source, task.name).constants, task.size("small").constants
    full = {name: value for name, value in own.items() if _is_extent(value) and _is_extent(small.get(name, value))}
    varying = [name for name in full if small.get(name, full[name]) != full[name]]
    if not varying:
        return
    least = {name: int(small[name]) for name in varying}
    most = max(MOST_ELEMENTS, math.prod(least.values()))
    seen = [tuple(least.values()), tuple(int(full[name]) for name in varying)]
    for values in _rows(varying, least, {name: int(full[name]) for name in varying}):
        row = tuple(values[name] for name in varying)
        if row not in seen and math.prod(row) <= most:
            seen.append(row)
            yield Size(name=VISIBLE_SIZE, constants={**small, **values})


def _is_extent(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _rows(names: Sequence[str], small: dict[str, int], full: dict[str, int]) -> Iterator[dict[str, int]]:
    alike: dict[tuple[int, int], list[str]] = {}
    for name in names:
        alike.setdefault((small[name], full[name]), []).append(name)
    # Extents that are equal at both sizes may have to be equal: as one group they stay so.
    groupings = [[[name] for name in names], list(alike.values())]
    for step in STEPS:
        for groups in groupings:
            for at, value in enumerate(LONG):
                short = (SHORT[index % len(SHORT)] for index in range(len(groups)))
                extents = [value if index == at % len(groups) else next(short) for index in range(len(groups))]
                extent_of = {name: extents[index] for index, group in enumerate(groups) for name in group}
                yield {name: min(_up(extent, step), full[name]) for name, extent in extent_of.items()}
    for step in STEPS:
        for value in LONG:
            for groups in groupings:
                for group in groups:
                    yield {**small, **{name: min(_up(value, step), full[name]) for name in group}}


def _up(extent: int, step: int) -> int:
    """The next multiple of ``step``."""
    return extent + -extent % step


class _Search:
    """Runs a candidate at visible sizes, within limits that are counted."""

    def __init__(self, evaluator: Running, candidate: Candidate, seed: int) -> None:
        self._evaluator, self._candidate, self._seed = evaluator, candidate, seed
        self._tries = self._runs = self._instructions = 0

    def failure_at(self, size: Size) -> StageFailed | None:
        """The failure of the candidate at a size; None if it has none, or if that is no size of the task."""
        self._tries += 1
        if self._tries > MOST_TRIES or self._runs >= MOST_RUNS or self._instructions >= MOST_INSTRUCTIONS:
            return None
        evaluator, oracle = self._evaluator, self._evaluator.oracle
        try:
            further = oracle.take_size(size)
        except (TaskError, ChildDied, ChildTimeout):
            return None
        if not keeps_shared(evaluator.task, evaluator.facts, further):
            return None
        self._runs += 1
        work = EvaluationState(
            seed=int(content_hash(self._seed, "visible", self._tries), 16), source=self._candidate.source
        )
        facts = evaluator.facts.model_copy(update={"sizes": (*evaluator.facts.sizes, further)})
        try:
            with evaluator.gpu_lock(), evaluator.runs(work) as runs:
                runs.facts = facts
                resolve_plans(self._candidate, evaluator.task, facts, work, (size,))
                compile_plans(self._candidate, evaluator.task, evaluator.compiler, evaluator.device.arch, work, (size,))
                families = oracle.families("small")[:2]
                for checked in (families, families[:1]):
                    with contextlib.suppress(TaskError):  # torch may not pass on the further family there
                        CorrectnessStage(runs).check_size(size, checked)
                        break
        except StageFailed as failure:
            self._instructions += SMALL_SIZE_INSTRUCTIONS if failure.verdict is Verdict.TIMEOUT else 0
            return None if isinstance(failure.__cause__, PlanGuard) else failure
        except ChildDied:
            return None
        finally:
            self._instructions += work.executed
        return None
