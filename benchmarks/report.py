"""Time the report of a run as large as KernelBench: how long it takes to write, how soon it shows, how fast it filters.

A run of 250 tasks with 20 attempts each is constructed (100 lines of source, 60 metrics and two prompts of 15 KB an
attempt; no GPU and no model is asked), then the real command ``kernelforge report`` writes its folder. Its peer is
``kernelforge export``, which writes the same records as JSON lines: what is read and validated is the same, so the
ratio is the price of the pages. Where Chromium is there, it opens the index from ``file://`` and types into the filter
of the task matrix.

Exits with 1 when a target is missed: written in 20 s, an index of 10 MB, first paint in 1 s, a frame in 100 ms.

    python benchmarks/report.py [--tasks 250] [--attempts 20] [--keep FOLDER]
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

# After the path is set: the constructed records live with the tests.
from kernelforge.records import Message, RunState, Task, Verdict
from kernelforge.store import DATABASE_NAME, Store
from kernelforge.utils.machine import usable_cpus
from tests.report.golden.golden_parts import Golden, make_attempt, make_candidate, make_task, make_timing
from tests.support.recorded_run import make_run

if TYPE_CHECKING:
    from kernelforge.records import Attempt

RUN = "20261120-000000-benc"
COMMAND = [sys.executable, "-m", "kernelforge"]
BUILD_SECONDS, INDEX_BYTES, PAINT_MS, FRAME_MS = 20.0, 10_000_000, 1000.0, 100.0
PROMPT_BYTES = 15_000
LINES = 100
METRICS = 60


@dataclass(frozen=True)
class Figure:
    """One figure with its target."""

    name: str
    value: float
    target: float
    unit: str

    def __str__(self) -> str:
        state = "held" if self.value <= self.target else "MISSED"
        return f"  {self.name:34} {self.value:10,.1f} {self.unit:3} (target {self.target:,.0f}: {state})"


def journal(results: Path, tasks: int, attempts: int) -> None:
    """Write the constructed run into a results folder."""
    names = tuple(f"level{1 + at % 3}/{at:03d}_constructed_task" for at in range(tasks))
    run = make_run(
        RUN, device="cuda:0", tasks=names, coder="openai:model-x", state=RunState.FINISHED,
        started="2026-11-20T00:00:00+00:00",
    ).model_copy(update={"ended": "2026-11-20T23:00:00+00:00"})  # fmt: skip
    golden = Golden(run, [make_task(name, level=1 + at % 3) for at, name in enumerate(names)])
    rng = random.Random(7)
    for at, task in enumerate(golden.tasks):
        golden.attempts += task_attempts(golden, task, attempts, rng, at * attempts)
    golden.finished = dict.fromkeys(names, f"{attempts} rounds are made")
    with Store.open(results / DATABASE_NAME) as store:
        golden.journal(store)


def task_attempts(golden: Golden, task: Task, count: int, rng: random.Random, at: int) -> Iterator[Attempt]:
    """A task's attempts: a third fails, the others are timed, and now and then one is the best so far."""
    eager_us, best_us, parent = rng.uniform(20, 2000), float("inf"), None
    words = [f"{word:x}" for word in rng.choices(range(1 << 20), k=500)]
    for number in range(count):
        candidate = make_candidate(task.name, number, source=source(task.name, number, rng))
        how: dict[str, Any] = {"at": at + number, "parent": parent, "candidate": candidate}
        if parent is not None:
            how["move"] = rng.choice(("vectorise", "shared_tiles", "register_reuse"))
        drawn = rng.random()
        if drawn < 0.35:
            verdict, stage = rng.choice(
                ((Verdict.BUILD, "compile"), (Verdict.WRONG, "small"), (Verdict.WRONG, "hidden"),
                 (Verdict.CRASH, "full"), (Verdict.POLICY, "policy"), (Verdict.TIMEOUT, "full"))
            )  # fmt: skip
            made = make_attempt(golden.run, task, number, verdict, stage, **how)
        else:
            time_us = eager_us * rng.uniform(0.3, 1.3)
            ratios = {"eager": eager_us / time_us, "compile": 0.8 * eager_us / time_us}
            made = make_attempt(
                golden.run, task, number, Verdict.OK, accepted=time_us < best_us, time_us=time_us,
                timing=make_timing(time_us, ratios, seed=number), dram_bytes=rng.uniform(8.4e6, 30e6), **how,
            )  # fmt: skip
            parent = number if time_us < best_us else parent
            best_us = min(best_us, time_us)
        yield with_records_of_size(made, words, rng)


def source(task: str, number: int, rng: random.Random) -> str:
    """A kernel of a hundred lines, a few of which differ from those of other attempts."""
    lines = [f"  // {task}, attempt {number}", '  extern "C" __global__ void k(const float* x, float* out, int n) {']
    changed = set(rng.sample(range(LINES), 12))
    lines += [
        f"    float v{line} = x[(threadIdx.x + {number * line if line in changed else line}) % n] * {line}.0f;"
        for line in range(LINES)
    ]
    return "\n".join([*lines, "  out[threadIdx.x] = v0;", "}"]) + "\n"


def with_records_of_size(attempt: Attempt, words: list[str], rng: random.Random) -> Attempt:
    """The attempt with a Judge's prompt and a Coder's, and with as many metrics as Nsight Compute gives."""

    def prompt() -> str:
        start = rng.randrange(len(words))
        text = " ".join((words[start:] + words[:start]) * 6)
        return "\n".join(text[begin : begin + 120] for begin in range(0, PROMPT_BYTES, 120))

    messages = [
        message.model_copy(update={"content": prompt()}) if message.role == "prompt" else message
        for message in attempt.messages
    ]
    messages.insert(0, Message(agent="judge", role="prompt", provider="openai:model-x", content=prompt()))
    update: dict[str, Any] = {"messages": tuple(messages)}
    if attempt.profile is not None:
        metrics = attempt.profile.metrics
        more = [metric.model_copy(update={"name": f"smsp__{metric.name}"}) for metric in metrics]
        update["profile"] = attempt.profile.model_copy(update={"metrics": (*metrics, *more)[:METRICS]})
    return attempt.model_copy(update=update)


class Took(NamedTuple):
    """Wall time of one command, in seconds."""

    wall: float
    cpu: float
    """Of all its processes."""


def timed(*words: str) -> Took:
    """Run one command of KernelForge."""
    begun, used = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([*COMMAND, *words], check=True, stdout=subprocess.DEVNULL)
    wall, now = time.perf_counter() - begun, resource.getrusage(resource.RUSAGE_CHILDREN)
    return Took(wall, now.ru_utime - used.ru_utime + now.ru_stime - used.ru_stime)


def size_of(folder: Path) -> tuple[int, int]:
    """Files in a folder, and their bytes."""
    sizes = [path.stat().st_size for path in folder.rglob("*") if path.is_file()]
    return len(sizes), sum(sizes)


FRAME_AFTER_KEY = """() => {
  const field = document.querySelector('form[data-filters] [name=q]');
  const shown = () => document.querySelectorAll('table.matrix tbody tr:not([hidden])').length;
  const before = shown();
  window.frame = new Promise(done => field.addEventListener('keydown', event => {
    const waits = () => shown() === before && performance.now() - event.timeStamp < 5000;
    const look = () => waits() ? requestAnimationFrame(look)
      : requestAnimationFrame(() => setTimeout(() => done(performance.now() - event.timeStamp)));
    requestAnimationFrame(look);
  }, {once: true}));
  field.focus();
}"""
"""Milliseconds from a key to the frame after the one in which the rows changed."""


def in_browser(index: Path) -> Iterator[Figure]:
    """First paint and the time of a key in the filter, over a few pages each."""
    from tests.browser.chromium import chromium

    paints, frames = [], []
    with chromium() as browser:
        for _ in range(5):
            page = browser.new_page()
            page.goto(index.as_uri(), wait_until="load")
            paints.append(page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime"))
            page.fill("form[data-filters] [name=q]", "level")
            page.evaluate(FRAME_AFTER_KEY)
            page.keyboard.press("2")
            frames.append(page.evaluate("window.frame"))
            page.close()
    print(f"  paints {[round(paint) for paint in paints]} ms, frames {[round(frame) for frame in frames]} ms")
    yield Figure("first contentful paint, median", statistics.median(paints), PAINT_MS, "ms")
    yield Figure("a key in the filter to its frame", statistics.median(frames), FRAME_MS, "ms")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--tasks", type=int, default=250)
    parser.add_argument("--attempts", type=int, default=20)
    parser.add_argument(
        "--keep", type=Path, help="Keep the run and the report here; a run that is there is used again."
    )
    options = parser.parse_args()
    with contextlib.ExitStack() as stack:
        folder = options.keep or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        results, report = folder / "results", folder / "report"
        if not (results / DATABASE_NAME).exists():
            results.mkdir(parents=True, exist_ok=True)
            journal(results, options.tasks, options.attempts)
        database = (results / DATABASE_NAME).stat().st_size
        print(f"{options.tasks} tasks x {options.attempts} attempts, {database / 1e6:,.0f} MB of records", flush=True)
        shutil.rmtree(report, ignore_errors=True)
        exported = timed("export", RUN, "--results", str(results), "--output", str(folder / "export.jsonl"))
        wrote = timed("report", RUN, "--results", str(results), "--output", str(report))
        files, total = size_of(report)
        print(f"  {files:,} files, {total / 1e6:,.0f} MB; wall (CPU) seconds on {usable_cpus()} cores "
              f"under a load of {os.getloadavg()[0]:.1f}: report {wrote.wall:.1f} ({wrote.cpu:.1f}), 'export' of the "
              f"same records {exported.wall:.1f} ({exported.cpu:.1f}); ratio {wrote.wall / exported.wall:.2f} "
              f"({wrote.cpu / exported.cpu:.2f})", flush=True)  # fmt: skip
        figures = [
            Figure("written in", wrote.wall, BUILD_SECONDS, "s"),
            Figure("index", (report / "index.html").stat().st_size / 1e6, INDEX_BYTES / 1e6, "MB"),
        ]
        from tests.browser.chromium import missing

        why = missing()
        if why:
            print(f"  no browser: {why}")
        else:
            figures += in_browser(report / "index.html")
    for figure in figures:
        print(figure)
    return 1 if any(figure.value > figure.target for figure in figures) else 0


if __name__ == "__main__":
    sys.exit(main())
