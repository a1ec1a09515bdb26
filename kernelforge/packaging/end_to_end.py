"""Time of a captured model before and after operators replace groups of it, with the intervals of both.

Both are sums of kernels with the launches of eager PyTorch, or of a CUDA graph, by the model of predicted times. What
is replaced loses the kernels and the operators of its calls; each call gets the operator's time and, by the host, the
launches of its plan. So a group with share f of the time and an operator s times as fast gives
1 / (1 - f + f / s): Amdahl's law.

The interval is of draws in which errors are as in :mod:`kernelforge.prediction`: all times of PyTorch by one factor,
all of one kind of operator by another, each packaged time by its own.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from kernelforge.errors import UsageError
from kernelforge.hardware.specs import DeviceSpec
from kernelforge.packaging.manifest import Manifest
from kernelforge.prediction.baseline import NORMAL_90, Fit, fitted, predict_baseline, total_us
from kernelforge.prediction.operators import Operand, Operator, OperatorTrace
from kernelforge.prediction.speedup import kernel_spread
from kernelforge.records import TensorSpec

DRAWS: Final = 4000
"""Of errors: an end of the interval moves by about 2 % of its distance from the middle from one seed to another."""


class Interval(NamedTuple):
    """A predicted number with its 90 % interval."""

    value: float
    low: float
    high: float


class Gain(NamedTuple):
    """Times of a call of the model, and their ratio."""

    before_us: Interval
    after_us: Interval
    gain: Interval


@dataclass(frozen=True)
class Kernels:
    """Kernels that eager PyTorch runs."""

    time_us: Mapping[str, float]
    """By kind of operator."""
    operators: int
    """Operators that the host launches."""


@dataclass(frozen=True)
class Exchange:
    """Kernels that an operator replaces, all calls together, and its time."""

    removed: Kernels
    calls: int
    operator_us: float
    """Of one call."""
    spread: float
    """Standard deviation of the logarithm of that time around the true one."""
    launches: int = 1
    """Of one call: the host takes as long for each as for an operator of PyTorch."""
    copies_us: float = 0.0
    """Of one call: of copies that bring outputs into the strides of the model."""


def predicted_gain(
    kernels: Kernels, exchanges: Sequence[Exchange], spec: DeviceSpec, *, graph: bool = False, draws: int = DRAWS
) -> Gain:
    """Time before and after.

    Args:
        kernels: Those of the model.
        exchanges: What is replaced.
        spec: The GPU.
        graph: Launched by a CUDA graph, not one by one by the host.
        draws: Number of draws for the interval.
    """
    import numpy as np

    fit, other_gpu = fitted(), spec.key not in fitted().gpus
    names = sorted(kernels.time_us)
    rng = np.random.default_rng(0)
    spreads = np.array([fit.spread[name] for name in names])
    common = math.hypot(fit.spread["any"], fit.spread["gpu"] if other_gpu else 0.0)
    of_all = np.concatenate([[0.0], rng.standard_normal(draws) * common])
    of_kinds = np.vstack([np.zeros(len(names)), rng.standard_normal((draws, len(names))) * spreads])
    own = np.vstack([np.zeros(len(exchanges)), rng.standard_normal((draws, len(exchanges)))])
    before, after = [], []
    for every, kinds, each in zip(of_all, of_kinds, own, strict=True):
        factors = dict(zip(names, np.exp(kinds), strict=True))
        total = _sum(kernels, factors)
        replaced = total
        for exchange, error in zip(exchanges, each, strict=True):
            replaced -= _sum(exchange.removed, factors)
            # Times of operators do not err with those of PyTorch, which the last line multiplies.
            packaged = exchange.operator_us * math.exp(error * exchange.spread - every)
            replaced += exchange.calls * (packaged + exchange.copies_us)
        calls = kernels.operators + sum(
            exchange.calls * (exchange.launches + (exchange.copies_us > 0)) - exchange.removed.operators
            for exchange in exchanges
        )
        before.append(math.exp(every) * _call_us(total, kernels.operators, fit, graph))
        after.append(math.exp(every) * _call_us(max(replaced, 0.0), calls, fit, graph))
    ratios = [first / second for first, second in zip(before, after, strict=True)]
    return Gain(_interval(before), _interval(after), _interval(ratios))


def _sum(kernels: Kernels, factors: Mapping[str, float]) -> float:
    return sum(time_us * factors[kind] for kind, time_us in kernels.time_us.items())


def _call_us(gpu_us: float, operators: int, fit: Fit, graph: bool) -> float:
    return total_us(gpu_us, operators, "graph" if graph else "eager", fit.parameters, fit.parameters["host_us"])


def _interval(values: Sequence[float]) -> Interval:
    """The first value, which has no error, with the 5th and the 95th percentile of the others."""
    import numpy as np

    low, high = np.percentile(values[1:], [5, 95]) if len(values) > 1 else (values[0], values[0])
    return Interval(values[0], min(float(low), values[0]), max(float(high), values[0]))


def kernels_of(trace: OperatorTrace, spec: DeviceSpec, positions: Sequence[int] | None = None) -> Kernels:
    """Kernels of a model, or of the operators at some positions of its trace; a repeated position counts again."""
    times = predict_baseline(trace, spec).per_operator
    counts = Counter(positions) if positions is not None else {at: part.calls for at, part in enumerate(times)}
    by_kind: dict[str, float] = {}
    for at, count in counts.items():
        part = times[at]
        by_kind[part.kind] = by_kind.get(part.kind, 0.0) + count * part.time_us / part.calls
    return Kernels(by_kind, sum(counts.values()))


def packaged_time(manifest: Manifest) -> tuple[float, float]:
    """Time of one call of a package's operator, and the standard deviation of its logarithm.

    Raises:
        UsageError: The package has no time.
    """
    if manifest.time is None:
        raise UsageError(f"{manifest.name} has no time: its evaluation was of correctness alone")
    time = manifest.time
    if time.low_us is not None and time.high_us is not None:
        return time.us, math.log(time.high_us / time.low_us) / (2 * NORMAL_90)
    if time.origin == "measured":
        return time.us, 0.0
    speedup, reference = manifest.speedup, manifest.reference_us
    if speedup is None or reference is None or reference.low_us is None or reference.high_us is None:
        return time.us, kernel_spread(0.0)
    # The speedup's interval is of both times' errors, which are independent.
    both = math.log(speedup.high / speedup.low) / (2 * NORMAL_90)
    eager = math.log(reference.high_us / reference.low_us) / (2 * NORMAL_90)
    return time.us, math.sqrt(max(both**2 - eager**2, 0.0))


def copies_us(outputs: Sequence[TensorSpec], restored: Sequence[tuple[int, ...] | None], spec: DeviceSpec) -> float:
    """Time of the copies that bring outputs of one call into the model's strides."""
    copied = [output for output, axes in zip(outputs, restored, strict=False) if axes is not None]
    operators = [
        Operator(
            name="clone",
            kind="copy",
            dtype=output.dtype.value,
            reads=(Operand(bytes=output.nbytes),),
            write_bytes=output.nbytes,
            flops=0,
            geometry={"elements": output.numel, "strided": 1},
        )
        for output in copied
    ]
    if not operators:
        return 0.0
    times = predict_baseline(OperatorTrace(size="full", operators=tuple(operators)), spec).per_operator
    return sum(part.time_us for part in times)
