"""A stand-in for ncu in tests: a program that takes its options, runs the target for real, and speaks as ncu does.

It measures nothing; its numbers are made up. ``python imitated_ncu.py SCENE OPTIONS...``; scenes: ``good``, ``denied``,
``hangs``, ``mute`` (ends without a report), ``torn`` (its CSV breaks off).
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

CAPTURES = Path(__file__).parent / "captures"
DENIED = (
    "==PROF== Connected to process 4242\n==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access "
    "NVIDIA GPU Performance Counters on the target device 0.\n"
)


def option(arguments: list[str], name: str) -> str:
    return arguments[arguments.index(name) + 1]


def program_of(arguments: list[str]) -> list[str]:
    return arguments[arguments.index("--force-overwrite") + 1 :]


def table(request: dict[str, object], torn: bool) -> str:
    """Rows for the chosen launches, after one of a kernel whose name begins alike."""
    names = ["gpu__time_duration.sum", "dram__bytes.sum", "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed"]
    head = ["ID", "Process ID", "Kernel Name", "Block Size", "Grid Size", "CC", *names]
    lines = [head, ["", "", "", "", "", "", "nsecond", "byte", "%"]]
    launches = [step for step in request["plan"]["steps"] if step["step"] == "Launch"]  # type: ignore[index]
    lines.append(["0", "1", "add_but_longer", "(256, 1, 1)", "(1, 1, 1)", "9.0", "999999", "999999", "99"])
    for ordinal in request["chosen"]:  # type: ignore[attr-defined]
        launch = launches[ordinal]
        symbol = request["kernels"][launch["expression"]][0]  # type: ignore[index]
        block, grid = (f"({', '.join(map(str, launch[key]))})" for key in ("block", "grid"))
        time_ns, traffic = 10000 * (ordinal + 1), 4096 * (ordinal + 1)
        lines.append([str(ordinal), "1", symbol, block, grid, "9.0", str(time_ns), f"{traffic:,}", "75.5"])
    text = "\n".join(",".join(f'"{cell}"' for cell in line) for line in lines) + "\n"
    return text[:-20] if torn else text


def main(scene: str, arguments: list[str]) -> int:
    if "--version" in arguments:
        print("NVIDIA (R) Nsight Compute Command Line Profiler\nVersion 2025.3.1.0 (build 1) (public-release)")
        return 0
    if "--query-metrics" in arguments:
        print((CAPTURES / "query_metrics_gh100_ncu2024.1_excerpt.txt").read_text())
        return 0
    if "--import" in arguments:
        request = json.loads(Path(option(arguments, "--import")).read_text())
        print(table(request, scene == "torn"))
        return 0
    if scene == "hangs":
        time.sleep(600)
    log = Path(option(arguments, "--log-file"))
    target = subprocess.run(program_of(arguments), check=False)
    if scene == "denied":
        log.write_text(DENIED)
        return 1
    if target.returncode:
        log.write_text(f"==ERROR== The application returned an error code ({target.returncode}).\n")
    if scene != "mute":
        folder = Path(option(arguments, "--export")).parent
        Path(option(arguments, "--export")).write_text((folder / "request.json").read_text())
    return target.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
