"""``kernelforge translate``: a Coder translates CUDA into C, several times each, judged in the jail."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kernelforge.cli.support.options import (
    PATTERNS,
    JsonOption,
    UnconfinedOption,
    console,
    llm_settings,
    print_view,
    warn,
    write_text,
)
from kernelforge.errors import BudgetExhausted, UsageError

if TYPE_CHECKING:
    from kernelforge.records.base import Record


def write_rows(rows: Iterable[Record], output: Path) -> None:
    """Write records as JSON lines."""
    write_text("".join(f"{row.model_dump_json()}\n" for row in rows), output)


def translate(
    coder: Annotated[
        str, typer.Option("--coder", metavar="AGENT", help="Who writes: a provider, such as openai:MODEL.")
    ],
    suite: Annotated[str, typer.Option("--suite", metavar="SUITE", help="A suite whose tasks show C.")] = "translate",
    task: Annotated[
        list[str] | None,
        typer.Option("--task", "--select", metavar="NAME", help=f"Only {PATTERNS}; repeat for more."),
    ] = None,
    samples: Annotated[int, typer.Option("--samples", min=1, help="Translations of each task.")] = 1,
    full: Annotated[
        bool, typer.Option("--full/--no-full", help="Also compare the full size, where the reference is cheap there.")
    ] = False,
    seed: Annotated[
        int | None, typer.Option("--seed", min=0, help="Seed of the inputs; a fresh, secret one if left out.")
    ] = None,
    base_url: Annotated[
        str | None, typer.Option("--base-url", metavar="URL", help="OpenAI-compatible server of 'openai:' models.")
    ] = None,
    llm: Annotated[
        list[str] | None, typer.Option("--llm", metavar="NAME=VALUE", help="How models are called; repeat for more.")
    ] = None,
    prices: Annotated[Path | None, typer.Option("--prices", metavar="FILE", help="Prices of further models.")] = None,
    tokens: Annotated[
        int | None, typer.Option("--tokens", min=1, help="Start no call of a model after this many tokens.")
    ] = None,
    dollars: Annotated[
        float | None, typer.Option("--dollars", help="Start no call of a model after this many dollars.")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="Write every translation there, as JSON lines."),
    ] = None,
    allow_unconfined: UnconfinedOption = False,
    as_json: JsonOption = False,
) -> None:
    """Translate the CUDA of a suite's tasks into C, and print compile rate, Pass@k, BLEU and CodeBLEU."""
    import secrets
    from contextlib import closing

    from kernelforge.agents import BUILTIN
    from kernelforge.llm.providers import Providers
    from kernelforge.records import Budget
    from kernelforge.report.formatting import one_line
    from kernelforge.report.terminal.translation import translation_lines
    from kernelforge.run.budget import RunBudget, StopSignal
    from kernelforge.run.translations import Translation, scores
    from kernelforge.run.translations import translate as translations
    from kernelforge.tasks import load_suite

    if coder == BUILTIN:
        raise UsageError("the built-in Coder writes CUDA alone: name a model with --coder, or exchange:FOLDER")
    loaded = load_suite(suite)
    tasks = list(loaded.select(task)) if task else list(loaded.tasks)
    made: list[Translation] = []
    if output is not None:
        write_rows(made, output)  # a file that cannot be written costs no call
    err = console(stderr=True)
    budget = RunBudget(Budget(tokens=tokens, dollars=dollars), stop=StopSignal())
    with closing(Providers(llm_settings(llm, base_url, prices, "keep"), stopped=budget.out_of_time)) as providers:
        providers.check(coder)
        if dollars is not None and not providers.price_known(coder):
            raise UsageError(
                f"a dollar budget cannot be held: the price of {coder!r} is unknown; give it with --prices"
            )
        try:
            for item in translations(
                tasks,
                providers.answerer(coder, budget.task()),
                samples=samples,
                seed=secrets.randbits(63) if seed is None else seed,
                full=full,
                allow_unconfined=allow_unconfined,
            ):
                made.append(item)
                err.print(one_line(f"{item.task} {item.sample + 1}/{samples}: {item.verdict} {item.reason}"[:200]))
                if output is not None:
                    write_rows(made, output)
        except BudgetExhausted as error:
            warn(f"stopped: {error}")
    print_view(scores(made, tasks), translation_lines, as_json=as_json)
