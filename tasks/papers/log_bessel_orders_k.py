"""Logarithm of the modified Bessel function of the second kind, log K_v(x), for all orders and arguments.

The kernel of Plesner, Soerensen and Hauberg, "Accurate Computation of the Logarithm of Modified Bessel Functions on
GPUs", ICS 2024, arXiv:2409.08729, in double precision and at orders that no library serves: v from 0 to 2 * 10^4. With
r = sqrt(v^2 + x^2) and p = v / r, the uniform expansion for large orders (DLMF 10.41.4) is
    log K_v(x) = 1/2 log(pi / (2 r)) - r - v log(x / (v + r)) + log(sum over k of (-1)^k U_k(p) / v^k)
where U_k(p) / v^k = u_k(p^2) / r^k and u_k is a polynomial: so it needs a large r, not a large v, and serves v = 0 too.
Below r = NEAR the integral of exp(v t - x cosh t) / 2 over all t is taken around its saddle point t* = asinh(v / x),
    log K_v(x) = v t* - r + log(1/2 integral of exp(-r (cosh s - 1) - v (sinh s - s)) ds)
by the trapezoidal rule with NODES points from -(t* + a) to a, beyond which the integrand is below exp(-40). v and x
(ROWS, COLS) are float64, as is the result; a row holds numbers of one magnitude.
"""

import math
from fractions import Fraction

import torch
import torch.nn as nn

ROWS = 32
COLS = 4096
NEAR = 36.0
NODES = 256
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
    def __init__(self, near: float, nodes: int, orders: int) -> None:
        super().__init__()
        self.near = near
        self.nodes = nodes
        self.register_buffer("debye", torch.tensor(debye_polynomials(orders), dtype=torch.float64))

    def forward(self, v: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        r = torch.hypot(v, x)
        square = (v / r) ** 2
        total = torch.zeros_like(r)
        for polynomial in self.debye.flip(0, 1):
            # Horner in p^2, then in -1 / r.
            u = torch.zeros_like(r)
            for coefficient in polynomial:
                u = u * square + coefficient
            total = u - total / r
        far = 0.5 * torch.log(0.5 * math.pi / r) - r - v * torch.log(x / (v + r)) + torch.log(total)

        close = r < self.near
        order, argument = torch.where(close, v, 1.0), torch.where(close, x, 1.0)
        slope = torch.where(close, r, 1.0)
        saddle = torch.asinh(order / argument)
        reach = 2.0 * torch.asinh(torch.sqrt(20.0 / argument))
        step = (saddle + 2.0 * reach) / (self.nodes - 1)
        integral = torch.zeros_like(r)
        for node in range(self.nodes):
            s = node * step - (saddle + reach)
            half = torch.sinh(0.5 * s)
            integral = integral + torch.exp(-2.0 * slope * half * half - order * (torch.sinh(s) - s))
        near = order * saddle - slope + torch.log(0.5 * step * integral)
        return torch.where(close, near, far)


def get_inputs():
    # Magnitudes from 2 to 20,000, one of each row, and directions from v = 0, one in eight, to x = v / 1000.
    magnitude = 2.0 * 1e4 ** torch.linspace(0.0, 1.0, ROWS, dtype=torch.float64)[:, None]
    magnitude = magnitude * (0.5 + 0.5 * torch.rand(ROWS, COLS, dtype=torch.float64))
    angle = 0.5 * math.pi * torch.rand(ROWS, COLS, dtype=torch.float64)
    angle = torch.where(torch.rand(ROWS, COLS) < 0.125, 0.0, angle)
    return [magnitude * torch.sin(angle), magnitude * torch.clamp(torch.cos(angle), min=1e-3)]


def get_init_inputs():
    return [NEAR, NODES, ORDERS]
