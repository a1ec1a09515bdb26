"""Runs a task's mutants on the draws that candidates are checked on, and judges them. Child process.

Draws are made once for a task and only as far as they are needed: most mutants end at the first.
"""

from __future__ import annotations

import contextlib
import copy
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import nn

from kernelforge.errors import TaskError
from kernelforge.evaluation.audit import mutations_operators, mutations_outputs, mutations_positions, mutations_sums
from kernelforge.evaluation.audit.injection import (
    AuditPrecision,
    MutatedReference,
    MutationNotApplicable,
    Recorder,
    unchanged,
)
from kernelforge.evaluation.audit.mutants import Mutant, mutants_of, select_evenly
from kernelforge.evaluation.audit.results import MutantOutcome, TaskAudit, TestedMutant
from kernelforge.evaluation.generators.recipe import TEST_PREFIX
from kernelforge.evaluation.oracle.worker.comparison import Got
from kernelforge.evaluation.oracle.worker.reference import Reference, Value
from kernelforge.evaluation.oracle.worker.reference_runner import InputDraw, ReferenceRunner
from kernelforge.evaluation.oracle.worker.tolerance import unit_roundoff
from kernelforge.records import TaskPolicy
from kernelforge.tasks import size_source

REGISTERED = (mutations_outputs, mutations_operators, mutations_sums, mutations_positions)
"""Importing them fills the registry of faults."""

_SEEDS = (11, 22)
"""Draws of each size and family; what an earlier call left behind comes from the next seed."""

_KERNELBENCH_TRIALS = 5
_KERNELBENCH_SEED = 42
_KERNELBENCH_TOLERANCE = {torch.float16: 1e-2, torch.bfloat16: 1e-2}

Outputs = tuple[torch.Tensor, ...]


@dataclass
class Trial:
    """One set of inputs and weights on which a mutant is run."""

    reference: Reference
    inputs: tuple[Value, ...]
    model: nn.Module
    constructed: Mapping[str, torch.Tensor]
    """Parameters as they are right after construction."""
    outputs: Outputs
    """The reference's own."""
    stale: Outputs
    """Those of an earlier call with other inputs."""
    policy: TaskPolicy

    @property
    def setting(self) -> AuditPrecision:
        units = [unit_roundoff(output.dtype) for output in self.outputs if output.is_floating_point()]
        return AuditPrecision(self.policy.accumulator, min(units, default=0.0))

    def run(self, mutant: Mutant) -> Outputs:
        """The mutant's outputs.

        Raises:
            MutationNotApplicable: the fault does not exist here, or what it gives has another shape.
        """
        if mutant.on_output is not None:
            position = int(mutant.location.removeprefix("output"))
            changed = mutant.on_output(self.outputs, self.stale, position)
            results = (*self.outputs[:position], changed, *self.outputs[position + 1 :])
        elif mutant.on_call is not None:
            mode = MutatedReference(mutant.location, mutant.on_call, self.setting)
            results = self._forward(self.inputs, copy.deepcopy(self.model), mode)
            if not mode.hit:
                raise MutationNotApplicable("the reference does not come to this call")
        elif mutant.on_input is not None:
            position = int(mutant.location.removeprefix("input"))
            value = self.inputs[position]
            assert isinstance(value, torch.Tensor)
            inputs = (*self.inputs[:position], mutant.on_input(value), *self.inputs[position + 1 :])
            results = self._forward(inputs, copy.deepcopy(self.model))
        else:
            results = self._with_weight(mutant)
        if [output.shape for output in results] != [output.shape for output in self.outputs]:
            raise MutationNotApplicable("the answer has another shape")
        return results

    def control(self, mutant: Mutant) -> Outputs:
        """The reference with the composites around a fault opened, and no fault."""
        mode = MutatedReference(mutant.location, unchanged, self.setting)
        return self._forward(self.inputs, copy.deepcopy(self.model), mode)

    def _with_weight(self, mutant: Mutant) -> Outputs:
        assert mutant.on_weight is not None
        model = copy.deepcopy(self.model)
        name = mutant.location.removeprefix("weight[").removesuffix("]")
        weight = dict(model.named_parameters()).get(name)
        if weight is None:
            raise MutationNotApplicable("there is no such weight")
        with torch.no_grad():
            weight.copy_(mutant.on_weight(weight.detach().clone(), self.constructed[name]))
        return self._forward(self.inputs, model)

    def _forward(self, inputs: Sequence[Value], model: nn.Module, *within: Any) -> Outputs:
        try:
            return self.reference.run(inputs, self.policy.mutates, model=model, within=within)
        except TaskError as error:
            # Any error of the faulty reference: such a kernel could not exist.
            raise MutationNotApplicable(str(error)) from error


@dataclass(frozen=True)
class _Judgement:
    """One mutant on some draws, up to the first that rejects it."""

    ran: bool
    """Whether the fault exists on one of them."""
    rejected: tuple[str, str] | None
    """Size and family of the draw that rejects it."""
    equal: bool
    """It gave the reference's very bits until then."""


class MutationAudit:
    """The audit of one task."""

    def __init__(self, reckoner: ReferenceRunner) -> None:
        self._reckoner = reckoner
        self._task = reckoner.task
        self._sizes = [size.name for size in self._task.sizes if size.name != "full"]
        self._trials: dict[tuple[str, str, int], tuple[InputDraw, Trial]] = {}
        self._honest: dict[tuple[str, str, str, int], bool] = {}

    def audit(self, most: int, also: Sequence[str] = ()) -> TaskAudit:
        """Outcomes of at most ``most`` mutants, and of those named in ``also``.

        Raises:
            TaskError: the reference cannot be run or judged.
        """
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            mutants = self._mutants()
            picked = select_evenly(mutants, most)
            picked += [mutant for mutant in mutants if mutant.name in also and mutant not in picked]
            outcomes = tuple(self._outcome(mutant) for mutant in picked)
        return TaskAudit(task=self._task.name, mutants=outcomes, made=len(mutants))

    def _mutants(self) -> list[Mutant]:
        _, trial = self._trial("small", "task", 0)
        recorder = Recorder(trial.setting)
        model = copy.deepcopy(trial.model)
        outputs = trial.reference.run(trial.inputs, self._task.policy.mutates, model=model, within=(recorder,))
        weights = [(name, weight.detach()) for name, weight in trial.model.named_parameters()]
        mutants = mutants_of(recorder.leading_to(outputs), weights, trial.inputs, trial.outputs)
        return list({mutant.name: mutant for mutant in mutants}.values())

    def tested(self, most: int, tests: Mapping[str, Sequence[str]]) -> tuple[TestedMutant, ...]:
        """Outcomes of at most ``most`` mutants, each with the inputs that reject it.

        Args:
            most: how many mutants are run, the same as of :meth:`audit`.
            tests: names of generators in force, each with the sizes at which it was admitted.

        Raises:
            TaskError: the reference cannot be run or judged.
        """
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return tuple(self._tested(mutant, tests) for mutant in select_evenly(self._mutants(), most))

    def _tested(self, mutant: Mutant, tests: Mapping[str, Sequence[str]]) -> TestedMutant:
        # The same seeds for all: a generator that returns the task's own inputs rejects nothing that they do not.
        first = [(size, "task") for size in self._sizes]
        if self._judge(mutant, first).rejected:
            return TestedMutant(mutant=mutant.name, fault=mutant.fault.name, by_first=True, by_check=True)
        others = [pair for pair in self._families() if pair not in first]
        by_tests = tuple(
            name
            for name, sizes in tests.items()
            if self._judge(mutant, [(size, f"{TEST_PREFIX}{name}") for size in sizes]).rejected
        )
        return TestedMutant(
            mutant=mutant.name,
            fault=mutant.fault.name,
            by_first=False,
            by_tests=by_tests,
            by_check=self._judge(mutant, others).rejected is not None,
        )

    def _outcome(self, mutant: Mutant) -> MutantOutcome:
        judgement = self._judge(mutant, self._families())
        if judgement.rejected is not None:
            size, family = judgement.rejected
            return self._report(mutant, "killed", size=size, family=family)
        if judgement.ran:
            return self._report(mutant, "survived", bitwise_equal=judgement.equal)
        return self._report(mutant, "invalid")

    def _judge(self, mutant: Mutant, families: Iterable[tuple[str, str]]) -> _Judgement:
        """Run a mutant on the draws of some families, each with its size, until one rejects it."""
        ran, equal = False, True
        for size, family, number in self._draws(families):
            drawn, trial = self._trial(size, family, number)
            try:
                outputs = trial.run(mutant)
                if not self._is_honest(mutant, size, family, number):
                    continue
            except MutationNotApplicable:
                continue
            ran = True
            if not self._reckoner.compare(drawn, [Got.of(output) for output in outputs]).ok:
                return _Judgement(ran, (size, family), equal)
            equal = equal and all(_same_bits(a, b) for a, b in zip(outputs, trial.outputs, strict=True))
        return _Judgement(ran, None, equal)

    def _report(self, mutant: Mutant, outcome: Any, **rest: Any) -> MutantOutcome:
        killed = outcome != "invalid" and self._kernelbench_kills(mutant)
        return MutantOutcome(
            mutant=mutant.name, fault=mutant.fault.name, outcome=outcome, kernelbench_killed=killed, **rest
        )

    def _families(self) -> Iterator[tuple[str, str]]:
        """Sizes with the families that are admitted there, in the order in which candidates are checked."""
        for size in self._sizes:
            for family in self._reckoner.scales(size):
                yield size, family

    def _draws(self, families: Iterable[tuple[str, str]]) -> Iterator[tuple[str, str, int]]:
        for size, family in families:
            for number in range(len(_SEEDS)):
                with contextlib.suppress(TaskError):
                    self._trial(size, family, number)
                    yield size, family, number

    def _is_honest(self, mutant: Mutant, size: str, family: str, number: int) -> bool:
        """Whether the fault's composite, opened and without the fault, is accepted: else its answer proves nothing."""
        outer, slash, _ = mutant.location.rpartition("/")
        if not slash:
            return True
        key = (outer, size, family, number)
        if key not in self._honest:
            drawn, trial = self._trials[size, family, number]
            self._honest[key] = self._reckoner.compare(drawn, [Got.of(output) for output in trial.control(mutant)]).ok
        return self._honest[key]

    def _trial(self, size: str, family: str, number: int) -> tuple[InputDraw, Trial]:
        key = (size, family, number)
        if key not in self._trials:
            reckoner, seed = self._reckoner, _SEEDS[number]
            drawn = reckoner.draw(size, family, seed)
            assert drawn.expected is not None
            earlier = reckoner.draw(size, family, seed + 1, expected=False)
            reference = reckoner.reference(size)
            stale = reference.run(earlier.inputs, self._task.policy.mutates, model=reckoner.model_of(earlier))
            trial = Trial(
                policy=self._task.policy,
                reference=reference,
                inputs=drawn.inputs,
                model=reckoner.model_of(drawn),
                constructed=reference.constructed_parameters(),
                outputs=tuple(output.reference for output in drawn.expected),
                stale=stale,
            )
            self._trials[key] = (drawn, trial)
        return self._trials[key]

    @cached_property
    def _kernelbench(self) -> list[Trial]:
        """KernelBench's trials: the task's own inputs at one size, weights as constructed."""
        reference = Reference(size_source(self._task, "small"), {}, filename=f"{self._task.name}.py")
        trials: list[Trial] = []
        for number in range(_KERNELBENCH_TRIALS + 1):
            inputs = reference.inputs(_KERNELBENCH_SEED + number)
            outputs = reference.run(inputs, self._task.policy.mutates)
            trial = Trial(
                policy=self._task.policy,
                reference=reference,
                inputs=inputs,
                model=reference.copy_of_model(),
                constructed=reference.constructed_parameters(),
                outputs=outputs,
                stale=trials[-1].outputs if trials else outputs,
            )
            trials.append(trial)
        # The first is only what the second finds in memory.
        return trials[1:]

    def _kernelbench_kills(self, mutant: Mutant) -> bool:
        """KernelBench's rule: the first output of each trial within ``allclose`` of the reference's.

        A mutant that cannot run at this size, or gives another dtype (``allclose`` raises), is rejected.
        """
        for trial in self._kernelbench:
            try:
                got = trial.run(mutant)[0]
                bound = _KERNELBENCH_TOLERANCE.get(trial.outputs[0].dtype, 1e-4)
                if not torch.allclose(trial.outputs[0], got, atol=bound, rtol=bound):
                    return True
            except MutationNotApplicable:
                # The fault does not show here: the answer is the reference's own.
                continue
            except RuntimeError:
                return True
        return False


def _same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    if a.dtype != b.dtype:
        return False
    first, second = (value.contiguous().reshape(-1).view(torch.uint8) for value in (a, b))
    return torch.equal(first, second)
