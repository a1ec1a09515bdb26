"""Scores of translations in the terminal."""

from __future__ import annotations

from rich.console import Group

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


def likeness_text(likeness: Likeness) -> str:
    """BLEU and CodeBLEU with the number of texts, in a line."""
    code = "without CodeBLEU (extra metrics)" if likeness.codebleu is None else f"CodeBLEU {likeness.codebleu:.1%}"
    return f"BLEU {likeness.bleu:.1%}, {code}, of {likeness.texts} texts against known translations"
