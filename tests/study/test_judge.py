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


def test_a_kernel_is_right_by_the_form_that_it_computes(judge: StudyJudge) -> None:
    right = judge.judge("gemv", GEMV, "cuda")
    assert (right.used_model, right.verdict, right.form) == ("cuda", "right", "alpha A x + beta y, A by columns")
    assert right.device == "emulated:h100"
    wrong = judge.judge("gemv", GEMV.replace("beta * y[i]", "beta"), "cuda")
    assert (wrong.verdict, wrong.evaluation) == ("wrong", Verdict.WRONG)
    assert wrong.reason.startswith("as alpha A x + beta y, A by rows: ")


def test_a_kernel_without_bounds_is_wrong(judge: StudyJudge) -> None:
    outside = judge.judge("gemv", GEMV.replace("if (i >= m) return;", ""), "cuda")
    assert (outside.verdict, outside.evaluation) == ("wrong", Verdict.CRASH)


def test_what_does_not_compile_is_wrong(judge: StudyJudge) -> None:
    broken = judge.judge("gemv", GEMV.replace("double sum", "dobule sum"), "cuda")
    assert (broken.verdict, broken.evaluation) == ("wrong", Verdict.BUILD)


def test_cpp_with_vectors_runs_in_the_jail(judge: StudyJudge) -> None:
    right = judge.judge("cg", CG, "cpp")
    assert (right.used_model, right.verdict, right.device) == ("openmp", "right", "cpu")
    assert judge.judge("cg", CG.replace("rho / pq", "pq / rho"), "cpp").verdict == "wrong"


def test_c_with_directives_of_offload_runs_on_the_host_as_another_model(judge: StudyJudge) -> None:
    loop = "#pragma omp target\nfor (int i = 0; i < n; i++) y[i] += a * x[i];"
    code = f"void axpy(int n, float a, float *x, float *y) {{\n{loop} }}"
    assert judge.judge("axpy", code, "c")[:2] == ("openmp-offload", "right")


@pytest.mark.parametrize(
    ("code", "verdict", "words"),
    [
        (
            "#include <thrust/sort.h>\nvoid f() { thrust::sort(a, b); }",
            "not judged",
            "Thrust: its code runs on the host",
        ),
        ("int main() {\n#pragma omp parallel\n{ } }", "not judged", "its only function is main"),
        ("just words", "no code", "no code of a programming model"),
    ],
)
def test_what_cannot_run_says_why(judge: StudyJudge, code: str, verdict: str, words: str) -> None:
    judgement = judge.judge("axpy", code, "")
    assert judgement.verdict == verdict
    assert words in judgement.reason
