"""Check a change before it lands: lint, language, format, types, tests. Stops at the first step that fails.

Usage: python .ci/check.py [--step NAME] [arguments for pytest]

With ``--step`` (lint, language, format, types or tests) that one step runs alone. Tests marked ``slow`` are left out,
and of the cases of tests marked ``one_in`` one in so many runs; with ``--all-cases`` every one.
"""

from __future__ import annotations

import importlib.util
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
WORKERS = str((os.cpu_count() or 1) + 1)
STEPS = {
    "lint": ["-m", "ruff", "check", "."],
    "language": [".ci/plain_english.py"],
    "format": ["-m", "ruff", "format", "--check", "."],
    "types": ["-m", "mypy"],
    # One worker more than cores: tests wait for children, and each worker takes half a minute of CPU time to collect
    # them. A module's tests share its warm processes, so a file stays with one worker. Files go out in their order: by
    # number of tests, the few that take longest would come last and hold up one worker alone.
    "tests": ["-m", "pytest", "-q", "--durations=10", "-n", WORKERS, "--dist", "loadfile", "--no-loadscope-reorder"],
}
FOLDERS = [
    os.path.dirname(spec.origin)
    for name in ("torch", "sympy", "mpmath", "numba", "llvmlite", "numpy")
    if (spec := importlib.util.find_spec(name)) and spec.origin
]
BESIDE = (
    ["-m", "compileall", "-q", *FOLDERS],
    ["-c", "from kernelforge.devices.emulated.worker import warm_up; warm_up({'tensor_memory': True})"],
)
COLLECT = ["-m", "pytest", "-q", "-q", "-q", "--collect-only", "-n", "0"]
"""Run one after another while the steps from ``language`` to ``types`` take the other core. They fill the caches of
compiled Python files (pip may have compiled none), of the emulator, and of the tests, for all workers and helper
processes. A test that cannot be imported is reported by the step ``tests``."""


def main(arguments: list[str]) -> int:
    steps = STEPS
    if arguments[:1] == ["--step"]:
        if arguments[1:2] not in [[name] for name in STEPS]:
            print(f".ci/check.py: --step takes one of {', '.join(STEPS)}", file=sys.stderr)
            return 2
        steps, arguments = {arguments[1]: STEPS[arguments[1]]}, arguments[2:]
    beside = None
    for name, command in steps.items():
        extra = arguments if name == "tests" else []
        print(f"== {name}: {' '.join(command + extra)}", flush=True)
        if name == "tests" and "--all-cases" not in extra:
            print("== without tests marked slow, and with one case in N of those marked one_in(N)", flush=True)
        starts = name == "language" and steps is STEPS
        if starts or name == "tests":
            os.environ["NUMBA_CACHE_DIR"] = emulator_cache()
        if starts:
            beside = start_beside(arguments)
        start = time.monotonic()
        code = subprocess.run([sys.executable, *command, *extra], cwd=ROOT, check=False).returncode
        if beside and code != 0 and beside.poll() is None:
            os.killpg(beside.pid, signal.SIGTERM)
        if beside and (code != 0 or name == "types"):
            beside.wait()
        if code != 0:
            print(f"== {name} failed with {code} after {time.monotonic() - start:.0f} s", file=sys.stderr)
            return code
    return 0


def emulator_cache() -> str:
    """Folder in which the jailed runner keeps the compiled emulator: pytest's own processes use it too, so that one
    compilation of 15 to 20 s serves all."""
    from kernelforge.sandbox.policy import role_policy

    return role_policy("runner").environment["NUMBA_CACHE_DIR"]


def start_beside(arguments: list[str]) -> subprocess.Popen[bytes]:
    commands = [shlex.join([sys.executable, *command]) for command in (*BESIDE, [*COLLECT, *arguments])]
    return subprocess.Popen(
        "; ".join(commands),
        shell=True,
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
