"""The correctness stage: runs at every size but the full one, each compared with the oracle's values."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from kernelforge.compile import Compiler
from kernelforge.errors import ChildDied, ChildTimeout, TaskError
from kernelforge.evaluation.drawn_size import drawn_sizes
from kernelforge.evaluation.generators.recipe import TEST_PREFIX
from kernelforge.evaluation.oracle.task_context import keeps_shared
from kernelforge.evaluation.stages.candidate_runs import POISONS, CandidateRuns
from kernelforge.evaluation.stages.compile_stage import compile_plans, resolve_plans
from kernelforge.records import DRAWN_SIZE, Candidate, InputGenerator, Size, SizeCheck


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

    def check_size(self, size: Size, families: Sequence[str] | None = None) -> None:
        """Run a size on inputs of ``families``, or of all that torch passes there, and record that it was right.

        Raises:
            StageFailed: it was not.
            TaskError: the oracle has no such inputs.
        """
        runs = self._runs
        families = tuple(runs.oracle.families(size.name) if families is None else families)
        worst = 0.0
        for index, family in enumerate(families):
            # The task's own distribution runs under both poisons; the others alternate.
            poisons = POISONS if index == 0 else (POISONS[index % 2],)
            with runs.drawn(size, family) as draw:
                comparison = runs.run_and_compare(size, draw, poisons)
            worst = max(worst, comparison.error or 0.0)
        launches = len(self._work.plans[size.name].launches)
        self._work.checks.append(
            SizeCheck(size=size.name, status="passed", families=families, error=worst, launches=launches)
        )

    def check_generators(self) -> None:
        """Check the generators' inputs, once the built-in families passed at every such size: they add tests and
        replace none.

        Raises:
            StageFailed: an output is wrong.
        """
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
        size is skipped, and the next one tried, if the reference does not run there, or if it breaks a statement that
        agents see about every size.

        Raises:
            StageFailed: the candidate does not resolve or compile there, or is wrong.
        """
        runs, work, own = self._runs, self._work, self._runs.facts
        others = runs.oracle.families("small")[1:]
        for size in drawn_sizes(runs.task, work.seed):
            try:
                with work.clock("oracle"):
                    facts = runs.oracle.take_size(size)
            except (TaskError, ChildDied, ChildTimeout):
                continue
            if not keeps_shared(runs.task, own, facts):
                continue
            work.plans.pop(size.name, None)
            try:
                runs.facts = own.model_copy(update={"sizes": (*own.sizes, facts)})
                resolve_plans(candidate, runs.task, runs.facts, work, (size,))
                if size.name not in work.plans:
                    return
                compile_plans(candidate, runs.task, compiler, runs.device.arch, work, (size,))
                further = others[work.seed % len(others) :][:1] if others else ()
                for families in (("task", *further), ("task",)):
                    with contextlib.suppress(TaskError):
                        self.check_size(size, families)
                        return
            finally:
                runs.facts = own
        if any(size.is_hidden for size in runs.task.sizes):
            message = "no further size was drawn: the constants leave none, or the reference does not run there"
            work.checks.append(SizeCheck(size=DRAWN_SIZE, status="skipped", message=message))
