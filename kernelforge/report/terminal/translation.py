"""Scores of translations in the terminal."""

from __future__ import annotations

from rich.console import Group

from kernelforge.report.terminal.widgets import field
from kernelforge.run.translations import TranslationScores


def translation_lines(scores: TranslationScores) -> Group:
    """Compile rate and Pass@k over the tasks."""
    chances = ", ".join(f"{value:.3f} at {k}" for k, value in scores.pass_at_k.items())
    return Group(
        field("translations", f"{scores.samples} of {scores.tasks} tasks"),
        field("compile rate", f"{scores.compile_rate:.1%}"),
        field("Pass@k", chances),
    )
