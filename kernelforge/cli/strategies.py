"""``kernelforge strategies``: the published search methods and their options."""

from __future__ import annotations

from typing import Any

import typer

from kernelforge.cli.support.output import JsonOption, console


def strategies(json_: JsonOption = False) -> None:
    """List the strategies of 'run --strategy': whose method each is, and its options with their defaults."""
    from kernelforge.search import STRATEGIES

    found = [_described(name) for name in STRATEGIES]
    if json_:
        import json

        typer.echo(json.dumps(found, indent=2))
        return
    out = console()
    for one in found:
        stop = "never" if one["stop_after"] is None else f"after {one['stop_after']} rounds without a new best"
        out.print(f"{one['name']}  {one['source']}", style="bold")
        out.print(f"  {one['about']}", soft_wrap=True)
        out.print(f"  rounds {one['rounds']}, ends early: {stop}")
        for option in one["options"]:
            out.print(f"  --set {option['name']}={option['default']}  {option['about']}", soft_wrap=True)
        out.print()


def _described(name: str) -> dict[str, Any]:
    import inspect
    import sys

    from kernelforge.records.base import field_docs
    from kernelforge.search import strategy_class

    chosen = strategy_class(name)
    told = field_docs(chosen.Options)
    module = sys.modules[chosen.__module__]
    about = (inspect.getdoc(module) or "").split("\n")[0]
    return {
        "name": name,
        "source": chosen.source,
        "about": about.partition(": ")[2] or about,
        "rounds": chosen.default_rounds(chosen.Options()),
        "stop_after": chosen.default_stop_after,
        "options": [
            {"name": option, "default": field.default, "about": " ".join(told.get(option, "").split())}
            for option, field in chosen.Options.model_fields.items()
        ],
    }
