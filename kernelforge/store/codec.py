"""Encode an attempt as rows of the tables in ``schema.py``, and decode it without loss.

SQLite has no NaN (it stores NULL), so a NaN travels as the text ``NaN``, which the records read as the number. It has
no negative zero either: -0.0 comes back as 0.0, which is equal.
"""

from __future__ import annotations

import hashlib
import json
import math
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

from pydantic import TypeAdapter
from pydantic_core import from_json

from kernelforge.records import (
    Attempt,
    Diagnostic,
    Evaluation,
    Fingerprint,
    KernelFacts,
    MemoryHotSpot,
    Message,
    Metric,
    Profile,
    Timing,
    Usage,
)

Row = dict[str, Any]
Rows = dict[str, list[Row]]

WHOLE_PLAN = -1
"""``metrics.kernel`` of a metric over the whole plan; otherwise the position in ``profile_kernels``."""

_KERNEL_FACTS = TypeAdapter(tuple[KernelFacts, ...])
_DIAGNOSTICS = TypeAdapter(tuple[Diagnostic, ...])
_HOT_SPOTS = TypeAdapter(tuple[MemoryHotSpot, ...])
_FINGERPRINT = (
    "device",
    "device_kind",
    "arch",
    "toolchain",
    "kernelforge",
    "evaluator",
    "torch",
    "python",
    "host",
    "jail",
    "gpu",
    "gpu_uuid",
    "driver",
    "runtime",
)
_HEAD = (
    "id", "run", "task", "number", "operator", "parent", "coder", "technique", "note", "started", "seconds",
)  # fmt: skip
_ROOFLINE = (
    "flops", "dram_bytes", "compulsory_bytes", "arithmetic_intensity", "ridge", "bound", "time_us", "time_origin",
)  # fmt: skip
_SPEED = (
    "time_us", "origin", "samples", "protocol", "bound", "speedup", "speedup_lower", "speedup_eager", "quarantined",
)  # fmt: skip


METRIC_COLUMNS = "attempt, kernel, name, value, unit, origin"
"""What an attempt is made from of its rows in ``metrics``: there are more of them than of all others together."""


class Blobs:
    """Texts by SHA-256, gathered while an attempt is taken apart."""

    def __init__(self) -> None:
        self.rows: dict[str, Row] = {}

    def add(self, text: str) -> str:
        data = text.encode()
        name = hashlib.sha256(data).hexdigest()
        self.rows[name] = {"sha256": name, "bytes": len(data), "content": text}
        return name


def _plain(value: Any) -> Any:
    return "NaN" if isinstance(value, float) and math.isnan(value) else value


def _row(**columns: Any) -> Row:
    return {name: _plain(value) for name, value in columns.items()}


def _json(value: Any) -> str:
    if isinstance(value, Mapping):
        value = {key: _infinite(number) for key, number in value.items()}
    return json.dumps(value, separators=(",", ":"), allow_nan=False)


def _infinite(value: Any) -> Any:
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def attempt_rows(attempt: Attempt) -> tuple[list[Row], Row, Rows]:
    """Take an attempt apart: its blobs, its row in ``attempts``, and its rows in the other tables."""
    blobs = Blobs()
    candidate = attempt.candidate
    head = _row(
        id=attempt.id,
        run=attempt.run,
        task=attempt.task,
        number=attempt.number,
        operator=attempt.operator.value,
        parent=attempt.parent,
        inspirations=_json(attempt.inspirations),
        coder=attempt.coder,
        technique=attempt.technique,
        candidate=None if candidate is None else candidate.hash,
        lane=None if candidate is None else candidate.lane,
        source=None if candidate is None else blobs.add(candidate.source),
        plan=None if candidate is None else blobs.add(candidate.plan),
        choices=None if candidate is None else _json(candidate.choices),
        verdict=attempt.evaluation.verdict.value,
        accepted=int(attempt.accepted),
        note=attempt.note,
        started=attempt.started,
        seconds=attempt.seconds,
    )
    rows = _evaluation_rows(attempt.id, attempt.evaluation, blobs)
    if attempt.profile is not None:
        rows |= _profile_rows(attempt.id, attempt.profile)
    if attempt.finding is not None:
        finding = attempt.finding.model_dump() | {"metrics": _json(attempt.finding.metrics)}
        rows["findings"] = [_row(attempt=attempt.id, **finding)]
    rows["messages"] = message_rows(attempt.messages, blobs, attempt=attempt.id)
    rows["trials"] = [
        _row(attempt=attempt.id, position=i, **trial.model_dump() | {"choices": _json(trial.choices)})
        for i, trial in enumerate(attempt.trials)
    ]
    reward = attempt.reward
    rows["rewards"] = [
        _row(attempt=attempt.id, policy=reward.policy, value=reward.value, components=_json(reward.components))
    ]
    return list(blobs.rows.values()), head, rows


def _evaluation_rows(attempt: str, evaluation: Evaluation, blobs: Blobs) -> Rows:
    speed = evaluation.performance
    low, high = speed.interval_us if speed and speed.interval_us else (None, None)
    timing = speed.timing if speed else None
    rows: Rows = {
        "evaluations": [
            _row(
                attempt=attempt,
                key=evaluation.key,
                candidate=evaluation.candidate,
                task_digest=evaluation.task,
                verdict=evaluation.verdict.value,
                stage=evaluation.stage,
                reason=evaluation.reason,
                **evaluation.fingerprint.model_dump(),
                lane=evaluation.lane,
                checked=int(evaluation.correctness is not None),
                timing=None if timing is None else timing.model_dump_json(),
                interval_low_us=low,
                interval_high_us=high,
                **{name: None if speed is None else getattr(speed, name) for name in _SPEED},
            )
        ],
        "timings": [_row(attempt=attempt, stage=stage, seconds=s) for stage, s in evaluation.seconds.items()],
    }
    if evaluation.build is not None:
        build = evaluation.build
        columns = build.model_dump(exclude={"kernels", "diagnostics"})
        kernels = _KERNEL_FACTS.dump_json(build.kernels).decode()
        diagnostics = blobs.add(_DIAGNOSTICS.dump_json(build.diagnostics).decode())
        rows["builds"] = [_row(attempt=attempt, **columns, kernels=kernels, diagnostics=diagnostics)]
    if evaluation.correctness is not None:
        rows["size_checks"] = [
            _row(attempt=attempt, position=i, **check.model_dump() | {"families": _json(check.families)})
            for i, check in enumerate(evaluation.correctness.sizes)
        ]
    return rows


def _profile_rows(attempt: str, profile: Profile) -> Rows:
    def metric_rows(kernel: int, metrics: Iterable[Metric]) -> list[Row]:
        return [
            _row(attempt=attempt, kernel=kernel, position=i, **metric.model_dump(mode="python"))
            for i, metric in enumerate(metrics)
        ]

    metrics = metric_rows(WHOLE_PLAN, profile.metrics)
    kernels = []
    for position, kernel in enumerate(profile.kernels):
        kernels.append(
            _row(
                attempt=attempt,
                position=position,
                kernel=kernel.kernel,
                launches=kernel.launches,
                grid=_json(kernel.grid),
                block=_json(kernel.block),
                sampled=kernel.sampled,
                hot_spots=_HOT_SPOTS.dump_json(kernel.hot_spots).decode(),
            )
        )
        metrics += metric_rows(position, kernel.metrics)
    head = _row(
        attempt=attempt,
        size=profile.size,
        device=profile.device,
        notes=_json(profile.notes),
        **profile.roofline.model_dump(),
    )
    return {"profiles": [head], "profile_kernels": kernels, "metrics": metrics}


def attempt_from_rows(
    head: Row,
    rows: Mapping[str, list[Row]],
    metrics: Iterable[tuple[Any, ...]],
    blobs: Mapping[str, str],
    *,
    texts: bool = True,
) -> Attempt:
    """Put an attempt together again, validated as one: record by record takes several times as long.

    Args:
        head: its row in ``attempts``.
        rows: its rows in the other tables but ``metrics``, each list in order of position.
        metrics: :data:`METRIC_COLUMNS` of its rows in ``metrics``, in order of position.
        blobs: content of every blob that the rows name.
        texts: with the contents of messages and the hot spots of kernels, else they are empty; and with all samples of
            a time, else the first of each side.

    Raises:
        ValueError, KeyError: the rows do not make a valid record.
    """
    candidate = None
    if head["candidate"] is not None:
        candidate = {
            "source": blobs[head["source"]],
            "plan": blobs[head["plan"]],
            "choices": json.loads(head["choices"]),
            "lane": head["lane"],
        }
    (reward,) = rows["rewards"]
    profiles, findings = rows.get("profiles"), rows.get("findings")
    return Attempt.model_validate(
        {
            **{name: head[name] for name in _HEAD},
            "inspirations": json.loads(head["inspirations"]),
            "trials": [_trial(row) for row in rows.get("trials", ())],
            "accepted": bool(head["accepted"]),
            "candidate": candidate,
            "finding": None if not findings else _finding(findings[0]),
            "messages": [_message(row, blobs if texts else None) for row in rows.get("messages", ())],
            "evaluation": _evaluation(rows, blobs, texts=texts),
            "profile": None if not profiles else _profile(profiles[0], rows, metrics, texts=texts),
            "reward": {name: reward[name] for name in ("policy", "value")}
            | {"components": json.loads(reward["components"])},
        }
    )


def message_rows(messages: Iterable[Message], blobs: Blobs, **owner: str) -> list[Row]:
    """Rows of ``messages`` or ``task_messages``; ``owner`` holds the columns that say whose they are."""
    return [
        {
            **owner,
            "position": i,
            **message.model_dump(),
            "content": blobs.add(message.content),
            "usage": None if message.usage is None else message.usage.model_dump_json(),
        }
        for i, message in enumerate(messages)
    ]


def messages_from_rows(rows: Iterable[Row], blobs: Mapping[str, str] | None) -> tuple[Message, ...]:
    """Inverse of :func:`message_rows`; without ``blobs``, contents are empty."""
    return tuple(Message.model_validate(_message(row, blobs)) for row in rows)


def blob_names(head: Row, rows: Mapping[str, list[Row]], *, texts: bool = True) -> set[str]:
    """SHA-256 of every blob that :func:`attempt_from_rows` asks for.

    Args:
        texts: the contents of messages too.
    """
    names = {head["source"], head["plan"]}
    names |= {row["content"] for row in rows.get("messages", ()) if texts}
    names |= {row["diagnostics"] for row in rows.get("builds", ())}
    return names - {None}


def _message(row: Row, blobs: Mapping[str, str] | None) -> dict[str, Any]:
    usage = row["usage"]
    return {
        **{name: row[name] for name in ("agent", "role", "provider")},
        "content": "" if blobs is None else blobs[row["content"]],
        "usage": None if usage is None else Usage.model_validate_json(usage),
    }


def _trial(row: Row) -> dict[str, Any]:
    return {**{name: row[name] for name in ("rung", "time_us", "problem")}, "choices": json.loads(row["choices"])}


def _finding(row: Row) -> dict[str, Any]:
    columns = ("kind", "headline", "why", "action", "move", "bottleneck")
    return {**{name: row[name] for name in columns}, "metrics": json.loads(row["metrics"])}


def _evaluation(rows: Mapping[str, list[Row]], blobs: Mapping[str, str], *, texts: bool) -> dict[str, Any]:
    (row,) = rows["evaluations"]
    checks = [
        {
            **{name: check[name] for name in ("size", "status", "message", "error", "launches")},
            "families": json.loads(check["families"]),
        }
        for check in rows.get("size_checks", ())
    ]
    return {
        **{name: row[name] for name in ("candidate", "verdict", "stage", "reason", "lane")},
        "task": row["task_digest"],
        "fingerprint": _fingerprint(*(row[name] for name in _FINGERPRINT)),
        "build": None if not rows.get("builds") else _build(rows["builds"][0], blobs),
        "correctness": {"sizes": checks} if row["checked"] else None,
        "performance": None if row["time_us"] is None else _performance(row, texts=texts),
        "seconds": {timing["stage"]: timing["seconds"] for timing in rows.get("timings", ())},
    }


@lru_cache(maxsize=64)
def _fingerprint(*values: str | None) -> Fingerprint:
    """One record for all attempts that were made by the same: a run has few of them."""
    return Fingerprint.model_validate(dict(zip(_FINGERPRINT, values, strict=True)))


def _performance(row: Row, *, texts: bool) -> dict[str, Any]:
    low, high = row["interval_low_us"], row["interval_high_us"]
    return {
        **{name: row[name] for name in _SPEED},
        "interval_us": None if low is None else (low, high),
        "timing": None if row["timing"] is None else _timing(row["timing"], texts=texts),
    }


def _timing(text: str, *, texts: bool) -> Timing:
    if texts:
        return Timing.model_validate_json(text)
    told = from_json(text)
    for side in (told["candidate"], *told["baselines"]):
        del side["samples_us"][1:]
    return Timing.model_validate(told)


def _build(row: Row, blobs: Mapping[str, str]) -> dict[str, Any]:
    return {
        **{name: row[name] for name in ("key", "ptx_hash", "refused", "limit", "arch", "toolchain", "seconds")},
        "ok": bool(row["ok"]),
        "cached": bool(row["cached"]),
        "kernels": _KERNEL_FACTS.validate_json(row["kernels"]),
        "diagnostics": _DIAGNOSTICS.validate_json(blobs[row["diagnostics"]]),
    }


def _profile(
    row: Row, rows: Mapping[str, list[Row]], metrics: Iterable[tuple[Any, ...]], *, texts: bool
) -> dict[str, Any]:
    by_kernel: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for _, kernel, name, value, unit, origin in metrics:
        # The same few names come with every attempt of a run: they are kept once.
        by_kernel[kernel].append({"name": sys.intern(name), "value": value, "unit": sys.intern(unit), "origin": origin})
    kernels = [
        {
            **{name: one[name] for name in ("kernel", "launches", "sampled")},
            "grid": json.loads(one["grid"]),
            "block": json.loads(one["block"]),
            "metrics": by_kernel[one["position"]],
            "hot_spots": _HOT_SPOTS.validate_json(one["hot_spots"]) if texts else (),
        }
        for one in rows.get("profile_kernels", ())
    ]
    return {
        "size": row["size"],
        "device": row["device"],
        "kernels": kernels,
        "metrics": by_kernel[WHOLE_PLAN],
        "roofline": {name: row[name] for name in _ROOFLINE},
        "notes": json.loads(row["notes"]),
    }
