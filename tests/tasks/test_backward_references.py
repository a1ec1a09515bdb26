"""The closed formulas of the suite `backward` are what autograd makes of the forward pass: in float64, tiny sizes."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from tests.support.shipped_prompts import shipped
from tests.tasks.reference_cases import ReferenceCase, assert_close, module_of

pytestmark = pytest.mark.usefixtures("float64_default")

TASKS = {task.name.split("/")[-1]: task.name for task in shipped("backward").tasks}

Outputs = tuple[torch.Tensor, ...]


class Loaded(ReferenceCase):
    """A case whose inputs and parameters are differentiated by."""

    def __init__(self, name: str) -> None:
        super().__init__("backward", TASKS[name], seed=3, noise=0.25)

    def parameter(self, name: str) -> torch.Tensor:
        return leaf(getattr(self.model, name))


def leaf(value: torch.Tensor) -> torch.Tensor:
    return value.detach().clone().requires_grad_()


def gelu(task: Loaded) -> Outputs:
    x, grad = task.tensors
    x, bias = leaf(x), task.parameter("bias")
    return torch.autograd.grad(F.gelu(x + bias), (x, bias), grad)


def swiglu(task: Loaded) -> Outputs:
    gate, up, grad = map(leaf, task.tensors)
    return torch.autograd.grad(F.silu(gate) * up, (gate, up), grad)


def swiglu_mlp(task: Loaded) -> Outputs:
    x, gate, up, down = map(leaf, task.tensors[:4])
    y = (F.silu(x @ gate.t()) * (x @ up.t())) @ down.t()
    dx, *weights = torch.autograd.grad(y, (x, gate, up, down), task.tensors[4])
    for before, after, weight in zip(task.inputs[5:], task.after[5:], weights, strict=True):
        assert_close(after - before, weight.numpy(), 1e-10)
    return (dx,)


def softmax(task: Loaded) -> Outputs:
    y, grad = task.tensors
    x = leaf(y.log())
    return torch.autograd.grad(torch.softmax(x, 1), (x,), grad)


def log_softmax(task: Loaded) -> Outputs:
    y, grad = task.tensors
    x = leaf(y + 2.5)
    return torch.autograd.grad(torch.log_softmax(x, 1), (x,), grad)


def cross_entropy(task: Loaded) -> Outputs:
    scores, target, grad = task.tensors
    target[1] = task.IGNORED
    x = leaf(scores)
    task.outputs = task.run(scores, target, grad)
    return torch.autograd.grad(F.cross_entropy(x, target, ignore_index=task.IGNORED), (x,), grad)


def linear_cross_entropy(task: Loaded) -> Outputs:
    x, weight = map(leaf, task.tensors[:2])
    target, grad = task.tensors[2:]
    target[1] = task.IGNORED
    task.outputs = task.run(*task.tensors)
    loss = F.cross_entropy(F.linear(x, weight), target, ignore_index=task.IGNORED)
    return torch.autograd.grad(loss, (x, weight), grad)


def huber_loss(task: Loaded) -> Outputs:
    x, target, grad = task.tensors
    x = leaf(x)
    return torch.autograd.grad(F.huber_loss(x, target, delta=task.DELTA), (x,), grad)


def layer_norm(task: Loaded) -> Outputs:
    x, _, _, grad = task.tensors
    x, weight, bias = leaf(x), task.parameter("weight"), leaf(torch.randn(x.shape[1]))
    y = F.layer_norm(x, (x.shape[1],), weight, bias, task.EPS)
    return torch.autograd.grad(y, (x, weight, bias), grad)


def rms_norm(task: Loaded) -> Outputs:
    x, _, grad = task.tensors
    x, weight = leaf(x), task.parameter("weight")
    return torch.autograd.grad(F.rms_norm(x, (x.shape[1],), weight, task.EPS), (x, weight), grad)


def batch_norm(task: Loaded) -> Outputs:
    x, _, _, grad = task.tensors
    x, weight, bias = leaf(x), task.parameter("weight"), leaf(torch.randn(x.shape[1]))
    y = F.batch_norm(x, None, None, weight, bias, training=True, eps=task.EPS)
    return torch.autograd.grad(y, (x, weight, bias), grad)


def group_norm(task: Loaded) -> Outputs:
    x, mean, _, grad = task.tensors
    x, weight, bias = leaf(x), task.parameter("weight"), leaf(torch.randn(x.shape[1]))
    y = F.group_norm(x, mean.shape[1], weight, bias, task.EPS)
    return torch.autograd.grad(y, (x, weight, bias), grad)


def attention(task: Loaded) -> Outputs:
    q, k, v = map(leaf, task.tensors[:3])
    past = task.PAST
    seen = torch.tensor([[key <= past + query for key in range(k.shape[2])] for query in range(q.shape[2])])
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=seen)
    assert torch.allclose(out, task.tensors[3])
    return torch.autograd.grad(out, (q, k, v), task.tensors[5])


def linear(task: Loaded) -> Outputs:
    x, grad = task.tensors
    x, weight, bias = leaf(x), task.parameter("weight"), leaf(torch.randn(grad.shape[1]))
    return torch.autograd.grad(F.linear(x, weight, bias), (x, weight, bias), grad)


def conv2d(task: Loaded) -> Outputs:
    x, grad = task.tensors
    x, weight, bias = leaf(x), task.parameter("weight"), leaf(torch.randn(grad.shape[1]))
    y = F.conv2d(x, weight, bias, stride=task.STRIDE, padding=task.PADDING)
    return torch.autograd.grad(y, (x, weight, bias), grad)


def max_pool2d(task: Loaded) -> Outputs:
    _, grad = task.tensors
    torch.manual_seed(4)
    x = leaf(torch.randn(task.BATCH, task.CHANNELS, task.HEIGHT, task.WIDTH))
    windows = {"stride": task.STRIDE, "padding": task.PADDING}
    y, index = F.max_pool2d(x, task.KERNEL, return_indices=True, **windows)
    task.outputs = task.run(index, grad)
    return torch.autograd.grad(y, (x,), grad)


def embedding(task: Loaded) -> Outputs:
    tokens, grad = task.tensors
    padding = task.PADDING_TOKEN
    assert bool((tokens == padding).any())
    table = leaf(torch.randn(task.VOCABULARY, grad.shape[2]))
    return torch.autograd.grad(F.embedding(tokens, table, padding_idx=padding), (table,), grad)


def cumprod(task: Loaded) -> Outputs:
    x, y, grad = task.tensors
    x = leaf(x)
    product = torch.cumprod(x, 1)
    torch.testing.assert_close(product.detach(), y)
    return torch.autograd.grad(product, (x,), grad)


def lstm_cell(task: Loaded) -> Outputs:
    gates, earlier, squashed, grad_hidden, grad_cell = task.tensors
    i, f, a, o = gates.chunk(4, dim=1)
    z = leaf(torch.cat([torch.logit(i), torch.logit(f), torch.atanh(a), torch.logit(o)], dim=1))
    before, earlier = z.chunk(4, dim=1), leaf(earlier)
    cell = torch.sigmoid(before[1]) * earlier + torch.sigmoid(before[0]) * torch.tanh(before[2])
    assert torch.allclose(cell.tanh(), squashed)
    hidden = torch.sigmoid(before[3]) * torch.tanh(cell)
    return torch.autograd.grad((hidden, cell), (z, earlier), (grad_hidden, grad_cell))


def l2_normalise(task: Loaded) -> Outputs:
    x, grad = task.tensors
    x = x.clone()
    x[1] *= 1e-5 / math.sqrt(x.shape[1])
    task.outputs = task.run(x, grad)
    x = leaf(x)
    return torch.autograd.grad(F.normalize(x, dim=1, eps=task.EPS), (x,), grad)


def flashrnn_lstm(task: Loaded) -> Outputs:
    gates, cells, hidden, grad_hidden, grad_cell = task.tensors
    # The hidden states that are read are made of the gates here, as a forward pass makes them.
    i, f, z, o = gates.unbind(3)
    recurrent, bias = task.parameter("recurrent"), leaf(torch.randn(task.HEADS, 4, task.WIDTH))
    before = torch.stack([torch.logit(i), torch.logit(f), torch.atanh(z), torch.logit(o)], dim=3)
    share = torch.einsum("ntak,aqkj->ntaqj", hidden[:, :-1], recurrent) + bias
    wx, h, c = leaf(before - share), leaf(hidden[:, 0]), leaf(cells[:, 0])
    outputs, state, cell = [], h, c
    for step in wx.unbind(1):
        i, f, z, o = (step + torch.einsum("nak,aqkj->naqj", state, recurrent) + bias).unbind(2)
        cell = torch.sigmoid(f) * cell + torch.sigmoid(i) * torch.tanh(z)
        state = torch.sigmoid(o) * torch.tanh(cell)
        outputs.append(state)
    assert torch.allclose(torch.stack(outputs, 1), hidden[:, 1:])
    return torch.autograd.grad((torch.stack(outputs, 1), cell), (wx, recurrent, bias, h, c), (grad_hidden, grad_cell))


def gated_linear_attention(task: Loaded) -> Outputs:
    *inputs, grad, grad_state = task.tensors
    q, k, v, logits, first = map(leaf, inputs)
    outputs, state = [], first
    for t in range(task.LENGTH):
        gate = torch.sigmoid(logits[:, t]) ** (1 / task.GATE_NORMALISER)
        state = gate.unsqueeze(2) * state + k[:, t].unsqueeze(2) * v[:, t].unsqueeze(1)
        outputs.append(torch.bmm(q[:, t].unsqueeze(1), state) / math.sqrt(task.KEY_WIDTH))
    return torch.autograd.grad((torch.cat(outputs, 1), state), (q, k, v, logits, first), (grad, grad_state))


def hash_encoding(task: Loaded) -> tuple[Outputs, torch.Tensor]:
    """Points and tables to differentiate by, and the encoding that the suite `papers` computes of them."""
    points, tables = leaf(task.tensors[0] / 2**task.BITS), leaf(task.tensors[1])
    forward = module_of("papers", "hash_encoding").Model(task.LEVELS, task.COARSEST)
    return (points, tables), forward(points, tables)


def hash_encoding_first_order(task: Loaded) -> Outputs:
    (points, tables), encoded = hash_encoding(task)
    return torch.autograd.grad(encoded, (tables, points), task.tensors[2])


def hash_encoding_second_order(task: Loaded) -> Outputs:
    (points, tables), encoded = hash_encoding(task)
    grad = leaf(task.tensors[2])
    (slope,) = torch.autograd.grad(encoded, (points,), grad, create_graph=True)
    return torch.autograd.grad(slope, (tables, grad, points), task.tensors[3])


FORWARDS: dict[str, Callable[[Loaded], Outputs]] = {
    f"{function.__name__}_backward": function
    for function in (
        gelu, swiglu, softmax, log_softmax, cross_entropy, linear_cross_entropy, huber_loss, layer_norm, rms_norm,
        batch_norm, group_norm, attention, linear, conv2d, max_pool2d, embedding, cumprod, lstm_cell, l2_normalise,
        flashrnn_lstm, gated_linear_attention, swiglu_mlp,
    )
}  # fmt: skip
FORWARDS["hash_encoding_backward"] = hash_encoding_first_order
FORWARDS["hash_encoding_second_order"] = hash_encoding_second_order


def test_every_task_has_its_forward_pass_here() -> None:
    assert set(FORWARDS) == set(TASKS)


@pytest.mark.parametrize("name", sorted(FORWARDS))
def test_the_formula_is_the_gradient_that_autograd_gives(name: str) -> None:
    task = Loaded(name)
    gradients = FORWARDS[name](task)
    assert_close(task.outputs, [gradient.numpy() for gradient in gradients], 1e-10)


def test_chunks_of_queries_add_up_to_the_gradient_of_all_attention() -> None:
    task = Loaded("attention_backward")
    q, k, v, out, log_sum, grad = task.tensors
    dq, dk, dv = task.outputs
    chunks = []
    for first, last in ((0, 3), (3, task.QUERIES)):
        rows, seen = slice(first, last), slice(0, task.PAST + last)
        chunk = (q[:, :, rows], k[:, :, seen], v[:, :, seen], out[:, :, rows], log_sum[:, :, rows], grad[:, :, rows])
        chunks.append(task.run(*chunk))
    assert_close(np.concatenate([chunk[0] for chunk in chunks], 2), dq, 1e-10)
    for gradient, parts in ((dk, [chunk[1] for chunk in chunks]), (dv, [chunk[2] for chunk in chunks])):
        total = np.zeros_like(gradient)
        for part in parts:
            total[:, :, : part.shape[2]] += part
        assert_close(total, gradient, 1e-10)
