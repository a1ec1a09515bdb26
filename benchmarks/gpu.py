"""Proves the GPU lane on a GPU: tests, speed, repeatability, profiles, ModelNew classes, cheats. Prints one table.

    python benchmarks/gpu.py [--part NAME ...] [--seconds N] [--output FOLDER]

Each part runs in a process of its own and within its own time, so that one that fails or hangs costs no other: its
error stands in the table and the next goes on. FOLDER gets ``PART.json`` with every row (kept even of a part that is
killed), ``summary.json``, the run of part ``core`` with ``board.json``, and pytest's logs. Leaves with 1 when a part
broke off or missed a target. ``benchmarks/README.md`` says how to run it on a machine without a network.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from rich.console import Console
from rich.table import Table

from benchmarks.gpu_parts.cheats import cheats
from benchmarks.gpu_parts.core import core
from benchmarks.gpu_parts.emulating import emulator
from benchmarks.gpu_parts.evaluating import evaluate, modelnew, profile, repeat
from benchmarks.gpu_parts.machine import Machine
from benchmarks.gpu_parts.pytest_parts import conformance, tests
from benchmarks.gpu_parts.report import Report, read_report

GRACE_S = 30.0
"""How long after its time a part may still end by itself, with what it has."""
HIDDEN = {"counters", "kernelbench", "stages", "notes", "origins"}
"""Columns that are in the JSON alone."""


@dataclass(frozen=True)
class Part:
    """One part and the seconds that it should take at most."""

    run: Callable[[Machine, Report], None]
    seconds: float


PARTS: Mapping[str, Part] = {
    "conformance": Part(conformance, 60),
    "tests": Part(tests, 150),
    "evaluate": Part(evaluate, 240),
    "repeat": Part(repeat, 75),
    "profile": Part(profile, 60),
    "modelnew": Part(modelnew, 120),
    "cheats": Part(cheats, 130),
    "core": Part(core, 190),
    "emulator": Part(emulator, 130),
}
"""In the order in which they run; ``emulator`` takes the kernels that ``core`` left. 19 minutes if each used all of its
time."""


def run_part(name: str, part: Part, machine: Machine, folder: Path, seconds: float) -> Report:
    """Run one part in this process; an exception becomes its error."""
    report = Report(name, folder, seconds)
    report.save()
    try:
        part.run(machine, report)
    except Exception as error:
        report.error = f"{type(error).__name__}: {error}"
        (folder / f"{name}.traceback").write_text(traceback.format_exc(), encoding="utf-8")
    report.save()
    return report


def run_apart(name: str, folder: Path, seconds: float) -> Report:
    """Run one part in a process of its own, which is ended when it takes too long."""
    (folder / f"{name}.json").unlink(missing_ok=True)
    command = [sys.executable, __file__, "--part", name, "--seconds", str(seconds), "--output", str(folder), "--here"]
    started = time.monotonic()
    with (folder / f"{name}.out").open("w") as output:
        child = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
        try:
            child.wait(seconds + GRACE_S)
        except subprocess.TimeoutExpired:
            _end(child)
            return _broken(name, folder, f"killed after {time.monotonic() - started:.0f} s", started)
        except BaseException:
            _end(child)
            raise
    if child.returncode not in (0, 1) or not (folder / f"{name}.json").is_file():
        tail = (folder / f"{name}.out").read_text(errors="replace")[-400:].strip()
        return _broken(name, folder, f"its process ended with {child.returncode}: {tail}", started)
    return read_report(folder / f"{name}.json")


def _end(child: subprocess.Popen[bytes]) -> None:
    """Ask a part to end as Ctrl-C would, so that it closes its children; kill it if it does not."""
    child.send_signal(signal.SIGINT)
    try:
        child.wait(10)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()


def _broken(name: str, folder: Path, error: str, started: float) -> Report:
    """Results that a failed part has left, with its error."""
    path = folder / f"{name}.json"
    report = read_report(path) if path.is_file() else Report(name)
    spent = time.monotonic() - started
    report.folder, report.started, report.clock = folder, 0.0, lambda: spent
    report.error = error if report.error is None else f"{error}; {report.error}"
    report.save()
    return report


def summary_table(reports: list[Report]) -> Table:
    """One line per figure."""
    table = Table("part", "state", "figure", "measured", "target", "met", "seconds", title="GPU lane")
    for report in reports:
        state = "failed" if report.error is not None else "done"
        lines = [(figure.name, figure.value, figure.target, _met(figure.met)) for figure in report.figures]
        if report.error is not None:
            lines.append(("error", report.error[:300], "", "NO"))
        for number, line in enumerate(lines or [("", "", "", "")]):
            head = (report.part, state) if number == 0 else ("", "")
            table.add_row(*head, *line, f"{report.spent:.1f}" if number == 0 else "")
    table.add_section()
    table.add_row("all", "", "", "", "", "", f"{sum(report.spent for report in reports):.1f}")
    return table


def _met(met: bool | None) -> str:
    return {None: "", True: "yes", False: "NO"}[met]


def part_table(report: Report) -> Table:
    """The rows of one part; what is long is in its JSON."""
    columns = list(dict.fromkeys(name for row in report.rows for name in row if name not in HIDDEN))
    table = Table(*columns, title=f"{report.part}, {report.spent:.1f} s", caption="\n".join(report.notes) or None)
    for row in report.rows:
        table.add_row(*(_cell(row.get(name)) for name in columns))
    return table


def _cell(value: object) -> str:
    match value:
        case None | "":
            return "-"
        case bool():
            return "yes" if value else "NO"
        case float():
            return f"{value:.4g}"
        case _:
            return str(value)


def show(reports: list[Report], console: Console) -> None:
    """Rows of every part, then all figures."""
    for report in reports:
        if report.rows or report.notes:
            console.print(part_table(report))
    console.print(summary_table(reports))


def write_summary(reports: list[Report], folder: Path) -> None:
    """``summary.json``: state, figures and seconds of every part."""
    data = [
        {
            "part": report.part,
            "state": "failed" if report.error is not None else "done",
            "error": report.error,
            "seconds": round(report.spent, 1),
            "figures": [asdict(figure) for figure in report.figures],
        }
        for report in reports
    ]
    (folder / "summary.json").write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--part", action="append", choices=tuple(PARTS), help="only this part; repeat for more")
    parser.add_argument("--seconds", type=float, help="time of each part, in place of its own")
    parser.add_argument("--output", type=Path, default=Path("results/gpu"), help="folder of what is found")
    parser.add_argument("--here", action="store_true", help="run in this process: no part is ended when it hangs")
    options = parser.parse_args()
    folder: Path = options.output.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    reports = []
    console = Console(width=None if sys.stdout.isatty() else 180, highlight=False, markup=False)
    for name in options.part or PARTS:
        part = PARTS[name]
        seconds = options.seconds or part.seconds
        if options.here:
            reports.append(run_part(name, part, Machine(), folder, seconds))
        else:
            reports.append(run_apart(name, folder, seconds))
            done = reports[-1]
            console.print(f"{name}: {'failed' if done.error else 'done'}, {done.spent:.1f} s {done.error or ''}"[:300])
            write_summary(reports, folder)
    show(reports, console)
    return int(any(report.failed for report in reports))


if __name__ == "__main__":
    sys.exit(main())
