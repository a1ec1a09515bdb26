"""Launch plans: parsed once, resolved once per size into a flat list of buffers and launches.

The text is read with :mod:`ast` and interpreted by closures (:mod:`kernelforge.candidate.plan_language`); Python never
compiles or executes it. ``docs/launch-plan.md`` is the reference page of the language.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, NamedTuple

from kernelforge.candidate.assembly import assemble
from kernelforge.candidate.plan_language.functions import PROVIDED
from kernelforge.candidate.plan_language.interpreter import Machine, PendingLaunch, PlanLimits
from kernelforge.candidate.plan_language.lexer import chosen_first, normalise, read
from kernelforge.candidate.plan_language.scope import UNBOUND
from kernelforge.candidate.plan_language.statements import Program, compile_program
from kernelforge.candidate.plan_language.values import WEIGHTS, Fault, Refusal, Storage, Tensor, flatten, kind_of
from kernelforge.candidate.resolved import Launch, ResolvedPlan, ScalarArg, Specialisation, TensorArg, TensorMapArg
from kernelforge.errors import CandidateError, PlanError, PlanGuard
from kernelforge.records import Candidate, Language
from kernelforge.records.task import TensorSpec

INT32 = 2**31

MAX_COMBINATIONS = 4_096
"""Combinations of ``# tune:`` values that a plan may offer."""
MAX_HALVED = 16
"""Combinations of which tuning builds and rates all, by successive halving; more are searched."""
MAX_CONSTRAINED = 8_192
"""The same before top-level asserts remove some, which costs a run of the top level each."""


class LaunchSignature(NamedTuple):
    """A kernel with the argument types that one launch gives it, for the compiler's type check."""

    expression: str
    args: tuple[str, ...]
    """``tensor:float32`` for a pointer, ``tensor_map``, or ``i32 i64 f32 f64 f16 bf16`` for a value."""
    specialisation: Specialisation | None = None
    """Of a Triton kernel."""


class Plan:
    """A parsed launch plan. Make one with :func:`parse_plan`."""

    def __init__(self, text: str, program: Program, tunables: Mapping[str, tuple[int, ...]]) -> None:
        self.text = text
        self.tunables: dict[str, tuple[int, ...]] = dict(tunables)
        """Values of each ``# tune:`` name, in the order written."""
        self._program = program
        self.combinations: tuple[dict[str, int], ...] = self._allowed()
        """The combinations of the tunables that the top-level asserts allow, at most :data:`MAX_COMBINATIONS`, first
        values first; one empty combination without tunables."""

    @property
    def parameters(self) -> tuple[str, ...]:
        """Names of the parameters of ``forward``."""
        return self._program.forward.parameters

    @property
    def constants(self) -> dict[str, int]:
        """Top-level integers, tunables at their first values."""
        return self.constants_at({})

    def constants_at(self, choices: Mapping[str, int]) -> dict[str, int]:
        """The ``constexpr int`` values of the source: the tunables as chosen, then the top-level integers.

        Raises:
            PlanError: a choice that the plan does not offer, or a constant beyond 32 bits.
        """
        with reported(self.text):
            return self._run_top_level(Machine(PlanLimits(), {}, {}), choices)

    def resolve(
        self,
        inputs: Sequence[TensorSpec | int | float | bool | None],
        weights: Mapping[str, TensorSpec],
        attrs: Mapping[str, int | float | bool | str],
        choices: Mapping[str, int] | None = None,
        limits: PlanLimits | None = None,
        library: Collection[str] = (),
        in_place: bool = False,
    ) -> ResolvedPlan:
        """Run the plan at one size.

        Args:
            inputs: Arguments of ``forward``: tensors by spec, others by value.
            weights: Tensors that ``w["name"]`` reaches; those used become buffers.
            attrs: Scalars that ``attrs["name"]`` reaches.
            choices: Values of the tunables; those left out take their first value.
            limits: Limits of the plan, ``setup`` included.
            library: Torch operators that ``library`` may name, by the task's policy.
            in_place: Whether ``forward`` may return nothing, because its kernels write to its inputs.

        Returns:
            Buffers (inputs, then weights in order of first use, then the plan's own), steps and outputs. The
            buffer of a strided tensor spans from its first element to its last.

        Raises:
            PlanGuard: an ``assert`` of the plan refused this size.
            PlanError: any other error, with its line.
        """
        with reported(self.text):
            machine = Machine(limits or PlanLimits(), weights, attrs, frozenset(library))
            constants = self._run_top_level(machine, choices or {})
            self._run_setup(machine)
            outputs = self._run_forward(machine, inputs, in_place)
            return assemble(machine, outputs, constants)

    def _allowed(self) -> tuple[dict[str, int], ...]:
        count = math.prod(map(len, self.tunables.values()))
        limit = MAX_CONSTRAINED if self._program.constrained else MAX_COMBINATIONS
        if count > limit:
            raise Fault(f"the # tune: lines make {count:,} combinations; the limit is {limit:,}")
        names = tuple(self.tunables)
        every = [dict(zip(names, values, strict=True)) for values in itertools.product(*self.tunables.values())]
        if not self._program.constrained:
            return tuple(every)
        machine = Machine(PlanLimits(), {}, {})  # one for all, so that its limit of steps is theirs together
        try:
            self._run_top_level(machine, every[0])
        except Refusal as refusal:
            raise Fault(f"the first values break this assert: {refusal.message}", refusal.line) from None
        allowed = [every[0], *(choices for choices in every[1:] if self._allows(machine, choices))]
        if len(allowed) > MAX_COMBINATIONS:
            counts = f"{len(allowed):,} of {count:,} combinations of # tune: values"
            raise Fault(f"the asserts allow {counts}; the limit is {MAX_COMBINATIONS:,}")
        return tuple(allowed)

    def _allows(self, machine: Machine, choices: Mapping[str, int]) -> bool:
        """Whether the constants can be computed, and satisfy the asserts, with these values."""
        try:
            self._run_top_level(machine, choices)
        except Fault as fault:
            if machine.steps > machine.max_steps:
                raise Fault(
                    f"the top level takes more than {machine.max_steps:,} steps for all combinations of # tune: "
                    "values; write fewer of them, or shorter asserts",
                    fault.line,
                ) from None
            return False
        return True

    def _run_top_level(self, machine: Machine, choices: Mapping[str, int]) -> dict[str, int]:
        module = self._program.module
        machine.module = [machine, *(UNBOUND for _ in range(module.size))]
        for name in choices:
            if name not in self.tunables:
                raise Fault(f"there is no '# tune: {name} = ...' line to choose {name} by")
        for name, values in self.tunables.items():
            choice = choices.get(name, values[0])
            if choice not in values:
                raise Fault(f"{name} = {choice} is not one of {' | '.join(map(str, values))}")
            machine.module[module.slots[name]] = choice
        for line, price, execute in self._program.top_level:
            try:
                machine.spend(price)
                execute(machine.module)
            except Fault as error:
                error.line = error.line or line
                raise
        constants = {name: machine.module[slot] for name, slot in module.slots.items()}
        constants = {name: value for name, value in constants.items() if type(value) is int}
        for name, value in constants.items():
            if not -INT32 <= value < INT32:
                raise Fault(f"the constant {name} = {value} does not fit the constexpr int that the source sees")
        return constants

    def _run_setup(self, machine: Machine) -> None:
        setup = self._program.setup
        if setup is None:
            return
        machine.begin("setup")
        returned = setup.call(machine, [WEIGHTS], {})
        try:
            _keep(machine, returned)
        except Fault as error:
            error.line = error.line or setup.line
            raise

    def _run_forward(
        self, machine: Machine, inputs: Sequence[TensorSpec | int | float | bool | None], in_place: bool
    ) -> tuple[Tensor, ...]:
        forward = self._program.forward
        names, needed = forward.parameters, len(forward.parameters) - len(forward.defaults)
        if not needed <= len(inputs) <= len(names):
            there = [name for name in names if name in PROVIDED]
            hint = f"; {' and '.join(there)} can be used without being parameters" if there else ""
            raise Fault(
                f"forward takes {len(names)} arguments ({', '.join(names)}), the task gives {len(inputs)}{hint}",
                forward.line,
            )
        values = [machine.take_input(value, names[position], position) for position, value in enumerate(inputs)]
        machine.begin("forward")
        returned = forward.call(machine, values, {})
        try:
            return () if in_place and returned is None else _outputs(machine, returned)
        except Fault as error:
            error.line = error.line or forward.line
            raise


def parse_plan(text: str, language: Language = "cuda") -> Plan:
    """Read a launch plan, whose launches are written for kernels in ``language``.

    Raises:
        PlanError: the text is not Python, uses an unsupported construct, or is too large; with the line.
    """
    return _parsed(normalise(text), language)


@lru_cache(maxsize=8)  # an evaluation reads a plan many times, and asserts on thousands of combinations take a second
def _parsed(text: str, language: Language) -> Plan:
    with reported(text):
        tree, tunables = read(text)
        return Plan(text, compile_program(tree, tuple(tunables), language), tunables)


def signatures(resolved: ResolvedPlan) -> list[LaunchSignature]:
    """Each kernel with the argument types it is launched with, each pair once, in order of first launch."""
    return list(
        dict.fromkeys(
            LaunchSignature(
                launch.expression,
                tuple(_kind_of_argument(arg) for arg in launch.args),
                launch.specialisation,
            )
            for launch in (*resolved.setup, *resolved.steps)
            if isinstance(launch, Launch)
        )
    )


def _kind_of_argument(arg: TensorArg | ScalarArg | TensorMapArg) -> str:
    if isinstance(arg, TensorArg):
        return f"tensor:{arg.dtype}"
    return "tensor_map" if isinstance(arg, TensorMapArg) else arg.type


@contextmanager
def reported(text: str) -> Iterator[None]:
    """Turn faults of the language into errors that quote the line."""
    try:
        yield
    except Fault as error:
        message = error.message
        if error.line is not None:
            lines = text.split("\n")
            excerpt = lines[error.line - 1].strip()[:160] if 0 < error.line <= len(lines) else ""
            excerpt = excerpt.encode(errors="replace").decode()  # a message cannot hold half of a surrogate pair
            message = f"line {error.line}: {message}" + (f"\n    {excerpt}" if excerpt else "")
        kind = PlanGuard if isinstance(error, Refusal) else PlanError
        raise kind(message, line=error.line) from None
    except RecursionError:
        raise PlanError("the plan nests expressions and helpers too deeply; split its expressions") from None


def _keep(machine: Machine, returned: Any) -> None:
    """Make the return value of ``setup`` the plan's prepared tensors."""
    if returned is None:
        raise Fault("setup returned nothing; end it with return and the tensors that forward finds in prepared")
    leaves = flatten(returned, machine.spend)
    if not leaves:
        raise Fault("setup returned no tensor")
    for leaf in leaves:
        if type(leaf) is not Tensor:
            raise Fault(f"setup returns tensors, not {kind_of(leaf)}")
        label = leaf.storage.label or "a tensor"
        if leaf.storage.kind == "weight":
            raise Fault(f"setup returns {label}, which it was given; forward reads it from w")
        if leaf.storage.first_use is None and leaf.storage.nbytes:
            raise Fault(f"setup returns {label}, which none of its steps writes")
    for leaf in leaves:
        leaf.storage.kind = "prepared"
    machine.prepared = returned


def _outputs(machine: Machine, returned: Any) -> tuple[Tensor, ...]:
    if returned is None:
        raise Fault("forward returned nothing; end it with return and a tensor")
    if not any(isinstance(step, PendingLaunch) for step in machine.forward.steps):
        raise Fault("the plan launches no kernel")
    leaves = flatten(returned, machine.spend)
    if not leaves:
        raise Fault("forward returned no tensor")
    spans: dict[Storage, list[tuple[int, int]]] = {}
    for leaf in leaves:
        if type(leaf) is not Tensor:
            raise Fault(f"forward returns tensors, not {kind_of(leaf)}")
        if leaf.storage.kind != "workspace":
            owner = "setup returned" if leaf.storage.kind == "prepared" else "it was given"
            label = leaf.storage.label or "a tensor"
            raise Fault(f"forward returns {label}, which {owner}; write the result to a new tensor")
        spans.setdefault(leaf.storage, []).append((leaf.offset_bytes, leaf.offset_bytes + leaf.nbytes))
    for storage, ranges in spans.items():
        filled = sorted(span for span in ranges if span[0] < span[1])
        if any(before[1] > after[0] for before, after in itertools.pairwise(filled)):
            raise Fault(f"forward returns the same memory twice, in {storage.label or 'a tensor'}; copy it in a kernel")
    return tuple(leaves)


def chosen_values(candidate: Candidate) -> dict[str, int]:
    """The value of every ``# tune:`` name, the first one where the candidate chooses none.

    Of a plan that cannot be read, only the choices of the candidate.
    """
    return {**_tuning_space(candidate.plan, candidate.language or "cuda").first, **candidate.choices}


def combinations_of(candidate: Candidate) -> int:
    """Combinations of ``# tune:`` values that a candidate's plan offers, 1 without any; 0 for one that cannot be
    read."""
    return _tuning_space(candidate.plan, candidate.language or "cuda").combinations


class _TuningSpace(NamedTuple):
    first: Mapping[str, int]
    """The first value of every ``# tune:`` name."""
    combinations: int


@lru_cache(maxsize=256)  # reports need it of every attempt several times
def _tuning_space(plan: str, language: Language) -> _TuningSpace:
    """First values and number of combinations of a plan; no values and 0 for one that cannot be read."""
    try:
        combinations = parse_plan(plan, language).combinations
    except CandidateError:
        return _TuningSpace({}, 0)
    return _TuningSpace(combinations[0], len(combinations))


def plan_as_chosen(candidate: Candidate) -> str:
    """The plan with the chosen value first on each ``# tune:`` line, so that it needs no choices.

    A plan whose first values are chosen, or that cannot be read, stays unchanged.
    """
    return chosen_first(normalise(candidate.plan), candidate.choices) if candidate.choices else candidate.plan
