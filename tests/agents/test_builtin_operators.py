"""Every operator that the built-in Coder knows gives PyTorch's values at sizes that differ from the traced one."""

from __future__ import annotations

import pytest
import torch

from kernelforge.agents.builtin.codegen import tensor_cores
from kernelforge.agents.builtin.codegen.render import Rendered, render
from kernelforge.agents.builtin.design import MOVES, Design
from kernelforge.compile import Artifact, Compiler
from kernelforge.evaluation.oracle.worker.reference import Reference
from kernelforge.evaluation.oracle.worker.tracing import trace_source
from tests.agents import agent_setup as workbench

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
IMAGES = "torch.randn(2, K, N, N + 3)"
VOLUMES = "torch.randn(2, K, 3, N, 5)"
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
    "products of doubles": ("(x @ y) * 0.1", "torch.randn(N, K).double()", "torch.randn(K, D).double()"),
    "windows of doubles": (
        "F.avg_pool1d(x, 3, padding=1), F.conv1d(x, y, padding=1)", "torch.randn(2, 4, N).double()",
        "torch.randn(5, 4, 3).double()",
    ),
    "more activations": (
        "F.selu(x) + F.celu(x, 1.5) + F.logsigmoid(x) + F.softshrink(x, 0.3) + F.hardshrink(x) + F.glu(y)",
        MATRIX, "torch.randn(N, 2 * D)",
    ),
    "joins and slices": (
        "torch.cat([x[:, 1:], F.pad(x, (1, 2), value=3.0), x.flip(1) * 2], 1), torch.stack(x.chunk(2, 0), 1)",
        MATRIX.replace("N,", "2 * N,"),
    ),
    "repeats": (
        "x.repeat(1, 2) + x.repeat_interleave(2, 1), x.roll(3, 1), F.pad(x[None], (2, 3), mode='reflect') + 1", MATRIX,
    ),
    "moments and norms": (
        "x.var(1) + x.std(1, correction=0) + x.norm(p=1, dim=1), F.normalize(x), x.norm(), (x > 1).any(1)",
        MATRIX,
    ),
    "norms of channels": (
        "F.group_norm(x, 2, self.g, self.b) + F.instance_norm(x), F.batch_norm(x, None, None, self.g, self.b, True)",
        IMAGE, "self.g, self.b = nn.Parameter(torch.randn(4)), nn.Parameter(torch.randn(4))",
    ),
    "convolutions over one and three axes": (
        "self.m(x), self.t(x)", "torch.randn(2, 4, N)",
        "self.m = nn.Conv1d(4, 6, 3, 2, 1); self.t = nn.ConvTranspose1d(4, 6, 3, 2, 1, 1, groups=2)",
    ),
    "convolution without padding": ("self.m(x)", IMAGE, "self.m = nn.Conv2d(4, 6, (3, 2), 2)"),
    "transposed convolution of one dilation": (
        "self.m(x)", "torch.randn(2, 4, 5, 6, K)", "self.m = nn.ConvTranspose3d(4, 3, 3, (2, 1, 3), 1, (1, 0, 2))"
    ),
    "a bidirectional LSTM": (
        "(lambda out, state: (out, *state))(*self.m(x, (y, z)))", "torch.randn(3, N, D)", "torch.randn(4, 3, K)",
        "torch.randn(4, 3, K)", "self.m = nn.LSTM(D, K, 2, batch_first=True, bidirectional=True)",
    ),
    "a GRU": ("self.m(x, y)", "torch.randn(N, 3, D)", "torch.randn(2, 3, K)", "self.m = nn.GRU(D, K, 2)"),
    "recurrent layers without gates": (
        "self.m(x)[0], self.n(x)[1]", "torch.randn(5, 3, D)",
        "self.m = nn.RNN(D, K, bias=False, bidirectional=True); self.n = nn.RNN(D, 40, nonlinearity='relu')",
    ),
    "rows for the next layer": ("self.m(x.view(-1, 96))", "torch.randn(16, 2, D)", "self.m = nn.Linear(96, 5)"),
    "a dense block": (
        "(lambda a: (lambda b: torch.cat([x, a, b, torch.cat([x, a, b], 1).relu()], 1))(torch.cat([x, a], 1) * 2))"
        "(x.exp())", MATRIX,
    ),
    "other names": ("torch.multiply(x, 2).subtract(y, alpha=3).divide(torch.absolute(y) + 1)", MATRIX, MATRIX),
    "a tensor made of a number": ("torch.min(x, torch.tensor(0.5))", MATRIX),
    "transposed convolution": ("self.m(x)", IMAGE, "self.m = nn.ConvTranspose2d(4, 3, (3, 2), 2, (1, 0), dilation=2)"),
    "pooling over one and three axes": (
        "F.max_pool1d(x, 3, 2, 1, ceil_mode=True), F.avg_pool3d(x[None], 2, 1), F.adaptive_max_pool1d(x, 1)",
        "torch.randn(3, N, D)",
    ),
    "losses of pairs": (
        "F.huber_loss(x, y) + F.smooth_l1_loss(x, y, beta=0.5) + F.kl_div(x, y.abs(), reduction='sum') + "
        "F.cosine_similarity(x, y).mean() + F.triplet_margin_loss(x, y, y.flip(0)) + "
        "F.binary_cross_entropy_with_logits(x, y.sigmoid()) + F.cosine_embedding_loss(x, y, y[:, 0].sign())",
        MATRIX, MATRIX,
    ),
    "labels": (
        "F.nll_loss(x, y, self.w, ignore_index=2), F.cross_entropy(x, y, reduction='sum', ignore_index=1), "
        "F.one_hot(y, 4), F.cross_entropy(x, x.softmax(1))",
        "torch.randn(N, 4)", "torch.randint(0, 4, (N,))", "self.w = torch.tensor([1.0, 2.0, 0.5, 3.0])",
    ),
    "indices": (
        "x[y] + x.index_select(0, y), x.gather(1, y[:, None]), x[y, y], x[:, -1]", MATRIX, "torch.randint(0, 5, (N,))",
    ),
    "running extremes and reversed sums": (
        "x.flip(1).cumsum(1).flip(1), x.cummax(1)[0], x.logcumsumexp(0), "
        "torch.cat([x[:, :1] * 0, x], 1).cumsum(1)[:, :-1]",
        MATRIX,
    ),
    "products by subscript": (
        "torch.einsum('nkd,dm->nmk', x, y), torch.cdist(x[0], x[1]), x[0].triu() @ y.tril(1), torch.kron(y, y[:2, :3])",
        "torch.randn(3, N, D)", "torch.randn(D, D)",
    ),
    "products of three by subscript": (
        "torch.einsum('nkd,nd,ndm->nmk', x, y, z), torch.einsum('nkd,nl->nk', x, y)",
        "torch.randn(3, N, D)", "torch.randn(3, D)", "torch.randn(3, D, K)",
    ),
    "shared heads": (
        "F.scaled_dot_product_attention(x, y, y, enable_gqa=True) + torch.arange(x.shape[2])[:, None]",
        "torch.randn(2, 4, N, 16)", "torch.randn(2, 2, D, 16)",
    ),
    "a number and a transposed matrix": ("x * z + y / x.shape[0]", MATRIX, "torch.randn(D, N).t()", "0.37"),
    "casts": ("x.half().float() + (x > 0), y.float() / 2, (y >> 1) & 3", MATRIX, "torch.randint(0, 99, (N, D))"),
    "sum of a whole tensor": ("x.sum() + x.norm() * 2", "torch.randn(K, N, D)"),
    "integers": ("(x * 2 + 1).sum(1), x.max(1)[0]", "torch.randint(-9, 9, (N, D))"),
}  # fmt: skip


def _task(case: tuple[str, ...]) -> str:
    body, *rest = case
    init = rest.pop() if rest[-1].startswith("self.") else "pass"
    names = "xyz"[: len(rest)]
    return TASK.format(init=init, parameters=", ".join(names), body=body, inputs=", ".join(rest))


@pytest.mark.slow
@pytest.mark.one_in(26)
@pytest.mark.parametrize("name", CASES)
def test_values_are_pytorchs_at_a_size_that_was_not_traced(name: str, compiler: Compiler) -> None:
    """As a seed and with all moves; where these come to the same code, it is run once."""
    task = _task(CASES[name])
    graph = trace_source(task, {})
    reference = Reference(task, SMALLER)
    at = workbench.Bench(reference, reference.inputs(5))
    written = {
        item.plan + item.source.partition("\n")[2]: item for item in (render(graph, ALL), render(graph, Design()))
    }
    for item in written.values():
        run_and_compare(item, at, compiler)


@pytest.mark.slow
def test_elements_of_one_vector_may_be_of_two_channels(compiler: Compiler) -> None:
    task = _task(("self.m(x)", IMAGE, "self.m = nn.Conv2d(4, 4, 3, groups=4)"))
    item = render(trace_source(task, {}), Design(("vectorise",)))
    reference = Reference(task, SMALLER)
    assert "= load<V>(" not in item.source
    assert "store<V>(" in item.source
    run_and_compare(item, workbench.Bench(reference, reference.inputs(5)), compiler)


@pytest.mark.slow
def test_kernels_of_a_dense_network_do_not_grow_with_its_depth() -> None:
    def kernels(layers: int) -> tuple[int, int]:
        init = f"self.m = nn.ModuleList(nn.Linear(16 + 8 * n, 8) for n in range({layers}))"
        body = "[v := [x]] and [v.append(m(torch.cat(v, 1))) for m in self.m] and torch.cat(v, 1)"
        item = render(trace_source(_task((body, "torch.randn(N, 16)", init)), {}), Design())
        return len(item.kernels), item.source.count("if (p")

    assert kernels(12) == kernels(5)


@pytest.mark.parametrize(
    ("body", "init", "wide"),
    [
        ("F.max_pool2d(x, 2)", "self.m = None", False),
        ("self.m(x)", "self.m = nn.ConvTranspose2d(4, 6, 3, 2)", False),
        ("self.m(x)", "self.m = nn.Conv2d(4, 4, 3, padding=1, groups=4)", False),
        ("self.m(x)", "self.m = nn.Conv2d(4, 4, 3, groups=4)", True),
    ],
)
def test_threads_of_windows_that_test_edges_have_one_element(body: str, init: str, wide: bool) -> None:
    """Four would each test them at every step: 1.4 to 56 times as slow by the model."""
    graph = trace_source(_task((body, "torch.randn(8, 4, N, N)", init)), {})
    item = render(graph, Design(("vectorise",)))
    assert ("template <int V>" in item.source) is wide
    assert (item.source.partition("\n")[2] == render(graph, Design()).source.partition("\n")[2]) is not wide


def test_a_product_with_one_column_is_a_sum_over_rows() -> None:
    item = render(trace_source(_task(CASES["matrix by vector"]), {}), ALL)
    assert "row_reduce" in item.source
    assert "TensorTiles" not in item.source


def test_a_product_keeps_its_tiles_where_a_view_behind_it_permutes_the_result() -> None:
    convolution = ("F.pixel_shuffle(self.m(x), 2).relu()", "torch.randn(8, 8, N, N)", "self.m = nn.Conv2d(8, 64, 3)")
    item = render(trace_source(_task(convolution), {}), Design(("fuse", "tensor-cores")))
    assert "TensorTiles" in item.source
    assert len(item.kernels) == 2


PRODUCTS = {
    "product": ("F.relu(x @ y)", "torch.randn(N, D)", "torch.randn(D, N)"),
    "convolution": ("self.m(x)", "torch.randn(D, K, N, N)", "self.m = nn.Conv2d(K, 2 * D, 3, padding=1)"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", PRODUCTS)
def test_tiles_of_128_by_128_results_are_right_where_they_do_not_divide(name: str, compiler: Compiler) -> None:
    task = _task(PRODUCTS[name])
    item = render(trace_source(task, {"N": 2048, "D": 64}), Design(("tile", "register-tile")))
    assert "tile_b[16][129]" in item.source
    constants = {"product": {"N": 131, "D": 37}, "convolution": {"N": 12, "D": 3, "K": 2}}[name]
    reference = Reference(task, constants)
    run_and_compare(item, workbench.Bench(reference, reference.inputs(5)), compiler)


def run_and_compare(item: Rendered, at: workbench.Bench, compiler: Compiler) -> None:
    """Run on the emulated device, and compare with PyTorch."""
    resolved = workbench.resolve(item.plan, at)
    built = workbench.build(compiler, item.source, resolved)
    assert isinstance(built, Artifact), (built.errors, item.source)
    for got, expected in zip(workbench.run(built, resolved, at), at.expected(), strict=True):
        assert got.dtype == expected.dtype
        assert got.shape == expected.shape
        loose = expected.dtype in (torch.float16, torch.bfloat16)
        torch.testing.assert_close(got, expected, rtol=2e-2 if loose else 2e-5, atol=2e-2 if loose else 2e-5)


TENSOR_CORES = {
    "product": ("F.relu(x @ y + z)", "torch.randn(N, D)", "torch.randn(D, N)", "torch.randn(N)"),
    "transposed left": ("x.t() @ y", "torch.randn(D, N)", "torch.randn(D, N)"),
    "transposed right": ("x @ y.t()", "torch.randn(N, D)", "torch.randn(N, D)"),
    "both transposed": ("x.t() @ y.t()", "torch.randn(D, N)", "torch.randn(N, D)"),
    "batch": ("x @ y.transpose(-1, -2)", "torch.randn(K, 1, N, D)", "torch.randn(3, K, D)"),
    "half": ("torch.relu(x @ y)", "torch.randn(N, D).half()", "torch.randn(D, N).half()"),
    "half transposed": ("x.t() @ y.t()", "torch.randn(D, N).half()", "torch.randn(N, D).half()"),
    "bfloat16": ("x @ y.t()", "torch.randn(N, D).bfloat16()", "torch.randn(N, D).bfloat16()"),
    "padded": ("F.pad(x, (1, 2)) @ y", "torch.randn(N, D - 3)", "torch.randn(D, N)"),
    "slices": ("x[:, 2:] @ y[:, :-1]", "torch.randn(N, D)", "torch.randn(D - 2, N)"),
    "compared": ("x @ y > z", "torch.randn(N, D)", "torch.randn(D, N)", "torch.randn(N)"),
    "linear": ("self.m(x).tanh()", "torch.randn(K, N, D)", "self.m = nn.Linear(D, 2 * D)"),
    "convolution": ("self.m(x).relu()", "torch.randn(K, D, N, N)", "self.m = nn.Conv2d(D, 2 * D, 3, padding=1)"),
    "strided": ("self.m(x)", "torch.randn(2, K, N, N + 3)", "self.m = nn.Conv2d(K, D, (3, 2), 2, dilation=2)"),
    "half convolution": ("self.m(x)", "torch.randn(2, K, N).half()", "self.m = nn.Conv1d(K, D, 3).half()"),
    "three axes": ("self.m(x)", "torch.randn(2, K, 9, 8, N)", "self.m = nn.Conv3d(K, D, 3, padding=(1, 0, 2))"),
}


@pytest.mark.slow
@pytest.mark.one_in(26)
@pytest.mark.parametrize("name", TENSOR_CORES)
@pytest.mark.parametrize("constants", [{"N": 7, "D": 9, "K": 5}, {"N": 68, "D": 40, "K": 3}], ids=["odd", "fours"])
def test_tensor_cores_give_pytorchs_values(name: str, constants: dict[str, int], compiler: Compiler) -> None:
    task = _task(TENSOR_CORES[name])
    item = render(trace_source(task, {}), Design(("fuse", "tensor-cores")))
    assert "TensorTiles" in item.source
    reference = Reference(task, constants)
    run_and_compare(item, workbench.Bench(reference, reference.inputs(5)), compiler)


CONVOLUTIONS = {
    "stride 2": ("self.m(x).relu()", IMAGES, "self.m = nn.ConvTranspose2d(K, D, 3, 2, 1, 1)"),
    "stride by axis": ("self.m(x)", IMAGES, "self.m = nn.ConvTranspose2d(K, D, (3, 5), (2, 3), (1, 2), (1, 0))"),
    "stride and dilation": (
        "self.m(x)", IMAGES, "self.m = nn.ConvTranspose2d(K, D, (3, 4), (4, 2), (0, 3), dilation=(2, 3), bias=False)",
    ),
    "stride above the window": ("self.m(x)", IMAGES, "self.m = nn.ConvTranspose2d(K, D, (1, 2), 3, 0, (2, 1))"),
    "whole rows": ("self.m(x)", IMAGES, "self.m = nn.ConvTranspose2d(K, D, 3, (2, 5), 1, dilation=2)"),
    "whole rows of one axis": ("self.m(x)", "torch.randn(2, K, N)", "self.m = nn.ConvTranspose1d(K, D, 7, 6, 3, 1)"),
    "one axis": ("self.m(x)", "torch.randn(2, K, N)", "self.m = nn.ConvTranspose1d(K, D, 5, 2, 2, dilation=3)"),
    "three axes": ("self.m(x)", VOLUMES, "self.m = nn.ConvTranspose3d(K, D, 3, (2, 1, 2), 1, (1, 0, 1))"),
    "three axes in groups": ("self.m(x)", VOLUMES, "self.m = nn.ConvTranspose3d(K, 24, 3, 2, 1, groups=3)"),
    "groups": ("self.m(x)", IMAGES, "self.m = nn.ConvTranspose2d(K, 48, (3, 5), (2, 3), (1, 2), groups=3)"),
    "halves": ("self.m(x)", f"{IMAGES}.half()", "self.m = nn.ConvTranspose2d(K, D, 4, 2, 1).half()"),
    "no stride": ("self.m(x)", IMAGES, "self.m = nn.ConvTranspose2d(K, D, (3, 5), 1, (1, 0))"),
    "no stride, and padding above the reach": ("self.m(x)", IMAGES, "self.m = nn.ConvTranspose2d(K, D, 2, 1, 2)"),
    "no stride, but dilation": (
        "self.m(x)", IMAGES, "self.m = nn.ConvTranspose2d(K, D, (1, 3), 1, (0, 4), 1, dilation=2)",
    ),
    "no stride, in groups": ("self.m(x)", IMAGES, "self.m = nn.ConvTranspose2d(K, 24, 3, 1, 1, groups=3)"),
    "one tap": ("self.m(x).relu()", IMAGES, "self.m = nn.Conv2d(K, D, 1)"),
    "one tap in groups": ("self.m(x)", VOLUMES, "self.m = nn.Conv3d(K, 48, 1, groups=3)"),
    "one tap with a stride": ("self.m(x)", IMAGES, "self.m = nn.Conv2d(K, D, 1, 2)"),
    "plain in groups": ("self.m(x).relu()", IMAGES, "self.m = nn.Conv2d(K, 48, 3, 2, 1, groups=3)"),
    "a weight that is computed": ("F.conv_transpose2d(x, y.tanh(), None, 2)", IMAGES, "torch.randn(K, D, 3, 3)"),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.one_in(51)
@pytest.mark.parametrize("moves", ["fuse,tensor-cores", "tile", "tile,register-tile"])
@pytest.mark.parametrize("name", CONVOLUTIONS)
@pytest.mark.parametrize("constants", [{"N": 7, "D": 9, "K": 6}, {"N": 12, "D": 40, "K": 12}], ids=["odd", "fours"])
def test_convolutions_in_phases_and_groups_are_products(
    name: str, moves: str, constants: dict[str, int], compiler: Compiler
) -> None:
    task = _task(CONVOLUTIONS[name])
    item = render(trace_source(task, {"N": 16, "D": 32, "K": 24}), Design(tuple(moves.split(","))))
    assert "TensorTiles" in item.source or "tile_a[" in item.source
    assert ("const int far" in item.source) == name.startswith("whole rows")
    reference = Reference(task, constants)
    run_and_compare(item, workbench.Bench(reference, reference.inputs(5)), compiler)


@pytest.mark.parametrize("name", ["level1/conv2d_grouped", "level1/conv_transpose2d_grouped"])
def test_the_number_of_groups_may_differ_by_size(name: str) -> None:
    small = trace_source(workbench.task_of(name).source, workbench.task_of(name).size("small").constants)
    item = render(workbench.graph_of(name), Design(("fuse", "tensor-cores")), workbench.varying(name), small)
    assert "TensorTiles" in item.source


@pytest.mark.slow
def test_every_tap_of_a_window_of_one_column_has_its_own_weights(compiler: Compiler) -> None:
    task = _task(("self.m(x)", IMAGES, "self.m = nn.ConvTranspose2d(K, D, (3, 1), (2, 1))"))
    item = render(trace_source(task, {"N": 16, "D": 32, "K": 24}), Design(("fuse", "tensor-cores")))
    assert "tap_list" in item.source
    reference = Reference(task, SMALLER)
    run_and_compare(item, workbench.Bench(reference, reference.inputs(5)), compiler)


@pytest.mark.slow
def test_phases_of_results_that_32_bits_do_not_count_are_right(compiler: Compiler) -> None:
    task = _task(("self.m(x)", IMAGES, "self.m = nn.ConvTranspose2d(K, D, 3, 2)"))
    item = render(trace_source(task, {"N": 5000, "D": 32, "K": 24}), Design(("fuse", "tensor-cores")))
    assert "const int taps_0" in item.source
    assert "out[(long long)(((batch)" in item.source
    reference = Reference(task, SMALLER)
    run_and_compare(item, workbench.Bench(reference, reference.inputs(5)), compiler)


def test_adjacent_places_of_one_tap_are_copied_together() -> None:
    task = _task(("self.m(x)", IMAGES, "self.m = nn.Conv2d(K, D, 1)"))
    item = render(trace_source(task, {"N": 61, "D": 32, "K": 24}), Design(("tensor-cores",)))
    assert "_va = 4 if (m_weight_1) % 4 == 0" in item.plan
    assert "_vb = 4 if (x_2 * x_3) % 4 == 0" in item.plan


def test_both_of_two_transposed_convolutions_are_products() -> None:
    layers = "nn.ConvTranspose2d(K, D, 3, bias=False), nn.ConvTranspose2d(D, K, 5, bias=False)"
    task = _task(("self.m(x)", IMAGES, f"self.m = nn.Sequential({layers})"))
    item = render(trace_source(task, {"N": 16, "D": 32, "K": 24}), Design(("fuse", "tensor-cores")))
    products = [kernel for kernel in item.source.split("__global__")[1:] if "Tiles::run<" in kernel]
    assert len(products) == 2


def test_weights_are_copied_for_products_alone() -> None:
    task = _task(("self.m(x)", "torch.randn(2, K, N)", "self.m = nn.ConvTranspose1d(K, D, 1500, 2)"))
    graph = trace_source(task, {"N": 16, "D": 32, "K": 24})
    assert len(render(graph, Design(("tensor-cores",))).kernels) == len(render(graph, Design()).kernels)


def test_rows_that_are_read_backwards_are_not_staged() -> None:
    graph = trace_source(_task(("F.softmax(x.flip(-1), -1)", MATRIX)), {"N": 4096, "D": 4096})
    assert "STAGE" not in render(graph, Design(("warp-reduce", "fuse", "stage"))).source


WARPGROUPS = {
    "product": ("torch.relu(x @ y) + z", *["torch.randn(N, N).half()"] * 2, "torch.randn(N).half()"),
    "transposed": ("x.t() @ y.t() / 2", "torch.randn(D, N).bfloat16()", "torch.randn(N, D).bfloat16()"),
    "batch": ("x @ y", "torch.randn(K, N, D).half()", "torch.randn(K, D, N).half()"),
    "linear": ("self.m(x).tanh()", "torch.randn(K, N, D).half()", "self.m = nn.Linear(D, D + 8).half()"),
    "dealt out": ("x @ y / 9", "torch.randn(N, 4 * D).half()", "torch.randn(4 * D, N).half()"),
}


@pytest.mark.slow
@pytest.mark.one_in(8)
@pytest.mark.parametrize("name", WARPGROUPS)
def test_warpgroups_multiply_halves_where_rows_are_aligned(name: str, compiler: Compiler) -> None:
    task = _task(WARPGROUPS[name])
    graph, design = trace_source(task, {"N": 1024, "D": 512, "K": 4}), Design(("fuse", "tensor-cores"))
    item = render(graph, design, warpgroups=True)
    # More tiles than stages, and a cluster with blocks that have no results; then rows of 6 bytes.
    for constants, aligned in (({"N": 136, "D": 200, "K": 2}, True), ({"N": 7, "D": 3, "K": 2}, False)):
        reference = Reference(task, constants)
        at = workbench.Bench(reference, reference.inputs(5))
        assert any("any_" in expression for expression in workbench.resolve(item.plan, at).expressions) is not aligned
        run_and_compare(item, at, compiler)
    assert ("constexpr int each" in item.source) is (name == "dealt out")
    assert "WarpgroupTiles" not in render(graph, design).source


STREAM = {
    "product": (
        "torch.relu(x @ y) + z",
        "torch.randn(N, K).half()",
        "torch.randn(K, D).half()",
        "torch.randn(D).half()",
    ),
    "transposed": ("x.t() @ y.t() / 2", "torch.randn(K, N).bfloat16()", "torch.randn(D, K).bfloat16()"),
    "batch": ("x @ y", "torch.randn(2, N, K).half()", "torch.randn(2, K, D).half()"),
}


@pytest.mark.slow
@pytest.mark.one_in(5)
@pytest.mark.parametrize(("name", "units"), [("product", 1), *((name, 3) for name in STREAM)])
def test_clusters_share_the_terms_of_tiles(
    name: str, units: int, compiler: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tensor_cores, "_STREAM_UNITS", (units,))
    monkeypatch.setattr(tensor_cores, "_STREAM_GAIN", float("inf"))
    task = _task(STREAM[name])
    graph = trace_source(task, {"N": 1024, "D": 1024, "K": 4096})
    item = render(graph, Design(("fuse", "tensor-cores", "stream-k")), warpgroups=True)
    assert f"stream<V, {units}>" in item.source
    # Fewer tiles than a cluster has room for, and a term for one of its halves alone; tiles that are no multiple of
    # what clusters have, with terms that end within a tile; then rows of odd lengths.
    sizes = ({"N": 24, "D": 40, "K": 8}, {"N": 264, "D": 392, "K": 328}, {"N": 33, "D": 65, "K": 67})
    for constants, aligned in zip(sizes, (True, True, False), strict=True):
        reference = Reference(task, constants)
        at = workbench.Bench(reference, reference.inputs(5))
        assert any("any_" in expression for expression in workbench.resolve(item.plan, at).expressions) is not aligned
        run_and_compare(item, at, compiler)


SHARED = {
    "product": ("F.relu(x @ y + z)", "torch.randn(N, K)", "torch.randn(K, D)", "torch.randn(D)"),
    "both transposed": ("x.t() @ y.t()", "torch.randn(K, N)", "torch.randn(D, K)"),
    "batch": ("x @ y", "torch.randn(2, N, K)", "torch.randn(2, K, D)"),
    "half": ("x[1:] @ y", "torch.randn(N + 1, K).half()", "torch.randn(K, D).half()"),
    "convolution": ("self.m(x).relu()", "torch.randn(2, K, 16, D)", "self.m = nn.Conv2d(K, N, 3, padding=1)"),
}


@pytest.mark.slow
@pytest.mark.one_in(10)
@pytest.mark.parametrize(
    ("name", "blocks", "complete"),
    [
        ("product", 2, 2),
        ("both transposed", 4, 1),
        ("batch", 8, 1),
        ("half", 8, 0),
        ("half", 2, 1),
        ("convolution", 4, 1),
    ],
)
def test_blocks_of_a_cluster_share_the_terms_of_tiles(
    name: str, blocks: int, complete: int, compiler: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tensor_cores, "_SHARED_BLOCKS", (blocks,))
    monkeypatch.setattr(tensor_cores, "_COMPLETE_TILES", (complete,))
    monkeypatch.setattr(tensor_cores, "_SINGLE", tensor_cores._SINGLE[2:3])  # 64 x 64, which take the least text
    monkeypatch.setattr(tensor_cores, "_HALF", tensor_cores._HALF[1:2])
    monkeypatch.setattr(tensor_cores, "_STREAM_GAIN", float("inf"))
    task = _task(SHARED[name])
    graph = trace_source(task, {"N": 1024, "D": 1024, "K": 1024})
    item = render(graph, Design(("fuse", "tensor-cores", "stream-k")), clusters=True)
    assert f"SharedTiles<Tiles, {blocks}, {blocks * complete + 1}>" in item.source
    assert f"cluster=({blocks}, 1, 1)" in item.plan
    # A last cluster that has fewer tiles than the others, and shares several of them; blocks without terms.
    reference = Reference(task, {"N": 132, "D": 392, "K": 100} if name != "half" else {"N": 65, "D": 131, "K": 67})
    run_and_compare(item, workbench.Bench(reference, reference.inputs(5)), compiler)


@pytest.mark.parametrize(
    ("sizes", "parts", "expected"),
    [
        ((512, 512, 1, 512), 4, (4, 1)),  # otherwise sums of four parts pass through memory
        ((1536, 1536, 1, 1536), 1, (8, 9)),  # 288 tiles of 64 x 128 for 132 multiprocessors
        ((4096, 4096, 1, 4096), 1, None),  # 2,048 tiles of 64 x 128: the last wave leaves 3 % idle
        ((256, 256, 1, 524288), 16, None),  # what adds the sums up takes little of the time
        ((1024, 1024, 1, 64), 1, None),  # the launch takes most of the time
    ],
)
def test_terms_are_shared_where_a_launch_or_a_wave_is_saved(
    sizes: tuple[int, int, int, int], parts: int, expected: tuple[int, int] | None
) -> None:
    rows, columns, batch, terms = sizes
    moved = 4 * batch * (rows * terms + terms * columns + rows * columns)
    share = tensor_cores.choose_share("SINGLE", *sizes, parts=parts, moved=moved)
    assert (share and (share.blocks, share.units)) == expected


@pytest.mark.parametrize(
    ("kind", "sizes", "expected"),
    [
        ("HALF", (512, 512, 1, 16384), 16),  # 16 tiles of 128 x 128, two for each of 132 multiprocessors
        ("SINGLE", (256, 256, 1, 524288), 33),  # 8 tiles of 64 x 128
        ("SINGLE", (32, 32, 1, 8192), 64),  # each part has 128 terms at least
        ("SINGLE", (1024, 1024, 1, 1024), 1),
        ("HALF", (64, 128, 1, 256), 1),  # another launch takes longer than it saves
    ],
)
def test_terms_are_dealt_out_to_sums_that_fill_the_gpu(
    kind: str, sizes: tuple[int, int, int, int], expected: int
) -> None:
    assert tensor_cores.choose_parts(kind, *sizes, warpgroups=kind == "HALF") == expected


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ((12288, 128, 1, 2048), ((128, 64), 1)),  # 192 tiles, of which some multiprocessors have two and some one
        ((1024, 1024, 1, 4096), ((128, 64), 1)),  # without, sums of four parts pass through memory
        ((64, 16384, 1, 64), None),  # 256 tiles of 64 x 64 by mma.sync take as long
        ((8192, 8192, 1, 8192), None),  # 4,096 tiles: the last wave leaves 0.1 % idle
        ((1024, 1024, 1, 64), None),  # the launch takes most of the time
    ],
)
def test_terms_are_shared_where_waves_would_be_filled_badly(
    sizes: tuple[int, int, int, int], expected: tuple[tuple[int, int], int] | None
) -> None:
    stream = tensor_cores.choose_stream("HALF", *sizes)
    assert (stream and (stream.shape[:2], stream.units)) == expected
    assert tensor_cores.choose_stream("SINGLE", *sizes) is None


def test_only_products_by_warpgroups_share_terms() -> None:
    graph = trace_source(_task(STREAM["product"]), {"N": 1024, "D": 1024, "K": 1024})
    without, with_stream = (Design(("tensor-cores", *more)) for more in ((), ("stream-k",)))
    assert "Tiles::stream" in render(graph, with_stream, warpgroups=True).source
    assert render(graph, with_stream).plan == render(graph, without).plan


LONG = {
    "product": ("F.relu(x.t() @ y) + z", "torch.randn(N, D)", "torch.randn(N, D)", "torch.randn(D)"),
    "batch": ("x @ y.transpose(-1, -2)", "torch.randn(2, D, N)", "torch.randn(2, D, N)"),
    "half": ("x @ y", "torch.randn(D, N).half()", "torch.randn(N, D).half()"),
    "soft": ("(x @ y).softmax(-1)", "torch.randn(D, N)", "torch.randn(N, D)"),
}


@pytest.mark.slow
@pytest.mark.one_in(26)
@pytest.mark.parametrize("moves", [("tensor-cores",), ("fuse", "warp-reduce", "tensor-cores")], ids=["alone", "fused"])
@pytest.mark.parametrize("name", LONG)
def test_the_terms_of_few_results_are_dealt_out(name: str, moves: tuple[str, ...], compiler: Compiler) -> None:
    task = _task(LONG[name])
    item = render(trace_source(task, {"N": 8192, "D": 32}), Design(moves))
    assert "constexpr int each" in item.source
    for constants in ({"N": 1100, "D": 9}, {"N": 5, "D": 8}):
        reference = Reference(task, constants)
        run_and_compare(item, workbench.Bench(reference, reference.inputs(5)), compiler)


ATTENTION = {
    "heads": ("F.scaled_dot_product_attention(x, y, z)", *["torch.randn(2, 3, N, D)"] * 3),
    "causal": ("F.scaled_dot_product_attention(x, x, x, is_causal=True)", "torch.randn(2, 3, N, D)"),
    "mask": ("F.scaled_dot_product_attention(x, x, x, y)", "torch.randn(2, 3, N, D)", "torch.randn(N, N)"),
    "written out": (
        "torch.softmax(x @ y.transpose(-1, -2) * 0.3, -1) @ z + 1",
        "torch.randn(N, D)", "torch.randn(2 * N, D)", "torch.randn(2 * N, K)",
    ),
    "shared heads": (
        "F.scaled_dot_product_attention(x, y, y, enable_gqa=True)",
        "torch.randn(2, 4, N, D)", "torch.randn(2, 2, 3 * N, D)",
    ),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.one_in(5)
@pytest.mark.parametrize("size", [{}, {"N": 4096}], ids=["few rows", "many rows"])
@pytest.mark.parametrize("name", ATTENTION)
def test_attention_is_one_kernel(name: str, size: dict[str, int], compiler: Compiler) -> None:
    task = _task(ATTENTION[name])
    item = render(trace_source(task, size), Design(("fuse", "tensor-cores")))
    assert len(item.kernels) == 1
    for constants in ({"N": 37, "D": 9, "K": 5}, {"N": 140, "D": 40, "K": 3}):
        reference = Reference(task, constants)
        run_and_compare(item, workbench.Bench(reference, reference.inputs(5)), compiler)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["product", "half transposed"])
def test_tensor_cores_count_with_64_bits_where_a_result_is_as_large(name: str, compiler: Compiler) -> None:
    task = _task(TENSOR_CORES[name])
    graph = trace_source(task, {"N": 2**16, "D": 16, "K": 2})
    half = name == "half transposed"
    item = render(graph, Design(("fuse", "tensor-cores")), warpgroups=half)
    assert "const int m = " in item.source
    assert "(long long)(m) * " in item.source
    assert ("WarpgroupTiles" in item.source) is half
    reference = Reference(task, {"N": 40, "D": 24} if half else {"N": 37, "D": 9, "K": 3})
    run_and_compare(item, workbench.Bench(reference, reference.inputs(5)), compiler)
