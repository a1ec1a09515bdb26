"""Thrust's suggestions run with a device whose memory is apart from the host's."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from kernelforge.records import Verdict
from kernelforge.study.codex import StudyJudge
from kernelforge.study.programming_models import missing_tool, offload_of
from kernelforge.study.signatures import Underivable
from kernelforge.study.thrust_functions import marked_function_objects

needs_compiler = pytest.mark.skipif(
    shutil.which("c++") is None or missing_tool("thrust") != "", reason="there is no C++ compiler, or no Thrust"
)

AXPY = """#include <thrust/copy.h>
#include <thrust/device_vector.h>
#include <thrust/execution_policy.h>
#include <thrust/transform.h>

struct axpy_functor {
    const double a;
    axpy_functor(double a) : a(a) {}
    __host__ __device__ double operator()(const double &x, const double &y) const { return a * x + y; }
};

void axpy(int n, double a, const double *x, double *y) {
    thrust::device_vector<double> d_x(x, x + n);
    thrust::device_vector<double> d_y(y, y + n);
    thrust::transform(d_x.begin(), d_x.end(), d_y.begin(), d_y.begin(), axpy_functor(a));
    thrust::copy(d_y.begin(), d_y.end(), y);
}
"""

LAMBDA = """#include <cuda_runtime.h>
#include <thrust/device_vector.h>
#include <thrust/transform.h>

void axpy(float a, const thrust::device_vector<float> &x, thrust::device_vector<float> &y) {
    thrust::transform(x.begin(), x.end(), y.begin(), y.begin(), [=] __device__(float u, float v) { return a * u + v; });
    cudaDeviceSynchronize();
}
"""

WRAPPED = """#include <thrust/device_ptr.h>
#include <thrust/transform.h>
#include <thrust/functional.h>
#include <thrust/iterator/constant_iterator.h>
#include <thrust/device_vector.h>

void axpy(int n, float a, float *x, float *y) {
    thrust::device_ptr<float> px(x), py = thrust::device_pointer_cast(y);
    thrust::device_vector<float> t(n);
    thrust::transform(px, px + n, thrust::make_constant_iterator(a), t.begin(), thrust::multiplies<float>());
    thrust::transform(t.begin(), t.end(), py, py, thrust::plus<float>());
}
"""

GEMV = """#include <thrust/device_vector.h>
#include <thrust/inner_product.h>

void gemv(int m, int n, const double *A, const double *x, double *y) {
    thrust::device_vector<double> dA(A, A + m * n), dx(x, x + n), dy(m);
    for (int i = 0; i < m; i++)
        dy[i] = thrust::inner_product(dA.begin() + i * n, dA.begin() + (i + 1) * n, dx.begin(), 0.0);
    thrust::copy(dy.begin(), dy.end(), y);
}
"""

GEMM = """#include <thrust/device_vector.h>
#include <thrust/for_each.h>
#include <thrust/iterator/counting_iterator.h>

struct gemm_functor {
    int n;
    const float *a, *b;
    float *c;
    __device__ void operator()(int at) const {
        float sum = 0;
        for (int k = 0; k < n; k++) sum += a[at / n * n + k] * b[k * n + at % n];
        c[at] = sum;
    }
};

void gemm(int n, const float *A, const float *B, float *C) {
    thrust::device_vector<float> a(A, A + n * n), b(B, B + n * n), c(n * n);
    gemm_functor f{n, thrust::raw_pointer_cast(a.data()), thrust::raw_pointer_cast(b.data()),
                   thrust::raw_pointer_cast(c.data())};
    thrust::for_each(thrust::counting_iterator<int>(0), thrust::counting_iterator<int>(n * n), f);
    thrust::copy(c.begin(), c.end(), C);
}
"""

SPMV = """#include <thrust/device_vector.h>
#include <thrust/execution_policy.h>
#include <thrust/iterator/counting_iterator.h>
#include <thrust/transform.h>

struct row_product {
    const int *row_ptr, *col_idx;
    const double *values, *x;
    __host__ __device__ double operator()(int row) const {
        double sum = 0;
        for (int k = row_ptr[row]; k < row_ptr[row + 1]; k++) sum += values[k] * x[col_idx[k]];
        return sum;
    }
};

void spmv(int num_rows, const thrust::device_vector<int> &row_ptr, const thrust::device_vector<int> &col_idx,
          const thrust::device_vector<double> &values, const thrust::device_vector<double> &x,
          thrust::device_vector<double> &y) {
    row_product f{thrust::raw_pointer_cast(row_ptr.data()), thrust::raw_pointer_cast(col_idx.data()),
                  thrust::raw_pointer_cast(values.data()), thrust::raw_pointer_cast(x.data())};
    auto first = thrust::make_counting_iterator(0);
    thrust::transform(thrust::device, first, first + num_rows, y.begin(), f);
}
"""

JACOBI = """#include <thrust/device_vector.h>
#include <thrust/for_each.h>
#include <thrust/iterator/counting_iterator.h>

void jacobi3d(int nx, int ny, int nz, const double *u, double *v) {
    thrust::device_vector<double> in(u, u + nx * ny * nz), out(in);
    const double *a = thrust::raw_pointer_cast(in.data());
    double *b = thrust::raw_pointer_cast(out.data());
    auto first = thrust::make_counting_iterator(0);
    thrust::for_each(first, first + nx * ny * nz, [=] __device__(int at) {
        int k = at % nz, j = at / nz % ny, i = at / nz / ny;
        if (i < 1 || j < 1 || k < 1 || i > nx - 2 || j > ny - 2 || k > nz - 2) return;
        b[at] = (a[at - 1] + a[at + 1] + a[at - nz] + a[at + nz] + a[at - nz * ny] + a[at + nz * ny]) / 6;
    });
    thrust::copy(out.begin(), out.end(), v);
}
"""

CG = """#include <thrust/device_vector.h>
#include <thrust/inner_product.h>
#include <thrust/transform.h>
#include <cmath>

using vec = thrust::device_vector<double>;

struct axpby {
    double a;
    __host__ __device__ double operator()(double x, double y) const { return y + a * x; }
};

static double dot(const vec &a, const vec &b) { return thrust::inner_product(a.begin(), a.end(), b.begin(), 0.0); }

void cg(int n, const double *A, const double *b, double *x, int max_iter, double tol) {
    thrust::device_vector<double> a(A, A + n * n), r(b, b + n), p(r), q(n), d_x(n, 0.0);
    double rho = dot(r, r);
    for (int k = 0; k < max_iter && std::sqrt(rho) > tol; k++) {
        for (int i = 0; i < n; i++)
            q[i] = thrust::inner_product(p.begin(), p.end(), a.begin() + i * n, 0.0);
        double alpha = rho / dot(p, q);
        thrust::transform(p.begin(), p.end(), d_x.begin(), d_x.begin(), axpby{alpha});
        thrust::transform(q.begin(), q.end(), r.begin(), r.begin(), axpby{-alpha});
        double next = dot(r, r);
        thrust::transform(p.begin(), p.end(), r.begin(), p.begin(), axpby{next / rho});
        rho = next;
    }
    thrust::copy(d_x.begin(), d_x.end(), x);
}
"""


@pytest.mark.slow
@pytest.mark.one_in(4)
@needs_compiler
@pytest.mark.parametrize(
    ("kernel", "code"),
    [
        ("axpy", AXPY),
        ("axpy", LAMBDA),
        ("axpy", WRAPPED),
        ("gemv", GEMV),
        ("gemm", GEMM),
        ("spmv", SPMV),
        ("jacobi3d", JACOBI),
        ("cg", CG),
    ],
)
def test_right_codes_are_right(judge: StudyJudge, kernel: str, code: str) -> None:
    right = judge.judge(kernel, code, "cpp")
    assert (right.used_model, right.verdict, right.device) == ("thrust", "right", "cpu"), right.reason


@pytest.mark.slow
@pytest.mark.one_in(4)
@needs_compiler
@pytest.mark.parametrize(
    ("code", "old", "new", "verdict", "words"),
    [
        (AXPY, "    thrust::copy(d_y.begin(), d_y.end(), y);\n", "", Verdict.WRONG, ""),
        (AXPY, "a * x + y", "a * x - y", Verdict.WRONG, ""),
        (AXPY, "__host__ __device__ ", "", Verdict.BUILD, "lacks __device__"),
        (LAMBDA, "[=] __device__", "[=] ", Verdict.BUILD, "lacks __device__"),
        (LAMBDA, "[=]", "[&]", Verdict.CRASH, "uses memory of the host"),
        (AXPY, "d_x.begin(), d_x.end()", "thrust::device, &x[0], &x[0] + n", Verdict.CRASH, "uses memory of the host"),
        (AXPY, "d_x.begin(), d_x.end()", "x, x + n", Verdict.BUILD, ""),
        (AXPY, "d_y(y, y + n)", "d_y(y, y + n - 1)", Verdict.CRASH, "outside of the device's memory"),
        (AXPY, "thrust::copy(", "y[0] = *thrust::raw_pointer_cast(d_y.data()); thrust::copy(", Verdict.CRASH,
         "the host uses an address of the device's memory"),
    ],
)  # fmt: skip
def test_wrong_codes_are_wrong(judge: StudyJudge, code: str, old: str, new: str, verdict: Verdict, words: str) -> None:
    assert old in code
    wrong = judge.judge("axpy", code.replace(old, new), "cpp")
    assert (wrong.verdict, wrong.evaluation) == ("wrong", verdict), wrong.reason
    assert words in wrong.reason


@needs_compiler
def test_the_jail_has_headers_and_no_door(judge: StudyJudge, tmp_path: Path) -> None:
    database = tmp_path / "kernelforge.db"
    database.write_text("canary")
    database.chmod(0o666)
    head = "#include <fcntl.h>\n#include <unistd.h>\n#include <signal.h>\n"
    doors = f'''if (open("{database}", O_RDONLY) >= 0 || open("/proc/{os.getpid()}/environ", O_RDONLY) >= 0
        || kill({os.getpid()}, 0) == 0) y[0] += 1;'''
    closed = AXPY.replace(
        "    thrust::copy(", f"    thrust::copy(d_y.begin(), d_y.end(), y); {doors}\n    if (!n) thrust::copy("
    )
    assert judge.judge("axpy", head + closed, "cpp").verdict == "right"
    opened = closed.replace(str(database), "/usr/bin")
    assert judge.judge("axpy", head + opened, "cpp").evaluation is Verdict.WRONG


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("kernel<<<1, n>>>(thrust::raw_pointer_cast(x.data()));", "<<<"),
        ("#include <thrust/device_ptr.h>\nvoid f() { cublasDaxpy(h, n, &a, x, 1, y, 1); }", "cublasDaxpy"),
        ("thrust::transform(thrust::cuda::par.on(s), x, x + n, y, f);", "thrust::cuda"),
        ("thrust::universal_vector<double> x(n);", "thrust::universal_vector"),
        ("thrust::device_ptr<double> x; cudaMallocManaged(&p, n);", "cudaMallocManaged"),
    ],
)
def test_what_the_device_system_lacks_is_not_judged(text: str, name: str) -> None:
    with pytest.raises(Underivable, match=f"it uses `{name}`"):
        offload_of(text, "thrust")


def test_function_objects_of_the_host_are_marked() -> None:
    code = """#define BOTH __host__ __device__
#include <cuda_runtime.h>
struct f { double operator()(double x) const { return x; } };
class g { int n; public: BOTH double operator()(double x) const { return x; } };
struct plain { int n; };
auto h = [] __device__(double x) { return x; };
auto i = [](double x) { return x; };
int j = [] { return 1; }(), k[2], l = k[0];
"""
    marked = marked_function_objects(code)
    assert "struct f {public: using kernelforge_of_host = void;  double" in marked
    assert "auto i = kernelforge::of_host * [](double x)" in marked
    assert marked.count("kernelforge") == 2
    assert "cuda_runtime" not in marked


def test_a_code_that_ends_in_a_lambda_is_not_judged() -> None:
    with pytest.raises(Underivable, match="cut short"):
        marked_function_objects("auto f = [=](double x) { return x;")
