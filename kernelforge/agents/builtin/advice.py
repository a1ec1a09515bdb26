"""Standard advice: for each bottleneck of a correct candidate, for each move, and for each verdict of a failed one."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from kernelforge.agents.builtin.design import Design
from kernelforge.agents.diagnosis.rules import Bottleneck
from kernelforge.records import Attempt, Finding, Record, Verdict


class Advice(Record):
    """Standard words for a fault: a headline, and the action to take."""

    headline: str
    action: str


class Issue(Advice):
    """Advice for a reason in which a pattern is found."""

    pattern: str


class MoveAdvice(Record):
    """Standard words for a move of the built-in Coder."""

    action: str
    bottleneck: Bottleneck
    """Bottleneck that the move is against."""
    hints: tuple[str, ...]
    """Words by which a Judge that is not built in asks for it."""


class AdviceTable(Record):
    """The tables of ``advice.toml``, which says what each is for."""

    remedies: dict[Bottleneck, Advice]
    moves: dict[str, MoveAdvice]
    techniques: dict[str, tuple[str, ...]]
    answers: dict[str, tuple[str, ...]]
    verdicts: dict[Verdict, Advice]
    issues: tuple[Issue, ...]


ADVICE = AdviceTable.model_validate(tomllib.loads(Path(__file__).with_name("advice.toml").read_text(encoding="utf-8")))


def advise(parent: Attempt) -> Finding:
    """The issue behind the verdict of an attempt that failed, why it matters, and the minimal fix."""
    evaluation = parent.evaluation
    design = Design.of(parent.candidate.source) if parent.candidate is not None else None
    reason = evaluation.reason.strip()
    if design is not None and not design.moves:
        why = f"{evaluation.verdict} at stage {evaluation.stage}: {_short(reason)}"
        return Finding(kind="stop", headline="the plainest design already fails", why=why, action="stop here")
    advice = ADVICE.verdicts.get(evaluation.verdict, Advice(headline="the candidate failed", action="see the reason"))
    issue, fix = advice.headline, advice.action
    if evaluation.verdict is Verdict.BUILD and evaluation.build is not None and evaluation.build.errors:
        issue = f"the compiler refuses {_short(str(evaluation.build.errors[0]), 160)}"
    elif evaluation.verdict in (Verdict.WRONG, Verdict.CRASH):
        for cause in ADVICE.issues:
            if re.search(cause.pattern, reason, re.IGNORECASE):
                issue, fix = cause.headline, cause.action
                break
    why = f"verdict {evaluation.verdict} at stage {evaluation.stage}: {_short(reason)}"
    return Finding(kind="repair", headline=issue, why=why, action=fix)


def _short(text: str, limit: int = 300) -> str:
    line = " ".join(text.split())
    return line if len(line) <= limit else line[: limit - 3] + "..."
