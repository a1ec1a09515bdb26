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
COLLECT = ["pytest", "-q", "-q", "-q", "--collect-only", "-n", "0"]
"""Imports every test while mypy, which takes one core, runs: it keeps on disk the compiled tests that each worker would
otherwise compile for itself. A test that cannot be imported fails with the tests, where that is told."""


def main(arguments: list[str]) -> int:
    for name, command in STEPS.items():
        extra = arguments if name == "tests" else []
        print(f"== {name}: {' '.join(command + extra)}", flush=True)
        start = time.monotonic()
        beside = start_quietly([*COLLECT, *arguments]) if name == "types" else None
        code = subprocess.run([sys.executable, "-m", *command, *extra], cwd=ROOT, check=False).returncode
        if beside is not None:
            if code != 0:
                beside.terminate()
            beside.wait()
        if code != 0:
            print(f"== {name} failed with {code} after {time.monotonic() - start:.0f} s", file=sys.stderr)
            return code
    return 0


def start_quietly(command: list[str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", *command], cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
