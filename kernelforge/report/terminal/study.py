"""The table of the Codex study: terminal, Markdown and CSV."""

from __future__ import annotations

from rich.console import Group

from kernelforge.report.formatting import ABSENT, markdown, one_line
from kernelforge.report.tables.base import Column, Table
from kernelforge.report.terminal.widgets import field
from kernelforge.study.codex import LEVELS, StudyScores, column

LEVELS_TEXT = ", ".join(f"{score:g} {name}" for score, name in LEVELS.items())


def _score(value: float | None) -> str:
    return ABSENT if value is None else f"{value:.2f}"


def study_table(scores: StudyScores) -> Table:
    """Kernels down, programming models with their hints across, means at both ends."""
    cells = {(row.kernel, column(row)): row.score for row in scores.prompts}
    columns = (
        Column("kernel", "kernel"),
        *(Column(name, name, _score, "right") for name in scores.by_model),
        Column("mean", "mean", _score, "right"),
    )
    rows = [
        (kernel, *(cells.get((kernel, name)) for name in scores.by_model), mean)
        for kernel, mean in scores.by_kernel.items()
    ]
    rows.append(("mean", *scores.by_model.values(), None))
    return Table("Proficiency", columns, tuple(rows))


def _counts_table(scores: StudyScores) -> Table:
    columns = (
        Column("prompt", "prompt"),
        Column("suggestions", "n", align="right"),
        Column("right", "right", align="right"),
        Column("other", "other", align="right"),
        Column("wrong", "wrong", align="right"),
        Column("not_judged", "not judged", align="right"),
        Column("no_code", "no code", align="right"),
        Column("score", "score", _score, "right"),
        Column("level", "level"),
    )
    return Table.of("Different codes of n suggestions", columns, scores.prompts)


def _missing(scores: StudyScores) -> str:
    """Count of the missing suggestions, and how to go on; empty for a complete study."""
    if not scores.missing:
        return ""
    return (
        f"{scores.missing:,} of {scores.requested * len(scores.prompts):,} suggestions: a prompt without all "
        f"{scores.requested} has no score; the same command with the same journal goes on"
    )


def study_lines(scores: StudyScores) -> Group:
    """The table of scores, then what each is made of."""
    missing = _missing(scores)
    return Group(
        field("coder", scores.coder),
        field("device", scores.device or ABSENT),
        field("scores", LEVELS_TEXT),
        *([field("missing", missing)] if missing else []),
        study_table(scores).to_rich(),
        _counts_table(scores).to_rich(),
    )


def study_markdown(scores: StudyScores) -> str:
    """Both tables below a line on who wrote."""
    head = f"{markdown(one_line(scores.coder))} on {markdown(one_line(scores.device or ABSENT))}. {LEVELS_TEXT}."
    missing = _missing(scores)
    head += f"\n\nMissing: {missing}." if missing else ""
    return f"{head}\n\n{study_table(scores).to_markdown()}\n{_counts_table(scores).to_markdown()}"


def study_csv(scores: StudyScores) -> str:
    """A line for each prompt, with its counts and its score."""
    names = (
        "kernel", "model", "hint", "prompt", "suggestions", "right", "other", "wrong", "not_judged", "no_code", "score",
        "level",
    )  # fmt: skip
    return Table.of("", [Column(name, name) for name in names], scores.prompts).to_csv()
