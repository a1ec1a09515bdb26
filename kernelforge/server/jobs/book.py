"""What is going on: jobs and works that have not ended, by all that finds them, and the runs they belong to."""

from __future__ import annotations

from dataclasses import dataclass, field

from kernelforge.server.jobs.works import LiveJob, Work

_MOST_RUNS = 10_000
"""Runs that are remembered without settings of their own and without jobs."""


@dataclass(slots=True)
class RunState:
    """One run, as long as it is remembered."""

    weight: float = 1.0
    min_policy_version: int | None = None
    ended: int = 0
    """Jobs that ended."""
    jobs: dict[str, LiveJob] = field(default_factory=dict)
    """Jobs that have not."""

    @property
    def forgettable(self) -> bool:
        return not self.jobs and self.weight == 1.0 and self.min_policy_version is None

    def stale(self, policy_version: int | None) -> bool:
        """Whether work of these weights is not wanted any more."""
        return (
            policy_version is not None
            and self.min_policy_version is not None
            and policy_version < self.min_policy_version
        )


class Book:
    """Jobs that have not ended, and open works."""

    def __init__(self) -> None:
        self.jobs: dict[str, LiveJob] = {}
        self.works: dict[int, Work] = {}
        self.runs: dict[str, RunState] = {}
        self.keyed: dict[tuple[str, str], LiveJob] = {}
        """By caller and idempotency key."""
        self.chars = 0
        """Of the candidates of open works."""
        self._by_key: dict[str, list[Work]] = {}
        self._forget_at = _MOST_RUNS

    def run(self, name: str) -> RunState:
        state = self.runs.get(name)
        if state is None:
            if len(self.runs) >= self._forget_at:
                for idle in [run for run, one in self.runs.items() if one.forgettable][: _MOST_RUNS // 10]:
                    del self.runs[idle]
                # Where none is idle, not all are looked at again for each that comes.
                self._forget_at = max(len(self.runs) + _MOST_RUNS // 10, _MOST_RUNS)
            state = self.runs[name] = RunState()
        return state

    def add(self, job: LiveJob) -> None:
        """Enter a job that was accepted; its work too, if it is new."""
        self.jobs[job.id] = job
        self.run(job.run).jobs[job.id] = job
        if job.key is not None:
            self.keyed[job.caller, job.key] = job
        work = job.work
        work.jobs[job.id] = job
        if work.id not in self.works:
            self.works[work.id] = work
            self.chars += work.size
            self._by_key.setdefault(work.key, []).append(work)

    def remove(self, job: LiveJob) -> None:
        """A job has ended."""
        self.jobs.pop(job.id, None)
        self.run(job.run).jobs.pop(job.id, None)
        if job.key is not None and self.keyed.get((job.caller, job.key)) is job:
            del self.keyed[job.caller, job.key]

    def close(self, work: Work) -> None:
        """No further job may join a work."""
        if self.works.pop(work.id, None) is None:
            return
        self.chars -= work.size
        same = self._by_key[work.key]
        same.remove(work)
        if not same:
            del self._by_key[work.key]

    def open_work(self, key: str, *, profile: bool) -> Work | None:
        """A work that a job with this key may join. One that is still queued can be given a profile."""
        for work in self._by_key.get(key, ()):
            if work.profile or not profile or (work.phase == "queued" and not work.tries):
                return work
        return None
