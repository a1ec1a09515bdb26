"""Profile without hardware counters: kernel times by CUDA events, the rest from the emulator.

Every metric keeps its origin: times are measured; the emulator's numbers are counted, modelled or the compiler's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from statistics import median
from typing import Any

from kernelforge.candidate.resolved import Fill
from kernelforge.compile.cache import Artifact
from kernelforge.devices.base import RunFailed, RunRequest
from kernelforge.devices.cuda.runner_pool import RunnerPool
from kernelforge.devices.cuda.target import GpuTarget, figures_note, nearest_figures
from kernelforge.devices.cuda.tools.tool_process import replay_command, request_folder, run_replay
from kernelforge.errors import DeviceError, SandboxError, UnsupportedError
from kernelforge.hardware.specs import SPECS
from kernelforge.profiling.counts import UNPROFILED, with_counts
from kernelforge.profiling.ncu.profile import Roof
from kernelforge.records import KernelProfile, Metric, Origin, Profile, Roofline, SizeFacts

TIME = "kernelforge__time_by_events.sum"
"""Time between CUDA events around each launch, summed, in µs. Unlike ``gpu__time_duration.sum`` it includes the gaps
between launches on the GPU."""
REPEATS = 5
START_S = 60.0
"""Time for imports, opening a context and copying tensors, added to the run's deadline."""


def estimate_profile(
    target: GpuTarget,
    runners: RunnerPool,
    artifact: Artifact,
    request: RunRequest,
    facts: SizeFacts,
    reason: str,
    roof: Roof,
) -> Profile:
    """Times by events, and the emulator's counters on the same PTX and sizes.

    If the replay program cannot be run, the profile holds the emulator's numbers alone, modelled times included.

    Args:
        target: The GPU.
        runners: Its runners, which probe its health.
        artifact: The build.
        request: The run.
        facts: Facts of the task at this size, from the oracle.
        reason: The reason for the missing hardware counters; the profile's first note.
        roof: The roofs of the GPU for this task.

    Raises:
        RunFailed: a launch faulted.
        UnsupportedError: neither the replay program nor the emulator can run this plan.
        DeviceError: the GPU no longer passes its health probe.
    """
    try:
        times = _launch_times(target, artifact, request)
    except DeviceError as error:
        runners.recover()
        emulated, note = _emulated(target, artifact, request, facts)
        no_times = f"No times of single launches: {error}"
        if emulated is None:
            raise UnsupportedError(f"no hardware counters: {reason}. {no_times}. {note}") from error
        notes = (f"No hardware counters: {reason}.", f"{no_times}.", note)
        # A GPU's energy is measured: the estimate is of emulated devices alone.
        update = {"device": target.name, "energy": None, "notes": (*notes, *emulated.notes)}
        return emulated.model_copy(update=update)
    emulated, note = _emulated(target, artifact, request, facts)
    by_kernel: dict[str, float] = {}
    for launch, time_us in zip(request.plan.launches, times, strict=True):
        by_kernel[launch.expression] = by_kernel.get(launch.expression, 0.0) + time_us
    total = sum(times)
    timed = Profile(
        size=facts.size,
        device=target.name,
        kernels=tuple(
            kernel.model_copy(update={"metrics": (_time(by_kernel[kernel.kernel]), *kernel.metrics)})
            for kernel in _kernels(artifact, request)
        ),
        metrics=(_time(total), *_plan_metrics(request)),
        roofline=Roofline(
            flops=float(facts.flops),
            dram_bytes=0.0,
            compulsory_bytes=float(facts.compulsory_bytes),
            host_bytes=float(facts.host_bytes),
            arithmetic_intensity=0.0,
            ridge=roof.ridge,
            bound=UNPROFILED,
            time_us=total,
            time_origin=Origin.MEASURED,
            floor_us=roof.floor_us,
        ),
        notes=(
            f"No hardware counters: {reason}.",
            "Times are CUDA events around each launch.",
            note,
            *figures_note(target.facts, launch_overhead=False),
        ),
    )
    return timed if emulated is None else with_counts(timed, emulated)


def _time(time_us: float) -> Metric:
    return Metric(name=TIME, value=time_us, unit="us", origin=Origin.MEASURED)


def _launch_times(target: GpuTarget, artifact: Artifact, request: RunRequest) -> list[float]:
    """Median time of every launch of forward, in µs."""
    with request_folder("time", target.driver_options, artifact, request, repeats=REPEATS) as folder:
        deadline_s = START_S + REPEATS * request.deadline_s
        program, result = run_replay(replay_command(folder), folder, target.environment, deadline_s)
    if result is None and program.timed_out:
        raise DeviceError(f"the replay program did not end within {deadline_s:g} s")
    if result is None:
        raise DeviceError(f"the replay program ended with status {program.status}: {program.output.strip()[-600:]}")
    if result.faults:
        raise RunFailed(result.faults[0])
    return _medians(result.data.get("times_us"), len(request.plan.launches))


def _medians(raw: Any, launches: int) -> list[float]:
    try:
        times = [median(float(time) for time in repeats) for repeats in raw]
    except (TypeError, ValueError, OverflowError) as error:
        raise DeviceError(f"the replay program left times that cannot be read: {error}") from error
    if len(times) != launches or not all(0 <= time < math.inf for time in times):
        raise DeviceError("the replay program left other times than the plan has launches")
    return times


@cache
def _emulator(key: str, allow_unconfined: bool) -> Any:
    """One emulated device for all profiles of this process."""
    from kernelforge.devices.emulated.device import EmulatedDevice

    return EmulatedDevice(SPECS[key], allow_unconfined=allow_unconfined)


def _emulated(
    target: GpuTarget, artifact: Artifact, request: RunRequest, facts: SizeFacts
) -> tuple[Profile | None, str]:
    """The emulator's profile, or None for a plan that it cannot run; and a sentence about it."""
    nearest = nearest_figures(target.facts)
    modelled = nearest.label if nearest.exact else f"another GPU than {target.facts.name} ({nearest.label})"
    try:
        with _emulator(nearest.spec.key, target.allow_unconfined).open(artifact) as session:
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
    """Facts of each kernel that need no run."""
    registers = {kernel.expression: kernel.registers_per_thread for kernel in artifact.build.kernels}
    kernels = []
    for expression in dict.fromkeys(launch.expression for launch in request.plan.launches):
        launches = [launch for launch in request.plan.launches if launch.expression == expression]
        largest = max(launches, key=lambda launch: math.prod(launch.grid))
        plain = (
            ("launch__grid_size", math.prod(largest.grid), "block", Origin.COUNTED),
            ("launch__block_size", math.prod(largest.block), "thread", Origin.COUNTED),
            ("launch__registers_per_thread", registers[expression], "register/thread", Origin.COMPILER),
        )
        kernels.append(
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
    return kernels
