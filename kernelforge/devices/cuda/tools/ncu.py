"""Profiles by Nsight Compute of one run of a plan, or the fallback where counters are denied."""

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
from typing import TYPE_CHECKING, Literal

from kernelforge.candidate.resolved import Fill, Launch, Library
from kernelforge.compile.cache import Artifact
from kernelforge.compile.source import CANDIDATE_FILE
from kernelforge.devices.base import RunFailed, RunRequest
from kernelforge.devices.cuda.target import figures_note, nearest_figures
from kernelforge.devices.cuda.tools.fallback_profile import START_S, estimate_profile
from kernelforge.devices.cuda.tools.tool_process import (
    ask_tool,
    find_tool,
    read_result,
    replay_command,
    report_folders,
    request_folder,
    run_tool,
    tool_environment,
)
from kernelforge.devices.cuda.worker.driver import GpuFacts
from kernelforge.errors import DeviceError
from kernelforge.hardware.generations import MULTIPROCESSORS
from kernelforge.profiling.ncu import command as query
from kernelforge.profiling.ncu import parse
from kernelforge.profiling.ncu.catalogue import MetricSet, Selection, default_metrics, select
from kernelforge.profiling.ncu.command import ProfileCommand, import_arguments
from kernelforge.profiling.ncu.parse import LaunchRow, parse_table, rows_from_output
from kernelforge.profiling.ncu.profile import PlannedLaunch, Subject, build_measured_profile
from kernelforge.records import Profile, SizeFacts
from kernelforge.sandbox.policy import import_path

if TYPE_CHECKING:
    from kernelforge.devices.cuda.device import CudaDevice

LAUNCHES_PER_SHAPE = 2
"""Launches profiled of each kernel with each grid and block; they stand for the rest."""
MAX_PROFILED = 64
SECONDS_PER_LAUNCH = 5.0
"""What replaying one launch for every pass may take."""
_READ_S = 120.0
_MAX_ROWS_BYTES = 64 << 20
_PARAMETERS = "/proc/driver/nvidia/params"
_SYS_ADMIN, _PERFMON = 21, 38
_READ_REPORT = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[2]); "
    "from kernelforge.profiling.ncu.report_reader import main; sys.exit(main([sys.argv[1]]))"
)


@dataclass(frozen=True)
class ProfilerStatus:
    """What profiling can do on this machine, for people."""

    ncu: str | None
    version: tuple[int, ...] | None
    counters: Literal["allowed", "denied", "unknown"]
    """Whether the driver gives counters to this user; unknown until ncu was tried where the driver does not say."""
    message: str
    """One line: what is there, and what to do about what is not."""


def profiler_status(parameters: str = _PARAMETERS) -> ProfilerStatus:
    """Whether ncu is there and counters are allowed. Starts ncu for its version; touches no GPU.

    Args:
        parameters: The driver's list of its options, as ``nvidia`` modules show it.
    """
    ncu = find_tool("ncu")
    counters = _counters_allowed(parameters)
    if ncu is None:
        return ProfilerStatus(None, None, counters, "ncu not found: install Nsight Compute, or put ncu on the PATH")
    version = _version(ncu)
    if version is None:
        return ProfilerStatus(ncu, None, counters, f"{ncu} does not say its version; is it Nsight Compute's?")
    told = f"ncu {'.'.join(map(str, version))} ({ncu})"
    if counters == "denied":
        return ProfilerStatus(ncu, version, counters, f"{told}: {parse.DENIED}")
    return ProfilerStatus(ncu, version, counters, f"{told}, counters {counters}")


@cache
def _version(ncu: str) -> tuple[int, ...] | None:
    try:
        ended = ask_tool([ncu, "--version"])
    except DeviceError:
        return None
    return query.version(ended.output)


def _counters_allowed(parameters: str) -> Literal["allowed", "denied", "unknown"]:
    """What the driver's options and this user's capabilities say (NVIDIA, "ERR_NVGPUCTRPERM")."""
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
    device: CudaDevice, artifact: Artifact, request: RunRequest, facts: SizeFacts, counters: MetricSet = "default"
) -> Profile:
    """Hardware counters of one run of a plan, kernel by kernel; without them, times and the emulator's counters.

    Args:
        device: The GPU.
        artifact: The build.
        request: The run.
        facts: What the oracle found at this size.
        counters: Which metrics.

    Raises:
        RunFailed: a launch faulted.
        UnsupportedError: nothing on this machine can profile this plan; the message says why.
        DeviceError: the GPU no longer passes its health probe.
    """
    ridge = _ridge(device.facts)
    ncu = find_tool("ncu")
    why = "ncu was not found; install Nsight Compute, or put ncu on the PATH"
    if not request.plan.launches:
        why = "the plan launches no kernel of its own"
    elif ncu is not None:
        try:
            return _by_ncu(ncu, device, artifact, request, facts, counters, ridge)
        except (_NoCounters, DeviceError) as error:
            why = str(error)
    return estimate_profile(device, artifact, request, facts, why, ridge)


class _NoCounters(Exception):
    """ncu gave none; the message says why."""


def _ridge(facts: GpuFacts) -> float:
    """Flop per byte where FP32 arithmetic binds before DRAM: two operations per lane and cycle over peak bandwidth.

    An SM that is not known is taken to have the 128 lanes of every one since compute capability 8.6.
    """
    sm = MULTIPROCESSORS.get(facts.compute_capability)
    lanes = 128 if sm is None else sm.fp32_lanes
    bandwidth = facts.memory_bandwidth_gbps or nearest_figures(facts).spec.dram_bandwidth_gbps
    return 2.0 * lanes * facts.sm_count * facts.max_clock_mhz * 1e6 / (bandwidth * 1e9)


def chosen_launches(launches: Sequence[Launch]) -> list[int]:
    """Ordinals of the launches to profile: the first of every kernel, grid, block and dynamic shared memory.

    Of each :data:`LAUNCHES_PER_SHAPE`, or one where that is more than :data:`MAX_PROFILED` altogether; no more than
    that many in any case, those of different kernels first.
    """
    for each in (LAUNCHES_PER_SHAPE, 1):
        seen: Counter[tuple[object, ...]] = Counter()
        chosen = []
        for ordinal, launch in enumerate(launches):
            shape = (launch.expression, launch.grid, launch.block, launch.dynamic_shared_bytes, launch.cluster)
            seen[shape] += 1
            if seen[shape] <= each:
                chosen.append(ordinal)
        if len(chosen) <= MAX_PROFILED:
            return chosen
    firsts = {launches[ordinal].expression: ordinal for ordinal in reversed(chosen)}
    ordered = [*sorted(firsts.values()), *(ordinal for ordinal in chosen if ordinal not in firsts.values())]
    return sorted(ordered[:MAX_PROFILED])


def _by_ncu(
    ncu: str,
    device: CudaDevice,
    artifact: Artifact,
    request: RunRequest,
    facts: SizeFacts,
    counters: MetricSet,
    ridge: float,
) -> Profile:
    plan = request.plan
    selection = _selection(ncu, device.facts.compute_capability) if counters == "default" else Selection((), ())
    chosen = chosen_launches(plan.launches)
    planned = [
        PlannedLaunch(launch.expression, artifact.symbol(launch.expression), launch.grid, launch.block)
        for launch in plan.launches
    ]
    with request_folder("profile", device.driver_options, artifact, request, chosen=chosen) as folder:
        rows = _collect(ncu, device, folder, request, counters, selection, [planned[at].symbol for at in chosen])
    note = selection.note(device.facts.name)
    libraries = sum(isinstance(step, Library) for step in plan.steps)
    notes = [*([note] if note else [])]
    if len(chosen) < len(planned):
        notes.append(f"{len(chosen)} of {len(planned)} launches were profiled; each stands for those of its shape.")
    if not any(row.instructions for row in rows):
        notes.append("No hot spots: ncu_report, which reads counters by instruction, is missing or found none.")
    if libraries:
        notes.append(f"{libraries} library calls are in no number.")
    subject = Subject(
        device=device.name,
        launches=planned,
        facts=facts,
        ridge=ridge,
        launch_overhead_us=nearest_figures(device.facts).spec.launch_overhead_us,
        memsets=sum(isinstance(step, Fill) for step in plan.steps),
        source_name=CANDIDATE_FILE,
        notes=(*notes, *figures_note(device.facts, launch_overhead=True)),
    )
    try:
        return build_measured_profile(subject, rows, counters)
    except ValueError as error:
        raise _NoCounters(str(error)) from error


def _collect(
    ncu: str,
    device: CudaDevice,
    folder: Path,
    request: RunRequest,
    counters: MetricSet,
    selection: Selection,
    symbols: Sequence[str],
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
        metrics=selection.asked,
        counters=counters,
        launches=len(symbols),
        program=replay_command(folder),
    )
    deadline_s = START_S + 2 * request.deadline_s + SECONDS_PER_LAUNCH * len(symbols)
    environment = tool_environment(folder, device.environment)
    ended = run_tool(command.arguments(), folder=folder, environment=environment, deadline_s=deadline_s)
    result = read_result(folder)
    if result is not None and result.faults:
        raise RunFailed(result.faults[0])
    said = _text(log) + ended.output
    if ended.timed_out:
        raise _NoCounters(f"ncu did not end within {deadline_s:g} s")
    # ncu adds its ending to a name that has another; whether to one that has it, its manual does not say.
    report = next(iter(folder.glob("report*.ncu-rep")), report)
    rows = _read(ncu, report, folder) if report.is_file() else []
    if not rows:
        trouble = parse.trouble(said)
        told = trouble.message if trouble else f"it ended with status {ended.status}: {said.strip()[-300:]}"
        raise _NoCounters(f"ncu profiled no launch; {told}")
    save_captures(report, log)
    return rows


def _text(path: Path, limit: int = 1 << 20) -> str:
    try:
        with path.open(errors="replace") as file:
            return file.read(limit)
    except OSError:
        return ""


def _read(ncu: str, report: Path, folder: Path) -> list[LaunchRow]:
    """The report, through ``ncu_report`` in a process of its own, else through ncu's CSV.

    Raises:
        _NoCounters: neither can read it.
    """
    paths = json.dumps([*import_path(), *report_folders(ncu)])
    command = [sys.executable, "-I", "-c", _READ_REPORT, str(report), paths]
    python = run_tool(command, folder=folder, deadline_s=_READ_S, output_bytes=_MAX_ROWS_BYTES)
    if python.status == 0:
        rows: list[LaunchRow] = []
        with contextlib.suppress(DeviceError):  # larger than what is kept of it, say
            rows = rows_from_output(python.output)
        # The module reads a file that is no report as one of no launches; ncu itself says what is wrong with it.
        if rows:
            return rows
    ended = run_tool(import_arguments(ncu, str(report)), folder=folder, deadline_s=_READ_S)
    try:
        return parse_table(ended.output)
    except DeviceError as error:
        raise _NoCounters(str(error)) from error


@cache
def _selection(ncu: str, compute_capability: tuple[int, int]) -> Selection:
    """The default set, less what the chip lacks.

    Raises:
        _NoCounters: ncu does not list the chip's metrics.
    """
    # An ncu of before the chip, or after it, does not know its name; the GPU itself it may still know.
    failure: DeviceError | None = None
    for chip in dict.fromkeys((query.chip(compute_capability), None)):
        try:
            ended = ask_tool([ncu, *query.query_arguments(chip)])
            return select(default_metrics(), query.base_names(ended.output))
        except DeviceError as error:
            failure = error
    raise _NoCounters(str(failure)) from failure


def save_captures(report: Path, log: Path) -> None:
    """Copy a report and its log into the folder that ``KERNELFORGE_NCU_CAPTURES`` names; nothing without it."""
    target = os.environ.get("KERNELFORGE_NCU_CAPTURES")
    if not target:
        return
    folder = Path(target)
    folder.mkdir(parents=True, exist_ok=True)
    at = len(list(folder.glob("*.ncu-rep")))
    for source, ending in ((report, "ncu-rep"), (log, "log")):
        if source.is_file():
            (folder / f"{at:03d}.{ending}").write_bytes(source.read_bytes())
