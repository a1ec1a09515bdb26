"""Profiles of one run of a plan by Nsight Compute, or by the fallback if counters are denied."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

from kernelforge.candidate.resolved import Fill, Launch, Library
from kernelforge.compile.cache import Artifact
from kernelforge.compile.source import CANDIDATE_FILE
from kernelforge.devices.base import RunFailed, RunRequest
from kernelforge.devices.cuda.runner_pool import RunnerPool
from kernelforge.devices.cuda.target import GpuTarget, figures_note, nearest_figures
from kernelforge.devices.cuda.tools.fallback_profile import START_S, estimate_profile
from kernelforge.devices.cuda.tools.tool_process import (
    ask_tool,
    find_tool,
    replay_command,
    report_folders,
    request_folder,
    run_replay,
    run_tool,
)
from kernelforge.devices.cuda.worker.driver import GpuFacts
from kernelforge.errors import DeviceError
from kernelforge.hardware.specs import MULTIPROCESSORS
from kernelforge.profiling.floor import attainable_us
from kernelforge.profiling.ncu import command as query
from kernelforge.profiling.ncu import parse
from kernelforge.profiling.ncu.catalogue import HOST_LINK, Selection, default_metrics, select
from kernelforge.profiling.ncu.command import ProfileCommand, import_arguments
from kernelforge.profiling.ncu.parse import LaunchRow, parse_table, rows_from_output
from kernelforge.profiling.ncu.profile import PlannedLaunch, Roof, Subject, build_measured_profile
from kernelforge.records import Profile, SizeFacts
from kernelforge.sandbox.policy import import_path

LAUNCHES_PER_SHAPE = 2
"""Profiled launches of each kernel with each grid and block; they stand for the rest."""
MAX_PROFILED = 64
SECONDS_PER_LAUNCH = 5.0
"""Time for replaying one launch in every pass."""
_READ_S = 120.0
_MAX_ROWS_BYTES = 64 << 20
_PARAMETERS = "/proc/driver/nvidia/params"
_SYS_ADMIN, _PERFMON = 21, 38
_READ_REPORT = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[2]); "
    "from kernelforge.profiling.ncu.parse import main; sys.exit(main([sys.argv[1]]))"
)


@dataclass(frozen=True)
class ProfilerStatus:
    """Availability of Nsight Compute on this machine."""

    ncu: str | None
    version: tuple[int, ...] | None
    counters: Literal["allowed", "denied", "unknown"]
    """Whether the driver gives counters to this user; unknown if only a run of ncu can tell."""
    message: str
    """One line: the tool that was found, and how to install or allow what is missing."""


def profiler_status(parameters: str = _PARAMETERS) -> ProfilerStatus:
    """Report whether ncu is installed and counters are allowed. Starts ncu for its version; uses no GPU.

    Args:
        parameters: File of the driver module's options.
    """
    ncu = find_tool("ncu")
    counters = _counters_allowed(parameters)
    if ncu is None:
        return ProfilerStatus(None, None, counters, "ncu not found: install Nsight Compute, or put ncu on the PATH")
    version = _version(ncu)
    if version is None:
        return ProfilerStatus(ncu, None, counters, f"{ncu} does not say its version; is it Nsight Compute's?")
    label = f"ncu {'.'.join(map(str, version))} ({ncu})"
    if counters == "denied":
        return ProfilerStatus(ncu, version, counters, f"{label}: {parse.DENIED}")
    return ProfilerStatus(ncu, version, counters, f"{label}, counters {counters}")


@cache
def _version(ncu: str) -> tuple[int, ...] | None:
    try:
        answer = ask_tool([ncu, "--version"])
    except DeviceError:
        return None
    return query.version(answer.output)


def _counters_allowed(parameters: str) -> Literal["allowed", "denied", "unknown"]:
    """Permission by the driver's options and this user's capabilities (NVIDIA, "ERR_NVGPUCTRPERM")."""
    try:
        lines = Path(parameters).read_text().splitlines()
        status = Path("/proc/self/status").read_text()
    except OSError:
        return "unknown"
    options = dict(line.split(": ", 1) for line in lines if ": " in line)
    restricted = options.get("RmProfilingAdminOnly")
    if restricted is None:
        return "unknown"
    if restricted.strip() == "0":
        return "allowed"
    effective = next((int(line.split()[1], 16) for line in status.splitlines() if line.startswith("CapEff:")), 0)
    return "allowed" if effective & (1 << _SYS_ADMIN | 1 << _PERFMON) else "denied"


def profile(
    target: GpuTarget, runners: RunnerPool, artifact: Artifact, request: RunRequest, facts: SizeFacts
) -> Profile:
    """Hardware counters of one run of a plan, kernel by kernel; without them, times and the emulator's counters.

    Args:
        target: The GPU, with the set of metrics to collect.
        runners: Its runners, which probe its health.
        artifact: The build.
        request: The run.
        facts: Facts of the task at this size, from the oracle.

    Raises:
        RunFailed: a launch faulted.
        UnsupportedError: nothing on this machine can profile this plan; the message says why.
        DeviceError: the GPU no longer passes its health probe.
    """
    roof = _roof(target.facts, facts)
    ncu = find_tool("ncu")
    reason = "ncu was not found; install Nsight Compute, or put ncu on the PATH"
    if not request.plan.launches:
        reason = "the plan launches no kernel of its own"
    elif ncu is not None:
        try:
            return _profile_by_ncu(ncu, target, artifact, request, facts, roof)
        except (_NoCounters, DeviceError) as error:
            reason = str(error)
    return estimate_profile(target, runners, artifact, request, facts, reason, roof)


class _NoCounters(Exception):
    """ncu collected no counters; the message gives the reason."""


def _roof(gpu: GpuFacts, size: SizeFacts) -> Roof:
    """Two operations per FP32 lane and cycle over the peak bandwidth, and the floor where the GPU's figures are known.

    An unknown SM is assumed to have 128 lanes, as every SM since compute capability 8.6. The figures of another GPU
    give no floor: a share of it would be a statement on that one.
    """
    sm = MULTIPROCESSORS.get(gpu.compute_capability)
    lanes = 128 if sm is None else sm.fp32_lanes
    nearest = nearest_figures(gpu)
    bandwidth = gpu.memory_bandwidth_gbps or nearest.spec.dram_bandwidth_gbps
    return Roof(
        ridge=2.0 * lanes * gpu.sm_count * gpu.max_clock_mhz * 1e6 / (bandwidth * 1e9),
        floor_us=attainable_us(nearest.spec, size) if nearest.exact else None,
    )


def select_launches(launches: Sequence[Launch]) -> list[int]:
    """Ordinals of the launches to profile: the first of every kernel, grid, block and dynamic shared memory.

    :data:`LAUNCHES_PER_SHAPE` of each, or one of each if that makes more than :data:`MAX_PROFILED`; never more than
    that many, launches of different kernels first.
    """
    for each in (LAUNCHES_PER_SHAPE, 1):
        seen: Counter[tuple[object, ...]] = Counter()
        ordinals = []
        for ordinal, launch in enumerate(launches):
            shape = (launch.expression, launch.grid, launch.block, launch.dynamic_shared_bytes, launch.cluster)
            seen[shape] += 1
            if seen[shape] <= each:
                ordinals.append(ordinal)
        if len(ordinals) <= MAX_PROFILED:
            return ordinals
    firsts = {launches[ordinal].expression: ordinal for ordinal in reversed(ordinals)}
    ordered = [*sorted(firsts.values()), *(ordinal for ordinal in ordinals if ordinal not in firsts.values())]
    return sorted(ordered[:MAX_PROFILED])


def _profile_by_ncu(
    ncu: str, target: GpuTarget, artifact: Artifact, request: RunRequest, facts: SizeFacts, roof: Roof
) -> Profile:
    plan = request.plan
    by_default = target.counters == "default"
    more = HOST_LINK if request.mapped else ()
    selection = _selection(ncu, target.facts.compute_capability, more) if by_default else Selection((), ())
    selected = select_launches(plan.launches)
    planned = [
        PlannedLaunch(launch.expression, artifact.symbol(launch.expression), launch.grid, launch.block)
        for launch in plan.launches
    ]
    with request_folder("profile", target.driver_options, artifact, request, chosen=selected) as folder:
        rows = _collect(ncu, target, folder, request, selection, [planned[at].symbol for at in selected])
    note = selection.note(target.facts.name)
    libraries = sum(isinstance(step, Library) for step in plan.steps)
    notes = [*([note] if note else [])]
    if len(selected) < len(planned):
        notes.append(f"{len(selected)} of {len(planned)} launches were profiled; each stands for those of its shape.")
    if not any(row.instructions for row in rows):
        notes.append("No hot spots: ncu_report, which reads counters by instruction, is missing or found none.")
    if libraries:
        notes.append(f"{libraries} library calls are in no number.")
    subject = Subject(
        device=target.name,
        launches=planned,
        facts=facts,
        roof=roof,
        launch_overhead_us=nearest_figures(target.facts).spec.launch_overhead_us,
        memsets=sum(isinstance(step, Fill) for step in plan.steps),
        source_name=CANDIDATE_FILE,
        notes=(*notes, *figures_note(target.facts, launch_overhead=True)),
    )
    try:
        return build_measured_profile(subject, rows, target.counters)
    except ValueError as error:
        raise _NoCounters(str(error)) from error


def _collect(
    ncu: str, target: GpuTarget, folder: Path, request: RunRequest, selection: Selection, symbols: Sequence[str]
) -> list[LaunchRow]:
    """Run ncu on the replay program and read its report.

    Raises:
        RunFailed: the plan faulted.
        _NoCounters: there is no report with launches in it.
    """
    report, log = folder / "report.ncu-rep", folder / "ncu.log"
    command = ProfileCommand(
        ncu=ncu,
        symbols=symbols,
        report=str(report),
        log=str(log),
        metrics=selection.requested,
        counters=target.counters,
        launches=len(symbols),
        program=replay_command(folder),
    )
    deadline_s = START_S + 2 * request.deadline_s + SECONDS_PER_LAUNCH * len(symbols)
    tool, result = run_replay(command.arguments(), folder, target.environment, deadline_s)
    if result is not None and result.faults:
        raise RunFailed(result.faults[0])
    output = _text(log) + tool.output
    if tool.timed_out:
        raise _NoCounters(f"ncu did not end within {deadline_s:g} s")
    # ncu adds `.ncu-rep` to other names; its manual does not say whether it adds it to this one.
    report = next(iter(folder.glob("report*.ncu-rep")), report)
    rows = _read(ncu, report, folder) if report.is_file() else []
    if not rows:
        trouble = parse.trouble(output)
        reason = trouble.message if trouble else f"it ended with status {tool.status}: {output.strip()[-300:]}"
        raise _NoCounters(f"ncu profiled no launch; {reason}")
    save_captures(report, log)
    return rows


def _text(path: Path, limit: int = 1 << 20) -> str:
    try:
        with path.open(errors="replace") as file:
            return file.read(limit)
    except OSError:
        return ""


def _read(ncu: str, report: Path, folder: Path) -> list[LaunchRow]:
    """The launches of a report, by ``ncu_report`` in its own process, else by ncu's CSV.

    Raises:
        _NoCounters: neither can read it.
    """
    paths = json.dumps([*import_path(), *report_folders(ncu)])
    command = [sys.executable, "-I", "-c", _READ_REPORT, str(report), paths]
    python = run_tool(command, folder=folder, deadline_s=_READ_S, output_bytes=_MAX_ROWS_BYTES)
    if python.status == 0:
        rows: list[LaunchRow] = []
        with contextlib.suppress(DeviceError):  # such as output that was cut at the limit
            rows = rows_from_output(python.output)
        # The module reads a file that is no report as one without launches; ncu itself reports the error.
        if rows:
            return rows
    printed = run_tool(import_arguments(ncu, str(report)), folder=folder, deadline_s=_READ_S)
    try:
        return parse_table(printed.output)
    except DeviceError as error:
        raise _NoCounters(str(error)) from error


@cache
def _selection(ncu: str, compute_capability: tuple[int, int], more: tuple[str, ...] = ()) -> Selection:
    """The default set and ``more``, without the metrics that the chip lacks.

    Raises:
        _NoCounters: ncu does not list the chip's metrics.
    """
    # An ncu older or newer than the chip may not know its name, but may still query the GPU itself.
    failure: DeviceError | None = None
    for chip in dict.fromkeys((query.chip(compute_capability), None)):
        try:
            answer = ask_tool([ncu, *query.query_arguments(chip)])
            return select((*default_metrics(), *more), query.base_names(answer.output))
        except DeviceError as error:
            failure = error
    raise _NoCounters(str(failure)) from failure


def save_captures(report: Path, log: Path) -> None:
    """Copy a report and its log into the folder named by ``KERNELFORGE_NCU_CAPTURES``, if it is set."""
    target = os.environ.get("KERNELFORGE_NCU_CAPTURES")
    if not target:
        return
    folder = Path(target)
    folder.mkdir(parents=True, exist_ok=True)
    at = len(list(folder.glob("*.ncu-rep")))
    for source, ending in ((report, "ncu-rep"), (log, "log")):
        if source.is_file():
            (folder / f"{at:03d}.{ending}").write_bytes(source.read_bytes())
