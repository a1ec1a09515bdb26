"""Configure runs and work on them: tasks in parallel, one store, one budget, one way to stop."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any, Literal

from kernelforge.agents import BUILTIN
from kernelforge.agents.base import TaskContext
from kernelforge.compile.triton_build import INSTALL, installed_triton
from kernelforge.devices import best_device
from kernelforge.devices.gpu_locks import parse_devices
from kernelforge.devices.remote.address import join_host, split_host
from kernelforge.errors import DeviceError, KernelForgeError, StoreError, UsageError
from kernelforge.evaluation.pool import RunPool
from kernelforge.evaluation.remote.machines import open_pool
from kernelforge.evaluation.stages.full_size_measured import check_measure
from kernelforge.llm.providers import Providers
from kernelforge.llm.spec import is_hosted
from kernelforge.prediction.correction import ModelErrors
from kernelforge.profiling.floor import attainable_us
from kernelforge.records import (
    Attempt,
    Budget,
    LanguageChoice,
    LLMSettings,
    MeasureSettings,
    Message,
    Operator,
    Run,
    RunConfig,
    RunState,
    Start,
    Task,
)
from kernelforge.rewards import DEFAULT_POLICY, POLICIES
from kernelforge.run.allocation import RoundPool, steps_of
from kernelforge.run.budget import RunBudget, StopSignal, TaskBudget
from kernelforge.run.events import Event, Observer
from kernelforge.run.proposals import AgentReply, TaskAgents
from kernelforge.run.task_loop import TaskLoop, make_task_context
from kernelforge.search import STRATEGIES, Strategy
from kernelforge.store import Store
from kernelforge.tasks import Suite, load_suite
from kernelforge.utils.machine import usable_cpus
from kernelforge.utils.shell_hints import results_option, shell_command
from kernelforge.version import __version__

EXTERNAL = "external"
"""What ``RunConfig.strategy`` says of a run whose candidates come from outside."""

_Job = Callable[[], bool]
_Report = Callable[[Event], None]


def configure(
    *,
    suite: str | None = None,
    tasks: Sequence[str] = (),
    device: str | None = None,
    strategy: str = "refine",
    options: Mapping[str, Any] | None = None,
    coder: str | Sequence[str] = BUILTIN,
    judge: str = BUILTIN,
    tester: str | None = None,
    memory: Literal["off", "run", "results"] = "run",
    language: LanguageChoice = "cuda",
    tune: bool = True,
    llm: LLMSettings | None = None,
    measure: MeasureSettings | None = None,
    measure_top: int | None = None,
    reward: str = DEFAULT_POLICY,
    budget: Budget | None = None,
    seed: int | None = None,
    jobs: int | None = None,
    stop_after: int | None = None,
    starts: Sequence[Start] = (),
    stop_gain: float = 0.0,
    cascade: int | None = None,
    allocate: Literal["even", "headroom"] = "even",
    allow_unconfined: bool = False,
    keys: bool = True,
) -> RunConfig:
    """Resolve a run's configuration; every name in it is known to exist afterwards.

    Args:
        suite: None for ``core``, or on a GPU for ``core-large``, whose sizes fill one.
        options: of the strategy; what is left out takes the published default.
        device: one device, ``cuda`` for every GPU here, or several GPUs with commas between them; or those of other
            machines, as in ``ssh://host/cuda:0,ssh://other/cuda``.
        coder: one Coder, or several that take turns.
        measure: how a device that measures is used; an emulated one must have none.
        measure_top: candidates of a round that a GPU measures, those predicted to be the fastest; None for all.
        tester: proposes further test inputs; None for none.
        memory: whose lessons the agents are shown.
        language: that candidates are written in.
        stop_after: None for the strategy's own rule.
        starts: kernels that tasks are started from, at most one each, as :func:`~kernelforge.run.starts.read_start`
            reads them.
        stop_gain: least relative gain in speed of what ``stop_after`` and ``cascade`` count as a new best.
        cascade: rounds without a new best after which the next Coder writes; None: they take turns.
        allocate: ``headroom`` gives the rounds that tasks leave to those that are farthest from their floors.
        keys: whether every hosted model must have its key; a run that is only estimated needs none.

    Raises:
        UsageError: an unknown task, device, strategy, option, agent or reward, a missing key, a dollar budget with an
            unknown price, or a number that makes no sense.
        TaskError: the suite cannot be loaded.
    """
    chosen_devices = parse_devices(device or best_device())
    host, device_names = split_host(",".join(chosen_devices))
    chosen_devices = tuple(device_names.split(","))
    if suite is None:
        suite = "core" if chosen_devices[0].startswith("emulated") else "core-large"
    loaded = load_suite(suite)
    task_names = _chosen_tasks(loaded, tasks)
    if reward not in POLICIES:
        raise UsageError(f"there is no reward policy {reward!r}; choose one of {', '.join(sorted(POLICIES))}")
    if jobs is not None and jobs < 1:
        raise UsageError(f"--jobs {jobs}: at least one task must run at a time")
    if stop_after is not None and stop_after < 1:
        raise UsageError(f"--stop-after {stop_after}: give a task at least one round without a new best")
    chosen_strategy = STRATEGIES[strategy]
    stop_after = chosen_strategy.default_stop_after if stop_after is None else stop_after
    settled = chosen_strategy.settle(options or {})
    limits, settings = budget or Budget(), llm or LLMSettings()
    if limits.rounds is None:
        rounds = chosen_strategy.default_rounds(chosen_strategy.Options.model_validate(settled))
        limits = limits.model_copy(update={"rounds": rounds})
    coders = (coder,) if isinstance(coder, str) else tuple(coder)
    agents = [*",".join(coders).split(","), judge, *([] if tester is None else [tester])]
    _check_language(language, ",".join(coders).split(","))
    check_starts(starts, language)
    _check_agents(agents, settings, limits, commas="," in ",".join(coders), keys=keys)
    measuring = check_measure(measure or MeasureSettings(), chosen_devices[0])
    _check_measure_top(measure_top, measuring, chosen_devices[0], strategy)
    _check_order(chosen_strategy, ",".join(coders).split(","), cascade, allocate, stop_after, stop_gain)
    return RunConfig(
        suite=suite,
        suite_digest=loaded.digest,
        tasks=task_names,
        device=",".join(chosen_devices),
        host=host,
        measure=measuring,
        measure_top=measure_top,
        strategy=strategy,
        options=settled,
        coder=",".join(coders),
        judge=judge,
        tester=tester,
        memory=memory,
        language=language,
        tune=tune,
        llm=settings,
        reward=reward,
        budget=limits,
        seed=secrets.randbits(48) if seed is None else seed,
        jobs=min(jobs or usable_cpus(), len(task_names)),
        stop_after=stop_after,
        starts=tuple(starts),
        stop_gain=stop_gain,
        cascade=cascade,
        allocate=allocate,
        allow_unconfined=allow_unconfined,
    )


def _check_measure_top(top: int | None, settings: MeasureSettings, device: str, strategy: str) -> None:
    """
    Raises:
        UsageError: nothing measures, nothing predicts, or nothing would be measured.
    """
    if top is None:
        return
    if device.startswith("emulated"):
        raise UsageError(
            f"--measure-top {top} selects what a GPU measures, and {device} measures nothing: name a GPU (cuda:0), or "
            "leave it out, for an emulated device models the time of every candidate"
        )
    if strategy == "refine":
        raise UsageError(
            f"--measure-top {top} selects among the candidates of a round, and refine names one at a time: take "
            "another strategy, such as --strategy best-of-n"
        )
    if not settings.screen:
        raise UsageError(f"--measure-top {top} needs the emulated device in front of the GPU: leave out --no-screen")
    if top < 1:
        raise UsageError(f"--measure-top {top}: at least one candidate of a round must be measured")


def _check_order(
    strategy: type[Strategy[Any]],
    coders: Sequence[str],
    cascade: int | None,
    allocate: str,
    stop_after: int | None,
    stop_gain: float,
) -> None:
    """
    Raises:
        UsageError: there is nothing to hand on, to allocate or to count.
    """
    if cascade is not None and cascade < 1:
        raise UsageError(f"--cascade {cascade}: a Coder needs at least one round")
    if cascade is not None and len(coders) < 2:
        raise UsageError("--cascade hands a task on from one Coder to the next: name several, the cheapest first")
    if cascade is not None and not strategy.cascades:
        able = ", ".join(name for name, other in STRATEGIES.items() if other.cascades)
        raise UsageError(
            f"strategy {strategy.name!r} deals out Coders by itself, so it takes no --cascade; choose one of: {able}"
        )
    if allocate == "headroom" and not strategy.open_ended:
        able = ", ".join(name for name, other in STRATEGIES.items() if other.open_ended)
        raise UsageError(
            f"strategy {strategy.name!r} draws a number of samples that its options set, so no task can be given more "
            f"rounds; choose one of: {able}"
        )
    if not 0.0 <= stop_gain < 1e3:
        raise UsageError(f"--stop-gain {stop_gain:g}: give a share of the speed that is gained, such as 0.02")
    if stop_gain and stop_after is None and cascade is None:
        raise UsageError(
            f"--stop-gain {stop_gain:g} says what counts as no new best, and strategy {strategy.name!r} counts no "
            "rounds without one by itself: give --stop-after too"
        )


def _chosen_tasks(suite: Suite, names: Sequence[str]) -> tuple[str, ...]:
    """Names of the tasks that a run is about, in the suite's order; all of them where none is named."""
    selected = {task.name for task in suite.select(names)} if names else None
    return tuple(task.name for task in suite.tasks if selected is None or task.name in selected)


def _check_language(language: LanguageChoice, coders: Sequence[str]) -> None:
    """
    Raises:
        UsageError: Triton is asked for where it is not installed, or of the built-in Coder.
    """
    if language == "cuda":
        return
    if installed_triton() is None:
        raise UsageError(f"--language {language} needs Triton: {INSTALL}")
    if BUILTIN in coders and language == "triton":
        raise UsageError("the built-in Coder writes CUDA C++ alone: name a model with --coder, or use --language any")


def check_starts(starts: Sequence[Start], language: LanguageChoice) -> None:
    """See that starts are in a language that is there, and that candidates may be written in.

    Raises:
        UsageError: a start is in Triton, and Triton is not installed or candidates may not be written in it.
    """
    for start in starts:
        if start.candidate.language != "triton":
            continue
        what = f"the start of task {start.task!r} is in Triton"
        if installed_triton() is None:
            raise UsageError(f"{what}, which is not installed: {INSTALL}")
        if language == "cuda":
            raise UsageError(f"{what}: choose --language triton, or any for CUDA C++ as well")


def _check_agents(agents: Sequence[str], settings: LLMSettings, budget: Budget, *, commas: bool, keys: bool) -> None:
    """See that every agent could be asked, and that a dollar budget could be held.

    Args:
        commas: whether some of them stood between commas, which may have been those of a path.
    """
    priced: dict[str, bool] = {}
    with closing(Providers(settings)) as providers:
        for spec in agents:
            if not spec:
                raise UsageError("an agent's specification is empty; between commas stands one Coder each")
            try:
                if spec != BUILTIN and (keys or not is_hosted(spec)):
                    providers.check(spec)
            except UsageError as error:
                if not commas or not (spec.startswith(("replay:", "exchange:")) or ":" not in spec):
                    raise
                raise UsageError(f"{error}; a comma separates Coders, so the path of one must hold none") from error
            priced[spec] = spec == BUILTIN or providers.price_known(spec)
    if budget.dollars is None and budget.per_task.dollars is None:
        return
    for spec in agents:
        if not priced[spec]:
            raise UsageError(
                f"a dollar budget cannot be held: the price of {spec!r} is unknown; "
                "give it in a file with --prices, or limit --tokens instead"
            )


def new_run(config: RunConfig) -> Run:
    """A run that begins now, under a new name."""
    now = datetime.now(UTC)
    return Run(
        id=f"{now:%Y%m%d-%H%M%S}-{secrets.token_hex(2)}",
        config=config,
        state=RunState.RUNNING,
        started=now.isoformat(timespec="seconds"),
        kernelforge=__version__,
    )


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


def refuse_external(run: Run, store: Store) -> None:
    """
    Raises:
        UsageError: candidates of the run came from outside, so nothing here can go on with it.
    """
    if run.config.strategy == EXTERNAL:
        see = shell_command("show", run.id, results=results_option(store.path.parent))
        raise UsageError(
            f"run {run.id} cannot be resumed: its candidates were submitted by {run.config.coder}; "
            f"see it with `{see}`, and start a new session with `kernelforge mcp`"
        )


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


def task_contexts(config: RunConfig, most: int | None = None) -> list[TaskContext]:
    """The task contexts of a run. Runs the references; calls no agent and stores nothing.

    Args:
        most: with more tasks than that, at least 2, this many are used: the first, the last and evenly between.

    Raises:
        TaskError: a reference does not run.
    """
    contexts, tasks = [], _load_tasks(config)
    if most is not None and len(tasks) > most:
        tasks = [tasks[position * (len(tasks) - 1) // (most - 1)] for position in range(most)]
    with _open_pool(config.model_copy(update={"jobs": 1, "measure": MeasureSettings()}), lambda message: None) as pool:
        for task in tasks:
            evaluator = pool.evaluator(task)
            with closing(evaluator):
                contexts.append(make_task_context(evaluator, config.language))
    return contexts


def _open_pool(config: RunConfig, tell: Callable[[str], None]) -> RunPool:
    """The pool of a run's devices, of this machine or of others."""
    return open_pool(
        join_host(config.host, config.device),
        threads=max(1, usable_cpus() // config.jobs),
        jobs=config.jobs,
        measure=config.measure,
        allow_unconfined=config.allow_unconfined,
        tell=tell,
    )


def _work(run: Run, tasks: list[Task], store: Store, observer: Observer, stop: StopSignal) -> Run:
    """Work on a run that this process holds."""
    config = run.config
    store.update_run(run.id, RunState.RUNNING, None)
    past = store.attempts(run.id)
    finished = store.finished_tasks(run.id)
    budget = RunBudget(config.budget, stop=stop)
    budgets = {task.name: _make_task_budget(budget, run, task, past, store) for task in tasks}
    lock = threading.Lock()

    def report(event: Event) -> None:
        with lock:
            observer.on_event(replace(event, spent=budget.totals()))

    report(Event("run_started", message=run.id, past=tuple(past), finished=tuple(finished)))
    errors = _model_errors(config, store, report)
    providers = Providers(config.llm, stopped=budget.out_of_time, aborted=lambda: stop.aborting)
    for task in tasks:
        providers.recall(task.name, _messages(run, task, past, store))
    try:
        with (
            closing(providers),
            _open_pool(config, lambda message: report(Event("warning", message=message))) as pool,
        ):
            rounds = shared_rounds(config)

            def work_on(task: Task, attempts: Sequence[Attempt], allowance: int | None) -> bool:
                task_budget = budgets[task.name]
                own_attempts = [attempt for attempt in attempts if attempt.task == task.name]
                agents = TaskAgents.of(config, providers, task_budget)
                loop = TaskLoop(
                    run, task, own_attempts, pool, store, agents, task_budget, report, errors, allowance=allowance
                )
                return loop.work()

            todo: Mapping[str, int | None] = {
                task.name: None if rounds is None else rounds.allowance(past, task.name)
                for task in tasks
                if task.name not in finished
            }
            attempts, at_end = past, set[str]()
            while True:
                jobs = [
                    (task, partial(work_on, task, attempts, todo[task.name])) for task in tasks if task.name in todo
                ]
                complete, problem = _run_all(jobs, config.jobs, stop, report)
                if rounds is None or not complete:
                    break
                before, attempts = attempts, store.attempts(run.id)
                at_end |= {name for name in todo if steps_of(attempts, name) == steps_of(before, name)}
                done = [name for name in store.finished_tasks(run.id) if name not in at_end]
                facts = store.all_facts(run.id)
                floors_us = {name: attainable_us(pool.device.spec, facts[name].at("full")) for name in facts}
                todo = rounds.grants(attempts, done, floors_us, config.jobs)
                if not todo:
                    break
                for name in todo:
                    store.reopen_task(run.id, name)
    except DeviceError as error:
        complete, problem = False, error  # no device could be opened
    state = RunState.FINISHED if complete else RunState.STOPPED
    ended = datetime.now(UTC).isoformat(timespec="seconds")
    store.update_run(run.id, state, ended)
    report(Event("run_finished", message=state.value))
    if problem is not None:
        raise problem
    return run.model_copy(update={"state": state, "ended": ended})


def shared_rounds(config: RunConfig) -> RoundPool | None:
    """The pool of rounds of a run; None where a task's rounds are its own."""
    if config.allocate == "even":
        return None
    assert config.budget.rounds is not None
    return RoundPool(config.budget.rounds, len(config.tasks))


def _model_errors(config: RunConfig, store: Store, report: _Report) -> ModelErrors:
    """Errors of the time model on GPUs, from all runs of the results folder; none where nothing is measured."""
    if config.device.startswith("emulated"):
        return ModelErrors()
    try:
        return ModelErrors(store.forecast_outcomes())
    except StoreError as error:
        report(Event("warning", message=f"predicted times are not corrected by earlier measurements: {error}"))
        return ModelErrors()


def _make_task_budget(budget: RunBudget, run: Run, task: Task, past: list[Attempt], store: Store) -> TaskBudget:
    """A task's part of the budget, charged with all that the journal says was done for it."""
    made = sum(attempt.task == task.name and attempt.operator is not Operator.START for attempt in past)
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
    work: Sequence[tuple[Task, _Job]], jobs: int, stop: StopSignal, report: _Report
) -> tuple[bool, Exception | None]:
    """Work on all tasks; gives back whether all are finished, and the first problem that was not a task's own.

    A task that cannot be worked on is reported and left. A dead journal, or that no device is left, ends the run in
    good order. Anything else unexpected is a bug of ours: the other tasks go on, and it is raised when they are done.
    """
    complete, problem = True, None
    pool = ThreadPoolExecutor(max_workers=max(jobs, 1), thread_name_prefix="task")
    pending: dict[Future[bool], Task] = {pool.submit(job): task for task, job in work}
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
