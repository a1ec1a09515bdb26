"""Complete a user's settings to a configuration, and begin a run."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping, Sequence
from contextlib import closing
from datetime import UTC, datetime
from typing import Any, Literal

from kernelforge.agents import BUILTIN, check_agent
from kernelforge.devices import best_device
from kernelforge.devices.gpu_locks import parse_devices
from kernelforge.errors import UsageError
from kernelforge.evaluation.stages.full_size_measured import check_measure
from kernelforge.llm.providers import Providers
from kernelforge.llm.spec import is_hosted
from kernelforge.records import Budget, LLMSettings, MeasureSettings, Run, RunConfig, RunState
from kernelforge.rewards import DEFAULT_POLICY, POLICIES
from kernelforge.search import strategy_class, strategy_options
from kernelforge.tasks import Suite, load_suite
from kernelforge.version import __version__


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
    tune: bool = True,
    llm: LLMSettings | None = None,
    measure: MeasureSettings | None = None,
    reward: str = DEFAULT_POLICY,
    budget: Budget | None = None,
    seed: int | None = None,
    jobs: int | None = None,
    stop_after: int | None = None,
    allow_unconfined: bool = False,
    keys: bool = True,
) -> RunConfig:
    """Resolve a run's configuration; every name in it is known to exist afterwards.

    Args:
        suite: None for ``core``, or on a GPU for ``core-large``, whose sizes fill one.
        options: of the strategy; what is left out takes the published default.
        device: one device, ``cuda`` for every GPU here, or several GPUs with commas between them.
        coder: one Coder, or several that take turns.
        measure: how a device that measures is used; an emulated one must have none.
        tester: proposes further test inputs; None for none.
        memory: whose lessons the agents are shown.
        stop_after: None for the strategy's own rule.
        keys: whether every hosted model must have its key; a run that is only estimated needs none.

    Raises:
        UsageError: an unknown task, device, strategy, option, agent or reward, a missing key, a dollar budget with an
            unknown price, or a number that makes no sense.
        TaskError: the suite cannot be loaded.
    """
    chosen_devices = parse_devices(device or best_device())
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
    chosen_strategy = strategy_class(strategy)
    settled = strategy_options(strategy, options or {})
    limits, settings = budget or Budget(), llm or LLMSettings()
    if limits.rounds is None:
        rounds = chosen_strategy.default_rounds(chosen_strategy.Options.model_validate(settled))
        limits = limits.model_copy(update={"rounds": rounds})
    coders = (coder,) if isinstance(coder, str) else tuple(coder)
    agents = [*",".join(coders).split(","), judge, *([] if tester is None else [tester])]
    _check_agents(agents, settings, limits, commas="," in ",".join(coders), keys=keys)
    return RunConfig(
        suite=suite,
        suite_digest=loaded.digest,
        tasks=task_names,
        device=",".join(chosen_devices),
        measure=check_measure(measure or MeasureSettings(), chosen_devices[0]),
        strategy=strategy,
        options=settled,
        coder=",".join(coders),
        judge=judge,
        tester=tester,
        memory=memory,
        tune=tune,
        llm=settings,
        reward=reward,
        budget=limits,
        seed=secrets.randbits(48) if seed is None else seed,
        jobs=min(jobs or cores(), len(task_names)),
        stop_after=chosen_strategy.default_stop_after if stop_after is None else stop_after,
        allow_unconfined=allow_unconfined,
    )


def _chosen_tasks(suite: Suite, names: Sequence[str]) -> tuple[str, ...]:
    """Names of the tasks that a run is about, in the suite's order; all of them where none is named."""
    task_names = [task.name for task in suite.tasks]
    unknown = [name for name in names if name not in task_names]
    if unknown:
        raise UsageError(f"suite {suite.name!r} has no task {unknown[0]!r}; it has: {', '.join(task_names)}")
    return tuple(name for name in task_names if not names or name in names)


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
                if keys or not is_hosted(spec):
                    check_agent(spec, providers)
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


def cores() -> int:
    """Processors this process may use."""
    return len(os.sched_getaffinity(0))
