"""Runs ``kernelforge run`` on machines with a driver, and prints a table: ``python first_run.py [--all] [ARGUMENTS]``.

The whole suite on a machine like a desktop; with ``--all`` the given arguments, or one task, in every place.
"""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1])]

from cuda_stack.place import PLACES, Outcome, Place, run_in  # noqa: E402


def main(arguments: list[str]) -> int:
    everywhere = arguments[:1] == ["--all"]
    extra = arguments[1:] if everywhere else arguments
    failed = False
    for place in PLACES if everywhere else PLACES[:1]:
        # A driver that shows a GPU to processes outside the jail, as on a desktop.
        shown = replace(place, environment={"IMITATION_GPUS": "1"})
        outcome = run(shown, extra or (["--task", "softmax"] if everywhere else []))
        correct = re.search(r"^correct +(\d+ of \d+ tasks)", outcome.output, re.MULTILINE)
        started = sum("cuInit" in line and line.startswith("jailed") for line in outcome.driver)
        last = outcome.output.strip().splitlines()[-1:]
        print(f"{place.name}: {correct[1] if correct else last}; CUDA started by {started} confined processes")
        failed |= correct is None and place.landlock != 0
    return int(failed)


def run(place: Place, arguments: list[str]) -> Outcome:
    command = ["{python}", "-m", "kernelforge", "run", "--display", "plain", *arguments]
    outcome = run_in(place, command, timeout_s=3000)
    if outcome.status:
        print(outcome.output[-3000:], file=sys.stderr)
    return outcome


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
