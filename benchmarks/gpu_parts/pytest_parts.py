"""Parts ``tests`` and ``conformance``: what is marked ``gpu``, in a process of its own."""

from __future__ import annotations

import signal
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from benchmarks.gpu_parts.machine import ROOT, Machine
from benchmarks.gpu_parts.report import Report

CONFORMANCE = ROOT / "tests" / "devices" / "conformance"
OTHER_PARTS = (CONFORMANCE, ROOT / "tests" / "gpu_script")
"""Tests that parts of their own run."""
RUNTIMES = ("cupy", "pycuda")
_MOST_FAILURES_SHOWN = 400
_NONE_COLLECTED = 5
_END_S = 20.0
"""How long pytest may take to end after its time."""

Outcome = Literal["passed", "failed", "skipped"]


@dataclass(frozen=True)
class Case:
    """One test."""

    name: str
    outcome: Outcome
    message: str
    seconds: float


def marked_files(root: Path = ROOT / "tests") -> list[Path]:
    """Test files with tests marked ``gpu``; others may need packages that are not on a GPU's machine."""
    files = [path for path in root.rglob("test_*.py") if "mark.gpu" in path.read_text(encoding="utf-8")]
    return sorted(path for path in files if not set(OTHER_PARTS) & set(path.parents))


def tests(machine: Machine, report: Report) -> None:
    """Every test marked ``gpu`` that no other part runs."""
    files = marked_files()
    cases = run_pytest([*map(str, files)], report, expression="gpu")
    tell(cases, report)


def conformance(machine: Machine, report: Report) -> None:
    """The conformance suite on the GPU, by each runtime."""
    cases = run_pytest([str(CONFORMANCE)], report, expression="gpu")
    for runtime in RUNTIMES:
        own = [case for case in cases if f"[{runtime}" in case.name or f"-{runtime}" in case.name]
        skipped = sorted({case.message for case in own if case.outcome == "skipped"})
        report.row(
            runtime=runtime,
            passed=_count(own, "passed"),
            failed=_count(own, "failed"),
            skipped=_count(own, "skipped"),
            why="; ".join(skipped)[:200],
        )
    tell(cases, report)


def run_pytest(paths: Sequence[str], report: Report, *, expression: str) -> list[Case]:
    """Run pytest and read its XML report.

    Raises:
        RuntimeError: pytest could not collect, or ended in no good order; the message has the end of its output.
    """
    folder = report.folder or Path.cwd()
    xml = folder / f"{report.part}.xml"
    xml.unlink(missing_ok=True)
    command = [sys.executable, "-m", "pytest", "-q", "-m", expression, "-p", "no:cacheprovider", f"--junitxml={xml}"]
    child = subprocess.Popen(
        [*command, *paths],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        preexec_fn=_heed_interrupts,
    )
    interrupted = False
    try:
        output, _ = child.communicate(timeout=None if report.remaining == float("inf") else max(1.0, report.remaining))
    except subprocess.TimeoutExpired:
        # As Ctrl-C would: pytest then still writes what it found.
        child.send_signal(signal.SIGINT)
        interrupted = True
        try:
            output, _ = child.communicate(timeout=_END_S)
        except subprocess.TimeoutExpired:
            child.kill()
            output, _ = child.communicate()
    (folder / f"{report.part}.log").write_text(output, encoding="utf-8")
    if interrupted:
        report.note(f"out of time after {report.seconds:.0f} s: the tests that follow were not run")
    if (child.returncode not in (0, 1, _NONE_COLLECTED) and not interrupted) or not xml.is_file():
        raise RuntimeError(f"pytest ended with {child.returncode}: {output[-1500:]}")
    return read_cases(xml)


def _heed_interrupts() -> None:
    """Restore SIGINT, which background processes of a shell ignore, so that pytest can be interrupted."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def read_cases(xml: Path) -> list[Case]:
    """Tests of a JUnit report as pytest writes it."""
    cases = []
    for element in ElementTree.parse(xml).iter("testcase"):
        outcome: Outcome = "passed"
        message = ""
        for child in element:
            if child.tag in ("failure", "error"):
                outcome, message = "failed", child.get("message") or ""
            elif child.tag == "skipped":
                outcome, message = "skipped", child.get("message") or ""
        name = f"{element.get('classname')}::{element.get('name')}"
        cases.append(Case(name, outcome, message, float(element.get("time") or 0)))
    return cases


def tell(cases: Sequence[Case], report: Report) -> None:
    """The outcome as figures; failures and skips by name."""
    for case in cases:
        if case.outcome == "failed":
            report.row(test=case.name, outcome=case.outcome, message=case.message[:_MOST_FAILURES_SHOWN])
    skipped: dict[str, list[str]] = {}
    for case in cases:
        if case.outcome == "skipped":
            skipped.setdefault(case.message, []).append(case.name)
    for message, names in skipped.items():
        report.note(f"{len(names)} skipped: {message[:200]} ({names[0]}{', ...' if len(names) > 1 else ''})")
    passed, failed = _count(cases, "passed"), _count(cases, "failed")
    figure = f"{passed} passed, {failed} failed, {_count(cases, 'skipped')} skipped"
    report.figure("tests", figure, "some passed, none failed", met=passed > 0 and failed == 0)


def _count(cases: Sequence[Case], outcome: Outcome) -> int:
    return sum(case.outcome == outcome for case in cases)
