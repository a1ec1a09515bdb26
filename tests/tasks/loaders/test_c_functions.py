"""References of published C functions: what they compute, and what no task is made of."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

from kernelforge.errors import TaskError
from kernelforge.tasks.loaders.c_functions.reference import written


def computed(text: str, constants: dict[str, int | float], *inputs: object) -> list[list[float]]:
    """Outputs of the reference of a C function."""
    source = written(text, "f", "A function").source
    for name, value in constants.items():
        source, count = re.subn(rf"^{name} = .*$", f"{name} = {value}", source, flags=re.MULTILINE)
        assert count == 1
    names: dict[str, Any] = {}
    exec(source, names)
    arrays = [torch.tensor(item) if isinstance(item, list) else item for item in inputs]
    result = names["Model"]()(*arrays)
    return [item.tolist() for item in (result if isinstance(result, tuple) else (result,))]


def test_loops_that_are_independent_become_axes_and_others_stay_loops() -> None:
    product = """void mult(float *a, float *b, float *c, int n, int m) {
        for (int i = 0; i < n; i++) for (int j = 0; j < m; j++) { c[i * m + j] = 0;
            for (int k = 0; k < n; k++) c[i * m + j] += a[i * n + k] * b[k * m + j]; } }"""
    assert computed(product, {"N": 2, "M": 1}, [1.0, 2.0, 3.0, 4.0], [5.0, 6.0]) == [[17.0, 39.0]]
    assert "for k in" not in written(product, "f", "").source
    scan = "void scan(float *x, int n) { for (int i = 1; i < n; i++) x[i] += x[i - 1]; }"
    assert computed(scan, {"N": 4}, [1.0, 2.0, 3.0, 4.0]) == [[1.0, 3.0, 6.0, 10.0]]
    assert "for i in range(1, N):" in written(scan, "f", "").source
    backwards = "void down(int *x, int n) { for (int i = n - 2; i >= 0; i--) x[i] = x[i + 1] - x[i]; }"
    assert computed(backwards, {"N": 3}, [1, 2, 3]) == [[0, 1, 3]]
    total = "float total(float *x, int n) { float s = 0; for (int i = 0; i < n; i++) { s += x[i]; } return s; }"
    assert computed(total, {"N": 3}, [1.0, 2.0, 4.0]) == [[7.0]]
    softmax = """void soft(float *x, int r, int c) { float most, sum;
        for (int i = 0; i < r; i++) { most = 0.f; sum = 0.f;
            for (int j = 0; j < c; j++) most = max(x[i * c + j], most);
            for (int j = 0; j < c; j++) { x[i * c + j] = x[i * c + j] - most; sum += x[i * c + j]; }
            for (int j = 0; j < c; j++) x[i * c + j] /= sum; } }"""
    assert computed(softmax, {"R": 2, "C": 2}, [1.0, 3.0, 5.0, 1.0]) == [[1.0, 0.0, 0.0, 1.0]]


def test_conditions_become_masks_under_which_nothing_else_is_loaded() -> None:
    edges = """void edge(const float *x, float *y, int n) { for (int i = 0; i < n; i++) {
        if (i == 0 || i == n - 1) { y[i] = x[i]; continue; }
        y[i] = x[i - 1] + x[i + 1]; } }"""
    # That both branches together write all of y is not seen, so its contents are an input.
    assert computed(edges, {"N": 4}, [1.0, 2.0, 3.0, 4.0], [0.0] * 4)[0] == [1.0, 4.0, 6.0, 4.0]
    choice = """void shift(float *x, float *y, int n) { for (int i = 0; i < n; i++)
        y[i] = i + 1 < n ? x[i + 1] : (i > 0 && x[i - 1] > 0 ? 7 : 8); }"""
    assert computed(choice, {"N": 3}, [1.0, 2.0, 3.0]) == [[2.0, 3.0, 7.0]]
    triangle = """void upper(float *x, float *y, int n) { for (int i = 0; i < n; i++) { y[i] = 0;
        for (int j = i; j < n; j++) y[i] += x[i * n + j]; } }"""
    assert computed(triangle, {"N": 2}, [1.0, 2.0, 4.0, 8.0]) == [[3.0, 8.0]]
    own = """void own(float *x, float *y, int n) { for (int i = 0; i < n; i++) { float when_1 = x[i] + 1; y[i] = when_1;
        if (x[i] > 2) y[i] = when_1 + when_1; } }"""
    assert computed(own, {"N": 2}, [1.0, 3.0]) == [[2.0, 8.0]]


def test_whole_numbers_are_divided_as_in_c() -> None:
    text = """void whole(int *x, int *q, int *r, float *h, int n) { for (int i = 0; i < n; i++) {
        q[i] = x[i] / 3; r[i] = x[i] % 3; h[i] = x[i] / 2 + 0.5f; } }"""
    assert computed(text, {"N": 3}, [-7, 7, 2]) == [[-2, 2, 0], [-1, 1, 2], [-2.5, 3.5, 1.5]]


def test_the_c_file_calls_the_published_function_with_the_types_of_a_task() -> None:
    text = (
        "long add(unsigned int N, float A, float *X, double *y) { for (unsigned int i = 0; i < N; i++)"
        " { X[i * 2] += A; y[i] = X[i]; } return N; }"
    )
    made = written(text, "task", "A function")
    assert f"static {text}\n" in made.c_source
    assert made.c_source.endswith(
        "void task(int n, float a, const float *x, float *x_out, double *y, long long *result)\n{\n"
        "    for (long long each = 0; each < (long long)2 * n - 1; each++)\n        x_out[each] = x[each];\n"
        "    result[0] = add(n, a, (float *)x_out, (double *)y);\n}\n"
    )
    assert "def forward(self, a, x):" in made.source
    assert made.fixed == {"A"}


def test_what_a_reference_needs_not_is_left_out_of_the_text() -> None:
    text = """inline void f(const float *__restrict__ x, float *restrict y, int n) { // all `turns` at once
        /* "of" one
           loop */
        # pragma omp parallel for
        for (size_t i = 0; i < n; i++) y[i] = x[i] + 0x10 + 1.5f; }"""
    assert computed(text.replace("\n", "\r\n"), {"N": 2}, [1.0, 2.0]) == [[18.5, 19.5]]


REFUSED = [
    ("void f(float *x, int *at, int n) { for (int i = 0; i < n; i++) x[at[i]] = 1; }", "an element of 'x' by data"),
    ("void f(float *x, int n) { for (int i = 0; i < n; i++) x[i] = x[i - 1]; }", "before the first of 'x'"),
    ("void f(float *x, int n, int m) { for (int i = 0; i < n; i++) x[i - m + n] = 1; }", "before the first of 'x'"),
    ("void f(float *x, int n) { float t[4]; for (int i = 0; i < n; i++) { t[i] = x[i]; x[i] = t[0]; } }",
     "behind the end of its own array 't'"),
    ("void f(float *x, int n) { int i = 0; while (i < n) x[i++] = 1; }", "`while`"),
    ("void f(float *x, int n) { for (int i = 0; i < n; i++) x[i] = *x; }", "`*` in an expression"),
    ("void f(float *x, int n) { x = x + 1; x[0] = n; }", "moves the pointer 'x'"),
    ("void f(float *x, int n) { for (int i = 0; i < n; i++) { x[i] = 1; i = 0; } }", "changes its own variable 'i'"),
    ("void f(float *x, int n) { for (int i = 0; i < n; i++) { x[i] += 1; n = n + 1; } }", "changes its own bound 'n'"),
    ("void f(float *x, int n) { for (int i = 0; i < n; i += 0) x[i] = 1; }", "does not count to its bound"),
    ("void f(float *x, int n) { for (int i = 0; i < n; i--) x[i] = 1; }", "does not count to its bound"),
    ("void f(float *x, int *n) { for (int i = 0; i < n[0]; i++) x[i] = 1; }", "is not known before it runs"),
    ("void f(float *x, int n) { for (int i = 0; i < n; i++) x[i] = system(x[i]); }", "calls 'system'"),
    ("void f(float *x, int n) { for (int i = 0; i < n; i++) x[i] = secret; }", "'secret', which it does not declare"),
    ("void f(float *x, int n) { for (int i = 0; i < n; i++) x[i] = i; }\nvoid g() {}", "more than one function"),
    ("void f(float *x) { for (int i = 0; i < 2000000000; i++) x[i] += 1; }", "too many turns"),
    ("void f(short *x, int n) { for (int i = 0; i < n; i++) x[i] += 1; }", "of type `short`"),
    ("void f(float *x, int n) { for (int i = 0; i < n; i++) x[i] = 0; }", "takes no array"),
    ("void f(float *x, int n) { for (int i = 0; i < n; i++) { if (x[i] > 0) return; x[i] = 1; } }", "returns from"),
    ("#include <stdio.h>\nvoid f(float *x) { x[0] = 1; }", "'#', which is not read"),
    (f"void f(float *x, int n) {{ x[0] = {'(' * 5000}n{')' * 5000}; }}", "nested too deep"),
    (f"void f(float *x, int n) {{ {'{' * 5000} }}", "nested too deep"),
    (f"void f(float *x, int n) {{ x[0] = {'!' * 5000}n; }}", "nested too deep"),
    (f"void f(float *x, int n) {{ x[0] = {'n + ' * 5000}n; }}", "nested too deep"),
    (f"void f(float *x) {{ x[0] = 1; }} /*{'x' * 70_000}*/", "more than 64 KiB"),
    ("", "an end"),
    ("void f(float *x, int n) { for (int i = 0; i < n; i++) { if (n > 2) { if (x[i] > 0) continue; x[i] = 2; }"
     " x[i] += 1; } }", "a `continue` that no condition alone leads to"),
    ("void f(float *x, int n) { x[0] = 017; }", "'017', which is not read"),
    (f"void f(float *x, int n) {{ x[0] = {'9' * 5000}; }}", "'9999"),
    ("void f(float *x, int n) { x[0] = n$; }", "'$', which is not read"),
    ("void f(float &x, int n) { x = n; }", "cannot be parsed as C (before: &)"),
    ("void f(float **x, int n) { x[0] = 0; }", "`float *`, which is neither a number nor an array"),
    ("static void f(float *x) { x[0] = 1; }", "`static void f"),
    ("void f(float *x, ...) { x[0] = 1; }", "`...`"),
    ("void f(float *x, int n) { static int t = 0; x[0] = t; }", "`static`"),
    ("void f(float *x, int n) { x[0] = (n = 1); }", "`n = 1` in an expression"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "reason"), REFUSED)
def test_what_has_no_safe_sizes_is_refused_in_one_line(text: str, reason: str) -> None:
    with pytest.raises(TaskError, match=re.escape(reason)) as caught:
        written(text, "f", "A function")
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 200
