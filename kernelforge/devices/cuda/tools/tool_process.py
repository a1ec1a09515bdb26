"""Start NVIDIA's tools on the replay program: private folder and environment, deadline, bounded output."""

from __future__ import annotations

import contextlib
import glob
import json
import os
import re
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from kernelforge.compile.cache import Artifact
from kernelforge.devices.base import FaultKind, RunFailure, RunRequest
from kernelforge.devices.cuda.tools.replay import CUBIN, REQUEST, RESULT, Mode
from kernelforge.devices.wire import MAX_MESSAGE, kernel_limits
from kernelforge.errors import DeviceError
from kernelforge.hardware.wheels import RELEASES, installed_cuda, nvidia_folders
from kernelforge.sandbox.policy import import_path, role_policy

OUTPUT_BYTES = 4 << 20
_MAX_RESULT_BYTES = 16 << 20
_GONE_S = 5.0
"""Longest wait for killed processes to end."""
_START = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[2]); "
    "from kernelforge.devices.cuda.tools.replay import main; sys.exit(main(sys.argv[1:2]))"
)
_PATTERNS: Mapping[str, tuple[str, ...]] = {
    "ncu": ("/usr/local/cuda/bin/ncu", "/opt/nvidia/nsight-compute/*/ncu"),
    "compute-sanitizer": (
        "/usr/local/cuda/bin/compute-sanitizer",
        "/usr/local/cuda/compute-sanitizer/compute-sanitizer",
    ),
}


@dataclass(frozen=True)
class ToolResult:
    """Exit status and output of a tool."""

    status: int | None
    """None if the tool was killed at its deadline."""
    output: str
    """Output of the tool and its program, from the start."""

    @property
    def timed_out(self) -> bool:
        return self.status is None


def find_tool(name: Literal["ncu", "compute-sanitizer"]) -> str | None:
    """Path of a tool: on the PATH, in the CUDA toolkit, or in NVIDIA's wheel of compute-sanitizer, preferably the wheel
    of the CUDA that candidates are compiled with."""
    on_path = shutil.which(name)
    if on_path:
        return on_path
    paths = [path for pattern in _PATTERNS[name] for path in sorted(glob.glob(pattern), key=_versions, reverse=True)]
    if name == "compute-sanitizer":
        compiler = installed_cuda().compiler
        releases = sorted(RELEASES.values(), key=lambda release: release.major != compiler)
        folders = (folder for release in releases for folder in nvidia_folders(release.sanitizer))
        paths += [str(folder / name) for folder in folders]
    return next((path for path in paths if os.access(path, os.X_OK)), None)


def report_folders(ncu: str) -> list[str]:
    """Folders that may hold Nsight Compute's own ``ncu_report``, those of this ncu first.

    The CUDA toolkit's ``bin/ncu`` is a script that searches for the program; this searches the same folders.
    """
    roots = [os.path.dirname(os.path.realpath(ncu))]
    for pattern in ("/usr/local/cuda*/nsight-compute-*", "/opt/nvidia/nsight-compute/*"):
        roots += sorted(glob.glob(pattern), key=_versions, reverse=True)
    folders = [os.path.join(root, "extras", "python") for root in roots]
    return [folder for folder in dict.fromkeys(folders) if os.path.isdir(folder)]


def _versions(path: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", path)]


def run_tool(
    command: Sequence[str],
    *,
    folder: Path,
    environment: Mapping[str, str] | None = None,
    deadline_s: float,
    output_bytes: int = OUTPUT_BYTES,
) -> ToolResult:
    """Run a command until it ends or its deadline passes; then kill every process that it started.

    Its only descriptors are ``/dev/null`` and a pipe; output beyond the limit is read and dropped.

    Args:
        command: Program and arguments.
        folder: Working directory, private to the command: processes that still run there afterwards are killed.
        environment: Complete environment; by default :func:`tool_environment`.
        deadline_s: Wall time.
        output_bytes: Longest output to keep.

    Raises:
        DeviceError: it cannot be started.
    """
    try:
        process = subprocess.Popen(
            list(command),
            cwd=folder,
            env=tool_environment(folder) if environment is None else dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    except OSError as error:
        raise DeviceError(f"cannot start {command[0]}: {error}") from error
    end = time.monotonic() + deadline_s
    kept = bytearray()
    status: int | None = None
    try:
        _drain(process, kept, end, output_bytes)
        with contextlib.suppress(subprocess.TimeoutExpired):
            status = process.wait(timeout=max(end - time.monotonic(), 0.01))
    finally:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        _kill_in(folder)
        assert process.stdout is not None
        process.stdout.close()
    return ToolResult(status, bytes(kept).decode(errors="replace"))


def _kill_in(folder: Path) -> None:
    """Kill processes that work in the folder until there is none: a tool may start its program in another session, and
    a process may start another during the search."""
    path, end = os.path.realpath(folder), time.monotonic() + _GONE_S
    while pids := _working_in(path):
        for pid in pids:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > end:
            return  # a process that the kernel cannot end
        time.sleep(0.002)


def _working_in(folder: str) -> list[int]:
    """Processes with this working directory, except this process."""
    pids = []
    for entry in os.listdir("/proc"):
        with contextlib.suppress(OSError):
            if entry.isdigit() and int(entry) != os.getpid() and os.readlink(f"/proc/{entry}/cwd") == folder:
                pids.append(int(entry))
    return pids


def _drain(process: subprocess.Popen[bytes], kept: bytearray, end: float, output_bytes: int) -> None:
    """Read output until every writer has closed the pipe, or until the deadline."""
    assert process.stdout is not None
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while (remaining := end - time.monotonic()) > 0:
            if selector.select(min(remaining, 0.2)):
                chunk = os.read(process.stdout.fileno(), 1 << 16)
                if not chunk:
                    return
                kept += chunk[: output_bytes - len(kept)]
            elif process.poll() is not None:
                return  # it ended, and its daemon keeps the pipe open


def ask_tool(command: Sequence[str], deadline_s: float = 60.0) -> ToolResult:
    """Run a tool without a program, such as for its version or a chip's metrics.

    Raises:
        DeviceError: it cannot be started.
    """
    with tempfile.TemporaryDirectory(prefix="kernelforge-", ignore_cleanup_errors=True) as folder:
        return run_tool(command, folder=Path(folder), deadline_s=deadline_s)


def tool_environment(folder: Path, extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Complete environment of a tool and its program: that of GPU runners, with the C locale and a private home."""
    policy = role_policy("gpu-runner").environment
    environment = {name: value.replace("{tmp}", str(folder)) for name, value in policy.items()}
    private = {"TMPDIR": str(folder), "HOME": str(folder), "LC_ALL": "C"}
    return {"PATH": "/usr/local/bin:/usr/bin:/bin", **environment, **private, **(extra or {})}


@contextlib.contextmanager
def request_folder(
    mode: Mode, driver: Mapping[str, Any], artifact: Artifact, request: RunRequest, **more: Any
) -> Iterator[Path]:
    """Make a private folder with a request for the replay program; removed afterwards."""
    with tempfile.TemporaryDirectory(prefix="kernelforge-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        (folder / CUBIN).write_bytes(artifact.cubin)
        for number, content in request.tensors.items():
            (folder / f"{number}.bin").write_bytes(content)
        wire = {
            "mode": mode,
            "driver": dict(driver),
            "plan": request.plan.to_wire(),
            "kernels": kernel_limits(artifact),
            "tensors": sorted(request.tensors),
            "mutable": sorted(request.mutable),
            "mapped": sorted(request.mapped),
            "readable": role_policy("gpu-runner").mounts,
            **more,
        }
        (folder / REQUEST).write_text(json.dumps(wire))
        yield folder


def replay_command(folder: Path) -> list[str]:
    """The command that carries out a folder's request."""
    return [sys.executable, "-I", "-c", _START, str(folder), json.dumps(import_path())]


@dataclass(frozen=True)
class ReplayResult:
    """Result of the replay program."""

    faults: tuple[RunFailure, ...]
    data: Mapping[str, Any]


def run_replay(
    command: Sequence[str], folder: Path, environment: Mapping[str, str], deadline_s: float
) -> tuple[ToolResult, ReplayResult | None]:
    """Run a command that carries out a folder's request; its end, and the result if the program wrote one.

    Args:
        command: :func:`replay_command`, or a tool's command around it.
        folder: From :func:`request_folder`.
        environment: Variables that make the GPU visible.
        deadline_s: Wall time.

    Raises:
        DeviceError: the command cannot be started, or its result cannot be read.
    """
    ended = run_tool(command, folder=folder, environment=tool_environment(folder, environment), deadline_s=deadline_s)
    return ended, read_result(folder)


def read_result(folder: Path) -> ReplayResult | None:
    """The result in a folder; None if the program wrote none.

    Raises:
        DeviceError: the result cannot be read.
    """
    path = folder / RESULT
    try:
        if path.stat().st_size > _MAX_RESULT_BYTES:
            raise ValueError("too long")
        data = json.loads(path.read_text())
        faults = []
        for kind, message in data["faults"]:
            if kind not in get_args(FaultKind):
                raise ValueError(f"unknown fault {kind!r}")
            faults.append(RunFailure(kind, str(message)[:MAX_MESSAGE]))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DeviceError(f"the replay program left a result that cannot be read: {error}") from error
    return ReplayResult(tuple(faults), data)
