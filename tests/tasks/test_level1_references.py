"""References of level1 that are more than one torch call, against plain loops in float64 at the ``tiny`` size."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from tests.tasks import reference_cases

Array = npt.NDArray[Any]
Module = SimpleNamespace
Formula = Callable[..., Any]

module_of = partial(reference_cases.module_of, "level1")

FORMULAS: dict[str, Formula] = {}


def formula(name: str) -> Callable[[Formula], Formula]:
    """Names the task that a function works out: it takes the task's module, its weights by name, and the inputs."""

    def register(function: Formula) -> Formula:
        FORMULAS[name] = function
        return function

    return register


def as_array(value: Any) -> Any:
    return value.detach().numpy() if isinstance(value, torch.Tensor) else value


@formula("gelu_tanh")
def _gelu_tanh(task: Module, weights: dict[str, Array], x: Array) -> Array:
    # tanh(z) = 1 - 2 / (1 + exp(2 z)), so x / 2 * (1 + tanh(z)) = x * sigmoid(2 z).
    return x / (1 + np.exp(-2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


@formula("rms_norm")
def _rms_norm(task: Module, weights: dict[str, Array], x: Array) -> Array:
    result = np.empty_like(x)
    for b, h, w in np.ndindex(x.shape[0], *x.shape[2:]):
        line = x[b, :, h, w]
        result[b, :, h, w] = line / math.sqrt(sum(value * value for value in line) / len(line) + 1e-5)
    return result


@formula("l1_norm")
def _l1_norm(task: Module, weights: dict[str, Array], x: Array) -> Array:
    return np.stack([row / max(sum(abs(value) for value in row), 1e-3) for row in x])


@formula("l2_norm")
def _l2_norm(task: Module, weights: dict[str, Array], x: Array) -> Array:
    return np.stack([row / max(math.sqrt(sum(value * value for value in row)), 1e-3) for row in x])


@formula("frobenius_norm")
def _frobenius_norm(task: Module, weights: dict[str, Array], x: Array) -> Array:
    return x / math.sqrt(sum(value * value for value in x.flat))


@formula("batch_norm")
def _batch_norm(task: Module, weights: dict[str, Array], x: Array) -> Array:
    result = np.empty_like(x)
    for c in range(x.shape[1]):
        mean, variance = x[:, c].mean(), x[:, c].var()
        result[:, c] = (x[:, c] - mean) / math.sqrt(variance + 1e-5) * weights["norm.weight"][c] + weights["norm.bias"][
            c
        ]
    return result


@formula("group_norm")
def _group_norm(task: Module, weights: dict[str, Array], x: Array) -> Array:
    result = np.empty_like(x)
    for b, group in np.ndindex(x.shape[0], task.GROUPS):
        channels = range(group * task.GROUP_CHANNELS, (group + 1) * task.GROUP_CHANNELS)
        values = x[b, channels]
        for c in channels:
            scaled = (x[b, c] - values.mean()) / math.sqrt(values.var() + 1e-5)
            result[b, c] = scaled * weights["norm.weight"][c] + weights["norm.bias"][c]
    return result


@formula("matmul_at_b")
def _matmul_at_b(task: Module, weights: dict[str, Array], a: Array, b: Array) -> Array:
    return _product(a.transpose(), b)


@formula("matmul_a_bt")
def _matmul_a_bt(task: Module, weights: dict[str, Array], a: Array, b: Array) -> Array:
    return _product(a, b.transpose())


@formula("matmul_at_bt")
def _matmul_at_bt(task: Module, weights: dict[str, Array], a: Array, b: Array) -> Array:
    return _product(a.transpose(), b.transpose())


@formula("matmul_4d")
def _matmul_4d(task: Module, weights: dict[str, Array], a: Array, b: Array) -> Array:
    result = np.zeros((*a.shape[:3], b.shape[1]))
    for i, j, k, n, term in np.ndindex(*a.shape[:3], b.shape[1], b.shape[0]):
        result[i, j, k, n] += a[i, j, k, term] * b[term, n]
    return result


@formula("diag_matmul")
def _diag_matmul(task: Module, weights: dict[str, Array], d: Array, b: Array) -> Array:
    return _product(np.diag(d), b)


@formula("symmetric_matmul")
def _symmetric_matmul(task: Module, weights: dict[str, Array], a: Array, b: Array) -> Array:
    mirrored = np.array([[a[min(i, j), max(i, j)] for j in range(len(a))] for i in range(len(a))])
    return _product(mirrored, b)


@formula("triu_matmul")
def _triu_matmul(task: Module, weights: dict[str, Array], a: Array, b: Array) -> Array:
    n = len(a)
    return np.array([[sum(a[i, k] * b[k, j] for k in range(i, j + 1)) for j in range(n)] for i in range(n)])


@formula("tril_matmul")
def _tril_matmul(task: Module, weights: dict[str, Array], a: Array, b: Array) -> Array:
    n = len(a)
    return np.array([[sum(a[i, k] * b[k, j] for k in range(j, i + 1)) for j in range(n)] for i in range(n)])


def _product(a: Array, b: Array) -> Array:
    return np.array([[sum(x * y for x, y in zip(row, column, strict=True)) for column in b.T] for row in a])


@formula("max_dim")
def _max_dim(task: Module, weights: dict[str, Array], x: Array) -> tuple[Array, Array]:
    places = np.array([[max(range(x.shape[1]), key=plane[:, c].__getitem__) for c in range(x.shape[2])] for plane in x])
    return np.take_along_axis(x, places[:, None], 1)[:, 0], places


@formula("min_dim")
def _min_dim(task: Module, weights: dict[str, Array], x: Array) -> tuple[Array, Array]:
    places = np.array([[min(range(x.shape[2]), key=row.__getitem__) for row in plane] for plane in x])
    return np.take_along_axis(x, places[..., None], 2)[..., 0], places


@formula("cumsum_reverse")
def _cumsum_reverse(task: Module, weights: dict[str, Array], x: Array) -> Array:
    return np.array([[sum(row[j:]) for j in range(len(row))] for row in x])


@formula("cumsum_exclusive")
def _cumsum_exclusive(task: Module, weights: dict[str, Array], x: Array) -> Array:
    return np.array([[sum(row[:j]) for j in range(len(row))] for row in x])


@formula("masked_cumsum")
def _masked_cumsum(task: Module, weights: dict[str, Array], x: Array, mask: Array) -> Array:
    return np.array([
        [sum(row[k] for k in range(j + 1) if kept[k]) for j in range(len(row))]
        for row, kept in zip(x, mask, strict=True)
    ])  # fmt: skip


@formula("conv2d_asymmetric")
def _conv2d_asymmetric(task: Module, weights: dict[str, Array], x: Array) -> Array:
    filters = weights["conv.weight"]
    outputs, _, taps_high, taps_wide = filters.shape
    height, width = x.shape[2] + 2 * 1 - 2 * (taps_high - 1), x.shape[3] + 2 * 4 - 3 * (taps_wide - 1)
    result = np.zeros((len(x), outputs, height, width))
    for h, w, i, j in np.ndindex(height, width, taps_high, taps_wide):
        row, column = h + 2 * i - 1, w + 3 * j - 4
        if 0 <= row < x.shape[2] and 0 <= column < x.shape[3]:
            result[:, :, h, w] += x[:, :, row, column] @ filters[:, :, i, j].T
    return result


@formula("conv_transpose2d")
def _conv_transpose2d(task: Module, weights: dict[str, Array], x: Array) -> Array:
    filters = weights["conv.weight"]  # (in, out, 3, 3)
    height, width = 2 * x.shape[2], 2 * x.shape[3]
    result = np.zeros((len(x), filters.shape[1], height, width)) + weights["conv.bias"][:, None, None]
    for h, w, i, j in np.ndindex(*x.shape[2:], 3, 3):
        row, column = 2 * h + i - 1, 2 * w + j - 1
        if 0 <= row < height and 0 <= column < width:
            result[:, :, row, column] += x[:, :, h, w] @ filters[:, :, i, j]
    return result


@formula("conv3d_asymmetric")
def _conv3d_asymmetric(task: Module, weights: dict[str, Array], x: Array) -> Array:
    filters = weights["conv.weight"]
    padded = np.pad(x, ((0, 0), (0, 0), (0, 0), (1, 1), (4, 4)))
    places = (x.shape[2] - 3, (x.shape[3] + 2 - 3) // 2 + 1, x.shape[4] + 8 - 8)
    result = np.zeros((len(x), len(filters), *places))
    for d, h, w, i, j, k in np.ndindex(*places, 2, 3, 5):
        result[:, :, d, h, w] += padded[:, :, d + 3 * i, 2 * h + j, w + 2 * k] @ filters[:, :, i, j, k].T
    return result


@formula("conv_transpose1d_dilated")
def _conv_transpose1d_dilated(task: Module, weights: dict[str, Array], x: Array) -> Array:
    return _scattered(
        x[:, :, None, None], weights["conv.weight"][:, :, None, None], 1, (1, 1, 2), (0, 0, 2), (1, 1, 3)
    )[:, :, 0, 0]


@formula("conv_transpose2d_grouped")
def _conv_transpose2d_grouped(task: Module, weights: dict[str, Array], x: Array) -> Array:
    filters = weights["conv.weight"][:, :, None]
    image = _scattered(x[:, :, None], filters, task.GROUPS, (1, 2, 3), (0, 1, 2), (1, 2, 1))[:, :, 0]
    return image + weights["conv.bias"][:, None, None]


@formula("conv_transpose3d_grouped")
def _conv_transpose3d_grouped(task: Module, weights: dict[str, Array], x: Array) -> Array:
    return _scattered(x, weights["conv.weight"], task.GROUPS, (1, 2, 2), (1, 1, 2), (1, 1, 1))


Triple = tuple[int, int, int]


def _scattered(x: Array, filters: Array, groups: int, stride: Triple, padding: Triple, dilation: Triple) -> Array:
    """Transposed convolution of (batch, in, depth, height, width) by (in, out of a group, three kernel axes)."""
    extents, taps, own = x.shape[2:], filters.shape[2:], filters.shape[1]
    reach = [(e - 1) * s + d * (t - 1) + 1 for e, s, d, t in zip(extents, stride, dilation, taps, strict=True)]
    result = np.zeros((len(x), groups * own, *reach))
    for index in np.ndindex(*extents):
        for tap in np.ndindex(*taps):
            z, y, w = (p * s + t * d for p, s, t, d in zip(index, stride, tap, dilation, strict=True))
            for channel in range(x.shape[1]):
                first = channel // (x.shape[1] // groups) * own
                result[:, first : first + own, z, y, w] += np.outer(x[:, channel, *index], filters[channel, :, *tap])
    inner = tuple(slice(p, r - p) for p, r in zip(padding, reach, strict=True))
    return result[:, :, *inner]


@formula("depthwise_separable_conv2d")
def _depthwise_separable_conv2d(task: Module, weights: dict[str, Array], x: Array) -> Array:
    batch, channels, height, width = x.shape
    filters, bias = weights["depthwise.weight"], weights["depthwise.bias"]
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    own = np.zeros_like(x)
    for b, c, h, w in np.ndindex(batch, channels, height, width):
        own[b, c, h, w] = (padded[b, c, h : h + 3, w : w + 3] * filters[c, 0]).sum() + bias[c]
    mixed = np.einsum("bchw,oc->bohw", own, weights["pointwise.weight"][:, :, 0, 0])
    return mixed + weights["pointwise.bias"][:, None, None]


@formula("mse_loss")
def _mse_loss(task: Module, weights: dict[str, Array], prediction: Array, target: Array) -> float:
    return float(np.mean([(p - t) ** 2 for p, t in zip(prediction.flat, target.flat, strict=True)]))


@formula("smooth_l1_loss")
def _smooth_l1_loss(task: Module, weights: dict[str, Array], prediction: Array, target: Array) -> float:
    distances = np.abs(prediction - target).flat
    return float(np.mean([d * d / (2 * 0.5) if d < 0.5 else d - 0.25 for d in distances]))


@formula("huber_loss")
def _huber_loss(task: Module, weights: dict[str, Array], prediction: Array, target: Array) -> float:
    distances = np.abs(prediction - target).flat
    return float(np.mean([d * d / 2 if d < 1.5 else 1.5 * (d - 0.75) for d in distances]))


@formula("cross_entropy")
def _cross_entropy(task: Module, weights: dict[str, Array], scores: Array, target: Array) -> float:
    kept = [(row, number) for row, number in zip(scores, target, strict=True) if number != -100]
    return float(np.mean([math.log(sum(math.exp(s) for s in row)) - row[number] for row, number in kept]))


@formula("kl_div")
def _kl_div(task: Module, weights: dict[str, Array], prediction: Array, target: Array) -> float:
    p, q = np.exp(target), np.exp(prediction)
    np.testing.assert_allclose([p.sum(1), q.sum(1)], 1, rtol=1e-5)
    return float((p * np.log(p / q)).sum()) / len(p)


@formula("hinge_loss")
def _hinge_loss(task: Module, weights: dict[str, Array], scores: Array, target: Array) -> float:
    assert set(target.flat) == {-1.0, 1.0}
    return float(np.mean([max(0.0, 1 - s if t > 0 else 1 + s) for s, t in zip(scores.flat, target.flat, strict=True)]))


@formula("cosine_loss")
def _cosine_loss(task: Module, weights: dict[str, Array], prediction: Array, target: Array) -> float:
    def cosine(a: Array, b: Array) -> float:
        return float(sum(a * b)) / math.sqrt(sum(a * a) * sum(b * b))

    return float(np.mean([1 - cosine(a, b) for a, b in zip(prediction, target, strict=True)]))


@formula("triplet_margin_loss")
def _triplet_margin_loss(task: Module, weights: dict[str, Array], a: Array, positive: Array, negative: Array) -> float:
    def distance(x: Array, y: Array) -> float:
        return math.sqrt(sum((x - y + 1e-3) ** 2))

    rows = zip(a, positive, negative, strict=True)
    return float(np.mean([max(0.0, distance(x, near) - distance(x, far) + 1.0) for x, near, far in rows]))


@formula("attention")
def _attention(task: Module, weights: dict[str, Array], q: Array, k: Array, v: Array) -> Array:
    return _attended(q, k, v, lambda query: k.shape[2])


@formula("attention_causal")
def _attention_causal(task: Module, weights: dict[str, Array], q: Array, k: Array, v: Array) -> Array:
    return _attended(q, k, v, lambda query: query + 1)


def _attended(q: Array, k: Array, v: Array, seen: Callable[[int], int]) -> Array:
    result = np.empty((*q.shape[:3], v.shape[3]))
    for b, h, i in np.ndindex(*q.shape[:3]):
        powers = np.array([math.exp(q[b, h, i] @ key / math.sqrt(q.shape[3])) for key in k[b, h, : seen(i)]])
        result[b, h, i] = powers / powers.sum() @ v[b, h, : seen(i)]
    return result


@pytest.mark.parametrize("name", FORMULAS)
def test_a_reference_follows_its_formula(name: str) -> None:
    torch.manual_seed(3)
    task = module_of(name)
    model = task.Model(*task.get_init_inputs()).double()
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn_like(weight), alpha=0.3)
    weights = {key: as_array(value).copy() for key, value in model.state_dict().items()}
    inputs = reference_cases.in_double(task.get_inputs())
    want = FORMULAS[name](task, weights, *map(as_array, inputs))
    got = model(*inputs)
    pairs = zip(got, want, strict=True) if isinstance(got, tuple) else [(got, want)]
    for have, right in pairs:
        assert have.shape == np.shape(right)
        np.testing.assert_allclose(as_array(have), right, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", ["prod_dim", "cumprod"])
def test_products_of_thousands_stay_in_range_and_have_both_signs(name: str) -> None:
    torch.manual_seed(3)
    result = torch.cumprod(module_of(name, "full")._near_one(8, 8192), dim=1)
    assert 1e-9 < float(result.abs().min()) < float(result.abs().max()) < 1e9
    assert {float(sign) for sign in result.sign().unique()} == {-1.0, 1.0}


def test_some_targets_are_ignored_and_never_all() -> None:
    torch.manual_seed(3)
    tiny, small = (module_of("cross_entropy", size) for size in ("hidden_tiny", "small"))
    assert all(bool((tiny.get_inputs()[1] != -100).any()) for _ in range(50))
    assert bool((small.get_inputs()[1] == -100).any())
