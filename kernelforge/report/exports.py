"""Exports for programs: attempts as JSON lines, comparisons and leaderboards as JSON and CSV."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

from kernelforge.evaluation.generators.parser import caught_by
from kernelforge.records import Attempt
from kernelforge.report.formatting import markdown, times
from kernelforge.report.tables.base import Column, Table
from kernelforge.report.tables.run import EntryRow, board_notes, board_tables, board_title
from kernelforge.report.tables.task import compare_table
from kernelforge.report.views.board import BoardKey, Entry, Leaderboard
from kernelforge.report.views.compare import CompareView
from kernelforge.report.views.run_records import TaskSummary
from kernelforge.report.views.statistics import FAST_P

EXPORT_VERSION = 1


def export_lines(attempts: Iterable[Attempt]) -> Iterator[str]:
    """One JSON line per attempt, without a newline at its end."""
    for attempt in attempts:
        yield json.dumps(export_object(attempt), ensure_ascii=False, allow_nan=False)


def export_object(attempt: Attempt) -> dict[str, Any]:
    """An attempt as plain JSON. NaN and infinities are strings, as in every record."""
    data = json.loads(attempt.model_dump_json())
    evaluation = data["evaluation"]
    words = [message for message in data["messages"] if message["agent"] == "coder"]
    return {
        "version": EXPORT_VERSION,
        **{name: data[name] for name in ("id", "run", "task", "number", "parent", "operator")},
        **{name: data[name] for name in ("start", "inspirations", "coder", "technique")},
        "caught_by": caught_by(attempt.evaluation),
        "prompt": _last(words, "prompt"),
        "reply": _last(words, "reply"),
        "messages": data["messages"],
        "finding": data["finding"],
        "candidate": None
        if attempt.candidate is None
        else {
            "hash": attempt.candidate.hash,
            "language": attempt.candidate.language,
            **data["candidate"],
        },
        **{name: evaluation[name] for name in ("verdict", "stage", "reason")},
        "uncompared": attempt.evaluation.uncompared,
        "evaluation_key": attempt.evaluation.key,
        "task_digest": evaluation["task"],
        "equals": evaluation["equals"],
        "build": evaluation["build"],
        "checks": [] if evaluation["correctness"] is None else evaluation["correctness"]["sizes"],
        "performance": evaluation["performance"],
        "screening": evaluation["screening"],
        "profile": data["profile"],
        "trials": data["trials"],
        "reward": data["reward"],
        **{name: data[name] for name in ("accepted", "note", "started", "seconds")},
        "timings": evaluation["seconds"],
        "fingerprint": evaluation["fingerprint"],
    }


def _last(messages: list[dict[str, Any]], role: str) -> str | None:
    return next((message["content"] for message in reversed(messages) if message["role"] == role), None)


_BY = {
    "time_us": "measured time; a ratio above 1 is better for b, from and to are its 95 % interval; the two candidates "
    "did not take turns",
    "modelled_us": "modelled time; a ratio above 1 is better for b",
    "none": "correctness alone",
}


def compare_facts(view: CompareView) -> tuple[tuple[str, str], ...]:
    """Facts above the table: (label, text); a label may repeat."""
    facts = [
        ("a", view.a),
        ("b", view.b),
        ("score", f"b wins {view.wins}, loses {view.losses}; {view.ties} ties, {view.both_failed} failed in both"),
        ("by", _BY[view.quantity]),
    ]
    if view.geomean_ratio is not None:
        estimate = view.geomean_ratio
        facts.append(("geomean", f"{times(estimate.value)} [{times(estimate.low)}, {times(estimate.high)}] over tasks"))
    facts += [("differ", difference) for difference in view.differences]
    facts += [("only a", ", ".join(view.only_a))] if view.only_a else []
    facts += [("only b", ", ".join(view.only_b))] if view.only_b else []
    facts += [("changed", ", ".join(view.changed))] if view.changed else []
    return tuple(facts)


def compare_markdown(view: CompareView) -> str:
    """A list of the facts, then the pairs."""
    lines = [f"- {label}: {markdown(text)}" for label, text in compare_facts(view)]
    return "# Two runs\n\n" + "\n".join(lines) + "\n\n" + compare_table(view).to_markdown()


_KEY = tuple(Column(name, name) for name in BoardKey.model_fields if name != "task_count")
_SPREAD = {"correct", "median_dram_ratio", "median_speedup", "win_rate", "floor_share"} | {
    f"geomean_{which}" for which in ("speedup", "correct", "eager")
}
"""Statistics with an interval: three columns each."""
_ENTRY = (
    *(
        Column(name, name)
        for name in Entry.model_fields
        if name not in {"key", "tasks", "verified", "fast_p", *_SPREAD}
    ),
    Column("checked", "checked"),
    *(
        Column(f"{name}{end}", f"{name}{end}")
        for name in (*(f"fast_{p:g}".replace(".", "_") for p in FAST_P), *sorted(_SPREAD))
        for end in ("", "_low", "_high")
    ),
)
_TASK = tuple(Column(name, name) for name in TaskSummary.model_fields if name != "origin")


def leaderboard_markdown(view: Leaderboard) -> str:
    """One section per board: its runs, then the best result per task."""
    parts = ["# Leaderboard\n"]
    for board in view.boards:
        parts.append(f"## {markdown(board_title(board.key))}\n")
        parts += [f"{markdown(note)}\n" for note in board_notes(board)]
        for table in board_tables(board):
            parts += [f"### {table.title}\n", table.to_markdown()]
    if not view.boards:
        parts.append("No run has an attempt yet.\n")
    return "\n".join(parts)


def entries_csv(view: Leaderboard) -> str:
    """One row per result: the key of its board, then all its statistics. Filter by the key before comparing."""
    rows = []
    for board in view.boards:
        key = tuple(getattr(board.key, column.key) for column in _KEY)
        rows += [(*key, *row) for row in Table.of("", _ENTRY, map(EntryRow, board.entries)).rows]
    return Table("", (*_KEY, *_ENTRY), tuple(rows)).to_csv()


def leaderboard_csv(view: Leaderboard) -> str:
    """One row per task of every run on every board, after the board's key. Filter by the key before comparing."""
    rows = []
    for board in view.boards:
        key = tuple(getattr(board.key, column.key) for column in _KEY)
        tasks = Table.of("", _TASK, (task for entry in board.entries for task in entry.tasks))
        rows += [(*key, *row) for row in tasks.rows]
    return Table("", (*_KEY, *_TASK), tuple(rows)).to_csv()
