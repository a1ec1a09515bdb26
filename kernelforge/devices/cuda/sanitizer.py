"""compute-sanitizer as a gate: memory errors, races, uninitialised reads, barrier misuse, on one run of a plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

from kernelforge.compile.artifact import Artifact
from kernelforge.compile.source import CANDIDATE_FILE
from kernelforge.devices.base import RunFault, RunRequest
from kernelforge.devices.cuda.sanitizer_log import Finding, SanitizerLog, parse_log
from kernelforge.devices.cuda.tool import (
    Ended,
    find_tool,
    read_result,
    replay_command,
    request_folder,
    run_tool,
    tool_environment,
)
from kernelforge.errors import DeviceError, UnsupportedError

if TYPE_CHECKING:
    from kernelforge.devices.cuda.device import CudaDevice

Tool = Literal["memcheck", "racecheck", "initcheck", "synccheck"]
TOOLS: tuple[Tool, ...] = get_args(Tool)

ERROR_EXIT = 86
"""What compute-sanitizer is asked to exit with when it found errors; its default is the program's own status."""
PRINT_LIMIT = 50
PADDING_BYTES = 4096
"""Between allocations, so that an access just past one lands in no other."""
SLOWDOWN = 50.0
START_S = 90.0
MAX_FAULTS = 8
MISSING = (
    "compute-sanitizer was not found; install the CUDA toolkit or `pip install nvidia-cuda-sanitizer-api`, or evaluate "
    "without it"
)


def arguments(sanitizer: str, tool: Tool, symbols: Sequence[str], log: str, program: Sequence[str]) -> list[str]:
    """The command line of one check: the candidate's kernels by exact name, API errors of the harness left out."""
    memory = ["--padding", str(PADDING_BYTES), "--report-api-errors", "no"] if tool == "memcheck" else []
    # The wheel of CUDA 12 keeps these libraries in a folder where its own program does not look for them.
    libraries = Path(sanitizer).resolve().parent.parent / "lib"
    injection = ["--injection-path", str(libraries)] if (libraries / "libsanitizer-collection.so").is_file() else []
    return [
        sanitizer,
        *injection,
        "--tool", tool,
        "--kernel-name", ",".join(f"kernel_name={symbol}" for symbol in dict.fromkeys(symbols)),
        "--error-exitcode", str(ERROR_EXIT),
        "--check-exit-code", "no",
        "--target-processes", "application-only",
        "--launch-timeout", str(int(START_S)),
        "--print-limit", str(PRINT_LIMIT),
        "--demangle", "no",
        "--show-backtrace", "no",
        *memory,
        "--log-file", log,
        *program,
    ]  # fmt: skip


def sanitize(
    device: CudaDevice, artifact: Artifact, request: RunRequest, tools: Sequence[Tool] = TOOLS
) -> tuple[RunFault, ...]:
    """What compute-sanitizer reports of one run, at the size of the request, as faults of kind ``sanitizer``.

    Args:
        device: The GPU.
        artifact: The build.
        request: The run. Choose a small size: every access is checked, at a fiftieth of the speed or less.
        tools: Which checks; the first that finds something ends it.

    Raises:
        UnsupportedError: compute-sanitizer is missing, or did not come to a result. Never taken for a clean run.
        DeviceError: the GPU no longer passes its health probe.
    """
    sanitizer = find_tool("compute-sanitizer")
    if sanitizer is None:
        raise UnsupportedError(MISSING)
    symbols = {artifact.symbol(expression): expression for expression in request.plan.expressions}
    if not symbols:
        return ()
    for tool in tools:
        try:
            faults = _check(sanitizer, tool, device, artifact, request, symbols)
        except DeviceError as error:
            device.recover()
            raise UnsupportedError(str(error)) from error
        if faults:
            return faults
    return ()


def _check(
    sanitizer: str, tool: Tool, device: CudaDevice, artifact: Artifact, request: RunRequest, symbols: Mapping[str, str]
) -> tuple[RunFault, ...]:
    deadline_s = START_S + SLOWDOWN * request.deadline_s
    with request_folder("check", device.driver_options, artifact, request) as folder:
        path = folder / "sanitizer.log"
        command = arguments(sanitizer, tool, list(symbols), str(path), replay_command(folder))
        environment = tool_environment(folder, device.environment)
        ended = run_tool(command, folder=folder, environment=environment, deadline_s=deadline_s)
        log = parse_log(path.read_text(errors="replace")[: 4 << 20] if path.is_file() else ended.output)
        result = read_result(folder)
    return verdict(tool, log, ended, None if result is None else result.faults, symbols, deadline_s)


def verdict(
    tool: Tool,
    log: SanitizerLog,
    ended: Ended,
    program: tuple[RunFault, ...] | None,
    symbols: Mapping[str, str],
    deadline_s: float,
) -> tuple[RunFault, ...]:
    """What a check found, from its log, its status and the program's own result together.

    A clean run has a summary without errors, a status other than :data:`ERROR_EXIT`, and a program that came to its
    end. The status alone proves nothing: without ``--error-exitcode`` it is the program's.

    Raises:
        DeviceError: there is evidence neither of an error nor of a clean run.
    """
    if log.findings:
        return _told(tool, log.findings, symbols)
    if program:
        return program
    if ended.timed_out:
        return (RunFault("timeout", f"the plan did not end within {deadline_s:g} s under compute-sanitizer {tool}"),)
    if log.errors or ended.status == ERROR_EXIT:
        count = "errors" if not log.errors else f"{log.errors} errors"
        text = f"compute-sanitizer {tool} reports {count}, which cannot be read here: {ended.output[-500:]}"
        return (RunFault("sanitizer", text),)
    if log.errors is None or program is None:
        said = log.trouble or ended.output.strip()[-500:] or "nothing"
        raise DeviceError(
            f"compute-sanitizer {tool} came to no result (status {ended.status}): {said}. "
            "Evaluate without it, or see whether it runs on a program of your own"
        )
    return ()


def _told(tool: Tool, findings: Sequence[Finding], symbols: Mapping[str, str]) -> tuple[RunFault, ...]:
    """One fault for all reports of one kind at one place."""
    alike: dict[tuple[str, str | None, int | None], list[Finding]] = {}
    for finding in findings:
        alike.setdefault((finding.what.partition(" in block")[0], finding.kernel, finding.line), []).append(finding)
    return tuple(
        RunFault("sanitizer", f"compute-sanitizer {tool}: {_message(group, symbols)}")
        for group in list(alike.values())[:MAX_FAULTS]
    )


def _message(group: Sequence[Finding], symbols: Mapping[str, str]) -> str:
    one = group[0]
    parts = [one.what]
    if one.kernel is not None:
        name = one.kernel.partition("(")[0]
        parts.append(f"in {symbols.get(name, name)!r}")
    if one.line is not None and (one.file or "").rpartition("/")[2] == CANDIDATE_FILE:
        parts.append(f"at line {one.line}")
    elif one.line is not None:
        parts.append(f"at {one.file}:{one.line}")
    if one.thread is not None:
        parts.append(f"by thread {one.thread} in block {one.block}")
    told = " ".join(parts) + (f". {one.detail}" if one.detail else "")
    return told + (f" ({len(group)} reports alike)" if len(group) > 1 else "")
