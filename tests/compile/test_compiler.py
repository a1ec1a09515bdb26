"""Compilation, its build record, and the diagnostics for a Coder."""

import importlib
import os
import signal

import pytest

from kernelforge.candidate.plan import LaunchSignature
from kernelforge.compile import Artifact, Compiler
from kernelforge.errors import CandidateError, DeviceError
from kernelforge.records import Build
from kernelforge.sandbox import Child

ADD = """
__global__ void add(const float* a, const float* b, float* out, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = a[i] + b[i];
}
"""


def good(result):
    assert isinstance(result, Artifact), result
    assert result.build.ok
    return result


def failed(result):
    assert isinstance(result, Build), result
    assert not result.ok
    return result


def test_a_kernel_becomes_ptx_and_a_cubin_of_the_same_compilation(compiler):
    artifact = good(compiler.build(ADD, ["add"]))
    kernel = artifact.build.kernels[0]
    assert artifact.symbol("add") == kernel.symbol == "_Z3addPKfS0_Pfi"
    assert b".visible .entry _Z3addPKfS0_Pfi" in artifact.ptx
    assert artifact.cubin.startswith(b"\x7fELF")
    assert kernel.symbol.encode() in artifact.cubin
    assert 4 <= kernel.registers_per_thread <= 64
    assert artifact.build.arch == "sm_90a"
    assert artifact.build.toolchain == compiler.toolchain.name
    assert artifact.build.toolchain.startswith("nvrtc 1")
    assert artifact.build.seconds > 0
    assert b".loc" in artifact.ptx, "source lines are kept"


@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_100"])
def test_other_architectures_can_be_asked_for(compiler, arch):
    artifact = good(compiler.build(ADD, ["add"], arch=arch))
    assert f".target {arch}".encode() in artifact.ptx


def test_extern_c_is_optional(compiler):
    assert good(compiler.build('extern "C" ' + ADD.lstrip(), ["add"])).symbol("add") == "add"


def test_template_instances_are_named_by_expression(compiler):
    source = "template <class T, int N> __global__ void scale(T* x) { x[threadIdx.x] *= N; }"
    artifact = good(compiler.build(source, ["scale<float, 3>", "scale<double, 4>"]))
    symbols = [kernel.symbol for kernel in artifact.build.kernels]
    assert symbols == ["_Z5scaleIfLi3EEvPT_", "_Z5scaleIdLi4EEvPT_"]


@pytest.mark.slow
def test_registers_shared_memory_spills_and_bounds_are_reported(compiler):
    source = """
    __global__ void __launch_bounds__(1024, 2) heavy(float* x) {
      __shared__ float tile[512];
      float r[48];
      #pragma unroll
      for (int i = 0; i < 48; i++) r[i] = x[i * 32 + threadIdx.x];
      tile[threadIdx.x % 512] = r[5];
      __syncthreads();
      #pragma unroll
      for (int i = 0; i < 48; i++) for (int j = 0; j < 48; j++) r[i] = r[i] * r[j] + tile[j];
      #pragma unroll
      for (int i = 0; i < 48; i++) x[i * 32 + threadIdx.x] = r[i];
    }"""
    kernel = good(compiler.build(source, ["heavy"])).build.kernels[0]
    assert kernel.static_shared_bytes == 2048
    assert kernel.registers_per_thread == 32
    assert kernel.spill_store_bytes > 0
    assert kernel.spill_load_bytes > 0
    assert kernel.stack_frame_bytes > 0
    assert kernel.max_threads_per_block == 1024


FEATURES = {
    "sinf": "__global__ void k(float* p) { p[0] = sinf(p[1]) + powf(p[2], p[3]); }",
    "fp16": """
        #include <cuda_fp16.h>
        #include <cuda_bf16.h>
        __global__ void k(__half2* p, __nv_bfloat16* b) {
          p[0] = __hfma2(p[1], p[2], p[3]); b[0] = __float2bfloat16(3.f);
        }
    """,
    "mma": """
        #include <mma.h>
        using namespace nvcuda;
        __global__ void k(const half* a, const half* b, float* c) {
          wmma::fragment<wmma::matrix_a, 16, 16, 16, half, wmma::row_major> fa;
          wmma::fragment<wmma::matrix_b, 16, 16, 16, half, wmma::col_major> fb;
          wmma::fragment<wmma::accumulator, 16, 16, 16, float> fc;
          wmma::fill_fragment(fc, 0.f);
          wmma::load_matrix_sync(fa, a, 16);
          wmma::load_matrix_sync(fb, b, 16);
          wmma::mma_sync(fc, fa, fb, fc);
          wmma::store_matrix_sync(c, fc, 16, wmma::mem_row_major);
        }
    """,
    "cooperative groups": """
        #include <cooperative_groups.h>
        #include <cooperative_groups/reduce.h>
        namespace cg = cooperative_groups;
        __global__ void k(float* p) {
          auto block = cg::this_thread_block();
          auto warp = cg::tiled_partition<32>(block);
          p[0] = cg::reduce(warp, p[threadIdx.x], cg::plus<float>());
          block.sync();
        }
    """,
    "cub block reduction": """
        #include <cub/block/block_reduce.cuh>
        __global__ void k(const float* x, float* out) {
          typedef cub::BlockReduce<float, 128> Reduce;
          __shared__ typename Reduce::TempStorage storage;
          float sum = Reduce(storage).Sum(x[threadIdx.x]);
          if (threadIdx.x == 0) *out = sum;
        }
    """,
    "what CUDA programs expect without asking": """
        __global__ void k(float* p, int64_t n, uint32_t m) {
          p[0] = INFINITY + NAN + FLT_MAX + INT_MAX + (float)M_PI + (float)DBL_EPSILON + UINT32_MAX + LLONG_MIN;
          p[1] = -INFINITY * n + m;
        }
    """,
    "the standard headers": """
        #include <cuda_runtime.h>
        #include <cstdint>
        #include <stdint.h>
        #include <cmath>
        #include <cfloat>
        #include <climits>
        #include <limits>
        #include <algorithm>
        #include <type_traits>
        #include <cstdio>
        #include <cassert>
        #include <stdlib.h>
        #include <string.h>
        __global__ void k(float* p, std::size_t n);
        __global__ void k(float* p) {
          p[0] = std::max(p[1], std::exp(p[2])) + std::numeric_limits<float>::infinity();
          if (std::is_same<float, float>::value) p[1] = std::sqrt(p[2]) + std::min(3, 4);
        }
    """,
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", FEATURES)
def test_device_libraries_compile_and_pass_the_gate(compiler, name):
    source = FEATURES[name].replace("__global__ void k(float* p, std::size_t n);\n", "")
    artifact = good(compiler.build(source, ["k"]))
    assert not artifact.build.errors
    assert all(diagnostic.file == "candidate.cu" for diagnostic in artifact.build.diagnostics)


def test_constants_stand_after_the_last_leading_include_and_keep_line_numbers(compiler):
    source = "\n".join(
        [
            "// a head",
            "#include <cuda_fp16.h>",
            "#define TWO 2",
            "#include <cstdint>",
            "",
            "__global__ void k(int* x) {",
            "  x[0] = BLOCK * TWO;",
            "  x[1] = missing;",
            "}",
        ]
    )
    build = failed(compiler.build(source, ["k"], constants={"BLOCK": 128}))
    assert [(d.file, d.line) for d in build.errors] == [("candidate.cu", 8)]
    artifact = good(compiler.build(source.replace("missing", "0"), ["k"], constants={"BLOCK": 128}))
    assert b"256" in artifact.ptx


def test_constants_are_constant_expressions_and_may_be_wide(compiler):
    source = (
        "__global__ void k(long long* x) { __shared__ int s[TILE]; s[threadIdx.x] = 1; x[0] = HUGE + s[TILE - 1]; }"
    )
    good(compiler.build(source, ["k"], constants={"TILE": 64, "HUGE": 2**40}))


@pytest.mark.parametrize("name", ["1a", "a b", "x;int y", ""])
def test_a_constant_needs_a_name(compiler, name):
    with pytest.raises(CandidateError, match="C\\+\\+ name"):
        compiler.build(ADD, ["add"], constants={name: 1})


@pytest.mark.parametrize("name", ["add; int x", 'add"', "add\n#include <x>", "", "a" * 600, "1add"])
def test_an_expression_is_a_kernel_name_and_no_more(compiler, name):
    with pytest.raises(CandidateError, match="is not a kernel name"):
        compiler.build(ADD, [name])


def test_a_plan_without_launches_is_refused(compiler):
    with pytest.raises(CandidateError, match="launches no kernel"):
        compiler.build(ADD, [])


def test_a_syntax_error_has_its_line_and_message(compiler):
    build = failed(compiler.build(ADD + "\nint x = ;\n", ["add"]))
    assert [(d.file, d.line, d.message) for d in build.errors] == [("candidate.cu", 7, "expected an expression")]


def test_text_that_does_not_parse_is_reported_by_its_own_lines_alone(compiler):
    """Our header after it would lack what it includes."""
    launch = LaunchSignature("k", ("tensor:float32",))
    errors = failed(
        compiler.build("extern C __global__ void k(flout* x) hello world", ["k"], signatures=[launch])
    ).errors
    assert {error.file for error in errors} == {"candidate.cu"}


def test_a_kernel_that_the_source_lacks_is_named(compiler):
    build = failed(compiler.build(ADD, ["softmax"]))
    assert [d.message for d in build.errors] == ["the plan launches softmax, but the source has no such kernel"]


def test_a_device_function_is_no_kernel(compiler):
    build = failed(compiler.build("__device__ void f(float* x) {}" + ADD, ["f"]))
    assert "the plan launches f" in build.errors[0].message


def test_too_much_static_shared_memory_is_an_error_that_says_what_to_do(compiler):
    source = """__global__ void k(float* x) {
      __shared__ float s[20000];
      s[threadIdx.x] = x[0]; __syncthreads(); x[1] = s[threadIdx.x ^ 1];
    }"""
    for arch in ("sm_90a", "sm_80"):  # which of the two ptxas itself refuses hangs on its version
        build = failed(compiler.build(source, ["k"], arch=arch))
        message = build.errors[0].message
        assert "80000 bytes of static shared memory; the limit is 49152. Use extern __shared__" in message


@pytest.mark.parametrize(
    "header", ["torch/extension.h", "ATen/cuda/CUDAContext.h", "iostream", "vector", "thrust/sort.h"]
)
def test_a_host_header_says_that_there_is_no_host_code(compiler, header):
    build = failed(compiler.build(f"#include <{header}>\n" + ADD, ["add"]))
    assert "host header" in build.errors[0].message
    assert header in build.errors[0].message


def test_unknown_headers_are_named(compiler):
    build = failed(compiler.build("#include <nothing/such.h>\n" + ADD, ["add"]))
    assert build.errors[0].line == 1
    assert 'cannot open source file "nothing/such.h"' in build.errors[0].message


def test_diagnostics_are_few_short_and_hold_no_path_of_this_machine(compiler):
    lines = [f"int x{i} = undefined_{i};" for i in range(500)] + [f"int {'y' * 3000} = z;"]
    build = failed(compiler.build(ADD + "\n".join(lines), ["add"]))
    assert len(build.diagnostics) <= 40
    build = failed(
        compiler.build("#include <cuda_fp16.h>\n__global__ void k(__half* x) { x[0] = __half(x, x, x); }", ["k"])
    )
    text = "\n".join(map(str, build.diagnostics))
    assert "site-packages" not in text
    assert "/opt" not in text


@pytest.mark.slow
def test_an_error_inside_a_library_template_points_at_the_candidate_line(compiler):
    source = """#include <cooperative_groups.h>
    __global__ void k(float* x) {
      auto tile = cooperative_groups::tiled_partition<33>(cooperative_groups::this_thread_block());
      x[0] = tile.size();
    }"""
    build = failed(compiler.build(source, ["k"]))
    assert (build.errors[0].file, build.errors[0].line) == ("candidate.cu", 3)
    assert "static assertion failed" in build.errors[0].message


def test_a_missing_wheel_says_what_to_install(monkeypatch):
    module = importlib.import_module("kernelforge.compile.toolchain")

    def absent(name):
        raise module.metadata.PackageNotFoundError(name)

    module.installed_toolchain.cache_clear()
    monkeypatch.setattr(module.metadata, "version", absent)
    try:
        with pytest.raises(DeviceError, match=r"pip install 'nvidia-cuda-nvrtc==13\.0"), Compiler(None) as compiler:
            compiler.build(ADD, ["add"])
    finally:
        module.installed_toolchain.cache_clear()


@pytest.mark.parametrize("kills", [1, 2])
def test_a_compilation_that_was_killed_is_begun_once_more(compiler, monkeypatch, kills):
    """The system may have ended the first, for want of memory; what ends two is the source."""
    remaining, call = [kills], Child.call

    def killed(child, *rest, **options):
        if remaining[0]:
            remaining[0] -= 1
            os.kill(child.pid, signal.SIGKILL)  # its monitor: the child itself may live a moment longer
            child._await_exit()
        return call(child, *rest, **options)

    monkeypatch.setattr(Child, "call", killed)
    result = compiler.build(ADD.replace("add", f"add{kills}"), [f"add{kills}"])
    if kills == 1:
        good(result)
    else:
        assert "signal 9" in str(failed(result).diagnostics[0].message)
