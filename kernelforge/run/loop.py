"""A whole run: tasks side by side on the cores there are, one journal, one budget, one way to stop."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import closing
from datetime import UTC, datetime

from kernelforge.agents import make_coder, make_judge
from kernelforge.errors import KernelForgeError, StoreError, UsageError
from kernelforge.evaluate.workshop import Workshop
from kernelforge.llm.providers import Providers
from kernelforge.records import Run, RunConfig, RunState, Task
from kernelforge.run.config import cores
from kernelforge.run.events import Event, Observer, StopSignal
from kernelforge.run.spending import Spending
from kernelforge.run.task import TaskLoop
from kernelforge.store import Store
from kernelforge.tasks import load_suite
from kernelforge.version import __version__

_Job = Callable[[Task], bool]
_Report = Callable[[Event], None]


def start(config: RunConfig, store: Store, observer: Observer, stop: StopSignal) -> Run:
    """Start a run and work on it until it is finished, out of budget, or asked to stop."""
    now = datetime.now(UTC)
    run = Run(
        id=f"{now:%Y%m%d-%H%M%S}-{secrets.token_hex(2)}",
        config=config,
        state=RunState.RUNNING,
        started=now.isoformat(timespec="seconds"),
        kernelforge=__version__,
    )
    tasks = _load_tasks(config)
    store.start_run(run)
    return _work(run, tasks, store, observer, stop)


def resume(run_id: str, store: Store, observer: Observer, stop: StopSignal) -> Run:
    """Go on with a run that was stopped or killed, exactly where its journal ends.

    Raises:
        UsageError: there is no such run, it is finished, or its suite has changed since.
    """
    run = store.run(run_id)
    if run.state is RunState.FINISHED:
        raise UsageError(f"run {run.id} is finished; see `kernelforge show {run.id}`")
    return _work(run, _load_tasks(run.config), store, observer, stop)


def _load_tasks(config: RunConfig) -> list[Task]:
    suite = load_suite(config.suite)
    if suite.digest != config.suite_digest:
        raise UsageError(
            f"suite {config.suite!r} has changed since this run started (digest {suite.digest}, "
            f"was {config.suite_digest}); results would not be comparable, so start a new run"
        )
    by_name = {task.name: task for task in suite.tasks}
    return [by_name[name] for name in config.tasks]


def _work(run: Run, tasks: list[Task], store: Store, observer: Observer, stop: StopSignal) -> Run:
    config = run.config
    with store.lock_run(run.id):
        store.update_run(run.id, RunState.RUNNING, None)
        observer.on_event(Event("run_started", message=run.id))
        past = store.attempts(run.id)
        finished = store.finished_tasks(run.id)
        spending = Spending(config.budget, evaluations=len(past), stop=stop)
        threads = max(1, cores() // config.jobs)
        lock = threading.Lock()

        def report(event: Event) -> None:
            with lock:
                observer.on_event(event)

        providers = Providers(config.llm, stopped=lambda: spending.refusal() is not None)
        with (
            closing(providers),
            Workshop(config.device, threads=threads, allow_unconfined=config.allow_unconfined) as workshop,
        ):

            def one(task: Task) -> bool:
                coder, judge = (
                    make_coder(config.coder, providers, spending),
                    make_judge(config.judge, providers, spending),
                )
                mine = [attempt for attempt in past if attempt.task == task.name]
                return TaskLoop(run, task, mine, workshop, store, coder, judge, spending, report).work()

            todo = [task for task in tasks if task.name not in finished]
            complete, problem = _run_all(one, todo, config.jobs, stop, report)
        state = RunState.FINISHED if complete else RunState.STOPPED
        ended = datetime.now(UTC).isoformat(timespec="seconds")
        store.update_run(run.id, state, ended)
        observer.on_event(Event("run_finished", message=state.value))
        if problem is not None:
            raise problem
        return run.model_copy(update={"state": state, "ended": ended})


def _run_all(
    one: _Job, tasks: list[Task], jobs: int, stop: StopSignal, report: _Report
) -> tuple[bool, Exception | None]:
    """Work on all tasks; gives back whether all are finished, and the first problem that was not a task's own.

    A task that cannot be worked on is reported and left. A dead journal ends the run in good order. Anything else
    unexpected is a bug of ours: the other tasks go on, and it is raised when they are done.
    """
    complete, problem = True, None
    pool = ThreadPoolExecutor(max_workers=max(jobs, 1), thread_name_prefix="task")
    pending: dict[Future[bool], Task] = {pool.submit(one, task): task for task in tasks}
    try:
        while pending:
            done, _ = wait(pending, timeout=0.2, return_when=FIRST_COMPLETED)
            for future in done:
                task = pending.pop(future)
                error = future.exception()
                complete = complete and error is None and future.result()
                if error is None:
                    continue
                report(Event("warning", task=task.name, message=str(error) or type(error).__name__))
                if isinstance(error, StoreError):
                    stop.drain()
                if isinstance(error, StoreError) or not isinstance(error, KernelForgeError):
                    if not isinstance(error, Exception):
                        raise error
                    problem = problem or error
            if stop.aborting:
                return False, problem
    finally:
        pool.shutdown(wait=not stop.aborting, cancel_futures=True)
    return complete, problem
