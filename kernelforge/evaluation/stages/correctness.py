"""The correctness stage: runs at every size but the full one, each compared with the oracle's values.

One size is drawn from the evaluation's secret, so that a candidate cannot know every size beforehand.

The listed sizes say what a size of the task may be, and a drawn one keeps to it. Each module constant is not less than
the least value that the small and the hidden sizes give it and not more than the full one, and keeps what divides it at
every size, the full one included. What holds between two constants at every size (equal, a fixed ratio or difference,
one divides the other or is never larger) holds here too. No drawn size has more elements, as the product of what
varies, than the largest listed one, so that it costs no more.

Kernels take extents in tiles. Full sizes are mostly whole multiples of those, and listed hidden sizes mostly smaller.
So a drawn size gives one constant, and others as far as the elements go, one whole tile of ``TILES`` and a part of
the next.

A size is run on inputs of every family, on the task's own twice. On an emulated device that takes hours where the
reference has very many operations: each size is then run on the task's own inputs and on one further family, which
the secret chooses, once each (:data:`MANY_OPERATIONS`).
"""

from __future__ import annotations

import contextlib
import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import permutations
from random import Random
from typing import Final

from kernelforge.compile import Compiler
from kernelforge.errors import ChildDied, ChildTimeout, TaskError
from kernelforge.evaluation.generators.recipe import TEST_PREFIX
from kernelforge.evaluation.oracle.client import DrawHandle
from kernelforge.evaluation.oracle.task_context import keeps_shared
from kernelforge.evaluation.stages.candidate_runs import POISONS, CandidateRuns
from kernelforge.evaluation.stages.compile_stage import StageFailed, compile_plans, resolve_plans
from kernelforge.evaluation.stages.kept_draws import KeptDraws, is_audited
from kernelforge.records import (
    DRAWN_SIZE,
    Candidate,
    InputGenerator,
    Size,
    SizeCheck,
    SizeFacts,
    Task,
    TensorSpec,
    content_hash,
)
from kernelforge.tasks import parse_task_file


class CorrectnessStage:
    """Checks one candidate at one size after another, and records each result.

    Args:
        runs: the candidate's runs.
        generators: generators in force, all of them admitted.
    """

    def __init__(self, runs: CandidateRuns, generators: Sequence[InputGenerator] = ()) -> None:
        self._runs = runs
        self._work = runs.work
        self._generators = generators

    def check_all(self, candidate: Candidate, compiler: Compiler) -> None:
        """Check every size of the task but the full one, then the generators' inputs, then a drawn size. In training a
        share of the candidates is then checked again on fresh inputs.

        Raises:
            StageFailed: an output is wrong, or a run faults.
        """
        for size in sorted(self._runs.task.sizes, key=lambda size: size.is_hidden):
            if size.name != "full" and size.name in self._work.plans:
                self.check_size(size)
        self.check_generators()
        self.check_drawn(candidate, compiler)
        if self._work.kept is not None and is_audited(self._work.seed):
            self.check_fresh(self._work.kept)

    def check_fresh(self, kept: KeptDraws) -> None:
        """Check the sizes that had kept draws on others, which no candidate had before.

        Raises:
            StageFailed: the candidate is wrong there; the kept draws are forgotten, for it may have learnt them.
        """
        runs = self._runs
        for check in tuple(self._work.checks):
            if check.status != "passed" or check.size == DRAWN_SIZE:
                continue
            size = runs.task.size(check.size)
            for family in (check.families[0], *further_family(check.families, self._work.seed)):
                try:
                    with runs.drawn(size, family) as draw:
                        runs.run_and_compare(size, draw, POISONS[:1])
                except StageFailed:
                    kept.forget()
                    raise
            message = "; ".join(filter(None, (check.message, "and again on fresh inputs")))
            self._work.record(check.model_copy(update={"message": message}))

    def check_size(self, size: Size, families: Sequence[str] | None = None) -> None:
        """Run a size on inputs of ``families``, or of all that torch passes there, and record that it was right.

        Raises:
            StageFailed: it was not.
            TaskError: the oracle has no such inputs.
        """
        runs, seed = self._runs, self._work.seed
        families = tuple(runs.oracle.families(size.name) if families is None else families)
        message, few = "", self._has_many_operations
        if few:
            two = (*families[:1], *further_family(families, seed))
            tests = (
                () if size.name == DRAWN_SIZE else [test.name for test in self._generators if size.name in test.sizes]
            )
            message = _few_message((*(family for family in families if family not in two), *tests))
            families = two
        worst = 0.0
        for index, family in enumerate(families):
            # The task's own distribution runs under both poisons; the others alternate.
            poisons = POISONS if index == 0 else (POISONS[index % 2],)
            if few and len(families) > 1:
                # Each family under one of them, so that both are used.
                poisons = (POISONS[(index + seed) % 2],)
            with self._shared(size, family) as draw:
                comparison = runs.run_and_compare(size, draw, poisons)
            worst = max(worst, comparison.error or 0.0)
        launches = len(self._work.plans[size.name].launches)
        self._work.checks.append(
            SizeCheck(
                size=size.name, status="passed", families=families, message=message, error=worst, launches=launches
            )
        )

    @property
    def _has_many_operations(self) -> bool:
        """Whether each size is run twice at most: where every run is emulated, and the reference is that large.

        All sizes together decide, so that the note of a hidden one says nothing about its own extents.
        """
        runs = self._runs
        listed = [size.name for size in runs.task.sizes if size.name != "full"]
        operations = sum(facts.flops for facts in runs.facts.sizes if facts.size in listed)
        return runs.device.capabilities.checks_accesses and operations > MANY_OPERATIONS

    @contextlib.contextmanager
    def _shared(self, size: Size, family: str) -> Iterator[DrawHandle]:
        """The kept draw of a listed size in training; else one of this evaluation alone."""
        kept = self._work.kept
        with contextlib.ExitStack() as stack:
            draw = None
            if kept is not None and size.name != DRAWN_SIZE:
                with self._work.clock("oracle"):
                    draw = kept.of(size.name, family)
            yield draw or stack.enter_context(self._runs.drawn(size, family))

    def check_generators(self) -> None:
        """Check the generators' inputs, once the built-in families passed at every such size: they add tests and
        replace none. A reference of many operations is not checked on them.

        Raises:
            StageFailed: an output is wrong.
        """
        if self._has_many_operations:
            return
        runs = self._runs
        for check in tuple(self._work.checks):
            if check.status != "passed":
                continue
            size, families, worst = runs.task.size(check.size), list(check.families), check.error or 0.0
            for index, generator in enumerate(self._generators):
                if size.name not in generator.sizes:
                    continue
                family = f"{TEST_PREFIX}{generator.name}"
                with contextlib.ExitStack() as stack:
                    try:
                        draw = stack.enter_context(runs.drawn(size, family))
                    except TaskError:
                        # Torch itself fails on this draw: it is no test.
                        continue
                    worst = max(worst, runs.run_and_compare(size, draw, (POISONS[index % 2],)).error or 0.0)
                families.append(family)
            self._work.record(check.model_copy(update={"families": tuple(families), "error": worst}))

    def check_drawn(self, candidate: Candidate, compiler: Compiler) -> None:
        """Check a hidden size that is drawn for this evaluation alone; skipped where the task has no hidden sizes.

        It takes the task's own inputs and those of one further family: the listed sizes are checked on all of them. A
        size is skipped, and the next one tried, if the reference does not run there or takes several times the work
        of the listed sizes, or if it breaks a statement that agents see about every size.

        Raises:
            StageFailed: the candidate does not resolve or compile there, or is wrong.
        """
        runs, work, own = self._runs, self._work, self._runs.facts
        families = runs.oracle.families("small")
        most = DRAWN_WORK * max(_work(facts) for facts in own.sizes if facts.size != "full")
        failed = 0
        for size in drawn_sizes(runs.task, work.seed, _MOST_LOOKED_AT):
            if failed == _MOST_FAILED:
                break
            try:
                with work.clock("oracle"):
                    facts = runs.oracle.take_size(size)
            except (TaskError, ChildDied, ChildTimeout):
                failed += 1
                continue
            if _work(facts) > most:
                continue
            if not keeps_shared(runs.task, own, facts):
                failed += 1
                continue
            work.plans.pop(size.name, None)
            try:
                runs.facts = own.model_copy(update={"sizes": (*own.sizes, facts)})
                resolve_plans(candidate, runs.task, runs.facts, work, (size,))
                if size.name not in work.plans:
                    return
                compile_plans(candidate, runs.task, compiler, runs.arch, work, (size,))
                for checked in (("task", *further_family(families, work.seed)), ("task",)):
                    with contextlib.suppress(TaskError):
                        self.check_size(size, checked)
                        return
            finally:
                runs.facts = own
        if any(size.is_hidden for size in runs.task.sizes):
            message = "no further size was drawn: the constants leave none, or the reference does not run there"
            work.checks.append(SizeCheck(size=DRAWN_SIZE, status="skipped", message=message))


MANY_OPERATIONS: Final = 20_000_000_000
"""Where the reference takes more operations at all sizes below the full one together, each of them is run on the task's
own inputs and one further family alone, on an emulated device: a run takes several thread instructions for each."""


def further_family(families: Sequence[str], seed: int) -> tuple[str, ...]:
    """One of the families behind the first, chosen by a secret seed; none where there is no other."""
    others = families[1:]
    return tuple(others[seed % len(others) :][:1]) if others else ()


def _few_message(left_out: Sequence[str]) -> str:
    """The note of a size where the reference has many operations: which inputs were left out, and why."""
    without = f", none of {', '.join(left_out)}" if left_out else ""
    return f"inputs of each kind once{without}: the reference takes over {MANY_OPERATIONS:,} operations in all"


DRAWN_WORK: Final = 4
"""A drawn size takes up to this many times the work of the listed ones. Draws keep to their number of elements, which
says little of a network: images of 7 classes would be 37 times as many as those of 259."""

_MOST_LOOKED_AT: Final = 12
"""Draws of an evaluation that are looked at, too large ones among them."""

_MOST_FAILED: Final = 3
"""Draws of an evaluation at which the reference does not run, or a statement about all sizes does not hold."""

_MOST_TRIES: Final = 2000
"""Random choices that are looked at for one evaluation; a task whose constants leave few of them has no drawn size."""

TILES: Final = (16, 32, 128, 256)
"""Extents of what blocks and warps take at once in most kernels."""

_Values = Mapping[str, int]
_Holds = Callable[[int, int], bool]


def _work(facts: SizeFacts) -> int:
    """Operations of the reference at a size, and bytes of all that it takes and gives."""
    tensors = [weight.spec for weight in facts.weights] + list(facts.outputs)
    tensors += [spec for spec in facts.inputs if isinstance(spec, TensorSpec)]
    return facts.flops + sum(spec.nbytes for spec in tensors)


def drawn_sizes(task: Task, seed: int, most: int = 3) -> Iterator[Size]:
    """Up to ``most`` sizes that are none of the task's own, the first to be tried first; none where nothing varies."""
    rows = _rows(task)
    if len(rows) < 3 or any(size.name == DRAWN_SIZE for size in task.sizes):
        return
    full, listed = rows[0], rows[1:]
    varying = [name for name in full if len({row[name] for row in listed}) > 1]
    rules = _rules(rows, varying)
    largest = max(_volume(row, varying) for row in listed)
    draws = Random(content_hash(seed, task.name, "a further hidden size"))
    seen = [tuple(row[name] for name in varying) for row in rows]
    choices = {name: _choices([row[name] for row in rows], [row[name] for row in listed]) for name in varying}
    for _ in range(_MOST_TRIES if varying else 0):
        constants = _drawn(choices, rules, largest, draws)
        if constants is None or tuple(constants[name] for name in varying) in seen:
            continue
        seen.append(tuple(constants[name] for name in varying))
        # What no size varies, or is no whole number, stays as one of the listed sizes has it.
        other = draws.choice([size for size in task.sizes if size.is_hidden])
        yield Size(name=DRAWN_SIZE, constants={**other.constants, **constants})
        most -= 1
        if not most:
            return


def _rows(task: Task) -> list[dict[str, int]]:
    """Whole constants that sizes replace, at each size: the full one, the small one, the hidden ones."""
    own = parse_task_file(task.source, task.name).constants
    hidden = [size for size in task.sizes if size.is_hidden]
    if not hidden:
        return []
    sizes = [task.size("full"), task.size("small"), *hidden]
    names = sorted({name for size in sizes for name in size.constants})
    rows = [{name: _positive_integer(size.constants.get(name, own.get(name))) for name in names} for size in sizes]
    return [{name: row[name] for name in names if all(other[name] for other in rows)} for row in rows]


def _positive_integer(value: object) -> int:
    """A whole positive number, or 0 in place of anything else."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0


def _choices(everywhere: Sequence[int], listed: Sequence[int]) -> list[int]:
    """Values that a constant may have: of one kind with those that it has."""
    step, least, most = math.gcd(*everywhere), min(listed), max(*listed, min(everywhere[0], 2 * TILES[-1]))
    values = range(least, most + 1, step)
    if all(value & (value - 1) == 0 for value in everywhere):
        return [value for value in values if value & (value - 1) == 0]
    odd = all(value % 2 for value in everywhere)
    return [value for value in values if value % 2 or not odd]


class _Rule:
    """A relation of two constants at every size; ``derive`` gives one from the other where it is fixed."""

    def __init__(self, first: str, second: str, holds: _Holds, derive: Callable[[int], int] | None = None) -> None:
        self.first, self.second, self.holds, self.derive = first, second, holds, derive


def _rules(rows: Sequence[_Values], varying: Sequence[str]) -> list[_Rule]:
    rules: list[_Rule] = []
    for first, second in permutations(varying, 2):
        pairs = [(row[first], row[second]) for row in rows]
        (a, b), differences = pairs[0], {first_value - second_value for first_value, second_value in pairs}
        if all(first_value * b == second_value * a for first_value, second_value in pairs):
            rules.append(_Rule(first, second, _same_ratio(a, b), _scaled(b, a)))
        elif len(differences) == 1:
            rules.append(_Rule(first, second, _same_difference(a - b), _moved(b - a)))
        else:
            if all(first_value % second_value == 0 for first_value, second_value in pairs):
                rules.append(_Rule(first, second, lambda first_value, second_value: first_value % second_value == 0))
            if all(first_value <= second_value for first_value, second_value in pairs):
                rules.append(_Rule(first, second, lambda first_value, second_value: first_value <= second_value))
    return rules


def _same_ratio(a: int, b: int) -> _Holds:
    return lambda first, second: first * b == second * a


def _same_difference(by: int) -> _Holds:
    return lambda first, second: first - second == by


def _scaled(b: int, a: int) -> Callable[[int], int]:
    return lambda value: value * b // a


def _moved(by: int) -> Callable[[int], int]:
    return lambda value: value + by


def _drawn(
    choices: Mapping[str, Sequence[int]], rules: Sequence[_Rule], largest: int, draws: Random
) -> dict[str, int] | None:
    """One value for each constant, of at most ``largest`` elements; None where they do not go together."""
    constants: dict[str, int] = {}
    names = draws.sample(sorted(choices), len(choices))
    for at, name in enumerate(names):
        source = next((rule for rule in rules if rule.derive and rule.first in constants and rule.second == name), None)
        if source is not None and source.derive is not None:
            constants[name] = source.derive(constants[source.first])
            continue
        # What those behind it leave to it. Some of them may follow from it: those may still take too much.
        least = math.prod(choices[other][0] for other in names[at + 1 :])
        values = choices[name][: bisect_right(choices[name], largest // (math.prod(constants.values()) * least))]
        if not values:
            return None
        tiles = [tile for tile in TILES if _behind(tile, values)] if draws.random() < (0.5 if at else 0.8) else []
        constants[name] = draws.choice(_behind(draws.choice(tiles), values)) if tiles else _between(values, draws)
    together = all(rule.holds(constants[rule.first], constants[rule.second]) for rule in rules)
    inside = all(choices[name][0] <= value <= choices[name][-1] for name, value in constants.items())
    return constants if together and inside and math.prod(constants.values()) <= largest else None


def _behind(tile: int, values: Sequence[int]) -> Sequence[int]:
    """Of values in ascending order, those of one whole tile and a part of the next."""
    return values[bisect_right(values, tile) : bisect_left(values, 2 * tile)]


def _between(values: Sequence[int], draws: Random) -> int:
    # Half of them by order of magnitude, which large ones hardly ever leave to a small one.
    aim = draws.uniform(values[0], values[-1] + 1)
    if draws.random() < 0.5:
        aim = math.exp(draws.uniform(math.log(values[0]), math.log(values[-1] + 1)))
    return values[max(bisect_right(values, aim) - 1, 0)]


def _volume(row: _Values, names: Sequence[str]) -> int:
    return math.prod(row[name] for name in names)
