"""The call of a suggestion follows from the types, the order and the names of its parameters alone."""

from __future__ import annotations

import re

import pytest

from kernelforge.candidate.reply import code_blocks
from kernelforge.study.entries import c_entry, code_of, cuda_entry
from kernelforge.study.kernels import KERNELS, Form
from kernelforge.study.signatures import Function, Underivable, device_code, entry_function, entry_kernel


def host(kernel: str, declaration: str) -> tuple[Function, list[Form]]:
    function = entry_function(f"{declaration} {{}}", KERNELS[kernel].names)
    return function, KERNELS[kernel].forms(function)


def device(kernel: str, code: str) -> tuple[str, Function, list[Form]]:
    text, unit = device_code(code)
    function = entry_kernel(unit, KERNELS[kernel].names)
    return text, function, KERNELS[kernel].forms(function)


@pytest.mark.parametrize(
    ("kernel", "declaration", "values"),
    [
        ("axpy", "void axpy(int n, float a, float *x, float *y)", ("n", "alpha", "x", "out")),
        ("axpy", "void daxpy(double *y, const double *x, double a, size_t n)", ("out", "x", "alpha", "n")),
        ("axpy", "void axpy(double *r, double *x, double *y, double s, int n)", ("out", "x", "y", "alpha", "n")),
        ("axpy", "void saxpy(int n, float a, float *x, int incx, float *y, int incy)",
         ("n", "alpha", "x", "1", "out", "1")),
        ("gemv", "void gemv(double *A, double *x, double *y, int n)", ("a", "x", "out", "rows")),
        ("gemv", "void f(float *y, const float *A, const float *x, int cols, int rows)",
         ("out", "a", "x", "cols", "rows")),
        ("gemm", "void gemm(int M, int N, int K, float alpha, float *A, int lda, float *B, int ldb, float beta, "
         "float *C, int ldc)", ("m", "n", "k", "alpha", "a", "k", "b", "n", "beta", "out", "n")),
        ("spmv", "void spmv(int n, int *row_ptr, int *col_ind, double *val, double *x, double *y)",
         ("rows", "row_start", "columns", "values", "x", "out")),
        ("jacobi3d", "void jacobi3d(int nx, int ny, int nz, double *u, double *unew)",
         ("nx", "ny", "nz", "u", "out")),
        ("cg", "void cg(int n, double *A, double *b, double *x, int max_iter, double tol)",
         ("n", "a", "b", "x", "4", "1e-10")),
    ],
)  # fmt: skip
def test_parameters_have_their_roles(kernel: str, declaration: str, values: tuple[str, ...]) -> None:
    assert host(kernel, declaration)[1][0].values == values


@pytest.mark.parametrize(
    ("kernel", "code", "words"),
    [
        ("axpy", "int main() {}", "only function is main"),
        ("axpy", "void axpy(int n, double *x, double *y) {}", "takes no scalar alpha"),
        ("axpy", "void axpy(int n, double a, double *x, float *y) {}", "mixes two types"),
        ("axpy", "void one(int n) {} void two(int n) {}", "several functions, none with the kernel's name"),
        ("axpy", "void axpy(struct V *x, double a, double *y) {}", "has no known role"),
        ("axpy", "double *axpy(int n, double a, double *x, double *y) {}", "returns its result"),
        ("gemm", "void gemm(double *a, double *b, double *c, int n, int m) {}", "takes 2 sizes"),
        ("gemm", "void gemm(double *a, double *b, double *c) {}", "takes 0 sizes"),
        ("jacobi3d", "void jacobi(double *u, double *v, int n, int m) {}", "takes 2 extents"),
        ("cg", "void cg(double *a, double *b, double *x, int n, double omega) {}", "no tolerance by its name"),
    ],
)
def test_where_no_call_can_be_derived_the_reason_says_why(kernel: str, code: str, words: str) -> None:
    with pytest.raises(Underivable, match=re.escape(words)):
        KERNELS[kernel].forms(entry_function(code, KERNELS[kernel].names))


def test_every_textbook_form_of_a_signature_is_tried() -> None:
    texts = [form.text for form in host("gemv", "void gemv(double *A, double *x, double *y, int m, int n)")[1]]
    assert texts == ["A x, A by rows", "A x + y, A by rows", "A x, A by columns", "A x + y, A by columns"]
    texts = [form.text for form in host("axpy", "void axpy(int n, float a, float *x, float *y)")[1]]
    assert texts == ["alpha x + y"]


@pytest.mark.parametrize(
    ("kernel", "declaration", "orders"),
    [
        ("gemv", "void gemv(int n, int m, double *A, double *x, double *y)", [("cols", "rows"), ("rows", "cols")]),
        ("gemv", "void gemv(int m, int n, double *A, double *x, double *y)", [("rows", "cols")]),
        ("gemv", "void gemv(int cols, int rows, double *A, double *x, double *y)", [("cols", "rows")]),
        ("gemm", "void gemm(int M, int N, int K, double *A, double *B, double *C)", [("m", "n", "k"), ("m", "k", "n")]),
        ("gemm", "void gemm(int n, int k, int m, double *A, double *B, double *C)",
         [("n", "k", "m"), ("m", "n", "k"), ("m", "k", "n")]),
    ],
)  # fmt: skip
def test_letters_alone_settle_no_order_of_extents(kernel: str, declaration: str, orders: list[tuple[str, ...]]) -> None:
    seen = dict.fromkeys(form.values[: len(orders[0])] for form in host(kernel, declaration)[1])
    assert list(seen) == orders


GEMM = """#define TILE 8
__global__ void gemm(const float* __restrict__ A, const float* __restrict__ B, float* C, int n) {
    // blockIdx.z is not used
    int row = blockIdx.y * TILE + threadIdx.y, col = blockIdx.x * TILE + threadIdx.x;
}
"""


def test_a_launch_follows_from_indices_and_constants() -> None:
    text, function, forms = device("gemm", GEMM.replace("// blockIdx.z is not used", ""))
    candidate = cuda_entry(text, function, forms[0])
    assert "[(ceil_div(max(a.shape[0], b.shape[1]), 8), ceil_div(max(a.shape[0], b.shape[1]), 8),), (8, 8)](" in (
        candidate.plan
    )
    assert candidate.source.count("__global__") == 1
    assert "gemm((float *)a, (float *)b, (float *)out, m);" in candidate.source


def test_a_block_for_each_row_gets_as_many_blocks() -> None:
    code = """template <typename T>
    __launch_bounds__(128) __global__ void gemv(const T *A, const T *x, T *y, int m, int n) {
        extern __shared__ T part[];
        y[blockIdx.x] = A[threadIdx.x];
    }"""
    text, function, forms = device("gemv", code)
    candidate = cuda_entry(text, function, forms[0])
    assert "study_gemv[(a.shape[0],), (256,), 4096](a, x, out, i32(a.shape[0]), i32(a.shape[1]))" in candidate.plan
    assert "__launch_bounds__" not in candidate.source
    assert forms[0].real == "double"


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("__global__ void a(float *x, int n) {} __global__ void b(float *x, int n) {}", "several kernels (a, b)"),
        ("int main() { return 0; }", "no `__global__` kernel"),
    ],
)
def test_a_kernel_that_cannot_be_chosen_is_not_judged(code: str, words: str) -> None:
    with pytest.raises(Underivable, match=re.escape(words)):
        device("axpy", code)


def test_a_block_that_is_too_large_is_not_launched() -> None:
    text, function, forms = device("gemm", GEMM.replace("TILE 8", "TILE 64").replace("// blockIdx.z is not used", ""))
    with pytest.raises(Underivable, match="blocks of 4096 threads"):
        cuda_entry(text, function, forms[0])


def test_a_constant_with_thousands_of_digits_is_no_block() -> None:
    text, function, forms = device("gemm", GEMM.replace("TILE 8", f"TILE {'9' * 5000}").replace("// blockIdx.z", "//"))
    assert "(16, 16)](" in cuda_entry(text, function, forms[0]).plan


def test_the_transpose_of_rows_is_no_form() -> None:
    for types in (("double **", "double *"), ("std::vector<std::vector<double>> &", "std::vector<double> &")):
        declaration = f"void gemv({types[0]}A, {types[1]}x, {types[1]}y, int m, int n)"
        assert [form.text for form in host("gemv", declaration)[1]] == ["A x, A by rows", "A x + y, A by rows"]


def test_vectors_are_made_of_arrays() -> None:
    code = "void axpy(double a, const std::vector<double>& x, std::vector<double>& y) {}"
    function = entry_function(code, KERNELS["axpy"].names)
    source = c_entry(code, function, KERNELS["axpy"].forms(function)[0], cpp=True).source
    assert "axpy(alpha, v_x, v_out);" in source
    assert "memcpy(out, v_out.data()" in source


def test_rows_of_an_array_without_any_are_not_judged() -> None:
    code = "void axpy(int n, double a, double **x, double *y) {}"
    function = entry_function(code, KERNELS["axpy"].names)
    with pytest.raises(Underivable, match="`x` of `axpy` has rows, which x has not"):
        c_entry(code, function, KERNELS["axpy"].forms(function)[0], cpp=False)


@pytest.mark.parametrize("code", ["__global__ void k([", "template <typename T __global__ void k(T *x) {}"])
def test_code_that_is_cut_short_is_not_judged(code: str) -> None:
    with pytest.raises(Underivable, match=r"cut short or malformed|cannot be read"):
        device_code(f"{code} void f(float x]) {{}}")


@pytest.mark.parametrize(
    ("reply", "code"),
    [
        ("```bash\nnvcc a.cu\n```\n```cuda\nint a;\n```\n```cuda\nint b;\n```", "int a;"),
        ("```cpp\nint a;", "int a;"),
        ("// no fence\nvoid f() {}\n", "// no fence\nvoid f() {}\n"),
        ("I cannot do that.", None),
        ("```bash\nls\n```", None),
    ],
)
def test_the_code_of_a_reply_is_its_first_block(reply: str, code: str | None) -> None:
    block = code_of(code_blocks(reply), reply)
    assert (None if block is None else block.text) == code
