"""``kernelforge study``: studies of what a model can write."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kernelforge.cli.support.options import (
    BaseUrlOption,
    DeviceOption,
    DocumentOption,
    DollarsOption,
    Form,
    FormOption,
    JsonOption,
    LLMOption,
    PricesOption,
    SeedOption,
    TokensOption,
    UnconfinedOption,
    budget_of,
    check_coder,
    chosen_form,
    console,
    default_device,
    llm_settings,
    measure_settings,
    warn,
    write_rows,
    write_view,
)
from kernelforge.errors import BudgetExhausted, UsageError

if TYPE_CHECKING:
    from kernelforge.llm.providers import Providers
    from kernelforge.study.codex import StudyEstimate, Suggestion

app = typer.Typer(no_args_is_help=True, help="Studies of what a model can write.")

JOURNAL = Path("codex-study.jsonl")


@app.callback()
def _group() -> None:
    """Studies of what a model can write."""


@app.command("codex", short_help="Score suggestions to bare prompts.")
def codex(
    coder: Annotated[
        str, typer.Option("--coder", metavar="AGENT", help="Who writes: a provider, such as openai:MODEL.")
    ],
    kernel: Annotated[
        list[str] | None,
        typer.Option("--kernel", metavar="NAME", help="Only this kernel; repeat for more. All six if left out."),
    ] = None,
    model: Annotated[
        list[str] | None,
        typer.Option("--model", metavar="NAME", help="Programming model, such as openmp or thrust; repeat for more."),
    ] = None,
    hint: Annotated[
        list[str] | None,
        typer.Option("--hint", metavar="WORD", help="Keyword behind the prompt, or none; repeat for more."),
    ] = None,
    suggestions: Annotated[int, typer.Option("--suggestions", min=1, help="Suggestions to each prompt.")] = 10,
    journal: Annotated[
        Path, typer.Option("--journal", metavar="FILE", help="Every suggestion, as JSON lines; goes on with it.")
    ] = JOURNAL,
    device: DeviceOption = None,
    seed: SeedOption = None,
    base_url: BaseUrlOption = None,
    llm: LLMOption = None,
    prices: PricesOption = None,
    tokens: TokensOption = None,
    dollars: DollarsOption = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Estimate calls, tokens and dollars; leave.")] = False,
    form: FormOption = Form.TERMINAL,
    output: DocumentOption = None,
    allow_unconfined: UnconfinedOption = False,
    as_json: JsonOption = False,
) -> None:
    """Ask for suggestions to bare prompts, judge each, and print the proficiency scores of arXiv 2306.15121.

    A study that was stopped goes on with what its journal has; nothing is asked for twice.
    """
    import secrets
    from contextlib import closing

    from kernelforge.agents import BUILTIN
    from kernelforge.cli.run import stopping
    from kernelforge.llm.providers import Providers
    from kernelforge.llm.spec import is_hosted
    from kernelforge.report.formatting import one_line
    from kernelforge.report.terminal.study import study_csv, study_lines, study_markdown
    from kernelforge.run.budget import RunBudget, StopSignal
    from kernelforge.study.codex import StudyJudge, estimate_study, require_tools, study_prompts, study_scores, suggest
    from kernelforge.study.kernels import KERNELS
    from kernelforge.utils.json_lines import append_rows

    output_form = chosen_form(form, as_json=as_json, output=output)
    if coder == BUILTIN:
        raise UsageError("the built-in Coder answers no bare prompt: name a model with --coder, or exchange:FOLDER")
    hints = ["" if word == "none" else word for word in hint or ("none", "function")]
    prompts = study_prompts(kernel or list(KERNELS), model or ["cuda"], hints)
    stop = StopSignal()
    budget = RunBudget(budget_of(None, None, None, tokens, dollars, None), stop=stop)
    settings = llm_settings(llm, base_url, prices, "keep")
    rows = {(row.prompt, row.position): row for row in _read(journal, coder)}
    earlier = [row for (prompt, at), row in rows.items() if prompt in prompts and at < suggestions]
    with closing(Providers(settings, stopped=budget.out_of_time)) as providers:
        if dry_run:
            if not is_hosted(coder):  # an estimate needs no key
                providers.check(coder)
            _print_estimate(estimate_study(prompts, suggestions, earlier), coder, providers)
            return
        require_tools([prompt.model for prompt in prompts])
        check_coder(providers, coder, dollars)
        write_rows(rows.values(), journal)  # a file that cannot be written costs no call
        for row in rows.values():
            providers.recall(row.prompt.task, row.messages)
        meter = budget.task(messages=[message for row in rows.values() for message in row.messages])
        measuring = measure_settings(None, None, False, None)
        where = device or default_device(opens=True, measure=measuring, allow_unconfined=allow_unconfined)
        err, number = console(stderr=True), secrets.randbits(63) if seed is None else seed
        try:
            with stopping(stop), StudyJudge(where, seed=number, allow_unconfined=allow_unconfined, tell=warn) as judge:
                for row in suggest(
                    prompts,
                    providers.answerer(coder, meter),
                    judge,
                    suggestions=suggestions,
                    earlier=earlier,
                    at_once=settings.concurrency if is_hosted(coder) else 1,
                ):
                    rows[row.prompt, row.position] = row
                    append_rows([row], journal)
                    line = f"{row.prompt.text} {row.position + 1}/{suggestions}: {row.verdict} {row.form or row.reason}"
                    err.print(one_line(line[:200]))
        except BudgetExhausted as error:
            warn(f"stopped: {error}; the same command goes on with {journal}")
    made = [row for (prompt, at), row in rows.items() if prompt in prompts and at < suggestions]
    scores = study_scores(prompts, made, suggestions)
    write_view(scores, output_form, output, markdown=study_markdown, csv=study_csv, terminal=study_lines)


def _read(journal: Path, coder: str) -> list[Suggestion]:
    """Suggestions of an earlier study, without a last line that a crash cut short.

    Raises:
        UsageError: the file is no journal of a study, or one of another coder.
    """
    from pydantic import ValidationError

    from kernelforge.records import first_fault
    from kernelforge.study.codex import Suggestion

    if not journal.exists():
        return []
    rows = []
    *lines, cut = journal.read_bytes().split(b"\n")
    for number, line in enumerate([*lines, cut] if cut else lines, 1):
        try:
            row = Suggestion.model_validate_json(line)
        except ValidationError as error:
            begun = number > 1 or line.startswith(b'{"kernel"')  # a file of something else is never overwritten
            if number > len(lines) and begun and error.errors()[0]["type"] == "json_invalid":
                break
            fault = first_fault(error)
            raise UsageError(
                f"{journal}, line {number} is no suggestion ({fault}); name another file with --journal"
            ) from error
        if row.coder != coder:
            raise UsageError(f"{journal} has suggestions of {row.coder!r}; name another file with --journal")
        rows.append(row)
    return rows


def _print_estimate(estimate: StudyEstimate, coder: str, providers: Providers) -> None:
    from kernelforge.records import Usage
    from kernelforge.report.formatting import format_dollars

    usage = Usage(
        model=coder,
        input_tokens=estimate.input_tokens,
        output_tokens=estimate.output_tokens,
        seconds=0.0,
        batch=providers.settings.batch,
    )
    dollars = providers.dollars(coder, usage)
    price = "unknown: no price (see --prices)" if dollars is None else format_dollars(dollars)
    console().print(
        f"{estimate.calls:,} calls of {coder}: {estimate.input_tokens:,} tokens in, {estimate.output_tokens:,} out "
        f"({estimate.basis} a reply), dollars {price}"
    )
