"""Profile without hardware counters: kernel times by CUDA events, the rest from the emulator.

Every metric keeps its own origin: the times are measured, the emulator's numbers are counted, modelled or the
compiler's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from statistics import median
from typing import TYPE_CHECKING, Any

from kernelforge.candidate.resolved import Fill
from kernelforge.compile.cache import Artifact
from kernelforge.devices.base import RunFailed, RunRequest
from kernelforge.devices.cuda.target import figures_note, nearest_figures
from kernelforge.devices.cuda.tools.tool_process import (
    read_result,
    replay_command,
    request_folder,
    run_tool,
    tool_environment,
)
from kernelforge.errors import DeviceError, SandboxError, UnsupportedError
from kernelforge.hardware.specs import SPECS
from kernelforge.profiling.merge import UNPROFILED, with_counts
from kernelforge.records import KernelProfile, Metric, Origin, Profile, Roofline, SizeFacts

if TYPE_CHECKING:
    from kernelforge.devices.cuda.device import CudaDevice

TIME = "kernelforge__time_by_events.sum"
"""Time between CUDA events around each launch, summed, in µs. Unlike ``gpu__time_duration.sum`` it holds what lies
between two launches on the GPU."""
REPEATS = 5
START_S = 60.0
"""What importing, opening a context and copying tensors may take beside the run's deadline."""


def estimate_profile(
    device: CudaDevice, artifact: Artifact, request: RunRequest, facts: SizeFacts, why: str, ridge: float
) -> Profile:
    """Times by events, and the emulator's counters on the same PTX and sizes.

    Args:
        device: The GPU.
        artifact: The build.
        request: The run.
        facts: What the oracle found at this size.
        why: Why there are no hardware counters; the profile's first note.
        ridge: Flop per byte where the GPU's FP32 roof begins to bind.

    Where the replay program cannot be run, the profile has the emulator's numbers alone, modelled times included.

    Raises:
        RunFailed: a launch faulted.
        UnsupportedError: neither the replay program nor the emulator can run this plan.
        DeviceError: the GPU no longer passes its health probe.
    """
    try:
        times = _times(device, artifact, request)
    except DeviceError as error:
        device.recover()
        emulated, said = _emulated(device, artifact, request, facts)
        no_times = f"No times of single launches: {error}"
        if emulated is None:
            raise UnsupportedError(f"no hardware counters: {why}. {no_times}. {said}") from error
        notes = (f"No hardware counters: {why}.", f"{no_times}.", said)
        return emulated.model_copy(update={"device": device.name, "notes": (*notes, *emulated.notes)})
    emulated, said = _emulated(device, artifact, request, facts)
    by_kernel: dict[str, float] = {}
    for launch, time_us in zip(request.plan.launches, times, strict=True):
        by_kernel[launch.expression] = by_kernel.get(launch.expression, 0.0) + time_us
    total = sum(times)
    timed = Profile(
        size=facts.size,
        device=device.name,
        kernels=tuple(
            one.model_copy(update={"metrics": (_time(by_kernel[one.kernel]), *one.metrics)})
            for one in _kernels(artifact, request)
        ),
        metrics=(_time(total), *_plan_metrics(request)),
        roofline=Roofline(
            flops=float(facts.flops),
            dram_bytes=0.0,
            compulsory_bytes=float(facts.compulsory_bytes),
            arithmetic_intensity=0.0,
            ridge=ridge,
            bound=UNPROFILED,
            time_us=total,
            time_origin=Origin.MEASURED,
        ),
        notes=(
            f"No hardware counters: {why}.",
            "Times are CUDA events around each launch.",
            said,
            *figures_note(device.facts, launch_overhead=False),
        ),
    )
    return timed if emulated is None else with_counts(timed, emulated)


def _time(time_us: float) -> Metric:
    return Metric(name=TIME, value=time_us, unit="us", origin=Origin.MEASURED)


def _times(device: CudaDevice, artifact: Artifact, request: RunRequest) -> list[float]:
    """Median time of every launch of forward, in µs."""
    with request_folder("time", device.driver_options, artifact, request, repeats=REPEATS) as folder:
        deadline_s = START_S + REPEATS * request.deadline_s
        environment = tool_environment(folder, device.environment)
        ended = run_tool(replay_command(folder), folder=folder, environment=environment, deadline_s=deadline_s)
        result = read_result(folder)
    if result is None and ended.timed_out:
        raise DeviceError(f"the replay program did not end within {deadline_s:g} s")
    if result is None:
        raise DeviceError(f"the replay program ended with status {ended.status}: {ended.output.strip()[-600:]}")
    if result.faults:
        raise RunFailed(result.faults[0])
    return _medians(result.data.get("times_us"), len(request.plan.launches))


def _medians(raw: Any, launches: int) -> list[float]:
    try:
        times = [median(float(one) for one in repeats) for repeats in raw]
    except (TypeError, ValueError, OverflowError) as error:
        raise DeviceError(f"the replay program left times that cannot be read: {error}") from error
    if len(times) != launches or not all(0 <= one < math.inf for one in times):
        raise DeviceError("the replay program left other times than the plan has launches")
    return times


@cache
def _emulator(key: str, allow_unconfined: bool) -> Any:
    """One emulated device for all profiles of this process."""
    from kernelforge.devices.emulated.device import EmulatedDevice

    return EmulatedDevice(SPECS[key], allow_unconfined=allow_unconfined)


def _emulated(
    device: CudaDevice, artifact: Artifact, request: RunRequest, facts: SizeFacts
) -> tuple[Profile | None, str]:
    """The emulator's profile, and a sentence on it. A plan that the emulator cannot run has none."""
    nearest = nearest_figures(device.facts)
    modelled = nearest.label if nearest.exact else f"another GPU than {device.facts.name} ({nearest.label})"
    try:
        with _emulator(nearest.spec.key, device.allow_unconfined).open(artifact) as session:
            profile, _ = session.profile(request, facts)
    except (RunFailed, UnsupportedError, SandboxError, DeviceError) as error:
        return None, f"No counters at all: the emulator cannot run this plan ({error})."
    return profile, (
        f"Counters are the emulator's, for {modelled}, from the same PTX: 'counted' ones are exact, 'modelled' ones "
        "(DRAM, caches, limits, bound) are not."
    )


def _plan_metrics(request: RunRequest) -> tuple[Metric, ...]:
    plan = request.plan
    memsets = sum(isinstance(step, Fill) for step in plan.steps)
    return tuple(
        Metric(name=name, value=float(value), unit="launch", origin=Origin.COUNTED)
        for name, value in (("kernelforge__launches", len(plan.launches)), ("kernelforge__memsets", memsets))
        if value
    )


def _kernels(artifact: Artifact, request: RunRequest) -> Sequence[KernelProfile]:
    """What is known of each kernel without running it."""
    registers = {kernel.expression: kernel.registers_per_thread for kernel in artifact.build.kernels}
    found = []
    for expression in dict.fromkeys(launch.expression for launch in request.plan.launches):
        launches = [launch for launch in request.plan.launches if launch.expression == expression]
        largest = max(launches, key=lambda launch: math.prod(launch.grid))
        plain = (
            ("launch__grid_size", math.prod(largest.grid), "block", Origin.COUNTED),
            ("launch__block_size", math.prod(largest.block), "thread", Origin.COUNTED),
            ("launch__registers_per_thread", registers[expression], "register/thread", Origin.COMPILER),
        )
        found.append(
            KernelProfile(
                kernel=expression,
                launches=len(launches),
                grid=largest.grid,
                block=largest.block,
                sampled=1.0,
                metrics=tuple(
                    Metric(name=name, value=float(value), unit=unit, origin=origin)
                    for name, value, unit, origin in plain
                ),
            )
        )
    return found
