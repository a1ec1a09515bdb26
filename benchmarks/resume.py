"""Kill runs at random moments and prove that ``resume`` loses nothing and repeats nothing.

One run is left alone; others with the same seed are killed with SIGKILL at random moments, resumed, killed again, and
finally left to end. Every run must end with the same attempts: the same numbers, candidates, verdicts and decisions.
Exits with 1 otherwise.

    python benchmarks/resume.py [--kills 20] [--seed 1]
"""

from __future__ import annotations

import argparse
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from kernelforge.store import DATABASE_NAME, Store

TASKS = ("gelu", "softmax", "transpose")
COMMAND = [sys.executable, "-m", "kernelforge"]

Outcome = dict[str, tuple[str | None, str, bool]]


def outcome(results: Path) -> tuple[str, Outcome]:
    """State of the run in ``results`` and, per attempt, its candidate, verdict and acceptance."""
    with Store.open(results / DATABASE_NAME, create=False) as store:
        run = store.run("latest")
        attempts = store.attempts(run.id)
    found = {
        attempt.id.removeprefix(run.id): (
            attempt.candidate.hash if attempt.candidate else None,
            attempt.evaluation.verdict.value,
            attempt.accepted,
        )
        for attempt in attempts
    }
    if len(found) != len(attempts):
        raise SystemExit("an attempt is there twice")
    return run.state.value, found


def command(results: Path, seed: int) -> list[str]:
    """Start a run in an empty folder, else resume the one that is there."""
    if not (results / DATABASE_NAME).exists():
        return _start(results, seed)
    with Store.open(results / DATABASE_NAME, create=False) as store:
        if not store.runs():
            return _start(results, seed)
    return [*COMMAND, "resume", "latest", "--results", str(results)]


def _start(results: Path, seed: int) -> list[str]:
    tasks = [word for task in TASKS for word in ("--task", task)]
    return [*COMMAND, "run", *tasks, "--rounds", "4", "--seed", str(seed), "--results", str(results)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    rng = random.Random(options.seed)
    with tempfile.TemporaryDirectory() as folder:
        undisturbed = Path(folder) / "undisturbed"
        start = time.perf_counter()
        subprocess.run(command(undisturbed, options.seed), check=True, stdout=subprocess.DEVNULL)
        length = time.perf_counter() - start
        state, expected = outcome(undisturbed)
        print(f"undisturbed: {state}, {len(expected)} attempts in {length:.1f} s")
        kills, runs, wrong = 0, 0, 0
        while kills < options.kills:
            results = Path(folder) / f"run{runs}"
            runs += 1
            while True:
                process = subprocess.Popen(command(results, options.seed), stdout=subprocess.DEVNULL)
                try:
                    process.wait(rng.uniform(0.3, length) if kills < options.kills else None)
                except subprocess.TimeoutExpired:
                    process.send_signal(signal.SIGKILL)
                    process.wait()
                    kills += 1
                    continue
                if process.returncode != 0:
                    print(f"exit status {process.returncode}")
                    return 1
                break
            state, found = outcome(results)
            same = found == expected and state == "finished"
            wrong += not same
            lost, extra = len(expected.keys() - found.keys()), len(found.keys() - expected.keys())
            print(f"run {runs}: {kills} kills so far, {len(found)} attempts, {lost} lost, {extra} extra: "
                  f"{'same' if same else 'DIFFERENT'}")  # fmt: skip
    print(f"{kills} kills, {runs} runs, {wrong} different")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
