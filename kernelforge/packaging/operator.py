"""The operator of a package: a torch custom operator that runs the kernel where it was tested, else the reference.

It runs in a user's process. What a model wrote is device code and a launch plan, which is interpreted; neither is ever
imported. The reference is Python of the task's author, which this process executes.
"""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any, Final, Literal

import torch
from torch import nn
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack
from torch.autograd import forward_ad
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils.weak import TensorWeakRef

from kernelforge.candidate import parse_plan
from kernelforge.errors import UsageError
from kernelforge.evaluation.oracle.worker.comparison import Got
from kernelforge.evaluation.oracle.worker.reference import Reference, flatten_outputs
from kernelforge.evaluation.oracle.worker.reference_runner import ReferenceRunner
from kernelforge.evaluation.oracle.worker.torch_device import HOST, default_device
from kernelforge.packaging.execution import Backend, Part, build, cuda_backend, emulated_backend, split
from kernelforge.packaging.manifest import REFERENCE, PackagedSize, module_folder, read_candidate, read_manifest
from kernelforge.records import Comparison, Size, Task, TensorSpec

Value = torch.Tensor | int | float | bool | None
Reason = Literal["device", "dtype", "shape", "stride", "value", "gradient", "transform", "arguments", "training"]
"""Why the reference ran: what was outside of what was tested."""

_SCHEMA_TYPES: Final = {bool: "bool", int: "SymInt", float: "float", type(None): "Tensor?"}

_operators: dict[str, Operator] = {}
"""Operators of this process by qualified name: torch registers each once."""
_lock = threading.RLock()


def load(folder: Path, *, allow_unconfined: bool = False) -> Operator:
    """The operator of a package, the same object for the same content.

    Args:
        folder: The module's folder, or the project's.
        allow_unconfined: Compile and emulate without a jail where none works.

    Raises:
        UsageError: it is no package, or was changed.
    """
    root = module_folder(Path(folder))
    manifest = read_manifest(root)
    with _lock:
        if manifest.operator not in _operators:
            _operators[manifest.operator] = Operator(root, allow_unconfined=allow_unconfined)
        return _operators[manifest.operator]


@dataclass(frozen=True)
class _Prepared:
    """Tensors that ``setup`` made of one set of weights, valid while these live and stay as they were."""

    weights: tuple[TensorWeakRef, ...]
    states: tuple[tuple[int, int], ...]
    tensors: dict[int, torch.Tensor]
    """By buffer."""

    @property
    def alive(self) -> bool:
        return all(weight() is not None for weight in self.weights)

    def is_of(self, weights: Sequence[torch.Tensor]) -> bool:
        pairs = zip(self.weights, weights, strict=True)
        return all(ref() is weight for ref, weight in pairs) and self.states == tuple(map(_state, weights))


def _state(weight: torch.Tensor) -> tuple[int, int]:
    """Address and version of a weight: one of them changes with a write that torch sees."""
    return weight.data_ptr(), weight._version


class Operator:
    """A kernel as a function of the reference's inputs and weights. Make one with :func:`load`."""

    def __init__(self, folder: Path, *, allow_unconfined: bool = False) -> None:
        self.manifest = read_manifest(folder)
        """Content of ``package.json``."""
        self.fallbacks: Counter[Reason] = Counter()
        """How often the reference ran, by reason."""
        self.setups = 0
        """How often ``setup`` of the plan ran."""
        candidate = read_candidate(folder, self.manifest)
        self._allow_unconfined = allow_unconfined
        self._source = candidate.source
        self._plan = parse_plan(candidate.plan, self.manifest.language)
        self._reference_text = (folder / REFERENCE).read_bytes().decode()
        self._references: dict[int, Reference] = {}
        self._parts: dict[tuple[int, str], tuple[Part | None, Part]] = {}
        self._prepared: dict[tuple[Any, ...], _Prepared] = {}
        self._lock = threading.RLock()
        # Not a decorator: it imports the compiler, which would double the time to import this module.
        self._untraced = torch.compiler.disable(self._with_gradient)  # type: ignore[no-untyped-call]
        full = self.manifest.sizes[0]
        self._inputs = len(full.inputs)
        self._weight_names = tuple(weight.name for weight in full.weights)
        self._define(full)

    def _define(self, full: PackagedSize) -> None:
        """Register the operator with torch."""
        kinds = ["Tensor" if isinstance(value, TensorSpec) else _SCHEMA_TYPES[type(value)] for value in full.inputs]
        kinds += ["Tensor"] * len(full.weights)
        schema = f"({', '.join(f'{kind} a{at}' for at, kind in enumerate(kinds))}) -> Tensor[]"
        definition = torch.library.custom_op(self.manifest.operator, self._run, mutates_args=(), schema=schema)
        definition.register_fake(self._fake)
        namespace, _, name = self.manifest.operator.partition("::")
        self._call = getattr(getattr(torch.ops, namespace), name).default

    def __call__(self, *values: Value) -> tuple[torch.Tensor, ...]:
        """Outputs of the reference for its inputs, then its weights, in its order.

        Raises:
            UsageError: there are more or fewer of them.
            DeviceError: the kernel failed.
            CandidateError: the kernel does not compile here.
        """
        if len(values) != self._inputs + len(self._weight_names):
            raise UsageError(
                f"{self.manifest.name} takes {self._inputs} inputs, then {len(self._weight_names)} weights "
                f"({', '.join(self._weight_names) or 'none'}); it was given {len(values)} values"
            )
        if not torch.compiler.is_compiling() and _is_transformed():
            return tuple(self._with_transform(values))
        if torch.is_grad_enabled() and any(isinstance(v, torch.Tensor) and v.requires_grad for v in values):
            differentiable: tuple[torch.Tensor, ...] = self._untraced(values)
            return differentiable
        outputs: list[torch.Tensor] = self._call(*values)
        return tuple(outputs)

    def _with_gradient(self, values: Sequence[Value]) -> tuple[torch.Tensor, ...]:
        """Outputs of the reference, through which a gradient flows; not traced, so that calls are counted."""
        self.fallbacks["gradient"] += 1
        return tuple(self._by_reference(values))

    def _with_transform(self, values: Sequence[Value]) -> Iterator[torch.Tensor]:
        """Outputs of the reference, each a copy: a tensor inside of a transform has no storage to compare."""
        self.count("transform")
        for output in self._outputs_of_reference(values):
            yield output.clone(memory_format=torch.contiguous_format)

    def module(self, *init: Any, **named: Any) -> nn.Module:
        """The task's ``Model``, with the same state, whose ``forward`` calls the operator.

        With arguments other than the task's at a tested size, ``forward`` stays the reference's own.

        Args:
            init: Arguments of its constructor; those of the task where there are none.
            named: The same by name.
        """
        if not init and not named:
            return _with_operator(self._new_reference(0).model, self, (0,))
        # The other models are not kept: they may be large.
        references = map(self._new_reference, range(len(self.manifest.sizes)))
        tested = [at for at, reference in enumerate(references) if _equal(reference.arguments, (init, named))]
        model = type(self._reference(0).model)(*init, **named)
        return _with_operator(model, self, tested)

    def check(self, size: str, *, seed: int = 0, device: torch.device | str = "cpu") -> Comparison:
        """Compare the operator with the reference as evaluations do: same draws, same tolerance.

        Args:
            size: A tested size, such as ``small``.
            seed: Chooses inputs and weights.
            device: Device of both.

        Raises:
            UsageError: the size was not tested.
        """
        names = [tested.name for tested in self.manifest.sizes]
        if size not in names:
            raise UsageError(f"{self.manifest.name} was not tested at the size {size!r}, but at {', '.join(names)}")
        task = Task(
            **self.manifest.task.model_dump(exclude={"digest"}),
            source=self._reference_text,
            sizes=tuple(Size(name=tested.name, constants=tested.parameters) for tested in self.manifest.sizes),
        )
        runner = ReferenceRunner(task, torch.device(device))
        drawn = runner.draw(size, "task", seed)
        weights = runner.reference(size).weights()
        with torch.no_grad():
            outputs = self(*drawn.inputs, *(weights[name] for name in self._weight_names))
        return runner.compare(drawn, [Got.of(output) for output in outputs])

    def count(self, reason: Reason) -> None:
        """Count a call of the reference, unless a compiler traces it."""
        if not torch.compiler.is_compiling():
            self.fallbacks[reason] += 1

    def outcome(self) -> Any:
        """A result of the reference, at the smallest size, for how it arranges its tensors."""

        def elements(at: int) -> int:
            specs = [spec for spec in self.manifest.sizes[at].inputs if isinstance(spec, TensorSpec)]
            return sum(spec.numel for spec in specs)

        reference = self._reference(min(range(len(self.manifest.sizes)), key=elements))
        with torch.no_grad():
            return reference.copy_of_model()(*reference.inputs(0))

    def _run(self, *values: Value) -> list[torch.Tensor]:
        """Implementation for torch: the kernel, or the reference outside of what was tested."""
        at, reason = self._match(values)
        if reason is not None:
            self.fallbacks[reason] += 1
            return self._by_reference(values)
        inputs, weights = values[: self._inputs], [w for w in values[self._inputs :] if isinstance(w, torch.Tensor)]
        first = next(value for value in values if isinstance(value, torch.Tensor))
        current = torch.cuda.device(first.device) if first.is_cuda else contextlib.nullcontext()
        with torch.no_grad(), current:
            return self._by_kernel(at, self._backend(first.device), inputs, weights)

    def _fake(self, *values: Value) -> list[torch.Tensor]:
        """Outputs without content: by what was tested where all extents are numbers, else by the reference."""
        tensors = [value for value in values if isinstance(value, torch.Tensor)]
        if all(type(extent) is int for tensor in tensors for extent in tensor.shape):
            at, reason = self._match(values, any_device=True)
            if reason is None:
                return [
                    torch.empty(spec.shape, dtype=getattr(torch, spec.dtype.value), device=tensors[0].device)
                    for spec in self.manifest.sizes[at].outputs
                ]
        return self._by_reference(values)

    def _match(self, values: Sequence[Value], *, any_device: bool = False) -> tuple[int, Reason | None]:
        """The size at which these values were tested, or why the reference has to run."""
        devices = {value.device for value in values if isinstance(value, torch.Tensor)}
        if len(devices) != 1 or not (any_device or self.supports(next(iter(devices)))):
            return 0, "device"
        best: tuple[int, Reason] = (0, "dtype")
        for at, size in enumerate(self.manifest.sizes):
            expected = [*size.inputs, *(weight.spec for weight in size.weights)]
            depth, reason = 4, None
            for position, (value, spec) in enumerate(zip(values, expected, strict=True)):
                missing = _mismatch(value, spec, strides=position < len(size.inputs))
                if missing is not None and (reason is None or missing[0] < depth):
                    depth, reason = missing
            if reason is None:
                return at, None
            if depth > best[0]:
                best = depth, reason
        return 0, best[1]

    def supports(self, device: torch.device | str) -> bool:
        """Whether the kernel runs on a device: the CPU, or a GPU of the compute capability that it was tested for."""
        device = torch.device(device)
        if device.type == "cuda":
            major, minor = torch.cuda.get_device_capability(device)
            return self.manifest.arch.removeprefix("sm_").rstrip("af") == f"{major}{minor}"
        return device.type == "cpu"

    def _backend(self, device: torch.device) -> Backend:
        if device.type == "cuda":
            return cuda_backend(device.index or 0, self.manifest.arch)
        return emulated_backend(self.manifest.emulated, self._allow_unconfined)

    def _by_kernel(
        self, at: int, backend: Backend, inputs: Sequence[Value], weights: Sequence[torch.Tensor]
    ) -> list[torch.Tensor]:
        with self._lock:
            setup, forward = self._parts_of(at, backend)
            size = self.manifest.sizes[at]
            names = {name: k for k, weight in enumerate(size.weights) for name in (weight.name, *weight.aliases)}
            own = [weight.detach().contiguous() for weight in weights]

            def tensors(part: Part, prepared: Mapping[int, torch.Tensor]) -> dict[int, torch.Tensor]:
                provided = dict(prepared)
                for buffer in part.plan.buffers:
                    if isinstance(buffer.source, int):
                        value = inputs[buffer.source]
                        assert isinstance(value, torch.Tensor)
                        provided[buffer.id] = value.detach()
                    elif isinstance(buffer.source, str):
                        provided[buffer.id] = own[names[buffer.source]]
                return provided

            prepared: Mapping[int, torch.Tensor] = {}
            if setup is not None:
                prepared = self._prepare(at, backend, weights, lambda: self._run_setup(backend, setup, tensors))
            for tensor in prepared.values():
                if tensor.is_cuda:
                    tensor.record_stream(torch.cuda.current_stream())
            return backend.run(forward, tensors(forward, prepared))

    def _run_setup(
        self, backend: Backend, setup: Part, tensors: Callable[[Part, Mapping[int, torch.Tensor]], dict[int, Any]]
    ) -> dict[int, torch.Tensor]:
        self.setups += 1
        made = backend.run(setup, tensors(setup, {}))
        if made and made[0].is_cuda:
            torch.cuda.current_stream().synchronize()  # any stream may read it from now on
        return {output.buffer: tensor for output, tensor in zip(setup.plan.outputs, made, strict=True)}

    def _prepare(
        self, at: int, backend: Backend, weights: Sequence[torch.Tensor], make: Callable[[], dict[int, torch.Tensor]]
    ) -> dict[int, torch.Tensor]:
        """Tensors that ``setup`` makes of these weights: made again when one is another tensor or was written.

        Torch does not count writes to tensors of inference mode: for them ``setup`` runs in every call.
        """
        if any(weight.is_inference() for weight in weights):
            return make()
        key = (at, id(backend), *map(id, weights))
        stored = self._prepared.get(key)
        if stored is None or not stored.is_of(weights):
            self._prepared = {name: entry for name, entry in self._prepared.items() if entry.alive}
            states = tuple(map(_state, weights))
            stored = _Prepared(tuple(map(TensorWeakRef, weights)), states, make())
            self._prepared[key] = stored
        return stored.tensors

    def _parts_of(self, at: int, backend: Backend) -> tuple[Part | None, Part]:
        """``setup`` and ``forward`` at a size, with their build."""
        key = at, backend.arch
        if key not in self._parts:
            size = self.manifest.sizes[at]
            specs = {name: weight.spec for weight in size.weights for name in (weight.name, *weight.aliases)}
            plan = self._plan.resolve(
                size.inputs, specs, size.attrs, self.manifest.choices, library=self.manifest.task.policy.library
            )
            artifact = build(self._source, plan, backend.arch, allow_unconfined=self._allow_unconfined)
            setup, forward = split(plan.bound_to(artifact.build))
            self._parts[key] = None if setup is None else Part(setup, artifact), Part(forward, artifact)
        return self._parts[key]

    def _reference(self, at: int) -> Reference:
        """The task's model at a size."""
        with self._lock:
            if at not in self._references:
                self._references[at] = self._new_reference(at)
            return self._references[at]

    def _new_reference(self, at: int) -> Reference:
        # As in an evaluation: without a transform, a tracer's fake tensors, or the user's default device and dtype.
        dtype = torch.get_default_dtype()
        torch.set_default_dtype(torch.float32)
        try:
            with temporarily_clear_interpreter_stack(), _disable_current_modes(), HOST:
                return Reference(self._reference_text, self.manifest.sizes[at].parameters, filename=REFERENCE)
        finally:
            torch.set_default_dtype(dtype)

    def _by_reference(self, values: Sequence[Value]) -> list[torch.Tensor]:
        """Outputs of the task's model with these weights, in storage of their own."""
        outputs = self._outputs_of_reference(values)
        own = {value.untyped_storage()._cdata for value in values if isinstance(value, torch.Tensor)}
        results = []
        for output in outputs:
            storage = output.untyped_storage()._cdata
            output = output.contiguous()
            results.append(output.clone() if storage in own and output.untyped_storage()._cdata == storage else output)
            own.add(storage)
        return results

    def _outputs_of_reference(self, values: Sequence[Value]) -> list[torch.Tensor]:
        """Outputs of the task's model with these weights."""
        inputs, weights = values[: self._inputs], values[self._inputs :]
        shapes = [tuple(weight.shape) for weight in weights if isinstance(weight, torch.Tensor)]
        fitting = (at for at, size in enumerate(self.manifest.sizes) if [w.spec.shape for w in size.weights] == shapes)
        at = next(fitting, 0)
        return _call_with(self._reference(at).model, self.manifest.sizes[at], inputs, weights)


def _is_transformed() -> bool:
    """Whether a transform of ``torch.func`` or forward-mode differentiation is active, for which torch has no rule.

    Without a rule the operator's derivative by forward mode would be zero, in silence.
    """
    return torch._C._functorch.peek_interpreter_stack() is not None or forward_ad._current_level >= 0


def _mismatch(
    value: Value, spec: TensorSpec | int | float | bool | None, *, strides: bool
) -> tuple[int, Reason] | None:
    """The untested property of a value, after how many tested ones; None if all were tested."""
    if not isinstance(spec, TensorSpec):
        if type(value) is not type(spec):
            return 0, "dtype"
        return None if value == spec else (3, "value")
    if not isinstance(value, torch.Tensor) or value.dtype != getattr(torch, spec.dtype.value):
        return 0, "dtype"
    if tuple(value.shape) != spec.shape:
        return 1, "shape"
    relevant = [
        (own, tested) for extent, own, tested in zip(spec.shape, value.stride(), spec.stride, strict=True) if extent > 1
    ]
    if strides and 0 not in spec.shape and any(own != tested for own, tested in relevant):
        return 2, "stride"
    return None


def _call_with(
    model: nn.Module, size: PackagedSize, inputs: Sequence[Value], weights: Sequence[Value]
) -> list[torch.Tensor]:
    """Flattened outputs of a model with other weights."""
    registered: dict[str, Any] = {}
    attributes: list[tuple[nn.Module, str, Any]] = []
    for weight, value in zip(size.weights, weights, strict=True):
        for name in (weight.name, *weight.aliases):
            owner, _, leaf = name.rpartition(".")
            module = model.get_submodule(owner)
            if leaf in module._parameters or leaf in module._buffers:
                # A model in training mode may write its buffers; the operator's arguments stay as they are.
                registered[name] = value if weight.kind == "parameter" else _copy(value)
            else:
                attributes.append((module, leaf, _copy(value)))
    before = [(module, leaf, getattr(module, leaf)) for module, leaf, _ in attributes]
    try:
        for module, leaf, value in attributes:
            setattr(module, leaf, value)
        with _constants_on(inputs, weights):
            return flatten_outputs(torch.func.functional_call(model, registered, tuple(inputs), tie_weights=False))
    finally:
        for module, leaf, value in before:
            setattr(module, leaf, value)


def _equal(first: Any, second: Any) -> bool:
    """Whether two lists of arguments are equal; those with tensors never are."""
    try:
        return bool(first == second)
    except (RuntimeError, ValueError):
        return False


def _copy(value: Value) -> Value:
    return value.clone() if isinstance(value, torch.Tensor) else value


def _constants_on(*groups: Sequence[Value]) -> contextlib.AbstractContextManager[Any]:
    """Context in which a model makes its constants on the device of its arguments, as in an evaluation."""
    device = next((value.device for group in groups for value in group if isinstance(value, torch.Tensor)), HOST)
    return contextlib.nullcontext() if device.type == "cpu" else default_device(device)


def _with_operator(model: nn.Module, operator: Operator, tested: Sequence[int]) -> nn.Module:
    """The model itself, of a class derived from its own.

    Args:
        model: The model.
        operator: What computes it.
        tested: Sizes at which it has the arguments of the task; empty for a model that keeps its own ``forward``.
    """
    base: Any = type(model)
    names = tuple(weight.name for weight in operator.manifest.sizes[0].weights)
    expected = len(operator.manifest.sizes[0].inputs)
    mode = model.training
    outcome = operator.outcome() if tested else None

    class WithOperator(base):  # type: ignore[misc]
        def forward(self, *inputs: Any, **named: Any) -> Any:
            reason: Reason | None = None
            if not tested or named or len(inputs) != expected:
                reason = "arguments"
            elif self.training != mode or _writes_statistics(self):
                reason = "training"
            if reason is not None:
                operator.count(reason)
                return super().forward(*inputs, **named)
            weights = [reduce(getattr, name.split("."), self) for name in names]
            return _arranged(outcome, iter(operator(*inputs, *weights)))

    WithOperator.__name__ = WithOperator.__qualname__ = base.__name__
    model.__class__ = WithOperator
    return model


def _writes_statistics(model: nn.Module) -> bool:
    """Whether a call changes running statistics, which the operator does not."""
    norms = (module for module in model.modules() if isinstance(module, nn.modules.batchnorm._NormBase))
    return any(norm.training and norm.track_running_stats for norm in norms)


def _arranged(outcome: Any, tensors: Iterator[torch.Tensor]) -> Any:
    """Tensors in the tuples, lists and dicts of a result of the reference."""
    if isinstance(outcome, torch.Tensor):
        return next(tensors)
    if isinstance(outcome, Mapping):
        return {key: _arranged(part, tensors) for key, part in outcome.items()}
    if isinstance(outcome, tuple | list):
        parts = [_arranged(part, tensors) for part in outcome]
        if hasattr(outcome, "_fields"):
            return type(outcome)(*parts)
        return tuple(parts) if isinstance(outcome, tuple) else parts
    return None
