"""``kernelforge prompts``: list the prompts, and render one for a real task."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kernelforge.cli.support.options import (
    DEFAULT_RESULTS,
    DeviceOption,
    JsonOption,
    ResultsOption,
    UnconfinedOption,
    console,
    default_device,
    open_store,
    print_json,
    shown_metrics,
    task_reference,
    warn,
)
from kernelforge.errors import UsageError

if TYPE_CHECKING:
    from kernelforge.agents.prompting.examples import Case
    from kernelforge.records import Attempt, Task

app = typer.Typer(help="List and show the prompts.", no_args_is_help=True, rich_markup_mode=None)


@app.command("list")
def list_prompts(as_json: JsonOption = False) -> None:
    """List the prompts: name, agent and purpose."""
    from pydantic import RootModel
    from rich.table import Table

    from kernelforge.agents.prompts import PROMPTS

    if as_json:
        rows = [{"name": name, "agent": kind.agent, "summary": kind.summary} for name, kind in PROMPTS.items()]
        print_json(RootModel[list[dict[str, str]]](rows))
        return
    table = Table("prompt", "agent", "asks for", box=None)
    for name, kind in PROMPTS.items():
        table.add_row(name, kind.agent, kind.summary)
    console().print(table)


@app.command("show")
def show(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of a prompt, as 'prompts list' has them.")],
    task: Annotated[
        str | None,
        typer.Option("--task", metavar="TASK", help="NAME in suite core, SUITE/NAME, or the path of a task file."),
    ] = None,
    suite: Annotated[
        str | None, typer.Option("--suite", metavar="SUITE", help="The task's suite, or the path of a suite's folder.")
    ] = None,
    attempt: Annotated[
        str | None,
        typer.Option(
            "--attempt", metavar="RUN/TASK/NUMBER", help="A journalled attempt that the prompt is to be about."
        ),
    ] = None,
    device: DeviceOption = None,
    metrics: Annotated[
        str,
        typer.Option(
            "--metrics",
            metavar="WHAT",
            help="What the agent sees of profiles: none, subset, full, or a file of names.",
        ),
    ] = "full",
    latency: Annotated[
        bool, typer.Option("--latency/--no-latency", help="Whether the agent sees times and speedups.")
    ] = True,
    technique: Annotated[
        str | None, typer.Option("--technique", metavar="TEXT", help="A technique that the Coder is asked to use.")
    ] = None,
    sample: Annotated[
        int, typer.Option("--sample", min=0, help="Position among requests that are otherwise the same.")
    ] = 0,
    rank: Annotated[int, typer.Option("--rank", min=1, help="Which bottleneck the Judge is to name.")] = 1,
    count: Annotated[
        bool, typer.Option("--count", help="Print characters and an estimate of tokens instead of the prompt.")
    ] = False,
    allow_unconfined: UnconfinedOption = False,
    as_json: JsonOption = False,
    results: ResultsOption = DEFAULT_RESULTS,
) -> None:
    """Render a prompt for a task, with attempts that the built-in agents make on the spot, or a journalled one."""
    from kernelforge.agents.prompting.examples import check_name, render_case
    from kernelforge.llm.rate_limits import estimate_tokens
    from kernelforge.search.base import ProfileVisibility

    check_name(name)
    visibility = ProfileVisibility(shown_metrics(metrics), latency)
    case = _case(name, task, suite, attempt, device, results, allow_unconfined=allow_unconfined)
    prompt = render_case(name, case, technique=technique, sample=sample, rank=rank, sight=visibility)
    tokens, stable = estimate_tokens(prompt.text), estimate_tokens(prompt.text[: prompt.stable])
    if as_json:
        from pydantic import RootModel

        view = {
            "name": name, "characters": len(prompt.text), "stable_characters": prompt.stable,
            "tokens_estimate": tokens, "stable_tokens_estimate": stable, "text": prompt.text,
        }  # fmt: skip
        print_json(RootModel[dict[str, str | int]](view))
    elif count:
        console().print(
            f"{name}: {len(prompt.text):,} characters, about {tokens:,} tokens; the first {prompt.stable:,} characters "
            f"(about {stable:,} tokens) are the same for every call of the agent on the task",
            soft_wrap=True,
        )
    else:
        typer.echo(prompt.text, nl=False)


def _case(
    name: str,
    task: str | None,
    suite: str | None,
    attempt: str | None,
    device: str | None,
    results: Path,
    *,
    allow_unconfined: bool,
) -> Case:
    """Task context and attempts to render a prompt with."""
    from kernelforge.agents.prompting.examples import journalled, made_here
    from kernelforge.evaluation.remote.machines import open_pool
    from kernelforge.records import MeasureSettings
    from kernelforge.run.task_loop import make_task_context

    attempts: list[Attempt] = []
    number = 0
    if attempt is None:
        loaded = _task(task, suite)
    else:
        if task is not None or suite is not None:
            raise UsageError("--attempt names a task already; leave --task and --suite out")
        loaded, attempts, number, device = _journalled(attempt, device, results)
    if device is None:
        device = default_device(opens=True, measure=MeasureSettings(), allow_unconfined=allow_unconfined)
    with open_pool(device, allow_unconfined=allow_unconfined, tell=warn) as pool:
        evaluator = pool.evaluator(loaded)
        try:
            context = make_task_context(evaluator)
            return journalled(context, attempts, number) if attempts else made_here(name, context, evaluator)
        finally:
            evaluator.close()


def _task(task: str | None, suite: str | None) -> Task:
    from kernelforge.tasks import load_suite, load_task

    if task is None:
        raise UsageError("name a task with --task, or a journalled attempt with --attempt RUN/TASK/NUMBER")
    return load_task(task_reference(task)) if suite is None else load_suite(suite).task(task)


def _journalled(reference: str, device: str | None, results: Path) -> tuple[Task, list[Attempt], int, str]:
    with open_store(results, read_only=True) as store:
        from kernelforge.devices.remote.address import join_host
        from kernelforge.store.references import resolve, the_attempt

        named = resolve(store, reference)
        if named.task is None or named.number is None:
            raise UsageError(f"--attempt needs RUN/TASK/NUMBER, '{reference}' is none")
        the_attempt(store, named)
        task, attempts = store.task(named.run.id, named.task), store.attempts(named.run.id, named.task)
        config = named.run.config
        return task, attempts, named.number, device or join_host(config.host, config.device)
