"""Replies of Judges and other agents, parsed: JSON objects within prose, and findings."""

from __future__ import annotations

import json
from typing import Annotated, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from kernelforge.errors import CandidateError
from kernelforge.records import Finding, first_fault


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", str_strip_whitespace=True)

    @model_validator(mode="before")
    @classmethod
    def _without_blanks(cls, data: object) -> object:
        """Structured output makes a model give every key: one with nothing to say is null or blank."""
        if not isinstance(data, dict):
            return data
        return {key: value for key, value in data.items() if value is not None and str(value).strip()}


# Names go into later prompts as they are, so they hold nothing but a name.
MetricName = Annotated[str, Field(pattern=r"^\+?[A-Za-z]\w*(\.\w+)*$", max_length=120)]


class OptimiseReply(_Strict):
    """A Judge's reply about a correct candidate; ``stop`` alone when nothing is left to gain."""

    bottleneck: str | None = Field(default=None, min_length=1, max_length=600)
    method: str | None = Field(default=None, min_length=1, max_length=600)
    plan: str | None = Field(default=None, min_length=1, max_length=600)
    metrics: tuple[MetricName, ...] = Field(default=(), max_length=8)
    stop: str | None = Field(default=None, min_length=1, max_length=600)

    @model_validator(mode="after")
    def _one_of_both(self) -> OptimiseReply:
        missing = [name for name in ("bottleneck", "method", "plan") if getattr(self, name) is None]
        if self.stop is None and missing:
            raise ValueError(f"{missing[0]} is missing, and so is stop")
        return self


class RepairReply(_Strict):
    """A Judge's reply about a candidate that failed."""

    critical_issue: str = Field(min_length=1, max_length=600)
    why_it_matters: str = Field(min_length=1, max_length=600)
    minimal_fix: str = Field(min_length=1, max_length=600)


def parse_finding(text: str, *, optimise: bool) -> Finding:
    """Read a Judge's reply: the last JSON object in it, of the form that its prompt asked for.

    Raises:
        CandidateError: there is none, or it has other keys; the message says what is wanted.
    """
    if not optimise:
        issue = read_form(RepairReply, text, 'with the keys "critical_issue", "why_it_matters", "minimal_fix"')
        return Finding(kind="repair", headline=issue.critical_issue, why=issue.why_it_matters, action=issue.minimal_fix)
    reply = read_form(OptimiseReply, text, 'with the keys "bottleneck", "method", "plan" and "metrics"')
    if reply.stop is not None:
        return Finding(kind="stop", headline=reply.stop, why="the Judge says so", action="stop here")
    return Finding(
        kind="optimise",
        headline=reply.bottleneck or "",
        why=reply.method or "",
        action=reply.plan or "",
        metrics=reply.metrics,
    )


def write_finding(finding: Finding) -> str:
    """A finding in the form that :func:`parse_finding` reads. What no form has a place for (the built-in move, the
    bottleneck's name) stays in the record alone."""
    if finding.kind == "stop":
        fields: dict[str, object] = {"stop": finding.headline}
    elif finding.kind == "optimise":
        fields = {
            "bottleneck": finding.headline,
            "method": finding.why,
            "plan": finding.action,
            "metrics": list(finding.metrics),
        }
    else:
        fields = {
            "critical_issue": finding.headline,
            "why_it_matters": finding.why,
            "minimal_fix": finding.action,
        }
    return f"```json\n{json.dumps(fields, ensure_ascii=False, indent=1)}\n```\n"


MAX_CHARS = 32_768
"""How much of a reply's end is searched: looking costs the square of the length, and the object is short."""
MAX_DEPTH = 32
"""Deepest nesting of an object that counts; what goes on with it may use Python's own stack."""


FormT = TypeVar("FormT", bound=BaseModel)


def read_form(form: type[FormT], text: str, expected: str) -> FormT:
    """The last JSON object in a reply, which must be of a form.

    Args:
        wanted: what the object has, for the author of the reply: ``with the keys ...``.

    Raises:
        CandidateError: there is none, or it has another form; the message says what is wanted.
    """
    raw = last_object(text)
    if raw is None:
        raise CandidateError(f"the reply holds no JSON object; give one in a ```json block {expected}")
    try:
        return form.model_validate(raw)
    except ValidationError as error:
        message = f"the JSON object is not the one asked for ({first_fault(error)}); give one {expected}"
        raise CandidateError(message) from error


def last_object(text: str) -> dict[str, object] | None:
    """The last top-level JSON object in the end of a text, or None."""
    text = text[-MAX_CHARS:]
    decoder, last, at = json.JSONDecoder(), None, 0
    while (at := text.find("{", at)) >= 0:
        try:
            value, end = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            at += 1
            continue
        if isinstance(value, dict) and _is_flat(value):
            last = value
        at = end
    return last


def _is_flat(value: object) -> bool:
    """Whether a JSON value is nested no deeper than :data:`MAX_DEPTH`."""
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [
            inner
            for item in level
            if isinstance(item, dict | list)
            for inner in (item.values() if isinstance(item, dict) else item)
        ]
        if not level:
            return True
    return False
