"""``optimize``: search for a better kernel for one task, from Python."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from kernelforge.devices import default_device
from kernelforge.records import Attempt, Budget, LLMSettings, MeasureSettings, Run
from kernelforge.rewards import DEFAULT_POLICY
from kernelforge.run import Event, Observer, StopSignal, configure, start_run
from kernelforge.store import DATABASE_NAME, Store
from kernelforge.tasks import load_task
from kernelforge.tasks.suites import LOOSE_SUITE


@dataclass(frozen=True)
class OptimizationResult:
    """What a search came to. Everything in it is in the results database too."""

    run: Run
    attempts: tuple[Attempt, ...]
    """Every attempt, oldest first."""

    @property
    def best(self) -> Attempt | None:
        """The last attempt that was accepted; None when nothing was correct."""
        return next((attempt for attempt in reversed(self.attempts) if attempt.accepted), None)


class _NullObserver:
    def on_event(self, event: Event) -> None:
        """Nobody is watching."""


def optimize(
    task: str | Path,
    *,
    device: str | None = None,
    strategy: str = "refine",
    options: Mapping[str, Any] | None = None,
    coder: str | Sequence[str] = "builtin",
    judge: str = "builtin",
    tester: str | None = None,
    memory: Literal["off", "run", "results"] = "run",
    tune: bool = True,
    llm: LLMSettings | None = None,
    measure: MeasureSettings | None = None,
    reward: str = DEFAULT_POLICY,
    budget: Budget | None = None,
    seed: int | None = None,
    results: str | Path = "results",
    observer: Observer | None = None,
    stop: StopSignal | None = None,
    allow_unconfined: bool = False,
) -> OptimizationResult:
    """Search for a better kernel for one task; ``kernelforge run`` does the same for a suite.

    Args:
        task: ``suite/name``, a name within suite ``core``, or the path of a task file.
        device: where candidates run; None for the first GPU here that starts, else an emulated device. Why a GPU is
            passed over is logged as a warning.
        strategy: what decides which candidate to try next.
        options: the strategy's own options; what is left out takes the published default.
        coder: who writes candidates, ``provider`` or ``provider:model``; several take turns.
        judge: who names the one thing to mend or to improve.
        tester: who may propose further test inputs; None for nobody.
        memory: whose lessons the agents are shown.
        tune: whether ``# tune:`` combinations are searched.
        llm: how models are called; None for the defaults.
        measure: how a GPU is used; None for the defaults.
        reward: policy that scores each attempt.
        budget: limits; None for the strategy's own rounds.
        seed: from which secret inputs and all choices are drawn; None for a fresh one.
        results: folder of the results database. Journalled as it happens: ``kernelforge resume`` goes on after a kill.
        observer: told of each event, from worker threads.
        stop: asks the search to end early from another thread.
        allow_unconfined: go on where no jail works; such attempts earn no reward.

    Raises:
        KernelForgeError: the task cannot be loaded or run, a name is unknown, or this machine lacks something.
    """
    loaded = load_task(task)
    suite = loaded.suite
    if Path(task).is_file():
        suite = str(Path(task).resolve() if suite == LOOSE_SUITE else Path(task).resolve().parent)
    elif "/" in str(task):
        suite = str(task).rpartition("/")[0]
    config = configure(
        suite=suite,
        tasks=(loaded.name,),
        device=device or default_device(measure, allow_unconfined=allow_unconfined),
        strategy=strategy,
        options=options,
        coder=coder,
        judge=judge,
        tester=tester,
        memory=memory,
        tune=tune,
        llm=llm,
        measure=measure,
        reward=reward,
        budget=budget,
        seed=seed,
        allow_unconfined=allow_unconfined,
    )
    with Store.open(Path(results) / DATABASE_NAME) as store:
        run = start_run(config, store, observer or _NullObserver(), stop or StopSignal())
        return OptimizationResult(run, tuple(store.attempts(run.id)))
