"""A comparison of two runs in words, and as Markdown."""

from __future__ import annotations

from kernelforge.report.tables.compare import compare_table
from kernelforge.report.text import markdown, times
from kernelforge.report.views.compare import CompareView

_BY = {
    "time_us": "measured time; a ratio above 1 is better for b, from and to are its 95 % interval; the two candidates "
    "did not take turns",
    "dram_bytes": "DRAM bytes, since the times are modelled; a ratio above 1 is better for b",
    "none": "correctness alone",
}


def compare_facts(view: CompareView) -> tuple[tuple[str, str], ...]:
    """What a reader must know before the table: (label, text), a label may repeat."""
    facts = [
        ("a", view.a),
        ("b", view.b),
        ("score", f"b wins {view.wins}, loses {view.losses}; {view.ties} ties, {view.both_failed} failed in both"),
        ("by", _BY[view.quantity]),
    ]
    if view.geomean_ratio is not None:
        found = view.geomean_ratio
        facts.append(("geomean", f"{times(found.value)} [{times(found.low)}, {times(found.high)}] over tasks"))
    facts += [("differ", difference) for difference in view.differences]
    facts += [("only a", ", ".join(view.only_a))] if view.only_a else []
    facts += [("only b", ", ".join(view.only_b))] if view.only_b else []
    facts += [("changed", ", ".join(view.changed))] if view.changed else []
    return tuple(facts)


def compare_markdown(view: CompareView) -> str:
    """A list of the facts, then the pairs."""
    lines = [f"- {label}: {markdown(text)}" for label, text in compare_facts(view)]
    return "# Two runs\n\n" + "\n".join(lines) + "\n\n" + compare_table(view).to_markdown()
