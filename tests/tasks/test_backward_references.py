"""The closed formulas of the suite `backward` are what autograd makes of the forward pass: in float64, tiny sizes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from kernelforge.tasks import size_source
from tests.support.shipped_prompts import shipped

pytestmark = pytest.mark.usefixtures("float64_default")

TASKS = {task.name.split("/")[-1]: task for task in shipped("backward").tasks}

Outputs = tuple[torch.Tensor, ...]


class Loaded:
    """One task at its size below 32: the file's names, a model, inputs and the outputs."""

    def __init__(self, name: str) -> None:
        self.names: dict[str, Any] = {}
        exec(size_source(TASKS[name], "hidden_tiny"), self.names)
        torch.manual_seed(3)
        self.model = self.names["Model"](*self.names["get_init_inputs"]())
        for parameter in self.model.parameters():
            parameter.data += 0.25 * torch.randn_like(parameter)
        self.inputs = self.names["get_inputs"]()
        with torch.no_grad():
            outputs = self.model(*self.inputs)
        self.outputs: Outputs = outputs if isinstance(outputs, tuple) else (outputs,)

    def parameter(self, name: str) -> torch.Tensor:
        return leaf(getattr(self.model, name))


def leaf(value: torch.Tensor) -> torch.Tensor:
    return value.detach().clone().requires_grad_()


def gelu(task: Loaded) -> Outputs:
    x, grad = task.inputs
    x, bias = leaf(x), task.parameter("bias")
    return torch.autograd.grad(F.gelu(x + bias), (x, bias), grad)


def swiglu(task: Loaded) -> Outputs:
    gate, up, grad = map(leaf, task.inputs)
    return torch.autograd.grad(F.silu(gate) * up, (gate, up), grad)


def softmax(task: Loaded) -> Outputs:
    y, grad = task.inputs
    x = leaf(y.log())
    return torch.autograd.grad(torch.softmax(x, 1), (x,), grad)


def log_softmax(task: Loaded) -> Outputs:
    y, grad = task.inputs
    x = leaf(y + 2.5)
    return torch.autograd.grad(torch.log_softmax(x, 1), (x,), grad)


def cross_entropy(task: Loaded) -> Outputs:
    scores, target, grad = task.inputs
    target[1] = task.names["IGNORED"]
    x = leaf(scores)
    task.outputs = (task.model(scores, target, grad),)
    return torch.autograd.grad(F.cross_entropy(x, target, ignore_index=task.names["IGNORED"]), (x,), grad)


def huber_loss(task: Loaded) -> Outputs:
    x, target, grad = task.inputs
    x = leaf(x)
    return torch.autograd.grad(F.huber_loss(x, target, delta=task.names["DELTA"]), (x,), grad)


def layer_norm(task: Loaded) -> Outputs:
    x, _, _, grad = task.inputs
    x, weight, bias = leaf(x), task.parameter("weight"), leaf(torch.randn(x.shape[1]))
    y = F.layer_norm(x, (x.shape[1],), weight, bias, task.names["EPS"])
    return torch.autograd.grad(y, (x, weight, bias), grad)


def rms_norm(task: Loaded) -> Outputs:
    x, _, grad = task.inputs
    x, weight = leaf(x), task.parameter("weight")
    return torch.autograd.grad(F.rms_norm(x, (x.shape[1],), weight, task.names["EPS"]), (x, weight), grad)


def batch_norm(task: Loaded) -> Outputs:
    x, _, _, grad = task.inputs
    x, weight, bias = leaf(x), task.parameter("weight"), leaf(torch.randn(x.shape[1]))
    y = F.batch_norm(x, None, None, weight, bias, training=True, eps=task.names["EPS"])
    return torch.autograd.grad(y, (x, weight, bias), grad)


def group_norm(task: Loaded) -> Outputs:
    x, mean, _, grad = task.inputs
    x, weight, bias = leaf(x), task.parameter("weight"), leaf(torch.randn(x.shape[1]))
    y = F.group_norm(x, mean.shape[1], weight, bias, task.names["EPS"])
    return torch.autograd.grad(y, (x, weight, bias), grad)


def attention(task: Loaded) -> Outputs:
    q, k, v = map(leaf, task.inputs[:3])
    past = task.names["PAST"]
    seen = torch.tensor([[key <= past + query for key in range(k.shape[2])] for query in range(q.shape[2])])
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=seen)
    assert torch.allclose(out, task.inputs[3])
    return torch.autograd.grad(out, (q, k, v), task.inputs[5])


def linear(task: Loaded) -> Outputs:
    x, grad = task.inputs
    x, weight, bias = leaf(x), task.parameter("weight"), leaf(torch.randn(grad.shape[1]))
    return torch.autograd.grad(F.linear(x, weight, bias), (x, weight, bias), grad)


def conv2d(task: Loaded) -> Outputs:
    x, grad = task.inputs
    x, weight, bias = leaf(x), task.parameter("weight"), leaf(torch.randn(grad.shape[1]))
    y = F.conv2d(x, weight, bias, stride=task.names["STRIDE"], padding=task.names["PADDING"])
    return torch.autograd.grad(y, (x, weight, bias), grad)


def max_pool2d(task: Loaded) -> Outputs:
    _, grad = task.inputs
    names = task.names
    torch.manual_seed(4)
    x = leaf(torch.randn(names["BATCH"], names["CHANNELS"], names["HEIGHT"], names["WIDTH"]))
    windows = {"stride": names["STRIDE"], "padding": names["PADDING"]}
    y, index = F.max_pool2d(x, names["KERNEL"], return_indices=True, **windows)
    task.outputs = (task.model(index, grad),)
    return torch.autograd.grad(y, (x,), grad)


def embedding(task: Loaded) -> Outputs:
    tokens, grad = task.inputs
    padding = task.names["PADDING_TOKEN"]
    assert bool((tokens == padding).any())
    table = leaf(torch.randn(task.names["VOCABULARY"], grad.shape[2]))
    return torch.autograd.grad(F.embedding(tokens, table, padding_idx=padding), (table,), grad)


def cumprod(task: Loaded) -> Outputs:
    x, y, grad = task.inputs
    x = leaf(x)
    product = torch.cumprod(x, 1)
    torch.testing.assert_close(product.detach(), y)
    return torch.autograd.grad(product, (x,), grad)


def lstm_cell(task: Loaded) -> Outputs:
    gates, earlier, squashed, grad_hidden, grad_cell = task.inputs
    i, f, a, o = gates.chunk(4, dim=1)
    z = leaf(torch.cat([torch.logit(i), torch.logit(f), torch.atanh(a), torch.logit(o)], dim=1))
    before, earlier = z.chunk(4, dim=1), leaf(earlier)
    cell = torch.sigmoid(before[1]) * earlier + torch.sigmoid(before[0]) * torch.tanh(before[2])
    assert torch.allclose(cell.tanh(), squashed)
    hidden = torch.sigmoid(before[3]) * torch.tanh(cell)
    return torch.autograd.grad((hidden, cell), (z, earlier), (grad_hidden, grad_cell))


def l2_normalise(task: Loaded) -> Outputs:
    x, grad = task.inputs
    x = x.clone()
    x[1] *= 1e-5 / math.sqrt(x.shape[1])
    task.outputs = (task.model(x, grad),)
    x = leaf(x)
    return torch.autograd.grad(F.normalize(x, dim=1, eps=task.names["EPS"]), (x,), grad)


FORWARDS: dict[str, Callable[[Loaded], Outputs]] = {
    f"{function.__name__}_backward": function
    for function in (
        gelu, swiglu, softmax, log_softmax, cross_entropy, huber_loss, layer_norm, rms_norm, batch_norm, group_norm,
        attention, linear, conv2d, max_pool2d, embedding, cumprod, lstm_cell, l2_normalise,
    )
}  # fmt: skip


def test_every_task_has_its_forward_pass_here() -> None:
    assert set(FORWARDS) == set(TASKS)


@pytest.mark.parametrize("name", sorted(FORWARDS))
def test_the_formula_is_the_gradient_that_autograd_gives(name: str) -> None:
    task = Loaded(name)
    expected = FORWARDS[name](task)
    assert len(task.outputs) == len(expected)
    for output, gradient in zip(task.outputs, expected, strict=True):
        assert output.shape == gradient.shape
        torch.testing.assert_close(output.detach(), gradient, rtol=1e-10, atol=1e-12)
