"""Findings as a Judge writes them: the JSON objects that its prompts ask for, read and written in one place."""

from __future__ import annotations

import json
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, model_validator

from kernelforge.agents.json_reply import read_form
from kernelforge.records import Finding


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
    found = read_form(OptimiseReply, text, 'with the keys "bottleneck", "method", "plan" and "metrics"')
    if found.stop is not None:
        return Finding(kind="stop", headline=found.stop, why="the Judge says so", action="stop here")
    return Finding(
        kind="optimise",
        headline=found.bottleneck or "",
        why=found.method or "",
        action=found.plan or "",
        metrics=found.metrics,
    )


def write_finding(finding: Finding) -> str:
    """A finding in the form that :func:`parse_finding` reads. What no form has a place for (the built-in move, the
    bottleneck's name) stays in the record alone."""
    if finding.kind == "stop":
        said: dict[str, object] = {"stop": finding.headline}
    elif finding.kind == "optimise":
        said = {
            "bottleneck": finding.headline,
            "method": finding.why,
            "plan": finding.action,
            "metrics": list(finding.metrics),
        }
    else:
        said = {
            "critical_issue": finding.headline,
            "why_it_matters": finding.why,
            "minimal_fix": finding.action,
        }
    return f"```json\n{json.dumps(said, ensure_ascii=False, indent=1)}\n```\n"
