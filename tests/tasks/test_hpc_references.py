"""References of the suite hpc against plain loops and textbook formulas in float64, at the ``tiny`` size."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from tests.tasks import reference_cases

module_of = partial(reference_cases.module_of, "hpc")
run = partial(reference_cases.run, "hpc")


def test_axpy_adds_and_axpy_dot_does_so_in_place() -> None:
    _, (alpha, x, y), (got,) = run("axpy")
    np.testing.assert_allclose(got, y + alpha[0] * x)
    task = module_of("axpy_dot")
    alpha, u, v, w = task.get_inputs()
    moved = w - alpha * v
    np.testing.assert_allclose(task.Model()(alpha, u, v, w), [torch.dot(moved, u)])
    np.testing.assert_allclose(w, moved)


def test_loops_of_stream_are_those_of_its_definition() -> None:
    task, (a,), (got,) = run("stream_scale")
    assert got.tolist() == [task.SCALAR * x for x in a]
    _, (a, b), (got,) = run("stream_add")
    assert got.tolist() == [x + y for x, y in zip(a, b, strict=True)]
    task, (a, b), (got,) = run("stream_triad")
    np.testing.assert_allclose(got, [x + task.SCALAR * y for x, y in zip(a, b, strict=True)])
    task, (a, b, c), (got,) = run("stream_nstream")
    np.testing.assert_allclose(got, [x + y + task.SCALAR * z for x, y, z in zip(a, b, c, strict=True)])
    _, (a, b), (got,) = run("stream_dot")
    np.testing.assert_allclose(got, [math.fsum(x * y for x, y in zip(a, b, strict=True))])


def test_gemv_and_gemm_scale_both_terms() -> None:
    task, (a, x, y), (got,) = run("gemv")
    np.testing.assert_allclose(got, task.ALPHA * (a @ x) + task.BETA * y)
    task, (a, b, c), (got,) = run("gemm_f64")
    np.testing.assert_allclose(got, task.ALPHA * (a @ b) + task.BETA * c)


@pytest.mark.parametrize("seed", range(4))
def test_sparse_product_is_that_of_the_dense_matrix(seed: int) -> None:
    task, (row_start, columns, values, x), (got,) = run("spmv_csr", seed=seed)
    dense = np.zeros((task.ROWS, task.COLS))
    for row in range(task.ROWS):
        for index in range(row_start[row], row_start[row + 1]):
            dense[row, columns[index]] += values[index]
    assert row_start[0] == 0
    assert row_start[-1] == task.NNZ
    assert (dense[3::4] == 0).all()
    np.testing.assert_allclose(got, dense @ x, atol=1e-12)


def test_jacobi_sweeps_use_the_values_of_the_sweep_before() -> None:
    task, (u, f), (got,) = run("jacobi3d")
    for _ in range(task.SWEEPS):
        old = u.copy()
        for i in range(1, task.X - 1):
            for j in range(1, task.Y - 1):
                for k in range(1, task.Z - 1):
                    around = old[i - 1, j, k] + old[i + 1, j, k] + old[i, j - 1, k] + old[i, j + 1, k]
                    around += old[i, j, k - 1] + old[i, j, k + 1]
                    u[i, j, k] = (around - task.SPACING**2 * f[i, j, k]) / 6
    np.testing.assert_allclose(got, u)


def test_conjugate_gradient_step_is_that_of_the_laplacian_as_a_matrix() -> None:
    task, (x, r, p), (x_next, r_next, p_next, alpha, squares) = run("cg_step")

    def second_difference(points: int) -> Any:
        return 2 * np.eye(points) - np.eye(points, k=1) - np.eye(points, k=-1)

    rows, cols = second_difference(task.ROWS), second_difference(task.COLS)
    matrix = np.kron(rows, np.eye(task.COLS)) + np.kron(np.eye(task.ROWS), cols)
    x, r, p = x.ravel(), r.ravel(), p.ravel()
    step = r @ r / (p @ matrix @ p)
    residual = r - step * (matrix @ p)
    np.testing.assert_allclose(alpha, [step])
    np.testing.assert_allclose(x_next.ravel(), x + step * p)
    np.testing.assert_allclose(r_next.ravel(), residual)
    np.testing.assert_allclose(squares, [residual @ residual])
    np.testing.assert_allclose(p_next.ravel(), residual + residual @ residual / (r @ r) * p)


def test_bodies_attract_each_other_softly() -> None:
    task, (position, mass), (got,) = run("nbody")
    want = np.zeros_like(position)
    for i in range(task.N):
        for j in range(task.N):
            apart = position[j] - position[i]
            want[i] += mass[j] * apart / (apart @ apart + task.SOFTENING**2) ** 1.5
    np.testing.assert_allclose(got, want)
    np.testing.assert_allclose((mass[:, None] * got).sum(0), 0.0, atol=1e-12)


def test_convolution_by_fft_is_the_periodic_sum() -> None:
    task, (x, h), (got,) = run("fft_convolution")
    want = np.zeros_like(x)
    for p in range(task.FILTER_HEIGHT):
        for q in range(task.FILTER_WIDTH):
            want += h[p, q] * np.roll(x, (p, q), axis=(1, 2))
    np.testing.assert_allclose(got, want, atol=1e-12)


def test_histogram_counts_what_lies_in_its_bins() -> None:
    task, (values,), (got,) = run("histogram")
    want = [[sum(value == bin_ for value in channel) for bin_ in range(task.BINS)] for channel in values.tolist()]
    assert got.tolist() == want
    assert got.sum() < values.size, "some values lie outside of all bins"


def test_exclusive_scan_leaves_the_range_of_int32() -> None:
    _, (x,), (got,) = run("exclusive_scan")
    assert got.tolist() == [sum(x.tolist()[:i]) for i in range(len(x))]
    assert np.abs(got).max() > 2**31


def test_tridiagonal_systems_are_solved() -> None:
    task, (c, d), (got,) = run("tridiagonal_solve")
    for system in range(task.SYSTEMS):
        g = c[system] ** 2
        matrix = np.eye(task.N) + np.diag(np.append(g, 0) + np.append(0, g)) - np.diag(g, 1) - np.diag(g, -1)
        np.testing.assert_allclose(got[system], np.linalg.solve(matrix, d[system]))


def test_equal_keys_keep_their_order() -> None:
    _, (keys,), (ordered, order) = run("stable_sort")
    want = sorted(range(len(keys)), key=lambda position: keys[position])
    assert order.tolist() == want
    assert ordered.tolist() == [keys[position] for position in want]
    assert len(set(keys.tolist())) < len(keys)


def philox(counter: list[int], key: list[int]) -> list[int]:
    """Philox4x32-10 in Python's whole numbers, as in section 3.2 of Salmon et al., SC 2011."""
    word = 2**32 - 1
    for _ in range(10):
        first, second = 0xD2511F53 * counter[0], 0xCD9E8D57 * counter[2]
        counter = [
            second >> 32 ^ counter[1] ^ key[0],
            second & word,
            first >> 32 ^ counter[3] ^ key[1],
            first & word,
        ]
        key = [key[0] + 0x9E3779B9 & word, key[1] + 0xBB67AE85 & word]
    return counter


def test_monte_carlo_draws_philox() -> None:
    # The first vector of known answers that the generator's authors publish with it.
    assert philox([0] * 4, [0] * 2) == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
    task, (keys,), (got,) = run("monte_carlo_pi")
    for stream, key in enumerate(keys.tolist()):
        hits = 0
        for draw in range(task.DRAWS):
            x0, y0, x1, y1 = (word >> 1 for word in philox([draw, 0, 0, 0], key))
            hits += (x0**2 + y0**2 < 2**62) + (x1**2 + y1**2 < 2**62)
        assert got[stream] == hits


def test_lattice_boltzmann_moves_relaxes_and_keeps_mass_and_momentum() -> None:
    task, (f,), (got, density) = run("lattice_boltzmann")
    speeds = np.array(task.VELOCITIES, dtype=float)
    moved = np.empty_like(f)
    for i, (row, col) in enumerate(task.VELOCITIES):
        for y in range(task.ROWS):
            for x in range(task.COLS):
                moved[i, (y + row) % task.ROWS, (x + col) % task.COLS] = f[i, y, x]
    rho = moved.sum(0)
    j = np.einsum("id,iyx->dyx", speeds, moved)
    along = np.einsum("id,dyx->iyx", speeds, j)
    equilibrium = np.array(task.WEIGHTS)[:, None, None] * (rho + 3 * along + 4.5 * along**2 - 1.5 * (j**2).sum(0))
    np.testing.assert_allclose(got, moved - (moved - equilibrium) / task.TAU, atol=1e-12)
    np.testing.assert_allclose(density, rho)
    np.testing.assert_allclose(got.sum(0), rho)
    np.testing.assert_allclose(np.einsum("id,iyx->dyx", speeds, got), j, atol=1e-12)
