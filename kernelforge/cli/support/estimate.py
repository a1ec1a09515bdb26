"""``kernelforge run --dry-run``: what the run would take, as a table."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

from kernelforge.cli.support.output import console, open_store

if TYPE_CHECKING:
    from kernelforge.records import Attempt, RunConfig


def print_estimate(config: RunConfig, results: Path) -> None:
    """Print the estimate of a run. Runs the references, asks no agent and journals nothing."""
    from rich.table import Table

    from kernelforge.run.estimate import estimate
    from kernelforge.run.runner import briefs

    found = estimate(config, briefs(config), _earlier(results))
    table = Table(box=None)
    for name in ("agent", "model", "calls", "tokens in", "tokens out", "dollars", "tokens a reply"):
        table.add_column(name, overflow="fold", justify="left" if name in ("agent", "model") else "right")
    for one in found.agents:
        dollars = "unknown" if one.dollars is None else f"${one.dollars:,.2f}"
        table.add_row(
            one.agent, one.spec, f"{one.calls:,}", f"{one.input_tokens:,}", f"{one.output_tokens:,}", dollars, one.basis
        )
    out = console()
    out.print(table)
    missing = dict.fromkeys(one.spec for one in found.agents if one.dollars is None)
    total = (
        f"unknown: no price for {', '.join(missing)} (see --prices)"
        if found.dollars is None
        else f"${found.dollars:,.2f}"
    )
    out.print(f"\nAt most, over {len(config.tasks)} tasks: {found.tokens:,} tokens, dollars {total}")
    out.print(
        f"At most {found.evaluations:,} evaluations (tuned children not counted), about "
        f"{found.evaluation_seconds:,.0f} s of one core ({found.evaluation_basis})"
    )
    for line in found.binding:
        out.print(f"A budget would end the run early. {line}")


def _earlier(results: Path) -> list[Attempt]:
    """All attempts of earlier runs in the folder; none where there is no database yet."""
    from kernelforge.store import DATABASE_NAME

    if not (results / DATABASE_NAME).exists():
        return []
    with contextlib.closing(open_store(results, read_only=True)) as store:
        return [attempt for run in store.runs() for attempt in store.attempts(run.id)]
