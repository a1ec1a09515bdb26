"""A Triton kernel is launched by its parameters' names and its text; the Python that launches it is not run."""

from __future__ import annotations

import re

import pytest

from kernelforge.compile.triton_build import installed_triton
from kernelforge.records import Verdict
from kernelforge.study.codex import StudyJudge
from kernelforge.study.kernels import KERNELS
from kernelforge.study.signatures import Underivable
from kernelforge.study.triton_kernels import TritonKernel, triton_entry, triton_kernel

needs_triton = pytest.mark.skipif(installed_triton() is None, reason="the extra triton is not installed")
HEAD = "import torch\nimport triton\nimport triton.language as tl\n\n"

AXPY = f"""{HEAD}
@triton.autotune(configs=[triton.Config({{"BLOCK_SIZE": 256}})], key=["n"])
@triton.jit
def axpy_kernel(x_ptr, y_ptr, output_ptr, alpha, n, BLOCK_SIZE: tl.constexpr):
    '''alpha x + y'''
    offsets = tl.program_id(axis=0) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask)
    tl.store(output_ptr + offsets, alpha * x + tl.load(y_ptr + offsets, mask=mask), mask=mask)

def axpy(alpha, x, y):
    output = torch.empty_like(x)
    axpy_kernel[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK_SIZE"]),)](x, y, output, alpha, x.numel())
    return output
"""

GEMV = f"""{HEAD}
@triton.jit
def gemv_kernel(A, x, y, M, N, stride_am, stride_an, BLOCK_N: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK_N)
    a = tl.load(A + row * stride_am + cols * stride_an, mask=cols < N, other=0.0)
    tl.store(y + row, tl.sum(a * tl.load(x + cols, mask=cols < N, other=0.0), axis=0))
"""

GEMM = f"""{HEAD}
GROUP = 4
@triton.jit
def matmul(a_ptr, b_ptr, c_ptr, M, N, K, stride_am, stride_ak, stride_bk, stride_bn, stride_cm, stride_cn,
           BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr):
    pid = tl.program_id(0)
    pid_m, pid_n = pid // tl.cdiv(N, BLOCK_N), pid % tl.cdiv(N, BLOCK_N)
    rows = pid_m * BLOCK_M + tl.arange(0, BLOCK_M)
    for k in range(0, K, BLOCK_K):
        accumulator = tl.dot(a, b, accumulator)

def launch(a, b):
    matmul[grid](a, b, c, BLOCK_M=16, BLOCK_N=64)
"""


@pytest.mark.slow
@needs_triton
@pytest.mark.parametrize(("kernel", "code", "form"), [("axpy", AXPY, "alpha x + y"), ("gemv", GEMV, "A x, A by rows")])
def test_a_kernel_is_right_by_the_form_that_it_computes(judge: StudyJudge, kernel: str, code: str, form: str) -> None:
    right = judge.judge(kernel, code, "python")
    assert (right.used_model, right.verdict, right.form) == ("triton", "right", form), right.reason
    assert right.device == "emulated:h100"


@needs_triton
@pytest.mark.parametrize(
    ("old", "new", "verdict"),
    [
        ("alpha * x +", "alpha * x -", Verdict.WRONG),
        ("x = tl.load(x_ptr + offsets, mask=mask)", "x = tl.load(x_ptr + offsets)", Verdict.CRASH),
        ("mask = offsets < n", "mask = offsets < m", Verdict.BUILD),
    ],
)
def test_a_mistake_is_wrong(judge: StudyJudge, old: str, new: str, verdict: Verdict) -> None:
    wrong = judge.judge("axpy", AXPY.replace(old, new), "python")
    assert (wrong.verdict, wrong.evaluation) == ("wrong", verdict), wrong.reason


def read(kernel: str, code: str) -> TritonKernel:
    return triton_kernel(code, KERNELS[kernel].names, kernel)


def test_a_grid_of_one_dimension_covers_a_product_and_strides_follow_from_their_names() -> None:
    kernel = read("gemm", GEMM)
    form = next(form for form in KERNELS["gemm"].forms(kernel.function) if form.text == "A B, by rows")
    candidate = triton_entry(kernel, form)
    m, n, k = "i32(a.shape[0])", "i32(b.shape[1])", "i32(a.shape[1])"
    assert (
        f"matmul[ceil_div(a.shape[0], 16) * ceil_div(b.shape[1], 64)](a, b, out, {m}, {n}, {k}, "
        f"{k}, i32(1), {n}, i32(1), {n}, i32(1), BLOCK_M=16, BLOCK_N=64, BLOCK_K=32)"
    ) in candidate.plan
    assert "tl.dot(a, b, accumulator, input_precision='ieee')" in candidate.source
    assert "GROUP = tl.constexpr(4)" in candidate.source
    assert "def launch" not in candidate.source


def test_sizes_of_blocks_are_powers_of_two_of_the_code_itself() -> None:
    code = AXPY.replace('{"BLOCK_SIZE": 256}', '{"BLOCK_SIZE": 100}').replace("BLOCK_SIZE: tl", "*, BLOCK_SIZE: tl")
    code = code.replace("constexpr):", "constexpr = 512):") + "# BLOCK_SIZE = 16\ntext = 'BLOCK_SIZE=32'\n"
    for changed, size in (
        (code, 512),
        (code.replace("= 512", ""), 128),
        (code.replace('"BLOCK_SIZE": 100', '"BLOCK_SIZE": 64'), 64),
        (f"{code}SIZE = 2048\nk[g](x, BLOCK_SIZE=SIZE)\n", 2048),
        (f"{code}k[g](x, BLOCK_SIZE=True)\n", 512),
    ):
        kernel = read("axpy", changed)
        candidate = triton_entry(kernel, KERNELS["axpy"].forms(kernel.function)[0])
        assert f"(x, y, out, f32(alpha), i32(x.shape[0]), BLOCK_SIZE={size}" in candidate.plan
        assert "BLOCK_SIZE: tl.constexpr)" in candidate.source


@pytest.mark.parametrize("nested", [f"x = a{'.a' * 1500}", f"x = {'1+' * 1500}1", f"x = 0x{'f' * 5000}"])
def test_texts_that_cannot_be_written_again_are_not_judged(
    judge: StudyJudge, nested: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kernelforge.study.codex.missing_tool", lambda runner: "")
    judgement = judge.judge("axpy", AXPY.replace("mask = offsets < n", nested), "python")
    assert judgement.verdict == "not judged"
    assert "nested too deeply" in judgement.reason or "integer of more than 128 bits" in judgement.reason


@pytest.mark.parametrize(
    ("kernel", "code", "words"),
    [
        ("axpy", AXPY.replace("def axpy_kernel(", "def axpy_kernel(*p, "), "more than the parameters that it names"),
        ("axpy", f"{HEAD}x = 1", "no kernel under @triton.jit"),
        ("cg", GEMV + AXPY.replace(HEAD, ""), "several kernels (gemv_kernel, axpy_kernel)"),
        ("axpy", f"{HEAD}@triton.jit\ndef f(n, BLOCK: tl.constexpr):\n    pass", "takes no pointer"),
        ("axpy", AXPY.replace("tl.program_id(axis=0)", "0"), "asks for no number of its program"),
    ],
)
def test_where_no_launch_can_be_derived_the_reason_says_why(kernel: str, code: str, words: str) -> None:
    def derive() -> None:
        launched = read(kernel, code)
        triton_entry(launched, KERNELS[kernel].forms(launched.function)[0])

    with pytest.raises(Underivable, match=re.escape(words)):
        derive()
