"""Compare a candidate's outputs with the oracle's, and describe differences for its Coder."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from kernelforge.evaluation.oracle.worker.tolerance import Expected, pieces, rms_error, unit_roundoff
from kernelforge.records import Comparison, DType
from kernelforge.sandbox.shared_memory import Blob

_SELECTORS = {"argmax": None, "argmin": None, "max": 1, "min": 1, "topk": 1, "sort": 1, "kthvalue": 1, "median": 1}
"""Operators that give indices, and which of their results those are (None: the only one)."""


_SAMPLE = 1 << 14
"""Wrong elements that are searched for a pattern."""


@dataclass(frozen=True)
class Selection:
    """Source of an output of indices: ``values`` were searched along ``dim`` (None: flattened)."""

    indices: torch.Tensor
    values: torch.Tensor
    dim: int | None
    distinct: bool
    """Several indices per slice, all different (top-k, sort)."""


class SelectionRecorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Remembers what index-giving operators searched, so that ties can be accepted."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found: list[Selection] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        name = func.overloadpacket.__name__
        if name in _SELECTORS:
            position = _SELECTORS[name]
            indices = result if position is None else result[position] if isinstance(result, tuple | list) else None
            if isinstance(indices, torch.Tensor) and indices.dtype == torch.int64:
                dim = _argument("dim", func, args, kwargs)
                # A copy: a later in-place operator must not change what was searched.
                self.found.append(Selection(indices, args[0].detach().clone(), dim, name in ("topk", "sort")))
        return result

    def behind(self, output: torch.Tensor) -> Selection | None:
        """The selection whose indices an output is, perhaps seen through a view."""
        for selection in self.found:
            same = selection.indices.data_ptr() == output.data_ptr() and selection.indices.numel() == output.numel()
            if same and output.is_contiguous():
                return selection
        return None


def _argument(name: str, func: Any, args: Sequence[Any], kwargs: Any) -> Any:
    """An argument of an operator: the dispatcher leaves out one that has its default."""
    for position, argument in enumerate(func._schema.arguments):
        if argument.name == name:
            return args[position] if len(args) > position else kwargs.get(name, argument.default_value)
    return None


@dataclass(frozen=True)
class Got:
    """One output of a candidate, as it came back: raw elements in C order; or a baseline's own tensor."""

    data: Blob | torch.Tensor
    shape: tuple[int, ...]
    dtype: DType

    @classmethod
    def of(cls, output: torch.Tensor) -> Got:
        """A tensor of this process, as if it had come back."""
        return cls(output.contiguous(), tuple(output.shape), DType(str(output.dtype).removeprefix("torch.")))

    @property
    def nbytes(self) -> int:
        """Bytes that came."""
        return self.data.nbytes if isinstance(self.data, torch.Tensor) else len(self.data)

    def on(self, reference: torch.Tensor) -> torch.Tensor:
        """The values, where the reference's are and in its shape; not to be written to."""
        if isinstance(self.data, torch.Tensor):
            return self.data.reshape(reference.shape)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the bytes are read only, and so is what is made of them
            flat = torch.frombuffer(self.data, dtype=reference.dtype)
        return flat.reshape(reference.shape).to(reference.device)


def compare_outputs(
    expected: Sequence[Expected],
    got: Sequence[Got],
    selections: Sequence[Selection | None],
    *,
    hidden: bool = False,
) -> Comparison:
    """Compare all outputs; the first that fails is reported, with the largest error over all of them.

    ``hidden`` keeps shapes, indices and counts out of the message: they would tell a hidden size.
    """
    if len(got) != len(expected):
        return Comparison(ok=False, message=f"{len(got)} outputs came back, the reference has {len(expected)}")
    worst = 0.0
    for position, (want, have, selection) in enumerate(zip(expected, got, selections, strict=True)):
        result = _compare_one(position, want, have, selection, hidden)
        if not result.ok:
            return result
        worst = max(worst, result.error or 0.0)
    return Comparison(ok=True, error=worst, total=sum(want.reference.numel() for want in expected))


def _compare_one(position: int, want: Expected, got: Got, selection: Selection | None, hidden: bool) -> Comparison:
    reference = want.reference
    dtype = DType(str(reference.dtype).removeprefix("torch."))
    if tuple(got.shape) != tuple(reference.shape) or got.dtype != dtype:
        what = f"output {position} has shape {_shape(got.shape)} and dtype {got.dtype}"
        need = f"dtype {dtype}" if hidden else f"shape {_shape(reference.shape)} and dtype {dtype}"
        return Comparison(ok=False, output=position, message=f"{what}; the reference has {need}")
    if got.nbytes != reference.numel() * dtype.itemsize:
        message = f"output {position} came back as {got.nbytes} bytes, which its shape and dtype do not fill"
        return Comparison(ok=False, output=position, message=message)
    if reference.numel() == 0:
        return Comparison(ok=True, output=position, error=0.0)
    value = got.on(reference)
    if want.exact is None or want.tolerance is None:
        error = _index_error(value, reference, selection)
    else:
        most = _largest_error(value, want.exact, want.tolerance)
        if want.finite and most <= 1.0:
            if want.spread is not None and (spread := rms_error(value, want.exact, want.tolerance)) > want.spread:
                message = (
                    f"output {position}: each element is within the tolerance, but all of them err more than sums in a "
                    f"float16 accumulator do, {spread / want.spread:.2g} times what is allowed: are operands rounded?"
                )
                return Comparison(
                    ok=False,
                    output=position,
                    message=message,
                    mismatched=0,
                    total=reference.numel(),
                    error=max(most, spread / want.spread),
                )
            return Comparison(ok=True, output=position, total=reference.numel(), error=most)
        error = _float_error(value, want)
    wrong = error > 1.0
    count = int(wrong.sum())
    largest = float(error.max())
    if count == 0:
        return Comparison(ok=True, output=position, total=reference.numel(), error=largest)
    flat = int(error.argmax())
    index = tuple(int(i) for i in torch.unravel_index(torch.tensor(flat), reference.shape))
    exact = reference if want.exact is None else want.exact
    if not want.finite:
        exact = torch.where(torch.isfinite(reference), exact, reference.double())
    expected_value, got_value = exact.reshape(-1)[flat].item(), value.reshape(-1)[flat].item()
    message = _message(position, value, exact, wrong, count, index, largest, want.exact is not None, hidden)
    return Comparison(
        ok=False,
        message=message,
        output=position,
        mismatched=count,
        total=reference.numel(),
        worst_index=index,
        expected=float(expected_value),
        got=float(got_value),
        error=largest,
    )


def _largest_error(value: torch.Tensor, exact: torch.Tensor, tolerance: torch.Tensor) -> float:
    """Largest error as a multiple of the tolerance, in pieces that need little memory; NaN where one is NaN."""
    flat = value.reshape(-1), exact.reshape(-1), tolerance.reshape(-1)
    largest = [torch.sub(values, truth).abs_().div_(allowed).amax() for values, truth, allowed in pieces(*flat)]
    return float(torch.stack(largest).amax())


def _float_error(value: torch.Tensor, want: Expected) -> torch.Tensor:
    """Error as a multiple of the tolerance; infinite where NaN or Inf stands in the wrong place."""
    assert want.exact is not None
    assert want.tolerance is not None
    error = torch.sub(value, want.exact).abs_().div_(want.tolerance)
    if want.finite and math.isfinite(float(error.max())):
        return error
    reference, double = want.reference, value.double()
    special = ~torch.isfinite(reference)
    agrees = torch.where(torch.isnan(reference), torch.isnan(double), double == reference)
    error = torch.where(special, torch.where(agrees, 0.0, math.inf), error)
    # Only float64 ends in a NaN or an infinity here: torch's own value is what there is to compare with.
    beside = (double - reference).abs() / want.tolerance
    error = torch.where(~special & ~torch.isfinite(want.exact), beside, error)
    return torch.where(~special & ~torch.isfinite(double), math.inf, error)


def _index_error(value: torch.Tensor, reference: torch.Tensor, selection: Selection | None) -> torch.Tensor:
    """0 where integers agree or a tie makes another index as good, else infinite."""
    good = value == reference
    if selection is not None and not bool(good.all()):
        good = good | _tied(value, reference, selection)
    return torch.where(good, 0.0, math.inf).double()


def _tied(value: torch.Tensor, reference: torch.Tensor, selection: Selection) -> torch.Tensor:
    searched = selection.values
    if selection.dim is None or searched.dim() == 0:
        flat = searched.reshape(-1)
        lookup, want = value.reshape(-1), reference.reshape(-1)
        source, dim = flat, 0
    else:
        dim = selection.dim % searched.dim()
        shape = list(selection.indices.shape)
        if selection.indices.dim() == searched.dim() - 1:
            shape.insert(dim, 1)
        source, lookup, want = searched, value.reshape(shape), reference.reshape(shape)
    inside = (lookup >= 0) & (lookup < source.shape[dim])
    selected = source.gather(dim, lookup.clamp(0, source.shape[dim] - 1))
    theirs = source.gather(dim, want)
    near = 4 * unit_roundoff(source.dtype) * theirs.abs() if source.is_floating_point() else 0
    same = inside & ((selected == theirs) | ((selected - theirs).abs() <= near) | (selected.isnan() & theirs.isnan()))
    if selection.distinct:
        ordered = lookup.sort(dim).values
        repeated = (ordered.diff(dim=dim) == 0).any(dim, keepdim=True)
        same = same & ~repeated
    return same.reshape(value.shape)


def _message(
    position: int,
    value: torch.Tensor,
    exact: torch.Tensor,
    wrong: torch.Tensor,
    count: int,
    index: tuple[int, ...],
    largest: float,
    floating: bool,
    hidden: bool,
) -> str:
    total = value.numel()
    want, got = exact[index].item(), value[index].item()
    if hidden:
        head = f"output {position}: {_share(count, total)} of the elements differ; the worst: "
    else:
        where = f" at {list(index)}" if index else ""
        head = f"output {position} (shape {_shape(value.shape)}): {count} of {total} elements differ; worst{where}: "
    text = f"{head}expected {_number(want)}, got {_number(got)}"
    if floating and math.isfinite(largest):
        text += f"; error {largest:.3g}x the tolerance"
    hints = _hints(value, exact, wrong, count, hidden)
    return text + (f" ({'; '.join(hints)})" if hints else "")


def _hints(value: torch.Tensor, exact: torch.Tensor, wrong: torch.Tensor, count: int, hidden: bool) -> list[str]:
    """Patterns that name a bug, where they are cheap to see."""
    hints: list[str] = []
    sample = wrong.reshape(-1).nonzero().flatten()[:_SAMPLE]
    bad = value.reshape(-1)[sample]
    if value.is_floating_point():
        nans = int((torch.isnan(value) & wrong).sum())
        if nans:
            hints.append("NaN where a number is expected" if hidden else f"{nans} NaN where a number is expected")
        infinite = int((torch.isinf(value) & wrong).sum())
        if infinite:
            hints.append("Inf where a number is expected" if hidden else f"{infinite} Inf where a number is expected")
    unwritten = _uniform_bytes(bad)
    if unwritten > 0.9:
        hints.append("the differing elements look unwritten")
    elif count > 1 and bool((bad == 0).all()):
        hints.append("every differing element is zero")
    elif count > 1 and bool((bad == bad[0]).all()):
        hints.append(f"every differing element is {_number(bad[0].item())}")
    elif value.is_floating_point() and count > 8:
        ratio = bad.double() / exact.reshape(-1)[sample].double()
        finite = ratio[torch.isfinite(ratio)]
        if finite.numel() > 8:
            middle = float(finite.median())
            if abs(middle) > 1e-3 and bool(((finite - middle).abs() <= 1e-3 * abs(middle)).all()):
                hints.append(f"every differing element is {middle:.4g}x the expected one")
    if 0 < count < value.numel():
        hints += _regions(wrong, hidden)
    return hints


def _uniform_bytes(bad: torch.Tensor) -> float:
    """Share of elements whose bytes are all one value other than 00 and ff: what poisoned memory looks like."""
    if bad.dtype == torch.bool:
        return 0.0
    raw = bad.contiguous().view(torch.uint8).reshape(bad.numel(), -1)
    first = raw[:, :1]
    same = (raw == first).all(1) & (first[:, 0] != 0) & (first[:, 0] != 255) if raw.shape[1] > 1 else first[:, 0] < 0
    return float(same.double().mean())


def _regions(wrong: torch.Tensor, hidden: bool) -> list[str]:
    """Whether the wrong elements are a tail along some axis."""
    regions: list[str] = []
    for axis in range(wrong.dim()):
        others = [other for other in range(wrong.dim()) if other != axis]
        lines = wrong.any(dim=others) if others else wrong
        places = lines.nonzero().flatten()
        first, last = int(places[0]), int(places[-1])
        if first > 0 and last == wrong.shape[axis] - 1 and len(places) == last - first + 1:
            if hidden:
                regions.append(f"only a tail of axis {axis} is wrong")
            else:
                regions.append(f"only indices {first} and above along axis {axis} are wrong")
    return regions


def _share(count: int, total: int) -> str:
    if count == total:
        return "all"
    percent = 100 * count / total
    return f"{percent:.0f} %" if percent >= 1 else "under 1 %"


def _shape(shape: Sequence[int]) -> str:
    return "x".join(str(extent) for extent in shape) or "scalar"


def _number(value: float | int | bool) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)
