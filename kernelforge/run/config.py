"""From what a user said to a configuration with everything filled in."""

from __future__ import annotations

import os
import secrets
from collections.abc import Sequence

from kernelforge.agents import check_agent
from kernelforge.devices import best_device, check_device
from kernelforge.errors import UsageError
from kernelforge.llm.providers import Providers
from kernelforge.records import Budget, LLMSettings, RunConfig
from kernelforge.rewards import DEFAULT_POLICY, POLICIES
from kernelforge.search import make_strategy
from kernelforge.tasks import load_suite


def configure(
    *,
    suite: str = "core",
    tasks: Sequence[str] = (),
    device: str | None = None,
    strategy: str = "refine",
    coder: str = "builtin",
    judge: str = "builtin",
    reward: str = DEFAULT_POLICY,
    budget: Budget | None = None,
    seed: int | None = None,
    jobs: int | None = None,
    stop_after: int = 4,
    allow_unconfined: bool = False,
) -> RunConfig:
    """Resolve a run's configuration; every name in it is known to exist afterwards.

    Raises:
        UsageError: an unknown task, device, strategy, agent or reward, or a number that makes no sense.
        TaskError: the suite cannot be loaded.
    """
    loaded = load_suite(suite)
    known = [task.name for task in loaded.tasks]
    unknown = [name for name in tasks if name not in known]
    if unknown:
        raise UsageError(f"suite {loaded.name!r} has no task {unknown[0]!r}; it has: {', '.join(known)}")
    if reward not in POLICIES:
        raise UsageError(f"there is no reward policy {reward!r}; choose one of {', '.join(sorted(POLICIES))}")
    if jobs is not None and jobs < 1:
        raise UsageError(f"--jobs {jobs}: at least one task must run at a time")
    if stop_after < 1:
        raise UsageError(f"--stop-after {stop_after}: give a task at least one round without a new best")
    limits = budget or Budget()
    make_strategy(strategy, rounds=limits.rounds, stop_after=stop_after)
    providers = Providers(LLMSettings())
    for agent in (coder, judge):
        check_agent(agent, providers)
    chosen = tuple(name for name in known if not tasks or name in tasks)
    return RunConfig(
        suite=suite,
        suite_digest=loaded.digest,
        tasks=chosen,
        device=check_device(device or best_device()),
        strategy=strategy,
        coder=coder,
        judge=judge,
        reward=reward,
        budget=limits,
        seed=secrets.randbits(48) if seed is None else seed,
        jobs=min(jobs or cores(), len(chosen)),
        stop_after=stop_after,
        allow_unconfined=allow_unconfined,
    )


def cores() -> int:
    """Processors this process may use."""
    return len(os.sched_getaffinity(0))
