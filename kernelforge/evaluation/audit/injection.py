"""Places of a reference where a fault can be injected, and the reference with one fault in it.

A place is an operator call in the program, named by its ATen operator and its number among the places of that operator:
``mm`` is the first matrix product, ``mm.1`` the second. A composite operator is opened by torch's own decomposition,
and the calls inside have names below it: ``native_layer_norm/var_mean``. Only the one that holds the fault is opened in
a run, all others stay torch's own kernels.
"""

from __future__ import annotations

import contextlib
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from kernelforge.evaluation.oracle.worker import reference

_COMPOSITES = frozenset({
    "_softmax", "_log_softmax", "native_layer_norm", "native_group_norm", "native_batch_norm", "_fused_rms_norm",
    "_native_batch_norm_legit_no_training", "gelu", "silu", "mish", "softplus", "elu", "celu", "selu", "hardswish",
    "hardsigmoid", "log_sigmoid_forward", "mse_loss", "huber_loss", "smooth_l1_loss", "binary_cross_entropy",
    "soft_margin_loss", "addmm", "baddbmm", "glu", "linalg_vector_norm",
    "_scaled_dot_product_flash_attention_for_cpu", "upsample_bilinear2d", "_softmax_backward_data",
    "_log_softmax_backward_data", "native_layer_norm_backward", "gelu_backward", "sigmoid_backward", "tanh_backward",
    "silu_backward", "threshold_backward", "mse_loss_backward",
})  # fmt: skip
"""Operators that are opened: what a kernel's author writes out in full."""

_DEEPEST = 3
"""Levels of composites inside composites."""


MOVES = frozenset({
    "clone", "contiguous", "detach", "alias", "view", "_unsafe_view", "reshape", "expand", "_to_copy", "copy_", "to",
    "lift_fresh", "lift_fresh_copy", "empty_like", "zeros_like", "ones_like", "full_like", "rand_like", "fill_",
    "new_zeros", "new_ones", "new_full", "new_empty", "zero_", "unsqueeze", "squeeze", "slice", "select", "t",
    "transpose", "permute", "native_dropout", "convert_element_type", "_conj", "view_as_real", "empty", "split",
    "broadcast_in_dim", "unbind", "as_strided", "slice_scatter", "copy", "index_put_", "zero", "fill", "flatten",
})  # fmt: skip
"""Calls that only move, make or look at values: leaving one out is no bug of its own."""


class MutationNotApplicable(Exception):
    """The fault does not exist on these shapes, such as a tail where the extent divides."""


@dataclass(frozen=True)
class AuditPrecision:
    """The task's precision, which decides which arithmetic counts as a fault."""

    accumulator: str = "float32"
    """What a candidate may accumulate in."""
    resolution: float = 0.0
    """Unit roundoff of the finest floating output; 0 where there are only integers."""


@dataclass(frozen=True)
class Call:
    """One operator call, as it is about to be made."""

    func: Any
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    setting: AuditPrecision = AuditPrecision()

    @property
    def name(self) -> str:
        """The operator without its overload: ``mm``."""
        return str(self.func.overloadpacket.__name__)

    def run(self) -> Any:
        return self.func(*self.args, **self.kwargs)

    def taking(self, *args: Any) -> Call:
        """The same call with other positional arguments."""
        return replace(self, args=args)

    def with_argument(self, name: str, value: Any) -> Call:
        """The same call with one argument, named as in the operator's schema, replaced."""
        for position, argument in enumerate(self.func._schema.arguments):
            if argument.name == name:
                if not argument.kwarg_only and position < len(self.args):
                    return self.taking(*self.args[:position], value, *self.args[position + 1 :])
                return replace(self, kwargs={**self.kwargs, name: value})
        raise MutationNotApplicable(f"{self.func} has no argument {name}")

    def argument(self, name: str, default: Any = None) -> Any:
        """An argument by its name in the schema; the schema's own default where it was not given."""
        for position, argument in enumerate(self.func._schema.arguments):
            if argument.name == name:
                if not argument.kwarg_only and position < len(self.args):
                    return self.args[position]
                return self.kwargs.get(name, argument.default_value if argument.has_default_value() else default)
        return default


Change = Callable[[Call], Any]
"""What a fault does in place of a call: gives the call's result, or raises :class:`MutationNotApplicable`."""


@dataclass(frozen=True)
class Recorded:
    """A call that was made in a recorded run, with its place and result. Only shapes and numbers are looked at."""

    site: str
    call: Call
    result: Any
    inside: tuple[Recorded, ...] = ()
    """The calls of a composite, opened."""


class _Placed(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Names each call by its operator and its place in the program.

    Calls that a loop makes at one place have one name: a kernel has that place once. A place is the chain of Python
    calls that leads to it, each with its module, and a number among the calls that torch makes there in one go.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._names: dict[Any, str] = {}
        self._counts: Counter[str] = Counter()
        self._modules: dict[int, nn.Module] = {}
        self._before: Any = None
        self._run: Counter[str] = Counter()

    def label(self, func: Any) -> str:
        position = self._path()
        if position != self._before:
            self._before = position
            self._run.clear()
        name = str(func.overloadpacket.__name__)
        key = (position, name, self._run[name])
        self._run[name] += 1
        if key not in self._names:
            number = self._counts[name]
            self._counts[name] += 1
            self._names[key] = f"{name}.{number}" if number else name
        return self._names[key]

    def _path(self) -> tuple[Any, ...]:
        chain: list[Any] = []
        frame = sys._getframe(3)
        while frame is not None and frame.f_code.co_filename not in _OUTER_FILES:
            chain += (frame.f_code, frame.f_lasti)
            if frame.f_code.co_name == "forward":
                module = frame.f_locals.get("self")
                if isinstance(module, nn.Module):
                    # Held, so that its id stays its own.
                    self._modules[id(module)] = module
                    chain.append(id(module))
            frame = frame.f_back  # type: ignore[assignment]
        return tuple(chain)


_OUTER_FILES = frozenset({__file__, reference.__file__})
"""Where the chain of calls ends: a mode further out, or what runs the model."""


class Recorder(_Placed):  # type: ignore[no-untyped-call]
    """Remembers every place, those inside composites too."""

    def __init__(self, setting: AuditPrecision, prefix: str = "", depth: int = 0) -> None:
        super().__init__()
        self._setting = setting
        self._prefix = prefix
        self._depth = depth
        self._calls: list[Recorded] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        call = Call(func, tuple(args), kwargs or {}, self._setting)
        site = self._prefix + self.label(func)
        opened = decomposition(func) if self._depth < _DEEPEST else None
        inside: tuple[Recorded, ...] = ()
        if opened is not None:
            inner = Recorder(self._setting, f"{site}/", self._depth + 1)
            with inner:
                answer = opened(*call.args, **call.kwargs)
            inside = tuple(inner.leading_to(answer))
        result = call.run()
        self._calls.append(Recorded(site, call, result, inside))
        return result

    def leading_to(self, outputs: Any) -> list[Recorded]:
        """The first call at each place whose result reaches an output, in order; the rest is no part of the graph."""
        needed = _storages(outputs)
        selected: list[Recorded] = []
        for recorded in reversed(self._calls):
            call = recorded.call
            written = _storages(recorded.result)
            if written & needed:
                needed |= _storages((call.args, tuple(call.kwargs.values())))
                selected.append(recorded)
        first: dict[str, Recorded] = {}
        for recorded in reversed(selected):
            if recorded.site not in first:
                first[recorded.site] = recorded
                first.update({call.site: call for call in recorded.inside})
        return list(first.values())


def _storages(values: Any) -> set[int]:
    """Addresses of the tensors' storages. All of them are alive, so no address is used twice."""
    return {value.untyped_storage().data_ptr() for value in tree_leaves(values) if isinstance(value, torch.Tensor)}


class MutatedReference(_Placed):  # type: ignore[no-untyped-call]
    """The reference with the calls at one place changed; ``hit`` says whether any was."""

    def __init__(self, site: str, change: Change, setting: AuditPrecision) -> None:
        super().__init__()
        self._site = site
        self._change = change
        self._setting = setting
        self.hit = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        label = self.label(func)
        call = Call(func, tuple(args), kwargs or {}, self._setting)
        if label == self._site:
            with contextlib.suppress(MutationNotApplicable):
                result = self._change(call)
                self.hit = True
                return result
        elif self._site.startswith(f"{label}/"):
            opened = decomposition(func)
            if opened is not None:
                inside = MutatedReference(self._site.removeprefix(f"{label}/"), self._change, self._setting)
                with inside:
                    result = opened(*call.args, **call.kwargs)
                self.hit = self.hit or inside.hit
                return result
        return call.run()


def decomposition(func: Any) -> Callable[..., Any] | None:
    """torch's decomposition of a composite operator; None for all that are looked at as one."""
    from torch._decomp import decomposition_table

    if func.overloadpacket.__name__ not in _COMPOSITES:
        return None
    decomposed: Callable[..., Any] | None = decomposition_table.get(func)
    return decomposed


def unchanged(call: Call) -> Any:
    """The change that is none: a composite opened, and nothing else."""
    return call.run()


def is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def with_argument(name: str, value: Any, call: Call) -> Any:
    """The call's result with one argument replaced."""
    return call.with_argument(name, value).run()
