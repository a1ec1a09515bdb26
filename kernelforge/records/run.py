"""Runs: one strategy over one suite with one budget."""

from __future__ import annotations

from enum import StrEnum

from pydantic import Field, model_validator

from kernelforge.records.base import Record, content_hash


class Budget(Record):
    """Limits of a run; None is no limit. Rounds are per task and include the seed."""

    rounds: int = Field(default=8, ge=1)
    evaluations: int | None = Field(default=None, ge=1)
    wall_seconds: float | None = Field(default=None, gt=0)


class RunConfig(Record):
    """Everything that decides what a run does, resolved: nothing is left to inherit."""

    suite: str
    suite_digest: str
    tasks: tuple[str, ...] = Field(min_length=1)
    device: str
    strategy: str
    coder: str
    judge: str
    reward: str
    budget: Budget
    seed: int
    jobs: int = Field(ge=1)
    stop_after: int = Field(default=4, ge=1)
    """End a task after this many rounds without a new best."""
    allow_unconfined: bool = False
    """Go on where no jail works; such a run is never rewarded."""

    @model_validator(mode="after")
    def _each_task_once(self) -> RunConfig:
        if len(set(self.tasks)) != len(self.tasks):
            raise ValueError(f"tasks repeat: {', '.join(self.tasks)}")
        return self

    @property
    def digest(self) -> str:
        return content_hash(self)


class RunState(StrEnum):
    RUNNING = "running"
    STOPPED = "stopped"
    """Ended early in good order: Ctrl-C or a budget. ``resume`` goes on."""
    FINISHED = "finished"


class Run(Record):
    """A run as journalled."""

    id: str
    config: RunConfig
    state: RunState
    started: str
    """UTC, ISO 8601."""
    ended: str | None = None
    kernelforge: str
    """Version that started it."""
