"""Python functions are called with arrays by their parameters' names; of codes for a GPU a kernel's text is judged."""

from __future__ import annotations

import shutil

import pytest

from kernelforge.records import Verdict
from kernelforge.study.codex import StudyJudge
from kernelforge.study.kernels import KERNELS
from kernelforge.study.python_functions import python_function

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler, which the lane needs")

SPMV = """import numpy as np

def spmv_csr(data, indices, indptr, x):
    y = np.zeros(len(indptr) - 1)
    for i in range(len(y)):
        part = slice(indptr[i], indptr[i + 1])
        y[i] = data[part] @ x[indices[part]]
    return y
"""

CG = """import numpy as np

def conjugate_gradient(A, b, x0=None, tol=1e-10, max_iter=100):
    x = np.zeros_like(b)
    r = b - A @ x
    p, rho = r.copy(), r @ r
    for k in range(max_iter):
        q = A @ p
        alpha = rho / (p @ q)
        x, r = x + alpha * p, r - alpha * q
        rho, last = r @ r, rho
        if rho < tol**2:
            break
        p = r + rho / last * p
    return x, k
"""

GEMM = """import numpy as np
from numba import njit, prange

@njit(parallel=True)
def gemm(alpha, A, B, beta, C):
    for i in prange(C.shape[0]):
        for j in range(C.shape[1]):
            total = 0.0
            for k in range(A.shape[1]):
                total += A[i, k] * B[k, j]
            C[i, j] = alpha * total + beta * C[i, j]
"""

SINGLE = """from numba import njit

@njit("void(float32, float32[:], float32[:])")
def axpy(a, x, y):
    for i in range(x.size):
        y[i] += a * x[i]
"""

KERNEL = """
extern "C" __global__ void axpy(int n, float a, const float *x, float *y) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] += a * x[i];
}
"""


@pytest.mark.slow
@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("kernel", "code", "model", "form"),
    [
        ("axpy", "import numpy as np\ndef axpy(a, x, y):\n    return a * x + y\n", "numpy", "alpha x + y"),
        ("spmv", SPMV, "numpy", "A x, A in CSR"),
        ("axpy", "import numpy as np\ndef axpy(a, x, y):\n    y += a * x\n    return len(x)\n", "numpy", "alpha x + y"),
        ("axpy", SINGLE, "numba", "alpha x + y"),
        ("cg", CG, "numpy", "A x = b by conjugate gradients, A dense"),
        ("gemm", GEMM, "numba", "alpha A B + beta C, by rows"),
        ("axpy", f"import cupy as cp\nk = cp.RawKernel(r'''{KERNEL}''', 'axpy')", "cupy", "alpha x + y"),
        ("axpy", f'from pycuda.compiler import SourceModule\nT = """{KERNEL}"""\nm = SourceModule(T)', "pycuda",
         "alpha x + y"),
    ],
)  # fmt: skip
def test_a_function_is_right_by_the_form_that_it_computes(
    judge: StudyJudge, kernel: str, code: str, model: str, form: str
) -> None:
    right = judge.judge(kernel, code, "python")
    assert (right.used_model, right.verdict, right.form) == (model, "right", form), right.reason


@pytest.mark.slow
@pytest.mark.parametrize(
    ("old", "new", "verdict"),
    [
        ("indptr[i + 1]", "indptr[i + 1] - 1", Verdict.WRONG),
        ("return y", "return z", Verdict.CRASH),
        ("import numpy as np", "import numpy as np\nnp.no_such_name", Verdict.BUILD),
    ],
)
def test_a_mistake_is_wrong(judge: StudyJudge, old: str, new: str, verdict: Verdict) -> None:
    wrong = judge.judge("spmv", SPMV.replace(old, new), "python")
    assert (wrong.verdict, wrong.evaluation) == ("wrong", verdict), wrong.reason


@pytest.mark.slow
def test_the_transpose_of_an_array_that_carries_its_extents_is_wrong(judge: StudyJudge) -> None:
    for kernel, parameters, product in (("gemv", "A, x", "A.T @ x"), ("gemm", "A, B", "B @ A")):
        wrong = judge.judge(kernel, f"import numpy as np\ndef f({parameters}):\n    return {product}\n", "python")
        assert wrong.verdict == "wrong", wrong.form


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (f"import numpy as np\n@{'.'.join('a' * 1500)}\ndef axpy(a, x, y):\n    pass", "nested too deeply"),
        ("import numpy as np\nimport no_such_package\ndef axpy(a, x, y):\n    pass", "imports no_such_package"),
        ("import numpy as np\nprint(1)", "defines no function"),
        ("import numpy as np\ndef axpy(x, y):\n    pass", "takes no scalar alpha"),
        ("import numpy as np\ndef axpy(*xs):\n    pass", "more than its positional parameters"),
        ("import numpy as np\ndef axpy(a, x, y:\n    pass", "cannot be read"),
        ("from numba import cuda\n@cuda.jit\ndef axpy(a, x, y):\n    pass", "one of numba.cuda"),
        ("import cupy as cp\ndef axpy(a, x, y):\n    return a * x + y", "only the text of a RawKernel"),
        ("import cupy as cp\nk = cp.RawKernel(source(), 'axpy')", "is not written out"),
    ],
)
def test_what_cannot_run_says_why(judge: StudyJudge, code: str, words: str) -> None:
    judgement = judge.judge("axpy", code, "python")
    assert judgement.verdict == "not judged"
    assert words in judgement.reason


@pytest.mark.parametrize(
    ("kernel", "parameters", "values", "returned"),
    [
        ("axpy", "alpha, x, y", ("alpha", "x", "out"), False),
        ("gemv", "A, x", ("a", "x", "out"), True),
        ("gemv", "m: int, n: int, a, x, y, beta=0.0", ("rows", "cols", "a", "x", "out"), False),
        ("gemm", "A, B", ("a", "b", "out"), True),
        ("spmv", "n, row_ptr, col_idx, values, x, y", ("rows", "row_start", "columns", "values", "x", "out"), False),
        ("jacobi3d", "u, n_iterations", ("u", "1", "out"), True),
        ("cg", "A, b, x, tol", ("a", "b", "x", "1e-10"), False),
        ("axpy", "n, a, x, incx, /, y, incy", ("n", "alpha", "x", "1", "out", "1"), False),
        ("spmv", "row_pointers, column_indices, val, x", ("row_start", "columns", "values", "x", "out"), True),
    ],
)
def test_parameters_have_their_roles(kernel: str, parameters: str, values: tuple[str, ...], returned: bool) -> None:
    call, forms = python_function(f"def f({parameters}):\n    pass", KERNELS[kernel])
    assert (forms[0].values, call.returned) == (values, returned)
