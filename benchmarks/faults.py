"""Inject faults into runs and servers, and prove that no result is lost and none is there twice.

    run        random processes of `kernelforge run` (itself, or any child) get SIGKILL at random moments; it is resumed
    serve      `kernelforge serve` and its workers get SIGKILL under load; the gateway is started again
    disk       a run whose files may not grow any more, resumed when there is room
    read-only  commands over a results folder that cannot be written
    clock      a run that is killed and resumed while the clock is put back and forward, by libfaketime
    two        two runs into one database at once
    suite      one run over a suite of very many tiny tasks

Every run must end with the same attempts as one of the same seed that was left alone: the same numbers, candidates,
verdicts and decisions. Every job that a server accepted must end once, with one result. Exits with 1 otherwise.

    python benchmarks/faults.py [--part run ...] [--kills 20] [--tasks 40] [--seed 1] [--rounds 4] [--strategy beam ...]

``--kills`` counts those of part `run` per strategy, and half of it those of part `serve`; ``--strategy all`` takes
every strategy there is. For the record: ``--kills 100 --tasks 1000``.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import glob
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

# After the path is set: a server under load is also what benchmarks/server.py measures.
from benchmarks.server_parts.load import Load
from benchmarks.server_parts.place import SUITE, TASK, serving
from kernelforge.records import RunState
from kernelforge.search import STRATEGIES
from kernelforge.store import DATABASE_NAME, Store

TASKS = ("gelu", "softmax", "transpose")
"""What runs work on."""
COMMAND = [sys.executable, "-m", "kernelforge"]
_PRELOADS = "/usr/lib/*/faketime/libfaketime.so.1"

Outcome = dict[str, tuple[str | None, str, bool]]
"""By attempt: its candidate, verdict and acceptance."""


class Part(NamedTuple):
    """Result of one part."""

    faults: int
    lost: int = 0
    doubled: int = 0
    different: int = 0
    """Attempts that came out otherwise than undisturbed, and commands that did not end as they should."""
    note: str = ""


def outcomes(results: Path) -> dict[str, tuple[str, Outcome]]:
    """By run: its state, and its attempts."""
    with Store.open(results / DATABASE_NAME, create=False) as store:
        by_run = {}
        for run in store.runs():
            attempts = store.attempts(run.id)
            by_attempt = {
                attempt.id.removeprefix(run.id): (
                    attempt.candidate.hash if attempt.candidate else None,
                    attempt.evaluation.verdict.value,
                    attempt.accepted,
                )
                for attempt in attempts
            }
            if len(by_attempt) != len(attempts):
                raise SystemExit("an attempt is there twice")
            by_run[run.id] = run.state.value, by_attempt
        return by_run


def compared(expected: Outcome, state: str, actual: Outcome, faults: int) -> Part:
    """A run compared with an undisturbed one."""
    lost, extra = expected.keys() - actual.keys(), actual.keys() - expected.keys()
    other = sum(actual[attempt] != expected[attempt] for attempt in expected.keys() & actual.keys())
    return Part(faults, len(lost), len(extra), other + (state != "finished"))


def together(parts: Sequence[Part], note: str = "") -> Part:
    return Part(*(sum(column) for column in zip(*(part[:4] for part in parts), strict=True)), note=note)


def command(results: Path, start: Sequence[str]) -> list[str]:
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


def family(pid: int) -> list[int]:
    """A process and all that descend from it."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(OSError, IndexError):
                stat = (entry / "stat").read_text().rpartition(")")[2].split()
                parents.setdefault(int(stat[1]), []).append(int(entry.name))
    pids = [pid]
    for process in pids:
        pids += parents.get(process, [])
    return pids


def quiet(words: Sequence[str], **how: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, capture_output=True, text=True, **how)  # type: ignore[call-overload, no-any-return]


class Undisturbed:
    """Runs that are left alone, made once for each way to start them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._made: dict[tuple[str, ...], tuple[Outcome, float]] = {}

    def of(self, start: Sequence[str]) -> tuple[Outcome, float]:
        """Outcome and duration in seconds."""
        key = tuple(start)
        if key not in self._made:
            results = self._folder / f"undisturbed{len(self._made)}"
            clock = time.perf_counter()
            quiet(command(results, start), check=True)
            [(state, outcome)] = outcomes(results).values()
            if state != "finished":
                raise SystemExit(f"a run that was left alone is {state}")
            self._made[key] = outcome, time.perf_counter() - clock
        return self._made[key]


class Faults:
    """The parts, over one folder."""

    def __init__(self, folder: Path, options: argparse.Namespace) -> None:
        self._folder = folder
        self._options = options
        self._rng = random.Random(options.seed)
        self._undisturbed = Undisturbed(folder)

    def _start(self, strategy: str = "refine", seed: int | None = None) -> list[str]:
        tasks = [word for task in self._options.task or TASKS for word in ("--task", task)]
        seed = self._options.seed if seed is None else seed
        return [*tasks, "--strategy", strategy, "--rounds", str(self._options.rounds), "--seed", str(seed)]

    def run(self) -> Part:
        strategies = self._options.strategy or ["refine"]
        return together([self._killed(name) for name in (STRATEGIES if "all" in strategies else strategies)])

    def _killed(self, strategy: str) -> Part:
        start = self._start(strategy)
        expected, length = self._undisturbed.of(start)
        parts: list[Part] = []
        kills = 0
        while kills < self._options.kills:
            results = self._folder / f"{strategy}{len(parts)}"
            before = kills
            while not is_finished(results):
                process = subprocess.Popen(
                    command(results, start), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
                )
                kills += self._torment(process, length, self._options.kills - kills)
            [(state, outcome)] = outcomes(results).values()
            parts.append(compared(expected, state, outcome, kills - before))
            print(f"  {strategy}, run {len(parts)}: {kills} kills so far, {parts[-1]}", flush=True)
        return together(parts)

    def _torment(self, process: subprocess.Popen[bytes], length: float, most: int) -> int:
        """Kill processes of a run until it ends; gives back how many were killed."""
        kills = 0
        while True:
            try:
                process.wait(self._rng.uniform(0.3, 0.6 * length) if kills < most else None)
                return kills
            except subprocess.TimeoutExpired:
                victims = family(process.pid)
                victim = victims[0] if self._rng.random() < 0.6 else self._rng.choice(victims)
                with contextlib.suppress(ProcessLookupError):
                    os.kill(victim, signal.SIGKILL)
                    kills += 1

    def serve(self) -> Part:
        kills = max(self._options.kills // 2, 2)
        gateways = max(kills // 4, 1)
        with serving("--slots", "2", "--run-limit", "2", "--compile-limit", "5", "--queue", "30000") as server:
            load = Load(server, 30 * kills, 10 * kills, self._options.seed)
            asyncio.run(load.run(kills - gateways, gateways))
        ledger = load.ledger
        return Part(kills, load.lost, len(ledger.changed), len(ledger.mistakes()), f"{len(ledger.accepted)} jobs")

    def disk(self) -> Part:
        start = self._start()
        expected, _ = self._undisturbed.of(start)
        parts = []
        for number, kilobytes in enumerate((120, 250, 400, 800)):
            results = self._folder / f"disk{number}"
            limit = partial(resource.setrlimit, resource.RLIMIT_FSIZE, (kilobytes << 10, kilobytes << 10))
            done = quiet(command(results, start), preexec_fn=limit)
            full = done.returncode != 0 and "disk is full" in done.stderr
            ended = done.returncode == 0 and is_finished(results)
            quiet(command(results, start))
            [(state, outcome)] = outcomes(results).values()
            part = compared(expected, state, outcome, 1)
            parts.append(part if full or ended else part._replace(different=part.different + 1))
            print(f"  {kilobytes} kB: exit {done.returncode}, {_last(done.stderr)}", flush=True)
        return together(parts)

    def read_only(self) -> Part:
        start = self._start()
        self._undisturbed.of(start)
        results = self._folder / "read-only"
        shutil.copytree(self._folder / "undisturbed0", results)
        content = (results / DATABASE_NAME).read_bytes()
        prefix: list[str] = []
        if os.geteuid() == 0:
            prefix = ["unshare", "--mount", "sh", "-c", f'mount --bind "{results}" "{results}" && '
                      f'mount -o remount,ro,bind "{results}" && exec "$@"', "sh"]  # fmt: skip
            if quiet([*prefix, "true"]).returncode != 0:
                return Part(0, note="left out: no bind mount can be made here")
        else:
            results.chmod(0o555)
        wrong = 0
        for words, good in (
            (["show", "latest"], True), (["export", "latest"], True), (["leaderboard", "show"], True),
            (["resume", "latest"], False), (["run", "--task", "gelu", "--rounds", "1"], False),
        ):  # fmt: skip
            done = quiet([*prefix, *COMMAND, *words, "--results", str(results)])
            right = (done.returncode == 0) is good and "Traceback" not in done.stderr
            wrong += not right
            print(f"  {' '.join(words)}: exit {done.returncode}, {_last(done.stderr)}", flush=True)
        results.chmod(0o755)
        return Part(5, lost=int((results / DATABASE_NAME).read_bytes() != content), different=wrong)

    def clock(self) -> Part:
        libraries = [*glob.glob(_PRELOADS), *([self._options.faketime] if self._options.faketime else [])]
        if not libraries:
            return Part(0, note="left out: there is no libfaketime (Debian: apt-get install libfaketime)")
        start = self._start()
        expected, length = self._undisturbed.of(start)
        results = self._folder / "clock"
        jumps = ("-400d", "+400d", "-1h", "-0.5", "+2h")
        for jump in jumps:
            if is_finished(results):
                break
            process = subprocess.Popen(
                command(results, start),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=_clock(libraries[-1], jump),
            )
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(self._rng.uniform(0.3, 0.5) * length)
            process.kill()
            process.wait()
        quiet(command(results, start), env=_clock(libraries[-1], "-30d"))
        [(state, attempts)] = outcomes(results).values()
        part = compared(expected, state, attempts, len(jumps))
        quiet(
            [*COMMAND, "run", "--task", "gelu", "--rounds", "1", "--results", str(results)],
            env=_clock(libraries[-1], "-900d"),
        )
        newest = list(outcomes(results))[-1]
        latest = quiet([*COMMAND, "show", "latest", "--json", "--results", str(results)])
        return part if newest in latest.stdout else part._replace(different=part.different + 1)

    def two(self) -> Part:
        results = self._folder / "two"
        starts = [self._start(seed=seed) for seed in (self._options.seed, self._options.seed + 1)]
        expected = [self._undisturbed.of(start)[0] for start in starts]
        where = ["--results", str(results)]
        silent = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        processes = [subprocess.Popen([*COMMAND, "run", *start, *where], **silent) for start in starts]
        codes = [process.wait() for process in processes]
        with Store.open(results / DATABASE_NAME, create=False) as store:
            by_seed = {run.config.seed: run.id for run in store.runs()}
        by_run = outcomes(results)
        parts = [
            compared(outcome, *by_run[by_seed[self._options.seed + number]], 1) if code == 0 else Part(1, len(outcome))
            for number, (outcome, code) in enumerate(zip(expected, codes, strict=True))
        ]
        return together(parts)

    def suite(self) -> Part:
        count = self._options.tasks
        suite, results = self._folder / "many", self._folder / "many-results"
        suite.mkdir()
        head, _, entry = SUITE.partition("[[task]]")
        entries = (f"[[task]]{entry.replace('axpy', f't{number:04d}')}" for number in range(count))
        (suite / "suite.toml").write_text(head + "\n".join(entries))
        for number in range(count):
            (suite / f"t{number:04d}.py").write_text(TASK.replace("x * 2", f"x * {number + 2}.0"))
        start = ["--suite", str(suite), "--rounds", "1", "--seed", "1"]
        clock = time.monotonic()
        kills = 0
        while not is_finished(results):
            process = subprocess.Popen(command(results, start), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
            try:
                _, output = process.communicate(timeout=60 if kills < 2 else None)
            except subprocess.TimeoutExpired:
                process.kill()
                process.communicate()
                kills += 1
                continue
            if process.returncode != 0:
                return Part(kills, different=1, note=_last(output.decode(errors="replace")))
        [(_, outcome)] = outcomes(results).values()
        tasks = [name.split("/")[1] for name in outcome]
        wrong = sum(verdict != "OK" for _, verdict, _ in outcome.values())
        note = f"{count} tasks in {time.monotonic() - clock:.0f} s"
        return Part(kills, count - len(set(tasks)), len(tasks) - len(set(tasks)), wrong, note)


def _clock(preload: str, jump: str) -> Mapping[str, str]:
    return os.environ | {"LD_PRELOAD": preload, "FAKETIME": jump}


def _last(text: str) -> str:
    lines = [line for line in text.strip().splitlines() if line.startswith(("error:", "warning:"))]
    return lines[-1][:160] if lines else "said nothing"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    names = ("run", "serve", "disk", "read-only", "clock", "two", "suite")
    parser.add_argument("--part", action="append", choices=names)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--tasks", type=int, default=40, help="of part suite")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--strategy", action="append", choices=[*STRATEGIES, "all"])
    parser.add_argument("--task", action="append", help="what runs work on")
    parser.add_argument("--faketime", metavar="FILE", help="libfaketime.so.1, where it is in no usual place")
    options = parser.parse_args()
    bad = 0
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        faults = Faults(Path(folder), options)
        for name in options.part or names:
            print(name, flush=True)
            part: Callable[[], Part] = getattr(faults, name.replace("-", "_"))
            came = part()
            rows.append((name, came))
            bad += came.lost + came.doubled + came.different
    print("part".ljust(10), *(head.rjust(9) for head in ("faults", "lost", "doubled", "different")))
    for name, came in rows:
        print(name.ljust(10), *(str(count).rjust(9) for count in came[:4]), came.note)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
