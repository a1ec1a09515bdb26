"""Launch and queue time of eager PyTorch: predicted from its operators, or read in a trace of PyTorch's profiler.

SKIP (Vellaisamy et al., arXiv 2504.11750) sums, over the kernels of a call, the time from the beginning of the launch
to the start of the kernel, and calls it TKLQT. While the host is slower than the GPU it is that of the launches; from
the batch on at which the GPU is slower, kernels queue up and it grows.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from kernelforge.hardware.specs import DeviceSpec
from kernelforge.prediction.baseline import fitted, operator_times
from kernelforge.prediction.operator_time import Setting, kernel_count
from kernelforge.prediction.operators import OperatorTrace
from kernelforge.records.timing import LaunchQueue

LAUNCH_US: Final = 2.37
"""From the beginning of a launch to the start of an empty kernel on an idle GPU: SKIP, 2.37 us on an H100 and 2.26 us
on an A100, both behind PCIe."""
LAUNCH_CALLS: Final = frozenset({"cuda_runtime", "cuda_driver"})
"""Categories of calls to CUDA in a trace: of the runtime, and of the driver, as Triton launches."""


def predict_launch_queue(
    trace: OperatorTrace, spec: DeviceSpec, *, tf32: bool = False, host_us: float | None = None
) -> LaunchQueue:
    """Predict the waits of one call of eager PyTorch by a simulation of its queue.

    The host begins an operator every ``host_us``, and the launches of its kernels at even steps within. A kernel starts
    when its launch has reached the GPU and the kernel before it has ended.

    Args:
        trace: Operators of the reference.
        spec: The GPU.
        tf32: Whether convolutions of float32 may use TF32.
        host_us: What the host needs for an operator; None for that of the fit, which is a fast host's.

    Raises:
        ValueError: Operators that no time follows from, or none at all.
    """
    parameters = fitted().parameters
    setting = Setting(spec, parameters, tf32)
    each_us = parameters["host_us"] if host_us is None else host_us
    try:
        times = operator_times(trace.operators, setting)
        counts = [max(1, round(operator.calls * kernel_count(operator, setting))) for operator in trace.operators]
    except (ArithmeticError, LookupError) as error:
        raise ValueError(f"no time follows from these operators: {error!r}") from error
    if not counts:
        raise ValueError("the reference runs no operator, so that it launches nothing")
    waits = gpu_us = 0.0
    wait = LAUNCH_US
    for operator, time, kernels in zip(trace.operators, times, counts, strict=True):
        busy_us = time.time_us + operator.calls * parameters["eager.gap_us"]
        longer_us = (busy_us - operator.calls * each_us) / kernels  # by which a kernel outlasts the step to the next
        waits += _waits(wait, longer_us, kernels)
        wait = max(LAUNCH_US, wait + longer_us * kernels)
        gpu_us += busy_us
    return LaunchQueue(
        origin="predicted",
        kernels=sum(counts),
        tklqt_us=waits,
        launch_us=LAUNCH_US * sum(counts),
        host_us=each_us * sum(operator.calls for operator in trace.operators),
        gpu_us=gpu_us,
    )


def _waits(first: float, longer: float, kernels: int) -> float:
    """Sum of the waits ``max(LAUNCH_US, first + i * longer)`` of equal kernels, ``i`` from 0, in microseconds.

    That is Lindley's recursion for equal steps, so that an operator with many calls takes no longer than one.
    """
    if longer < 0:
        queued = min(kernels, math.ceil((first - LAUNCH_US) / -longer))
        return queued * first + longer * queued * (queued - 1) / 2 + (kernels - queued) * LAUNCH_US
    return kernels * first + longer * kernels * (kernels - 1) / 2


def gpu_bound_batch(queues: Iterable[tuple[int, LaunchQueue]]) -> int | None:
    """The least batch from which on, among those of a sweep, every call is bound by the GPU; None without one."""
    least = None
    for batch, queue in sorted(queues, key=lambda item: item[0]):
        if queue.bound == "CPU":
            least = None
        elif least is None:
            least = batch
    return least


def measured_launch_queue(events: Sequence[Mapping[str, Any]]) -> LaunchQueue:
    """Waits of the kernels in a trace of PyTorch's profiler (kineto), of one call on a GPU that was idle before.

    Args:
        events: ``traceEvents`` of the Chrome trace. Calls that launch have the category ``cuda_runtime`` or
            ``cuda_driver``, kernels ``kernel``; both have ``ts`` and ``dur`` in microseconds and ``args.correlation``.
            Operators, ``cpu_op``, say when the host began. Copies and fills are no kernels, and are left out.

    Raises:
        ValueError: The trace has no kernel, or one whose launch it lacks.
    """
    begun: dict[int, float] = {}
    operators = [float(event["ts"]) for event in events if event.get("cat") == "cpu_op"]
    host_end = -math.inf
    for event in events:
        if event.get("cat") in LAUNCH_CALLS and "Launch" in str(event.get("name")) and "args" in event:
            correlation, start = int(event["args"].get("correlation", 0)), float(event["ts"])
            begun[correlation] = min(start, begun.get(correlation, math.inf))
            host_end = max(host_end, start + float(event.get("dur", 0.0)))
    kernels = [event for event in events if event.get("cat") == "kernel"]
    if not kernels:
        raise ValueError("the profiler's trace has no kernel; let users read the GPU's counters (docs/gpus.md)")
    waits = []
    for event in kernels:
        correlation = int(event.get("args", {}).get("correlation", 0))
        if correlation not in begun:
            raise ValueError(f"the profiler's trace lacks the launch of kernel {str(event.get('name'))[:80]}")
        # The clocks of host and GPU agree to less than a microsecond, which can make a short wait negative.
        waits.append(max(float(event["ts"]) - begun[correlation], 0.0))
    return LaunchQueue(
        origin="measured",
        kernels=len(kernels),
        tklqt_us=math.fsum(waits),
        launch_us=len(kernels) * min(waits),
        host_us=host_end - min([*operators, *begun.values()]),
        gpu_us=math.fsum(float(event.get("dur", 0.0)) for event in kernels),
    )
