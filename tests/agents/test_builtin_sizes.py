"""The built-in Coder tells extents apart by the two sizes it sees, and writes kernels for tensors of any size."""

from __future__ import annotations

import itertools
import re

import pytest
import torch

from kernelforge.agents.builtin.codegen.render import LONG_LINE, Rendered, _with_short_lines, render
from kernelforge.agents.builtin.coder import readable
from kernelforge.agents.builtin.design import Design
from kernelforge.agents.builtin.ir.lowering import quotient
from kernelforge.agents.builtin.ir.nodes import Dim, Size, literal
from kernelforge.agents.builtin.ir.operators import lower
from kernelforge.candidate.plan_language.interpreter import PlanLimits
from kernelforge.compile import Artifact, Compiler
from kernelforge.errors import UnsupportedError
from kernelforge.evaluation.oracle.worker.reference import Reference
from kernelforge.evaluation.oracle.worker.tracing import trace_source
from kernelforge.records import DType, Graph, Node, TensorSpec
from tests.agents import agent_setup as workbench

TASK = """
import torch
import torch.nn as nn
B, C, H, K = 16, 16, 16, 16
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        {init}
    def forward(self, x):
        return {body}
def get_inputs():
    return [torch.randn(B, C, H, 2 * K)]
def get_init_inputs():
    return []
"""
SMALL = {"B": 4, "C": 4, "H": 8, "K": 4}
OTHER = {"B": 3, "C": 6, "H": 9, "K": 5}

CASES = {
    "a reshape back to an earlier shape": (
        "pass", "torch.softmax(x.view(x.shape[0], x.shape[1], -1), 2).view(x.shape) * 2"
    ),
    "a length one below an extent": ("pass", "x.narrow(3, 0, x.shape[3] - 1) + 1"),
    "a length that is half an extent": ("pass", "x[..., : x.shape[3] // 2] * 2"),
    "zeros of the extents of two axes": ("pass", "x + torch.zeros(x.shape[2], 2 * K)"),
    "groups that equal the channels before": (
        "self.c = nn.Conv2d(C, 2 * K, 1); self.m = nn.GroupNorm(K, 2 * K)", "self.m(self.c(x))"
    ),
    "pooling by as much as another layer strides": (
        "self.c = nn.ConvTranspose2d(C, K, 3, stride=2); self.p = nn.AvgPool2d(2)", "self.c(self.p(x))"
    ),
}  # fmt: skip


def ran(written: Rendered, task: str, constants: dict[str, int], compiler: Compiler) -> None:
    """Run on the emulated device at a size, and compare with torch."""
    reference = Reference(task, constants)
    at = workbench.Bench(reference, reference.inputs(5))
    resolved = workbench.resolve(written.plan, at)
    built = workbench.build(compiler, written.source, resolved)
    assert isinstance(built, Artifact), (built.errors, written.source)
    for got, expected in zip(workbench.run(built, resolved, at), at.expected(), strict=True):
        torch.testing.assert_close(got, expected, rtol=2e-5, atol=2e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_extents_that_are_equal_at_the_full_size_are_told_apart(name: str, compiler: Compiler) -> None:
    init, body = CASES[name]
    task = TASK.format(init=init, body=body)
    full, small = trace_source(task, {}), trace_source(task, SMALL, "small")
    attributes = readable(Reference(task, {}).attributes(), Reference(task, SMALL).attributes())
    ran(render(full, Design(), attributes, small), task, OTHER, compiler)


CHUNKS = """
import torch
import torch.nn as nn
import torch.nn.functional as F
B, S, L, D = 8, 128, 64, 24
class Model(nn.Module):
    def __init__(self, chunk):
        super().__init__()
        self.chunk = chunk
    def forward(self, x):
        parts = x.view(x.shape[0], x.shape[1] // self.chunk, self.chunk, x.shape[2]).sum(2)
        ends = F.pad(parts, (0, 0, 1, 0)).cumsum(1)
        count = ends.shape[1]
        before = torch.ones(count, count).tril() @ ends
        return before[:, 1:] + torch.arange(count - 1)[:, None]
def get_inputs():
    return [torch.randn(B, S, D)]
def get_init_inputs():
    return [L]
"""


@pytest.mark.slow
def test_a_mask_of_as_many_rows_as_chunks_is_so_at_every_size(compiler: Compiler) -> None:
    small = {"S": 16, "L": 8, "D": 12}
    full, other = trace_source(CHUNKS, {}), trace_source(CHUNKS, small, "small")
    attributes = readable(Reference(CHUNKS, {}).attributes(), Reference(CHUNKS, small).attributes())
    ran(render(full, Design(), attributes, other), CHUNKS, {"B": 3, "S": 15, "L": 3, "D": 5}, compiler)


GROUPS = """
import torch
import torch.nn as nn
B, G, C = 16, 16, 8
class Model(nn.Module):
    def forward(self, x, mean):
        return x.reshape(mean.shape[0], mean.shape[1], -1) - mean[:, :, None]
def get_inputs():
    return [torch.randn(B, G * C), torch.randn(B, G)]
def get_init_inputs():
    return []
"""


def test_groups_that_are_as_many_as_the_rows_at_both_sizes_are_no_rows() -> None:
    full, small = trace_source(GROUPS, {}), trace_source(GROUPS, {"B": 4, "G": 4, "C": 2}, "small")
    (shape,) = lower(full, {}, small).shapes
    assert [dim.text for dim in shape] == ["x_0", "mean_1", "x_1 // mean_1"]


def test_a_size_is_recognised_by_both_of_its_values() -> None:
    size = Size.of(64, 16)
    assert size == Size.of(64, 16)
    assert size not in {64: "", 16: "", Size.of(64, 8): ""}
    assert (size - 1, size * 2, size // 2, 128 // size) == (
        Size.of(63, 15), Size.of(128, 32), Size.of(32, 8), Size.of(2, 8),
    )  # fmt: skip
    assert size % 16 == 0
    assert type(size - size) is int


def test_a_size_that_nothing_explains_is_no_literal() -> None:
    with pytest.raises(UnsupportedError, match="64 at the full size, 16 at the small one"):
        literal(Size.of(64, 16))


def graph(rows: int, columns: int) -> Graph:
    """Three additions to one large input, as a trace would have them."""
    spec = TensorSpec(shape=(rows, columns), dtype=DType.FLOAT32, stride=(columns, 1))
    names = ["x", "one", "two", "three"]
    nodes = [Node(name="x", kind="input", op="0", spec=spec)]
    for before, name in itertools.pairwise(names):
        nodes.append(Node(name=name, kind="op", op="aten.add.Tensor", args=({"ref": before}, {"ref": "x"}), spec=spec))
    nodes.append(Node(name="output", kind="output", op="output", args=({"ref": names[-1]},)))
    return Graph(size="full", nodes=tuple(nodes))


def test_operators_share_kernels_where_the_plan_would_be_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    apart = render(graph(32, 48), Design())
    assert apart.plan.count("empty(") == 3
    monkeypatch.setattr("kernelforge.agents.builtin.codegen.render.MAX_PLAN_BYTES", len(apart.plan) - 1)
    assert render(graph(32, 48), Design()).plan.count("empty(") == 1


@pytest.mark.slow
def test_a_slice_as_long_as_an_input_is_no_half_of_a_weight(compiler: Compiler) -> None:
    """A mask of twice the length at both sizes that are shown, as in KernelBench's MiniGPT block."""
    source = TASK.format(init='self.register_buffer("mask", torch.rand(M, M))', body="x + self.mask[:x.shape[2], :1]")
    source = source.replace("class Model", "M = 32\nclass Model", 1)
    written = render(trace_source(source, {}), Design(), None, trace_source(source, {**SMALL, "M": 16}))
    ran(written, source, {**OTHER, "M": 40}, compiler)


@pytest.mark.slow
def test_a_long_line_of_the_plan_is_cut_into_terms(monkeypatch: pytest.MonkeyPatch, compiler: Compiler) -> None:
    source = TASK.format(init="pass", body="torch.cat([x, x * 2], 3).flatten(0, 1).flip(2).sum(1)")
    monkeypatch.setattr("kernelforge.agents.builtin.codegen.render.LONG_LINE", 90)
    written = render(trace_source(source, {}), Design(), None, trace_source(source, SMALL))
    assert "part_1 = " in written.plan
    assert not re.search(r"[ (]\(\w+\)", max(written.plan.splitlines(), key=len))
    ran(written, source, OTHER, compiler)


def test_a_long_line_of_short_terms_with_attributes_is_cut() -> None:
    product = '(attrs["heads"] * attrs["windows"])'
    line = f"rows[n, 256](x, {', '.join(f'i32({product} + {number})' for number in range(60))})"
    *named, short = _with_short_lines([line])
    assert named == [f"part_1 = {product[1:-1]}"]
    assert len(short) < LONG_LINE < len(line)
    assert short.count("i32(part_1 + ") == 60


def test_an_extent_that_begins_with_another_sum_is_written_by_its_name() -> None:
    layers = "self.m = nn.ModuleList(nn.Linear(32 + 8 * n, 8) for n in range(4))"
    body = "[v := [x.flatten(1)[:, :32]]] and [v.append(m(torch.cat(v, 1))) for m in self.m] and torch.cat(v, 1)"
    plan = render(trace_source(TASK.format(init=layers, body=body), {}), Design()).plan
    assert "    cat_3_n1 = cat_2_n1 + m_1_weight_0\n" in plan
    assert "    cat_4_n1 = cat_3_n1 + m_2_weight_0 + m_3_weight_0\n" in plan


ADDED = """
import torch
N, D = 32, 48
class Model(torch.nn.Module):
    def forward(self, x):
        return x + x + x + x
def get_inputs():
    return [torch.randn(N, D)]
def get_init_inputs():
    return []
"""


@pytest.mark.parametrize("moves", [(), ("block-shape",), ("vectorise",)])
def test_indices_have_64_bits_where_a_tensor_has_more_elements_than_32_count(
    moves: tuple[str, ...], compiler: Compiler
) -> None:
    written = render(graph(2**16, 2**15), Design(moves))
    assert "long long" in written.source
    assert "i64(x_0 * x_1)" in written.plan
    ran(written, ADDED, {"N": 7, "D": 36}, compiler)
    assert "long long" not in render(graph(2**16, 2**14), Design(moves)).source


@pytest.mark.slow
@pytest.mark.parametrize("moves", [(), ("vectorise",)])
@pytest.mark.parametrize("sums", ["torch.softmax(x, 1)", "x.mean(1)", "x.sum(0)", "x @ x.T", "x / x.sum() - x.max()"])
def test_a_long_sum_is_one_of_sums_of_runs(
    monkeypatch: pytest.MonkeyPatch, sums: str, moves: tuple[str, ...], compiler: Compiler
) -> None:
    """As the tolerance has it: one accumulator does not take more terms than a run has."""
    task = ADDED.replace("x + x + x + x", sums).replace("randn", "rand")
    plain = render(trace_source(task, {}), Design(moves))
    monkeypatch.setattr("kernelforge.agents.builtin.codegen.loops.LONGEST_RUN", 16)
    written = render(trace_source(task, {}), Design(moves))
    assert (plain.source.count(" += 16) {"), written.source.count(" += 16) {")) == (0, 1)
    ran(written, task, {"N": 7 if "(0)" not in sums else 37, "D": 36}, compiler)


@pytest.mark.parametrize(("length", "threads"), [(1 << 16, 256), ((1 << 16) + 2, 32)])
def test_blocks_of_long_rows_are_single_warps(length: int, threads: int) -> None:
    task = TASK.format(init="pass", body="torch.softmax(x, 3)")
    written = render(trace_source(task, {"K": length // 2}), Design())
    assert f"softmax_rows[ceil_div((x_0 * x_1 * x_2), {threads}), {threads}](" in written.plan


def test_a_first_candidate_fuses_where_its_tensors_would_exceed_a_plans_memory() -> None:
    """Two tensors of a chain are in use at a time, and the result is a third."""
    rows = PlanLimits().workspace_bytes // (3 * 4 * 2**14)
    assert render(graph(rows, 2**14), Design()).plan.count("_map[") == 3
    assert render(graph(rows + 1, 2**14), Design()).plan.count("_map[") == 1


NETWORK = """
import torch
import torch.nn as nn
N = {width}
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(N, N) for _ in range({depth})])
    def forward(self, x):
        for layer in self.layers:
            x = torch.relu(layer(x))
        return x
def get_inputs():
    return [torch.randn(N, N)]
def get_init_inputs():
    return []
"""


def test_layers_that_are_alike_share_their_kernels() -> None:
    written = render(trace_source(NETWORK.format(width=16, depth=6), {}), Design())
    assert len(written.kernels) == 2
    assert written.source.count("__global__") == 2
    assert [written.plan.count(f"{kernel}[") for kernel in written.kernels] == [6, 6]


@pytest.mark.slow
def test_a_long_plan_names_the_products_that_it_repeats(monkeypatch: pytest.MonkeyPatch, compiler: Compiler) -> None:
    task = NETWORK.format(width=16, depth=3)
    plain = render(trace_source(task, {}), Design())
    monkeypatch.setattr("kernelforge.agents.builtin.codegen.render.LONG_PLAN", 100)
    written = render(trace_source(task, {}), Design())
    assert (plain.plan.count("x_0 * "), plain.plan.count("count_")) == (12, 0)
    assert (written.plan.count("x_0 * "), written.plan.count("i32(count_1)")) == (3, 2)
    ran(written, task, {"N": 16}, compiler)


@pytest.mark.slow
def test_a_plan_that_is_too_long_gets_short_names(monkeypatch: pytest.MonkeyPatch, compiler: Compiler) -> None:
    task = NETWORK.format(width=16, depth=3)
    fused = render(trace_source(task, {}), Design(("fuse",))).plan
    most = len(fused) - len(fused) // 8
    monkeypatch.setattr("kernelforge.agents.builtin.codegen.render.MAX_PLAN_BYTES", most)
    written = render(trace_source(task, {}), Design(("fuse",)))
    assert len(fused) // 2 < len(written.plan) <= most
    weights = re.compile(r'w\["[^"]*"\]')
    assert weights.findall(written.plan) == weights.findall(fused)
    ran(written, task, {"N": 16}, compiler)


def test_a_quotient_keeps_products_in_brackets_whole() -> None:
    cut = quotient(Dim("(h * w) * n * c", 2 * 3 * 5 * 7), Dim("(h * w) * d", 2 * 3 * 7))
    assert cut == Dim("(h * w) * n * c // ((h * w) * d)", 5)
    assert quotient(Dim("n * c", 35), Dim("n", 5)) == Dim("c", 7)


@pytest.mark.slow
def test_a_state_may_be_overwritten(compiler: Compiler) -> None:
    state = "        self.state = torch.zeros(N, N)\n    def forward(self, x):\n        x = self.state.copy_(x * 2)"
    task = NETWORK.format(width=16, depth=1).replace("    def forward(self, x):", state)
    ran(render(trace_source(task, {}), Design()), task, {"N": 16}, compiler)


def test_a_reference_that_writes_to_a_part_of_a_tensor_is_not_written() -> None:
    part = "    def forward(self, x):\n        x[:, :2].copy_(x[:, 2:4])"
    task = NETWORK.format(width=16, depth=1).replace("    def forward(self, x):", part)
    with pytest.raises(UnsupportedError, match="does not write to parts"):
        render(trace_source(task, {}), Design())


SCALED = TASK.replace("torch.randn(B, C, H, 2 * K)", "torch.rand(B, C, H, 2 * K) + 1")


@pytest.mark.parametrize("scale", ["x.shape[3] ** -0.5", "x.shape[3] ** 0.5", "1 / x.shape[3]"])
def test_a_scale_follows_the_extent_that_it_is_a_root_of(scale: str, compiler: Compiler) -> None:
    task = SCALED.format(init="pass", body=f"x * ({scale})")
    full, at_small = trace_source(task, {}), trace_source(task, SMALL, "small")
    ran(render(full, Design(), {}, at_small), task, OTHER, compiler)


def test_a_number_that_differs_between_the_sizes_unexplained_is_not_written() -> None:
    task = SCALED.format(init="pass", body="x * (x.shape[3] + 0.5)")
    with pytest.raises(UnsupportedError, match=r"32.5 at the full size, 8.5 at the small one"):
        render(trace_source(task, {}), Design(), {}, trace_source(task, SMALL, "small"))
