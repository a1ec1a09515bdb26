"""The programming model of a code is read from what it uses, and models that nothing here can judge are refused."""

from __future__ import annotations

import pytest

from kernelforge.errors import UsageError
from kernelforge.study.codex import study_prompts
from kernelforge.study.programming_models import ASKABLE, MODELS, is_of_model, offload_of, plain_code, programming_model
from kernelforge.study.signatures import Underivable

LOOP = "void f(int n, double *y) {\n{}    for (int i = 0; i < n; i++) y[i] = 0;\n}}\n"


def loop(directive: str = "") -> str:
    return LOOP.replace("{}", directive).replace("}}", "}")


@pytest.mark.parametrize(
    ("code", "model"),
    [
        ("__global__ void k(float *x) { x[0] = 1; }", "cuda"),
        ("#include <thrust/version.h>\n__global__ void k(float *x) { thrust::swap(x[0], x[1]); }", "cuda"),
        ("int main() { cudaMalloc(&x, 4); k<<<1, 1>>>(x); }", "cuda"),
        ("#include <hip/hip_runtime.h>\n__global__ void k(float *x) { x[0] = 1; }", "hip"),
        ("#include <thrust/transform.h>\nint main() {}", "thrust"),
        (loop("#pragma omp parallel for\n"), "openmp"),
        (loop("  #  pragma omp target teams distribute\n"), "openmp-offload"),
        (loop("#pragma acc parallel loop\n"), "openacc"),
        (loop("// #pragma omp parallel for\n"), "serial"),
        ('#include <omp.h>\nvoid f() { printf("#pragma acc"); }', "serial"),
        ("Kokkos::parallel_for(n, KOKKOS_LAMBDA(int i) { y(i) = 0; });", "kokkos"),
        ("using namespace Kokkos;\nvoid f(View<double *> y) { parallel_for(1, g(y)); }", "kokkos"),
        ("sycl::queue q; q.submit([&](sycl::handler &h) {});", "sycl"),
        ("__kernel void f(__global float *x) { x[0] = 1; }", "opencl"),
        ("subroutine f(n, x)\nend subroutine", "fortran"),
        ("subroutine f(n, x)\n!$omp parallel do\nend subroutine", "fortran-openmp"),
        ("subroutine f(n, x)\n  !$omp target teams distribute\nend subroutine", "fortran-openmp-offload"),
        ("subroutine f(n, x)\n!$acc kernels\nend subroutine", "fortran-openacc"),
        ("using CUDA\nfunction f(x)\nend", "julia"),
        ("import numpy as np\ndef f(x):\n    return x", "numpy"),
        ("import numpy as np\nfrom numba import njit\n@njit\ndef f(x):\n    return x", "numba"),
        ("import cupy as cp\ndef f(x):\n    return cp.sum(x)", "cupy"),
        ("from pycuda.compiler import SourceModule\nmod = SourceModule('__global__ void k() {}')", "pycuda"),
        ("@triton.jit\ndef f(x):\n    pass", "triton"),
        ("def f(a, x):\n    return a * x", "python"),
        ("This is a text about AXPY (and GEMV).", None),
    ],
)
def test_a_code_has_the_model_that_it_uses(code: str, model: str | None) -> None:
    assert programming_model(code) == model


@pytest.mark.parametrize(
    ("code", "used", "requested", "same"),
    [
        ("__global__ void k(float *x) {} // cudaMalloc", "cuda", "hip", True),
        ("__global__ void k(float *x) {} void f() { cudaDeviceSynchronize(); }", "cuda", "hip", False),
        ("#include <cuda_runtime.h>\n__global__ void k(float *x) {}", "cuda", "hip", False),
        ("#include <hip/hip_runtime.h>\n__global__ void k(float *x) {}", "hip", "cuda", False),
        ("__global__ void k(float *x) {}", "cuda", "openmp", False),
    ],
)
def test_a_kernel_that_names_neither_api_is_hip_where_hip_is_requested(
    code: str, used: str, requested: str, same: bool
) -> None:
    assert programming_model(code) == used
    assert is_of_model(code, used, requested) is same


@pytest.mark.slow
@pytest.mark.parametrize(
    "part",
    ["\n", "def f(", "def f() -> x\n", "function f(\n", "a(", "a() ", "/* ", "#pragma omp a\n", "from a import "],
)
def test_no_text_takes_long(part: str) -> None:
    assert programming_model(part * (200_000 // len(part))) in (None, "openmp")


def test_indentation_is_spacing_but_in_python() -> None:
    code = "def f(x):\n    for i in x:\n        g(i)\n    {}return i  # the last\n"
    inner, outer = plain_code(code.format("    "), "numpy"), plain_code(code.format(""), "numpy")
    assert inner != outer
    assert outer == plain_code(code.format("").replace("    ", "\t").replace("g(i)", "g( i )\n\n"), "numpy")
    assert plain_code("def f(:\n  x", "numpy") != plain_code("def f(:\nx", "numpy")
    assert plain_code(code.format("    "), "serial") == plain_code(code.format(""), "serial")


def test_only_models_that_are_judged_as_what_they_are_can_be_asked_for() -> None:
    assert ASKABLE == (
        "cuda", "openmp", "openmp-offload", "openacc", "hip", "thrust", "kokkos", "fortran-openmp",
        "fortran-openmp-offload", "fortran-openacc", "numpy", "numba", "cupy", "pycuda", "triton",
    )  # fmt: skip
    for name, model in MODELS.items():
        if name in ASKABLE:
            assert [item.text for item in study_prompts(["jacobi3d"], [name], ["", "function"])] == [
                f"3D Jacobi stencil {model.prompt}",
                f"3D Jacobi stencil {model.prompt} function",
            ]
        else:
            with pytest.raises(UsageError, match=r"cannot be asked for: .*; choose of cuda, openmp"):
                study_prompts(["axpy"], [name], [""])


@pytest.mark.parametrize(
    ("kernels", "models", "hints", "words"),
    [
        (["fft"], ["cuda"], [""], "no kernel 'fft'; choose of axpy, gemv, gemm, spmv, jacobi3d, cg"),
        (["axpy"], ["chapel"], [""], "no programming model 'chapel'; choose of cuda, openmp"),
        (["axpy"], ["cuda"], ["a function"], "a hint is one keyword"),
    ],
)
def test_what_the_study_has_not_is_refused(kernels: list[str], models: list[str], hints: list[str], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        study_prompts(kernels, models, hints)


@pytest.mark.parametrize(
    ("model", "code", "words"),
    [
        ("openmp-offload", loop("#pragma omp requires unified_shared_memory\n"), "unified shared memory"),
        ("openmp-offload", "void f() { omp_target_associate_ptr(a, b, 1, 0, 0); }", "`omp_target_associate_ptr`"),
        ("fortran-openacc", "subroutine f(x)\ncall acc_copyin(x)\nend subroutine", "`acc_copyin`"),
    ],
)
def test_a_function_that_regions_memory_lacks_is_not_judged(model: str, code: str, words: str) -> None:
    with pytest.raises(Underivable, match=words):
        offload_of(code, model)
    assert offload_of(code, "openmp") is None


def test_names_of_fortran_have_no_case() -> None:
    with pytest.raises(Underivable, match="`acc_copyin`"):
        offload_of("SUBROUTINE F(x)\nCALL ACC_COPYIN(x)\nEND SUBROUTINE", "fortran-openacc")


def test_a_function_that_the_code_defines_is_no_missing_one() -> None:
    assert offload_of("void acc_axpy(int n, double *x) { x[0] = n; }\nvoid f() { acc_axpy(1, x); }", "openacc")
    assert offload_of("Subroutine ACC_Axpy(x)\nend\ncall acc_axpy(x)", "fortran-openacc") == "openacc"


def test_functions_of_device_memory_are_there() -> None:
    assert offload_of("double *d = acc_malloc(n); acc_copyin(x, n); // acc_attach(y)", "openacc") == "openacc"
    assert offload_of("double *d = omp_target_alloc(n, 0); omp_target_free (d, 0);", "openmp-offload") == "openmp"
