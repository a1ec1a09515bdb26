"""The reference model of a task file at one size, with the semantics that candidates are held to.

Runs third-party code (the task file); only ever import this in a confined child, or in the process of a user who
installed a package of :mod:`kernelforge.packaging`.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import math
import types
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Concatenate, Final, ParamSpec, TypeVar

import torch
from torch import nn
from torch.utils._pytree import tree_leaves, tree_map

from kernelforge.errors import TaskError
from kernelforge.evaluation.oracle.worker.torch_device import HOST, default_device, generator, synchronize
from kernelforge.records import DType, TensorSpec, WeightSpec
from kernelforge.tasks.constants import Scalar, substitute

Value = torch.Tensor | int | float | bool | None

_MAX_SEQUENCE_ATTRIBUTE = 8
"""Longest tuple of scalars on a module that is shown as numbered attributes."""


Nudge = Callable[[torch.Tensor], torch.Tensor]
"""Gives back a tensor whose elements were each moved by a tiny relative amount."""


class Reference:
    """The model of one task file at one choice of module constants, in the mode and dtype it was constructed in.

    ``making`` is entered around the model's constructor: :func:`outline_of` and :mod:`.tiles` say what for.

    Raises:
        TaskError: the file does not run; the message names the step that failed.
    """

    _outline: contextlib.AbstractContextManager[Any] | None = None

    def __init__(
        self,
        source: str,
        constants: Mapping[str, Scalar],
        *,
        filename: str = "task.py",
        making: contextlib.AbstractContextManager[Any] | None = None,
    ) -> None:
        self._module = types.ModuleType("kernelforge_task")
        code = compile(substitute(source, constants), filename, "exec")
        with _step("running the task file"), seeded(0):
            exec(code, self._module.__dict__)
        with _step("get_init_inputs()"), seeded(0):
            init = self._module.get_init_inputs()
        with _step("constructing Model"), seeded(0), making or contextlib.nullcontext():
            model = self._module.Model(**init) if isinstance(init, dict) else self._module.Model(*init)
        if not isinstance(model, nn.Module):
            raise TaskError("`Model` is not a torch.nn.Module")
        self.arguments: tuple[tuple[Any, ...], dict[str, Any]]
        """What ``Model`` was constructed with, by position and by name."""
        self.arguments = ((), init) if isinstance(init, dict) else (tuple(init), {})
        self.device = HOST
        """Where the model is, and what :meth:`inputs` gives."""
        self._draws_on_host = False
        self.model: nn.Module = model
        self._refuse_active_dropout()
        self._remember()

    def on(self, device: torch.device) -> Reference:
        """The same reference on another device, with a model of its own; itself where it is there already."""
        if device == self.device:
            return self
        self.restore()
        moved = copy.copy(self)
        with _step(f"moving Model to {device}"):
            moved.model = self.copy_of_model()
            move_model(moved.model, device)
        moved.device = device
        moved._remember()
        return moved

    @property
    def is_outline(self) -> bool:
        """Whether its weights have no storage: :func:`outline_of`."""
        return self._outline is not None

    def copy_of_model(self) -> nn.Module:
        """A model with weights of its own, buffers as before a call."""
        self.restore()
        with _step("copying Model"):
            return copy.deepcopy(self.model)

    def with_slices(self, cuts: Mapping[str, Mapping[int, torch.Tensor]]) -> Reference:
        """The same reference with some slices of some parameters and buffers alone: by name, numbers along axes.

        Its model is its own; shapes that modules remember, such as a number of features, are those of all slices.
        """
        part = copy.copy(self)
        part.model = self.copy_of_model()
        for name, numbers_along in cuts.items():
            owner, _, leaf = name.rpartition(".")
            module = part.model.get_submodule(owner)
            tensor = getattr(module, leaf).detach()
            for axis, numbers in numbers_along.items():
                tensor = tensor.index_select(axis, numbers.to(tensor.device))
            setattr(module, leaf, nn.Parameter(tensor) if isinstance(getattr(module, leaf), nn.Parameter) else tensor)
        part._remember()
        return part

    def with_slice_changed(self, name: str, axis: int, number: int, change: Callable[[torch.Tensor], Any]) -> Reference:
        """The same reference where one slice of a parameter or buffer was changed in place, in a model of its own."""
        changed = copy.copy(self)
        changed.model = self.copy_of_model()
        owner, _, leaf = name.rpartition(".")
        with torch.no_grad():
            change(getattr(changed.model.get_submodule(owner), leaf).select(axis, number))
        changed._remember()
        return changed

    def sliceable_weights(self) -> dict[str, torch.Tensor]:
        """Floating parameters and buffers by name that are of one module alone."""
        named = [
            *self.model.named_parameters(remove_duplicate=False),
            *self.model.named_buffers(remove_duplicate=False),
        ]
        times = Counter(id(tensor) for _, tensor in named)
        return {name: tensor for name, tensor in named if times[id(tensor)] == 1 and tensor.is_floating_point()}

    def _remember(self) -> None:
        self._parameters = {name: p.detach().clone() for name, p in self.model.named_parameters()}
        self._buffers = {name: b.detach().clone() for name, b in self.model.named_buffers()}
        self._attributes = [
            (module, name, value, clone_strided(value.detach()))
            for module in self.model.modules()
            for name, value in vars(module).items()
            if isinstance(value, torch.Tensor)
        ]

    def constructed_parameters(self) -> Mapping[str, torch.Tensor]:
        """Parameters as the constructor left them, independent of later draws; read only."""
        return self._parameters

    def inputs(self, seed: int) -> tuple[Value, ...]:
        """Positional arguments of ``forward`` as the task's own ``get_inputs`` draws them, on this device."""
        with _step("get_inputs()"):
            drawn = self._get_inputs(seed)
        if not isinstance(drawn, list | tuple):
            raise TaskError("get_inputs() must return a list of the arguments of forward")
        for position, value in enumerate(drawn):
            if not isinstance(value, torch.Tensor | int | float | bool | None):
                raise TaskError(
                    f"get_inputs() position {position} is a {type(value).__name__}; tensors and numbers are supported"
                )
            if isinstance(value, torch.Tensor) and value.layout is not torch.strided:
                raise TaskError(f"get_inputs() position {position} is a sparse tensor; only dense ones are supported")
        with _step("get_inputs()"):
            return tuple(
                to_device(value.detach(), self.device) if isinstance(value, torch.Tensor) else value for value in drawn
            )

    def _get_inputs(self, seed: int) -> Any:
        """Inputs of the task file, made on this device where the file allows it, which is faster for large ones."""
        if not self._draws_on_host and self.device != HOST:
            try:
                with seeded(seed, self.device), default_device(self.device):
                    return self._module.get_inputs()
            except torch.OutOfMemoryError:
                raise
            except Exception:
                # The file asks for numpy, or has a generator of its own: made on the host and copied, from now on.
                self._draws_on_host = True
        with seeded(seed):
            return self._module.get_inputs()

    def fake_inputs(self) -> tuple[Value, ...]:
        """The same arguments as shapes without storage, for sizes too large to draw only to look at.

        Raises:
            TaskError: ``get_inputs`` looks at the values it makes.
        """
        from torch._subclasses.fake_tensor import FakeTensorMode

        # What fails on a GPU without storage may succeed with it: real inputs are tried there all the same.
        before, self._draws_on_host = self._draws_on_host, True
        try:
            with self._outline or FakeTensorMode(allow_non_fake_inputs=True):
                return self.inputs(0)
        finally:
            self._draws_on_host = before

    def redraw_weights(self, seed: int) -> None:
        """Perturb every floating parameter, so that ones and zeros of a fresh norm do not stay trivial.

        A parameter p becomes p + s * normal, with s a quarter of its root mean square (0.1 where that is zero).
        Running statistics of batch norms are drawn too; other buffers (masks, tables) stay as constructed.
        """
        draws = generator(self.device, seed)

        def drawn(how: Callable[..., torch.Tensor], shape: torch.Size) -> torch.Tensor:
            return how(shape, generator=draws, dtype=torch.float32, device=self.device)

        with torch.no_grad():
            for name, parameter in self.model.named_parameters():
                original = self._parameters[name]
                if not original.is_floating_point() or original.numel() == 0:
                    continue
                rms = _rms(original)
                scale = 0.25 * rms if rms > 0 else 0.1
                for part, target in _parts(original, parameter):
                    target.copy_(part + drawn(torch.randn, part.shape).to(part.dtype) * scale)
            for module in self.model.modules():
                if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.running_mean is not None:
                    assert module.running_var is not None
                    module.running_mean.copy_(drawn(torch.randn, module.running_mean.shape) * 0.1)
                    module.running_var.copy_(drawn(torch.rand, module.running_var.shape) + 0.5)
        self._buffers = {name: b.detach().clone() for name, b in self.model.named_buffers()}

    def run(
        self,
        inputs: Sequence[Value],
        mutates: Sequence[int] = (),
        *,
        model: nn.Module | None = None,
        seed: int = 0,
        within: Sequence[contextlib.AbstractContextManager[Any]] = (),
        copied: bool = True,
    ) -> tuple[torch.Tensor, ...]:
        """Flattened outputs, then the inputs named by ``mutates``; buffers are restored first, inputs are copied unless
        ``copied`` says that the caller gives them away.

        ``model`` stands in for the reference's own (its double precision twin). ``within`` are contexts, such as
        dispatch modes, entered around the model's call alone.
        """
        arguments = [clone_strided(value) if copied and isinstance(value, torch.Tensor) else value for value in inputs]
        target = self.model if model is None else model
        if model is None:
            self.restore()
        device = self.device
        with _step("Model.forward"), torch.no_grad(), seeded(seed, device), contextlib.ExitStack() as stack:
            stack.callback(self._restore_attributes)
            stack.enter_context(default_device(device))
            for context in within:
                stack.enter_context(context)
            result = target(*arguments)
            synchronize(device)
        outputs = flatten_outputs(result)
        for position in mutates:
            value = arguments[position] if position < len(arguments) else None
            if not isinstance(value, torch.Tensor):
                raise TaskError(f"policy.mutates names input {position}, which is not a tensor input of forward")
            outputs.append(value)
        if not outputs:
            raise TaskError("Model.forward returned no tensor")
        return tuple(output.detach() for output in outputs)

    def run_double(
        self, inputs: Sequence[Value], mutates: Sequence[int] = (), *, nudge: Nudge | None = None
    ) -> tuple[torch.Tensor, ...]:
        """The same outputs from the model, its inputs and its weights in float64; ``nudge`` moves both a little."""
        move = nudge or (lambda value: value)

        def own(value: Value) -> Value:
            if not isinstance(value, torch.Tensor):
                return value
            twin = move(value.double()) if value.is_floating_point() else value
            return clone_strided(value) if twin is value else twin

        doubled = [own(value) for value in inputs]
        twin = self.in_double()
        if nudge is not None:
            with torch.no_grad():
                for parameter in twin.parameters():
                    parameter.copy_(nudge(parameter))
        default = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)
        try:
            return self.run(doubled, mutates, model=twin, copied=False)
        finally:
            torch.set_default_dtype(default)

    def in_double(self) -> nn.Module:
        """A copy of the model with parameters, buffers and plain tensor attributes in float64."""
        self.restore()
        # A weight is not copied before it is cast: of a large one, that would be half as much memory again.
        with _step("casting Model to float64"):
            cast = {
                id(tensor): nn.Parameter(tensor.detach().double(), requires_grad=tensor.requires_grad)
                for tensor in self.model.parameters()
                if type(tensor) is nn.Parameter and tensor.dtype is torch.float32
            }
            twin = copy.deepcopy(self.model, cast).double()
        for module in twin.modules():
            for name, value in list(vars(module).items()):
                if isinstance(value, torch.Tensor) and value.is_floating_point():
                    setattr(module, name, value.double())
        return twin

    def weights(self) -> dict[str, torch.Tensor]:
        """Every parameter, buffer and plain tensor attribute, once, by its first dotted name."""
        self.restore()
        return {spec.name: tensor for spec, tensor in self._named_weights()}

    def weight_bytes(self) -> int:
        """Bytes of all parameters."""
        return sum(parameter.nbytes for parameter in self._parameters.values())

    def weight_specs(self) -> tuple[WeightSpec, ...]:
        return tuple(spec for spec, _ in self._named_weights())

    def attributes(self) -> dict[str, int | float | bool | str]:
        """Public scalar attributes of modules by dotted name; short tuples of scalars as ``name.0``, ``name.1``."""
        attributes: dict[str, int | float | bool | str] = {}
        for prefix, module in self.model.named_modules():
            for name, value in vars(module).items():
                if name.startswith("_") or name == "training":
                    continue
                dotted = f"{prefix}.{name}" if prefix else name
                if isinstance(value, int | float | bool | str):
                    attributes[dotted] = value
                elif isinstance(value, tuple | list) and 0 < len(value) <= _MAX_SEQUENCE_ATTRIBUTE:
                    for position, item in enumerate(value):
                        if isinstance(item, int | float | bool | str):
                            attributes[f"{dotted}.{position}"] = item
        return attributes

    def _named_weights(self) -> Iterator[tuple[WeightSpec, torch.Tensor]]:
        named: list[tuple[str, str, torch.Tensor]] = []
        named += [("parameter", n, p.detach()) for n, p in self.model.named_parameters(remove_duplicate=False)]
        named += [("buffer", n, b.detach()) for n, b in self.model.named_buffers(remove_duplicate=False)]
        for prefix, module in self.model.named_modules():
            for name, value in vars(module).items():
                if isinstance(value, torch.Tensor):
                    named.append(("attribute", f"{prefix}.{name}" if prefix else name, value.detach()))
        groups: dict[tuple[Any, ...], list[tuple[str, str, torch.Tensor]]] = {}
        for kind, name, tensor in named:
            memory = tensor.untyped_storage()._cdata, tensor.storage_offset()
            same = (*memory, tensor.shape, tensor.stride(), tensor.dtype)
            groups.setdefault(same, []).append((kind, name, tensor))
        for members in groups.values():
            kind, name, tensor = members[0]
            if not tensor.is_contiguous():
                tensor = tensor.contiguous()
            spec = WeightSpec.model_validate(
                {"name": name, "spec": tensor_spec(tensor), "kind": kind, "aliases": tuple(m[1] for m in members[1:])}
            )
            yield spec, tensor

    def restore(self) -> None:
        """Buffers and plain tensors of modules as before a call."""
        with torch.no_grad():
            for name, buffer in self.model.named_buffers():
                if name in self._buffers:
                    buffer.copy_(self._buffers[name])
        self._restore_attributes()

    def _restore_attributes(self) -> None:
        """Undo what a call left in plain tensors of modules, such as a hidden state: it is a part of its answer."""
        with torch.no_grad():
            for module, name, value, constructed in self._attributes:
                setattr(module, name, value)
                value.copy_(constructed)

    def _refuse_active_dropout(self) -> None:
        kinds = nn.modules.dropout._DropoutNd
        for name, module in self.model.named_modules():
            rate = getattr(module, "p", None) if isinstance(module, kinds) else None
            rate = module.dropout if isinstance(module, nn.RNNBase) else rate
            if rate and module.training:
                raise TaskError(
                    f"module '{name}' ({type(module).__name__}, p={rate}) is active: its result is random, so no "
                    "candidate can be compared with it; call self.eval() in Model.__init__, or set p to 0"
                )


def outline_of(source: str, constants: Mapping[str, Scalar], *, filename: str = "task.py") -> Reference:
    """A reference whose weights have shapes and no storage, to describe one that is too large to be constructed for it.

    It runs on :meth:`Reference.fake_inputs` alone.

    Raises:
        TaskError: the file does not run so: its constructor looks at values.
    """
    from torch._subclasses.fake_tensor import FakeTensorMode

    mode = FakeTensorMode(allow_non_fake_inputs=True)
    outline = Reference(source, constants, filename=filename, making=mode)
    outline._outline = mode
    # torch.export replaces parameters and buffers by its own, and takes no other tensor without storage.
    stored: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
    for module in outline.model.modules():
        for name, value in list(vars(module).items()):
            if isinstance(value, torch.Tensor):
                zeros = torch.zeros(value.shape, dtype=value.dtype)
                setattr(module, name, stored.setdefault(id(value), (value, zeros))[1])
    outline._remember()
    return outline


@contextlib.contextmanager
def weights_up_to(nbytes: int) -> Iterator[None]:
    """Lets constructors register parameters of so many bytes in all.

    Raises:
        TaskError: there are more.
    """
    total = 0

    def count(module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        nonlocal total
        total += 0 if parameter is None else parameter.nbytes
        if total > nbytes:
            raise TaskError(f"the weights take more than {nbytes:,} bytes")

    handle = nn.modules.module.register_module_parameter_registration_hook(count)
    try:
        yield
    finally:
        handle.remove()


_PART: Final = 1 << 24
"""Elements of a weight that are drawn at a time: a large one shall not take its memory several times."""


def _parts(*tensors: torch.Tensor) -> Iterator[tuple[torch.Tensor, ...]]:
    """Views of contiguous tensors of one shape, piece by piece; small or strided ones as they are."""
    if tensors[0].numel() <= _PART or not all(tensor.is_contiguous() for tensor in tensors):
        yield tensors
        return
    yield from zip(*(torch.split(tensor.detach().view(-1), _PART) for tensor in tensors), strict=True)


def _rms(tensor: torch.Tensor) -> float:
    """Root mean square, in float64."""
    means = [(part.double().square().mean(), part.numel()) for (part,) in _parts(tensor)]
    if len(means) == 1:
        return means[0][0].sqrt().item()
    return math.sqrt(sum(mean.item() * numel for mean, numel in means) / tensor.numel())


_SPARE: list[Any] = []
"""Generators that numpy draws from inside :func:`seeded`, one for each level of nesting."""


@contextlib.contextmanager
def seeded(seed: int, device: torch.device = HOST) -> Iterator[None]:
    """The global generators of torch (host and ``device``), numpy and Python seeded inside, restored after.

    Of numpy's, the second of a pair of normals that was drawn and not asked for yet is lost.
    """
    import random

    import numpy as np
    from numpy.random import mtrand

    # torch.manual_seed also queues a call, with a traceback, for each accelerator that was not started.
    generators = [torch.default_generator]
    if device.type == "cuda":
        generators.append(torch.cuda.default_generators[device.index])
    states = random.getstate(), [source.get_state() for source in generators]
    for source in generators:
        source.manual_seed(seed)
    random.seed(seed)
    # Another generator in its place: to read numpy's state and to write it back takes four times as long as all else.
    own, outer = _SPARE.pop() if _SPARE else np.random.MT19937(0), mtrand.get_bit_generator()
    mtrand.set_bit_generator(own)
    np.random.seed(seed % (1 << 32))
    try:
        yield
    finally:
        mtrand.set_bit_generator(outer)
        _SPARE.append(own)
        random.setstate(states[0])
        for source, state in zip(generators, states[1], strict=True):
            source.set_state(state)


@contextlib.contextmanager
def _step(what: str) -> Iterator[None]:
    """Turn any error of third-party code into a TaskError that says where."""
    try:
        yield
    except TaskError:
        raise
    except torch.OutOfMemoryError as error:
        raise TaskError(
            f"{what} needs more memory than the GPU has left for the reference; make the size smaller, or free the GPU"
        ) from error
    except Exception as error:
        text = str(error).strip().split("\n")[0][:500]
        if isinstance(error, MemoryError) or "can't allocate memory" in text:
            raise TaskError(
                f"{what} needs more memory than the oracle's process may take; make the size smaller"
            ) from error
        raise TaskError(f"{what} failed: {type(error).__name__}: {text}") from error


_P = ParamSpec("_P")
_T = TypeVar("_T")


def remembered(function: Callable[Concatenate[Reference, _P], _T]) -> Callable[Concatenate[Reference, _P], _T]:
    """A function of a reference and hashable arguments that keeps its results for as long as the reference is there.

    A cache by arguments would keep the reference, and its weights, too.
    """
    results: weakref.WeakKeyDictionary[Reference, dict[Any, _T]] = weakref.WeakKeyDictionary()

    @functools.wraps(function)
    def wrapper(reference: Reference, /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        of_reference = results.setdefault(reference, {})
        key = (args, tuple(sorted(kwargs.items())))
        if key not in of_reference:
            of_reference[key] = function(reference, *args, **kwargs)
        return of_reference[key]

    return wrapper


def flatten_outputs(result: Any) -> list[torch.Tensor]:
    """Tensors of a result in order: tuples, lists and dicts opened, None left out."""
    if result is None:
        return []
    if isinstance(result, torch.Tensor):
        return [result]
    if isinstance(result, Mapping):
        result = tuple(result.values())
    if isinstance(result, tuple | list):
        return [tensor for part in result for tensor in flatten_outputs(part)]
    raise TaskError(
        f"Model.forward returned a {type(result).__name__}; tensors in tuples, lists and dicts are supported"
    )


def tensor_spec(tensor: torch.Tensor) -> TensorSpec:
    """Shape, dtype and strides of a tensor.

    Raises:
        TaskError: its dtype does not cross the boundary to a candidate.
    """
    try:
        dtype = DType(str(tensor.dtype).removeprefix("torch."))
    except ValueError as error:
        raise TaskError(f"tensors of {tensor.dtype} are not supported; use one of {', '.join(DType)}") from error
    return TensorSpec(shape=tuple(tensor.shape), dtype=dtype, stride=tuple(tensor.stride()))


def storage_span(tensor: torch.Tensor) -> torch.Tensor:
    """The flat run of elements from a tensor's first to its last, gaps included; the tensor itself when contiguous."""
    if tensor.is_contiguous():
        return tensor.reshape(-1)
    if tensor.numel() == 0:
        return tensor.new_empty(0)
    last = sum((extent - 1) * stride for extent, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.as_strided((last + 1,), (1,))


def clone_strided(tensor: torch.Tensor) -> torch.Tensor:
    """A copy with the same strides, in storage of its own."""
    if tensor.is_contiguous():
        return tensor.clone()
    return storage_span(tensor).clone().as_strided(tensor.shape, tensor.stride(), 0)


def to_device(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """The tensor on another device, with the same strides; itself where it is there already."""
    if tensor.device == device:
        return tensor
    if tensor.is_contiguous():
        return tensor.to(device)
    return storage_span(tensor).to(device).as_strided(tensor.shape, tensor.stride(), 0)


def move_model(model: nn.Module, device: torch.device) -> None:
    """Move a model, and the plain tensors that its modules have as attributes or in lists, tuples and dicts of these.

    ``nn.Module.to`` moves parameters and buffers alone.
    """
    model.to(device)
    moved: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def move(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        # One tensor under two names stays one; it is held here, so that its id stays its own.
        if id(value) not in moved:
            moved[id(value)] = (value, to_device(value, device))
        return moved[id(value)][1]

    for module in model.modules():
        for name, value in list(vars(module).items()):
            if any(isinstance(leaf, torch.Tensor) and leaf.device != device for leaf in tree_leaves(value)):
                vars(module)[name] = tree_map(move, value)


def tensor_view(tensor: torch.Tensor) -> memoryview:
    """Raw elements of a tensor's storage span: one copy to the host, or none where they are there and in one piece.

    Shares memory with a tensor on the host: use it before anything writes there.
    """
    flat = storage_span(tensor).contiguous()
    if flat.numel() == 0:
        return memoryview(b"")
    return flat.detach().cpu().view(torch.uint8).numpy().data


def tensor_bytes(tensor: torch.Tensor) -> bytes:
    """Raw elements of a tensor's storage span, copied."""
    return bytes(tensor_view(tensor))
