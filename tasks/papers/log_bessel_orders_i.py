"""Logarithm of the modified Bessel function of the first kind, log I_v(x), for all orders and arguments.

The kernel of Plesner, Soerensen and Hauberg, "Accurate Computation of the Logarithm of Modified Bessel Functions on
GPUs", ICS 2024, arXiv:2409.08729, in double precision and at orders that no library serves: v from 0 to 2 * 10^4. With
r = sqrt(v^2 + x^2) and p = v / r, the uniform expansion for large orders (DLMF 10.41.3) is
    log I_v(x) = r + v log(x / (v + r)) - 1/2 log(2 pi r) + log(sum over k of U_k(p) / v^k)
where U_k(p) / v^k = u_k(p^2) / r^k and u_k is a polynomial: so it needs a large r, not a large v, and serves v = 0 too.
Below r = NEAR the power series is taken, I_v(x) = (x/2)^v / Gamma(v + 1) * sum of p_k, p_0 = 1 and
p_k = p_(k-1) (x/2)^2 / (k (k + v)), all terms of which are positive. v and x (ROWS, COLS) are float64, as is the
result; a row holds numbers of one magnitude.
"""

import math
from fractions import Fraction

import torch
import torch.nn as nn

ROWS = 32
COLS = 8192
NEAR = 36.0
TERMS = 96
ORDERS = 16


def debye_polynomials(orders: int) -> list[list[float]]:
    """Coefficients of u_k by powers of p^2, for U_k(p) = p^k u_k(p^2); DLMF 10.41.9 in exact numbers."""
    powers = {0: Fraction(1)}
    table = []
    for k in range(orders):
        table.append([float(powers[k + 2 * j]) for j in range(k + 1)] + [0.0] * (orders - 1 - k))
        following: dict[int, Fraction] = {}
        for n, c in powers.items():
            # 1/2 p^2 (1 - p^2) U' + 1/8 integral of (1 - 5 t^2) U
            half, eighth = c * n / 2, c / 8
            following[n + 1] = following.get(n + 1, Fraction(0)) + half + eighth / (n + 1)
            following[n + 3] = following.get(n + 3, Fraction(0)) - half - 5 * eighth / (n + 3)
        powers = following
    return table


class Model(nn.Module):
    def __init__(self, near: float, terms: int, orders: int) -> None:
        super().__init__()
        self.near = near
        self.terms = terms
        self.register_buffer("debye", torch.tensor(debye_polynomials(orders), dtype=torch.float64))

    def forward(self, v: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        r = torch.hypot(v, x)
        square = (v / r) ** 2
        total = torch.zeros_like(r)
        for polynomial in self.debye.flip(0, 1):
            # Horner in p^2, then in 1 / r.
            u = torch.zeros_like(r)
            for coefficient in polynomial:
                u = u * square + coefficient
            total = total / r + u
        far = r + v * torch.log(x / (v + r)) - 0.5 * torch.log(2.0 * math.pi * r) + torch.log(total)

        close = r < self.near
        order, half = torch.where(close, v, 1.0), 0.5 * torch.where(close, x, 1.0)
        term = torch.ones_like(r)
        series = torch.ones_like(r)
        for k in range(1, self.terms):
            term = term * (half * half) / (k * (k + order))
            series = series + term
        near = order * torch.log(half) - torch.lgamma(order + 1.0) + torch.log(series)
        return torch.where(close, near, far)


def get_inputs():
    # Magnitudes from 2 to 20,000, one of each row, and directions from v = 0, one in eight, to x = v / 1000.
    magnitude = 2.0 * 1e4 ** torch.linspace(0.0, 1.0, ROWS, dtype=torch.float64)[:, None]
    magnitude = magnitude * (0.5 + 0.5 * torch.rand(ROWS, COLS, dtype=torch.float64))
    angle = 0.5 * math.pi * torch.rand(ROWS, COLS, dtype=torch.float64)
    angle = torch.where(torch.rand(ROWS, COLS) < 0.125, 0.0, angle)
    return [magnitude * torch.sin(angle), magnitude * torch.clamp(torch.cos(angle), min=1e-3)]


def get_init_inputs():
    return [NEAR, TERMS, ORDERS]
