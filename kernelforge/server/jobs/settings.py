"""Operator settings of the job service."""

from __future__ import annotations

from dataclasses import dataclass

from kernelforge.rewards import DEFAULT_POLICY


@dataclass(frozen=True)
class JobServiceSettings:
    """Limits and habits of a gateway."""

    policy: str = DEFAULT_POLICY
    """Reward policy of requests that name none."""
    max_jobs: int = 20_000
    """Jobs that may be queued or running; more are refused with 503."""
    max_jobs_per_run: int = 10_000
    """The same for one run; more are refused with 429."""
    max_queued_chars: int = 1 << 30
    """Characters of candidates that may be queued or running: they are held in memory."""
    max_measured_age_s: float = 86_400.0
    """Oldest measured time that is answered from the cache, in seconds. Modelled times do not age."""
    lease_s: float = 900.0
    """How long an engine may hold a work, in seconds, before it is taken back as from a worker that died."""
    keep_jobs: int = 200_000
    """Ended jobs that are kept, with their completions and idempotency keys; the oldest go."""
    keep_works: int = 200_000
    """Evaluations that are kept once no kept job refers to them; the oldest go."""
    keep_bytes: int = 16 << 30
    """Size of ``server.db`` above which the oldest ended jobs and evaluations go, whatever their number."""
    evaluations_in_memory: int = 1_000
    jobs_in_memory: int = 10_000
    """Ended jobs whose answers are held ready."""
    readings_in_memory: int = 20_000
    """Completions of which is remembered, by their hash, which candidate they hold."""
