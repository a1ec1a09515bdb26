"""Tolerance of each output element against the float64 reference.

For an output y in float64, with unit roundoff u of the output's dtype, the tolerance of element i is

    u * (factor * scale_i + floor * c_i)

    scale_i = |y_i| + rms of y over i's row (never less than what flushes to zero / u)

    factor = max(floor, 4 * r_torch, 4 * r_sequential, 2 * sqrt(declared terms)), at most cap / u

r_torch and r_sequential are the largest errors, in units of u * scale, of torch at the task's precision and of the
same reference with every sum taken in order (module ``sequential_sums``), in the accumulator that the task allows;
float16 has an allowance and a cap of its own. So the bound is measured on the very inputs of the draw: an honest
in-order sum passes, a narrower accumulator or rounded operands do not. The row's part of the scale is there
because cancellation leaves errors that a near-zero result cannot carry. c_i is the element's conditioning: how far y_i
moves, per relative unit, when inputs and weights are nudged at random in float64. Rounding the inputs alone would cost
u * c_i, so no honest kernel can do better. It counts up to 2**-4 of the scale.

Where a task allows a float16 accumulator, the largest error of a long sum covers operands rounded to 8 bits. There the
errors of all elements together are bounded too: their rms, in units of the tolerance, is at most ``SPREAD`` times that
of the sums in order, or that of the floor. Rounded operands err like a random number in every element, sums in order
only in the last of their bits.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch

FLOOR = {torch.float64: 16.0, torch.float32: 16.0, torch.float16: 4.0, torch.bfloat16: 4.0}
"""Units in the last place (of the scale) that are always allowed: a few roundings and ``.approx`` functions."""

CAP = {torch.float64: 2.0**-30, torch.float32: 2.0**-12, torch.float16: 2.0**-6, torch.bfloat16: 2.0**-4}
"""Largest relative tolerance. Inputs on which torch itself errs more are not admitted."""

ILL_CONDITIONED = 2.0**-4
"""Most that conditioning adds, relative to the scale. At a step (``floor`` of a whole number, ``==``) the formula is
conditioned without bound, and without a bound every answer would do."""

SAFETY = 4.0
"""Allowance over a measured error: another honest order or rounding of the same sum."""

HALF_SAFETY = 3.0
"""The same over in-order sums in float16. Each term is rounded there, which is the worst of the honest ways: a tensor
core that adds 16 terms before it rounds errs a quarter to a third of that. What is left is another order, which erred
up to twice as much on 24 draws of sums of 8,196 terms."""

HALF_CAP = 2.0**-2
"""The cap where a task declares a float16 accumulator. On signed normal inputs the largest in-order error of a product,
relative to the scale, was measured as 0.016 at 1,540 terms, 0.043 at 4,096 and 0.055 at 16,384 (in steps of 16: 0.004,
0.008 and 0.019). So the cap cuts nothing up to 16,384 terms; zeros, which err half the scale and more, still fail."""

HALF_RANGE = 0.75 * torch.finfo(torch.float16).max
"""Largest result of a float16 accumulator on inputs of our own making."""

SPREAD = 2.0
"""Allowance over the rms of sums in order in float16. Other honest ways (reversed, split, each product rounded first)
were 0.13 to 1.27 of it at 64 to 16,384 terms, operands in e4m3 2.3 and more."""

SPREAD_LEAST = 128
"""Elements from which on an rms is a statement about the kernel and not about the draw."""

PIECE = 1 << 20
"""Elements that are worked on at a time: temporaries of a large output would take several times its memory, and on a
CPU a piece stays in the cache."""

_ROW = 16
"""Rows shorter than this share one scale with the whole output."""


@dataclass(frozen=True)
class Expected:
    """Expected values of one output. ``reference`` is torch's value at the task's precision."""

    reference: torch.Tensor
    exact: torch.Tensor | None
    """The oracle's value in float64; None for integers and booleans."""
    tolerance: torch.Tensor | None
    """Allowed absolute error of each element, float64."""
    finite: bool = True
    """Neither torch nor the oracle gave a NaN or an infinity."""
    factor: float = 0.0
    """The tolerance in units of u * scale, conditioning aside."""
    torch_error: float = 0.0
    """torch's own largest error, relative to the scale."""
    capped: bool = False
    """The cap cut the tolerance, or a sum in order overflows: an honest candidate might not meet it."""
    ill_conditioned: bool = False
    """Rounding the inputs alone may move an element further than the tolerance allows; or an integer of torch is not
    the oracle's."""
    spread: float | None = None
    """Largest rms of the errors, in units of the tolerance; None where the largest error says enough."""
    vanishing: bool = False
    """So small everywhere that zeros would be right: a product underflowed."""

    @property
    def sound(self) -> bool:
        """torch itself errs less than the cap."""
        return self.exact is None or self.torch_error <= CAP[self.reference.dtype]

    @property
    def admitted(self) -> bool:
        """Fit for a distribution of our own making: everything is finite, and the cap cuts nothing."""
        return self.finite and not self.capped


def unit_roundoff(dtype: torch.dtype) -> float:
    """Half a unit in the last place of 1: 2**-24 for float32."""
    return torch.finfo(dtype).eps / 2


def expected_output(
    reference: torch.Tensor,
    exact: torch.Tensor,
    sequential: torch.Tensor,
    declared_terms: float = 0.0,
    condition: torch.Tensor | None = None,
    *,
    accumulator: torch.dtype = torch.float32,
) -> Expected:
    """Tolerance of one output from three runs: task precision, float64, task precision with sums in order.

    ``condition`` is the elementwise c of the module's formula; None where it was not measured. ``accumulator`` is what
    the task allows, in which ``sequential`` was summed.
    """
    dtype = reference.dtype
    if not dtype.is_floating_point:
        return Expected(reference, None, None, ill_conditioned=not torch.equal(reference, exact.to(dtype)))
    unit = unit_roundoff(dtype)
    double = exact.double()
    finite = _all_finite(double) and _all_finite(reference)
    # An in-order sum that overflows where torch's does not: an honest candidate might do the same.
    orderly = not finite or sequential is reference or _all_finite(sequential)
    half = accumulator == torch.float16
    if half and finite and double.numel():
        # So may the partial sums of another order, where the whole sum comes near the end of the range.
        orderly = orderly and float(torch.linalg.vector_norm(double, math.inf)) <= HALF_RANGE
    least = _tiny(dtype) / unit
    scale = _scale(double, finite, least)
    vanishing = finite and double.numel() > 0 and float(torch.linalg.vector_norm(double, math.inf)) < least
    torch_ratio = _largest_ratio(reference, double, scale)
    sequential_ratio = torch_ratio if sequential is reference else _largest_ratio(sequential, double, scale)
    coarser = max(unit_roundoff(accumulator) / unit, 1.0) if half else 1.0
    factor = max(
        FLOOR[dtype],
        SAFETY * torch_ratio / unit,
        (HALF_SAFETY if half else SAFETY) * sequential_ratio / unit,
        2 * coarser * math.sqrt(declared_terms),
    )
    limit = (max(HALF_CAP, CAP[dtype]) if half else CAP[dtype]) / unit
    capped, factor = factor > limit, min(factor, limit)
    tolerance = scale.mul_(unit * factor)
    ill_conditioned = False
    if condition is not None:
        for allowed, moved in pieces(tolerance, condition):
            most = allowed * (ILL_CONDITIONED / (unit * factor))
            allowance = moved * (unit * FLOOR[dtype])
            ill_conditioned = bool((allowance > most).any()) or ill_conditioned
            allowed.add_(torch.minimum(allowance, most))
    spread = None
    if half and finite and double.numel() >= SPREAD_LEAST:
        honest = max(_measured_rms(sequential, reference, double, tolerance), rms_error(reference, double, tolerance))
        spread = max(SPREAD * honest, FLOOR[dtype] / factor)
    return Expected(
        reference,
        double,
        tolerance,
        finite,
        factor,
        torch_ratio,
        capped or not orderly,
        ill_conditioned,
        spread,
        vanishing,
    )


def _all_finite(value: torch.Tensor) -> bool:
    """One pass without a temporary; NaN and infinities both reach the extremes."""
    return value.numel() == 0 or all(math.isfinite(float(extreme)) for extreme in value.aminmax())


def _tiny(dtype: torch.dtype) -> float:
    """Largest magnitude that may be flushed to zero: subnormals, except for float16, whose subnormals GPUs keep."""
    return 2.0**-23 if dtype == torch.float16 else torch.finfo(dtype).smallest_normal


def _scale(exact: torch.Tensor, finite: bool, least: float) -> torch.Tensor:
    """|y_i| + rms of its row, at least ``least``; 1-D outputs and short rows take the rms of the whole output."""
    magnitude = exact.abs() if finite else exact.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0).abs_()
    if magnitude.numel() == 0:
        return magnitude
    if magnitude.dim() >= 2 and magnitude.shape[-1] >= _ROW:
        rms = torch.linalg.vector_norm(magnitude, dim=-1, keepdim=True) / math.sqrt(magnitude.shape[-1])
    else:
        rms = torch.linalg.vector_norm(magnitude) / math.sqrt(magnitude.numel())
    return magnitude.add_(rms).clamp_min_(least)


def _largest_ratio(value: torch.Tensor, exact: torch.Tensor, scale: torch.Tensor) -> float:
    """Largest |value - exact| / scale over elements where both are finite."""
    if exact.numel() == 0:
        return 0.0
    largest = 0.0
    for values, truth, unit in pieces(value, exact, scale):
        ratio = torch.sub(values, truth).abs_().div_(unit)
        part_largest = float(ratio.max())
        largest = max(
            largest,
            part_largest if math.isfinite(part_largest) else float(ratio.nan_to_num_(nan=0.0, posinf=0.0).max()),
        )
    return largest


def rms_error(value: torch.Tensor, exact: torch.Tensor, tolerance: torch.Tensor) -> float:
    """Root of the mean square of errors in units of the tolerance; not finite where a value is not."""
    flat = value.reshape(-1), exact.reshape(-1), tolerance.reshape(-1)
    squares = [torch.sub(values, truth).div_(allowed).square_().sum() for values, truth, allowed in pieces(*flat)]
    return math.sqrt(float(torch.stack(squares).sum()) / max(exact.numel(), 1))


def _measured_rms(
    sequential: torch.Tensor, reference: torch.Tensor, exact: torch.Tensor, tolerance: torch.Tensor
) -> float:
    """The rms of sums in order. Of a large output only some are: where they give what torch gives, nothing is known."""
    summed = sequential != reference
    if not bool(summed.any()) or not bool(torch.isfinite(sequential).all()):
        return 0.0
    return rms_error(sequential[summed], exact[summed], tolerance[summed])


def pieces(*tensors: torch.Tensor) -> Iterator[tuple[torch.Tensor, ...]]:
    """Views of tensors of one shape, :data:`PIECE` elements of each at a time; the tensors themselves where one of them
    cannot be seen as a flat row."""
    if not all(tensor.is_contiguous() and tensor.shape == tensors[0].shape for tensor in tensors):
        yield tensors
        return
    flat = [tensor.view(-1) for tensor in tensors]
    for start in range(0, flat[0].numel(), PIECE):
        yield tuple(tensor[start : start + PIECE] for tensor in flat)
