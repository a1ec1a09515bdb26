"""Convolutions and pooling, over one, two or three axes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kernelforge.agents.builtin.codegen.loops import output_dim
from kernelforge.agents.builtin.ir.lowering import Lowering, lowers
from kernelforge.agents.builtin.ir.nodes import Convolution, Dim, StoredTensor, Value, Window, product
from kernelforge.agents.builtin.ir.operators.reductions import reduced
from kernelforge.agents.builtin.ir.operators.views import channelwise
from kernelforge.errors import UnsupportedError

RANKS = (1, 2, 3)


def _each(lo: Lowering, value: int | Sequence[int], rank: int, setting: str = "") -> tuple[Dim, ...]:
    """One number per axis; those above 1 may be attributes of the model, or the layer's (``conv.stride``)."""
    numbers = [value] if isinstance(value, int) else list(value)
    dims = tuple(lo.number(number, setting) for number in numbers)
    return dims * rank if len(dims) == 1 else dims


def _settings(lo: Lowering, weight: Value, rank: int, **settings: Any) -> list[tuple[Dim, ...]]:
    """The numbers of a convolution's settings, per axis."""
    layer = weight.layer if isinstance(weight, StoredTensor) else ""
    return [_each(lo, value, rank, f"{layer}.{name}") for name, value in settings.items()]


def _with_bias(lo: Lowering, result: Value, bias: Value | None) -> Value:
    if bias is None:
        return result
    return lo.pointwise("{0} + {1}", result, channelwise(lo, bias, len(result.shape)))


def _convolution(
    lo: Lowering, x: Value, weight: Value, bias: Value | None = None, stride: Any = 1, padding: Any = 0,
    dilation: Any = 1, groups: int = 1,
) -> Value:  # fmt: skip
    rank = len(weight.shape) - 2
    if len(x.shape) != rank + 2:
        raise UnsupportedError("the built-in Coder knows convolutions of a batch only")
    steps, spread = _settings(lo, weight, rank, stride=stride, dilation=dilation)
    window = tuple(lo.number(dim.value) for dim in weight.shape[2:])
    reaches = [d.value * (k.value - 1) for d, k in zip(spread, window, strict=True)]
    if padding == "same" and not any(reach % 2 for reach in reaches):
        padding = [reach // 2 for reach in reaches]
    elif isinstance(padding, str):
        padding = _valid(padding)
    (pads,) = _settings(lo, weight, rank, padding=padding)
    shape = (
        x.shape[0], weight.shape[0],
        *(output_dim(x.shape[2 + a], window[a], steps[a], pads[a], spread[a]) for a in range(rank)),
    )  # fmt: skip
    weight = lo.reshape(weight, (*weight.shape[:2], *window))
    result = Convolution(shape, x.dtype, x, weight, steps, pads, spread, groups, origin=lo.origin)
    return _with_bias(lo, result, bias)


def _valid(padding: str) -> int:
    if padding != "valid":
        raise UnsupportedError("the built-in Coder knows padding 'same' of windows that have a middle only")
    return 0


def _transposed(
    lo: Lowering, x: Value, weight: Value, bias: Value | None = None, stride: Any = 1, padding: Any = 0,
    output_padding: Any = 0, groups: int = 1, dilation: Any = 1,
) -> Value:  # fmt: skip
    rank = len(weight.shape) - 2
    if len(x.shape) != rank + 2:
        raise UnsupportedError("the built-in Coder knows convolutions of a batch only")
    steps, pads, spread, beyond = _settings(
        lo, weight, rank, stride=stride, padding=padding, dilation=dilation, output_padding=output_padding
    )
    channels = weight.shape[1] if groups == 1 else product((weight.shape[1], lo.extent(groups, x.shape[1])))
    shape = [x.shape[0], channels if bias is None else bias.shape[0]]
    window = tuple(lo.number(dim.value) for dim in weight.shape[2:])
    weight = lo.reshape(weight, (*weight.shape[:2], *window))
    for axis, dim in enumerate(x.shape[2:]):
        step, pad, apart, after, tap = (numbers[axis] for numbers in (steps, pads, spread, beyond, window))
        text = f"({dim.atom} - 1) * {step.atom} - 2 * {pad.atom} + {apart.atom} * ({tap.text} - 1) + {after.atom} + 1"
        reach = apart.value * (tap.value - 1) + after.value + 1
        shape.append(Dim(text, (dim.value - 1) * step.value - 2 * pad.value + reach))
    result = Convolution(tuple(shape), x.dtype, x, weight, steps, pads, spread, groups, True, origin=lo.origin)
    return _with_bias(lo, result, bias)


lowers("conv1d", "conv2d", "conv3d")(_convolution)
lowers("conv_transpose1d", "conv_transpose2d", "conv_transpose3d")(_transposed)


def _window(
    lo: Lowering, op: str, x: Value, rank: int, kernel: Any, stride: Any, padding: Any, dilation: Any,
    ceil: bool = False, **more: Any,
) -> Value:  # fmt: skip
    size, pads, spread = (_each(lo, setting, rank) for setting in (kernel, padding, dilation))
    steps = _each(lo, stride, rank) if stride not in (None, []) else size
    extents = tuple(output_dim(x.shape[a - rank], size[a], steps[a], pads[a], spread[a]) for a in range(rank))
    if ceil:
        extents = tuple(_rounded_up(x.shape[a - rank], size[a], steps[a], pads[a], spread[a]) for a in range(rank))
    shape = (*x.shape[:-rank], *extents)
    return Window(shape, x.dtype, op, x, size, steps, pads, spread, **more, origin=lo.origin)


def _rounded_up(dim: Dim, kernel: Dim, stride: Dim, padding: Dim, dilation: Dim) -> Dim:
    """Extent with a last window that may hang over, if it begins inside."""
    reach = Dim(
        f"{dilation.atom} * ({kernel.text} - 1) + 2 - 2 * {padding.atom} - {stride.atom}",
        dilation.value * (kernel.value - 1) + 2 - 2 * padding.value - stride.value,
    )
    fitting = f"({dim.atom} - ({reach.text})) // {stride.atom} + 1"
    begun = f"({dim.atom} + {padding.atom} - 1) // {stride.atom} + 1"
    value = min((dim.value - reach.value) // stride.value, (dim.value + padding.value - 1) // stride.value) + 1
    return Dim(f"min({fitting}, {begun})", value)


def _register_pools(rank: int) -> None:
    @lowers(f"max_pool{rank}d")
    def largest(
        lo: Lowering, x: Value, kernel: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1,
        ceil: bool = False,
    ) -> Value:  # fmt: skip
        return _window(lo, "max", x, rank, kernel, stride, padding, dilation, ceil)

    @lowers(f"avg_pool{rank}d")
    def mean(
        lo: Lowering, x: Value, kernel: Any, stride: Any = None, padding: Any = 0, ceil: bool = False,
        count_include_pad: bool = True, divisor: int | None = None,
    ) -> Value:  # fmt: skip
        if ceil or divisor is not None:
            raise UnsupportedError("the built-in Coder knows no mean pooling with ceil_mode or a divisor")
        return _window(lo, "avg", x, rank, kernel, stride, padding, 1, count_padding=count_include_pad)

    def register_adaptive(name: str, op: str) -> None:
        @lowers(name)
        def handler(lo: Lowering, x: Value, size: int | Sequence[int]) -> Value | list[Value]:
            if any(extent != 1 for extent in ([size] if isinstance(size, int) else size)):
                raise UnsupportedError("the built-in Coder knows adaptive pooling to one element only")
            result = reduced(lo, op, x, list(range(-rank, 0)), True)
            return [result] if op == "max" else result

    register_adaptive(f"adaptive_avg_pool{rank}d", "mean")
    register_adaptive(f"adaptive_max_pool{rank}d", "max")  # whose second result, the places, is not known


for _rank in RANKS:
    _register_pools(_rank)
