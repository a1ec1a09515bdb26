"""Kokkos's suggestions run with a device whose memory is apart from the host's."""

from __future__ import annotations

import os
import re
import shutil
from contextlib import suppress
from pathlib import Path

import pytest

from kernelforge.errors import UsageError
from kernelforge.records import Verdict
from kernelforge.study.codex import StudyJudge, require_tools
from kernelforge.study.entries import c_entry
from kernelforge.study.kernels import KERNELS
from kernelforge.study.kokkos_functions import kokkos_function, kokkos_source
from kernelforge.study.programming_models import missing_tool
from kernelforge.study.signatures import Underivable
from kernelforge.translation import kokkos

needs_kokkos = pytest.mark.skipif(
    shutil.which("c++") is None or missing_tool("kokkos") != "", reason="there is no C++ compiler, or no Kokkos"
)

AXPY = """#include <Kokkos_Core.hpp>

void axpy(const double alpha, Kokkos::View<double *> x, Kokkos::View<double *> y) {
    const int n = x.extent(0);
    Kokkos::parallel_for("axpy", n, KOKKOS_LAMBDA(const int i) { y(i) = alpha * x(i) + y(i); });
    Kokkos::fence();
}

int main(int argc, char *argv[]) {
    Kokkos::initialize(argc, argv);
    {
        Kokkos::View<double *> x("x", 100), y("y", 100);
        Kokkos::deep_copy(x, 1.0);
        axpy(2.0, x, y);
    }
    Kokkos::finalize();
}
"""

UNWRITTEN = """    Kokkos::View<double *> z(Kokkos::view_alloc(Kokkos::WithoutInitializing, "z"), n);
    Kokkos::parallel_for(n, KOKKOS_LAMBDA(const int i) { y(i) += z(i); });"""

COPIES = """#include <Kokkos_Core.hpp>
#include <vector>

using Vector = Kokkos::View<float *>;

void axpy(float a, const std::vector<float> &x, std::vector<float> &y) {
    Kokkos::initialize();
    {
        const int n = x.size();
        Vector d_x("x", n), d_y("y", n);
        Vector::HostMirror h_x = Kokkos::create_mirror_view(d_x);
        auto h_y = Kokkos::create_mirror_view(d_y);
        for (int i = 0; i < n; i++) {
            h_x(i) = x[i];
            h_y(i) = y[i];
        }
        Kokkos::View<const float *, Kokkos::HostSpace, Kokkos::MemoryUnmanaged> all_x(x.data(), n);
        Kokkos::deep_copy(d_x, all_x);
        Kokkos::deep_copy(d_y, h_y);
        float sum = 0;
        Kokkos::parallel_reduce(n, KOKKOS_LAMBDA(int i, float &part) { part += d_x(i) - d_x(i); }, sum);
        a += sum;
        Kokkos::parallel_for(Kokkos::RangePolicy<>(0, n), KOKKOS_LAMBDA(int i) { d_y(i) += a * d_x(i); });
        Kokkos::deep_copy(h_y, d_y);
        for (int i = 0; i < n; i++) y[i] = h_y(i);
    }
    Kokkos::finalize();
}
"""

GEMV = """#include <Kokkos_Core.hpp>

using ExecSpace = Kokkos::DefaultExecutionSpace;
using Matrix = Kokkos::View<const double **, Kokkos::LayoutRight, ExecSpace>;
typedef Kokkos::TeamPolicy<ExecSpace>::member_type member_type;

void gemv(const Matrix &A, Kokkos::View<const double *, ExecSpace> x, Kokkos::View<double *, ExecSpace> y) {
    const int m = A.extent(0), n = A.extent(1);
    Kokkos::parallel_for("gemv", Kokkos::TeamPolicy<ExecSpace>(m, 32), KOKKOS_LAMBDA(const member_type &team) {
        const int i = team.league_rank();
        double sum = 0;
        Kokkos::parallel_reduce(
            Kokkos::TeamThreadRange(team, n), [&](const int j, double &part) { part += A(i, j) * x(j); }, sum);
        Kokkos::single(Kokkos::PerTeam(team), [&]() { y(i) = sum; });
    });
}
"""

GEMM = """#include <Kokkos_Core.hpp>

template <typename ViewType>
void gemm(const ViewType &A, const ViewType &B, const ViewType &C, int M, int N, int K) {
    Kokkos::parallel_for(
        Kokkos::MDRangePolicy<Kokkos::Rank<2>>({0, 0}, {M, N}), KOKKOS_LAMBDA(int i, int j) {
            double sum = 0;
            for (int k = 0; k < K; k++) sum += A(i, k) * B(k, j);
            C(i, j) = sum;
        });
}
"""

SPMV = """#include <Kokkos_Core.hpp>

struct Spmv {
    Kokkos::View<int *> row_ptr, col_idx;
    Kokkos::View<double *> values, x, y;
    KOKKOS_INLINE_FUNCTION void operator()(const int row) const {
        double sum = 0;
        for (int k = row_ptr(row); k < row_ptr(row + 1); k++) sum += values(k) * x(col_idx(k));
        y(row) = sum;
    }
};

void spmv(int num_rows, Kokkos::View<int *> row_ptr, Kokkos::View<int *> col_idx, Kokkos::View<double *> values,
          Kokkos::View<double *> x, Kokkos::View<double *> y) {
    Kokkos::parallel_for("spmv", num_rows, Spmv{row_ptr, col_idx, values, x, y});
}
"""

JACOBI = """#include <Kokkos_Core.hpp>

void jacobi3d(Kokkos::View<double ***> u, Kokkos::View<double ***> u_new) {
    const int nx = u.extent(0), ny = u.extent(1), nz = u.extent(2);
    using Policy = Kokkos::MDRangePolicy<Kokkos::Rank<3>>;
    Kokkos::parallel_for("jacobi", Policy({1, 1, 1}, {nx - 1, ny - 1, nz - 1}), KOKKOS_LAMBDA(int i, int j, int k) {
        u_new(i, j, k) = (u(i - 1, j, k) + u(i + 1, j, k) + u(i, j - 1, k) + u(i, j + 1, k) + u(i, j, k - 1) +
                          u(i, j, k + 1)) / 6.0;
    });
}
"""

CG = """#include <Kokkos_Core.hpp>
#include <cmath>

typedef Kokkos::View<double *> Vector;
typedef Kokkos::View<double **> Matrix;

double dot(const Vector &a, const Vector &b) {
    double result = 0;
    Kokkos::parallel_reduce("dot", a.extent(0), KOKKOS_LAMBDA(int i, double &sum) { sum += a(i) * b(i); }, result);
    return result;
}

void cg(const Matrix &A, const Vector &b, Vector &x, int max_iter, double tol) {
    const int n = b.extent(0);
    Vector r("r", n), p("p", n), q("q", n);
    Kokkos::deep_copy(x, 0.0);
    Kokkos::deep_copy(r, b);
    Kokkos::deep_copy(p, r);
    double rho = dot(r, r);
    for (int k = 0; k < max_iter && std::sqrt(rho) > tol; k++) {
        Kokkos::parallel_for(n, KOKKOS_LAMBDA(int i) {
            double sum = 0;
            for (int j = 0; j < n; j++) sum += A(i, j) * p(j);
            q(i) = sum;
        });
        const double alpha = rho / dot(p, q);
        Kokkos::parallel_for(n, KOKKOS_LAMBDA(int i) {
            x(i) += alpha * p(i);
            r(i) -= alpha * q(i);
        });
        const double next = dot(r, r), beta = next / rho;
        Kokkos::parallel_for(n, KOKKOS_LAMBDA(int i) { p(i) = r(i) + beta * p(i); });
        rho = next;
    }
}
"""


@pytest.mark.slow
@needs_kokkos
@pytest.mark.one_in(8)
@pytest.mark.parametrize(
    ("kernel", "code"),
    [
        ("axpy", COPIES),
        ("gemv", GEMV),
        ("gemm", GEMM),
        ("spmv", SPMV),
        ("jacobi3d", JACOBI),
        ("cg", CG),
    ],
)
def test_right_codes_are_right(judge: StudyJudge, kernel: str, code: str) -> None:
    right = judge.judge(kernel, code, "cpp")
    assert (right.used_model, right.verdict, right.device) == ("kokkos", "right", "cpu"), right.reason


@pytest.mark.slow
@needs_kokkos
@pytest.mark.one_in(8)
@pytest.mark.parametrize(
    ("code", "old", "new", "verdict", "words"),
    [
        (AXPY, "+ y(i)", "- y(i)", Verdict.WRONG, ""),
        (AXPY, "y(i) = alpha", "y(i + 1) = alpha", Verdict.CRASH, "bounds error of view argument"),
        (AXPY, "    Kokkos::fence();", "    y(0) = 1;", Verdict.CRASH, "the host uses an element"),
        (AXPY, "    Kokkos::fence();", UNWRITTEN, Verdict.WRONG, ""),
        (COPIES, "d_y(i) += a * d_x(i)", "d_y(i) += a * h_x(i)", Verdict.CRASH, "a kernel uses an element"),
        (COPIES, "        Kokkos::deep_copy(h_y, d_y);\n", "", Verdict.WRONG, ""),
        (COPIES, "    }\n    Kokkos::finalize", "    Kokkos::finalize();\n}\n    Kokkos::finalize", Verdict.CRASH,
         "finalize is called while a view"),
        (AXPY, "parallel_for(", "parallel_fro(", Verdict.BUILD, ""),
    ],
)  # fmt: skip
def test_wrong_codes_are_wrong(judge: StudyJudge, code: str, old: str, new: str, verdict: Verdict, words: str) -> None:
    assert old in code
    wrong = judge.judge("axpy", code.replace(old, new), "cpp")
    assert (wrong.verdict, wrong.evaluation) == ("wrong", verdict), wrong.reason
    assert words in wrong.reason


@needs_kokkos
def test_the_jail_has_kokkos_and_no_door(judge: StudyJudge, tmp_path: Path) -> None:
    database = tmp_path / "kernelforge.db"
    database.write_text("canary")
    database.chmod(0o666)
    head = "#include <fcntl.h>\n#include <signal.h>\n#include <unistd.h>\n#include <stdlib.h>\n"
    doors = f"""if (open("{database}", O_RDONLY) >= 0 || open("/proc/{os.getpid()}/environ", O_RDONLY) >= 0
        || kill({os.getpid()}, 0) == 0) abort();"""
    closed = judge.judge("axpy", head + AXPY.replace("    Kokkos::fence();", doors), "cpp")
    assert closed.verdict == "right", closed.reason


PARAMETERS = [
    ("Kokkos::View<double *> x", ("vector", "double", 1, False)),
    ("const Kokkos::View<const float **, Kokkos::LayoutLeft, Kokkos::HostSpace> &x", ("shaped", "float", 2, True)),
    ("Kokkos::View<const double***,Kokkos::Device<Kokkos::Serial,Kokkos::HostSpace>> x", ("shaped", "double", 3, True)),
    ("Kokkos::View<double*>::HostMirror x", ("vector", "double", 1, False)),
    ("View<std::size_t const *> x, Vector z", ("index", None, 1, True)),
    ("Matrix::const_type x", ("shaped", "float", 2, False)),
    ("double *x", ("array", "double", 0, False)),
]


@pytest.mark.parametrize(("text", "expected"), PARAMETERS)
def test_types_of_views_are_read(text: str, expected: tuple[object, ...]) -> None:
    head = "#include <cmath>\nusing Scalar = float; // of all\nusing Matrix = Kokkos::View<Scalar **>;\n"
    code = f"{head}typedef Kokkos::View<double *> Vector;\nvoid axpy({text}) {{ }}\nint main() {{ axpy(); }}"
    first = kokkos_function(code, KERNELS["axpy"].names).parameters[0]
    assert (first.kind, first.real, first.rank, first.const) == expected


def test_a_template_gets_the_views_that_its_body_indexes() -> None:
    code = """template <class Pointers, typename Values, typename T, class Space = Kokkos::Cuda>
void spmv(Pointers row_ptr, Pointers const &col, const Values &val, Values x, Kokkos::View<T *, Space> y, T alpha) {
    Kokkos::parallel_for(n, KOKKOS_LAMBDA(int i) { y(i) = alpha * val(row_ptr(i)) * x(col(i)); });
}
template <class ViewType> struct functor { ViewType y; };
"""
    function = kokkos_function(code, KERNELS["spmv"].names)
    assert [item.kind for item in function.parameters] == ["index", "index", "vector", "vector", "vector", "real"]
    assert function.parameters[4].container == "Kokkos::View<double *, Kokkos::Cuda>"


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("void axpy(double a, Kokkos::View<Kokkos::complex<double> *> x) { }", "no known role"),
        ("void axpy(double a, Kokkos::View<double *> &x, Kokkos::View<double[3]> y) { }", "no known role"),
        ("template <int N> void axpy(double a, Kokkos::View<double *> x) { }", "a number for a parameter"),
        ("void axpy(double a, Kokkos::View<double * x) { }", "malformed"),
        ("int main() { Kokkos::initialize(); }", "its only function is main"),
        ("#include <KokkosBlas1_axpby.hpp>\nvoid axpy() { }", "`KokkosBlas1_axpby` of Kokkos Kernels"),
        ("void f(T t) { y(t.league_rank() * t.team_size() + t.team_rank()) = 1; }", "threads of its teams"),
    ],
)
def test_what_cannot_be_called_says_why(code: str, words: str) -> None:
    with pytest.raises(Underivable, match=words):
        kokkos_function(kokkos_source(code), KERNELS["axpy"].names)


@pytest.mark.parametrize(
    "part",
    [
        "template<",
        "template<class A>struct B;",
        "View<",
        "using A = B B;using B = A A;",
        "Kokkos::View<double*>x;A ",
        "<",
    ],
)
@pytest.mark.timeout(60)
def test_no_text_takes_long(part: str) -> None:
    code = part * (60_000 // len(part)) + "\nvoid axpy(double a, Kokkos::View<double *> x) { }"
    with suppress(Underivable):
        assert kokkos_function(code, re.compile("axpy")).name == "axpy"


def test_a_view_of_other_dimensions_is_not_passed() -> None:
    code = "void axpy(double a, Kokkos::View<double **> x, Kokkos::View<double **> y) { }"
    function = kokkos_function(code, KERNELS["axpy"].names)
    with pytest.raises(Underivable, match="`x` of `axpy` is a view of 2 dimensions"):
        c_entry(code, function, KERNELS["axpy"].forms(function)[0], cpp=True, offload="kokkos")


def test_without_kokkos_the_model_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(kokkos, "_FOLDER", tmp_path)
    with pytest.raises(UsageError, match=r"Kokkos cannot be judged here: .* `apt-get install libtrilinos-kokkos-dev`"):
        require_tools(["kokkos"])
    (tmp_path / "Kokkos_Core.hpp").touch()
    (tmp_path / "KokkosCore_config.h").write_text("#define KOKKOS_VERSION 40301\n")
    assert kokkos.header_folder() is None
    (tmp_path / "KokkosCore_config.h").write_text("#define KOKKOS_VERSION 30401\n")
    assert kokkos.header_folder() == tmp_path
