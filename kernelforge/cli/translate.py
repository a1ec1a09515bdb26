"""``kernelforge translate``: a Coder translates CUDA into C, several times each, judged in the jail."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kernelforge.cli.support.options import (
    PATTERNS,
    BaseUrlOption,
    DollarsOption,
    JsonOption,
    LLMOption,
    PricesOption,
    SeedOption,
    TokensOption,
    UnconfinedOption,
    begin_rows,
    budget_of,
    c_measure_settings,
    check_coder,
    console,
    llm_settings,
    print_view,
    warn,
)
from kernelforge.errors import BudgetExhausted, UsageError


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
    timed: Annotated[
        bool,
        typer.Option("--time", help="Time right translations at the full size, against the suite's C and PyTorch."),
    ] = False,
    seed: SeedOption = None,
    base_url: BaseUrlOption = None,
    llm: LLMOption = None,
    prices: PricesOption = None,
    tokens: TokensOption = None,
    dollars: DollarsOption = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="Write prompts, replies and verdicts there, for training."),
    ] = None,
    both: Annotated[
        bool,
        typer.Option("--both", help="Also write each right translation as one into CUDA; judges the suite's kernels."),
    ] = False,
    allow_unconfined: UnconfinedOption = False,
    as_json: JsonOption = False,
) -> None:
    """Translate the CUDA of a suite's tasks into C, and print compile rate, Pass@k, BLEU, CodeBLEU and speedups."""
    import secrets
    from contextlib import closing

    from kernelforge.agents import BUILTIN
    from kernelforge.cli.run import stopping
    from kernelforge.datasets.training import c_translation
    from kernelforge.llm.providers import Providers
    from kernelforge.records import Verdict
    from kernelforge.report.formatting import one_line
    from kernelforge.report.terminal.translation import translation_lines
    from kernelforge.run.budget import RunBudget, StopSignal
    from kernelforge.run.translations import Reversals, Translation, scores
    from kernelforge.run.translations import translate as translations
    from kernelforge.tasks import load_suite
    from kernelforge.utils.json_lines import append_rows

    if both and output is None:
        raise UsageError("--both adds rows to the file of --output: name one")
    if coder == BUILTIN:
        raise UsageError("the built-in Coder writes CUDA alone: name a model with --coder, or exchange:FOLDER")
    loaded = load_suite(suite)
    tasks = list(loaded.select(task)) if task else list(loaded.tasks)
    by_name = {task.name: task for task in tasks}
    made: list[Translation] = []
    err, stop = console(stderr=True), StopSignal()
    budget = RunBudget(budget_of(None, None, None, tokens, dollars, None), stop=stop)
    seed = secrets.randbits(63) if seed is None else seed
    if output is not None:
        begin_rows(output)
    with (
        Reversals(allow_unconfined=allow_unconfined, seed=seed) as reversals,
        closing(Providers(llm_settings(llm, base_url, prices, "keep"), stopped=budget.out_of_time)) as providers,
        stopping(stop),
    ):
        check_coder(providers, coder, dollars)
        try:
            for item in translations(
                tasks,
                providers.answerer(coder, budget.task()),
                samples=samples,
                seed=seed,
                full=full or timed,
                measure=c_measure_settings(timed=timed),
                allow_unconfined=allow_unconfined,
            ):
                made.append(item)
                verdict = item.evaluation
                line = f"{item.task} {item.sample + 1}/{samples}: {verdict.verdict} {verdict.reason}"
                err.print(one_line(line[:200]))
                if output is not None:
                    original = by_name[item.task]
                    row = c_translation(original, item.sample, item.messages, item.source, verdict)
                    append_rows([row], output)
                    if both and item.source is not None and verdict.verdict is Verdict.OK:
                        reverse = reversals.from_c(original, item.source, item.sample)
                        if reverse is None:
                            warn(f"{item.task}: the suite's kernels are not right here, so there is no pair into CUDA")
                        else:
                            append_rows([reverse], output)
        except BudgetExhausted as error:
            warn(f"stopped: {error}")
    right = [item for item in made if item.evaluation.verdict is Verdict.OK]
    if timed and (untimed := sorted({item.task for item in right if item.evaluation.performance is None})):
        warn(f"not timed, for the full size was not compared: {', '.join(untimed)}")
    print_view(scores(made, tasks), translation_lines, as_json=as_json)
