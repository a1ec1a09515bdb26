"""``kernelforge run`` and ``kernelforge resume``."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Iterator
from enum import StrEnum
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer

from kernelforge.cli.support.options import (
    DEFAULT_RESULTS,
    PATTERNS,
    Approximations,
    ApproxOption,
    BaseUrlOption,
    DeviceOption,
    DollarsOption,
    LLMOption,
    MeasureOption,
    PricesOption,
    ProtocolOption,
    ResultsOption,
    RuntimeOption,
    SanitizerOption,
    ScreenOption,
    TokensOption,
    UnconfinedOption,
    budget_of,
    console,
    default_device,
    llm_settings,
    measure_settings,
    open_store,
    strategy_settings,
)
from kernelforge.errors import KernelForgeError, UsageError
from kernelforge.utils.shell_hints import results_option, shell_command

if TYPE_CHECKING:
    from kernelforge.records import Run, RunConfig
    from kernelforge.report import RunRecords
    from kernelforge.run import Observer, StopSignal
    from kernelforge.store import Store

    Work = Callable[[Observer, StopSignal], Run]
    from kernelforge.records import Attempt


class Memory(StrEnum):
    """Values of ``--memory``."""

    OFF = "off"
    RUN = "run"
    RESULTS = "results"


class Allocation(StrEnum):
    """Values of ``--allocate``."""

    EVEN = "even"
    HEADROOM = "headroom"


class LanguageOption(StrEnum):
    """Values of ``--language``."""

    CUDA = "cuda"
    TRITON = "triton"
    ANY = "any"


class Reasoning(StrEnum):
    """Values of ``--reasoning``."""

    KEEP = "keep"
    OFF = "off"


class Display(StrEnum):
    """Values of ``--display``."""

    AUTO = "auto"
    FULL = "full"
    PLAIN = "plain"
    JSON = "json"
    NONE = "none"


DisplayOption = Annotated[
    Display,
    typer.Option("--display", help="Progress output: a live screen, lines, JSON lines, or warnings only."),
]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="The same as --display none.")]

ABORTED = 130
"""Exit code after an abort: 128 + SIGINT."""

_DRAINING = "\nstopping: the attempts in flight are being finished; Ctrl-C again to abort them\n"
_ABORTING = "\naborting: the attempts in flight are dropped; 'kernelforge resume' makes them again\n"

_NOT_READ = (
    "note: the built-in Coder writes its own kernels and does not read the start; "
    "a model revises it: --coder openai:MODEL"
)

EvaluationsOption = Annotated[
    int | None, typer.Option("--evaluations", min=1, help="At most this many evaluations in the whole run.")
]
WallOption = Annotated[float | None, typer.Option("--wall-minutes", help="Start no attempt after this many minutes.")]


def run(
    suite: Annotated[
        str | None,
        typer.Option("--suite", metavar="SUITE", help="A shipped suite, or a folder; core, or core-large on a GPU."),
    ] = None,
    task: Annotated[
        list[str] | None,
        typer.Option("--task", "--select", metavar="NAME", help=f"Only {PATTERNS}; repeat for more."),
    ] = None,
    start: Annotated[
        list[str] | None,
        typer.Option(
            "--from",
            metavar="[TASK=]FILE",
            help="Begin with this kernel: a reply, .cu, Triton, ModelNew, or an attempt; repeat for more.",
        ),
    ] = None,
    device: DeviceOption = None,
    strategy: Annotated[
        str, typer.Option("--strategy", metavar="NAME", help="What picks the next step; see 'kernelforge strategies'.")
    ] = "refine",
    option: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="An option of the strategy; repeat for more."),
    ] = None,
    metrics: Annotated[
        str | None,
        typer.Option(
            "--metrics",
            metavar="WHAT",
            help="What the agents see of profiles: none, subset, full, or a file of 'select-metrics'.",
        ),
    ] = None,
    coder: Annotated[
        list[str] | None,
        typer.Option("--coder", metavar="AGENT", help="What writes candidates; repeat for several that take turns."),
    ] = None,
    judge: Annotated[
        str,
        typer.Option(
            "--judge", metavar="AGENT", help="Agent that diagnoses each attempt and names the next fix or optimisation."
        ),
    ] = "builtin",
    tester: Annotated[
        str | None,
        typer.Option("--tester", metavar="AGENT", help="Agent that proposes further test inputs; none if left out."),
    ] = None,
    base_url: BaseUrlOption = None,
    llm: LLMOption = None,
    prices: PricesOption = None,
    reasoning: Annotated[
        Reasoning, typer.Option("--reasoning", help="Whether to keep what models show of their reasoning.")
    ] = Reasoning.KEEP,
    memory: Annotated[
        Memory, typer.Option("--memory", help="Whose lessons the agents are shown: those of this run, of all, or none.")
    ] = Memory.RUN,
    runtime: RuntimeOption = None,
    protocol: ProtocolOption = None,
    sanitizer: SanitizerOption = False,
    screen: ScreenOption = True,
    measure: MeasureOption = None,
    measure_top: Annotated[
        int | None,
        typer.Option("--measure-top", metavar="K", min=1, help="On a GPU: measure the K of a round predicted fastest."),
    ] = None,
    approx: ApproxOption = Approximations.VARIED,
    language: Annotated[
        LanguageOption, typer.Option("--language", help="What kernels are written in; triton needs the extra triton.")
    ] = LanguageOption.CUDA,
    tune: Annotated[bool, typer.Option("--tune/--no-tune", help="Search '# tune:' combinations.")] = True,
    reward: Annotated[str | None, typer.Option("--reward", metavar="POLICY", help="Reward policy and version.")] = None,
    rounds: Annotated[
        int | None, typer.Option("--rounds", min=1, help="At most this many attempts per task, the seed included.")
    ] = None,
    evaluations: EvaluationsOption = None,
    tokens: TokensOption = None,
    dollars: DollarsOption = None,
    wall_minutes: WallOption = None,
    per_task: Annotated[
        list[str] | None,
        typer.Option("--per-task", metavar="NAME=VALUE", help="A limit for each task, such as dollars=0.30."),
    ] = None,
    stop_after: Annotated[
        int | None, typer.Option("--stop-after", min=1, help="End a task after this many rounds without a new best.")
    ] = None,
    stop_gain: Annotated[
        float, typer.Option("--stop-gain", metavar="SHARE", help="What is faster by less counts there as no new best.")
    ] = 0.0,
    cascade: Annotated[
        int | None,
        typer.Option("--cascade", metavar="N", min=1, help="Hand on to the next Coder after N rounds without a best."),
    ] = None,
    allocate: Annotated[
        Allocation,
        typer.Option("--allocate", help="Who gets the rounds that tasks leave: none, or those with most headroom."),
    ] = Allocation.EVEN,
    jobs: Annotated[
        int | None, typer.Option("--jobs", min=1, help="Tasks worked on at a time; as many as cores if left out.")
    ] = None,
    seed: Annotated[int | None, typer.Option("--seed", min=0, help="Seed of the run; a fresh one if left out.")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Estimate calls, tokens, dollars, measurements; leave.")
    ] = False,
    allow_unconfined: UnconfinedOption = False,
    display: DisplayOption = Display.AUTO,
    quiet: QuietOption = False,
    results: ResultsOption = DEFAULT_RESULTS,
) -> None:
    """Write, build, check, profile and improve kernels for the tasks of a suite, and journal every attempt.

    Ctrl-C finishes the attempts in flight and stops; twice aborts them. 'kernelforge resume' goes on.
    """
    display_kind = _chosen_display(display, quiet)
    budget = budget_of(rounds, evaluations, wall_minutes, tokens, dollars, per_task)
    options = strategy_settings(option, metrics)
    settings = llm_settings(llm, base_url, prices, reasoning.value)
    measuring = measure_settings(runtime, protocol, sanitizer, measure, approx=approx, screen=screen)
    from kernelforge.run import configure, start_run

    make_config = partial(
        configure,
        suite=suite,
        tasks=task or (),
        strategy=strategy,
        options=options,
        coder=coder or "builtin",
        judge=judge,
        tester=tester,
        memory=memory.value,
        language=language.value,
        tune=tune,
        llm=settings,
        measure=measuring,
        measure_top=measure_top,
        budget=budget,
        seed=seed,
        jobs=jobs,
        stop_after=stop_after,
        starts=(),
        stop_gain=stop_gain,
        cascade=cascade,
        allocate=allocate.value,
        allow_unconfined=allow_unconfined,
        keys=not dry_run,
        **({} if reward is None else {"reward": reward}),
    )
    # Check all options before a GPU is opened.
    config = make_config(device=device)
    if start:
        from kernelforge.agents import BUILTIN
        from kernelforge.run.starts import read_starts

        make_config = partial(make_config, starts=read_starts(start, config.tasks, results))
        config = make_config(device=device)
        if BUILTIN in config.coder.split(","):
            typer.echo(_NOT_READ, err=True)
    if device is None:
        usable = default_device(opens=not dry_run, measure=measuring, allow_unconfined=allow_unconfined)
        if usable != config.device:
            config = make_config(device=usable)
    if dry_run:
        print_estimate(config, results)
        return
    with open_store(results) as store:
        conduct(
            lambda observer, stop: start_run(config, store, observer, stop),
            config,
            store,
            results,
            display=display_kind,
        )


def resume(
    run: Annotated[
        str, typer.Argument(metavar="[RUN]", help="Id of a run, a unique beginning of one, or 'latest'.")
    ] = "latest",
    evaluations: EvaluationsOption = None,
    tokens: TokensOption = None,
    dollars: DollarsOption = None,
    wall_minutes: WallOption = None,
    display: DisplayOption = Display.AUTO,
    quiet: QuietOption = False,
    results: ResultsOption = DEFAULT_RESULTS,
) -> None:
    """Go on with a run that was stopped or killed, exactly where its journal ends. A new limit replaces the run's."""
    display_kind = _chosen_display(display, quiet)
    changed = budget_of(None, evaluations, wall_minutes, tokens, dollars, None).model_dump(exclude_none=True)
    changed.pop("per_task")
    with open_store(results, read_only=True) as reader:
        stored = reader.run(run)
    from kernelforge.run import extend_budget, resume_run

    with open_store(results) as store:
        config = extend_budget(stored, changed, store)
        work: Work = partial(resume_run, stored.id, store)
        conduct(work, config, store, results, display=display_kind)


def _chosen_display(display: Display, quiet: bool) -> Display:
    """The display to use, from the options and the kind of output.

    Raises:
        UsageError: they contradict each other, or the full one has no terminal.
    """
    out = console()
    if quiet and display not in (Display.AUTO, Display.NONE):
        raise UsageError(f"--quiet is --display none, so it cannot go with --display {display.value}")
    if quiet:
        return Display.NONE
    if display is Display.AUTO:
        return Display.FULL if out.is_terminal and not out.is_dumb_terminal else Display.PLAIN
    if display is Display.FULL and not out.is_terminal:
        raise UsageError("--display full needs a terminal: use --display plain, or json for programs")
    return display


def conduct(work: Work, config: RunConfig, store: Store, results: Path, *, display: Display) -> None:
    """Carry out a run with progress output and Ctrl-C handling, then print its summary.

    Args:
        work: starts or resumes the run; blocks until it ends.
        config: what the run does.
        display: any but ``auto``.
    """
    from kernelforge.cli.support.progress import progress
    from kernelforge.run import StopSignal

    stop, out, errors = StopSignal(), console(), console(stderr=True)
    try:
        with stopping(stop), progress(config, stop, store, display=display.value, out=out, errors=errors) as watched:
            done = work(watched, stop)
    except Exception:
        _print_resume_hint(store, config, results)
        raise
    if stop.aborting:
        store.close()
        typer.echo(f"aborted; go on with: {_resume(done, results)}", err=True)
        sys.stdout.flush()
        os._exit(ABORTED)  # threads of dropped attempts may still wait for children; their results are discarded
    if display is Display.JSON:
        _print_summary_line(store.run(done.id), store)
    else:
        print_summary(store.run(done.id), store)
    if watched.failed and not stop.draining:
        raise typer.Exit(1)


@contextlib.contextmanager
def stopping(stop: StopSignal) -> Iterator[None]:
    """Within the block, SIGINT and SIGTERM stop the run in good order instead of ending the process."""

    received = handled = 0

    def on_signal(number: int, frame: FrameType | None) -> None:
        nonlocal received, handled
        received += 1
        if received > handled + 1:
            return  # a signal during the handling of another: the loop below, in the other call, handles it
        while handled < received:
            _escalate(stop)
            handled += 1

    before = {number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _escalate(stop: StopSignal) -> None:
    """Take the next step: drain, abort, exit."""
    if stop.aborting:
        os._exit(ABORTED)
    if stop.draining:
        stop.abort()
        _write_stderr(_ABORTING)
    else:
        stop.drain()
        _write_stderr(_DRAINING)


def _write_stderr(text: str) -> None:
    """Write unbuffered: a signal may come while a buffer is locked."""
    os.write(sys.__stderr__.fileno() if sys.__stderr__ else 2, text.encode())


def _print_resume_hint(store: Store, config: RunConfig, results: Path) -> None:
    """After an error, print how to continue the run."""
    from kernelforge.records import RunState

    with contextlib.suppress(KernelForgeError):
        open_runs = [run for run in store.runs() if run.config == config and run.state is not RunState.FINISHED]
        if open_runs and not store.is_live(open_runs[-1].id):
            command = _resume(open_runs[-1], results)
            typer.echo(f"finished attempts are journalled; when the cause is fixed, go on with: {command}", err=True)


def _print_summary_line(run: Run, store: Store) -> None:
    from kernelforge.cli.support.progress import print_json_line
    from kernelforge.report import RunRecords, run_view

    view = run_view(RunRecords.load(store, run, texts=False))
    print_json_line({"type": "summary", "run": view.model_dump(mode="json")})


def print_summary(run: Run, store: Store) -> None:
    """Print a run's results, its board, and the next commands."""
    from rich.text import Text

    from kernelforge.report import RunRecords, leaderboard, run_view
    from kernelforge.report.terminal import leaderboard_lines, run_summary

    out, records = console(), RunRecords.load(store, run, texts=False)
    out.print()
    for line in run_summary(run_view(records)):
        out.print(line)
    out.print()
    if records.attempts:
        out.print(leaderboard_lines(leaderboard([records])))
    out.print("Next:")
    commands = _next_commands(records)
    width = max(len(line) for line, _ in commands)
    for line, purpose in commands:
        out.print(Text(f"  {line:<{width}}  {purpose}"), soft_wrap=True)


def _next_commands(records: RunRecords) -> list[tuple[str, str]]:
    from kernelforge.report.views.run_records import best_of

    run, command = records.run, partial(shell_command, results=records.results)
    commands = []
    if run.state.value != "finished":
        commands.append((command("resume", run.id), "go on with this run"))
    commands.append((command("show", run.id), "this run"))
    best = best_of(records.attempts)
    if best is not None:
        commands.append((command("show", f"{run.id}/{best.task}"), "a task's lineage"))
        commands.append((command("show", best.id), "an attempt, with its diff"))
    commands.append((command("report", run.id, options=["--open"]), "all of it as web pages"))
    commands.append((command("export", run.id, options=["--output", "attempts.jsonl"]), "every attempt as JSON lines"))
    return commands


def _resume(run: Run, results: Path) -> str:
    return shell_command("resume", run.id, results=results_option(results))


def print_estimate(config: RunConfig, results: Path) -> None:
    """Print the estimate of a run. Runs the references, but calls no agent and journals nothing."""
    from rich.table import Table

    from kernelforge.run.budget import SAMPLED_PROMPTS, estimate
    from kernelforge.run.runner import task_contexts

    estimated = estimate(config, task_contexts(config, SAMPLED_PROMPTS), _earlier(results))
    table = Table(box=None)
    for name in ("agent", "model", "calls", "tokens in", "tokens out", "dollars", "tokens a reply"):
        table.add_column(name, overflow="fold", justify="left" if name in ("agent", "model") else "right")
    for row in estimated.agents:
        dollars = "unknown" if row.dollars is None else f"${row.dollars:,.2f}"
        table.add_row(
            row.agent, row.spec, f"{row.calls:,}", f"{row.input_tokens:,}", f"{row.output_tokens:,}", dollars, row.basis
        )
    out = console()
    out.print(table)
    missing = dict.fromkeys(row.spec for row in estimated.agents if row.dollars is None)
    total = (
        f"unknown: no price for {', '.join(missing)} (see --prices)"
        if estimated.dollars is None
        else f"${estimated.dollars:,.2f}"
    )
    sample = len(config.tasks) > estimated.sampled
    bound = f"About (prompts of {estimated.sampled} tasks were measured)" if sample else "At most"
    out.print(f"\n{bound}, over {len(config.tasks)} tasks: {estimated.tokens:,} tokens, dollars {total}")
    out.print(
        f"At most {estimated.evaluations:,} evaluations (tuned children not counted), about "
        f"{estimated.evaluation_seconds:,.0f} s of one core ({estimated.evaluation_basis})"
    )
    if config.measure_top is not None:
        out.print(
            f"About {estimated.measured:,} of them measured: of each round the {config.measure_top} predicted to be "
            f"the fastest, and what has no predicted time; a task's first round has {estimated.round:,}"
        )
    for line in estimated.binding:
        out.print(f"A budget would end the run early. {line}")


def _earlier(results: Path) -> list[Attempt]:
    """All attempts of earlier runs in the folder; none if there is no database yet."""
    from kernelforge.store import DATABASE_NAME

    if not (results / DATABASE_NAME).exists():
        return []
    with contextlib.closing(open_store(results, read_only=True)) as store:
        return [attempt for run in store.runs() for attempt in store.attempts(run.id)]
