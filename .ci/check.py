"""Everything that must hold before a change lands: lint, format, types, tests. Stops at the first that does not.

Usage: python .ci/check.py [arguments for pytest]
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
WORKERS = str((os.cpu_count() or 1) + 2)
STEPS = {
    "lint": ["ruff", "check", "."],
    "format": ["ruff", "format", "--check", "."],
    "types": ["mypy"],
    # Two workers more than cores, since tests wait for jailed children; a module's tests share its warm processes, so a
    # file stays with one worker. Files go out in their order: by number of tests, the few that take longest would
    # come last and hold up one worker alone.
    "tests": ["pytest", "-q", "--durations=10", "-n", WORKERS, "--dist", "loadfile", "--no-loadscope-reorder"],
}
COLLECT = ["-m", "pytest", "-q", "-q", "-q", "--collect-only", "-n", "0"]
WARM = ["-c", "from kernelforge.devices.emulated.machine import warm_up; warm_up()"]
"""Run beside mypy, which takes one core: they leave on disk the compiled tests and emulator that each worker would
otherwise compile for itself. A test that cannot be imported fails with the tests, where that is told."""


def main(arguments: list[str]) -> int:
    for name, command in STEPS.items():
        extra = arguments if name == "tests" else []
        print(f"== {name}: {' '.join(command + extra)}", flush=True)
        start = time.monotonic()
        beside = [start_quietly(WARM), start_quietly([*COLLECT, *arguments])] if name == "types" else []
        code = subprocess.run([sys.executable, "-m", *command, *extra], cwd=ROOT, check=False).returncode
        for process in beside:
            if code != 0:
                process.terminate()
            process.wait()
        if code != 0:
            print(f"== {name} failed with {code} after {time.monotonic() - start:.0f} s", file=sys.stderr)
            return code
    return 0


def start_quietly(arguments: list[str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, *arguments], cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
