"""Kill runs at random moments and prove that ``resume`` loses nothing and repeats nothing.

For each strategy one run is left alone; others with the same seed are killed with SIGKILL at random moments, resumed,
killed again, and finally left to end. Every run must end with the same attempts: the same numbers, candidates, verdicts
and decisions. Exits with 1 otherwise.

    python benchmarks/resume.py [--kills 20] [--seed 1] [--rounds 4] [--strategy refine ...] [--task gelu ...]

``--strategy all`` takes every strategy there is; ``--kills`` is per strategy.
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

from kernelforge.records import RunState
from kernelforge.search import STRATEGIES
from kernelforge.store import DATABASE_NAME, Store

TASKS = ("gelu", "softmax", "transpose")
"""What is worked on when no ``--task`` is given."""
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


def command(results: Path, start: list[str]) -> list[str]:
    """Start a run in an empty folder, else resume the one that is there."""
    where = ["--results", str(results)]
    if not (results / DATABASE_NAME).exists():
        return [*COMMAND, "run", *start, *where]
    with Store.open(results / DATABASE_NAME, create=False) as store:
        if not store.runs():
            return [*COMMAND, "run", *start, *where]
    return [*COMMAND, "resume", "latest", *where]


def is_finished(results: Path) -> bool:
    """Whether the run in a folder is over; a kill may have come just after its end."""
    if not (results / DATABASE_NAME).exists():
        return False
    with Store.open(results / DATABASE_NAME, create=False) as store:
        runs = store.runs()
        return bool(runs) and runs[-1].state is RunState.FINISHED


def torment(start: list[str], kills_wanted: int, rng: random.Random) -> tuple[int, int, int]:
    """Kill runs until enough were killed; gives back kills, runs, and how many ended otherwise than undisturbed."""
    kills = runs = wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        undisturbed = Path(folder) / "undisturbed"
        clock = time.perf_counter()
        subprocess.run(command(undisturbed, start), check=True, stdout=subprocess.DEVNULL)
        length = time.perf_counter() - clock
        state, expected = outcome(undisturbed)
        correct = sum(verdict == "OK" for _, verdict, _ in expected.values())
        print(f"  undisturbed: {state}, {len(expected)} attempts, {correct} OK, in {length:.1f} s", flush=True)
        wrong += state != "finished"
        while kills < kills_wanted:
            results = Path(folder) / f"run{runs}"
            runs += 1
            while not is_finished(results):
                process = subprocess.Popen(command(results, start), stdout=subprocess.DEVNULL)
                try:
                    process.wait(rng.uniform(0.3, length) if kills < kills_wanted else None)
                except subprocess.TimeoutExpired:
                    process.send_signal(signal.SIGKILL)
                    process.wait()
                    kills += 1
                    continue
                if process.returncode != 0:
                    raise SystemExit(f"exit status {process.returncode}")
            state, found = outcome(results)
            same = found == expected and state == "finished"
            wrong += not same
            lost, extra = len(expected.keys() - found.keys()), len(found.keys() - expected.keys())
            print(f"  run {runs}: {kills} kills so far, {len(found)} attempts, {lost} lost, {extra} extra: "
                  f"{'same' if same else 'DIFFERENT'}", flush=True)  # fmt: skip
    return kills, runs, wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--strategy", action="append", choices=[*STRATEGIES, "all"])
    parser.add_argument("--task", action="append")
    options = parser.parse_args()
    chosen = options.strategy or ["refine"]
    rng = random.Random(options.seed)
    tasks = [word for task in options.task or TASKS for word in ("--task", task)]
    totals: dict[str, tuple[int, int, int]] = {}
    for strategy in STRATEGIES if "all" in chosen else chosen:
        print(strategy, flush=True)
        start = [*tasks, "--strategy", strategy, "--rounds", str(options.rounds), "--seed", str(options.seed)]
        totals[strategy] = torment(start, options.kills, rng)
    for strategy, (kills, runs, wrong) in totals.items():
        print(f"{strategy}: {kills} kills, {runs} runs, {wrong} different")
    return 1 if any(wrong for _, _, wrong in totals.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
