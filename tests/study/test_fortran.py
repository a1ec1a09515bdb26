"""Fortran subroutines are called by their signature, with arrays by columns and indices that begin with 1."""

from __future__ import annotations

import re
import shutil

import pytest

from kernelforge.errors import UsageError
from kernelforge.records import Verdict
from kernelforge.study.codex import StudyJudge, require_tools
from kernelforge.study.fortran import fortran_forms, read_procedure
from kernelforge.study.kernels import KERNELS
from kernelforge.study.signatures import Underivable

needs_gfortran = pytest.mark.skipif(
    shutil.which("gfortran") is None or shutil.which("cc") is None, reason="there is no Fortran compiler `gfortran`"
)

SPMV = """subroutine spmv(n, nnz, row_ptr, col_ind, val, x, y)
  integer, intent(in) :: n, nnz, row_ptr(n+1), col_ind(nnz)
  double precision, intent(in) :: val(nnz), x(n)
  double precision, intent(out) :: y(n)
  integer i, j
!$omp parallel do private(j)
  do i = 1, n
    y(i) = 0 ! each row
    do j = row_ptr(i), row_ptr(i+1) - 1
      y(i) = y(i) + val(j) * x(col_ind(j))
    end do
  end do
end subroutine
"""

GEMM = """program main
  use omp_lib
  implicit none
  integer, parameter :: dp = kind(1.0d0)
  print *, 'gemm'
contains
  subroutine gemm(A, B, C)
    real(dp), intent(in) :: A(:,:), B(:,:)
    real(dp), intent(out) :: C(:,:)
    integer :: i, j
    !$omp parallel do private(i)
    do j = 1, size(b, 2)
      do i = 1, size(a, 1)
        c(i, j) = dot_product(a(i, :), b(:, j))
      end do
    end do
  end subroutine
end program
"""

CG = """subroutine cg(n, a, b, x, maxit, tol)
  integer, intent(in) :: n, maxit
  real, intent(in) :: a(n,n), b(n), tol
  real, intent(inout) :: x(n)
  real :: r(n), p(n), q(n), rho, next, alpha
  integer :: k, i
  r = b - matmul(a, x)
  p = r
  rho = dot_product(r, r)
  do k = 1, maxit
    if (sqrt(rho) < tol) exit
    !$omp parallel do
    do i = 1, n
      q(i) = dot_product(a(:, i), p)
    end do
    alpha = rho / dot_product(p, q)
    x = x + alpha * p
    r = r - alpha * q
    next = dot_product(r, r)
    p = r + next / rho * p
    rho = next
  end do
end subroutine
"""


@pytest.mark.slow
@needs_gfortran
@pytest.mark.parametrize(
    ("kernel", "code", "form"),
    [
        ("spmv", SPMV, "A x, A in CSR"),
        ("gemm", GEMM, "A B, by columns"),
        ("cg", CG, "A x = b by conjugate gradients, A dense"),
    ],
)
def test_a_subroutine_is_right_by_the_form_that_it_computes(
    judge: StudyJudge, kernel: str, code: str, form: str
) -> None:
    right = judge.judge(kernel, code, "fortran")
    assert (right.used_model, right.verdict, right.form) == ("fortran-openmp", "right", form), right.reason


@pytest.mark.slow
@needs_gfortran
@pytest.mark.parametrize(
    ("old", "new", "verdict"),
    [
        ("row_ptr(i+1) - 1", "row_ptr(i+1)", Verdict.CRASH),
        ("y(i) = 0 !", "!", Verdict.WRONG),
        ("do i = 1, n\n", "do i = 1, m\n implicit none\n", Verdict.BUILD),
    ],
)
def test_a_mistake_is_wrong(judge: StudyJudge, old: str, new: str, verdict: Verdict) -> None:
    wrong = judge.judge("spmv", SPMV.replace(old, new), "fortran")
    assert (wrong.verdict, wrong.evaluation) == ("wrong", verdict), wrong.reason


STENCIL = """subroutine jacobi3d(n, u, unew)
  integer, intent(in) :: n
  real, intent(in) :: u(n,n,n)
  real, intent(inout) :: unew(n,n,n)
  integer i, j, k
  !$omp target teams distribute parallel do collapse(3) map(to: u) map(tofrom: unew)
  do k = 2, n - 1
    do j = 2, n - 1
      do i = 2, n - 1
        unew(i,j,k) = (u(i-1,j,k) + u(i+1,j,k) + u(i,j-1,k) + u(i,j+1,k) + u(i,j,k-1) + u(i,j,k+1)) / 6.0
      end do
    end do
  end do
end subroutine
"""

MATVEC = """module products
contains
  subroutine gemv(A, x, y)
    real(8), intent(in) :: A(:,:), x(:)
    real(8), intent(out) :: y(:)
    real(8) :: total
    integer :: i, j
    !$acc data copyin(a, x) copyout(y)
    !$acc parallel loop private(total)
    do i = 1, size(A, 1)
      total = 0
      !$acc loop reduction(+:total)
      do j = 1, size(A, 2)
        total = total + A(i, j) * x(j)
      end do
      y(i) = total
    end do
    !$acc end data
  end subroutine
end module
"""


@pytest.mark.slow
@needs_gfortran
@pytest.mark.parametrize(
    ("kernel", "code", "model", "old", "new"),
    [
        ("jacobi3d", STENCIL, "fortran-openmp-offload", "map(tofrom: unew)", "map(from: unew)"),
        ("gemv", MATVEC, "fortran-openacc", "copyout(y)", "create(y)"),
    ],
)
def test_regions_have_a_memory_of_their_own(
    judge: StudyJudge, kernel: str, code: str, model: str, old: str, new: str
) -> None:
    right = judge.judge(kernel, code, "fortran")
    assert (right.used_model, right.verdict) == (model, "right"), right.reason
    wrong = judge.judge(kernel, code.replace(old, new), "fortran")
    assert (wrong.verdict, wrong.evaluation) == ("wrong", Verdict.WRONG), wrong.reason


def subroutine(parameters: str, declarations: str) -> str:
    return f"SUBROUTINE axpy({parameters})\n{declarations}\nEND SUBROUTINE\n"


@pytest.mark.parametrize(
    ("code", "kinds"),
    [
        (subroutine("n, a, x, y", "integer*8 n\nreal*8 a, x(n), &\n  y(*) ! both"), ["int", "real", "array", "array"]),
        (subroutine("a, x, y", "real(kind=4) :: a, x(:)\nreal(kind=4) :: y(:)"), ["real", "shaped", "shaped"]),
        (
            subroutine("n, i, x", "use iso_fortran_env, only: wp => real64\ninteger, dimension(n) :: i\n"
                       "integer :: n\nreal(wp), dimension(n) :: x"),
            ["int", "index", "array"],
        ),
    ],
)  # fmt: skip
def test_parameters_are_read(code: str, kinds: list[str]) -> None:
    function = read_procedure(code, KERNELS["axpy"].names).function
    assert [item.kind for item in function.parameters] == kinds
    assert function.real == ("float" if "kind=4" in code else "double")


@pytest.mark.parametrize("shapes", ["", "(:,:) (:) (:)", "(n,n) (n) (n)"])
def test_matrices_with_a_shape_lie_by_columns(shapes: str) -> None:
    a, x, y = shapes.split() or ("(*)", "(n)", "(n)")
    head = "integer, parameter :: dp = selected_real_kind(15, 307)\ninteger :: n"
    procedure = read_procedure(
        f"subroutine gemv(n, a, x, y)\n{head}\nreal(dp) :: a{a}, x{x}, y{y}\nend subroutine", KERNELS["gemv"].names
    )
    texts = [form.text for form in fortran_forms(procedure, KERNELS["gemv"].forms(procedure.function))]
    by_rows = [] if shapes else ["A x, A by rows", "A x + y, A by rows"]
    assert texts == [*by_rows, "A x, A by columns", "A x + y, A by columns"]
    assert procedure.function.real == "double"


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (subroutine(", ".join(f"x{at}" for at in range(65)), ""), "more than 64 parameters"),
        ("pure " * 40_000, "no subroutine"),
        ("program p\nend program p", "no subroutine"),
        ("real function axpy(a, x)\nend function", "functions return their results"),
        (subroutine("x", "real :: x(0:5)"), "lower bounds of its own"),
        (subroutine("x", "real, optional :: x(5)"), "optional"),
        (subroutine("x", "complex :: x(5)"), "no known role"),
        (subroutine("x, y", "real(8) :: x(5)\nreal(4) :: y(5)"), "mixes two types"),
        (subroutine("x", "real :: x(5)").replace("axpy", "f") * 2, "several subroutines"),
    ],
)
def test_where_no_call_can_be_derived_the_reason_says_why(code: str, words: str) -> None:
    with pytest.raises(Underivable, match=re.escape(words)):
        read_procedure(code, KERNELS["axpy"].names)


def test_without_a_compiler_the_model_is_refused_before_a_call_is_paid_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    require_tools(["cuda", "openmp"])
    with pytest.raises(UsageError, match="no Fortran compiler `gfortran`; install it"):
        require_tools(["fortran-openmp"])
