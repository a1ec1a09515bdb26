"""Attempts and messages as JSON rows, with long or repeated texts kept once, by their SHA-256."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from pydantic_core import from_json

from kernelforge.records import Attempt, Message, Usage

Row = dict[str, Any]
Json = dict[str, Any]
"""A record as its JSON decodes."""


class Blobs:
    """Texts by SHA-256, collected while records are encoded."""

    def __init__(self) -> None:
        self.rows: dict[str, Row] = {}

    def add(self, text: str) -> str:
        data = text.encode()
        name = hashlib.sha256(data).hexdigest()
        self.rows[name] = {"sha256": name, "bytes": len(data), "content": text}
        return name


def encode_attempt(attempt: Attempt) -> tuple[Row, Blobs]:
    """Row of an attempt in ``attempts``: the columns to search by, and the record with its texts moved to blobs."""
    blobs = Blobs()
    record: Json = json.loads(attempt.model_dump_json())
    for holder, field in _texts(record):
        holder[field] = blobs.add(holder[field])
    candidate = record["candidate"] or {}
    row = {
        **{name: record[name] for name in ("id", "run", "task", "number", "operator", "parent", "started", "seconds")},
        "candidate": attempt.candidate and attempt.candidate.hash,
        "evaluation_key": attempt.evaluation.key,
        "source": candidate.get("source"),
        "plan": candidate.get("plan"),
        "verdict": record["evaluation"]["verdict"],
        "accepted": int(attempt.accepted),
        "record": json.dumps(record, separators=(",", ":"), ensure_ascii=False),
    }
    return row, blobs


def parse_attempt(text: str, *, texts: bool = True, metrics: Collection[str] | None = None) -> Json:
    """JSON of an attempt with names of blobs in place of its texts.

    Args:
        texts: with names of message contents, metrics and hot spots of kernels and all samples of a time. Otherwise
            contents are empty, kernels have no numbers, and each timed side has its first sample only.
        metrics: names of the metrics to keep; None keeps all.

    Raises:
        ValueError, LookupError, TypeError: it is not the JSON of an attempt.
    """
    record: Json = from_json(text)
    profile, performance = record["profile"], record["evaluation"]["performance"]
    kernels = profile["kernels"] if profile else []
    if not texts:
        for message in record["messages"]:
            message["content"] = ""
        for kernel in kernels:
            kernel |= {"metrics": [], "hot_spots": []}
        timing = (performance or {}).get("timing")
        for side in (timing["candidate"], *timing["baselines"]) if timing else ():
            del side["samples_us"][1:]
    if metrics is not None:
        for holder in (profile, *kernels) if profile else ():
            holder["metrics"] = [metric for metric in holder["metrics"] if metric["name"] in metrics]
    return record


def blob_names(record: Json) -> set[str]:
    """SHA-256 of every blob that :func:`decode_attempt` needs."""
    return {holder[field] for holder, field in _texts(record)} - {""}


def decode_attempt(record: Json, blobs: Mapping[str, str]) -> Attempt:
    """The attempt of :func:`parse_attempt`'s JSON, validated.

    Raises:
        ValueError, LookupError, TypeError: the JSON is no valid record, or a blob is missing.
    """
    for holder, field in _texts(record):
        holder[field] = holder[field] and blobs[holder[field]]
    return Attempt.model_validate(record)


def _texts(record: Json) -> Iterator[tuple[Json, str]]:
    """Each text that is kept as a blob: the object that holds it, and its field."""
    if record["candidate"]:
        yield record["candidate"], "source"
        yield record["candidate"], "plan"
    for message in record["messages"]:
        yield message, "content"


def message_rows(messages: Iterable[Message], blobs: Blobs, **owner: str) -> list[Row]:
    """Rows of ``task_messages``; ``owner`` holds the columns that name their task."""
    return [
        {
            **owner,
            "position": position,
            **message.model_dump(),
            "content": blobs.add(message.content),
            "usage": None if message.usage is None else message.usage.model_dump_json(),
        }
        for position, message in enumerate(messages)
    ]


def messages_from_rows(rows: Iterable[Row], blobs: Mapping[str, str] | None) -> tuple[Message, ...]:
    """Inverse of :func:`message_rows`; without ``blobs``, contents are empty."""
    return tuple(
        Message(
            **{name: row[name] for name in ("agent", "role", "provider")},
            content="" if blobs is None else blobs[row["content"]],
            usage=None if row["usage"] is None else Usage.model_validate_json(row["usage"]),
        )
        for row in rows
    )
