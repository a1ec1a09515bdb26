"""CUDA-L2's release: accumulators by the text, results over the grid, and what cannot be read."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from kernelforge.datasets.cuda_l2 import accumulator_of, as_model_new, read_release, select_release
from kernelforge.errors import UsageError
from kernelforge.report.terminal.cuda_l2 import release_lines
from kernelforge.tasks import load_task
from tests.support.terminal import drawn

KERNEL = """#include <cute/tensor.hpp>
// not SM80_16x8x16_F16F16F16F16_TN
using mma_op = SM80_16x8x16_{acc}_TN;
void cuda_l2_a100_fp32(torch::Tensor a, torch::Tensor b, torch::Tensor b_col_major, torch::Tensor c) {{}}
"""
ROWS = """mnk,torch.matmul,cuBLAS-max
64_64_64,2.0,0.5
64_64_128,0.5,2.0
64_128_64,4.0,1.0
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    folder = tmp_path / "kernels" / "a100_F32F16F16F32"
    folder.mkdir(parents=True)
    for shape, acc in (("64_64_64", "F32F16F16F32"), ("64_64_128", "F16F16F16F16"), ("64_128_64", "F32F16F16F32")):
        (folder / f"{shape}.cu").write_text(KERNEL.format(acc=acc))
    (folder / "notes.cu").write_text("")
    results = tmp_path / "eval_results"
    results.mkdir()
    (results / "cuda_l2_a100_F32F16F16F32_speedup_server.csv").write_text(ROWS)
    (results / "cuda_l2_a100_F32F16F16F32_speedup_offline.csv").write_text(ROWS.replace("0.5,2.0", "n/a,2.0"))
    return tmp_path


@pytest.mark.parametrize(
    ("text", "accumulator"),
    [
        ("SM80_16x8x16_F16F16F16F16_TN", "float16"),
        ("MMA_Atom<SM90_64x128x16_F32F16F16_SS<GMMA::Major::K>>", "float32"),
        ("wmma::fragment<wmma::accumulator, 16, 16, 16, half> c; wmma::mma_sync(c, a, b, c);", "float16"),
        ("wmma::fragment<wmma::accumulator, 16, 16, 16, half> c;", "not seen"),
        (
            "using namespace nvcuda::wmma; fragment<accumulator, M, N, K, float> acc[2], rest;"
            "fragment<accumulator, M, N, K, half> out; mma_sync(acc[f(i, 0)], a[i], b, acc[i]);"
            "mma_sync(rest, a[1], b, rest, true);",
            "float32",
        ),
        (
            "nvcuda::wmma::fragment<nvcuda::wmma::accumulator,16,16,16,__half> acc;\n"
            "nvcuda::wmma::mma_sync(acc, a, b, acc);",
            "float16",
        ),
        (
            "{ fragment<accumulator, M, N, K, half> c; mma_sync(c, a, b, c); }"
            "{ fragment<accumulator, M, N, K, float> c; mma_sync(c, a, b, c); }",
            "both",
        ),
        (
            "void fold(fragment<accumulator, M, N, K, float> (&acc)[2]) { mma_sync(acc[0], a, b, acc[0]); }"
            "fragment<accumulator, M, N, K, half> out;",
            "float32",
        ),
        ("using C = wmma::fragment<wmma::accumulator, M, N, K, float>; C c; wmma::mma_sync(c, a, b, c);", "float32"),
        (
            "using C = wmma::fragment<wmma::accumulator, M, N, K, float>; C c; wmma::mma_sync(c, a, b, c);"
            "wmma::fragment<wmma::accumulator, M, N, K, half> out;",
            "not seen",
        ),
        ('asm("mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16 {%0};");', "float16"),
        ("using ElementAccumulator  = cutlass::half_t;", "float16"),
        ("using ElemAcc = float;", "float32"),
        ("SM80_16x8x16_F16F16F16F16_TN x; SM80_16x8x16_F32F16F16F32_TN y;", "both"),
        ("/* SM80_16x8x16_F16F16F16F16_TN */ c[i] += a[i] * b[i];", "not seen"),
    ],
)
def test_the_accumulator_is_that_of_the_products_in_the_text(text: str, accumulator: str) -> None:
    assert accumulator_of(text) == accumulator


def test_a_kernel_that_sums_in_less_than_declared_is_marked_and_judged_as_what_it_is(checkout: Path) -> None:
    release = read_release(checkout)
    assert [(item.origin, item.narrower) for item in release.kernels] == [
        ("a100_F32F16F16F32/64_128_64.cu", False),
        ("a100_F32F16F16F32/64_64_128.cu", True),
        ("a100_F32F16F16F32/64_64_64.cu", False),
    ]
    assert [item.task for item in release.kernels[:2]] == ["hgemm/m64_n128_k64", "hgemm-f16/m64_n64_k128"]
    assert load_task(release.kernels[1].task).policy.accumulator == "float16"
    [folder] = release.folders
    assert (folder.kernels, folder.float32, folder.float16, folder.narrower) == (3, 2, 1, 1)
    assert any("notes.cu: its name is not" in reason for reason in release.unread)


def test_results_are_shares_and_geometric_means_over_the_grid(checkout: Path) -> None:
    release = read_release(checkout)
    torch_matmul, cublas = release.results
    assert (torch_matmul.mode, torch_matmul.baseline, torch_matmul.shapes) == ("server", "torch.matmul", 3)
    assert torch_matmul.win_rate == pytest.approx(2 / 3)
    assert torch_matmul.geomean == pytest.approx(4 ** (1 / 3))
    assert torch_matmul.mean == pytest.approx(6.5 / 3)
    assert (cublas.win_rate, cublas.least) == (pytest.approx(1 / 3), 0.5)
    assert (torch_matmul.faithful, torch_matmul.faithful_geomean) == (2, pytest.approx(8**0.5))
    assert any("line 3: torch.matmul of '64_64_128' is no positive speedup: 'n/a'" in item for item in release.unread)
    text = drawn(release_lines(release), width=200)
    assert "narrower" in text
    assert "66.7%" in text


def test_a_kernel_becomes_a_class_that_holds_its_source(checkout: Path) -> None:
    item = read_release(checkout).kernels[0]
    source = (checkout / "kernels" / item.origin).read_text()
    tree = ast.parse(as_model_new(item, source))
    values = {node.targets[0].id: node.value for node in tree.body if isinstance(node, ast.Assign)}  # type: ignore[attr-defined]
    assert ast.literal_eval(values["SOURCE"]) == source
    assert any(isinstance(node, ast.ClassDef) and node.name == "ModelNew" for node in tree.body)
    with pytest.raises(UsageError, match="has no host function"):
        as_model_new(item.model_copy(update={"function": ""}), source)


def test_a_gpu_and_shapes_are_selected_and_unknown_ones_are_refused(checkout: Path) -> None:
    release = read_release(checkout)
    selected = select_release(release, "a100", ["64_64_64"])
    assert [item.origin for item in selected.kernels] == ["a100_F32F16F16F32/64_64_64.cu"]
    assert (selected.folders, selected.results) == (release.folders, release.results)
    with pytest.raises(UsageError, match=r"no kernel and no result of GPU 'A100'; it has: a100$"):
        select_release(release, "A100", [])
    for path in (checkout / "eval_results").iterdir():
        path.unlink()
    for some in (release, read_release(checkout)):
        with pytest.raises(UsageError, match=r"^the release has no kernel of shape 1_2_3; a shape is M_N_K$"):
            select_release(some, None, ["64_64_64", "1_2_3"])


def test_a_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is no checkout of CUDA-L2"):
        read_release(tmp_path)
