"""Kernels of the built-in Coder that cross axes are right at any extents: transposes, and sums over outer axes."""

from __future__ import annotations

import pytest
import torch

from kernelforge.agents.builtin.codegen.render import Rendered, render
from kernelforge.agents.builtin.design import Design
from kernelforge.compile import Artifact, Compiler
from kernelforge.evaluation.oracle.worker.reference import Reference
from kernelforge.evaluation.oracle.worker.tracing import trace_source
from kernelforge.hardware.specs import SPECS
from tests.agents import agent_setup as workbench

TASK = """
import torch
import torch.nn as nn
B, C, D = {extents}
class Model(nn.Module):
    def forward(self, x):
        return {body}
def get_inputs():
    return [torch.randn(B, C, D).to(torch.{dtype})]
def get_init_inputs():
    return []
"""
WIDE = ("warp-reduce", "tile", "vectorise")
SIZES = ((3, 35, 37), (2, 68, 132), (1, 1, 4), (2, 301, 40))


def written(body: str, extents: str, dtype: str = "float32", moves: tuple[str, ...] = WIDE) -> tuple[str, Rendered]:
    task = TASK.format(body=body, extents=extents, dtype=dtype)
    sizes = {"B": 3, "C": 20, "D": 36}
    return task, render(trace_source(task, {}), Design(("fuse", *moves)), {}, trace_source(task, sizes, "small"))


def check(task: str, candidate: Rendered, sizes: tuple[tuple[int, int, int], ...], compiler: Compiler) -> None:
    """Run on the emulated device at several sizes, and compare with torch."""
    for size in sizes:
        reference = Reference(task, dict(zip("BCD", size, strict=True)))
        at = workbench.Bench(reference, reference.inputs(5))
        resolved = workbench.resolve(candidate.plan, at)
        built = workbench.build(compiler, candidate.source, resolved)
        assert isinstance(built, Artifact), (built.errors, candidate.source)
        for got, expected in zip(workbench.run(built, resolved, at), at.expected(), strict=True):
            torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("body", "dtype"),
    [
        ("x.transpose(1, 2).contiguous()", "float32"),
        ("x.transpose(0, 2).contiguous()", "float16"),
        ("x.transpose(1, 2) * 2 + x.sum(0).T", "float32"),
        ("x.transpose(0, 2).contiguous()", "int64"),
        ("x[:, :, : x.shape[2] // 2].transpose(1, 2).contiguous()", "float32"),
    ],
)
def test_a_transpose_moves_patches_through_shared_memory(body: str, dtype: str, compiler: Compiler) -> None:
    task, candidate = written(body, "8, 64, 128", dtype)
    assert "PACKS" in candidate.source
    check(task, candidate, ((3, 35, 37), (2, 68, 136), (4, 4, 4), (64, 3, 68)), compiler)


@pytest.mark.slow
@pytest.mark.one_in(5)
@pytest.mark.parametrize("moves", [("warp-reduce",), WIDE])
@pytest.mark.parametrize(
    ("body", "dtype"),
    [
        ("(x * 2).sum(1) + 1", "float32"),
        ("torch.softmax(x, 1)", "float32"),
        ("x.argmin(1), x.amax(1, keepdim=True)", "float32"),
        ("x.mean(1)", "float16"),
        ("x.sum(1)", "int64"),
    ],
)
def test_a_reduction_over_an_outer_axis_shares_columns_of_a_block(
    body: str, dtype: str, moves: tuple[str, ...], compiler: Compiler
) -> None:
    task, candidate = written(body, "40, 128, 512", dtype, moves)
    assert "column_reduce<T>" in candidate.source
    assert ("load<V>" in candidate.source) == ("vectorise" in moves and "softmax" not in body)
    check(task, candidate, SIZES, compiler)


@pytest.mark.slow
@pytest.mark.parametrize("body", ["x.sum((0, 1))", "x.view(-1, x.shape[2]).amin(0) * 2", "x.half().mean((0, 1))"])
def test_a_reduction_with_few_columns_is_dealt_out_to_blocks(body: str, compiler: Compiler) -> None:
    task, candidate = written(body, "8, 1024, 64")
    assert "gridDim.z" in candidate.source
    assert len(candidate.kernels) == 2
    check(task, candidate, (*SIZES, (3, 777, 50)), compiler)


@pytest.mark.parametrize(("body", "extents"), [("x.sum(1)", "64, 128, 8"), ("torch.softmax(x, 1)", "4, 32, 512")])
def test_few_columns_to_a_row_and_short_ones_in_several_passes_stay_with_one_thread(body: str, extents: str) -> None:
    assert "column_reduce<T>" not in written(body, extents)[1].source


IMAGES = """
import torch
import torch.nn as nn
import torch.nn.functional as F
B, C, D, E = {extents}
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.GroupNorm(8, C)
        self.norm.weight, self.norm.bias = nn.Parameter(torch.randn(C)), nn.Parameter(torch.randn(C))
    def forward(self, x):
        return {body}
def get_inputs():
    return [{scale} * torch.randn(B, C, D, E) + {offset}]
def get_init_inputs():
    return []
"""
ROWS = ("warp-reduce", "stage", "vectorise")


def of_images(
    body: str, extents: str, moves: tuple[str, ...] = ROWS, scale: float = 1, offset: float = 0
) -> tuple[str, Rendered]:
    task = IMAGES.format(body=body, extents=extents, scale=scale, offset=offset)
    small = trace_source(task, {"B": 3, "C": 16, "D": 20, "E": 12}, "small")
    graph, attributes = trace_source(task, {}), {"norm.num_groups": 8}
    return task, render(
        graph, Design(("fuse", *moves)), attributes, small, shared_bytes=SPECS["h100"].shared_bytes_per_block
    )


@pytest.mark.slow
@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("body", "scale", "offset"),
    [
        ("F.silu(self.norm(x)) * 2", 1, 0),
        ("self.norm(x)", 0.25, 100),
        ("self.norm(x)", 0, 3),
        ("F.instance_norm(x)", 1, 10),
        ("(x - x.mean((2, 3), keepdim=True)) / x.std((2, 3), keepdim=True)", 1, 0),
    ],
)
def test_a_norm_over_long_rows_is_one_kernel_that_reads_them_twice(
    body: str, scale: float, offset: float, compiler: Compiler
) -> None:
    task, candidate = of_images(body, "32, 64, 512, 512", scale=scale, offset=offset)
    assert len(candidate.kernels) == 1
    assert candidate.source.count("for (int j = threadIdx.x * V;") == 3  # to shared memory, the sums, the results
    for size in ((2, 8, 70, 181), (3, 16, 20, 12), (1, 8, 3, 5)):
        reference = Reference(task, dict(zip("BCDE", size, strict=True)))
        at = workbench.Bench(reference, reference.inputs(5))
        resolved = workbench.resolve(candidate.plan, at)
        built = workbench.build(compiler, candidate.source, resolved)
        assert isinstance(built, Artifact), (built.errors, candidate.source)
        (got,) = workbench.run(built, resolved, at)
        expected = reference.model.double()(*(x.double() for x in at.inputs if isinstance(x, torch.Tensor)))
        torch.testing.assert_close(got, expected.float(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("body", "rows", "threads"),
    [
        ("x.abs().sum(2)", 4096, 256),
        ("x.abs().sum(2)", 64, 1024),
        ("(x - x.mean(2, keepdim=True)).abs()", 4096, 1024),
    ],
    ids=["one pass, many rows", "one pass, few rows", "two passes"],
)
def test_a_long_row_gets_more_threads_where_it_is_read_again_or_rows_are_few(
    body: str, rows: int, threads: int
) -> None:
    task, candidate = written(body, "64, 64, 32768", moves=("warp-reduce", "vectorise"))
    reference = Reference(task, {"B": 1, "C": 1, "D": 36})
    at = workbench.Bench(reference, [torch.zeros(1).expand(rows, 1, 32768)])
    (launch,) = workbench.resolve(candidate.plan, at).launches
    assert launch.block[:2] == (threads, 1)
