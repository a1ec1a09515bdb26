"""In-order sums compute what torch computes, in another order."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from kernelforge.evaluation.oracle.worker.reference import Reference
from kernelforge.evaluation.oracle.worker.sequential_sums import SequentialSums, ordered_bmm, ordered_sum
from tests.evaluation.oracle_tasks import make_task

OPERATORS = {
    "sum": ("a.sum(), a.sum(1), a.sum((0, 2), keepdim=True)", "torch.randn(4, 5, 6)", ""),
    "mean": ("a.mean(), a.mean(-1), a.mean((0, 2))", "torch.randn(4, 5, 6)", ""),
    "var": (
        "a.var(1), a.std(0, keepdim=True), torch.var_mean(a, 2, correction=0), a.std()",
        "torch.randn(4, 5, 6)",
        "",
    ),
    "mm": ("a @ b, a @ b[:, 0], torch.dot(a[0], b[:, 0])", "torch.randn(4, 5), torch.randn(5, 6)", ""),
    "bmm": (
        "torch.bmm(a, b), torch.baddbmm(a, a, b, beta=0.5, alpha=2)",
        "torch.randn(2, 5, 5), torch.randn(2, 5, 5)",
        "",
    ),
    "linear": ("self.f(a)", "torch.randn(4, 5)", "self.f = nn.Linear(5, 3)"),
    "conv2d": ("self.c(a)", "torch.randn(2, 4, 9, 8)", "self.c = nn.Conv2d(4, 6, 3, 2, 1, 2)"),
    "grouped": ("self.c(a)", "torch.randn(2, 4, 9, 8)", "self.c = nn.Conv2d(4, 8, (3, 2), groups=4)"),
    "softmax": ("torch.softmax(a, 1), torch.log_softmax(a, 0)", "torch.randn(4, 5)", ""),
    "logsumexp": ("a.logsumexp(1), a.logsumexp((0, 1), keepdim=True)", "torch.randn(4, 5)", ""),
    "norm": ("a.norm(dim=1), a.norm(p=1), a.norm(dim=0, keepdim=True)", "torch.randn(4, 5)", ""),
    "layer_norm": ("self.n(a)", "torch.randn(4, 5, 6)", "self.n = nn.LayerNorm((5, 6))"),
    "group_norm": ("self.n(a)", "torch.randn(4, 6, 5)", "self.n = nn.GroupNorm(3, 6)"),
    "batch_norm": ("self.n(a)", "torch.randn(4, 6, 5, 3)", "self.n = nn.BatchNorm2d(6)"),
    "cumsum": ("a.cumsum(0), a.cumsum(-1)", "torch.randn(4, 5)", ""),
    "products": ("a.cumprod(0), a.cumprod(-1), a.prod(1), a.prod(0, keepdim=True)", "torch.randn(4, 5)", ""),
    "distance": (
        "F.pairwise_distance(a, b), F.pairwise_distance(a, b, p=1), F.triplet_margin_loss(a, b, b.flip(0))",
        "torch.randn(4, 5), torch.randn(4, 5)",
        "",
    ),
    "cross_entropy": (
        "F.cross_entropy(a, b), F.cross_entropy(a, b, reduction='sum')",
        "torch.randn(8, 5), torch.randint(0, 5, (8,))",
        "",
    ),
    "ignored targets": (
        "F.cross_entropy(a, b), F.cross_entropy(a, b, reduction='sum')",
        "torch.randn(8, 5), torch.where(torch.arange(8) % 3 == 0, -100, torch.randint(0, 5, (8,)))",
        "",
    ),
    "losses": (
        "F.mse_loss(a, b), F.smooth_l1_loss(a, b, beta=0.5, reduction='sum'), F.huber_loss(a, b, delta=1.5)",
        "torch.randn(4, 5), torch.randn(4, 5)",
        "",
    ),
    "attention": (
        "F.scaled_dot_product_attention(a, b, c), F.scaled_dot_product_attention(a, a, c[:, :, :4], is_causal=True)",
        "torch.randn(2, 3, 4, 8), torch.randn(2, 3, 5, 8), torch.randn(2, 3, 5, 8)",
        "",
    ),
}


@pytest.mark.parametrize("name", OPERATORS)
def test_in_order_operators_agree_with_torch_in_float64(name: str) -> None:
    forward, inputs, init = OPERATORS[name]
    reference = Reference(make_task(forward, inputs, init=init or "pass").source, {})
    doubled = [
        value.double() if isinstance(value, torch.Tensor) and value.is_floating_point() else value
        for value in reference.inputs(1)
    ]
    model, mode = reference.in_double(), SequentialSums(torch.float32)
    plain = reference.run(doubled, model=model)
    ordered = reference.run(doubled, model=model, within=(mode,))
    assert mode.replaced > 0
    assert mode.unordered_terms == 0
    for want, have in zip(plain, ordered, strict=True):
        assert have.dtype == want.dtype
        torch.testing.assert_close(have, want, rtol=1e-10, atol=1e-12)


def test_sums_are_taken_in_order() -> None:
    x = torch.tensor([2.0**24, 1.0, 1.0, -(2.0**24)])
    assert ordered_sum(x, [0], False, torch.float32).item() == 0.0
    assert ordered_sum(x, [0], False, torch.float64).item() == 2.0


def test_factors_are_taken_in_order() -> None:
    x = 1 + torch.randn(3, 4096, generator=torch.Generator().manual_seed(1)) * 0.03
    in_order = np.multiply.accumulate(x.numpy(), axis=1)
    with SequentialSums(torch.float32) as mode:
        running, complete = x.cumprod(1), x.prod(1)
    assert mode.replaced == 2
    assert np.array_equal(running.numpy(), in_order)
    assert np.array_equal(complete.numpy(), in_order[:, -1])


def test_products_are_summed_in_order_of_depth() -> None:
    a, b = torch.randn(2, 3, 500), torch.randn(2, 500, 4)
    total = np.zeros((2, 3, 4), np.float32)
    for k in range(500):
        total = np.asarray(torch.from_numpy(total).addcmul(a[:, :, k : k + 1], b[:, k : k + 1]))
    assert torch.equal(ordered_bmm(a, b, torch.float32), torch.from_numpy(total))


@pytest.mark.parametrize(("init", "terms"), [("nn.Conv1d(4, 2, 3)", 12), ("nn.ConvTranspose1d(4, 2, 3, groups=2)", 6)])
def test_a_sum_that_cannot_be_ordered_leaves_its_length(init: str, terms: int) -> None:
    reference = Reference(make_task("self.c(a)", "torch.randn(1, 4, 9)", init=f"self.c = {init}").source, {})
    mode = SequentialSums(torch.float32)
    reference.run(reference.inputs(1), within=(mode,))
    assert mode.unordered_terms == terms


def test_half_precision_attention_keeps_its_scores_in_the_accumulator_at_every_row() -> None:
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 1, 1024, 4, dtype=torch.bfloat16) for _ in range(3))
    with SequentialSums(torch.float32) as mode:
        ordered = torch.nn.functional.scaled_dot_product_attention(q, k, v)
    assert mode.replaced == 1
    exact = torch.nn.functional.scaled_dot_product_attention(q.float(), k.float(), v.float())
    # Only the result is rounded: half a unit of bfloat16, besides float32's own errors.
    assert ((ordered.float() - exact).abs() <= 2.0**-8 * exact.abs() + 1e-5).all()


def test_no_accumulator_takes_a_whole_large_tensor() -> None:
    """Adding ones to 2**24 in float32 changes nothing: such a loss would excuse a kernel that skips half of them."""
    x = torch.ones(2, (1 << 18) + 3)
    x[1] = 1.1
    total = ordered_sum(x, [1], False, torch.float32)
    assert total[0].item() == (1 << 18) + 3
    exact = x[1].double().sum().item()
    in_one = float(np.add.accumulate(x[1].numpy())[-1])
    assert 0 < abs(total[1].item() - exact) < 0.5 * abs(in_one - exact)
