"""The table of rewards that were computed again."""

from __future__ import annotations

import json
from dataclasses import replace

from kernelforge.report.phrases import short_outcome
from kernelforge.report.tables.table import Column, Table
from kernelforge.report.text import ABSENT, number
from kernelforge.report.views.rescored import RescoredView


def rescored_table(view: RescoredView) -> Table:
    """For people: columns that would be empty in every row are left out."""
    columns = [one for one in _COLUMNS if any(getattr(row, one.key) or one in _ALWAYS for row in view.rows)]
    return Table.of(_TITLE, columns or _COLUMNS, view.rows, keys=2)


def rescored_csv(view: RescoredView) -> str:
    """One line per row; components are an object of JSON."""
    table = Table.of(_TITLE, _COLUMNS, view.rows)
    rows = tuple(tuple(json.dumps(one) if isinstance(one, dict) else one for one in row) for row in table.rows)
    return replace(table, rows=rows).to_csv()


def _short(value: float | None) -> str:
    return ABSENT if value is None else f"{value:.4g}"


def _parts(components: dict[str, float | None]) -> str:
    return ", ".join(f"{name} {_short(value)}" for name, value in components.items())


_TITLE = "Rewards from stored evaluations"
_ALWAYS = (
    Column("id", "evaluation of"),
    Column("policy", "policy"),
    Column("value", "value", _short, "right"),
    Column("stored", "stored", _short, "right"),
    Column("stored_policy", "stored policy"),
)
_COLUMNS = (
    *_ALWAYS,
    Column("differs", "differs", lambda differs: "differs" if differs else ABSENT),
    Column("verdict", "verdict", short_outcome, attribute="outcome"),
    Column("stage", "stage"),
    Column("origin", "origin"),
    Column("speedup", "speedup", number, "right"),
    Column("components", "components", _parts, wide=True),
    Column("why", "why no value", wide=True),
)
