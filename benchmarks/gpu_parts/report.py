"""Report of a part: rows, figures with targets, and errors. Written to disk as it grows."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

Row = dict[str, Any]


@dataclass(frozen=True)
class Figure:
    """One number that the part is about."""

    name: str
    value: str
    target: str = ""
    met: bool | None = None
    """None where there is no target."""


@dataclass
class Report:
    """Findings of one part. Every change is on disk at once, so that a part that is killed keeps what it found.

    Args:
        part: name of the part.
        folder: where ``PART.json`` goes, and what else the part makes; None writes nothing.
        seconds: how long the part should take; it ends early and says so.
        clock: a monotonic clock in seconds.
    """

    part: str
    folder: Path | None = None
    seconds: float = float("inf")
    clock: Callable[[], float] = time.monotonic
    rows: list[Row] = field(default_factory=list)
    figures: list[Figure] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    facts: Row = field(default_factory=dict)
    error: str | None = None
    started: float = field(init=False)

    def __post_init__(self) -> None:
        self.started = self.clock()

    @property
    def spent(self) -> float:
        return self.clock() - self.started

    @property
    def remaining(self) -> float:
        """Seconds until the part should be done."""
        return self.seconds - self.spent

    @property
    def failed(self) -> bool:
        """Whether it broke off, or missed a target."""
        return self.error is not None or any(figure.met is False for figure in self.figures)

    def row(self, **values: Any) -> None:
        """One line of the part's table."""
        self.rows.append(values)
        self.save()

    def figure(self, name: str, value: str, target: str = "", met: bool | None = None) -> None:
        """One number, with whether it is as it should be."""
        self.figures.append(Figure(name, value, target, met))
        self.save()

    def note(self, text: str) -> None:
        """Add a remark."""
        self.notes.append(text)
        self.save()

    def out_of_time(self, done: int, planned: int) -> bool:
        """Whether to stop here; a part that stops early has said how far it came."""
        if self.remaining > 0:
            return False
        self.note(f"out of time after {self.seconds:.0f} s: {done} of {planned} done")
        return True

    def save(self) -> None:
        """Write the report to ``PART.json``, whole or not at all."""
        if self.folder is None:
            return
        document = {
            "part": self.part,
            "seconds": round(self.spent, 3),
            "error": self.error,
            "figures": [asdict(figure) for figure in self.figures],
            "notes": self.notes,
            "facts": self.facts,
            "rows": self.rows,
        }
        path = self.folder / f"{self.part}.json"
        part = path.with_suffix(".part")
        part.write_text(json.dumps(document, indent=1, default=str) + "\n", encoding="utf-8")
        part.replace(path)


def read_report(path: Path) -> Report:
    """A report that another process wrote; its time is that process's."""
    data = json.loads(path.read_text(encoding="utf-8"))
    seconds = float(data["seconds"])
    report = Report(data["part"], clock=lambda: seconds)
    report.started = 0.0
    report.rows, report.notes, report.facts, report.error = data["rows"], data["notes"], data["facts"], data["error"]
    report.figures = [Figure(**figure) for figure in data["figures"]]
    return report
