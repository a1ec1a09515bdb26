"""Scores of translations in the terminal."""

from __future__ import annotations

from rich.console import Group

from kernelforge.datasets.graph_pairs import STAGES, PairSummary
from kernelforge.report.terminal.widgets import field
from kernelforge.run.translations import TranslationScores
from kernelforge.translation.likeness import Likeness


def translation_lines(scores: TranslationScores) -> Group:
    """Compile rate, Pass@k and likeness over the tasks."""
    chances = ", ".join(f"{value:.3f} at {k}" for k, value in scores.pass_at_k.items())
    return Group(
        field("translations", f"{scores.samples} of {scores.tasks} tasks"),
        field("compile rate", f"{scores.compile_rate:.1%}"),
        field("Pass@k", chances),
        *([field("likeness", likeness_text(scores.likeness))] if scores.likeness else []),
    )


def pair_lines(summary: PairSummary) -> Group:
    """Counts of a folder of pairs, and what was dropped."""
    share = f", {summary.traced_with_pair / summary.traced:.0%}" if summary.traced else ""
    seconds = "" if summary.median_seconds is None else f", a median of {summary.median_seconds:g} s each"
    families = ", ".join(f"{name} {count}" for name, count in summary.families.items())
    edits = ", ".join(f"{count} of {number}" for number, count in summary.edits.items())
    return Group(
        field("pairs", f"{summary.pairs} of {summary.graphs} graphs in {summary.rows} rows{seconds}"),
        field("traced graphs", f"{summary.traced_with_pair} of {summary.traced} gave a pair{share}"),
        field("by family", f"{families or 'none'}; {summary.operators} operators"),
        field("by edits", edits or "none"),
        *(field(f"dropped: {stage}", f"{count}, {STAGES[stage]}") for stage, count in summary.dropped.items()),
    )


def likeness_text(likeness: Likeness) -> str:
    """BLEU and CodeBLEU with the number of texts, in a line."""
    code = "without CodeBLEU (extra metrics)" if likeness.codebleu is None else f"CodeBLEU {likeness.codebleu:.1%}"
    return f"BLEU {likeness.bleu:.1%}, {code}, of {likeness.texts} texts against known translations"
