"""Codes run: right ones agree with a form of the kernel, wrong ones with none, at sizes that no code can know."""

from __future__ import annotations

import shutil

import pytest

from kernelforge.records import Verdict
from kernelforge.study.codex import StudyJudge

pytestmark = pytest.mark.skipif(
    shutil.which("cc") is None or shutil.which("c++") is None, reason="there is no C and C++ compiler"
)


GEMV = """__global__ void dgemv(int m, int n, double alpha, double *A, double *x, double beta, double *y) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= m) return;
    double sum = 0;
    for (int j = 0; j < n; j++) sum += A[i + j * m] * x[j];
    y[i] = alpha * sum + beta * y[i];
}"""

CG = """#include <vector>
void cg(const std::vector<std::vector<double>>& A, const std::vector<double>& b, std::vector<double>& x, double tol) {
    int n = b.size();
    std::vector<double> r(b), p(b), q(n);
    double rho = 0;
    for (double v : r) rho += v * v;
    while (rho > tol * tol) {
        double pq = 0, next = 0;
#pragma omp parallel for reduction(+ : pq)
        for (int i = 0; i < n; ++i) {
            q[i] = 0;
            for (int j = 0; j < n; ++j) q[i] += A[i][j] * p[j];
            pq += p[i] * q[i];
        }
        double alpha = rho / pq;
        for (int i = 0; i < n; ++i) {
            x[i] += alpha * p[i];
            r[i] -= alpha * q[i];
            next += r[i] * r[i];
        }
        for (int i = 0; i < n; ++i) p[i] = r[i] + next / rho * p[i];
        rho = next;
    }
}"""


@pytest.mark.slow
def test_a_kernel_is_right_by_the_form_that_it_computes(judge: StudyJudge) -> None:
    right = judge.judge("gemv", GEMV, "cuda")
    assert (right.used_model, right.verdict, right.form) == ("cuda", "right", "alpha A x + beta y, A by columns")
    assert right.device == "emulated:h100"
    wrong = judge.judge("gemv", GEMV.replace("beta * y[i]", "beta"), "cuda")
    assert (wrong.verdict, wrong.evaluation) == ("wrong", Verdict.WRONG)
    assert wrong.reason.startswith("as alpha A x + beta y, A by rows: ")


@pytest.mark.slow
def test_a_kernel_without_bounds_is_wrong(judge: StudyJudge) -> None:
    outside = judge.judge("gemv", GEMV.replace("if (i >= m) return;", ""), "cuda")
    assert (outside.verdict, outside.evaluation) == ("wrong", Verdict.CRASH)


@pytest.mark.slow
def test_what_does_not_compile_is_wrong(judge: StudyJudge) -> None:
    broken = judge.judge("gemv", GEMV.replace("double sum", "dobule sum"), "cuda")
    assert (broken.verdict, broken.evaluation) == ("wrong", Verdict.BUILD)


@pytest.mark.slow
def test_cpp_with_vectors_runs_in_the_jail(judge: StudyJudge) -> None:
    right = judge.judge("cg", CG, "cpp")
    assert (right.used_model, right.verdict, right.device) == ("openmp", "right", "cpu")
    assert judge.judge("cg", CG.replace("rho / pq", "pq / rho"), "cpp").verdict == "wrong"


@pytest.mark.slow
def test_n_rows_and_m_columns_are_right_as_well(judge: StudyJudge) -> None:
    code = """void gemv(int n, int m, const double *A, const double *x, double *y) {
#pragma omp parallel for
    for (int i = 0; i < n; i++) {
        y[i] = 0;
        for (int j = 0; j < m; j++) y[i] += A[i * m + j] * x[j];
    }
}"""
    right = judge.judge("gemv", code, "c")
    assert (right.verdict, right.form) == ("right", "A x, A by rows"), right.reason
    assert judge.judge("gemv", code.replace("i * m", "i * n"), "c").verdict == "wrong"


OFFLOAD = """void gemm(int n, const double *A, const double *B, double *C) {
#pragma omp target teams distribute parallel for collapse(2) map(to: A[0:n*n], B[0:n*n]) map(from: C[0:n*n])
    for (int i = 0; i < n; i++)
        for (int j = 0; j < n; j++) {
            double sum = 0;
            for (int k = 0; k < n; k++) sum += A[i * n + k] * B[k * n + j];
            C[i * n + j] = sum;
        }
}"""

OPENACC_CG = """#include <stdlib.h>
void cg(int n, const double *A, const double *b, double *x, int max_iter, double tol) {
    double *r = (double *)malloc(n * sizeof(double)), *p = (double *)malloc(n * sizeof(double));
    double *q = (double *)malloc(n * sizeof(double)), rho = 0;
#pragma acc data copyin(A[0:n*n], b[0:n]) copy(x[0:n]) create(r[0:n], p[0:n], q[0:n])
    {
#pragma acc parallel loop reduction(+ : rho)
        for (int i = 0; i < n; i++) {
            x[i] = 0;
            r[i] = p[i] = b[i];
            rho += r[i] * r[i];
        }
        for (int k = 0; k < max_iter && rho > tol * tol; k++) {
            double pq = 0, next = 0;
#pragma acc parallel loop present(A, p, q) reduction(+ : pq)
            for (int i = 0; i < n; i++) {
                double sum = 0;
#pragma acc loop reduction(+ : sum)
                for (int j = 0; j < n; j++) sum += A[i * n + j] * p[j];
                q[i] = sum;
                pq += p[i] * sum;
            }
            double alpha = rho / pq;
#pragma acc parallel loop reduction(+ : next)
            for (int i = 0; i < n; i++) {
                x[i] += alpha * p[i];
                r[i] -= alpha * q[i];
                next += r[i] * r[i];
            }
#pragma acc kernels loop
            for (int i = 0; i < n; i++) p[i] = r[i] + next / rho * p[i];
            rho = next;
        }
    }
    free(r);
    free(p);
    free(q);
}"""


@pytest.mark.slow
def test_regions_with_right_clauses_are_right(judge: StudyJudge) -> None:
    right = judge.judge("gemm", OFFLOAD, "c")
    assert (right.used_model, right.verdict, right.form) == ("openmp-offload", "right", "A B, by rows"), right.reason
    right = judge.judge("cg", OPENACC_CG, "c")
    assert (right.used_model, right.verdict) == ("openacc", "right"), right.reason


@pytest.mark.slow
@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("kernel", "code", "old", "new", "verdict", "words"),
    [
        ("gemm", OFFLOAD, "map(from: C[0:n*n])", "", Verdict.CRASH, "uses memory of the host"),
        ("gemm", OFFLOAD, "map(from", "map(to", Verdict.WRONG, ""),
        ("gemm", OFFLOAD, "C[0:n*n]", "C[0:n]", Verdict.CRASH, "outside of what its clauses map"),
        ("gemm", OFFLOAD, "C[i * n + j] = sum", "C[i * n + j] += sum", Verdict.WRONG, ""),
        ("cg", OPENACC_CG, "copy(x[0:n])", "copyin(x[0:n])", Verdict.WRONG, ""),
        ("cg", OPENACC_CG, ", q[0:n])", ")", Verdict.CRASH, "requires data to be present"),
    ],
)  # fmt: skip
def test_wrong_clauses_are_wrong(
    judge: StudyJudge, kernel: str, code: str, old: str, new: str, verdict: Verdict, words: str
) -> None:
    assert old in code
    wrong = judge.judge(kernel, code.replace(old, new), "c")
    assert (wrong.verdict, wrong.evaluation) == ("wrong", verdict), wrong.reason
    assert words in wrong.reason


@pytest.mark.slow
def test_vectors_are_the_hosts(judge: StudyJudge) -> None:
    code = """#include <vector>
void axpy(double a, const std::vector<double> &x, std::vector<double> &y) {
    int n = x.size();
    const double *px = x.data();
    double *py = y.data();
#pragma omp target teams distribute parallel for map(to: px[0:n]) map(tofrom: py[0:n])
    for (int i = 0; i < n; i++) py[i] += a * px[i];
}"""
    assert judge.judge("axpy", code, "cpp").verdict == "right"
    wrong = judge.judge("axpy", code.replace("a * px[i]", "a * x[i]"), "cpp")
    assert (wrong.verdict, wrong.evaluation) == ("wrong", Verdict.CRASH)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "verdict", "words"),
    [
        ("sycl::queue q; q.submit(f);", "not judged", "SyCL: its headers"),
        ("int main() {\n#pragma omp parallel\n{ } }", "not judged", "its only function is main"),
        ("just words", "no code", "no code of a programming model"),
    ],
)
def test_what_cannot_run_says_why(judge: StudyJudge, code: str, verdict: str, words: str) -> None:
    judgement = judge.judge("axpy", code, "")
    assert judgement.verdict == verdict
    assert words in judgement.reason
