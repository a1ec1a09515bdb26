"""``optimize``: search for a better kernel for one task, from Python."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from kernelforge.devices import default_device
from kernelforge.records import Attempt, Budget, Candidate, LLMSettings, MeasureSettings, Run, Start
from kernelforge.rewards import DEFAULT_POLICY
from kernelforge.run import Event, Observer, StopSignal, configure, start_run
from kernelforge.run.starts import read_start, start_from_candidate
from kernelforge.search.base import best_attempt
from kernelforge.store import DATABASE_NAME, Store
from kernelforge.tasks import load_task
from kernelforge.tasks.suites import LOOSE_SUITE


@dataclass(frozen=True)
class SearchOptions:
    """Options of the search for candidates."""

    strategy: str = "refine"
    """Name of the strategy, which decides the candidate to try next; ``kernelforge strategies`` lists them."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Options of the strategy by name; the others take their published defaults."""
    tune: bool = True
    """Whether the ``# tune:`` combinations of a correct candidate are searched."""


@dataclass(frozen=True)
class AgentOptions:
    """Agents that write and judge candidates; each is ``builtin`` (rules, no model) or a provider's specification."""

    coder: str | Sequence[str] = "builtin"
    """Writes candidates, such as ``openai:gpt-5``; several take turns."""
    judge: str = "builtin"
    """Diagnoses each attempt and picks the next fix or optimisation."""
    tester: str | None = None
    """Proposes further test inputs; None for none."""
    memory: Literal["off", "run", "results"] = "run"
    """Lessons shown to agents: none, those of this run, or those of all runs in the results folder."""
    llm: LLMSettings = field(default_factory=LLMSettings)
    """How models are called: server, timeouts (seconds), retries, limits per minute, prices."""


@dataclass(frozen=True)
class EvaluationOptions:
    """Options of the measurement and scoring of attempts."""

    measure: MeasureSettings = field(default_factory=MeasureSettings)
    """How a GPU is used; an emulated device accepts the defaults only."""
    reward: str = DEFAULT_POLICY
    """Policy that scores each attempt; ``kernelforge reward list`` shows them."""
    allow_unconfined: bool = False
    """Continue where no jail works. The attempts record it and earn no reward."""


@dataclass(frozen=True)
class OptimizationResult:
    """Result of a search. The results database holds all of it too."""

    run: Run
    attempts: tuple[Attempt, ...]
    """All attempts, oldest first."""

    @property
    def best(self) -> Attempt | None:
        """The best attempt; None when no attempt was correct."""
        return best_attempt(self.attempts)


class _NullObserver:
    def on_event(self, event: Event) -> None:
        """Discard the event."""


def optimize(
    task: str | Path,
    *,
    device: str | None = None,
    start: str | Path | Candidate | None = None,
    search: SearchOptions | None = None,
    agents: AgentOptions | None = None,
    evaluation: EvaluationOptions | None = None,
    budget: Budget | None = None,
    seed: int | None = None,
    results: str | Path = "results",
    observer: Observer | None = None,
    stop: StopSignal | None = None,
) -> OptimizationResult:
    """Search for a better kernel for one task; ``kernelforge run`` does the same for a suite.

    Every attempt is written to the results database as it is made, so ``kernelforge resume`` continues after a kill.

    Args:
        task: ``suite/name``, a name within suite ``core``, or the path of a task file.
        device: where candidates run, such as ``cuda:0`` or ``emulated:h100``. None selects the first GPU that starts,
            else an emulated device; a warning is logged for each GPU that is passed over.
        start: kernel to begin with: the path of a file (a reply, CUDA C++ or Triton with its plan, or a ``ModelNew``
            or host function of an extension that can be converted), a candidate, or ``RUN/TASK/NUMBER``, an attempt of
            ``results``. It is attempt 0, and the first parent. None begins with nothing.
        search: the strategy and its options; None for strategy ``refine``.
        agents: Coder, Judge and Tester; None for the built-in ones, which need no model.
        evaluation: how attempts are measured and scored; None for the defaults.
        budget: limits on rounds, evaluations, wall time (seconds), tokens and dollars, for the run and per task; None
            for the strategy's own number of rounds.
        seed: integer from which secret inputs and all random choices are drawn; None draws one.
        results: folder of the results database; created if missing.
        observer: receives each event of the run, one at a time, from worker threads.
        stop: ends the search early when another thread drains or aborts it.

    Returns:
        The run with all its attempts. A candidate that fails is an attempt with a verdict, not an exception.

    Raises:
        UsageError: an unknown task, device, strategy, option, agent or reward policy, a missing key, or a dollar budget
            for a model without a known price; or a start that is no kernel.
        KernelForgeError: the task cannot be loaded or run, or this machine lacks something.

    Example:
        >>> import tempfile
        >>> import kernelforge
        >>> budget = kernelforge.Budget(rounds=1)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     found = kernelforge.optimize("core/swish", device="emulated:h100", budget=budget, results=folder)
        >>> found.best.evaluation.verdict.value
        'OK'
        >>> "__global__" in found.best.candidate.source
        True
    """
    search, agents, evaluation = search or SearchOptions(), agents or AgentOptions(), evaluation or EvaluationOptions()
    loaded = load_task(task)
    suite = loaded.suite
    if Path(task).is_file():
        suite = str(Path(task).resolve() if suite == LOOSE_SUITE else Path(task).resolve().parent)
    elif "/" in str(task):
        suite = str(task).rpartition("/")[0]
    folder = Path(results)
    starts: tuple[Start, ...] = ()
    if isinstance(start, Candidate):
        starts = (start_from_candidate(loaded.name, start),)
    elif start is not None:
        starts = (read_start(loaded.name, start, folder),)
    config = configure(
        suite=suite,
        tasks=(loaded.name,),
        device=device or default_device(evaluation.measure, allow_unconfined=evaluation.allow_unconfined),
        strategy=search.strategy,
        options=search.options,
        tune=search.tune,
        coder=agents.coder,
        judge=agents.judge,
        tester=agents.tester,
        memory=agents.memory,
        llm=agents.llm,
        measure=evaluation.measure,
        reward=evaluation.reward,
        allow_unconfined=evaluation.allow_unconfined,
        budget=budget,
        seed=seed,
        starts=starts,
    )
    with Store.open(folder / DATABASE_NAME) as store:
        run = start_run(config, store, observer or _NullObserver(), stop or StopSignal())
        return OptimizationResult(run, tuple(store.attempts(run.id)))
