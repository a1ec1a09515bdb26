"""Settings of the job service, and the state that its parts share."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from kernelforge.rewards import DEFAULT_POLICY
from kernelforge.server.jobs.cache import CompletedJobs, EvaluationCache
from kernelforge.server.jobs.job_store import JobStore
from kernelforge.server.jobs.models import ActiveJobs
from kernelforge.server.jobs.notifications import JobWatchers


@dataclass(frozen=True)
class JobServiceSettings:
    """Limits set by the operator."""

    policy: str = DEFAULT_POLICY
    """Reward policy of requests that name none."""
    max_jobs: int = 20_000
    """Jobs that may be queued or running; more are refused with 503."""
    max_jobs_per_run: int = 10_000
    """Jobs of one run that may be queued or running; more are refused with 429."""
    max_queued_chars: int = 1 << 30
    """Characters of candidates in memory, queued or running; more are refused with 503."""
    max_measured_age_s: float = 86_400.0
    """Oldest measured time that is answered from the cache, in seconds. Modelled times do not age."""
    worker_limit_s: float = 900.0
    """Longest time a worker may hold one evaluation task, in seconds; then it counts as dead."""
    keep_jobs: int = 200_000
    """Completed jobs that are kept, with their completions and idempotency keys; the oldest are deleted."""
    keep_evaluations: int = 200_000
    """Evaluations that are kept once no kept job refers to them; the oldest are deleted."""
    keep_bytes: int = 16 << 30
    """Size of ``server.db`` above which the oldest completed jobs and evaluations are deleted first."""
    evaluations_in_memory: int = 1_000
    jobs_in_memory: int = 10_000
    """Completed jobs whose answers are cached in memory."""
    readings_in_memory: int = 20_000
    """Parsed completions that are cached, by their hash."""


class ServiceState:
    """State that the parts of the job service share.

    Args:
        active: jobs that have not ended, and their evaluation tasks.
    """

    def __init__(
        self,
        settings: JobServiceSettings,
        store: JobStore,
        active: ActiveJobs,
        watchers: JobWatchers,
        counters: Counter[str],
    ) -> None:
        self.settings = settings
        self.store = store
        self.active = active
        self.watchers = watchers
        self.counters = counters
        self.completed = CompletedJobs(store, settings.jobs_in_memory)
        self.cache = EvaluationCache(store, settings.evaluations_in_memory)
