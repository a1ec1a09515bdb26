"""One draw of inputs and weights, its expected outputs, and the input families that a task admits."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import torch

from kernelforge.errors import TaskError
from kernelforge.evaluation.generators.recipe import TEST_PREFIX, Recipe
from kernelforge.evaluation.oracle.worker.comparison import Got, Selection, SelectionRecorder, compare_outputs
from kernelforge.evaluation.oracle.worker.inputs import (
    PROBES,
    SCALES,
    IntegerProfile,
    derived_seed,
    draw_inputs,
    draw_recipe,
    families_of,
    integer_profile,
)
from kernelforge.evaluation.oracle.worker.reference import Reference, Value, outline_of, to_device, weights_up_to
from kernelforge.evaluation.oracle.worker.reference_facts import facts_at
from kernelforge.evaluation.oracle.worker.sequential_sums import SequentialSums
from kernelforge.evaluation.oracle.worker.tiles import FewSlices, Tiles, draw_tiles, weight_tiles
from kernelforge.evaluation.oracle.worker.tolerance import Expected, expected_output, pieces
from kernelforge.evaluation.oracle.worker.torch_device import HOST, generator, unfused_kernels
from kernelforge.evaluation.oracle.worker.trivial import blind_answers
from kernelforge.records import Comparison, Size, Task
from kernelforge.tasks import evaluate_expression, parse_task_file, size_source

PROBE_LIMIT: Final = 1 << 20
"""Sizes with more input elements than this are checked on the plain families only, as the small size admits them."""

PROBE_OPERATIONS: Final = 2_000_000_000
"""The same of a full size whose reference takes more operations than this: to see which families torch passes there
runs it some thirty times, before a stage has decided whether it may be run at all."""

LARGE_WEIGHTS: Final = 1 << 30
"""A reference with more bytes of parameters is not constructed only to be described."""

_FORGOTTEN_WEIGHTS: Final = 1 << 28
"""A reference with more bytes of parameters, of which it holds two copies, is there at one size at a time."""

_PLAIN_FAMILIES: Final = ("task", "normal", "sparse")

_TELLING: Final = ("normal", "large")
"""Families that are of no use at a scale that saturates the outputs. The task's own inputs may be of one sign,
and ``edge`` and ``sparse`` have few distinct values on purpose: admission weighs these."""

_SATURATED_DRAWS: Final = 4

_DRAW_ATTEMPTS: Final = 8
"""Draws of a family before one is given up; a family of which every twelfth draw is unfit is still always had."""

_PROBE_SEED: Final = 0x5EED
"""Seed of the draws that decide which families are admitted; draws for candidates have secret ones."""

ADMISSION_SEEDS: Final = (101, 202)
"""Seeds of the draws that admission looks at: a family that is no use there is tried smaller, or dropped."""


_NUDGE: Final = 2.0**-30
"""Relative step of the runs that measure conditioning: far above float64's roundoff, far below float32's."""

_TWICE_LIMIT: Final = 1 << 18
"""Up to this many output elements conditioning is measured twice, so that no element is missed by an unlucky step."""


def nudged(draws: torch.Generator, value: torch.Tensor) -> torch.Tensor:
    moved = torch.empty_like(value)
    for part, target in pieces(value, moved):
        step = torch.empty(part.shape, dtype=torch.float32, device=part.device).uniform_(-2.0, 2.0, generator=draws)
        torch.addcmul(part, part, step.double(), value=_NUDGE, out=target)
    return moved


@dataclass(frozen=True)
class _Runs:
    """Outputs of a reference on some inputs, run in three ways."""

    values: tuple[torch.Tensor, ...]
    """At the task's precision."""
    sequential: tuple[torch.Tensor, ...]
    """The same with every sum in order."""
    exact: tuple[torch.Tensor, ...]
    terms: float
    """Of a sum that was not taken in order."""
    accumulator: torch.dtype
    selections: tuple[Selection | None, ...]

    def expected(self, conditions: tuple[torch.Tensor | None, ...] | None = None) -> tuple[Expected, ...]:
        return tuple(
            expected_output(value, truth, ordered, self.terms, condition, accumulator=self.accumulator)
            for value, truth, ordered, condition in zip(
                self.values, self.exact, self.sequential, conditions or (None,) * len(self.values), strict=True
            )
        )


@dataclass(frozen=True)
class InputDraw:
    """Inputs of one draw and, where asked for, what the outputs must be."""

    size: str
    family: str
    inputs: tuple[Value, ...]
    expected: tuple[Expected, ...] | None
    selections: tuple[Selection | None, ...] = ()
    seed: int = 0
    """Its secret; the weights of the draw come back by it."""
    tiles: Tiles = field(default_factory=dict)
    """The large inputs, of which ``inputs`` has only the tile, and the large weights."""


class ReferenceRunner:
    """A task's references at all its sizes; draws inputs and works out expected outputs, on one device.

    Raises:
        TaskError: the reference is random, or fails the tolerance of its own inputs.
    """

    def __init__(self, task: Task, device: torch.device = HOST) -> None:
        self.task = task
        self.device = device
        self._described: dict[str, Reference] = {}
        self._references: dict[str, Reference] = {}
        self._scales: dict[str, dict[str, float]] = {}
        self._sums: dict[str, bool] = {}
        """Whether the reference sums anything at a size; where not, there is no order to measure."""
        self._integer_profiles: dict[str, dict[int, IntegerProfile]] = {}
        self._shapes: dict[str, list[torch.Size]] = {}
        self._admission_draws: dict[tuple[str, str, float], tuple[InputDraw, InputDraw]] = {}
        """By size, family and scale; of one size at a time, and of small ones."""
        self._further = ""
        """Name of the size that :meth:`take_size` took last."""
        self.tests: dict[str, Recipe] = {}
        """Further input families by name, without :data:`TEST_PREFIX`."""
        self._constants = parse_task_file(task.source, task.name).constants

    def reference(self, size: str) -> Reference:
        """The reference at one size on the device, constructed on first use."""
        if size not in self._references:
            described = self.described(size)
            if size == "small":
                self._refuse_randomness(described)
            constructed = self._constructed(size) if described.is_outline else described
            self._references[size] = constructed.on(self.device)
        return self._references[size]

    def described(self, size: str) -> Reference:
        """The reference on the host, for what is said of a task: facts and graphs are the same on every device.

        At the full size it is an outline where its weights are large and it runs without their values.
        """
        if size not in self._described:
            self._described[size] = (self._not_too_large(size) if size == "full" else None) or self._constructed(size)
        return self._described[size]

    def _constructed(self, size: str, making: contextlib.AbstractContextManager[object] | None = None) -> Reference:
        return Reference(size_source(self.task, size), {}, filename=f"{self.task.name}.py", making=making)

    def _not_too_large(self, size: str) -> Reference | None:
        """The reference itself where its weights are not large, else its outline; None where that does not run."""
        with contextlib.suppress(TaskError):
            return self._constructed(size, weights_up_to(LARGE_WEIGHTS))
        with contextlib.suppress(TaskError):
            outline = outline_of(size_source(self.task, size), {}, filename=f"{self.task.name}.py")
            outline.run(outline.fake_inputs(), self.task.policy.mutates)
            return outline
        return None

    def make_room(self, size: str) -> None:
        """Forget references of other sizes whose weights are large, before work at this one.

        A later use constructs them again; the weights of a draw come back by its seed. An outline holds no weights.
        """
        large = [
            (references, name)
            for references in (self._described, self._references)
            for name, reference in references.items()
            if name != size and not reference.is_outline and reference.weight_bytes() > _FORGOTTEN_WEIGHTS
        ]
        for references, name in large:
            del references[name]
        if large:
            gc.collect()  # a trace of a model leaves objects that refer to each other, and to it

    def take_size(self, size: Size) -> None:
        """From now on the task also has this size, in place of one of that name; families are those of the small one.

        Raises:
            TaskError: the reference does not run there.
        """
        for kept in (self._described, self._references, self._scales, self._sums, self._integer_profiles, self._shapes):
            kept.pop(size.name, None)
        self._admission_draws.clear()
        others = tuple(listed for listed in self.task.sizes if listed.name != size.name)
        self.task = self.task.model_copy(update={"sizes": (*others, size)})
        self._scales[size.name] = dict(self.scales("small"))
        self._further = size.name
        self.reference(size.name)

    def model_of(self, drawn: InputDraw) -> torch.nn.Module:
        """A model of its own with the weights of one draw."""
        reference = self.reference(drawn.size)
        reference.redraw_weights(derived_seed(drawn.seed, "weights"))
        return reference.copy_of_model()

    def draw(
        self,
        size: str,
        family: str,
        seed: int,
        *,
        expected: bool = True,
        probe: float | None = None,
        attempts: int | None = None,
        conditioned: bool = True,
    ) -> InputDraw:
        """Draw inputs, redraw the weights and, unless ``expected`` is false, work out the outputs.

        ``probe`` tries one scale on a family that may not be admitted, by one draw unless ``attempts`` says otherwise.
        Where nothing is compared with the outputs, ``conditioned=False`` saves the runs that measure conditioning.

        Raises:
            TaskError: the family is not admitted at this size.
        """
        if family.startswith(TEST_PREFIX):
            return self._draw_test(size, family, seed, expected=expected)
        reference = self.reference(size)
        scale = self.scales(size).get(family) if probe is None else probe
        if scale is None:
            raise TaskError(f"input family '{family}' is not admitted for task '{self.task.name}' at size '{size}'")
        for attempt in range(attempts or (_DRAW_ATTEMPTS if probe is None else 1)):
            # An unlucky draw (a near-total cancellation) may be unfit where the probe was not: draw again, smaller.
            secret = derived_seed(seed, f"again {attempt}") if attempt else seed
            own = reference.inputs(derived_seed(secret, "inputs"))
            reference.redraw_weights(derived_seed(secret, "weights"))
            inputs = draw_inputs(own, family, derived_seed(secret, family), scale * 0.1 ** min(attempt, 2))
            if not expected:
                return InputDraw(size, family, inputs, None, seed=secret)
            runs = self._runs_at(size, reference, inputs)
            if probe is not None and family != "task" and not _fit(family, runs.expected()):
                continue  # known before the runs that measure conditioning
            outputs = runs.expected(self._conditions(reference, inputs, runs) if conditioned else None)
            if size == self._further and not all(output.sound for output in outputs):
                continue  # the task was not examined at this size before
            if family == "task" or _fit(family, outputs):
                return InputDraw(size, family, inputs, outputs, runs.selections, secret)
        raise TaskError(f"torch itself is not accurate on '{family}' inputs of task '{self.task.name}' at '{size}'")

    def draw_tiles(self, size: str, seed: int) -> tuple[InputDraw, Reference]:
        """Draw of large inputs of the task's own family, and of large weights, only as much as shows their values.

        Returns:
            The draw, and the reference with its weights.

        Raises:
            TaskError: some slices of a tensor alone cannot be drawn.
        """
        described = self.described(size)
        reference = self._constructed(size, FewSlices()) if described.is_outline else self.reference(size)
        inputs, tiles = draw_tiles(reference, derived_seed(seed, "inputs"))
        reference.redraw_weights(derived_seed(seed, "weights"))
        if described.is_outline:
            tiles |= weight_tiles(reference, described, derived_seed(seed, "weights"))
        return InputDraw(size, "task", inputs, None, seed=seed, tiles=tiles), reference

    def _draw_test(self, size: str, family: str, seed: int, *, expected: bool) -> InputDraw:
        """A draw by a recipe. Finite, and torch accurate on it, as our own families must be; and well-conditioned."""
        recipe = self.tests.get(family.removeprefix(TEST_PREFIX))
        if recipe is None:
            raise TaskError(f"there is no input generator '{family.removeprefix(TEST_PREFIX)}'")
        reference = self.reference(size)
        own = reference.inputs(derived_seed(seed, "inputs"))
        if self._elements(own) > PROBE_LIMIT:
            raise TaskError(f"inputs of more than {PROBE_LIMIT:,} elements are not drawn by generators")
        reference.redraw_weights(derived_seed(seed, "weights"))
        # By one generator on every device: what a recipe gives, and what it was admitted on, is the same everywhere.
        on_host = _moved(own, HOST)
        inputs = _moved(
            draw_recipe(recipe, on_host, self._integer_profiles_at(size, own), derived_seed(seed, family)), self.device
        )
        if not expected:
            return InputDraw(size, family, inputs, None, seed=seed)
        outputs, selections = self.expected_at(size, reference, inputs)
        if [output.reference.shape for output in outputs] != self._shapes_at(size, own):
            raise TaskError("the result has another shape on such inputs than on the task's own")
        if not all(output.finite for output in outputs):
            raise TaskError("torch's own result is not finite on such inputs")
        if not all(output.admitted for output in outputs):
            raise TaskError("torch itself is not accurate enough on such inputs")
        if any(output.ill_conditioned for output in outputs):
            # torch may pass by luck here; another honest kernel might not.
            raise TaskError("the result is ill-conditioned on such inputs: rounding them alone could make it wrong")
        return InputDraw(size, family, inputs, outputs, selections, seed)

    def _shapes_at(self, size: str, own: tuple[Value, ...]) -> list[torch.Size]:
        """Shapes of the outputs on the task's own inputs; candidates allocate these."""
        if size not in self._shapes:
            outputs = self.reference(size).run(own, self.task.policy.mutates)
            self._shapes[size] = [output.shape for output in outputs]
        return self._shapes[size]

    def _integer_profiles_at(self, size: str, own: tuple[Value, ...]) -> Mapping[int, IntegerProfile]:
        """Properties that the integer inputs of a size share over the task's own draws."""
        integers = [
            position
            for position, value in enumerate(own)
            if isinstance(value, torch.Tensor) and not value.is_floating_point()
        ]
        if not integers:
            return {}
        if size not in self._integer_profiles:
            probes = [self.reference(size).inputs(derived_seed(_PROBE_SEED, f"habit {i}")) for i in range(PROBES)]
            self._integer_profiles[size] = {
                position: integer_profile(
                    [value for probe in probes if isinstance(value := probe[position], torch.Tensor)]
                )
                for position in integers
            }
        return self._integer_profiles[size]

    def know(self, scales: Mapping[str, Mapping[str, float]]) -> None:
        """Take over :meth:`scales` that an earlier process found for this task."""
        self._scales.update({size: dict(factors) for size, factors in scales.items()})

    @property
    def families(self) -> tuple[str, ...]:
        """Input families that are tried for the task; the task's own first."""
        return families_of(self.task.policy.accumulator)

    def scales(self, size: str) -> dict[str, float]:
        """Admitted families of a size, each with the factor at which torch itself passes; the task's own first."""
        if size not in self._scales:
            if size != "small" and self._is_dear_to_probe(size):
                small = self.scales("small")
                self._scales[size] = {family: small[family] for family in _PLAIN_FAMILIES if family in small}
            else:
                own = self.reference(size).inputs(_PROBE_SEED)
                redraws = any(isinstance(value, torch.Tensor) and value.is_floating_point() for value in own)
                families = self.families if redraws else self.families[:1]
                factors: dict[str, float] = {}
                for family in families:
                    scale = self._admitted_scale(size, family, factors)
                    if scale is not None:
                        factors[family] = scale
                self._scales[size] = factors
        return self._scales[size]

    def _is_dear_to_probe(self, size: str) -> bool:
        """Whether a size has so many elements or operations that it is checked on families of the small one."""
        if self._elements(self._outlined(size)) > PROBE_LIMIT:
            return True
        if size != "full":
            return False
        policy = self.task.policy
        facts = facts_at(self.described(size), size, policy.mutates, policy.host_inputs, fake=True)
        return facts.flops > PROBE_OPERATIONS

    def _outlined(self, size: str) -> tuple[Value, ...]:
        """Inputs of a size as shapes where the task file lets that: drawing gigabytes to count them takes seconds."""
        reference = self.described(size)
        try:
            return reference.fake_inputs()
        except TaskError:
            return reference.inputs(_PROBE_SEED)

    @staticmethod
    def _elements(inputs: tuple[Value, ...]) -> int:
        return sum(value.numel() for value in inputs if isinstance(value, torch.Tensor))

    def compare(self, drawn: InputDraw, got: list[Got]) -> Comparison:
        if drawn.expected is None:
            raise TaskError("this draw was made without expected outputs, so nothing can be compared with it")
        hidden = self.task.size(drawn.size).is_hidden
        return compare_outputs(drawn.expected, got, drawn.selections, hidden=hidden)

    def _admitted_scale(self, size: str, family: str, earlier: Mapping[str, float]) -> float | None:
        """The largest scale at which a family is fit; ``earlier`` are the families admitted so far.

        One that saturates the outputs is unfit where an earlier family does not; else it stays, and shows admission
        that the task cannot be judged.
        """
        for scale in SCALES[family]:
            try:
                drawn = self.draw(size, family, _PROBE_SEED, probe=scale, conditioned=family in _TELLING)
            except TaskError:
                if family == "task":
                    raise
                continue
            if family in _TELLING and self._saturates(drawn, scale) and self._others_tell(size, earlier):
                continue
            if family == "task" or self._holds_on_admission(size, family, scale, earlier):
                return scale
        return None

    def _holds_on_admission(self, size: str, family: str, scale: float, earlier: Mapping[str, float]) -> bool:
        """Whether the draws that admission looks at can be had, and tell there what an earlier family tells."""
        try:
            previous, drawn = self.admission_draws(size, family, scale)
        except TaskError:
            return False
        if family not in _TELLING:
            return True
        assert previous.expected is not None
        assert drawn.expected is not None
        answers = blind_answers(drawn.expected, [output.reference for output in previous.expected])
        return not any(self.compare(drawn, answer).ok for _, answer in answers) or not self._others_tell(size, earlier)

    def admission_draws(self, size: str, family: str, scale: float) -> tuple[InputDraw, InputDraw]:
        """The two draws that admission looks at. Of the first, which is only another answer, no condition is measured.

        Raises:
            TaskError: they cannot be had.
        """
        key = size, family, scale
        if key not in self._admission_draws:
            previous, drawn = (
                self.draw(size, family, seed, probe=scale, attempts=_DRAW_ATTEMPTS, conditioned=conditioned)
                for seed, conditioned in zip(ADMISSION_SEEDS, (False, True), strict=True)
            )
            outputs = (output.reference for output in drawn.expected or ())
            if self._elements((*drawn.inputs, *outputs)) > PROBE_LIMIT:
                return previous, drawn
            self._admission_draws = {key: both for key, both in self._admission_draws.items() if key[0] == size}
            self._admission_draws[key] = previous, drawn
        return self._admission_draws[key]

    def _others_tell(self, size: str, families: Mapping[str, float]) -> bool:
        """Whether one of these families does not saturate the outputs."""
        for family, scale in families.items():
            try:
                if not self._saturates(self.draw(size, family, _PROBE_SEED, probe=scale), scale):
                    return True
            except TaskError:
                continue
        return False

    def _saturates(self, drawn: InputDraw, scale: float) -> bool:
        """Whether answers that look at no input pass on every draw tried: a clamp or a tanh may make all equal there.

        On one draw they may do so by chance, where the outputs are few and each is one of a few values.
        """
        for number in range(_SATURATED_DRAWS):
            seed = derived_seed(_PROBE_SEED, f"other {number}")
            other = self.draw(drawn.size, drawn.family, seed, expected=False, probe=scale)
            earlier = self.reference(drawn.size).run(other.inputs, self.task.policy.mutates)
            assert drawn.expected is not None
            if [output.shape for output in earlier] != [output.reference.shape for output in drawn.expected]:
                return False
            answers = blind_answers(drawn.expected, earlier)
            if not any(self.compare(drawn, answer).ok for _, answer in answers):
                return False
            if number + 1 < _SATURATED_DRAWS:
                try:
                    drawn = self.draw(drawn.size, drawn.family, seed, probe=scale)
                except TaskError:
                    return True
        return True

    def expected_at(
        self, size: str, reference: Reference, inputs: tuple[Value, ...]
    ) -> tuple[tuple[Expected, ...], tuple[Selection | None, ...]]:
        """Expected outputs of the reference of a size on some inputs, and the sources of indices."""
        runs = self._runs_at(size, reference, inputs)
        return runs.expected(self._conditions(reference, inputs, runs)), runs.selections

    def _runs_at(self, size: str, reference: Reference, inputs: tuple[Value, ...]) -> _Runs:
        policy = self.task.policy
        recorder = SelectionRecorder()
        values = reference.run(inputs, policy.mutates, within=(recorder,) if policy.ties else ())
        accumulator: torch.dtype = getattr(torch, policy.accumulator)
        ordered = SequentialSums(accumulator)
        sequential = values
        if self._sums.get(size, True):
            sequential = reference.run(inputs, policy.mutates, within=(unfused_kernels(self.device), ordered))
            self._sums[size] = bool(ordered.replaced or ordered.unordered_terms)
        exact = values if policy.oracle == "task-precision" else self._double(reference, inputs, values)
        terms = float(ordered.unordered_terms)
        if policy.reduction_length is not None:
            constants = {**self._constants, **self._size_constants(size)}
            terms = max(terms, float(evaluate_expression(policy.reduction_length, constants)))
        selections = tuple(
            recorder.behind(value) if position in policy.ties else None for position, value in enumerate(values)
        )
        return _Runs(values, sequential, exact, terms, accumulator, selections)

    def _conditions(
        self, reference: Reference, inputs: tuple[Value, ...], runs: _Runs
    ) -> tuple[torch.Tensor | None, ...]:
        """Per output, how far each element moves when inputs and weights move by a relative amount of one."""
        exact = runs.exact
        if self.task.policy.oracle == "task-precision" or exact is runs.values:
            return (None,) * len(exact)
        draws = generator(self.device, _PROBE_SEED)
        largest: list[torch.Tensor | None] = [None] * len(exact)
        for _ in range(2 if sum(value.numel() for value in exact) <= _TWICE_LIMIT else 1):
            moved = reference.run_double(inputs, self.task.policy.mutates, nudge=partial(nudged, draws))
            for position, (base, other) in enumerate(zip(exact, moved, strict=True)):
                if not base.is_floating_point() or base.shape != other.shape:
                    continue
                change = movement(other, base, moved)
                before = largest[position]
                largest[position] = change if before is None else torch.maximum(before, change)
        return tuple(largest)

    def _double(
        self, reference: Reference, inputs: tuple[Value, ...], values: tuple[torch.Tensor, ...]
    ) -> tuple[torch.Tensor, ...]:
        try:
            exact = reference.run_double(inputs, self.task.policy.mutates)
        except TaskError as error:
            raise TaskError(
                f"{error} (in float64; a task that casts needs policy.oracle = 'task-precision')"
            ) from error
        shapes = [tuple(output.shape) for output in exact]
        if shapes != [tuple(value.shape) for value in values]:
            raise TaskError("the reference's outputs have other shapes in float64 than at the task's precision")
        return exact

    def _size_constants(self, size: str) -> dict[str, int | float | bool]:
        return parse_task_file(size_source(self.task, size), self.task.name).constants

    def _refuse_randomness(self, reference: Reference) -> None:
        inputs = reference.inputs(_PROBE_SEED)
        runs = [reference.run(inputs, self.task.policy.mutates, seed=seed) for seed in (1, 2)]
        if any(not torch.equal(a.nan_to_num(), b.nan_to_num()) for a, b in zip(*runs, strict=True)):
            raise TaskError(
                "two runs of the reference on the same inputs differ: it draws random numbers in forward (dropout, "
                "noise), so no candidate can be compared with it"
            )


def movement(other: torch.Tensor, base: torch.Tensor, outputs: tuple[torch.Tensor, ...]) -> torch.Tensor:
    """Movement of each element of a nudged run's output, relative to the nudge; in that output's own memory where no
    other output is seen through it."""
    storages = [output.untyped_storage().data_ptr() for output in outputs]
    alone = storages.count(other.untyped_storage().data_ptr()) == 1
    if not (alone and other.is_contiguous() and other.dtype == base.dtype):
        other = other.clone()
    for values, before in pieces(other, base):
        values.sub_(before).abs_().div_(_NUDGE).nan_to_num_(nan=0.0, posinf=0.0)
    return other


def _fit(family: str, outputs: Sequence[Expected]) -> bool:
    """Whether a family's draw can be judged, and judges something: on ``edge`` inputs zeros may well be right."""
    vanished = family != "edge" and bool(outputs) and all(output.vanishing for output in outputs)
    return not vanished and all(output.admitted for output in outputs)


def _moved(values: tuple[Value, ...], device: torch.device) -> tuple[Value, ...]:
    return tuple(to_device(value, device) if isinstance(value, torch.Tensor) else value for value in values)
