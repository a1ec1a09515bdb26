"""Compute Sanitizer: its tools run one after the other on a plan at a small size, and its log as findings."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from kernelforge.compile.cache import Artifact
from kernelforge.compile.source import CANDIDATE_FILE
from kernelforge.devices.base import RunFailure, RunRequest
from kernelforge.devices.cuda.runner_pool import RunnerPool
from kernelforge.devices.cuda.target import GpuTarget
from kernelforge.devices.cuda.tools.tool_process import (
    ToolResult,
    find_tool,
    replay_command,
    request_folder,
    run_replay,
)
from kernelforge.errors import DeviceError, UnsupportedError

_PREFIX = "========="
_MAX_LINE, _MAX_REST, MAX_FINDINGS = 2048, 24, 64
"""Limits on the length of a line, the lines of a report, and the reports: some patterns take quadratic time."""
_FINDINGS = re.compile(
    r"(?:Potential )?[Ii]nvalid __\w+__ |Uninitialized "
    r"|(?:(?:ERROR|WARNING|Error|Warning): )?(?:\([^)]*\) )?(?:Race reported|Potential \w+ hazard)"
    r"|Barrier error|Barrier called|Syncwarp called|Deadlock detected|Malloc/Free error|Stack |Hardware |Warp "
    r"|Program hit CUDA_ERROR_|Tensor Memory |Misaligned "
)
_SUMMARY = re.compile(r"(ERROR|RACECHECK) SUMMARY: (\d{1,12}) (?:error|hazard)")
_TROUBLE = re.compile(
    r"Target application terminated before|Internal Sanitizer Error|Unable to|Device not supported"
    r"|No attachable process|Error: (?!process didn't)"
)
_AT = re.compile(
    r"\bat (?:(?P<early>0x[0-9a-f]+) in (?P<file0>[^:]+):(?P<line0>\d{1,9}):(?P<kernel0>.+)"
    r"|(?P<kernel>[^\s+][^+]*?)(?:\+|:)0x[0-9a-f]+(?: in (?P<file>.+?):(?P<line>\d{1,9}))?)(?: \[\d+ hazards\])?\s*\Z"
)
_BY = re.compile(r"by thread (\(\d+,\d+,\d+\)) in block (\(\d+,\d+,\d+\))")
_ADDRESS = re.compile(r"(?:Address|__shared__) (0x[0-9a-f]+)")


@dataclass(frozen=True)
class Finding:
    """One report of compute-sanitizer."""

    what: str
    """Its first line: ``Invalid __global__ write of size 4 bytes``."""
    detail: str = ""
    """Facts of the address: ``Address 0x... is out of bounds and is ...``."""
    kernel: str | None = None
    """Mangled name, if the tool was started with ``--demangle no``."""
    file: str | None = None
    line: int | None = None
    address: int | None = None
    thread: str | None = None
    block: str | None = None


@dataclass(frozen=True)
class SanitizerLog:
    """A parsed log."""

    findings: tuple[Finding, ...]
    errors: int | None
    """Count in its summary; None without a summary: the tool did not finish."""
    trouble: str | None
    """The tool's own failure."""


def parse_log(text: str) -> SanitizerLog:
    """Read a log, which may be cut short."""
    findings: list[Finding] = []
    errors: int | None = None
    trouble: str | None = None
    for first, rest in _reports(text):
        summary = _SUMMARY.search(first)
        if summary:
            errors = (errors or 0) + int(summary[2])
        elif _FINDINGS.match(first) and len(findings) < MAX_FINDINGS:
            findings.append(_finding(first, rest))
        elif _TROUBLE.match(first) and trouble is None:
            trouble = first
    return SanitizerLog(tuple(findings), errors, trouble)


def _reports(log: str) -> Iterator[tuple[str, list[str]]]:
    """First line and indented lines of every report."""
    first: str | None = None
    rest: list[str] = []
    for line in log.splitlines():
        line = line[:_MAX_LINE].strip("\r")
        at = line.find(_PREFIX)
        if at not in (0, 1):
            continue
        text = line[at + len(_PREFIX) :]
        if text.startswith("     ") and first is not None:
            rest += [text.strip()] if len(rest) < _MAX_REST else []
            continue
        if first is not None:
            yield first, rest
        first, rest = (text.strip() or None), []
    if first is not None:
        yield first, rest


def _finding(first: str, rest: list[str]) -> Finding:
    at = next((match for line in (first, *rest) if (match := _AT.search(line))), None)
    by = next((match for line in rest if (match := _BY.search(line))), None)
    address = next((match for line in (first, *rest) if (match := _ADDRESS.search(line))), None)
    detail = [line for line in rest if line.startswith(("Address", "and ", "Current Value", "Sync mask"))]
    named = {} if at is None else at.groupdict()
    line = named.get("line") or named.get("line0")
    return Finding(
        what=first[:300],
        detail=" ".join(detail)[:400],
        kernel=named.get("kernel") or named.get("kernel0"),
        file=named.get("file") or named.get("file0"),
        line=int(line) if line else None,
        address=int(address[1], 16) if address else None,
        thread=by[1] if by else None,
        block=by[2] if by else None,
    )


Tool = Literal["memcheck", "racecheck", "initcheck", "synccheck"]
TOOLS: tuple[Tool, ...] = get_args(Tool)

ERROR_EXIT = 86
"""Exit status of compute-sanitizer after errors; by default it is the program's own."""
PRINT_LIMIT = 50
PADDING_BYTES = 4096
"""Padding between allocations, so that an access just past one lands in no other."""
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
    target: GpuTarget,
    runners: RunnerPool,
    artifact: Artifact,
    request: RunRequest,
    tools: Sequence[Tool] = TOOLS,
) -> tuple[RunFailure, ...]:
    """Reports of compute-sanitizer on one run, as faults of kind ``sanitizer``.

    Args:
        target: The GPU.
        runners: Its runners, which probe its health.
        artifact: The build.
        request: The run. Choose a small size: every access is checked, at a fiftieth of the speed or less.
        tools: The checks; the first that reports something is the last to run.

    Raises:
        UnsupportedError: compute-sanitizer is missing, or has no result. Never a clean run.
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
            faults = _check(sanitizer, tool, target, artifact, request, symbols)
        except DeviceError as error:
            runners.recover()
            raise UnsupportedError(str(error)) from error
        if faults:
            return faults
    return ()


def _check(
    sanitizer: str, tool: Tool, target: GpuTarget, artifact: Artifact, request: RunRequest, symbols: Mapping[str, str]
) -> tuple[RunFailure, ...]:
    deadline_s = START_S + SLOWDOWN * request.deadline_s
    with request_folder("check", target.driver_options, artifact, request) as folder:
        path = folder / "sanitizer.log"
        command = arguments(sanitizer, tool, list(symbols), str(path), replay_command(folder))
        ended, result = run_replay(command, folder, target.environment, deadline_s)
        log = parse_log(path.read_text(errors="replace")[: 4 << 20] if path.is_file() else ended.output)
    return verdict(tool, log, ended, None if result is None else result.faults, symbols, deadline_s)


def verdict(
    tool: Tool,
    log: SanitizerLog,
    ended: ToolResult,
    program: tuple[RunFailure, ...] | None,
    symbols: Mapping[str, str],
    deadline_s: float,
) -> tuple[RunFailure, ...]:
    """Faults of a check, from its log, its status and the program's own result together.

    A clean run has a summary without errors, a status other than :data:`ERROR_EXIT`, and a program that ran to its
    end. The status alone proves nothing: without ``--error-exitcode`` it is the program's.

    Raises:
        DeviceError: there is evidence neither of an error nor of a clean run.
    """
    if log.findings:
        return _grouped(tool, log.findings, symbols)
    if program:
        return program
    if ended.timed_out:
        return (RunFailure("timeout", f"the plan did not end within {deadline_s:g} s under compute-sanitizer {tool}"),)
    if log.errors or ended.status == ERROR_EXIT:
        count = "errors" if not log.errors else f"{log.errors} errors"
        text = f"compute-sanitizer {tool} reports {count}, which cannot be read here: {ended.output[-500:]}"
        return (RunFailure("sanitizer", text),)
    if log.errors is None or program is None:
        output = log.trouble or ended.output.strip()[-500:] or "nothing"
        raise DeviceError(
            f"compute-sanitizer {tool} came to no result (status {ended.status}): {output}. "
            "Evaluate without it, or see whether it runs on a program of your own"
        )
    return ()


def _grouped(tool: Tool, findings: Sequence[Finding], symbols: Mapping[str, str]) -> tuple[RunFailure, ...]:
    """One fault for all reports of one kind at one line."""
    groups: dict[tuple[str, str | None, int | None], list[Finding]] = {}
    for finding in findings:
        groups.setdefault((finding.what.partition(" in block")[0], finding.kernel, finding.line), []).append(finding)
    return tuple(
        RunFailure("sanitizer", f"compute-sanitizer {tool}: {_message(group, symbols)}")
        for group in list(groups.values())[:MAX_FAULTS]
    )


def _message(group: Sequence[Finding], symbols: Mapping[str, str]) -> str:
    finding = group[0]
    parts = [finding.what]
    if finding.kernel is not None:
        name = finding.kernel.partition("(")[0]
        parts.append(f"in {symbols.get(name, name)!r}")
    if finding.line is not None and (finding.file or "").rpartition("/")[2] == CANDIDATE_FILE:
        parts.append(f"at line {finding.line}")
    elif finding.line is not None:
        parts.append(f"at {finding.file}:{finding.line}")
    if finding.thread is not None:
        parts.append(f"by thread {finding.thread} in block {finding.block}")
    text = " ".join(parts) + (f". {finding.detail}" if finding.detail else "")
    return text + (f" ({len(group)} reports alike)" if len(group) > 1 else "")
