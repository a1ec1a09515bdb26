"""The script that measures what share of a folder's kernels translates, on files of the kinds that it meets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import translate_share
from tests.devices.emulated.harness import ptx_module

PROGRAM = """#include <cstdio>
#include <vector>
#include "shared.cuh"
__global__ void plain(float* x) { x[threadIdx.x] = twice(x[threadIdx.x]); }
template <typename T, int N>
__global__ void tiled(T* x) { x[threadIdx.x] += N; }
template <class T>
__global__ void unlaunched(T* x) { x[0] = T(1); }
static void check(const std::vector<float>& values) { printf("%f\\n", values[0]); }
int main() {
  float* x;
  cudaMalloc(&x, 128);
  plain<<<1, 32>>>(x);
  tiled<float, 4><<<1, 32>>>(x);
  tiled<int, 8><<<1, 32>>>((int*)x);
  check({1.f});
}
"""
HEADER = """#pragma once
__device__ inline float twice(float x) { return 2 * x; }
"""
REFUSED = """__global__ void odd(int* x) {
  asm volatile("{.reg .pred p; isspacep.const p, %0;}" :: "l"(x));
  x[0] = 1;
}
__global__ void even(int* x) { x[0] = 2; }
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "kernels"
    folder.mkdir()
    return folder


def measured(folder: Path, *options: str) -> dict[str, dict[str, Any]]:
    """The script's results by file; below its target it ends the process."""
    results = folder.parent / "results.jsonl"
    translate_share.main([str(folder), "--jobs", "1", "--json", str(results), *options])
    return {result["file"]: result for result in map(json.loads, results.read_text().splitlines())}


@pytest.mark.slow
def test_kernels_of_a_program_translate_with_the_arguments_that_it_launches(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "program.cu").write_text(PROGRAM)
    (folder / "shared.cuh").write_text(HEADER)
    (folder / "host.cu").write_text("int main() { return 0; }\n")
    results = measured(folder)
    assert results["program.cu"] | {"refused": {}, "problem": "", "entries": 5, "kernels": 3} == results["program.cu"]
    assert results["host.cu"]["problem"] == "no kernel"
    assert "100.0%" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("native", [(), ("--native",)])
def test_a_refused_kernel_is_named_and_misses_the_target(
    folder: Path, native: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "two.cu").write_text(REFUSED)
    with pytest.raises(SystemExit, match=r"50.0% of the entries translate; the target is 97%"):
        measured(folder, *native)
    assert "isspacep.const" in capsys.readouterr().out


@pytest.mark.slow
def test_ptx_is_taken_as_it_is(folder: Path) -> None:
    (folder / "one.ptx").write_text(ptx_module("ld.param.u64 %d1, [out];\nst.global.u64 [%d1], %d1;"))
    (folder / "none.ptx").write_text(".version 8.7\n.target sm_90a\n.address_size 64\n")
    results = measured(folder)
    assert (results["one.ptx"]["entries"], results["one.ptx"]["refused"]) == (1, {})
    assert results["none.ptx"]["problem"] == "no entry is left"


@pytest.mark.slow
def test_a_whole_file_goes_to_nvcc_with_the_options_given(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "compiled.ptx").write_text(ptx_module(""))
    compiler = tmp_path / "nvcc"
    compiler.write_text(
        f"""#!/bin/sh
case "$*" in *bad*) echo "bad.cu(1): error: no such thing" >&2; exit 2;; esac
echo "$*" > {tmp_path}/command
while [ "$1" != -o ]; do shift; done
cp {tmp_path}/compiled.ptx "$2"
"""
    )
    compiler.chmod(0o755)
    (folder / "whole.cu").write_text("int main() { return launch_many(); }\n")
    (folder / "bad.cu").write_text("")
    options = ("--arch", "sm_80", "--option=-DMANY=1", "--include", str(tmp_path))
    results = measured(folder, "--nvcc", str(compiler), *options)
    assert results["whole.cu"]["entries"] == 1
    assert results["bad.cu"]["problem"] == "nvcc: bad.cu(1): error: no such thing"
    command = (tmp_path / "command").read_text().split()
    assert {"-ptx", "-arch=sm_80", "-DMANY=1", f"-I{tmp_path}", str(folder / "whole.cu")} <= set(command)


def test_a_folder_without_kernels_is_an_error(folder: Path) -> None:
    with pytest.raises(SystemExit, match=r"holds no file \*\.cu or \*\.ptx"):
        measured(folder)


@pytest.mark.parametrize(
    ("message", "short"),
    [
        (
            "the emulator does not support '@%p1 isspacep.const %p2, %rd4;' (source line 3, PTX line 40): address form",
            "isspacep.const: address form",
        ),
        ("the emulator does not support 'tcgen05.alloc [%r1], 32;' (PTX line 4)", "tcgen05.alloc: not implemented"),
        ("took more than 60 s", "took more than 60 s"),
    ],
)
def test_refusals_of_many_kernels_have_one_reason(message: str, short: str) -> None:
    assert translate_share.reason(message) == short
