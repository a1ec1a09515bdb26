"""A user's own kernel on the emulated device: tensors, findings, counters, counts per line."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import numpy as np
import pytest

from kernelforge.emulation import EmulationFailed, Emulator, from_bytes, to_bytes
from kernelforge.errors import CandidateError, DeviceError, UsageError
from kernelforge.records import DType
from kernelforge.report.html.emulation import emulation_page
from kernelforge.report.terminal.emulation import emulation_lines
from kernelforge.report.views.emulation import emulation_view
from tests.support.terminal import drawn

ROOT = Path(__file__).resolve().parents[1]
SOURCE = """#include <cuda_bf16.h>
__global__ void scale(float* x, float a, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) x[i] *= a;
}
__global__ void transposed(const float* x, float* y) {
    __shared__ float tile[32][32];
    tile[threadIdx.y][threadIdx.x] = x[threadIdx.y * 32 + threadIdx.x];
    __syncthreads();
    y[threadIdx.y * 32 + threadIdx.x] = tile[threadIdx.x][threadIdx.y];
}
__global__ void widened(const __nv_bfloat16* x, float* y) { y[threadIdx.x] = __bfloat162float(x[threadIdx.x]); }
"""
SCALE = "scale[ceil_div(x.numel(), 256), 256](x, f32(3.0), i32(x.numel()))"


@pytest.fixture(scope="module")
def own_emulator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Emulator]:
    with Emulator(cache=tmp_path_factory.mktemp("builds")) as opened:
        yield opened


@pytest.mark.slow
def test_kernels_change_the_given_tensors(own_emulator: Emulator) -> None:
    x = np.arange(1000, dtype=np.float32)
    result = own_emulator.run(SOURCE, SCALE, {"x": x}).check()
    assert np.array_equal(result.tensors["x"], 3 * x)
    assert x[1] == 1
    assert result.profile is not None
    metrics = {metric.name: metric.value for metric in result.profile.metrics}
    assert metrics["l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum"] == 125
    assert result.performance is not None
    assert result.lines == ()


@pytest.mark.slow
def test_launches_run_in_order(own_emulator: Emulator) -> None:
    result = own_emulator.run(SOURCE, f"{SCALE}\n{SCALE}", {"x": "f32[8]:ones"}, profile=False)
    assert result.tensors["x"].tolist() == [9.0] * 8
    assert result.profile is None


def test_approximations_may_have_their_worst_errors(own_emulator: Emulator) -> None:
    source = "__global__ void f(float* x) { x[threadIdx.x] = __expf(x[threadIdx.x]); }"
    x = np.linspace(0.1, 1, 64, dtype=np.float32)
    exact = np.exp(x.astype(np.float64))

    def error(approx: Literal["varied", "worst"]) -> float:
        result = own_emulator.run(source, "f[1, 64](x)", {"x": x}, profile=False, approx=approx).check()
        return float(np.abs(result.tensors["x"] / exact - 1).mean())

    assert error("worst") > 1.5 * error("varied")
    with pytest.raises(UsageError, match="approx is 'varied' or 'worst'"):
        own_emulator.run(source, "f[1, 64](x)", {"x": x}, approx="best")  # type: ignore[arg-type]


def test_a_plan_returns_tensors_of_its_own(own_emulator: Emulator) -> None:
    plan = "def forward(x):\n    out = empty_like(x)\n    transposed[1, (32, 32)](x, out)\n    return out\n"
    x = np.arange(1024, dtype=np.float32).reshape(32, 32)
    result = own_emulator.run(SOURCE, plan=plan, tensors={"x": x}, profile=False).check()
    assert list(result.tensors) == ["x", "out"]
    assert np.array_equal(result.tensors["out"], x.T)


def test_lines_have_the_work_of_their_instructions(own_emulator: Emulator) -> None:
    tensors = {"x": "f32[32,32]", "y": "f32[32,32]"}
    result = own_emulator.run(SOURCE, "transposed[1, (32, 32)](x, y)", tensors, lines=True).check()
    lines = {line.line: line for line in result.lines}
    load, store = lines[8], lines[10]
    assert load.text.strip().startswith("tile[threadIdx.y]")
    assert (load.sectors, load.excess_sectors, load.wavefronts, load.excess_wavefronts) == (128, 0, 32, 0)
    assert (store.sectors, store.wavefronts, store.excess_wavefronts) == (128, 32 * 32, 31 * 32)
    assert result.profile is not None
    executed = next(m.value for m in result.profile.metrics if m.name == "ptx__warp_inst_executed.sum")
    assert sum(line.warp_instructions for line in result.lines) == executed


def test_lines_have_their_machine_instructions_beside_those_of_the_ptx(own_emulator: Emulator) -> None:
    tensors = {"x": "f32[32,32]", "y": "f32[32,32]"}
    result = own_emulator.run(SOURCE, "transposed[1, (32, 32)](x, y)", tensors, lines=True).check()
    assert result.profile is not None
    (kernel,) = result.profile.kernels
    assert kernel.sass is not None
    by_line = {line.line: line.machine_instructions for line in result.lines}
    assert None not in by_line.values()
    assert sum(filter(None, by_line.values())) <= kernel.sass.warp_instructions + len(by_line)
    executed = {row.opcode: row.warp_instructions for row in kernel.sass.opcodes}
    assert executed["LDG"] == executed["STS"] == executed["LDS"] == executed["STG"] == 32
    assert by_line[8] >= executed["LDG"] + executed["STS"]


def test_findings_are_no_errors_until_they_are_checked(own_emulator: Emulator) -> None:
    result = own_emulator.run(SOURCE, "scale[4, 256](x, f32(3.0), i32(1024))", {"x": "f32[1000]"})
    assert not result.ok
    assert result.tensors == {}
    assert result.profile is None
    assert "out-of-bounds 4-byte global load" in result.problem
    assert "candidate.cu:4" in result.problem
    with pytest.raises(EmulationFailed, match="0 bytes after the end of 'x'"):
        result.check()


def test_a_source_that_does_not_compile_has_its_errors(own_emulator: Emulator) -> None:
    result = own_emulator.run("__global__ void f(int* x) { y; }", "f[1, 1](x)", {"x": "i32[1]"})
    assert not result.ok
    assert 'identifier "y" is undefined' in result.problem


PTX = """.version 8.0
.target sm_80
.address_size 64
.visible .entry twice(.param .u64 x)
{
    .reg .b64 %rd<3>;
    .reg .b32 %r<3>;
    ld.param.u64 %rd1, [x];
    mov.u32 %r1, %tid.x;
    mul.wide.u32 %rd2, %r1, 4;
    add.s64 %rd1, %rd1, %rd2;
    ld.global.u32 %r2, [%rd1];
    shl.b32 %r2, %r2, 1;
    st.global.u32 [%rd1], %r2;
    ret;
}
"""


def test_ptx_runs_by_its_own_lines(own_emulator: Emulator) -> None:
    result = own_emulator.run(PTX, "twice[1, 32](x)", {"x": "i32[32]:arange"}, lines=True, registers=8).check()
    assert result.tensors["x"].tolist() == list(range(0, 64, 2))
    lines = {line.line: line for line in result.lines}
    assert "ld.global" in lines[12].text
    assert lines[12].sectors == 4
    assert lines[13].warp_instructions == 1
    assert lines[13].machine_instructions is None  # nothing was assembled
    with pytest.raises(UsageError, match="the PTX has no kernel once; it has twice"):
        own_emulator.run(PTX, "once[1, 32](x)", {"x": "i32[32]"})


def test_bfloat16_is_shown_as_float32(own_emulator: Emulator) -> None:
    result = own_emulator.run(SOURCE, "widened[1, 64](x, y)", {"x": "bf16[64]", "y": "f32[64]:zeros"}).check()
    assert np.array_equal(result.tensors["x"], result.tensors["y"])
    assert np.unique(result.tensors["y"]).size > 32


@pytest.mark.parametrize("value", [1.0, 1.00390625, 1.01171875, -0.0, 3.3895314e38, 3.4e38, float("inf"), float("nan")])
def test_bfloat16_rounds_as_torch_does(value: float) -> None:
    import torch

    expected = torch.tensor([value], dtype=torch.float32).bfloat16().float().numpy()
    got = from_bytes(to_bytes(np.array([value]), DType.BFLOAT16), (1,), DType.BFLOAT16)
    assert np.array_equal(got, expected, equal_nan=True)


def test_torch_tensors_are_taken(own_emulator: Emulator) -> None:
    import torch

    x = torch.arange(64, dtype=torch.bfloat16)
    result = own_emulator.run(SOURCE, "widened[1, 64](x, y)", {"x": x, "y": torch.zeros(64)}, profile=False).check()
    assert np.array_equal(result.tensors["y"], np.arange(64, dtype=np.float32))


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"x": "f32"}, "describes no tensor; write DTYPE"),
        ({"x": "f33[4]"}, "describes no tensor; write DTYPE"),
        ({"x": "f32[4]:twos"}, "'twos' fills no float32 tensor; use normal"),
        ({"x": "i32[4]:normal"}, "'normal' fills no int32 tensor; use uniform"),
        ({"x": "@missing.npy"}, "is no .npy file that can be read"),
        ({"x": np.zeros(4, dtype=np.complex64)}, "x has dtype complex64"),
        ({"not a name": "f32[4]"}, "cannot name a tensor"),
    ],
)
def test_tensors_that_cannot_be_read_are_refused(own_emulator: Emulator, tensors: dict, message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        own_emulator.run(SOURCE, SCALE, tensors)


def test_launches_are_asked_for_once(own_emulator: Emulator) -> None:
    for options in ({}, {"launch": SCALE, "plan": "def forward(): pass"}):
        with pytest.raises(UsageError, match="give either launches"):
            own_emulator.run(SOURCE, tensors={"x": "f32[4]"}, **options)
    with pytest.raises(UsageError, match="forward takes y"):
        own_emulator.run(
            SOURCE, plan="def forward(x, y):\n    scale[1, 1](x, f32(1), i32(1))\n", tensors={"x": "f32[4]"}
        )
    with pytest.raises(CandidateError, match="unknown name 'z'"):
        own_emulator.run(SOURCE, "scale[1, 1](z, f32(1), i32(1))", {"x": "f32[4]"})


def test_only_emulated_devices_are_taken() -> None:
    with pytest.raises(DeviceError, match="cuda:0"):
        Emulator("cuda:0")


@pytest.mark.slow
def test_the_page_loads_nothing_and_escapes_the_source(own_emulator: Emulator) -> None:
    source = SOURCE.replace("int i =", "/* <script>alert(1)</script> */ int i =")
    view = emulation_view(own_emulator.run(source, SCALE, {"x": "f32[64]"}, lines=True))
    page = emulation_page(view, title="<b>.cu")
    assert "<script" not in page
    assert "&lt;script&gt;" in page
    assert "<h1>&lt;b&gt;.cu" in page
    assert "default-src &#39;none&#39;" in page
    assert "mJ estimated, not measured" in page
    assert "mJ estimated, not measured" in drawn(emulation_lines(view), width=120)
    assert not re.search(r"""(?:src|href)=["'](?!data:,|#)""", page)


@pytest.mark.slow
def test_the_pages_examples_run(tmp_path: Path) -> None:
    """The Python of docs/emulate.md: the program, and the test with the fixture."""
    program, test = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "emulate.md").read_text(), re.S)
    (tmp_path / "program.py").write_text(program)
    (tmp_path / "test_kernel.py").write_text(test)
    done = subprocess.run([sys.executable, "program.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "kernelforge__launches" in done.stdout
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--emulated-device", "emulated:a100"]
    done = subprocess.run(
        [*command, *plugin(), "test_kernel.py"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout


def plugin() -> list[str]:
    """Options that load the plugin where the installed package does not name it yet."""
    from importlib.metadata import entry_points

    return [] if entry_points(group="pytest11", name="kernelforge") else ["-p", "kernelforge.pytest_plugin"]
