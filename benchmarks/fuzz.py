"""Feed damaged and hostile input to everything that reads input, and count what is neither accepted nor refused.

Each part draws its cases from a seed and their number, so that one of them can be run again alone:

    replies     what a model answers: fences, headers, encodings          (candidate/parse)
    suggestions codes of the proficiency study, read and given a call     (study)
    plans       launch plans, parsed and interpreted                      (candidate/plan_language)
    ptx         PTX of real kernels with inline assembly put in: what gate and emulator accept, ptxas must assemble,
                and a marked instruction is in the cubin exactly where the parser sees it
    ptxas       programs of constants in odd syntax: the emulator's result is the number that ptxas folds, and what one
                of them refuses the other refuses too
    frames      bytes on the channel of a jailed child                    (sandbox/channel)
    databases   results and server databases, entries and builds, damaged by byte and by value, under every command
                that reads them
    http        raw bytes to a reward server in the same process

A case is refused where it ends in an error that is meant for people (for HTTP, in a status of 4xx), accepted where it
is used, uncaught where any other exception comes out, where the process dies, or where it is accepted and means
something else to a peer, and hung where it takes more than ten seconds. Exits with 1 where any is uncaught or hung.

    python benchmarks/fuzz.py [--cases 500] [--part ptx ...] [--seed 1] [--case NUMBER]
"""

from __future__ import annotations

import argparse
import importlib
import multiprocessing
import os
import random
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from ctypes import c_int64
from pathlib import Path
from typing import Any, NamedTuple, Protocol

PARTS = ("replies", "suggestions", "plans", "ptx", "ptxas", "frames", "databases", "http")
HANG_S = 10.0
_PRINTED = 20
"""Findings that are shown with their traceback."""


class Part(Protocol):
    """Target of the cases of one part, made once per process in a folder of its own."""

    def __init__(self, folder: Path) -> None: ...

    def case(self, rng: random.Random) -> bool:
        """Run one case: True where the input was accepted, False where it was refused.

        Raises:
            Exception: a finding.
        """

    def close(self) -> None: ...


class Tally(NamedTuple):
    """Results of a part's cases."""

    cases: int
    refused: int
    accepted: int
    uncaught: int
    hangs: int


_CURRENT, _REFUSED, _ACCEPTED, _UNCAUGHT, _READY = range(5)


def work(name: str, seed: int, start: int, end: int, report: Any) -> None:
    """Run cases in this process; counts and the current case are in shared memory, for the watching process."""
    with tempfile.TemporaryDirectory(prefix=f"fuzz-{name}-") as folder:
        part: Part = importlib.import_module(f"fuzz_parts.{name}").Cases(Path(folder))
        try:
            for number in range(start, end):
                report[_CURRENT] = number
                report[_READY] = 1
                try:
                    accepted = part.case(random.Random(f"{name} {seed} {number}"))
                except Exception:
                    report[_UNCAUGHT] += 1
                    if report[_UNCAUGHT] <= _PRINTED:
                        print(f"{name} case {number} (--seed {seed} --case {number}):", flush=True)
                        traceback.print_exc(limit=-6, file=sys.stdout)
                else:
                    report[_ACCEPTED if accepted else _REFUSED] += 1
            report[_CURRENT] = end
        finally:
            part.close()


def watched(name: str, seed: int, start: int, end: int) -> Tally:
    """Run a part's cases in a process of their own, which is replaced when it hangs or dies."""
    counts = multiprocessing.RawArray(c_int64, 5)
    hangs = died = 0
    at = start
    while at < end:
        counts[_CURRENT], counts[_READY] = at, 0
        process = multiprocessing.get_context("fork").Process(target=work, args=(name, seed, at, end, counts))
        process.start()
        seen, since = -1, time.monotonic()
        while process.is_alive():
            process.join(0.2)
            now = time.monotonic()
            if counts[_CURRENT] != seen or not counts[_READY]:
                seen, since = counts[_CURRENT], now
            elif now - since > HANG_S and seen < end:
                process.kill()
                process.join()
                hangs += 1
                print(f"{name} case {seen} (--seed {seed} --case {seen}): no end after {HANG_S:.0f} s", flush=True)
                break
        else:
            if counts[_CURRENT] < end:
                if not counts[_READY]:
                    raise SystemExit(f"part {name} could not be set up")
                died += 1
                print(f"{name} case {counts[_CURRENT]}: the process died ({process.exitcode})", flush=True)
        at = counts[_CURRENT] + (counts[_CURRENT] < end)
    return Tally(end - start, counts[_REFUSED], counts[_ACCEPTED], counts[_UNCAUGHT] + died, hangs)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--cases", type=int, default=500, help="of each part")
    parser.add_argument("--part", action="append", choices=PARTS)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--case", type=int, help="run this one alone")
    options = parser.parse_args(arguments)
    start, end = (0, options.cases) if options.case is None else (options.case, options.case + 1)
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    bad = 0
    print(
        f"{'part':10} {'cases':>7} {'refused':>8} {'accepted':>8} {'uncaught':>8} {'hangs':>6} {'seconds':>8}",
        flush=True,
    )
    for name in options.part or PARTS:
        began = time.monotonic()
        tally = watched(name, options.seed, start, end)
        bad += tally.uncaught + tally.hangs
        print(name.ljust(10), *(str(count).rjust(8) for count in tally), f"{time.monotonic() - began:8.1f}", flush=True)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
