"""Predicted times of PyTorch for a task's reference: eager, its CUDA graph, and ``torch.compile``.

The time of every operator (:mod:`kernelforge.prediction.operator_time`) is added up, with what the host needs to launch
it. ``torch.compile`` is predicted from what Inductor fuses: chains of pointwise operators, reductions and norms move
only what enters and leaves the chain. The interval comes from the errors on tasks that the fit had not seen, by kind of
operator. ``baselines.toml`` holds all numbers, written by ``benchmarks/baselines.py``.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Literal, NamedTuple

from pydantic import Field, model_validator

from kernelforge.hardware.specs import DeviceSpec
from kernelforge.prediction.operator_time import Parameters, Setting, Traffic, at_once, operator_us
from kernelforge.prediction.operators import Operator, OperatorKind, OperatorTrace
from kernelforge.records.base import Record

BaselineKind = Literal["eager", "graph", "compile", "compile-graph"]
"""Eager PyTorch, a CUDA graph of it, ``torch.compile`` in its default mode, and a CUDA graph of that."""

COMPILED: frozenset[BaselineKind] = frozenset({"compile", "compile-graph"})

NORMAL_90 = 1.6449
"""Standard deviations from the middle to the ends of 90 % of a normal distribution."""


class OperatorTime(Record):
    """Predicted time of equal operators, or of several that ``torch.compile`` fuses."""

    name: str = Field(max_length=400)
    kind: OperatorKind
    calls: int = Field(ge=1)
    time_us: float = Field(ge=0, allow_inf_nan=False)
    """Of all calls."""


class BaselineTime(Record):
    """Time of PyTorch for one task on one GPU, without having been measured here."""

    kind: BaselineKind
    gpu: str
    """Key of the GPU: ``h100``."""
    time_us: float = Field(gt=0, allow_inf_nan=False)
    low_us: float = Field(gt=0, allow_inf_nan=False)
    high_us: float = Field(gt=0, allow_inf_nan=False)
    """Ends of the 90 % prediction interval; of a published time, those of its own spread."""
    origin: Literal["predicted", "published"]
    source: str
    """The model and the data that it was fitted on, or where the time was published."""
    tf32: bool
    """Whether convolutions of float32 ran, or would run, in TF32."""
    per_operator: tuple[OperatorTime, ...] = ()
    """In order; none for a published time."""

    @model_validator(mode="after")
    def _inside(self) -> BaselineTime:
        if not self.low_us <= self.time_us <= self.high_us:
            raise ValueError(f"{self.time_us} us lies outside of its interval, {self.low_us} to {self.high_us} us")
        return self


class Fit(NamedTuple):
    """Content of ``baselines.toml``."""

    source: str
    gpus: frozenset[str]
    """Keys of the GPUs that it was fitted on."""
    parameters: Parameters
    spread: Parameters
    """Standard deviations of the logarithm of the time, by kind of operator; ``any`` for every time, ``compile`` for
    those of ``torch.compile``, ``gpu`` on another GPU than those of the fit."""


@cache
def fitted() -> Fit:
    """The parameters that ship with the package."""
    table = tomllib.loads(Path(__file__).with_name("baselines.toml").read_text(encoding="utf-8"))
    parameters = {name: float(value) for name, value in table["parameters"].items()}
    spread = {name: float(value) for name, value in table["spread"].items()}
    return Fit(str(table["source"]), frozenset(table["gpus"]), parameters, spread)


def predict_baseline(
    trace: OperatorTrace,
    spec: DeviceSpec,
    kind: BaselineKind = "eager",
    *,
    tf32: bool = False,
) -> BaselineTime:
    """Predict the time of PyTorch for a traced reference on a GPU.

    Args:
        trace: Operators of the reference, from the oracle.
        spec: The GPU.
        kind: What runs it.
        tf32: Whether convolutions of float32 may use TF32. PyTorch lets them by default, as KernelBench does; baselines
            that KernelForge times do not.

    Raises:
        ValueError: Operators that no time follows from: extents of zero or beyond all bounds, or missing ones.
    """
    fit = fitted()
    setting = Setting(spec, fit.parameters, tf32)
    operators = trace.operators
    try:
        return _predicted(operators, setting, kind, fit)
    except (ArithmeticError, LookupError) as error:
        raise ValueError(f"no time follows from these operators: {error!r}") from error


def _predicted(operators: Sequence[Operator], setting: Setting, kind: BaselineKind, fit: Fit) -> BaselineTime:
    spec, tf32 = setting.spec, setting.tf32
    times = compiled_times(operators, setting) if kind in COMPILED else operator_times(operators, setting)
    gpu_us, calls = sum(part.time_us for part in times), sum(operator.calls for operator in operators)
    time_us = total_us(gpu_us, calls, kind, fit.parameters, fit.parameters["host_us"])
    spread = log_spread(kind_shares(times, kind), fit.spread, other_gpu=spec.key not in fit.gpus)
    width = math.exp(NORMAL_90 * spread)
    return BaselineTime(
        kind=kind,
        gpu=spec.key,
        time_us=time_us,
        low_us=time_us / width,
        high_us=time_us * width,
        origin="predicted",
        source=fit.source,
        tf32=tf32,
        per_operator=tuple(times),
    )


def total_us(gpu_us: float, calls: int, kind: BaselineKind, parameters: Parameters, host_us: float) -> float:
    """Time of a whole call: that of its kernels, or of the host where launching takes longer.

    Args:
        gpu_us: Sum of its kernels.
        calls: Operators of the reference.
        kind: What runs it.
        parameters: Those of the model.
        host_us: What the host needs for each operator of eager PyTorch, which is the machine's, not the GPU's.
    """
    if kind in ("graph", "compile-graph"):
        return gpu_us + parameters["graph_us"]
    if kind == "compile":
        return at_once(gpu_us + parameters["compile.call_us"], calls * host_us * parameters["compile.host"])
    return at_once(gpu_us + parameters["eager.call_us"] + calls * parameters["eager.gap_us"], calls * host_us)


def kind_shares(times: Sequence[OperatorTime], kind: BaselineKind) -> dict[str, float]:
    """Shares of the kinds of operators in a time; that of ``compile`` is 1 in every time of ``torch.compile``."""
    total = sum(part.time_us for part in times) or 1.0
    shares: dict[str, float] = {"compile": 1.0} if kind in COMPILED else {}
    for part in times:
        shares[part.kind] = shares.get(part.kind, 0.0) + part.time_us / total
    return shares


def log_spread(shares: Mapping[str, float], spread: Parameters, *, other_gpu: bool) -> float:
    """Standard deviation of the logarithm of a predicted time: errors of one kind go together, others do not."""
    variance = spread["any"] ** 2 + sum((share * spread[kind]) ** 2 for kind, share in shares.items())
    return math.sqrt(variance + (spread["gpu"] ** 2 if other_gpu else 0.0))


def operator_times(operators: Sequence[Operator], setting: Setting) -> list[OperatorTime]:
    """Time of each operator as eager PyTorch runs it."""
    return [
        OperatorTime(
            name=operator.name,
            kind=operator.kind,
            calls=operator.calls,
            time_us=operator.calls * operator_us(operator, moved, setting),
        )
        for operator, moved in zip(operators, traffic(operators, setting), strict=True)
    ]


def traffic(operators: Sequence[Operator], setting: Setting) -> list[Traffic]:
    """Bytes of each operator; what was written shortly before is read from the L2, as far as it fits."""
    moved = []
    for operator, operands in zip(operators, _near_bytes(operators, setting), strict=True):
        near = sum(operands)
        moved.append(Traffic(operator.read_bytes - near, near, float(operator.write_bytes)))
    return moved


def _near_bytes(operators: Sequence[Operator], setting: Setting) -> list[list[float]]:
    room = setting.parameters["l2_share"] * setting.spec.l2_bytes
    before = [0]
    for operator in operators:
        before.append(before[-1] + operator.read_bytes + operator.write_bytes)
    near = []
    for position, operator in enumerate(operators):
        near.append([0.0] * len(operator.reads))
        for at, operand in enumerate(operator.reads):
            if operand.producer is not None:
                since = before[position] - before[operand.producer + 1]
                near[position][at] = max(0.0, min(float(operand.bytes), room - since))
    return near


def near_bytes(trace: OperatorTrace, spec: DeviceSpec) -> list[list[float]]:
    """Bytes of each operand of each operator that the L2 still holds, as predicted times have it."""
    return _near_bytes(trace.operators, Setting(spec, fitted().parameters, tf32=False))


def kernel_us() -> float:
    """Microseconds that predicted times add to the work of any kernel of PyTorch; launches are not in them."""
    return fitted().parameters["kernel_us"]


_FUSED: frozenset[OperatorKind] = frozenset({
    "argreduce", "batch_norm", "copy", "fill", "gather", "group_norm", "layer_norm", "loss", "pointwise", "pooling",
    "reduction", "scan", "softmax",
})  # fmt: skip
"""Kinds that Inductor writes kernels for; it calls a library for the others."""
_LARGEST_WINDOW = 25
"""Points of a pooling window that Inductor unrolls (``lowering.py``)."""
_ROWS: frozenset[OperatorKind] = frozenset({
    "argreduce", "batch_norm", "group_norm", "layer_norm", "loss", "reduction", "softmax",
})  # fmt: skip
"""Kinds that need a whole row before its first result."""
_NORMS: frozenset[OperatorKind] = frozenset({"batch_norm", "group_norm", "layer_norm", "softmax"})
"""Those of them that then read the row again."""


def compiled_times(operators: Sequence[Operator], setting: Setting) -> list[OperatorTime]:
    """Time of each kernel that ``torch.compile`` makes or calls."""
    moved = traffic(operators, setting)
    readers: list[set[int]] = [set() for _ in operators]
    for position, operator in enumerate(operators):
        for operand in operator.reads:
            if operand.producer is not None:
                readers[operand.producer].add(position)
    times = []
    for members in fused_groups(operators):
        first = operators[members[0]]
        if _fuses(first) and (len(members) > 1 or first.kind != "scan"):
            name = "+".join(operators[position].name for position in members)[:400]
            kinds = [operators[position].kind for position in members]
            kind = next((kind for kind in kinds if kind in _ROWS), kinds[0])
            time_us, calls = _fused_us(members, operators, readers, setting), first.calls
        else:
            name, kind, calls = first.name, first.kind, first.calls
            bare = first.model_copy(update={"reads": first.reads[:2]}) if "conv" in kind else first
            time_us = calls * operator_us(bare, moved[members[0]], setting) * setting.parameters["compile.library"]
        times.append(OperatorTime(name=name, kind=kind, calls=calls, time_us=time_us))
    return times


def _fuses(operator: Operator) -> bool:
    """Whether Inductor writes a kernel for it; it calls PyTorch's for large pooling windows, and for a scan alone."""
    window = operator.geometry["window"] if operator.kind == "pooling" else 0
    return operator.kind in _FUSED and operator.calls == 1 and window <= _LARGEST_WINDOW


def fused_groups(operators: Sequence[Operator]) -> list[list[int]]:
    """Positions of operators that become one kernel each, in the order of their first.

    A pointwise operator joins what it reads. Branches that meet become one as long as no library call lies between.
    """
    group_of: dict[int, list[int]] = {}
    last_call: dict[int, int] = {}
    for position, operator in enumerate(operators):
        joined = [position]
        producers = {operand.producer for operand in operator.reads if operand.producer is not None}
        call = max((last_call[producer] for producer in producers), default=-1)
        if _fuses(operator):
            for producer in sorted(producers):
                other = group_of[producer]
                if _fuses(operators[producer]) and other is not joined and other[0] > call:
                    joined = sorted([*other, *joined])
                    group_of.update(dict.fromkeys(joined, joined))
        else:
            call = position
        last_call[position] = call
        group_of.update(dict.fromkeys(joined, joined))
    return sorted({id(group): group for group in group_of.values()}.values())


def _fused_us(
    members: Sequence[int], operators: Sequence[Operator], readers: Sequence[set[int]], setting: Setting
) -> float:
    """Time of a fused chain: what enters it, again where rows do not stay on the chip, and what leaves it."""
    parameters, spec, inside = setting.parameters, setting.spec, set(members)
    entering: dict[int, float] = {}
    leaving, passes = 0.0, 1.0
    for index, position in enumerate(members):
        operator = operators[position]
        for operand in operator.reads:
            if operand.producer not in inside:
                entering[operand.storage] = max(float(operand.bytes), entering.get(operand.storage, 0.0))
        if not readers[position] or not readers[position] <= inside:
            leaving += operator.write_bytes
        if operator.kind in _ROWS:
            length = operator.geometry.get("length", operator.geometry.get("elements", 1))
            continues = index + 1 < len(members) or operator.kind in _NORMS
            if length * 4 > parameters["compile.row_bytes"] and continues:
                passes += 1.0
    read = sum(entering.values())
    fits = setting.fits(read)
    near = (passes - 1.0) * read * fits
    dram = read + (passes - 1.0) * read * (1.0 - fits) + leaving
    bandwidth = parameters["compile.bandwidth"] * parameters[f"{setting.family}.bandwidth"]
    moving = dram / (spec.dram_bandwidth_gbps * 1e3) + near / (spec.l2_bandwidth_gbps * 1e3)
    return moving / bandwidth + passes * parameters["kernel_us"]
