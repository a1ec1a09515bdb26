"""Attempts as JSON objects, one a line: what training and analysis start from. ``docs/results.md`` has the fields."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

from kernelforge.evaluate.generators import caught_by
from kernelforge.records import Attempt

EXPORT_VERSION = 1


def export_lines(attempts: Iterable[Attempt]) -> Iterator[str]:
    """One line of JSON per attempt, without a newline at its end."""
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
        **{name: data[name] for name in ("inspirations", "coder", "technique")},
        "caught_by": caught_by(attempt.evaluation),
        "prompt": _last(words, "prompt"),
        "reply": _last(words, "reply"),
        "messages": data["messages"],
        "finding": data["finding"],
        "candidate": None if attempt.candidate is None else {"hash": attempt.candidate.hash, **data["candidate"]},
        **{name: evaluation[name] for name in ("verdict", "stage", "reason")},
        "uncompared": attempt.evaluation.uncompared,
        "evaluation_key": attempt.evaluation.key,
        "task_digest": evaluation["task"],
        "build": evaluation["build"],
        "checks": [] if evaluation["correctness"] is None else evaluation["correctness"]["sizes"],
        "performance": evaluation["performance"],
        "profile": data["profile"],
        "trials": data["trials"],
        "reward": data["reward"],
        **{name: data[name] for name in ("accepted", "note", "started", "seconds")},
        "timings": evaluation["seconds"],
        "fingerprint": evaluation["fingerprint"],
    }


def _last(messages: list[dict[str, Any]], role: str) -> str | None:
    return next((message["content"] for message in reversed(messages) if message["role"] == role), None)
