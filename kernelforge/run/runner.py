"""A whole run: tasks in parallel, one store, one budget, one way to stop."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime

from kernelforge.agents.base import TaskContext
from kernelforge.errors import DeviceError, KernelForgeError, StoreError, UsageError
from kernelforge.evaluation.pool import EvaluatorPool
from kernelforge.llm.providers import Providers
from kernelforge.records import Attempt, Message, Run, RunConfig, RunState, Task
from kernelforge.run.budget import RunBudget, TaskBudget
from kernelforge.run.config import cores, new_run
from kernelforge.run.events import Event, Observer, StopSignal
from kernelforge.run.proposals import AgentReply, TaskAgents
from kernelforge.run.submissions import refuse_external
from kernelforge.run.task_loop import TaskLoop, make_task_context
from kernelforge.store import Store
from kernelforge.tasks import load_suite
from kernelforge.utils.shell_hints import results_option, shell_command

_Job = Callable[[Task], bool]
_Report = Callable[[Event], None]


def start_run(config: RunConfig, store: Store, observer: Observer, stop: StopSignal) -> Run:
    """Start a run and work on it until it is finished, out of budget, or asked to stop."""
    run, tasks = new_run(config), _load_tasks(config)
    with store.lock_run(run.id):  # first: a stored run without a lock counts as interrupted
        store.start_run(run)
        return _work(run, tasks, store, observer, stop)


def resume_run(run_id: str, store: Store, observer: Observer, stop: StopSignal) -> Run:
    """Go on with a run that was stopped or killed, exactly where its journal ends.

    Raises:
        UsageError: there is no such run, it is finished, its candidates came from outside, or its suite has changed.
    """
    run = store.run(run_id)
    refuse_external(run, store)
    with store.lock_run(run.id):
        run = store.run(run.id)  # as its last process left it
        if run.state is RunState.FINISHED:
            see = shell_command("show", run.id, results=results_option(store.path.parent))
            raise UsageError(f"run {run.id} is finished; see `{see}`")
        return _work(run, _load_tasks(run.config), store, observer, stop)


def extend_budget(run: Run, limits: Mapping[str, float], store: Store) -> RunConfig:
    """Replace limits of a run that is to go on; gives back its configuration as it is then.

    Args:
        limits: fields of :class:`~kernelforge.records.Budget` with their new values; empty changes nothing.

    Raises:
        UsageError: the run is finished, or its candidates came from outside.
        StoreError: another process works on the run, under its present limits.
    """
    refuse_external(run, store)
    if not limits:
        return run.config
    if run.state is RunState.FINISHED:
        raise UsageError(
            f"run {run.id} is finished: no budget of the run ended it, so a larger one changes nothing; "
            "rounds and limits per task are set when a run starts, so start a new one for more"
        )
    budget = run.config.budget.model_copy(update=limits)
    config = run.config.model_copy(update={"budget": budget})
    with store.lock_run(run.id):
        store.update_config(run.id, config)
    return config


def _load_tasks(config: RunConfig) -> list[Task]:
    suite = load_suite(config.suite)
    if suite.digest != config.suite_digest:
        raise UsageError(
            f"suite {config.suite!r} has changed since this run started (digest {suite.digest}, "
            f"was {config.suite_digest}); results would not be comparable, so start a new run"
        )
    by_name = {task.name: task for task in suite.tasks}
    return [by_name[name] for name in config.tasks]


def task_contexts(config: RunConfig) -> list[TaskContext]:
    """The task contexts of a run. Runs the references; calls no agent and stores nothing.

    Raises:
        TaskError: a reference does not run.
    """
    contexts = []
    with EvaluatorPool(config.device, threads=cores(), allow_unconfined=config.allow_unconfined) as pool:
        for task in _load_tasks(config):
            evaluator = pool.evaluator(task)
            with closing(evaluator.oracle):
                contexts.append(make_task_context(evaluator))
    return contexts


def _work(run: Run, tasks: list[Task], store: Store, observer: Observer, stop: StopSignal) -> Run:
    """Work on a run that this process holds."""
    config = run.config
    store.update_run(run.id, RunState.RUNNING, None)
    past = store.attempts(run.id)
    finished = store.finished_tasks(run.id)
    budget = RunBudget(config.budget, stop=stop)
    budgets = {task.name: _make_task_budget(budget, run, task, past, store) for task in tasks}
    threads = max(1, cores() // config.jobs)
    lock = threading.Lock()

    def report(event: Event) -> None:
        with lock:
            observer.on_event(replace(event, spent=budget.totals()))

    report(Event("run_started", message=run.id, past=tuple(past), finished=tuple(finished)))
    providers = Providers(config.llm, stopped=budget.out_of_time, aborted=lambda: stop.aborting)
    for task in tasks:
        providers.recall(task.name, _messages(run, task, past, store))
    try:
        with (
            closing(providers),
            EvaluatorPool(
                config.device,
                threads=threads,
                measure=config.measure,
                allow_unconfined=config.allow_unconfined,
                tell=lambda message: report(Event("warning", message=message)),
            ) as pool,
        ):

            def work_on(task: Task) -> bool:
                task_budget = budgets[task.name]
                own_attempts = [attempt for attempt in past if attempt.task == task.name]
                agents = TaskAgents.of(config, providers, task_budget)
                return TaskLoop(run, task, own_attempts, pool, store, agents, task_budget, report).work()

            todo = [task for task in tasks if task.name not in finished]
            complete, problem = _run_all(work_on, todo, config.jobs, stop, report)
    except DeviceError as error:
        complete, problem = False, error  # no device could be opened
    state = RunState.FINISHED if complete else RunState.STOPPED
    ended = datetime.now(UTC).isoformat(timespec="seconds")
    store.update_run(run.id, state, ended)
    report(Event("run_finished", message=state.value))
    if problem is not None:
        raise problem
    return run.model_copy(update={"state": state, "ended": ended})


def _make_task_budget(budget: RunBudget, run: Run, task: Task, past: list[Attempt], store: Store) -> TaskBudget:
    """A task's part of the budget, charged with all that the journal says was done for it."""
    made = sum(attempt.task == task.name for attempt in past)
    return budget.task(made, _all_messages(run, task, past, store))


def _all_messages(run: Run, task: Task, past: list[Attempt], store: Store) -> list[Message]:
    """All that the journal holds of what was asked and answered about a task."""
    return _messages(run, task, past, store) + list(store.task_messages(run.id, task.name))


def _messages(run: Run, task: Task, past: list[Attempt], store: Store) -> list[Message]:
    """Messages of steps that will not be asked again: those of attempts and of drafts."""
    messages = [message for attempt in past if attempt.task == task.name for message in attempt.messages]
    for draft in store.drafts(run.id, task.name):
        messages += AgentReply.model_validate_json(draft.content).messages
    return messages


def _run_all(
    work_on: _Job, tasks: list[Task], jobs: int, stop: StopSignal, report: _Report
) -> tuple[bool, Exception | None]:
    """Work on all tasks; gives back whether all are finished, and the first problem that was not a task's own.

    A task that cannot be worked on is reported and left. A dead journal, or that no device is left, ends the run in
    good order. Anything else unexpected is a bug of ours: the other tasks go on, and it is raised when they are done.
    """
    complete, problem = True, None
    pool = ThreadPoolExecutor(max_workers=max(jobs, 1), thread_name_prefix="task")
    pending: dict[Future[bool], Task] = {pool.submit(work_on, task): task for task in tasks}
    try:
        while pending:
            done, _ = wait(pending, timeout=0.2, return_when=FIRST_COMPLETED)
            for future in done:
                task = pending.pop(future)
                error = future.exception()
                complete = complete and error is None and future.result()
                if error is None:
                    continue
                if not isinstance(error, DeviceError):  # the same for all tasks: reported once, when it is raised
                    report(Event("warning", task=task.name, message=str(error) or type(error).__name__, failed=True))
                if isinstance(error, StoreError | DeviceError):
                    stop.drain()
                if isinstance(error, StoreError | DeviceError) or not isinstance(error, KernelForgeError):
                    if not isinstance(error, Exception):
                        raise error
                    problem = problem or error
            if stop.aborting:
                return False, problem
    finally:
        pool.shutdown(wait=not stop.aborting, cancel_futures=True)
    return complete, problem
