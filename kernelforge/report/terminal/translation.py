"""Scores and times of translations in the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.text import Text

from kernelforge.records import CpuConditions, Ratio
from kernelforge.report.formatting import ABSENT, number, times, times_between
from kernelforge.report.tables.base import Column, Table
from kernelforge.report.terminal.widgets import field

if TYPE_CHECKING:
    from kernelforge.datasets.graph_pairs import PairSummary
    from kernelforge.run.translations import TranslationScores, TranslationTime
    from kernelforge.translation.likeness import Likeness


def translation_lines(scores: TranslationScores) -> Group:
    """Compile rate, Pass@k and likeness over the tasks, and a table of times where any were taken."""
    chances = ", ".join(f"{value:.3f} at {k}" for k, value in scores.pass_at_k.items())
    return Group(
        field("translations", f"{scores.samples} of {scores.tasks} tasks"),
        field("compile rate", f"{scores.compile_rate:.1%}"),
        field("Pass@k", chances),
        *([field("likeness", likeness_text(scores.likeness))] if scores.likeness else []),
        *_times(scores),
    )


def _times(scores: TranslationScores) -> Iterator[RenderableType]:
    """The speedup over tasks, where it was measured, and a row for each timed sample."""
    if not scores.times:
        return
    if scores.mean_speedup is not None:
        yield field("speedup", f"{times(scores.mean_speedup)} over the suite's C, geometric mean of the best per task")
    yield from cpu_lines(scores.times[0].cpu)
    yield Text()
    yield translation_time_table(scores.times).to_rich()


def translation_time_table(rows: Iterable[TranslationTime]) -> Table:
    """Timed translations, with the empty call that is part of their times, and their speedups over the suite's function
    and over eager PyTorch."""

    def ratio_text(ratio: Ratio | None) -> str:
        if ratio is None:
            return ABSENT
        return times_between(ratio.speedup, *ratio.interval)

    columns = (
        Column("task", "task"),
        Column("sample", "sample", lambda sample: str(sample + 1), "right"),
        Column("time_us", "µs", number, "right"),
        Column("empty_us", "empty call µs", number, "right"),
        Column("over_c", "vs the suite's C", ratio_text, "right"),
        Column("over_eager", "vs eager PyTorch", ratio_text, "right"),
    )
    return Table.of("Times", columns, rows)


def cpu_lines(cpu: CpuConditions | None) -> Iterator[RenderableType]:
    """Processor and compiler of timed C functions."""
    if cpu is None:
        return
    yield field("processor", f"{cpu.name}, {cpu.cpus} CPUs, {cpu.threads} threads of OpenMP and PyTorch")
    yield field("compiled by", cpu.command)


def empty_call_line(cpu: CpuConditions | None) -> Iterator[RenderableType]:
    """Time of an empty function, where it was taken."""
    if cpu is not None and cpu.overhead_us is not None:
        yield field("empty call", f"{number(cpu.overhead_us)} µs, which is part of every time")


def pair_lines(summary: PairSummary) -> Group:
    """Counts of a folder of pairs, and what was dropped."""
    from kernelforge.datasets.graph_pairs import STAGES

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
