"""Runs: one strategy over one suite with one budget."""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

from pydantic import Field, model_validator

from kernelforge.records.attempt import Price
from kernelforge.records.base import Record, content_hash


class Limits(Record):
    """Limits on use; None is no limit."""

    evaluations: int | None = Field(default=None, ge=1)
    wall_seconds: float | None = Field(default=None, gt=0)
    tokens: int | None = Field(default=None, ge=1)
    """Input and output of all models together."""
    dollars: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """Needs a known price for every model of the run."""


class Budget(Limits):
    """Limits of a run as a whole, and of each task in it."""

    rounds: int | None = Field(default=None, ge=1)
    """Attempts that a strategy may propose per task, the seed included; None before a run is configured: the
    strategy's own number. Tuned children are not counted."""
    per_task: Limits = Limits()


class LLMSettings(Record):
    """Settings for calls of models; holds no key."""

    base_url: str | None = None
    """Server of every ``openai:`` model that names none itself; called by chat completions."""
    timeout_seconds: float = Field(default=600.0, gt=0)
    """Longest wait for the next bytes of a reply."""
    retries: int = Field(default=6, ge=0)
    """Most repetitions of a call that fails for a temporary reason."""
    concurrency: int = Field(default=8, ge=1)
    """Calls in flight at a time, per model."""
    requests_per_minute: int | None = Field(default=None, ge=1)
    tokens_per_minute: int | None = Field(default=None, ge=1)
    batch: bool = False
    """Send calls through the provider's batch interface: cheaper and slower."""
    prices: dict[str, Price] = {}
    """Prices by ``provider:model``; these override the shipped price list."""


class MeasureSettings(Record):
    """Settings for a device that measures; an emulated device ignores them."""

    runtime: Literal["cupy", "pycuda"] = "cupy"
    protocol: Literal["kernelforge", "kernelbench"] = "kernelforge"
    """``kernelbench``: warm L2, mean of CUDA events, against eager; for comparison with published numbers only."""
    qps: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """Server mode: requests per second, with random gaps between them; None times them back to back."""
    precision: float = Field(default=0.01, gt=0, lt=1)
    """Half-width of the ratio's interval, as a part of the ratio, at which timing ends."""
    seconds: float = Field(default=10.0, gt=0)
    """Longest time spent on timing one candidate."""
    sanitizer: bool = False
    """Also run the small size under compute-sanitizer; a report fails the candidate."""
    counters: Literal["default", "full"] = "default"
    """Metrics for Nsight Compute: CudaForge's 24 and a roofline, or all sections."""


class RunConfig(Record):
    """Complete configuration of a run, without defaults left to resolve."""

    suite: str
    suite_digest: str
    tasks: tuple[str, ...] = Field(min_length=1)
    device: str
    strategy: str
    options: dict[str, bool | int | float | str] = {}
    """All options of the strategy."""
    coder: str
    """One specification, or several with commas between them: mixed Coders."""
    judge: str
    tester: str | None = None
    """Specification of the Tester, which proposes further test inputs; None for no Tester."""
    memory: Literal["off", "run", "results"] = "run"
    """Lessons in prompts: none, those of this run, or those of all runs in the results folder."""
    tune: bool = True
    """Whether to search ``# tune:`` combinations."""
    llm: LLMSettings = LLMSettings()
    measure: MeasureSettings = MeasureSettings()
    reward: str
    budget: Budget
    seed: int
    jobs: int = Field(ge=1)
    stop_after: int | None = Field(default=4, ge=1)
    """End a task after this many rounds without a new best; None never does."""
    allow_unconfined: bool = False
    """Run without a jail if none works; such a run is never rewarded."""

    @model_validator(mode="after")
    def _each_task_once(self) -> RunConfig:
        if len(set(self.tasks)) != len(self.tasks):
            raise ValueError(f"tasks repeat: {', '.join(self.tasks)}")
        return self

    @property
    def coders(self) -> tuple[str, ...]:
        """Specifications of the Coders, in order."""
        return tuple(self.coder.split(","))

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
