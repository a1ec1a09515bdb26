"""Every operator that the built-in Coder knows gives PyTorch's values at sizes that differ from the traced one."""

from __future__ import annotations

import agents_workbench as workbench
import pytest
import torch

from kernelforge.agents.builtin.design import MOVES, Design
from kernelforge.agents.builtin.render import render
from kernelforge.compile import Artifact, Compiler
from kernelforge.evaluate.reference import Reference
from kernelforge.evaluate.tracing import trace_source

TASK = """
import torch
import torch.nn as nn
import torch.nn.functional as F
N, D, K = 64, 48, 8
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        {init}
    def forward(self, {parameters}):
        return {body}
def get_inputs():
    return [{inputs}]
def get_init_inputs():
    return []
"""
SMALLER = {"N": 7, "D": 9, "K": 5}
MATRIX = "torch.randn(N, D)"
IMAGE = "torch.randn(3, 4, N + 2, D + 3)"
ALL = Design(tuple(MOVES))

CASES: dict[str, tuple[str, ...]] = {
    "activations": ("F.silu(F.gelu(x)) + F.mish(x) * F.softplus(x) - F.elu(x) + F.hardswish(x)", MATRIX),
    "clamps": ("F.leaky_relu(x, 0.2).clamp(-1, 1) + F.hardtanh(x) + F.relu6(x * 4) + F.hardsigmoid(x)", MATRIX),
    "powers": ("x.abs().pow(1.5) + x**3 + (x * x + 1).sqrt() + (x * x + 1).rsqrt() + 1 / (x * x + 1)", MATRIX),
    "choices": ("torch.where(x > 0, x, 2 * y) + torch.maximum(x, y) - x.masked_fill(y > 0, -1.0)", MATRIX, MATRIX),
    "broadcast": ("x[:, None, :] * y[None, :, :] + x.sum() ", MATRIX, MATRIX),
    "log_softmax outer": ("F.log_softmax(x, dim=0)", MATRIX),
    "layer_norm two axes": ("F.layer_norm(x, x.shape[1:])", "torch.randn(K, N, D)"),
    "moments": ("x.mean((0, 2)) + x.amax((0, 2)) - x.sum((0, 2), keepdim=True).flatten()", "torch.randn(K, N, D)"),
    "max with indices": ("torch.max(x, 1)[0] + torch.min(x, 1)[0], torch.max(x, 1)[1], x.argmin(0)", MATRIX),
    "logsumexp": ("torch.logsumexp(x, 1) + x.mean(1)", MATRIX),
    "losses": ("F.mse_loss(x, y) + F.l1_loss(x, y)", MATRIX, MATRIX),
    "batch_norm": ("self.m(x)", IMAGE, "self.m = nn.BatchNorm2d(4).eval()"),
    "linear of three axes": ("F.relu(self.m(x))", "torch.randn(K, N, 16)", "self.m = nn.Linear(16, 24)"),
    "addmm": ("torch.addmm(z, x, y, beta=0.5, alpha=2.0)", MATRIX, "torch.randn(D, K)", "torch.randn(K)"),
    "matrix by vector": ("x @ y", MATRIX, "torch.randn(D)"),
    "batch broadcast": ("x @ y.transpose(-1, -2)", "torch.randn(K, 1, N, D)", "torch.randn(3, K, D)"),
    "grouped convolution": ("self.m(x)", IMAGE, "self.m = nn.Conv2d(4, 6, 3, 2, 1, 2, groups=2)"),
    "pooling": ("F.avg_pool2d(x, 3, 2, 1) + F.avg_pool2d(x, 3, 2, 1, count_include_pad=False)", IMAGE),
    "global pooling": ("F.adaptive_avg_pool2d(x, 1).flatten(1)", IMAGE),
    "heads": ("x.view(x.shape[0], 4, -1).transpose(0, 1) * 2", "torch.randn(N, 4 * K)"),
    "permuted reshape": ("x.permute(2, 0, 1).reshape(x.shape[2], -1) + 1", "torch.randn(K, N, D)"),
    "select": ("x[:, 1] + x.unsqueeze(1).squeeze(1)[:, 0]", MATRIX),
    "embedding": ("self.m(x) + 1", "torch.randint(0, 11, (N, K))", "self.m = nn.Embedding(11, 6)"),
    "scans": ("x.cumsum(1) * 2 + x.cumsum(0), (1 + x * 0.01).cumprod(1)", MATRIX),
    "causal attention": ("F.scaled_dot_product_attention(x, x, x, is_causal=True)", "torch.randn(2, 3, N, 16)"),
    "half precision": ("F.softmax(x * 2, -1)", "torch.randn(N, D).half()"),
    "bfloat16": ("F.relu(x) + 1", "torch.randn(N, D).bfloat16()"),
    "double precision": ("F.softmax(x, -1) * 0.1", "torch.randn(N, D).double()"),
    "integers": ("(x * 2 + 1).sum(1), x.max(1)[0]", "torch.randint(-9, 9, (N, D))"),
}  # fmt: skip


def _task(case: tuple[str, ...]) -> str:
    body, *rest = case
    init = rest.pop() if rest[-1].startswith("self.") else "pass"
    names = "xyz"[: len(rest)]
    return TASK.format(init=init, parameters=", ".join(names), body=body, inputs=", ".join(rest))


@pytest.mark.parametrize(
    "design",
    [
        pytest.param(ALL, id="all moves"),
        # The plain form of every generator is run by the seeds of suite core; this doubles the time of the file.
        pytest.param(Design(), id="seed", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("name", CASES)
def test_values_are_pytorchs_at_a_size_that_was_not_traced(name: str, design: Design, compiler: Compiler) -> None:
    task = _task(CASES[name])
    written = render(trace_source(task, {}), design)
    reference = Reference(task, SMALLER)
    at = workbench.Bench(reference, reference.inputs(5))
    resolved = workbench.resolve(written.plan, at)
    built = workbench.build(compiler, written.source, resolved)
    assert isinstance(built, Artifact), (built.errors, written.source)
    for got, expected in zip(workbench.run(built, resolved, at), at.expected(), strict=True):
        assert got.dtype == expected.dtype
        assert got.shape == expected.shape
        loose = expected.dtype in (torch.float16, torch.bfloat16)
        torch.testing.assert_close(got, expected, rtol=2e-2 if loose else 2e-5, atol=2e-2 if loose else 2e-5)
