"""Host programs of CUDA: functions that allocate, copy and launch run in the jail, their kernels on the device."""

from __future__ import annotations

import shutil

import pytest

from kernelforge.records import Verdict
from kernelforge.study.codex import StudyJudge
from kernelforge.study.host_programs import read_host_program
from kernelforge.study.kernels import KERNELS
from kernelforge.study.signatures import Underivable, device_code

pytestmark = pytest.mark.skipif(shutil.which("c++") is None, reason="there is no C++ compiler")

AXPY = """#include <cuda_runtime.h>
#include <stdio.h>
#define CHECK(call) do { cudaError_t e = (call); if (e) { printf("%s", cudaGetErrorString(e)); exit(1); } } while (0)
__global__ void axpy_kernel(int n, float a, const float *x, float *y) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = a * x[i] + y[i];
}
void axpy(int n, float a, const float *x, float *y) {
    float *d_x, *d_y;
    CHECK(cudaMalloc((void **)&d_x, n * sizeof(float)));
    CHECK(cudaMalloc(&d_y, n * sizeof(float)));
    cudaMemcpy(d_x, x, n * sizeof(float), cudaMemcpyHostToDevice);
    cudaMemcpy(d_y, y, n * sizeof(float), cudaMemcpyHostToDevice);
    int block = 128;
    axpy_kernel<<<(n + block - 1) / block, block>>>(n, a, d_x, d_y);
    CHECK(cudaGetLastError());
    cudaMemcpy(y, d_y, n * sizeof(float), cudaMemcpyDeviceToHost);
    cudaFree(d_x);
    cudaFree(d_y);
}
int main() { cudaDeviceProp p; return 0; }
"""

CG = """#include <math.h>
template <typename T> __global__ void matvec(int n, const T *A, const T *x, T *y) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    T sum = 0;
    for (int j = 0; j < n; j++) sum += A[i * n + j] * x[j];
    y[i] = sum;
}
__global__ void dot_kernel(int n, const double *a, const double *b, double *out) {
    __shared__ double part[64];
    double sum = 0;
    for (int i = threadIdx.x; i < n; i += blockDim.x) sum += a[i] * b[i];
    part[threadIdx.x] = sum;
    __syncthreads();
    for (int half = 32; half > 0; half /= 2) {
        if (threadIdx.x < half) part[threadIdx.x] += part[threadIdx.x + half];
        __syncthreads();
    }
    if (threadIdx.x == 0) *out = part[0];
}
__global__ void xpay(int n, double a, const double *x, double b, double *y) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = a * x[i] + b * y[i];
}
static double dot(int n, const double *a, const double *b, double *d_sum) {
    double sum;
    dot_kernel<<<1, 64>>>(n, a, b, d_sum);
    cudaMemcpy(&sum, d_sum, sizeof(sum), cudaMemcpyDeviceToHost);
    return sum;
}
void conjugate_gradient(int n, const double *d_A, const double *d_b, double *d_x, int maxIter, double tol) {
    double *work;
    cudaMalloc(&work, (3 * n + 1) * sizeof(double));
    double *r = work, *p = work + n, *q = work + 2 * n, *sum = work + 3 * n;
    dim3 block(64), grid((n + 63) / 64);
    matvec<double><<<grid, block>>>(n, d_A, d_x, r);
    xpay<<<grid, block>>>(n, 1.0, d_b, -1.0, r);
    cudaMemcpy(p, r, n * sizeof(double), cudaMemcpyDeviceToDevice);
    double rho = dot(n, r, r, sum);
    for (int k = 0; k < maxIter && sqrt(rho) > tol; k++) {
        matvec<double><<<grid, block>>>(n, d_A, p, q);
        double alpha = rho / dot(n, p, q, sum);
        xpay<<<grid, block>>>(n, alpha, p, 1.0, d_x);
        xpay<<<grid, block>>>(n, -alpha, q, 1.0, r);
        double next = dot(n, r, r, sum);
        xpay<<<grid, block>>>(n, 1.0, r, next / rho, p);
        rho = next;
    }
    cudaFree(work);
}
"""


@pytest.mark.slow
def test_a_function_that_copies_and_launches_is_run(judge: StudyJudge) -> None:
    right = judge.judge("axpy", AXPY, "cuda")
    assert (right.used_model, right.verdict, right.device) == ("cuda", "right", "emulated:h100")


@pytest.mark.slow
def test_hip_is_run_with_its_own_names(judge: StudyJudge) -> None:
    code = AXPY.replace("cuda_runtime.h", "hip/hip_runtime.h").replace("cuda", "hip")
    launch = "axpy_kernel<<<(n + block - 1) / block, block>>>(n, a, d_x, d_y);"
    call = "hipLaunchKernelGGL(axpy_kernel, dim3((n + block - 1) / block), dim3(block), 0, 0, n, a, d_x, d_y);"
    right = judge.judge("axpy", code.replace(launch, call), "cpp")
    assert (right.used_model, right.verdict) == ("hip", "right"), right.reason
    wrong = judge.judge("axpy", code.replace(launch, call.replace("d_x, d_y", "d_y, d_x")), "cpp")
    assert (wrong.verdict, wrong.evaluation) == ("wrong", Verdict.WRONG)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("old", "new", "verdict"),
    [
        ("a * x[i] + y[i]", "a * x[i]", Verdict.WRONG),
        ("a * x[i] + y[i]", "a * x[i] + z", Verdict.BUILD),
        ("int block = 128", "int blok = 128", Verdict.BUILD),
        ("y, d_y, n * sizeof(float), cudaMemcpyDeviceToHost", "y, d_y, n * 4, cudaMemcpyHostToDevice", Verdict.WRONG),
        ("int block = 128", "int block = 2048", Verdict.CRASH),
        ("(n, a, d_x, d_y);\n    CHECK", "(n, a, (float *)malloc(4 * n), d_y);\n    CHECK", Verdict.CRASH),
        ("CHECK(cudaGetLastError());", "d_y[0] = 1;", Verdict.CRASH),
        ("if (i < n)", "if (i <= n)", Verdict.CRASH),
        (
            "CHECK(cudaGetLastError());",
            'unsigned s[6] = {1, 1, 1, 1, 1, 1}; host_runtime.launch("f", s, 0, 0, 0, 0);',
            Verdict.POLICY,
        ),
    ],
)
def test_a_mistake_of_the_host_is_wrong(judge: StudyJudge, old: str, new: str, verdict: Verdict) -> None:
    wrong = judge.judge("axpy", AXPY.replace(old, new), "cuda")
    assert (wrong.verdict, wrong.evaluation) == ("wrong", verdict), wrong.reason


@pytest.mark.slow
def test_kernels_in_a_loop_of_the_host_solve_a_system(judge: StudyJudge) -> None:
    right = judge.judge("cg", CG, "cuda")
    assert (right.verdict, right.form) == ("right", "A x = b by conjugate gradients, A dense"), right.reason
    wrong = judge.judge("cg", CG.replace("next / rho", "rho / next"), "cuda")
    assert (wrong.verdict, wrong.evaluation) == ("wrong", Verdict.WRONG)


@pytest.mark.slow
def test_managed_memory_is_read_by_both(judge: StudyJudge) -> None:
    code = CG.replace("double *work;\n    cudaMalloc(", "double *work;\n    cudaMallocManaged(").replace(
        "    double sum;\n", ""
    )
    code = code.replace(
        "    cudaMemcpy(&sum, d_sum, sizeof(sum), cudaMemcpyDeviceToHost);\n    return sum;", "    return *d_sum;"
    )
    assert judge.judge("cg", code, "cuda").verdict == "right"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("__global__ void axpy_kernel(int n, float a, const float *x, float *y)",
         "#include <device_functions.h>\n#include <cublas_v2.h>\n#include <cooperative_groups.h>\n"
         "namespace cg = cooperative_groups;\n"
         "template <typename T>\n__global__ void axpy_kernel(int n, T a, const T *x, T *y)"),
        ("    int i = blockIdx.x * blockDim.x + threadIdx.x;\n    if (i < n) y[i] = a * x[i] + y[i];\n}",
         "    int i = blockIdx.x * blockDim.x + threadIdx.x;\n    if (i < n) y[i] = a * x[i] + y[i];\n}\n"
         "__global__ void pairs(float2 *x, const int4 *y, double2 *z) {}\n"
         "static float2 pair(float a) { return make_float2(a, a); }"),
        ("int block = 128;", "const int warpSize = 32, block = 4 * warpSize; dim3 blockDim(block), gridDim(n);"),
    ],
)  # fmt: skip
def test_templates_vector_types_and_headers_of_cuda_are_run(judge: StudyJudge, old: str, new: str) -> None:
    right = judge.judge("axpy", AXPY.replace(old, new), "cuda")
    assert (right.verdict, right.device) == ("right", "emulated:h100"), right.reason


FUSED = "__host__ __device__ double fused(double a, double b) { return __fma_rn(a, b, b); }"
VALUES = "template <int N> __global__ void fill(double *x) { x[0] = N; }"


@pytest.mark.slow
def test_long_chains_of_functions_take_no_time() -> None:
    head = "__global__ void k(int n, float a, const float *x, float *y) {}\n"
    takes = "(int n, float a, float *x, float *y)"
    chain = "".join(f"void f{at}{takes} {{ f{at - 1}(n, a, x, y); }}\n" for at in range(1, 2000))
    code = f"{head}void f0{takes} {{ k<<<1, 1>>>(n, a, x, y); }}\n{chain}"
    program = read_host_program(code, device_code(code)[1], KERNELS["axpy"].names)
    assert program is not None
    assert (program.function.name, program.kernels) == ("f1999", ("k",))


def test_a_template_that_is_launched_with_two_types_is_not_derived() -> None:
    code = "template <typename T> __global__ void k(int n, T a, const T *x, T *y) {}\n" + "".join(
        f"void {real[0]}axpy(int n, {real} a, {real} *x, {real} *y) {{ k<<<1, 1>>>(n, a, x, y); }}\n"
        for real in ("float", "double")
    )
    with pytest.raises(Underivable, match="a template, whose arguments cannot be derived"):
        read_host_program(code, device_code(code)[1], KERNELS["axpy"].names)


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (CG.replace("#include <math.h>", FUSED), "its host part uses __fma_rn"),
        (
            CG.replace("#include <math.h>", VALUES).replace("cudaFree(work);", "fill<<<1, 1>>>(work);"),
            "a launch of a template, whose arguments cannot be derived",
        ),
        (
            CG.replace("1.0, d_b, -1.0, r);", f"1.0, {'xpay<<<1, 1>>>(' * 1200}{')' * 1200}, -1.0, r);"),
            "a launch within the arguments of a launch",
        ),
        (CG.replace("cudaFree(work);", "cublasDdot(work);"), "its host part uses cublasDdot"),
        (CG.replace("#include <math.h>", "__device__ double total;"), "a variable of the device"),
        (CG.replace("#include <math.h>", "#include <helper_cuda.h>"), "a header of CUDA's samples"),
        (CG.replace("double rho = dot(n, r, r, sum);", "double rho = dot(n, r, r, sum;"), "never closed"),
        (
            CG.replace("void conjugate_gradient(", "int main(").replace("int n, const", "const"),
            "main launches its kernels",
        ),
    ],
)
def test_a_host_that_nothing_can_run_is_not_judged(judge: StudyJudge, code: str, words: str) -> None:
    judgement = judge.judge("cg", code, "cuda")
    assert judgement.verdict == "not judged"
    assert words in judgement.reason
