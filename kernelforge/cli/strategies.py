"""``kernelforge strategies``: the published search methods and their options."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from kernelforge.cli.support.options import JsonOption, console

if TYPE_CHECKING:
    from kernelforge.search import Strategy


def strategies(json_: JsonOption = False) -> None:
    """List the strategies of 'run --strategy': source of the method, and options with their defaults."""
    from kernelforge.search import STRATEGIES

    rows = [_describe(strategy) for strategy in STRATEGIES.values()]
    if json_:
        import json

        typer.echo(json.dumps(rows, indent=2))
        return
    out = console()
    for row in rows:
        stop = "never" if row["stop_after"] is None else f"after {row['stop_after']} rounds without a new best"
        out.print(f"{row['name']}  {row['source']}", style="bold")
        out.print(f"  {row['about']}", soft_wrap=True)
        out.print(f"  rounds {row['rounds']}, ends early: {stop}")
        for option in row["options"]:
            out.print(f"  --set {option['name']}={option['default']}  {option['about']}", soft_wrap=True)
        out.print()


def _describe(strategy: type[Strategy[Any]]) -> dict[str, Any]:
    import inspect
    import sys

    from kernelforge.records.base import field_docs

    docs = field_docs(strategy.Options)
    module = sys.modules[strategy.__module__]
    about = (inspect.getdoc(module) or "").split("\n")[0]
    return {
        "name": strategy.name,
        "source": strategy.source,
        "about": about.partition(": ")[2] or about,
        "rounds": strategy.default_rounds(strategy.Options()),
        "stop_after": strategy.default_stop_after,
        "options": [
            {"name": option, "default": field.default, "about": " ".join(docs.get(option, "").split())}
            for option, field in strategy.Options.model_fields.items()
        ],
    }
