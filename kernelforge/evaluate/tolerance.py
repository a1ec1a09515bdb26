"""Child side: how far a candidate may be from the float64 oracle, element by element.

For an output y in float64, with unit roundoff u of the output's dtype, the tolerance of element i is

    u * factor * scale_i + tiny        scale_i = |y_i| + rms of y over i's row

    factor = max(floor, 4 * r_torch, 4 * r_sequential, 2 * sqrt(declared terms)), at most cap / u

r_torch and r_sequential are the largest errors, in units of u * scale, of torch at the task's precision and of the
same reference with every sum taken in order (:mod:`kernelforge.evaluate.sequential`). So the bound is measured on
the very inputs of the draw: an honest in-order sum passes, a narrower accumulator or rounded operands do not.
The row's part of the scale is there because cancellation leaves errors that a near-zero result cannot carry.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

FLOOR = {torch.float64: 16.0, torch.float32: 16.0, torch.float16: 4.0, torch.bfloat16: 4.0}
"""Units in the last place (of the scale) that are always allowed: a few roundings and ``.approx`` functions."""

CAP = {torch.float64: 2.0**-30, torch.float32: 2.0**-12, torch.float16: 2.0**-6, torch.bfloat16: 2.0**-4}
"""Largest relative tolerance. Inputs on which torch itself errs more are not admitted."""

SAFETY = 4.0
"""Allowance over a measured error: another honest order or rounding of the same sum."""

_ROW = 16
"""Rows shorter than this share one scale with the whole output."""


@dataclass(frozen=True)
class Expected:
    """What one output must be. ``reference`` is torch's value at the task's precision."""

    reference: torch.Tensor
    exact: torch.Tensor | None
    """The oracle's value in float64; None for integers and booleans."""
    tolerance: torch.Tensor | None
    """Allowed absolute error of each element, float64."""
    factor: float = 0.0
    """The tolerance in units of u * scale."""
    torch_error: float = 0.0
    """torch's own largest error, relative to the scale."""
    capped: bool = False
    """The cap cut the tolerance: an honest candidate might not meet it."""

    @property
    def sound(self) -> bool:
        """torch itself errs less than the cap."""
        return self.exact is None or self.torch_error <= CAP[self.reference.dtype]

    @property
    def admitted(self) -> bool:
        """Fit for a distribution of our own making: everything is finite, and the cap cuts nothing."""
        if self.exact is None:
            return True
        finite = bool(torch.isfinite(self.exact).all()) and bool(torch.isfinite(self.reference).all())
        return finite and not self.capped


def unit_roundoff(dtype: torch.dtype) -> float:
    """Half a unit in the last place of 1: 2**-24 for float32."""
    return torch.finfo(dtype).eps / 2


def expected_output(
    reference: torch.Tensor, exact: torch.Tensor, sequential: torch.Tensor, declared_terms: float = 0.0
) -> Expected:
    """Tolerance of one output from three runs: task precision, float64, task precision with sums in order."""
    dtype = reference.dtype
    if not dtype.is_floating_point:
        return Expected(reference, None, None)
    unit = unit_roundoff(dtype)
    double = exact.double()
    scale = _scale(double)
    torch_ratio = _largest_ratio(reference, double, scale)
    sequential_ratio = torch_ratio if sequential is reference else _largest_ratio(sequential, double, scale)
    factor = max(
        FLOOR[dtype], SAFETY * torch_ratio / unit, SAFETY * sequential_ratio / unit, 2 * math.sqrt(declared_terms)
    )
    limit = CAP[dtype] / unit
    capped, factor = factor > limit, min(factor, limit)
    tiny = torch.finfo(dtype).smallest_normal if dtype != torch.float16 else 2.0**-23
    return Expected(reference, double, scale.mul_(unit * factor).add_(tiny), factor, torch_ratio, capped)


def _scale(exact: torch.Tensor) -> torch.Tensor:
    """|y_i| + rms of its row, over finite values; 1-D outputs and short rows take the rms of the whole output."""
    magnitude = torch.nan_to_num(exact, nan=0.0, posinf=0.0, neginf=0.0).abs()
    if magnitude.numel() == 0:
        return magnitude
    rows = magnitude.dim() >= 2 and magnitude.shape[-1] >= _ROW
    top = magnitude.amax(-1, keepdim=True) if rows else magnitude.max()
    # Scaled by the largest first: squares of 1e200 would overflow.
    safe = torch.where(top > 0, top, 1.0)
    part = (magnitude / safe).square()
    rms = (part.mean(-1, keepdim=True) if rows else part.mean()).sqrt() * safe
    return magnitude + rms


def _largest_ratio(value: torch.Tensor, exact: torch.Tensor, scale: torch.Tensor) -> float:
    """Largest |value - exact| / scale over elements where both are finite."""
    if exact.numel() == 0:
        return 0.0
    error = (value.double() - exact).abs()
    tiny = torch.finfo(value.dtype).smallest_normal
    ratio = torch.where(error <= tiny, 0.0, error / scale)
    return float(torch.nan_to_num(ratio, nan=0.0, posinf=0.0).max())
