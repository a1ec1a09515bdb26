"""``kernelforge tasks``: list, show, check, audit and import tasks; score Testers on them."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kernelforge.cli.support.options import (
    DEFAULT_RESULTS,
    AllOption,
    BaseUrlOption,
    DollarsOption,
    JobsOption,
    JsonOption,
    LLMOption,
    OnlyOption,
    PricesOption,
    ResultsOption,
    SuiteArgument,
    TimeoutOption,
    TokensOption,
    UnconfinedOption,
    begin_rows,
    budget_of,
    check_coder,
    console,
    llm_settings,
    open_store,
    oracle_zygote,
    print_broken,
    print_json,
    print_view,
    select_tasks,
    task_reference,
)

if TYPE_CHECKING:
    from kernelforge.evaluation.oracle.client import AdmissionResult
    from kernelforge.records import Task
    from kernelforge.report.views.suite import AdmissionRow, TaskDetail


app = typer.Typer(help="List, show, check and audit tasks.", no_args_is_help=True, rich_markup_mode=None)


@app.command("list")
def list_tasks(suite: SuiteArgument = "core", as_json: JsonOption = False) -> None:
    """List the tasks of a suite."""
    from kernelforge.report.tables.run import suite_table
    from kernelforge.report.views.suite import suite_view
    from kernelforge.tasks import load_suite

    loaded = load_suite(suite)
    view = suite_view(loaded.name, loaded.title, loaded.description, loaded.digest, loaded.tasks)
    print_view(view, lambda view: suite_table(view).to_rich(), as_json=as_json)


@app.command("suites")
def list_all_suites(as_json: JsonOption = False) -> None:
    """List the suites that ship with KernelForge."""
    from kernelforge.report.tables.run import suites_table
    from kernelforge.report.views.suite import suites_view
    from kernelforge.tasks import list_suites, load_suite

    view = suites_view(load_suite(name) for name in list_suites())
    print_view(view, lambda view: suites_table(view).to_rich(), as_json=as_json)


@app.command("show")
def show(
    task: Annotated[
        str, typer.Argument(metavar="TASK", help="NAME in suite core, SUITE/NAME, or the path of a task file.")
    ],
    facts: Annotated[
        bool,
        typer.Option("--facts/--no-facts", help="Run the reference, confined, for shapes, weights, bytes and flops."),
    ] = True,
    allow_unconfined: UnconfinedOption = False,
    as_json: JsonOption = False,
    results: ResultsOption = DEFAULT_RESULTS,
) -> None:
    """Show a task: its source, sizes, weights, attributes, and facts from running it in the oracle.

    Where replies with reasoning are kept in the results folder, also its difficulty by their length.
    """
    from kernelforge.report.views.suite import is_gpu_bound, task_detail
    from kernelforge.store import DATABASE_NAME
    from kernelforge.tasks import load_task

    loaded = load_task(task_reference(task))
    oracle_facts, trace, sweep, batch = None, None, [], None
    if facts:
        from kernelforge.errors import SandboxError, TaskError
        from kernelforge.evaluation.batch_sweep import batch_constant, batch_sweep
        from kernelforge.evaluation.oracle.client import Oracle

        with oracle_zygote(allow_unconfined) as zygote, Oracle(zygote, loaded) as oracle:
            oracle_facts = oracle.facts()
            with suppress(TaskError, SandboxError):  # too many operators, or none that can be traced
                trace = oracle.operators()
                if batch := batch_constant(loaded, oracle_facts):
                    full = oracle_facts.at("full")
                    sweep = list(batch_sweep(partial(Oracle, zygote), loaded, full, batch, is_gpu_bound))
    reasoning, measured = [], []
    if (results / DATABASE_NAME).exists():
        with open_store(results, read_only=True) as store:
            reasoning = store.reasoning(loaded.digest)
            measured = store.launch_queues(loaded.digest)
    label = batch.label if batch else None
    detail = task_detail(loaded, oracle_facts, trace, reasoning, sweep, measured, label)
    if as_json:
        print_json(detail)
    else:
        _print_detail(detail)


@app.command("check")
def check(
    suite: SuiteArgument = "core",
    task: OnlyOption = None,
    every: AllOption = False,
    jobs: JobsOption = 1,
    timeout: Annotated[
        float | None,
        typer.Option("--timeout", metavar="SECONDS", min=1, help="Longest wait for any answer of a reference."),
    ] = None,
    allow_unconfined: UnconfinedOption = False,
    as_json: JsonOption = False,
) -> None:
    """Check that tasks can be judged: torch passes, trivial answers fail. Leaves with 1 if one cannot."""
    from kernelforge.evaluation.oracle.client import Oracle
    from kernelforge.evaluation.suite_checks import ANSWER_CPU_S, FIRST_ANSWERS_S, LATER_ANSWERS_S, check_suite
    from kernelforge.report.terminal import admission_line
    from kernelforge.report.views.suite import admission_view

    selection = select_tasks(suite, task, every)
    print_broken(selection)
    out = console()
    findings: list[AdmissionRow] = []
    names = [_name(checked, every) for _, checked in selection.tasks]
    with oracle_zygote(allow_unconfined) as zygote:
        admissions = check_suite(
            [checked for _, checked in selection.tasks],
            lambda checked: Oracle(
                zygote,
                checked,
                reply_s=timeout or FIRST_ANSWERS_S,
                answer_cpu_s=ANSWER_CPU_S if timeout is None else None,
            ),
            jobs=jobs,
            then_s=timeout or LATER_ANSWERS_S,
        )
        for name, admission in zip(names, admissions, strict=True):
            rows = _rows(replace(admission, task=name))
            findings += rows
            if not as_json:
                out.print(admission_line(name, rows), soft_wrap=True)
    view = admission_view("all" if every else Path(suite).stem, names, findings)
    if as_json:
        print_json(view)
    else:
        verdict = "all can be judged" if view.ok else f"not admitted: {', '.join(view.refused)}"
        out.print(f"{view.tasks} tasks checked, {verdict}")
    raise typer.Exit(0 if view.ok and not selection.broken else 1)


def _name(task: Task, every: bool) -> str:
    """Name of a task, with its suite if several suites are checked."""
    return f"{task.suite}/{task.name}" if every else task.name


def _rows(admission: AdmissionResult) -> list[AdmissionRow]:
    """Findings of one task; a reference that does not run is one finding without a size."""
    from kernelforge.report.views.suite import AdmissionRow

    if admission.error:
        return [
            AdmissionRow(task=admission.task, size=None, family=None, ok=False, admitted=False, text=admission.error)
        ]
    return [AdmissionRow(task=admission.task, **dict(finding)) for finding in admission.findings]


def _print_detail(detail: TaskDetail) -> None:
    from rich.text import Text

    from kernelforge.report.formatting import one_line, printable
    from kernelforge.report.tables.run import attribute_table, baseline_table, floor_table, launch_table, weight_table
    from kernelforge.report.tables.task import size_table
    from kernelforge.report.views.task import task_sizes

    task, out = detail.task, console()
    out.print(Text(f"{task.suite}/{task.name}: {one_line(task.title)}", style="bold"))
    out.print(one_line(f"level {task.level}, tags {', '.join(task.tags) or 'none'}, digest {detail.digest}"))
    policy = {name: value for name, value in task.policy.model_dump(mode="json").items() if value not in ([], None)}
    if detail.difficulty is not None:
        out.print(one_line(f"difficulty: {detail.difficulty.text}"))
    out.print(one_line("policy: " + ", ".join(f"{name} = {value}" for name, value in policy.items())))
    out.print()
    if task.c_source:
        out.print(Text(printable(task.c_source)))
        out.print(Text("A Coder is shown the C function above; this is the reference that judges it:\n", style="bold"))
    out.print(Text(printable(task.source)))
    out.print(size_table(task_sizes(detail.task, detail.facts)).to_rich())
    if detail.facts:
        out.print(floor_table(detail).to_rich())
        if detail.baselines:
            out.print(baseline_table(detail).to_rich())
        if detail.launches:
            out.print(launch_table(detail).to_rich())
        full = detail.facts.at("full")
        if full.weights:
            out.print(weight_table(full).to_rich())
        if full.attrs:
            out.print(attribute_table(full).to_rich())


MostOption = Annotated[
    int, typer.Option("--most", metavar="N", min=1, help="Mutants of each task, spread over the kinds of faults.")
]


@app.command("audit")
def audit(
    suite: SuiteArgument = "core",
    task: OnlyOption = None,
    every: AllOption = False,
    jobs: JobsOption = 1,
    most: MostOption = 60,
    threshold: Annotated[
        float, typer.Option("--threshold", metavar="SHARE", min=0, max=1, help="Leave with 1 below this kill rate.")
    ] = 0.97,
    survivors: Annotated[
        bool, typer.Option("--survivors", help="Print survivors, stale arguments and errors alone.")
    ] = False,
    timeout: TimeoutOption = 60.0,
    allow_unconfined: UnconfinedOption = False,
    as_json: JsonOption = False,
) -> None:
    """Put faults into references, one at a time: the check must reject each. Leaves with 1 if too many pass."""
    from kernelforge.evaluation.audit.equivalents import stale_arguments, suite_arguments
    from kernelforge.evaluation.oracle.client import Oracle
    from kernelforge.evaluation.suite_checks import AuditJob, audit_tasks
    from kernelforge.report.tables.run import audit_suite_table, fault_table
    from kernelforge.report.terminal.audit import audit_lines, audit_verdict
    from kernelforge.report.views.audit import AuditRow, audit_row, audit_view

    selection = select_tasks(suite, task, every)
    print_broken(selection)
    arguments = {where: suite_arguments(where) for where in selection.suites}
    work = [AuditJob(checked, tuple(arguments[where].of(checked.name))) for where, checked in selection.tasks]
    out = console()
    rows: list[AuditRow] = []
    with oracle_zygote(allow_unconfined) as zygote:
        audits = audit_tasks(work, lambda checked: Oracle(zygote, checked, reply_s=timeout), most=most, at_once=jobs)
        for (where, checked), audited in zip(selection.tasks, audits, strict=True):
            suite_args = arguments[where]
            stale = [] if audited.same_as else stale_arguments(audited, suite_args)
            rows.append(audit_row(checked.suite, audited, suite_args.of(checked.name), stale))
            if not as_json and not rows[-1].same_as:
                out.print(audit_lines(rows[-1], survivors_only=survivors), soft_wrap=True)
    view = audit_view(rows, threshold)
    if as_json:
        print_json(view)
    else:
        if not survivors:
            out.print(fault_table(view).to_rich())
            out.print(audit_suite_table(view).to_rich())
        out.print(audit_verdict(view))
    raise typer.Exit(0 if view.ok and not selection.broken else 1)


@app.command("score-tester")
def score_tester(
    suite: SuiteArgument = "core",
    task: OnlyOption = None,
    every: AllOption = False,
    tester: Annotated[
        str, typer.Option("--tester", metavar="AGENT", help="Agent that proposes test inputs: builtin, or a model.")
    ] = "builtin",
    jobs: JobsOption = 1,
    most: MostOption = 60,
    base_url: BaseUrlOption = None,
    llm: LLMOption = None,
    prices: PricesOption = None,
    tokens: TokensOption = None,
    dollars: DollarsOption = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="Write prompts, replies and scores there, for training."),
    ] = None,
    timeout: TimeoutOption = 60.0,
    allow_unconfined: UnconfinedOption = False,
    as_json: JsonOption = False,
) -> None:
    """Score a Tester: the share of faults that its inputs show, of those that the tasks' own inputs do not.

    Leaves with 1 if a task could not be scored.
    """
    import threading
    from contextlib import closing

    from kernelforge.agents import BUILTIN
    from kernelforge.agents.tester import TesterScore
    from kernelforge.agents.tester import score_tester as score
    from kernelforge.cli.run import stopping
    from kernelforge.datasets.training import scored_tests
    from kernelforge.devices import make_device
    from kernelforge.errors import KernelForgeError
    from kernelforge.evaluation.oracle.client import Oracle
    from kernelforge.evaluation.suite_checks import parallel_map
    from kernelforge.llm.providers import Providers
    from kernelforge.report.terminal.audit import tester_lines, tester_verdict
    from kernelforge.report.views.audit import TesterRow, tester_row, tester_view
    from kernelforge.run.budget import RunBudget, StopSignal
    from kernelforge.run.proposals import make_tester
    from kernelforge.run.task_loop import make_oracle_context
    from kernelforge.utils.json_lines import append_rows

    selection = select_tasks(suite, task, every)
    print_broken(selection)
    stop = StopSignal()
    budget = RunBudget(budget_of(None, None, None, tokens, dollars, None), stop=stop)
    out, rows, writing = console(), list[TesterRow](), threading.Lock()
    with (
        closing(Providers(llm_settings(llm, base_url, prices, "keep"), stopped=budget.out_of_time)) as providers,
        stopping(stop),
    ):
        if tester != BUILTIN:
            check_coder(providers, tester, dollars)
        if output is not None:
            begin_rows(output)
        # It is described in prompts, and not started.
        with oracle_zygote(allow_unconfined) as zygote, closing(make_device("emulated")) as device:

            def scored(selected: Task) -> TesterRow:
                meter = budget.task()
                try:
                    meter.check()
                    with Oracle(zygote, selected, reply_s=timeout) as oracle:
                        context = make_oracle_context(selected, oracle.facts(), oracle, device)
                        result, messages = score(context, make_tester(tester, providers, meter), oracle, most)
                except KernelForgeError as error:
                    return tester_row(selected.suite, selected.name, TesterScore((), ()), str(error))
                row = scored_tests(selected, result, messages)
                if output is not None and row is not None:
                    with writing:
                        append_rows([row], output)
                return tester_row(selected.suite, selected.name, result, "")

            for row in parallel_map(scored, [selected for _, selected in selection.tasks], jobs):
                rows.append(row)
                if not as_json:
                    out.print(tester_lines(row), soft_wrap=True)
    view = tester_view(tester, rows)
    if as_json:
        print_json(view)
    else:
        out.print(tester_verdict(view), soft_wrap=True)
    raise typer.Exit(0 if view.ok and not selection.broken else 1)
