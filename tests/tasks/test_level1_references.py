"""References of level1 that are more than one torch call, against plain loops in float64 at the ``tiny`` size."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch

from tests.support.shipped_prompts import shipped
from tests.tasks.reference_cases import Array, ReferenceCase, assert_close, module_of


def gelu_tanh(case: ReferenceCase, x: Array) -> Array:
    # tanh(z) = 1 - 2 / (1 + exp(2 z)), so x / 2 * (1 + tanh(z)) = x * sigmoid(2 z).
    return x / (1 + np.exp(-2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def rms_norm(case: ReferenceCase, x: Array) -> Array:
    result = np.empty_like(x)
    for b, h, w in np.ndindex(x.shape[0], *x.shape[2:]):
        line = x[b, :, h, w]
        result[b, :, h, w] = line / math.sqrt(sum(value * value for value in line) / len(line) + 1e-5)
    return result


def l1_norm(case: ReferenceCase, x: Array) -> Array:
    return np.stack([row / max(sum(abs(value) for value in row), 1e-3) for row in x])


def l2_norm(case: ReferenceCase, x: Array) -> Array:
    return np.stack([row / max(math.sqrt(sum(value * value for value in row)), 1e-3) for row in x])


def frobenius_norm(case: ReferenceCase, x: Array) -> Array:
    return x / math.sqrt(sum(value * value for value in x.flat))


def batch_norm(case: ReferenceCase, x: Array) -> Array:
    result = np.empty_like(x)
    for c in range(x.shape[1]):
        mean, variance = x[:, c].mean(), x[:, c].var()
        result[:, c] = (x[:, c] - mean) / math.sqrt(variance + 1e-5) * case.w["norm.weight"][c] + case.w["norm.bias"][c]
    return result


def group_norm(case: ReferenceCase, x: Array) -> Array:
    result = np.empty_like(x)
    for b, group in np.ndindex(x.shape[0], case.GROUPS):
        channels = range(group * case.GROUP_CHANNELS, (group + 1) * case.GROUP_CHANNELS)
        values = x[b, channels]
        for c in channels:
            scaled = (x[b, c] - values.mean()) / math.sqrt(values.var() + 1e-5)
            result[b, c] = scaled * case.w["norm.weight"][c] + case.w["norm.bias"][c]
    return result


def matmul_at_b(case: ReferenceCase, a: Array, b: Array) -> Array:
    return _product(a.transpose(), b)


def matmul_a_bt(case: ReferenceCase, a: Array, b: Array) -> Array:
    return _product(a, b.transpose())


def matmul_at_bt(case: ReferenceCase, a: Array, b: Array) -> Array:
    return _product(a.transpose(), b.transpose())


def matmul_4d(case: ReferenceCase, a: Array, b: Array) -> Array:
    result = np.zeros((*a.shape[:3], b.shape[1]))
    for i, j, k, n, term in np.ndindex(*a.shape[:3], b.shape[1], b.shape[0]):
        result[i, j, k, n] += a[i, j, k, term] * b[term, n]
    return result


def diag_matmul(case: ReferenceCase, d: Array, b: Array) -> Array:
    return _product(np.diag(d), b)


def symmetric_matmul(case: ReferenceCase, a: Array, b: Array) -> Array:
    mirrored = np.array([[a[min(i, j), max(i, j)] for j in range(len(a))] for i in range(len(a))])
    return _product(mirrored, b)


def triu_matmul(case: ReferenceCase, a: Array, b: Array) -> Array:
    n = len(a)
    return np.array([[sum(a[i, k] * b[k, j] for k in range(i, j + 1)) for j in range(n)] for i in range(n)])


def tril_matmul(case: ReferenceCase, a: Array, b: Array) -> Array:
    n = len(a)
    return np.array([[sum(a[i, k] * b[k, j] for k in range(j, i + 1)) for j in range(n)] for i in range(n)])


def _product(a: Array, b: Array) -> Array:
    return np.array([[sum(x * y for x, y in zip(row, column, strict=True)) for column in b.T] for row in a])


def max_dim(case: ReferenceCase, x: Array) -> tuple[Array, Array]:
    places = np.array([[max(range(x.shape[1]), key=plane[:, c].__getitem__) for c in range(x.shape[2])] for plane in x])
    return np.take_along_axis(x, places[:, None], 1)[:, 0], places


def min_dim(case: ReferenceCase, x: Array) -> tuple[Array, Array]:
    places = np.array([[min(range(x.shape[2]), key=row.__getitem__) for row in plane] for plane in x])
    return np.take_along_axis(x, places[..., None], 2)[..., 0], places


def cumsum_reverse(case: ReferenceCase, x: Array) -> Array:
    return np.array([[sum(row[j:]) for j in range(len(row))] for row in x])


def cumsum_exclusive(case: ReferenceCase, x: Array) -> Array:
    return np.array([[sum(row[:j]) for j in range(len(row))] for row in x])


def masked_cumsum(case: ReferenceCase, x: Array, mask: Array) -> Array:
    return np.array([
        [sum(row[k] for k in range(j + 1) if kept[k]) for j in range(len(row))]
        for row, kept in zip(x, mask, strict=True)
    ])  # fmt: skip


def conv2d_asymmetric(case: ReferenceCase, x: Array) -> Array:
    filters = case.w["conv.weight"]
    outputs, _, taps_high, taps_wide = filters.shape
    height, width = x.shape[2] + 2 * 1 - 2 * (taps_high - 1), x.shape[3] + 2 * 4 - 3 * (taps_wide - 1)
    result = np.zeros((len(x), outputs, height, width))
    for h, w, i, j in np.ndindex(height, width, taps_high, taps_wide):
        row, column = h + 2 * i - 1, w + 3 * j - 4
        if 0 <= row < x.shape[2] and 0 <= column < x.shape[3]:
            result[:, :, h, w] += x[:, :, row, column] @ filters[:, :, i, j].T
    return result


def conv_transpose2d(case: ReferenceCase, x: Array) -> Array:
    filters = case.w["conv.weight"]  # (in, out, 3, 3)
    height, width = 2 * x.shape[2], 2 * x.shape[3]
    result = np.zeros((len(x), filters.shape[1], height, width)) + case.w["conv.bias"][:, None, None]
    for h, w, i, j in np.ndindex(*x.shape[2:], 3, 3):
        row, column = 2 * h + i - 1, 2 * w + j - 1
        if 0 <= row < height and 0 <= column < width:
            result[:, :, row, column] += x[:, :, h, w] @ filters[:, :, i, j]
    return result


def conv3d_asymmetric(case: ReferenceCase, x: Array) -> Array:
    filters = case.w["conv.weight"]
    padded = np.pad(x, ((0, 0), (0, 0), (0, 0), (1, 1), (4, 4)))
    places = (x.shape[2] - 3, (x.shape[3] + 2 - 3) // 2 + 1, x.shape[4] + 8 - 8)
    result = np.zeros((len(x), len(filters), *places))
    for d, h, w, i, j, k in np.ndindex(*places, 2, 3, 5):
        result[:, :, d, h, w] += padded[:, :, d + 3 * i, 2 * h + j, w + 2 * k] @ filters[:, :, i, j, k].T
    return result


def conv_transpose1d_dilated(case: ReferenceCase, x: Array) -> Array:
    return _scattered(x[:, :, None, None], case.w["conv.weight"][:, :, None, None], 1, (1, 1, 2), (0, 0, 2), (1, 1, 3))[
        :, :, 0, 0
    ]


def conv_transpose2d_grouped(case: ReferenceCase, x: Array) -> Array:
    filters = case.w["conv.weight"][:, :, None]
    image = _scattered(x[:, :, None], filters, case.GROUPS, (1, 2, 3), (0, 1, 2), (1, 2, 1))[:, :, 0]
    return image + case.w["conv.bias"][:, None, None]


def conv_transpose3d_grouped(case: ReferenceCase, x: Array) -> Array:
    return _scattered(x, case.w["conv.weight"], case.GROUPS, (1, 2, 2), (1, 1, 2), (1, 1, 1))


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


def depthwise_separable_conv2d(case: ReferenceCase, x: Array) -> Array:
    batch, channels, height, width = x.shape
    filters, bias = case.w["depthwise.weight"], case.w["depthwise.bias"]
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    own = np.zeros_like(x)
    for b, c, h, w in np.ndindex(batch, channels, height, width):
        own[b, c, h, w] = (padded[b, c, h : h + 3, w : w + 3] * filters[c, 0]).sum() + bias[c]
    mixed = np.einsum("bchw,oc->bohw", own, case.w["pointwise.weight"][:, :, 0, 0])
    return mixed + case.w["pointwise.bias"][:, None, None]


def mse_loss(case: ReferenceCase, prediction: Array, target: Array) -> float:
    return float(np.mean([(p - t) ** 2 for p, t in zip(prediction.flat, target.flat, strict=True)]))


def smooth_l1_loss(case: ReferenceCase, prediction: Array, target: Array) -> float:
    distances = np.abs(prediction - target).flat
    return float(np.mean([d * d / (2 * 0.5) if d < 0.5 else d - 0.25 for d in distances]))


def huber_loss(case: ReferenceCase, prediction: Array, target: Array) -> float:
    distances = np.abs(prediction - target).flat
    return float(np.mean([d * d / 2 if d < 1.5 else 1.5 * (d - 0.75) for d in distances]))


def cross_entropy(case: ReferenceCase, scores: Array, target: Array) -> float:
    kept = [(row, number) for row, number in zip(scores, target, strict=True) if number != -100]
    return float(np.mean([math.log(sum(math.exp(s) for s in row)) - row[number] for row, number in kept]))


def kl_div(case: ReferenceCase, prediction: Array, target: Array) -> float:
    p, q = np.exp(target), np.exp(prediction)
    np.testing.assert_allclose([p.sum(1), q.sum(1)], 1, rtol=1e-5)
    return float((p * np.log(p / q)).sum()) / len(p)


def hinge_loss(case: ReferenceCase, scores: Array, target: Array) -> float:
    assert set(target.flat) == {-1.0, 1.0}
    return float(np.mean([max(0.0, 1 - s if t > 0 else 1 + s) for s, t in zip(scores.flat, target.flat, strict=True)]))


def cosine_loss(case: ReferenceCase, prediction: Array, target: Array) -> float:
    def cosine(a: Array, b: Array) -> float:
        return float(sum(a * b)) / math.sqrt(sum(a * a) * sum(b * b))

    return float(np.mean([1 - cosine(a, b) for a, b in zip(prediction, target, strict=True)]))


def triplet_margin_loss(case: ReferenceCase, a: Array, positive: Array, negative: Array) -> float:
    def distance(x: Array, y: Array) -> float:
        return math.sqrt(sum((x - y + 1e-3) ** 2))

    rows = zip(a, positive, negative, strict=True)
    return float(np.mean([max(0.0, distance(x, near) - distance(x, far) + 1.0) for x, near, far in rows]))


def attention(case: ReferenceCase, q: Array, k: Array, v: Array) -> Array:
    return _attended(q, k, v, lambda query: k.shape[2])


def attention_causal(case: ReferenceCase, q: Array, k: Array, v: Array) -> Array:
    return _attended(q, k, v, lambda query: query + 1)


def _attended(q: Array, k: Array, v: Array, seen: Callable[[int], int]) -> Array:
    result = np.empty((*q.shape[:3], v.shape[3]))
    for b, h, i in np.ndindex(*q.shape[:3]):
        powers = np.array([math.exp(q[b, h, i] @ key / math.sqrt(q.shape[3])) for key in k[b, h, : seen(i)]])
        result[b, h, i] = powers / powers.sum() @ v[b, h, : seen(i)]
    return result


FORMULAS = {name: value for name, value in globals().items() if name in {task.name for task in shipped("level1")}}
"""The functions above that are called as a task: what it computes, from its case and its inputs."""


@pytest.mark.parametrize("name", FORMULAS)
def test_a_reference_follows_its_formula(name: str) -> None:
    case = ReferenceCase("level1", name, seed=3, noise=0.3)
    assert_close(case.outputs, FORMULAS[name](case, *case.inputs), 1e-10)


@pytest.mark.parametrize("name", ["prod_dim", "cumprod"])
def test_products_of_thousands_stay_in_range_and_have_both_signs(name: str) -> None:
    torch.manual_seed(3)
    result = torch.cumprod(module_of("level1", name, "full")._near_one(8, 8192), dim=1)
    assert 1e-9 < float(result.abs().min()) < float(result.abs().max()) < 1e9
    assert {float(sign) for sign in result.sign().unique()} == {-1.0, 1.0}


def test_some_targets_are_ignored_and_never_all() -> None:
    torch.manual_seed(3)
    tiny, small = (module_of("level1", "cross_entropy", size) for size in ("hidden_tiny", "small"))
    assert all(bool((tiny.get_inputs()[1] != -100).any()) for _ in range(50))
    assert bool((small.get_inputs()[1] == -100).any())
