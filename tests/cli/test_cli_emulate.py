"""``emulate``: a kernel of one's own, without a task."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

SAXPY = """__global__ void saxpy(const float* x, float* y, float a, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = a * x[i] + y[i];
}
"""
LAUNCH = "saxpy[ceil_div(x.numel(), 256), 256](x, y, f32(2.0), i32(x.numel()))"
TENSORS = ("--tensor", "x=f32[1000]:arange", "--tensor", "y=f32[1000]:ones")


@pytest.fixture
def kernel(tmp_path: Path) -> str:
    (tmp_path / "saxpy.cu").write_text(SAXPY)
    return "saxpy.cu"


@pytest.mark.slow
def test_results_counters_and_lines_are_shown_and_written(cli, tmp_path: Path, kernel: str):
    done = cli(
        "emulate", kernel, "--launch", LAUNCH, *TENSORS, "--source", "--page", "page.html", "--output", "after"
    )  # fmt: skip
    assert done.code == 0, done.err
    assert "findings  none" in done.out
    assert "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum" in done.out
    assert "if (i < n) y[i] = a * x[i] + y[i];" in done.out
    after = np.load(tmp_path / "after" / "y.npy")
    assert np.array_equal(after, 2 * np.arange(1000, dtype=np.float32) + 1)
    page = (tmp_path / "page.html").read_text()
    assert "Counts per line" in page
    for report in (done.out, page):
        assert "Machine code (estimated)" in report
        assert "FFMA" in report


def test_json_has_the_same(cli, kernel: str):
    data = cli("emulate", kernel, "--launch", LAUNCH, *TENSORS, "--json").json()
    assert data["ok"] is True
    assert [tensor["maximum"] for tensor in data["tensors"]] == [999.0, 1999.0]
    assert data["lines"] == []
    assert {row["opcode"] for row in data["opcodes"]} >= {"LDG", "STG", "FFMA"}
    assert data["profile"]["kernels"][0]["sass"]["origin"] == "estimated"


def test_a_fault_is_exit_code_1(cli, kernel: str):
    done = cli("emulate", kernel, "--launch", LAUNCH.replace("i32(x.numel())", "i32(1001)"), *TENSORS)
    assert done.code == 1
    assert "out-of-bounds 4-byte global load" in done.out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--tensor", "x=f32[4]"), "give either --launch"),
        (("--launch", LAUNCH, "--tensor", "x"), "--tensor takes NAME=TENSOR"),
        (("--launch", LAUNCH, "--tensor", "x=f32[1]", "--tensor", "x=f32[2]"), "--tensor names x twice"),
        (("--launch", LAUNCH, "--device", "emulated:h1000", *TENSORS), "emulated:h1000"),
        (("--launch", "saxpy[1, 1](x)", *TENSORS), "saxpy"),
    ],
)
def test_bad_input_is_one_line(cli, kernel: str, arguments: tuple[str, ...], message: str):
    done = cli("emulate", kernel, *arguments)
    assert done.code != 0
    assert message in done.out + done.err
    assert "Traceback" not in done.err
