"""The fusions of the suite `level2` are what their titles say, by plain numpy in float64 at a tiny size."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from tests.support.shipped_prompts import shipped
from tests.tasks.reference_cases import Array, ReferenceCase, assert_close

pytestmark = pytest.mark.usefixtures("float64_default")

EPS = 1e-5


class Loaded(ReferenceCase):
    """A case with the layers that fusions are made of."""

    def __init__(self, name: str) -> None:
        super().__init__("level2", name, seed=3, noise=0.25)

    def __getitem__(self, name: str) -> Any:
        """A constant of the file, or a weight by its dotted name; None where there is no such weight."""
        return getattr(self.module, name) if hasattr(self.module, name) else self.w.get(name)

    @property
    def x(self) -> Array:
        return self.inputs[0]

    def linear(self, layer: str = "linear") -> Array:
        bias = self[f"{layer}.bias"]
        return np.einsum("bi,oi->bo", self.x, self[f"{layer}.weight"]) + (0.0 if bias is None else bias)

    def conv(self, *, x: Array | None = None, **settings: int) -> Array:
        return convolution(self.x if x is None else x, self["conv.weight"], self["conv.bias"], **settings)

    def transposed(self, **settings: int) -> Array:
        return transposed_convolution(self.x, self["conv.weight"], self["conv.bias"], **settings)

    def affine(self, x: Array, axis: int = 1) -> Array:
        """Times the weight and plus the bias of ``norm``, along an axis."""
        return x * along(self["norm.weight"], x, axis) + along(self["norm.bias"], x, axis)

    def group_norm(self, x: Array) -> Array:
        grouped = x.reshape(x.shape[0], self["GROUPS"], -1)
        return self.affine(centred(grouped, (2,)).reshape(x.shape))


def along(values: Array, x: Array, axis: int) -> Array:
    """``values`` shaped to meet one axis of ``x``."""
    return values.reshape([-1 if i == axis % x.ndim else 1 for i in range(x.ndim)])


def centred(x: Array, axes: Sequence[int]) -> Array:
    mean = x.mean(axis=tuple(axes), keepdims=True)
    return (x - mean) / np.sqrt(((x - mean) ** 2).mean(axis=tuple(axes), keepdims=True) + EPS)


def convolution(
    x: Array,
    weight: Array,
    bias: Array | None,
    *,
    stride: int = 1,
    padding: int = 0,
    dilation: int = 1,
    groups: int = 1,
) -> Array:
    """Term by term over the taps, any number of spatial axes."""
    spatial, kernel = x.ndim - 2, weight.shape[2:]
    x = np.pad(x, [(0, 0), (0, 0)] + [(padding, padding)] * spatial)
    extents = [(x.shape[2 + i] - dilation * (kernel[i] - 1) - 1) // stride + 1 for i in range(spatial)]
    y = np.zeros((x.shape[0], weight.shape[0], *extents))
    per_group = x.shape[1] // groups
    for out in range(weight.shape[0]):
        first = out // (weight.shape[0] // groups) * per_group
        for tap in np.ndindex(*kernel):
            starts = [t * dilation for t in tap]
            seen = [slice(t, t + (e - 1) * stride + 1, stride) for t, e in zip(starts, extents, strict=True)]
            for channel in range(per_group):
                y[:, out] += weight[(out, channel, *tap)] * x[(slice(None), first + channel, *seen)]
    return y if bias is None else y + along(bias, y, 1)


def transposed_convolution(
    x: Array, weight: Array, bias: Array | None, *, stride: int = 1, padding: int = 0, output_padding: int = 0
) -> Array:
    """Each input value spread over the taps, any number of spatial axes."""
    kernel, inside = weight.shape[2:], x.shape[2:]
    reach = [(e - 1) * stride + k + output_padding for e, k in zip(inside, kernel, strict=True)]
    y = np.zeros((x.shape[0], weight.shape[1], *reach))
    for tap in np.ndindex(*kernel):
        for index in np.ndindex(*inside):
            target = tuple(t + stride * p for t, p in zip(tap, index, strict=True))
            column = (slice(None), slice(None))
            y[(*column, *target)] += x[(*column, *index)] @ weight[(*column, *tap)]
    y = y[(slice(None), slice(None), *[slice(padding, extent - padding) for extent in reach])]
    return y if bias is None else y + along(bias, y, 1)


def windows(x: Array, size: int, stride: int | None = None, spatial: int = 2) -> Array:
    """Values of each window of the last axes, along a new first axis."""
    step = size if stride is None else stride
    extents = [(e - size) // step + 1 for e in x.shape[-spatial:]]
    return np.stack([
        x[(..., *[slice(t, t + (e - 1) * step + 1, step) for t, e in zip(tap, extents, strict=True)])]
        for tap in np.ndindex(*[size] * spatial)
    ])  # fmt: skip


def softmax(x: Array, axis: int) -> Array:
    powers = np.exp(x)
    return powers / powers.sum(axis=axis, keepdims=True)


def sigmoid(x: Array) -> Array:
    return 1.0 / (1.0 + np.exp(-x))


def swish(x: Array) -> Array:
    return x * sigmoid(x)


def mish(x: Array) -> Array:
    return x * np.tanh(np.log1p(np.exp(x)))


def gelu(x: Array) -> Array:
    return 0.5 * x * (1.0 + np.vectorize(math.erf)(x / math.sqrt(2.0)))


def hardswish(x: Array) -> Array:
    return x * np.clip(x + 3.0, 0.0, 6.0) / 6.0


def relu(x: Array) -> Array:
    return np.maximum(x, 0.0)


def linear_cross_entropy(t: Loaded) -> list[Array]:
    scores = t.linear("head")
    log_sum = np.log(np.exp(scores).sum(1))
    losses = [log_sum[i] - scores[i, c] if c != t["IGNORED"] else 0.0 for i, c in enumerate(t.inputs[1])]
    return [np.array(losses), log_sum]


def scale_mask_softmax(t: Loaded) -> Array:
    result = np.zeros_like(t.x)
    for batch, length in enumerate(t.inputs[1]):
        result[batch, ..., :length] = softmax(t.x[batch, ..., :length] * t["SCALE"], -1)
    return result


def cauchy_kernel_regression(t: Loaded) -> Array:
    x, points = t.inputs
    result = np.zeros((len(x), t["OUTPUTS"]))
    for i, j in np.ndindex(len(x), len(points)):
        result[i] += t["weight"][j] / (1.0 + t["GAMMA"] * ((x[i] - points[j]) ** 2).sum())
    return result


def pixel_shuffle(x: Array, factor: int) -> Array:
    batch, channels, height, width = x.shape
    y = np.zeros((batch, channels // factor**2, height * factor, width * factor))
    for c, h, w in np.ndindex(*y.shape[1:]):
        y[:, c, h, w] = x[:, c * factor**2 + h % factor * factor + w % factor, h // factor, w // factor]
    return y


def dilated_conv1d_gate_residual(t: Loaded) -> Array:
    padded = np.pad(t.x, [(0, 0), (0, 0), ((t["TAPS"] - 1) * t["DILATION"], 0)])
    y = t.conv(x=padded, dilation=t["DILATION"])
    return np.tanh(y[:, : t["CHANNELS"]]) * sigmoid(y[:, t["CHANNELS"] :]) + t.x


def depthwise_conv2d_batch_norm_relu6(t: Loaded) -> Array:
    y = t.conv(padding=t["KERNEL"] // 2, stride=t["STRIDE"], groups=t["CHANNELS"])
    mean, variance = (along(t[f"norm.running_{name}"], y, 1) for name in ("mean", "var"))
    return np.clip(t.affine((y - mean) / np.sqrt(variance + EPS)), 0.0, 6.0)


def bias_residual_layer_norm_gelu(t: Loaded) -> Array:
    z = t.affine(centred(t.x + t["bias"] + t.inputs[1], (1,)))
    return 0.5 * z * (1.0 + np.tanh(math.sqrt(2.0 / math.pi) * (z + 0.044715 * z**3)))


def strided(t: Loaded) -> dict[str, int]:
    return {"stride": t["STRIDE"], "padding": t["PADDING"]}


FORMULAS: dict[str, Callable[[Loaded], Array | list[Array]]] = {
    "linear_bias_gelu": lambda t: gelu(t.linear()),
    "matmul_scale_residual_clamp": lambda t: np.clip(t.linear() * t["SCALE"] + t.inputs[1], t["LOWER"], t["UPPER"]),
    "linear_group_norm_hardtanh": lambda t: np.clip(t.group_norm(t.linear()), -1.0, 1.0),
    "linear_residual_layer_norm": lambda t: t.affine(centred(relu(t.linear()) + t.inputs[1], (1,))),
    "linear_logsumexp_mish": lambda t: mish(np.log(np.exp(t.linear()).mean(1, keepdims=True))),
    "linear_row_max": lambda t: [t.linear().max(1), t.linear().argmax(1)],
    "linear_batch_norm_swish": lambda t: swish(t.affine(centred(t.linear(), (0,)))),
    "linear_scale_softmax": lambda t: softmax(t.linear() * t["SCALE"], 1),
    "linear_max_pool_sum_scale": lambda t: windows(t.linear(), t["WINDOW"], spatial=1).max(0).sum(1) * t["SCALE"],
    "linear_avg_pool_gelu_max": lambda t: (gelu(windows(t.linear(), t["WINDOW"], spatial=1).mean(0)) * t["SCALE"]).max(
        1
    ),
    "linear_sigmoid_row_sum": lambda t: sigmoid(t.linear()).sum(1, keepdims=True),
    "linear_glu_residual": lambda t: (
        t.linear()[:, : t["OUT_FEATURES"]] * sigmoid(t.linear()[:, t["OUT_FEATURES"] :]) + t.inputs[1]
    ),
    "linear_tanh_l2_normalise": lambda t: (
        np.tanh(t.linear()) / np.sqrt((np.tanh(t.linear()) ** 2).sum(1, keepdims=True) + t["EPS"])
    ),
    "linear_cross_entropy": linear_cross_entropy,
    "matmul_instance_norm_residual": lambda t: (
        (centred(np.einsum("bmk,bkn->bmn", *t.inputs[:2]), (1, 2)) + t.inputs[2]) * t.inputs[2]
    ),
    "add_rms_norm": lambda t: [
        t["weight"] * sum(t.inputs) / np.sqrt((sum(t.inputs) ** 2).mean(1, keepdims=True) + t["EPS"]),
        t.inputs[0] + t.inputs[1],
    ],
    "bias_residual_layer_norm_gelu": bias_residual_layer_norm_gelu,
    "scale_mask_softmax": scale_mask_softmax,
    "residual_group_norm_swish": lambda t: [swish(t.group_norm(t.inputs[0] + t.inputs[1])), t.inputs[0] + t.inputs[1]],
    "bias_relu_column_sums": lambda t: [
        relu(t.x + t["bias"]),
        relu(t.x + t["bias"]).sum(0),
        (relu(t.x + t["bias"]) ** 2).sum(0),
    ],
    "affine_gate_tanh_add": lambda t: (t.x * t["scale"] + t["bias"]) * sigmoid(t.inputs[1]) + np.tanh(t.inputs[2]),
    "embedding_layer_norm": lambda t: t.affine(
        centred(t["tokens.weight"][t.x] + t["positions.weight"][None], (2,)), axis=2
    ),
    "cauchy_kernel_regression": cauchy_kernel_regression,
    "conv2d_relu_bias": lambda t: relu(t.conv()) + t["bias"],
    "conv2d_batch_norm_scale": lambda t: t.affine(centred(t.conv(), (0, 2, 3))) * t["SCALE"],
    "conv2d_subtract_mish": lambda t: mish(t.conv(padding=1) - t["SHIFT"]),
    "conv2d_channel_min_tanh": lambda t: np.tanh(t.conv().min(1, keepdims=True)),
    "conv2d_group_norm_scale_max_pool_clamp": lambda t: np.clip(
        windows(t.group_norm(t.conv()) * t["scale"], t["POOL"]).max(0), t["LOWER"], t["UPPER"]
    ),
    "conv2d_instance_norm_divide_tanh": lambda t: np.tanh(t.affine(centred(t.conv(), (2, 3))) / t["DIVISOR"]),
    "conv2d_hardswish_max_pool": lambda t: windows(
        hardswish(t.conv(padding=2, stride=t["STRIDE"])), t["POOL"], t["POOL_STRIDE"]
    ).max(0),
    "depthwise_conv2d_batch_norm_relu6": depthwise_conv2d_batch_norm_relu6,
    "conv2d_avg_pool_sigmoid_sum": lambda t: sigmoid(windows(t.conv(), t["POOL"]).mean(0)).sum(1),
    "conv2d_pixel_shuffle_leaky_relu": lambda t: (
        relu(pixel_shuffle(t.conv(padding=1), t["FACTOR"]))
        - t["SLOPE"] * relu(-pixel_shuffle(t.conv(padding=1), t["FACTOR"]))
    ),
    "conv2d_logsumexp_residual_relu": lambda t: relu(
        np.log(np.exp(t.conv(padding=1)).sum(1, keepdims=True)) + t.inputs[1]
    ),
    "conv_transpose2d_bias_softmax": lambda t: sigmoid(
        (softmax(t.transposed(**strided(t)), 1) + t["bias"]) * t["SCALE"]
    ),
    "conv_transpose2d_gelu_group_norm": lambda t: t.group_norm(
        gelu(t.transposed(**strided(t), output_padding=t["OUTPUT_PADDING"]))
    ),
    "conv_transpose2d_max_pool_mean_tanh": lambda t: np.tanh(
        np.clip(windows(t.transposed(), t["POOL"]).max(0), -t["LIMIT"], t["LIMIT"]).mean((2, 3), keepdims=True)
    ),
    "conv3d_group_norm_hardswish": lambda t: hardswish(t.group_norm(t.conv())),
    "conv3d_softmax_max_pool": lambda t: windows(softmax(t.conv(), 1), t["POOL"], spatial=3).max(0),
    "conv3d_scale_tanh_factor_sigmoid": lambda t: sigmoid(np.tanh(t.conv() * t["scale"]) * t["factor"]),
    "conv3d_depth_min_softmax": lambda t: softmax(t.conv().min(2), 1),
    "conv_transpose3d_batch_norm_avg_pool": lambda t: windows(
        t.affine(centred(t.transposed(**strided(t)), (0, 2, 3, 4))), t["POOL"], spatial=3
    ).mean(0),
    "conv_transpose3d_layer_norm_gelu": lambda t: gelu(
        t.affine(centred(t.transposed(**strided(t)) + t["ramp"], (4,)), axis=4)
    ),
    "causal_conv1d_swish": lambda t: swish(
        t.conv(x=np.pad(t.x, [(0, 0), (0, 0), (t["TAPS"] - 1, 0)]), groups=t["CHANNELS"])
    ),
    "dilated_conv1d_gate_residual": dilated_conv1d_gate_residual,
}


def test_every_task_has_a_formula_here() -> None:
    assert set(FORMULAS) == {task.name for task in shipped("level2")}


@pytest.mark.parametrize("name", sorted(FORMULAS))
def test_a_fusion_is_what_its_formula_says(name: str) -> None:
    case = Loaded(name)
    assert_close(case.outputs, FORMULAS[name](case))
