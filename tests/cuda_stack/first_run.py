"""Runs ``kernelforge run`` with the CUDA build of torch and a driver, and prints the outcome.

``python first_run.py`` runs README's suite on a machine like a desktop. ``python first_run.py --places`` runs one task
on each imitated machine, tries the processes with a GPU there, and prints the table of docs/gpus.md.

Leaves with 1 where something neither worked nor was refused in a sentence.
"""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parents[2])]

from tests.cuda_stack.machine import MACHINES, Machine, run_in  # noqa: E402

SCRIPT = "{checkout}/tests/cuda_stack/stages.py"
STARTED = ("CUDA_ERROR_NO_DEVICE", "No CUDA GPUs are available")
"""How a process ends whose library could start CUDA and found no GPU."""


def main(arguments: list[str]) -> int:
    if arguments == ["--places"]:
        rows = [row(machine) for machine in MACHINES]
        print("\n".join(" | ".join(("", *cells, "")).strip() for cells in rows))
        return int(any("failed" in cell for cells in rows for cell in cells))
    correct, output = emulated(MACHINES[0], arguments)
    print(output)
    return int(not correct.startswith("16 of 16"))


def row(machine: Machine) -> tuple[str, ...]:
    """Cells of one machine."""
    correct, output = emulated(machine, ["--task", "softmax"])
    reported = json.loads(run_in(machine, ["{python}", SCRIPT, "--cuda"]).output.splitlines()[-1])
    roles = [answer(reported[role]) for role in ("gpu-runner", "gpu-oracle", "gpu-modelnew")]
    layers = reported["gpu-runner"].get("layers")
    refused = "refused" if roles == ["refused"] * 3 and "no jail works on this machine" in output else "failed"
    run = "yes" if correct == "1 of 1 tasks" else refused
    jail = ", ".join(layers) if layers else "none"
    return (machine.name, jail, run, roles[0] if len(set(roles)) == 1 else "failed", answer(reported["replay"]))


def answer(stage: dict[str, Any]) -> str:
    if "refused" in stage:
        return "refused"
    return "yes" if any(text in stage["answer"] for text in STARTED) else f"failed: {stage['answer']}"


def emulated(machine: Machine, arguments: list[str]) -> tuple[str, str]:
    """A run without ``--device``; how many tasks came out right, and all that was printed."""
    # Processes outside the jail are shown a GPU, as on a desktop, and those inside cannot use it.
    imitated = replace(machine, environment={"IMITATION_GPUS": "1"})
    command = ["{python}", "-m", "kernelforge", "run", "--display", "plain", *arguments]
    outcome = run_in(imitated, command, timeout_s=3000)
    correct = re.search(r"^correct +(\d+ of \d+ tasks)", outcome.output, re.MULTILINE)
    return correct[1] if correct else "", outcome.output


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
