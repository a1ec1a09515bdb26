"""The fit of the parameters: damped least squares on logarithms of times, with priors, robust against outliers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from baseline_parts.samples import Sample
from kernelforge.hardware.specs import DeviceSpec
from kernelforge.prediction.baseline import NORMAL_90, compiled_times, total_us, traffic
from kernelforge.prediction.operator_time import Setting, Traffic, operator_us
from kernelforge.prediction.operators import Operator

Array = np.ndarray[Any, np.dtype[np.float64]]
Values = dict[str, float]

OUTLIER = 0.25
"""Error of a logarithm from which on a sample counts less."""
PRIOR_WEIGHT = 0.5
ROUNDS = 15
HOST_US = 20.0
"""Time per operator of a middling host."""
COMPILED = ("compile.bandwidth", "compile.library", "compile.call_us", "compile.host")
"""Parameters that only times of ``torch.compile`` depend on."""


class Prior(NamedTuple):
    """Value that physics or a kernel's source suggests for a parameter."""

    value: float
    spread: float = 0.7
    """How far the logarithm may stray; 0 if the parameter is not fitted."""


class _Call(NamedTuple):
    """One distinct operator on one GPU."""

    operator: Operator
    moved: Traffic
    gpu: DeviceSpec
    tf32: bool


def host_name(sample: Sample) -> str:
    """The parameter for the host of a sample's machine."""
    return f"host_us {sample.source}"


def host_us(sample: Sample, values: Values) -> float:
    """Microseconds per operator of a sample's host; of one that was never seen, a middling one."""
    return values.get(host_name(sample), HOST_US)


class Problem:
    """Samples of eager PyTorch and its graphs, as sums over distinct operators."""

    def __init__(self, samples: Sequence[Sample], priors: Mapping[str, Prior]) -> None:
        self.samples = samples
        hosts = {host_name(sample): Prior(HOST_US, 1.5) for sample in samples if sample.kind == "eager"}
        self.priors = priors = {**priors, **hosts}
        self.names = [name for name, prior in priors.items() if prior.spread and name not in COMPILED]
        start = {name: prior.value for name, prior in priors.items()}
        self.calls: list[_Call] = []
        positions: dict[Any, int] = {}
        rows, columns, counts = [], [], []
        for row, sample in enumerate(samples):
            setting = Setting(sample.gpu, start, sample.tf32)
            every = traffic(sample.operators, setting)
            for position in sample.part or range(len(every)):
                operator, moved = sample.operators[position], every[position]
                geometry = tuple(sorted(operator.geometry.items()))
                operands = tuple(operand.bytes for operand in operator.reads)
                key = (operator.name, operator.dtype, geometry, operands, moved, sample.gpu.key, sample.tf32)
                if key not in positions:
                    positions[key] = len(self.calls)
                    self.calls.append(_Call(operator, moved, sample.gpu, sample.tf32))
                rows.append(row)
                columns.append(positions[key])
                counts.append(float(operator.calls))
        self._rows, self._columns, self._counts = np.array(rows), np.array(columns), np.array(counts)
        self._launches = np.bincount(self._rows, weights=self._counts, minlength=len(samples)).astype(int)
        self._log_times = np.log([sample.time_us for sample in samples])
        each = range(len(self.calls))
        before = self._times(start, each)
        self._touched = {}
        for name in self.names:
            after = self._times({**start, name: 1.3 * start[name]}, each)
            self._touched[name] = np.nonzero(np.abs(after / before - 1.0) > 1e-9)[0]

    def _times(self, values: Values, calls: Iterable[int]) -> Array:
        settings: dict[tuple[str, bool], Setting] = {}
        times = []
        for position in calls:
            operator, moved, gpu, tf32 = self.calls[position]
            setting = settings.setdefault((gpu.key, tf32), Setting(gpu, values, tf32))
            times.append(operator_us(operator, moved, setting))
        return np.array(times)

    def _totals(self, times: Array, values: Values) -> Array:
        sums = np.bincount(self._rows, weights=self._counts * times[self._columns], minlength=len(self.samples))
        return np.array([
            gpu_us if sample.part else total_us(gpu_us, int(launches), sample.kind, values, host_us(sample, values))
            for sample, gpu_us, launches in zip(self.samples, sums, self._launches, strict=True)
        ])  # fmt: skip

    def errors(self, values: Values) -> Array:
        """Logarithm of predicted over measured time of every sample."""
        return np.log(self._totals(self._times(values, range(len(self.calls))), values)) - self._log_times

    def fit(self, weights: Array, start: Values) -> Values:
        """Parameters that fit the samples with their weights best."""
        values, damping = dict(start), 1e-3
        spreads = np.array([self.priors[name].spread for name in self.names])
        used = set(self._columns[weights[self._rows] > 0].tolist())

        def cost(errors: Array, strays: Array) -> float:
            data = weights * OUTLIER**2 * np.log1p((errors / OUTLIER) ** 2)
            return float(data.sum() + PRIOR_WEIGHT * (strays / spreads) @ (strays / spreads))

        def strays_of(values: Values) -> Array:
            return np.array([math.log(values[name] / self.priors[name].value) for name in self.names])

        times = self._times(values, range(len(self.calls)))
        totals = self._totals(times, values)
        errors, strays = np.log(totals) - self._log_times, strays_of(values)
        before = cost(errors, strays)
        for _ in range(ROUNDS):
            slopes = np.zeros((len(self.samples), len(self.names)))
            for column, name in enumerate(self.names):
                moved = {**values, name: 1.02 * values[name]}
                touched = [position for position in self._touched[name] if position in used]
                shifted = times.copy()
                if touched:
                    shifted[touched] = self._times(moved, touched)
                slopes[:, column] = (np.log(self._totals(shifted, moved)) - np.log(totals)) / math.log(1.02)
            robust = weights / (1.0 + (errors / OUTLIER) ** 2)
            normal = slopes.T @ (robust[:, None] * slopes) + np.diag(PRIOR_WEIGHT / spreads**2)
            gradient = slopes.T @ (robust * errors) + PRIOR_WEIGHT * strays / spreads**2
            for _ in range(8):
                step = np.clip(-np.linalg.solve(normal + damping * np.diag(np.diag(normal)), gradient), -1.0, 1.0)
                nearer = dict(values)
                nearer |= {name: values[name] * math.exp(move) for name, move in zip(self.names, step, strict=True)}
                times_after = self._times(nearer, range(len(self.calls)))
                totals_after = self._totals(times_after, nearer)
                errors_after, strays_after = np.log(totals_after) - self._log_times, strays_of(nearer)
                after = cost(errors_after, strays_after)
                if after < before:
                    break
                damping *= 5.0
            else:
                return values
            gain, before = before - after, after
            values, times, totals, errors, strays = nearer, times_after, totals_after, errors_after, strays_after
            damping = max(damping / 5.0, 1e-6)
            if gain < 1e-4 * before:
                return values
        return values


def _compiled_us(sample: Sample, values: Values, *, bandwidth: float, library: float) -> float:
    """Sum of the kernels of ``torch.compile``."""
    changed = {**values, "compile.bandwidth": bandwidth, "compile.library": library}
    times = compiled_times(sample.operators, Setting(sample.gpu, changed, sample.tf32))
    return sum(part.time_us for part in times)


def compiled_errors(samples: Sequence[Sample], values: Values) -> Array:
    """Logarithm of predicted over measured time, of samples of ``torch.compile``."""
    errors = []
    for sample in samples:
        times = compiled_times(sample.operators, Setting(sample.gpu, values, sample.tf32))
        calls = sum(operator.calls for operator in sample.operators)
        total = total_us(sum(part.time_us for part in times), calls, "compile", values, host_us(sample, values))
        errors.append(math.log(total / sample.time_us))
    return np.array(errors)


def fit_compiled(samples: Sequence[Sample], weights: Array, values: Values, priors: Mapping[str, Prior]) -> Values:
    """Parameters of ``torch.compile`` that fit best, all others as they are, by a search along one after another."""
    kernels = []
    for sample in samples:
        # Linear in the one and in the inverse of the other.
        plain = _compiled_us(sample, values, bandwidth=1.0, library=1.0)
        own = 2.0 * (plain - _compiled_us(sample, values, bandwidth=2.0, library=1.0))
        library = _compiled_us(sample, values, bandwidth=1.0, library=2.0) - plain
        kernels.append((own, library, plain - own - library, sum(operator.calls for operator in sample.operators)))
    hosts = [host_us(sample, values) for sample in samples]
    measured = np.log([sample.time_us for sample in samples])

    def cost(values: Values) -> float:
        bandwidth, factor = values["compile.bandwidth"], values["compile.library"]
        totals = [
            total_us(own / bandwidth + library * factor + rest, calls, "compile", values, host)
            for (own, library, rest, calls), host in zip(kernels, hosts, strict=True)
        ]
        errors = np.log(totals) - measured
        strays = [math.log(values[name] / priors[name].value) / priors[name].spread for name in COMPILED]
        data = weights * OUTLIER**2 * np.log1p((errors / OUTLIER) ** 2)
        return float(data.sum() + PRIOR_WEIGHT * sum(stray**2 for stray in strays))

    best, least, step = dict(values), cost(values), 0.4
    while step > 0.01:
        trials = [{**best, name: best[name] * math.exp(move)} for name in COMPILED for move in (-step, step)]
        costs = [cost(trial) for trial in trials]
        if min(costs) < least:
            best, least = trials[int(np.argmin(costs))], min(costs)
        else:
            step /= 2.0
    return best


def spread_by_kind(
    errors: Array, shares: Sequence[Mapping[str, float]], groups: Sequence[str], kinds: Sequence[str]
) -> Values:
    """Standard deviations by kind of operator whose sums of squares, by share of the time, are the squared errors.

    Non-negative least squares, robust by a limit on the errors; then all are scaled so that 90 % of the errors of each
    group lie in the interval of 90 %.
    """
    names = ["any", *kinds]
    matrix = np.array([[1.0, *(share.get(kind, 0.0) ** 2 for kind in kinds)] for share in shares])
    limited = np.minimum(np.abs(errors), 1.2) ** 2
    # A prior keeps kinds that few samples hold near to what all have.
    typical = float(np.mean(limited))
    rows = np.vstack([matrix, np.eye(len(names))])
    aims = np.concatenate([limited, [0.3 * typical, *[1.2 * typical] * len(kinds)]])
    variances = np.full(len(names), typical)
    for _ in range(500):
        variances *= (rows.T @ aims) / np.maximum(rows.T @ (rows @ variances), 1e-12)
    widths = np.abs(errors) / np.sqrt(matrix @ variances)
    scale = max(np.quantile(widths[np.array(groups) == group], 0.9) for group in set(groups)) / NORMAL_90
    return {name: float(scale * math.sqrt(variance)) for name, variance in zip(names, variances, strict=True)}
