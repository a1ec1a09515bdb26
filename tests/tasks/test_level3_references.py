"""The references of the suite ``level3`` against plain formulas in numpy, in float64 at their smallest size."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tests.tasks.reference_cases import ReferenceCase, softmax, tasks_without_a_case
from tests.tasks.reference_cases import assert_close as same

erf = np.vectorize(math.erf)


class Case(ReferenceCase):
    """A case with the layers that networks are made of."""

    def __init__(self, name: str) -> None:
        super().__init__("level3", name, noise=0.1)

    def linear(self, name: str, x: np.ndarray) -> np.ndarray:
        return x @ self.w[f"{name}.weight"].T + self.w.get(f"{name}.bias", 0.0)

    def conv(self, name: str, x: np.ndarray, *, stride: int = 1, padding: int = 0) -> np.ndarray:
        """Convolution as its definition has it, one output place at a time; groups by the weight's shape."""
        weight, bias = self.w[f"{name}.weight"], self.w.get(f"{name}.bias")
        outputs, per_group, rows, cols = weight.shape
        padded = np.pad(x, ((0, 0), (0, 0), (padding, padding), (padding, padding)))
        height, width = (
            (extent - kernel) // stride + 1 for extent, kernel in zip(padded.shape[2:], (rows, cols), strict=True)
        )
        out = np.empty((x.shape[0], outputs, height, width))
        for o, i, j in np.ndindex(outputs, height, width):
            first = o * x.shape[1] // outputs // per_group * per_group
            window = padded[
                :, first : first + per_group, i * stride : i * stride + rows, j * stride : j * stride + cols
            ]
            out[:, o, i, j] = (window * weight[o]).sum(axis=(1, 2, 3)) + (0.0 if bias is None else bias[o])
        return out

    def batch_norm(self, name: str, x: np.ndarray) -> np.ndarray:
        mean, variance, weight, bias = (
            self.w[f"{name}.{part}"].reshape(-1, 1, 1) for part in ("running_mean", "running_var", "weight", "bias")
        )
        return (x - mean) / np.sqrt(variance + 1e-5) * weight + bias

    def layer_norm(self, name: str, x: np.ndarray, eps: float = 1e-5) -> np.ndarray:
        centred = x - x.mean(axis=-1, keepdims=True)
        root = np.sqrt((centred**2).mean(axis=-1, keepdims=True) + eps)
        return centred / root * self.w[f"{name}.weight"] + self.w[f"{name}.bias"]


def relu(x: np.ndarray) -> np.ndarray:
    return np.maximum(x, 0.0)


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1.0 / (1.0 + np.exp(-x))


def silu(x: np.ndarray) -> np.ndarray:
    return x * sigmoid(x)


def gelu(x: np.ndarray) -> np.ndarray:
    return 0.5 * x * (1.0 + erf(x / math.sqrt(2.0)))


def attention(q: np.ndarray, k: np.ndarray, v: np.ndarray, heads: int, seen: Any) -> np.ndarray:
    """One sequence, (places, width), head by head; place i sees the first ``seen(i)`` places."""
    out = np.empty_like(q)
    size = q.shape[1] // heads
    for head in range(heads):
        part = slice(head * size, (head + 1) * size)
        for i in range(q.shape[0]):
            weights = softmax(k[: seen(i), part] @ q[i, part] / math.sqrt(size))
            out[i, part] = weights @ v[: seen(i), part]
    return out


def test_mlp_is_three_layers_with_two_relus() -> None:
    case = Case("mlp")
    inner = relu(case.linear("layers.2", relu(case.linear("layers.0", case.inputs[0]))))
    same(case.outputs[0], case.linear("layers.4", inner))


def test_resnet_block_adds_the_projected_input() -> None:
    case = Case("resnet_block")
    x = case.inputs[0]
    inner = relu(case.batch_norm("norm1", case.conv("conv1", x, stride=case.STRIDE, padding=1)))
    shortcut = case.batch_norm("shortcut_norm", case.conv("shortcut", x, stride=case.STRIDE))
    same(case.outputs[0], relu(case.batch_norm("norm2", case.conv("conv2", inner, padding=1)) + shortcut))


def test_fire_module_expands_what_it_squeezed() -> None:
    case = Case("fire_module")
    squeezed = relu(case.conv("squeeze", case.inputs[0]))
    wide = case.conv("expand1", squeezed), case.conv("expand3", squeezed, padding=1)
    same(case.outputs[0], relu(np.concatenate(wide, axis=1)))


def test_inverted_residual_is_thin_at_its_ends() -> None:
    case = Case("inverted_residual")
    x = case.inputs[0]
    inner = np.minimum(relu(case.batch_norm("layers.1", case.conv("layers.0", x))), 6.0)
    inner = np.minimum(relu(case.batch_norm("layers.4", case.conv("layers.3", inner, padding=1))), 6.0)
    same(case.outputs[0], x + case.batch_norm("layers.7", case.conv("layers.6", inner)))


def test_encoder_block_attends_to_tokens_that_are_there() -> None:
    case = Case("encoder_block")
    x, lengths = case.inputs
    for b in range(case.BATCH):
        q, k, v = np.split(case.linear("qkv", case.layer_norm("norm1", x[b])), 3, axis=-1)
        attended = attention(q, k, v, case.HEADS, lambda i, b=b: lengths[b])
        h = x[b] + case.linear("project", attended)
        same(case.outputs[0][b], h + case.linear("down", gelu(case.linear("up", case.layer_norm("norm2", h)))))


def test_gpt_block_attends_to_the_past() -> None:
    case = Case("gpt_block")
    for x, out in zip(case.inputs[0], case.outputs[0], strict=True):
        q, k, v = np.split(case.linear("qkv", case.layer_norm("norm1", x)), 3, axis=-1)
        h = x + case.linear("project", attention(q, k, v, case.HEADS, lambda i: i + 1))
        u = case.linear("up", case.layer_norm("norm2", h))
        active = 0.5 * u * (1.0 + np.tanh(math.sqrt(2.0 / math.pi) * (u + 0.044715 * u**3)))
        same(out, h + case.linear("down", active))


def test_gru_layer_follows_the_recurrence() -> None:
    case = Case("gru_layer")
    x, state = case.inputs[0], case.inputs[1][0]
    for step in range(case.LENGTH):
        own = np.split(x[step] @ case.w["gru.weight_ih_l0"].T + case.w["gru.bias_ih_l0"], 3, axis=-1)
        old = np.split(state @ case.w["gru.weight_hh_l0"].T + case.w["gru.bias_hh_l0"], 3, axis=-1)
        r, z = sigmoid(own[0] + old[0]), sigmoid(own[1] + old[1])
        state = (1.0 - z) * np.tanh(own[2] + r * old[2]) + z * state
        same(case.outputs[0][step], state)
    same(case.outputs[1][0], state)


def test_lstm_layer_follows_the_recurrence() -> None:
    case = Case("lstm_layer")
    x, h, c = case.inputs[0], case.inputs[1][0], case.inputs[2][0]
    for step in range(case.LENGTH):
        total = x[step] @ case.w["lstm.weight_ih_l0"].T + case.w["lstm.bias_ih_l0"]
        i, f, g, o = np.split(total + h @ case.w["lstm.weight_hh_l0"].T + case.w["lstm.bias_hh_l0"], 4, axis=-1)
        c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
        h = sigmoid(o) * np.tanh(c)
        same(case.outputs[0][step], h)
    same(case.outputs[1][0], h)
    same(case.outputs[2][0], c)


def test_mamba2_block_equals_its_recurrence() -> None:
    case = Case("mamba2_block")
    inner, state, heads = case.HEADS * case.HEAD_DIM, case.STATE, case.HEADS
    taps, tap_bias = case.w["conv.weight"][:, 0], case.w["conv.bias"]
    for x, out in zip(case.inputs[0], case.outputs[0], strict=True):
        z, mixed, t = np.split(case.linear("in_project", x), [inner, 2 * inner + 2 * state], axis=-1)
        states = np.zeros((heads, case.HEAD_DIM, state))
        for i in range(case.LENGTH):
            window = sum(taps[:, case.KERNEL - 1 - lag] * mixed[i - lag] for lag in range(min(i + 1, case.KERNEL)))
            u, b, c = np.split(silu(window + tap_bias), [inner, inner + state])
            u = u.reshape(heads, -1)
            step = np.log1p(np.exp(t[i] + case.w["dt_bias"]))
            decay = np.exp(-step * np.exp(case.w["a_log"]))
            states = decay[:, None, None] * states + step[:, None, None] * u[:, :, None] * b
            gated = (states @ c + case.w["skip"][:, None] * u).reshape(-1) * silu(z[i])
            normalised = gated / math.sqrt((gated**2).mean() + case.EPS) * case.w["weight"]
            same(out[i], case.linear("out_project", normalised))


def test_moe_layer_sums_the_chosen_experts() -> None:
    case = Case("moe_layer")
    for x, out in zip(case.inputs[0], case.outputs[0], strict=True):
        scores = case.linear("gate", x)
        selected = np.argsort(-scores)[: case.CHOSEN]
        want = np.zeros(case.WIDTH)
        for share, e in zip(softmax(scores[selected]), selected, strict=True):
            want += share * case.w["w2"][e] @ (silu(case.w["w1"][e] @ x) * (case.w["w3"][e] @ x))
        same(out, want)


def test_vit_scores_the_mean_of_its_tokens() -> None:
    case = Case("vit")
    size = case.PATCH
    for image, out in zip(case.inputs[0], case.outputs[0], strict=True):
        tokens = []
        for i, j in np.ndindex(case.ROWS, case.COLS):
            patch = image[:, i * size : (i + 1) * size, j * size : (j + 1) * size]
            tokens.append((case.w["embed.weight"] * patch).sum(axis=(1, 2, 3)) + case.w["embed.bias"])
        t = np.array(tokens) + case.w["positions"][0]
        q, k, v = np.split(case.linear("qkv", case.layer_norm("norm1", t)), 3, axis=-1)
        t = t + case.linear("project", attention(q, k, v, case.HEADS, lambda i: case.TOKENS))
        t = t + case.linear("down", gelu(case.linear("up", case.layer_norm("norm2", t))))
        same(out, case.linear("head", case.layer_norm("norm3", t).mean(axis=0)))


def test_unet_up_block_gates_the_skip_before_two_convolutions() -> None:
    case = Case("unet_up_block")
    deep, skip = case.inputs
    raised = np.empty_like(skip)
    for i, j in np.ndindex(2, 2):
        tap = case.w["up.weight"][:, :, i, j]
        raised[:, :, i::2, j::2] = np.einsum("bchw,co->bohw", deep, tap) + case.w["up.bias"].reshape(-1, 1, 1)
    both = relu(case.conv("gate_skip", skip) + case.conv("gate_deep", raised))
    joined = np.concatenate((skip * sigmoid(case.conv("gate", both)), raised), axis=1)
    inner = relu(case.batch_norm("norm1", case.conv("conv1", joined, padding=1)))
    inner = relu(case.batch_norm("norm2", case.conv("conv2", inner, padding=1)))
    same(case.outputs[0], case.conv("head", inner))


def test_retention_layer_equals_its_recurrence() -> None:
    case = Case("retention_layer")
    size = case.HEAD_DIM
    for x, out in zip(case.inputs[0], case.outputs[0], strict=True):
        q, k, v, gate = np.split(case.linear("project", x), 4, axis=-1)
        mixed = np.empty_like(q)
        for head in range(case.HEADS):
            part, memory = slice(head * size, (head + 1) * size), np.zeros((size, size))
            for i in range(case.LENGTH):
                memory = (1.0 - 2.0 ** (-5 - head)) * memory + np.outer(k[i, part], v[i, part])
                kept = q[i, part] @ memory / math.sqrt(size)
                mixed[i, part] = silu(gate[i, part]) * kept / math.sqrt((kept**2).mean() + case.EPS)
        # The decays are kept in float32.
        same(out, case.linear("out_project", mixed), 1e-6)


def test_se_bottleneck_scales_channels_by_their_means() -> None:
    case = Case("se_bottleneck")
    x = case.inputs[0]
    inner = relu(case.batch_norm("norm1", case.conv("conv1", x)))
    inner = relu(case.batch_norm("norm2", case.conv("conv2", inner, padding=1)))
    t = case.batch_norm("norm3", case.conv("conv3", inner))
    gate = sigmoid(case.linear("excite", relu(case.linear("squeeze", t.mean(axis=(2, 3))))))
    same(case.outputs[0], relu(x + t * gate[:, :, None, None]))


def test_convnext_block_normalises_over_channels() -> None:
    case = Case("convnext_block")
    x = case.inputs[0]
    places = np.moveaxis(case.conv("depthwise", x, padding=3), 1, -1)
    inner = gelu(case.linear("up", case.layer_norm("norm", places, 1e-6)))
    same(case.outputs[0], x + np.moveaxis(case.w["scale"] * case.linear("down", inner), -1, 1))


def test_llama_block_turns_queries_and_keys_and_shares_keys_in_a_group() -> None:
    case = Case("llama_block")
    size, half = 2 * case.HALF_DIM, case.HALF_DIM

    def rmsnorm(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
        return x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + case.EPS) * weight

    def rope(x: np.ndarray) -> np.ndarray:
        out = x.reshape(case.LENGTH, -1, size).copy()
        for p, i in np.ndindex(case.LENGTH, half):
            turn = np.exp(1j * p / case.THETA ** (i / half))
            pair = (out[p, :, i] + 1j * out[p, :, i + half]) * turn
            out[p, :, i], out[p, :, i + half] = pair.real, pair.imag
        return out

    for b, x in enumerate(case.inputs[0]):
        n = rmsnorm(x, case.w["norm1"])
        q, k = rope(case.linear("wq", n)), rope(case.linear("wk", n))
        v = case.linear("wv", n).reshape(case.LENGTH, -1, size)
        keys, values = (part.repeat(case.GROUP, axis=1).reshape(case.LENGTH, -1) for part in (k, v))
        attended = attention(q.reshape(case.LENGTH, -1), keys, values, q.shape[1], lambda i: i + 1)
        h = x + case.linear("wo", attended)
        m = rmsnorm(h, case.w["norm2"])
        y = h + case.linear("w2", silu(case.linear("w1", m)) * case.linear("w3", m))
        # The table of cosines and sines is float32, as engines keep it.
        same(case.outputs[0][b], y, 1e-5)
        same(case.outputs[1][b], np.moveaxis(k, 0, 1), 1e-5)
        same(case.outputs[2][b], np.moveaxis(v, 0, 1), 1e-9)


def test_every_task_has_a_test() -> None:
    assert tasks_without_a_case("level3", __file__) == []
