"""One evaluation of ``kernelforge eval``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.text import Text

from kernelforge.report.phrases import timing_words, where_words
from kernelforge.report.tables.attempt import check_table, metric_table
from kernelforge.report.terminal.parts import Block, field, heading
from kernelforge.report.terminal.speed import speed_lines
from kernelforge.report.text import ABSENT, byte_count
from kernelforge.report.views.task import profile_metrics

if TYPE_CHECKING:
    from kernelforge.report.views.evaluation import EvaluationView


def evaluation_lines(view: EvaluationView) -> Group:
    """One evaluation: verdict, reason, checks by size, speed, profile."""
    evaluation, profile = view.evaluation, view.profile
    parts: list[RenderableType] = [
        field("verdict", f"{evaluation.outcome} at stage {evaluation.stage}"),
        field("candidate", evaluation.candidate),
        field("where", where_words(evaluation.fingerprint)),
        field("took", timing_words(evaluation.seconds) or ABSENT),
    ]
    if evaluation.reason:
        parts += [*heading("Reason"), Block(evaluation.reason)]
    if evaluation.correctness:
        parts += [Text(), check_table(evaluation.correctness.sizes).to_rich()]
    parts += [*heading("Is it fast"), *speed_lines(evaluation.performance, evaluation.build)]
    if profile is not None:
        roof = profile.roofline
        parts += [
            field("DRAM", f"{byte_count(roof.dram_bytes)}, the least is {byte_count(roof.compulsory_bytes)}"),
            Text(),
            metric_table(profile_metrics(profile), title=f"Profile at size {profile.size}", compared=False).to_rich(),
            *(field("note", note) for note in profile.notes),
        ]
    return Group(*parts)
