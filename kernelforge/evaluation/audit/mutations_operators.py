"""Mutations of operators: left out, replaced, or with wrong operands or constants."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final

import torch

from kernelforge.evaluation.audit.injection import (
    MOVES,
    Call,
    Change,
    MutationNotApplicable,
    Recorded,
    is_tensor,
    with_argument,
)
from kernelforge.evaluation.audit.mutants import call_fault


def _same(value: Any, result: Any) -> bool:
    return is_tensor(value) and is_tensor(result) and value.shape == result.shape and value.dtype == result.dtype


def _tensors(call: Call) -> list[int]:
    """Positions of the tensor arguments."""
    return [position for position, value in enumerate(call.args) if is_tensor(value)]


def _operand(position: int, call: Call) -> Any:
    value = call.args[position]
    result = call.run()
    if not _same(value, result):
        raise MutationNotApplicable("the operand has another shape than the result")
    return value.clone()


def _identity(call: Call) -> bool:
    """A product, quotient or power with 1, a sum with 0: no operator at all."""
    neutral = {"mul": 1, "div": 1, "add": 0, "sub": 0, "pow": 1}.get(call.name)
    return neutral is not None and len(call.args) > 1 and not is_tensor(call.args[1]) and call.args[1] == neutral


@call_fault("removed", "an operator is left out: an activation, a clamp, a scale, a normalisation")
def removed(recorded: Recorded) -> Iterator[tuple[str, Change]]:
    call = recorded.call
    if call.name in MOVES or _tensors(call)[:1] != [0] or _identity(call):
        return
    if call.name.endswith("_"):
        if _tensors(call) == [0]:
            yield "", lambda call: call.args[0]
        return
    others = [position for position in _tensors(call) if call.args[position].dim() > 0]
    if others in ([0], []) and _same(call.args[0], recorded.result):
        yield "", partial(_operand, 0)


@call_fault("dropped-operand", "one side of an operator is left out: a residual, a mask, a gate")
def dropped_operand(recorded: Recorded) -> Iterator[tuple[str, Change]]:
    call = recorded.call
    if call.name in MOVES or call.name.endswith("_") or len(_tensors(call)) != 2 or _tensors(call) != [0, 1]:
        return
    if call.name in ("index", "gather", "embedding"):
        return
    for position, side in ((0, "left"), (1, "right")):
        if _same(call.args[1 - position], recorded.result):
            yield side, partial(_operand, 1 - position)


_ORDERED = frozenset({
    "sub", "rsub", "div", "true_divide", "floor_divide", "remainder", "fmod", "pow", "atan2", "copysign", "mm", "bmm",
    "lt", "le", "gt", "ge", "__rshift__", "__lshift__", "bitwise_left_shift", "bitwise_right_shift", "heaviside",
})  # fmt: skip
"""Operators of two tensors that do not commute."""


@call_fault("swapped-operands", "the operands of an operator that does not commute change places")
def swapped_operands(recorded: Recorded) -> Iterator[tuple[str, Change]]:
    call = recorded.call
    if call.name in _ORDERED and _tensors(call) == [0, 1]:
        yield "", lambda call: call.taking(call.args[1], call.args[0], *call.args[2:]).run()
    elif call.name == "where" and len(call.args) == 3:
        yield "", lambda call: call.taking(call.args[0], call.args[2], call.args[1]).run()


_ATEN = torch.ops.aten

_REPLACED: Final[dict[str, tuple[str, ...]]] = {
    "maximum": ("minimum",), "minimum": ("maximum",), "amax": ("amin",), "amin": ("amax",), "max": ("min",),
    "min": ("max",), "argmax": ("argmin",), "argmin": ("argmax",), "add": ("sub",), "sub": ("add",), "mul": ("div",),
    "div": ("mul",), "exp": ("exp2", "expm1"), "exp2": ("exp",), "expm1": ("exp",), "log": ("log2", "log1p"),
    "log2": ("log",), "log10": ("log",), "log1p": ("log",), "relu": ("abs",), "abs": ("relu", "neg"), "neg": ("abs",),
    "floor": ("round", "trunc"), "round": ("floor",), "ceil": ("floor",), "trunc": ("floor",), "sin": ("cos",),
    "cos": ("sin",), "tanh": ("sigmoid",), "sigmoid": ("tanh", "hardsigmoid"), "silu": ("gelu",),
    "sqrt": ("rsqrt",), "rsqrt": ("sqrt", "reciprocal"), "erf": ("tanh",), "erfc": ("erf",), "mish": ("silu",),
    "hardtanh": ("tanh",), "softplus": ("relu",), "elu": ("relu",), "selu": ("elu",), "leaky_relu": ("relu",),
    "hardswish": ("silu",), "hardsigmoid": ("sigmoid",), "logical_and": ("logical_or",),
    "logical_or": ("logical_and",), "bitwise_and": ("bitwise_or",), "bitwise_or": ("bitwise_and",),
    "bitwise_xor": ("bitwise_or",), "lt": ("le",), "le": ("lt",), "gt": ("ge",), "ge": ("gt",), "eq": ("ne",),
    "ne": ("eq",), "cumsum": ("cumprod",), "cumprod": ("cumsum",), "mean": ("sum",), "any": ("all",),
    "all": ("any",), "prod": ("sum",), "remainder": ("fmod",), "fmod": ("remainder",), "tril": ("triu",),
    "triu": ("tril",), "cummax": ("cummin",), "cummin": ("cummax",), "__lshift__": ("__rshift__",),
    "__rshift__": ("__lshift__",), "bitwise_left_shift": ("bitwise_right_shift",),
    "bitwise_right_shift": ("bitwise_left_shift",), "scatter_add": ("scatter",),
}  # fmt: skip
"""Operators and those that they are mistaken for, which take the same arguments."""


def _replaced(name: str, call: Call) -> Any:
    packet = getattr(_ATEN, name)
    overload = getattr(packet, call.func._overloadname, packet)
    try:
        return overload(*call.args, **call.kwargs)
    except (TypeError, RuntimeError):
        try:
            return packet(*call.args)
        except (TypeError, RuntimeError) as error:
            raise MutationNotApplicable(str(error)) from error


@call_fault("replaced", "an operator is mistaken for one like it: max and min, < and <=, exp and exp2, floor and round")
def replaced(recorded: Recorded) -> Iterator[tuple[str, Change]]:
    call = recorded.call
    if _identity(call):
        return
    for name in _REPLACED.get(call.name, ()):
        if name in ("sub", "add") and not (is_tensor(recorded.result) and recorded.result.is_floating_point()):
            continue
        yield name, partial(_replaced, name)
    if call.name == "gelu":
        other = "none" if call.argument("approximate") == "tanh" else "tanh"
        yield f"approximate-{other}", lambda call: call.with_argument("approximate", other).run()
    if call.name == "sum" and is_tensor(recorded.result) and recorded.result.numel():
        yield "mean", lambda call: call.run() * call_share(call)


def call_share(call: Call) -> float:
    """One over the number of terms of a sum."""
    return float(call.run().numel() / max(call.args[0].numel(), 1))


_FLAGS = frozenset({
    "count_include_pad", "align_corners", "is_causal", "largest", "descending", "half_pixel_centers",
    "include_self",
})  # fmt: skip


@call_fault("flag", "an option is read the wrong way round: a causal mask, padding that counts, aligned corners")
def flag(recorded: Recorded) -> Iterator[tuple[str, Change]]:
    for argument in recorded.call.func._schema.arguments:
        value = recorded.call.argument(argument.name)
        if argument.name == "count_include_pad" and not any(recorded.call.argument("padding") or ()):
            continue
        if argument.name in _FLAGS and isinstance(value, bool):
            yield argument.name, partial(with_argument, argument.name, not value)


@call_fault("biased", "a variance divides by n where n - 1 is asked for, or the other way round")
def biased(recorded: Recorded) -> Iterator[tuple[str, Change]]:
    call = recorded.call
    if call.name not in ("var", "std", "var_mean", "std_mean"):
        return
    if call.func._overloadname == "correction":
        correction = call.argument("correction")
        yield "", partial(with_argument, "correction", 0 if correction is None or correction else 1)
    else:
        yield "", partial(with_argument, "unbiased", not call.argument("unbiased"))


_EPS_MOST = 2e-3
"""A positive constant up to this, added or used as a lower bound, keeps a divisor from zero."""

# A number in place of a tensor (``x * 0.5``) is handed to torch as such.
_SCALAR_TYPES = ("number", "float", "Scalar", "Optional[number]", "Optional[float]", "Optional[Scalar]", "Tensor")

_NO_CONSTANT = frozenset({"alpha", "beta", "dropout_p", "momentum", "start", "end", "step", "correction", "ord", "p"})
"""Numbers that are positions, or defaults that a kernel never reads."""


def _numbers(recorded: Recorded) -> Iterator[tuple[str, float | int]]:
    """Numbers of a call by their name in the schema, those left at their default only where they are a constant."""
    call = recorded.call
    if call.name in ("arange", "linspace", "zeros", "ones", "empty", "scalar_tensor", "pow") and call.name != "pow":
        return
    for position, argument in enumerate(call.func._schema.arguments):
        if argument.name in _NO_CONSTANT and not (argument.name == "alpha" and call.name in ("elu", "celu")):
            continue
        is_passed = argument.name in call.kwargs or (not argument.kwarg_only and position < len(call.args))
        value = call.argument(argument.name) if is_passed else None
        if str(argument.type) in _SCALAR_TYPES and isinstance(value, int | float) and not isinstance(value, bool):
            yield argument.name, value


def _is_eps(call: Call, name: str, value: float | int) -> bool:
    small = isinstance(value, float) and 0 < value <= _EPS_MOST
    return "eps" in name or (small and call.name in ("add", "clamp", "clamp_min", "maximum"))


@call_fault("eps", "the small constant that keeps a division safe is another, or forgotten")
def eps(recorded: Recorded) -> Iterator[tuple[str, Change]]:
    for name, value in _numbers(recorded):
        if _is_eps(recorded.call, name, value) and value > 0:
            for detail, factor in (("x10", 10.0), ("x100", 100.0), ("zero", 0.0)):
                yield detail, partial(with_argument, name, value * factor)


_STEP: Final = {torch.float64: 0.01, torch.float32: 0.01, torch.float16: 0.1, torch.bfloat16: 0.25}
"""How far a wrong constant is off, relatively: well above what results of the dtype resolve."""


@call_fault("constant", "a number in the formula is a little off, has the wrong sign, or is off by one")
def constant(recorded: Recorded) -> Iterator[tuple[str, Change]]:
    call = recorded.call
    for name, value in _numbers(recorded):
        if _is_eps(call, name, value) or math.isnan(value):
            continue
        if math.isinf(value) or abs(value) >= 1e4:
            yield f"{name}-zero", partial(with_argument, name, 0 if isinstance(value, int) else 0.0)
            continue
        for detail, other in _wrong(value, recorded):
            yield f"{name}-{detail}", partial(with_argument, name, other)
    if call.name == "div" and call.argument("rounding_mode") in ("floor", "trunc"):
        other_mode = "trunc" if call.argument("rounding_mode") == "floor" else "floor"
        yield f"rounding-{other_mode}", partial(with_argument, "rounding_mode", other_mode)


def _wrong(value: float | int, recorded: Recorded) -> Iterator[tuple[str, float | int]]:
    results = recorded.result if isinstance(recorded.result, tuple | list) else (recorded.result,)
    dtype = results[0].dtype if is_tensor(results[0]) else torch.float32
    if isinstance(value, int):
        yield "plus-1", value + 1
    else:
        step = _STEP.get(dtype, 0.01)
        yield "off", value * (1 + step) if value else step
    if value:
        yield "negated", -value


@call_fault("no-max", "a softmax or a logarithm of exponentials without its maximum taken off first: it overflows")
def no_max(recorded: Recorded) -> Iterator[tuple[str, Change]]:
    makers: dict[str, Callable[[Call], Any]] = {
        "_softmax": _plain_softmax,
        "_log_softmax": _plain_log_softmax,
        "logsumexp": _plain_logsumexp,
    }
    maker = makers.get(recorded.call.name)
    if maker is not None:
        yield "", maker


def _plain_softmax(call: Call) -> Any:
    x, dim = call.args[0], call.args[1]
    powers = x.float().exp() if x.dtype in (torch.float16, torch.bfloat16) else x.exp()
    return (powers / powers.sum(dim, keepdim=True)).to(call.run().dtype)


def _plain_log_softmax(call: Call) -> Any:
    x, dim = call.args[0], call.args[1]
    wide = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
    return (wide - wide.exp().sum(dim, keepdim=True).log()).to(call.run().dtype)


def _plain_logsumexp(call: Call) -> Any:
    x, dim = call.args[0], call.args[1]
    wide = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
    return wide.exp().sum(dim, keepdim=bool(call.argument("keepdim"))).log().to(x.dtype)
