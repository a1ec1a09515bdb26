"""Helper functions of plans that call torch's operators give what torch gives, with the shape that they say."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from kernelforge.candidate import parse_plan
from kernelforge.candidate.resolved import Library, TensorView
from kernelforge.devices.library_calls import call, cpu_tensor, operator
from kernelforge.modelnew.convert.cpp_tokens import Unconvertible
from kernelforge.modelnew.convert.torch_operators import (
    NONE,
    Argument,
    bound_call,
    find_operator,
    helper_functions,
    library_names,
    operators,
)
from kernelforge.records.task import DType, TensorSpec


def drawn(*shape: int) -> torch.Tensor:
    """Positive numbers, of which every operator has a value."""
    generator = torch.Generator().manual_seed(len(shape) + sum(shape))
    return torch.rand(shape, generator=generator) * 0.8 + 0.1


X, Y, IMAGE, ROW = drawn(4, 6, 5), drawn(4, 6, 5), drawn(2, 4, 9, 8), drawn(2, 4, 9)
VOLUME = drawn(2, 4, 6, 7, 5)
MEAN, VAR = drawn(4), drawn(4)

_UNARY = (
    "relu", "sigmoid", "tanh", "exp", "log", "sqrt", "rsqrt", "abs", "neg", "square", "reciprocal", "sin", "cos", "erf",
    "floor", "ceil", "round", "sign", "silu", "mish", "hardswish", "hardsigmoid", "relu6", "softsign", "logsigmoid",
    "selu", "expm1", "log1p", "log2", "tanhshrink",
)  # fmt: skip

CASES: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(_UNARY, (X,)),
    "leaky_relu": (X - 0.5, 0.2), "elu": (X - 0.5, 1.5), "celu": (X - 0.5, 1.5), "hardtanh": (X, 0.2, 0.6),
    "softplus": (X, 2.0, 1.5), "threshold": (X, 0.4, 0.1), "softshrink": (X, 0.3), "hardshrink": (X, 0.3),
    "clamp": (X, 0.2, 0.6), "clamp_min": (X, 0.4), "clamp_max": (X, 0.4), "pow": (X, 3), "softmax": (X, 1),
    "log_softmax": (X, -1), "cumsum": (X, 1), "cumprod": (X, 1), "flip": (X, (0, 2)),
    "add": (X, drawn(6, 1)), "sub": (X, drawn(5)), "mul": (drawn(6, 5), X), "div": (X, Y),
    "maximum": (X, Y), "minimum": (X, drawn(1, 6, 1)), "sum": (X, (0, -1), True), "mean": (X, (1,)),
    "amax": (X, (0,)), "amin": (X, (0, 1)), "var": (X, (1, 2), False, True), "std": (X, (1,), True),
    "max": (X,), "min": (X,), "argmax": (X, 1), "argmin": (X, -1, True),
    "conv1d": (ROW, drawn(6, 2, 3), drawn(6), (2,), (1,), (2,), 2),
    "conv2d": (IMAGE, drawn(5, 4, 3, 2), None, (2, 1), (1, 0), (1, 2)),
    "conv3d": (VOLUME, drawn(5, 4, 2, 2, 2), drawn(5)),
    "conv_transpose1d": (ROW, drawn(4, 3, 3), drawn(6), (2,), (1,), (1,), 2),
    "conv_transpose2d": (IMAGE, drawn(4, 5, 3, 2), None, (2, 3), (1, 0), (1, 2)),
    "conv_transpose3d": (VOLUME, drawn(4, 5, 2, 2, 2), drawn(5), (2, 2, 2), (0, 0, 0), (0, 0, 0), 1, (1, 2, 1)),
    "max_pool1d": (ROW, (2,)), "max_pool2d": (IMAGE, (3, 2), (2, 2), (1, 0), (1, 1), True),
    "max_pool3d": (VOLUME, (2, 2, 2)), "avg_pool1d": (ROW, (3,), (2,), (1,)),
    "avg_pool2d": (IMAGE, (4, 3), (3, 3), (2, 1), True, False), "avg_pool3d": (VOLUME, (2, 2, 2)),
    "adaptive_avg_pool1d": (ROW, (3,)), "adaptive_avg_pool2d": (IMAGE, (1, 1)),
    "adaptive_avg_pool3d": (VOLUME, (2, 3, 1)), "adaptive_max_pool2d": (IMAGE, (2, 1)),
    "adaptive_max_pool3d": (VOLUME, (1, 1, 1)),
    "gelu": (X, "tanh"), "rsub": (X, 2.0), "logsumexp": (X, (1,), True), "norm": (X, 2.0, (1,)),
    "normalize": (X, 2.0, 1), "cosine_similarity": (X, Y, 1), "mse_loss": (X, Y), "linear": (X, drawn(3, 5), drawn(3)),
    "matmul": (X, drawn(5, 3)), "mm": (drawn(4, 5), drawn(5, 3)), "bmm": (X, drawn(4, 5, 2)),
    "addmm": (drawn(3), drawn(4, 5), drawn(5, 3)),
    "batch_norm": (IMAGE, MEAN, VAR, drawn(4), drawn(4), True),
    "instance_norm": (IMAGE, None, None, drawn(4), drawn(4)), "group_norm": (IMAGE, 2, drawn(4), drawn(4)),
    "layer_norm": (X, (6, 5), drawn(6, 5), None, 0.1), "dropout": (X, 0.0), "transpose": (X, 0, -1),
    "t": (drawn(4, 6),),
    "permute": (X, (2, 0, 1)), "expand": (drawn(1, 6, 1), (3, -1, 5)), "expand_as": (drawn(6, 1), X),
    "select": (X, 1, 2),
    "narrow": (X, 1, 2, 3), "cat": ([X, drawn(4, 2, 5), Y], 1), "stack": ([X, Y], -1), "clone": (X,),
    "unsqueeze": (X, 1), "squeeze": (drawn(3, 1, 2, 1), (1,)), "flatten": (IMAGE, 1, 2), "view_as": (X, drawn(24, 5)),
}  # fmt: skip
"""Arguments by operator."""

_REFERENCES: dict[str, Callable[..., torch.Tensor]] = {
    "batch_norm": F.batch_norm,
    "instance_norm": F.instance_norm,
    "gelu": lambda x, approximate: F.gelu(x, approximate=approximate),
    "expand": torch.Tensor.expand,
    "expand_as": torch.Tensor.expand_as,
    "view_as": torch.Tensor.view_as,
    "dropout": lambda x, p: x,
}
"""What torch calls otherwise."""


def computed(name: str, values: tuple[Any, ...]) -> torch.Tensor:
    """Result of a plan that calls the operator's helper function, with its steps done on the CPU."""
    tensors: list[torch.Tensor] = []

    def argument(value: Any) -> Argument:
        if isinstance(value, torch.Tensor):
            tensors.append(value)
            return Argument(f"x{len(tensors) - 1}", "tensor")
        if isinstance(value, list):
            return Argument(f"({', '.join(argument(item).text for item in value)})", "tensors")
        kind = "string" if isinstance(value, str) else "sequence" if isinstance(value, tuple) else "number"
        return NONE if value is None else Argument(repr(value), kind)  # type: ignore[arg-type]

    entry = find_operator(name)
    assert entry is not None
    text = bound_call(entry, [argument(value) for value in values], {}, 1, name)
    names = ", ".join(f"x{position}" for position in range(len(tensors)))
    # A view of an argument is no result of a plan; a copy is. A plan launches a kernel, which is not run here.
    lines = (f"y = {text}", "out = empty_like(y)", "library('clone', y, out=out)", "k[1, 32](out)", "return out")
    body = "".join(f"    {line}\n" for line in lines)
    plan = parse_plan("\n\n".join([*helper_functions([name]), f"def forward({names}):\n{body}"]))
    specs = [TensorSpec(shape=tuple(t.shape), stride=tuple(t.stride()), dtype=DType.FLOAT32) for t in tensors]
    resolved = plan.resolve(specs, {}, {}, library=[*library_names([name]), "clone"])
    memory = {}
    for buffer in resolved.buffers:
        memory[buffer.id] = ctypes.create_string_buffer(max(buffer.nbytes, 1))
        if buffer.kind == "input":
            assert buffer.source is not None
            ctypes.memmove(memory[buffer.id], tensors[int(buffer.source)].data_ptr(), buffer.nbytes)

    def tensor(view: TensorView) -> torch.Tensor:
        return cpu_tensor(ctypes.addressof(memory[view.buffer]) + view.offset_bytes, view)

    for step in resolved.steps:
        if isinstance(step, Library):
            call(step, tensor)
    (output,) = resolved.outputs
    stride = torch.empty(output.shape).stride()
    return tensor(TensorView(output.buffer, output.offset_bytes, output.shape, stride, output.dtype)).clone()


@pytest.mark.parametrize("name", sorted(CASES))
def test_an_operator_gives_what_torch_gives(name: str) -> None:
    values = CASES[name]
    copies = [value.clone() if isinstance(value, torch.Tensor) else value for value in values]
    reference = _REFERENCES[name] if name in _REFERENCES else operator(name)
    expected = reference(*copies)
    result = computed(name, values)
    assert result.shape == expected.shape
    assert result.dtype == expected.dtype
    assert torch.equal(result, expected)


@pytest.mark.parametrize(("name", "number"), [("add", 2), ("sub", 0.5), ("mul", 3.0), ("div", 4.0)])
def test_an_operator_on_a_number_gives_what_torch_gives(name: str, number: float) -> None:
    assert torch.equal(computed(f"{name}_number", (X, number)), operator(name)(X, number))


@pytest.mark.parametrize("name", ["sum", "mean", "var", "norm"])
def test_a_reduction_without_dimensions_gives_one_number(name: str) -> None:
    assert torch.equal(computed(name, (X,)), operator(name)(X))


def test_every_operator_has_a_case() -> None:
    public = {name.removeprefix("torch_") for name in operators() if find_operator(name.removeprefix("torch_"))}
    pairs = {"max_along", "min_along"}
    numbers = {f"{name}_number" for name in ("add", "sub", "mul", "div")}
    assert public - pairs - numbers == set(CASES)


def test_windows_that_begin_behind_the_image_are_dropped() -> None:
    for extent in range(4, 12):
        x = drawn(1, 1, extent)
        expected = F.max_pool1d(x, 3, 2, 1, 1, True)
        assert torch.equal(computed("max_pool1d", (x, (3,), (2,), (1,), (1,), True)), expected)


@pytest.mark.parametrize(
    ("name", "arguments", "why"),
    [
        ("conv2d", [Argument("x", "tensor")], "without `weight`"),
        ("relu", [Argument("x", "tensor"), Argument("1", "number")], "with 2 arguments"),
        ("linear", [Argument("x", "tensor"), Argument("3", "number")], "`weight` of torch's linear is a number"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(name: str, arguments: list[Argument], why: str) -> None:
    entry = find_operator(name)
    assert entry is not None
    with pytest.raises(Unconvertible, match=why):
        bound_call(entry, arguments, {}, 1, name)


def test_auxiliary_functions_are_no_operators() -> None:
    assert find_operator("reduced") is None
    assert find_operator("ones") is None
