"""compute-sanitizer: exact options, reports of every tool read, and nothing but a clean run passes.

Logs are written by hand after the formats of the Compute Sanitizer manual, but for the one that is captured.
"""

from __future__ import annotations

import sys
from itertools import pairwise
from pathlib import Path

import pytest

from kernelforge import devices
from kernelforge.compile import Compiler
from kernelforge.devices.base import RunFailure
from kernelforge.devices.cuda import discovery
from kernelforge.devices.cuda.device import CudaDevice
from kernelforge.devices.cuda.tools import sanitizer
from kernelforge.devices.cuda.tools import tool_process as tool
from kernelforge.devices.cuda.tools.sanitizer import ERROR_EXIT, SanitizerLog, arguments, parse_log, sanitize, verdict
from kernelforge.devices.cuda.tools.tool_process import ToolResult, find_tool, run_tool
from kernelforge.errors import DeviceError, UnsupportedError
from kernelforge.hardware.wheels import InstalledCuda
from kernelforge.records import MeasureSettings
from tests.devices.cuda.plans import ADD, ADD_PLAN, OVERRUN_PLAN, build, randoms, request, resolve
from tests.devices.cuda.software import with_ptx

DRIVER = "tests.profiling.ncu.light_driver:create"

CAPTURES = Path(__file__).parent / "captures"

MEMCHECK = """\
========= COMPUTE-SANITIZER
========= Invalid __global__ write of size 4 bytes
=========     at _Z3addPfS_i+0x90 in candidate.cu:12
=========     by thread (31,0,0) in block (7,0,0)
=========     Address 0x7f6510c00404 is out of bounds
=========     and is 5 bytes after the nearest allocation at 0x7f6510c00000 of size 1,024 bytes
=========
========= Invalid __global__ write of size 4 bytes
=========     at _Z3addPfS_i+0x90 in candidate.cu:12
=========     by thread (30,0,0) in block (7,0,0)
=========     Address 0x7f6510c00400 is out of bounds
=========
========= Target application returned an error
========= ERROR SUMMARY: 2 errors
"""
CLEAN = "========= COMPUTE-SANITIZER\n========= ERROR SUMMARY: 0 errors\n"
RACE = """\
========= COMPUTE-SANITIZER
========= Error: Race reported between Write access at _Z3sumPfS_(float *, float *)+0x90 in /t/candidate.cu:41
=========     and Read access at _Z3sumPfS_(float *, float *)+0x100 in /t/candidate.cu:51 [508 hazards]
=========
========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)
"""
HAZARD = """\
========= Warning: (Warp Level Programming) Potential RAW hazard detected at __shared__ 0x8c in block (0,0,0) :
=========     Write Thread (35,0,0) at sum+0x90 in candidate.cu:44
=========     Read Thread (32,0,0) at sum+0x120 in candidate.cu:56
=========     Current Value : 35
========= RACECHECK SUMMARY: 1 hazard displayed (0 errors, 1 warning)
"""
SYNC = """\
========= Barrier error detected. Divergent thread(s) in block.
=========     at f+0xf0 in candidate.cu:79
=========     by thread (37,0,0) in block (0,0,0)
=========
========= ERROR SUMMARY: 1 error
"""
INIT = """\
========= Uninitialized __global__ memory read of size 4 bytes
=========     at 0x70 in candidate.cu:41:f
=========     by thread (31,0,0) in block (1,0,0)
=========     Address 0x7f3c7ec000fc
=========
========= ERROR SUMMARY: 1 error
"""
OK = ToolResult(0, "")


def judged(text: str, tool: sanitizer.Tool = "memcheck", ended: ToolResult = OK) -> tuple[RunFailure, ...]:
    return verdict(tool, parse_log(text), ended, (), {"_Z3addPfS_i": "add", "f": "f"}, 60.0)


def test_the_command_line_is_exactly_this() -> None:
    assert arguments("/cs", "memcheck", ["_Z1fPf", "g", "g"], "/t/log", ["python", "x"]) == [
        "/cs", "--tool", "memcheck", "--kernel-name", "kernel_name=_Z1fPf,kernel_name=g", "--error-exitcode", "86",
        "--check-exit-code", "no", "--target-processes", "application-only", "--launch-timeout", "90",
        "--print-limit", "50", "--demangle", "no", "--show-backtrace", "no", "--padding", "4096",
        "--report-api-errors", "no", "--log-file", "/t/log", "python", "x",
    ]  # fmt: skip
    assert "--padding" not in arguments("/cs", "racecheck", ["f"], "/t/log", ["x"])


@pytest.mark.parametrize(
    ("major", "folder", "libraries"),
    [(12, "nvidia/cuda_sanitizer_api/bin", "nvidia/cuda_sanitizer_api/lib"), (13, "nvidia/cu13/compute-sanitizer", "")],
)
def test_the_wheel_of_either_cuda_is_found_with_its_libraries(
    major: int, folder: str, libraries: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / folder / "compute-sanitizer"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    library = tmp_path / (libraries or folder) / "libsanitizer-collection.so"
    library.parent.mkdir(exist_ok=True)
    library.touch()
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.setattr(tool.shutil, "which", lambda name: None)
    monkeypatch.setattr(tool, "_PATTERNS", {"compute-sanitizer": ()})
    assert find_tool("compute-sanitizer") == str(program)
    command = arguments(str(program), "memcheck", ["f"], "/t/log", ["x"])
    options = [after for option, after in pairwise(command) if option == "--injection-path"]
    assert options == ([str(library.parent)] if major == 12 else [])


def test_the_wheel_of_the_cuda_that_compiles_is_taken_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in ("nvidia/cuda_sanitizer_api/bin", "nvidia/cu13/compute-sanitizer"):
        program = tmp_path / folder / "compute-sanitizer"
        program.parent.mkdir(parents=True)
        program.touch(0o755)
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.setattr(tool.shutil, "which", lambda name: None)
    monkeypatch.setattr(tool, "_PATTERNS", {"compute-sanitizer": ()})
    for major, folder in ((12, "cuda_sanitizer_api"), (13, "cu13")):
        monkeypatch.setattr(tool, "installed_cuda", lambda major=major: InstalledCuda(major, None, None))
        assert f"/nvidia/{folder}/" in str(find_tool("compute-sanitizer"))


def test_an_access_out_of_bounds_names_kernel_line_thread_and_address() -> None:
    first, second = parse_log(MEMCHECK).findings
    assert (first.kernel, first.file, first.line) == ("_Z3addPfS_i", "candidate.cu", 12)
    assert (first.address, first.thread, first.block) == (0x7F6510C00404, "(31,0,0)", "(7,0,0)")
    assert second.address == 0x7F6510C00400
    (fault,) = judged(MEMCHECK, ended=ToolResult(ERROR_EXIT, ""))
    assert fault.kind == "sanitizer"
    assert "Invalid __global__ write of size 4 bytes in 'add' at line 12 by thread (31,0,0)" in fault.message
    assert "5 bytes after the nearest allocation" in fault.message
    assert "2 reports alike" in fault.message


@pytest.mark.parametrize(
    ("text", "tool", "kernel", "line"),
    [
        (RACE, "racecheck", "_Z3sumPfS_(float *, float *)", 41),
        (HAZARD, "racecheck", "sum", 44),
        (SYNC, "synccheck", "f", 79),
        (INIT, "initcheck", "f", 41),
    ],
)
def test_reports_of_every_tool_are_read(text: str, tool: sanitizer.Tool, kernel: str, line: int) -> None:
    (finding,) = parse_log(text).findings
    assert (finding.kernel, finding.line) == (kernel, line)
    (fault,) = judged(text, tool)
    assert fault.message.startswith(f"compute-sanitizer {tool}: ")
    assert f"at line {line}" in fault.message


def test_a_clean_run_has_no_fault() -> None:
    assert judged(CLEAN) == ()


@pytest.mark.parametrize(
    "log", [SanitizerLog((), None, None), parse_log(""), parse_log("========= COMPUTE-SANITIZER\n")]
)
def test_a_run_without_a_summary_is_no_clean_run(log: SanitizerLog) -> None:
    with pytest.raises(DeviceError, match="came to no result"):
        verdict("memcheck", log, OK, (), {}, 60.0)


def test_a_program_that_left_no_result_is_no_clean_run() -> None:
    with pytest.raises(DeviceError, match="came to no result"):
        verdict("memcheck", parse_log(CLEAN), OK, None, {}, 60.0)


def test_errors_that_cannot_be_read_are_errors_all_the_same() -> None:
    for text, ended in (("========= ERROR SUMMARY: 3 errors\n", OK), (CLEAN, ToolResult(ERROR_EXIT, "new words"))):
        (fault,) = judged(text, ended=ended)
        assert fault.kind == "sanitizer"


def test_findings_count_whatever_the_status_says() -> None:
    assert judged(MEMCHECK, ended=ToolResult(0, ""))


def test_a_check_that_does_not_end_is_a_timeout() -> None:
    (fault,) = verdict("memcheck", parse_log(""), ToolResult(None, ""), None, {}, 60.0)
    assert fault.kind == "timeout"


def test_what_the_program_itself_found_is_kept() -> None:
    crash = RunFailure("crash", "the build cannot be loaded")
    assert verdict("memcheck", parse_log(CLEAN), ToolResult(3, ""), (crash,), {}, 60.0) == (crash,)


def test_the_captured_log_of_a_machine_without_a_gpu_is_trouble_of_the_tool() -> None:
    log = parse_log((CAPTURES / "compute_sanitizer_2026.4_no_gpu.log").read_text())
    assert log.findings == ()
    assert log.errors is None
    assert log.trouble is not None
    with pytest.raises(DeviceError, match="before first instrumented API call"):
        verdict("memcheck", log, ToolResult(255, ""), (), {}, 60.0)


def test_lines_that_a_kernel_prints_are_no_reports() -> None:
    assert parse_log("Invalid __global__ write of size 4 bytes\n" + CLEAN).findings == ()


def speak(folder: Path, monkeypatch: pytest.MonkeyPatch, log: str, status: int) -> None:
    """A stand-in for compute-sanitizer on the PATH: it runs the program for real, then says what the test wants."""
    script = folder / "compute-sanitizer"
    (folder / "said").write_text(log)
    script.write_text(
        f"#!{sys.executable} -I\nimport subprocess, sys\n"
        "at = sys.argv.index('--log-file')\nsubprocess.run(sys.argv[at + 2:])\n"
        f"open(sys.argv[at + 1], 'w').write(open({str(folder / 'said')!r}).read())\nsys.exit({status})\n"
    )
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


@pytest.mark.slow
def test_a_plan_is_checked_in_a_process_of_its_own(
    compiler: Compiler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrays = [randoms(1000), randoms(1000, seed=1)]
    plan = resolve(ADD_PLAN, arrays)
    artifact = with_ptx(build(compiler, ADD, plan))
    with CudaDevice(0, driver=DRIVER) as device:
        speak(tmp_path, monkeypatch, CLEAN, 0)
        assert sanitize(device.target, device.runners, artifact, request(plan, *arrays), ("memcheck",)) == ()
        speak(tmp_path, monkeypatch, SYNC, ERROR_EXIT)
        (fault,) = sanitize(device.target, device.runners, artifact, request(plan, *arrays))
        assert "memcheck: Barrier error" in fault.message


@pytest.mark.slow
def test_buffers_have_no_guards_when_accesses_are_checked(
    compiler: Compiler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The runner's guards would take the write; here the (emulated) GPU faults on it, and the result says so."""
    arrays = [randoms(1024), randoms(1024, seed=1)]
    plan = resolve(OVERRUN_PLAN.replace("256), 256", "256) + 1, 256"), arrays)
    speak(tmp_path, monkeypatch, CLEAN, 0)
    with CudaDevice(0, driver=DRIVER) as device:
        artifact = with_ptx(build(compiler, ADD, plan))
        (fault,) = sanitize(device.target, device.runners, artifact, request(plan, *arrays), ("memcheck",))
    assert fault.kind == "crash"


@pytest.mark.slow
def test_a_missing_tool_says_what_to_install(
    compiler: Compiler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sanitizer, "find_tool", lambda name: None)
    arrays = [randoms(4), randoms(4)]
    plan = resolve(ADD_PLAN, arrays)
    with CudaDevice(0, driver=DRIVER) as device, pytest.raises(UnsupportedError, match="nvidia-cuda-sanitizer-api"):
        sanitize(device.target, device.runners, build(compiler, ADD, plan), request(plan, *arrays))
    settings = MeasureSettings(sanitizer=True)
    monkeypatch.setattr(devices, "check_device", lambda name: name)
    monkeypatch.setattr(discovery, "require_packages", lambda runtime: None)
    monkeypatch.setattr(tool, "find_tool", lambda name: None)
    with pytest.raises(DeviceError, match="--sanitizer cannot be had: compute-sanitizer was not found; install"):
        devices.make_device("cuda:0", measure=settings)


@pytest.mark.slow
def test_a_tool_without_a_result_is_no_fault_of_the_gpu_or_the_plan(
    compiler: Compiler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrays = [randoms(4), randoms(4)]
    plan = resolve(ADD_PLAN, arrays)
    speak(tmp_path, monkeypatch, "========= Error: cannot attach", 1)
    with CudaDevice(0, driver=DRIVER) as device:
        artifact = with_ptx(build(compiler, ADD, plan))
        with pytest.raises(UnsupportedError, match="came to no result"):
            sanitize(device.target, device.runners, artifact, request(plan, *arrays), ("memcheck",))
        device.runners.require_healthy()  # still in use


@pytest.mark.skipif(find_tool("compute-sanitizer") is None, reason="compute-sanitizer is not installed")
@pytest.mark.parametrize("tool", sanitizer.TOOLS)
def test_the_real_tool_takes_every_option(tool: sanitizer.Tool, tmp_path: Path) -> None:
    sanitizer = find_tool("compute-sanitizer")
    assert sanitizer is not None
    log = tmp_path / "log"
    ended = run_tool(arguments(sanitizer, tool, ["f", "g"], str(log), ["/bin/true"]), folder=tmp_path, deadline_s=60)
    assert "unrecognised" not in ended.output
    assert parse_log(log.read_text()).trouble is not None  # /bin/true uses no CUDA
