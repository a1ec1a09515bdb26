"""Mutants of a task: a fault at a place; which of them are run."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

import torch

from kernelforge.evaluation.audit.injection import Change, Recorded

WeightChange = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""What a fault makes of a weight: given its value, and its value as constructed."""

OutputChange = Callable[[Sequence[torch.Tensor], Sequence[torch.Tensor], int], torch.Tensor]
"""What a fault makes of one output: given all outputs, those of an earlier draw, and the position."""

InputChange = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class MutationOperator:
    """A kind of mistake that real kernels have."""

    name: str
    stands_for: str
    """The bug in a kernel that it imitates."""


FAULTS: Final[dict[str, MutationOperator]] = {}
"""Every fault by name, in the order in which they are documented."""


@dataclass(frozen=True)
class Mutant:
    """The reference with one fault. Exactly one of the four changes is set."""

    fault: MutationOperator
    detail: str
    location: str
    on_call: Change | None = None
    on_weight: WeightChange | None = None
    on_input: InputChange | None = None
    on_output: OutputChange | None = None

    @property
    def name(self) -> str:
        """Stable as long as the reference's operators are: ``eps:x10@native_layer_norm``."""
        detail = f":{self.detail}" if self.detail else ""
        return f"{self.fault.name}{detail}@{self.location}"


CallFault = Callable[[Recorded], Iterator[tuple[str, Change]]]
WeightFault = Callable[[str, torch.Tensor], Iterator[tuple[str, WeightChange]]]
InputFault = Callable[[torch.Tensor], Iterator[tuple[str, InputChange]]]
OutputFault = Callable[[Sequence[torch.Tensor], int], Iterator[tuple[str, OutputChange]]]

Make = TypeVar("Make", bound=Callable[..., Any])


class _Faults(Generic[Make]):
    """Faults of one kind. To call it decorates a function that yields (detail, change) for each fault it can make."""

    def __init__(self) -> None:
        self.makers: list[tuple[MutationOperator, Make]] = []

    def __call__(self, name: str, stands_for: str) -> Callable[[Make], Make]:
        fault = FAULTS.setdefault(name, MutationOperator(name, stands_for))

        def register(make: Make) -> Make:
            self.makers.append((fault, make))
            return make

        return register


call_fault: Final = _Faults[CallFault]()
"""In operator calls."""

weight_fault: Final = _Faults[WeightFault]()
"""In how a weight is read."""

input_fault: Final = _Faults[InputFault]()
"""In how an input is read."""

output_fault: Final = _Faults[OutputFault]()
"""In how an output is written."""


def mutants_of(
    calls: Iterable[Recorded],
    weights: Iterable[tuple[str, torch.Tensor]],
    inputs: Sequence[Any],
    outputs: Sequence[torch.Tensor],
) -> list[Mutant]:
    """Every mutant that the registered faults make of a recorded run."""
    mutants: list[Mutant] = []
    for position in range(len(outputs)):
        for fault, make_output in output_fault.makers:
            for detail, on_output in make_output(outputs, position):
                mutants.append(Mutant(fault, detail, f"output{position}", on_output=on_output))
    for position, value in enumerate(inputs):
        if isinstance(value, torch.Tensor):
            for fault, make_input in input_fault.makers:
                for detail, on_input in make_input(value):
                    mutants.append(Mutant(fault, detail, f"input{position}", on_input=on_input))
    for name, weight in weights:
        for fault, make_weight in weight_fault.makers:
            for detail, on_weight in make_weight(name, weight):
                mutants.append(Mutant(fault, detail, f"weight[{name}]", on_weight=on_weight))
    for recorded in calls:
        for fault, make_call in call_fault.makers:
            for detail, on_call in make_call(recorded):
                mutants.append(Mutant(fault, detail, recorded.site, on_call=on_call))
    return mutants


def select_evenly(mutants: Sequence[Mutant], most: int) -> list[Mutant]:
    """At most so many, one of each fault in turn. A fault's mutants come in an order that their names decide, so that
    one more place in a reference does not change the choice elsewhere."""
    by_fault: dict[str, list[Mutant]] = {}
    for mutant in mutants:
        by_fault.setdefault(mutant.fault.name, []).append(mutant)
    queues = [sorted(by_fault[name], key=_rank) for name in FAULTS if name in by_fault]
    picked: list[Mutant] = []
    while len(picked) < most and any(queues):
        for queue in queues:
            if queue and len(picked) < most:
                picked.append(queue.pop(0))
    return picked


def _rank(mutant: Mutant) -> str:
    return hashlib.sha256(mutant.name.encode()).hexdigest()
