"""Runs: one strategy over one suite with one budget; their attempts, with messages and usage; and lessons from them."""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Literal

from pydantic import Field, model_validator

from kernelforge.records.base import Record, content_hash
from kernelforge.records.evaluation import Evaluation, Profile, Verdict
from kernelforge.records.task import Candidate, LanguageChoice


class Price(Record):
    """Dollars per million tokens."""

    input: float = Field(ge=0, allow_inf_nan=False)
    output: float = Field(ge=0, allow_inf_nan=False)
    cached: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    """Input read from the provider's prompt cache; None: as ``input``."""
    cache_write: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    """Input written to the provider's prompt cache; None: as ``input``."""


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
    reasoning: Literal["keep", "off"] = "keep"
    """``off``: ask the provider to show no reasoning, and store none; how much a model reasons stays its own affair."""
    prices: dict[str, Price] = {}
    """Prices by ``provider:model``; these override the shipped price list."""


class MeasureSettings(Record):
    """Settings for a device that measures; an emulated device heeds ``approx`` and ``sizes`` alone."""

    runtime: Literal["cupy", "pycuda"] = "cupy"
    protocol: Literal["kernelforge", "kernelbench"] = "kernelforge"
    """``kernelbench``: warm L2, mean of CUDA events, against eager; for comparison with published numbers only."""
    qps: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """Server mode: requests per second, with random gaps between them; None times them back to back."""
    precision: float = Field(default=0.01, gt=0, lt=1)
    """Half-width of the ratio's interval, as a part of the ratio, at which timing ends."""
    seconds: float = Field(default=10.0, gt=0)
    """Longest time spent on timing one candidate."""
    energy: bool = False
    """Also measure the energy of candidate and fastest baseline, by NVML's counter; takes half a minute more."""
    launches: bool = False
    """Also trace one call of eager PyTorch with its profiler, after the timing: launch and queue time (TKLQT)."""
    sanitizer: bool = False
    """Also run the small size under compute-sanitizer; a report fails the candidate."""
    counters: Literal["default", "full"] = "default"
    """Metrics for Nsight Compute: CudaForge's 24 and a roofline, or all sections."""
    approx: Literal["varied", "worst"] = "varied"
    """Errors of approximate instructions where the emulated device checks: drawn, or as large as they may be."""
    sizes: Literal["all", "train"] = "all"
    """``train``: an emulated device compares the full size in part, and candidates of a task share draws of the others:
    cheaper, and less than is checked otherwise."""
    screen: bool = True
    """Whether an emulated device runs a candidate before the GPU is taken. Without it no access is checked."""
    figures: str | None = None
    """Figures of that emulated device: a file of ``kernelforge calibrate``, or the key of a GPU; None for those of the
    GPU, or of the nearest known one."""

    @model_validator(mode="after")
    def _protocol_has_further_figures(self) -> MeasureSettings:
        if self.energy and self.protocol == "kernelbench":
            raise ValueError("energy is measured by the protocol kernelforge alone")
        if self.launches and self.protocol == "kernelbench":
            raise ValueError("launches are traced by the protocol kernelforge alone")
        return self

    @model_validator(mode="after")
    def _figures_are_used(self) -> MeasureSettings:
        if self.figures is not None and not self.screen:
            raise ValueError("figures are of the emulated device in front of the GPU, which is switched off")
        return self


class StartOrigin(Record):
    """Origin of the kernel that a search was started from."""

    file: str | None = None
    """Name of its file; None for an attempt, and for a text without a file."""
    attempt: str | None = None
    """Id of the attempt, for one of another run."""
    digest: str
    """SHA-256 of the file, or of the text that was given; of an attempt, the hash of its candidate."""
    converted: bool = False
    """Whether the plan was made of a class ``ModelNew``, or of the host function of an extension."""

    def __str__(self) -> str:
        name = f"attempt {self.attempt}" if self.attempt else self.file or "a text"
        return f"{name} ({self.digest[:16]}{', its host code converted' if self.converted else ''})"


class Start(Record):
    """Kernel that the search of a task is started from."""

    task: str
    origin: StartOrigin
    candidate: Candidate
    """For a converted one, with the names that the text has for weights."""
    model_new: str = ""
    """Text that was converted: the plan takes the task's names of weights when the task is worked on."""

    @model_validator(mode="after")
    def _has_a_plan(self) -> Start:
        if self.candidate.lane != "plan":
            raise ValueError("a search starts from device code and a launch plan, not from a class ModelNew")
        if bool(self.model_new) != self.origin.converted:
            raise ValueError("only a converted start keeps the text that it was converted from")
        return self


class RunConfig(Record):
    """Complete configuration of a run, without defaults left to resolve."""

    suite: str
    suite_digest: str
    tasks: tuple[str, ...] = Field(min_length=1)
    device: str
    host: str = ""
    """Machine that the device is on, as ``ssh://user@host:2222``, or several with commas between them; empty for the
    machine of the run."""
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
    language: LanguageChoice = "cuda"
    """Language of the kernels that are asked for and taken."""
    tune: bool = True
    """Whether to search ``# tune:`` combinations."""
    llm: LLMSettings = LLMSettings()
    measure: MeasureSettings = MeasureSettings()
    measure_top: int | None = Field(default=None, ge=1)
    """Candidates of a round that a GPU measures, those predicted to be the fastest; None measures all."""
    reward: str
    budget: Budget
    seed: int
    jobs: int = Field(ge=1)
    stop_after: int | None = Field(default=4, ge=1)
    """End a task after this many rounds without a new best; None never does."""
    starts: tuple[Start, ...] = ()
    """Kernels that tasks are started from, at most one each; the others begin with nothing."""
    stop_gain: float = Field(default=0.0, ge=0.0, allow_inf_nan=False)
    """Least relative gain in speed of what counts as a new best there."""
    cascade: int | None = Field(default=None, ge=1)
    """Rounds without a new best after which the next Coder writes; None: Coders take turns."""
    allocate: Literal["even", "headroom"] = "even"
    """Who gets the rounds that a task leaves: none, or the tasks that are farthest from their floors."""
    allow_unconfined: bool = False
    """Run without a jail if none works; such a run is never rewarded."""

    @model_validator(mode="after")
    def _each_task_once(self) -> RunConfig:
        if len(set(self.tasks)) != len(self.tasks):
            raise ValueError(f"tasks repeat: {', '.join(self.tasks)}")
        started = [start.task for start in self.starts]
        if len(set(started)) != len(started) or not set(started) <= set(self.tasks):
            raise ValueError(f"each start belongs to one task of the run: {', '.join(started)}")
        return self

    def start_of(self, task: str) -> Start | None:
        """The kernel that a task is started from; None where it begins with nothing."""
        return next((start for start in self.starts if start.task == task), None)

    @property
    def coders(self) -> tuple[str, ...]:
        """Specifications of the Coders, in order."""
        return tuple(self.coder.split(","))

    @property
    def writes_lessons(self) -> bool:
        """Whether a task's end teaches later tasks: a run of one task has none, unless other runs are shown lessons."""
        return self.memory == "results" or (self.memory == "run" and len(self.tasks) > 1)

    @property
    def digest(self) -> str:
        # These fields are younger than stored digests, which have to stay.
        younger: dict[str, Any] = {"language": True} if self.language == "cuda" else {}
        if self.measure_top is None:
            younger["measure_top"] = True
        if not self.starts:
            younger["starts"] = True
        fields = type(self).model_fields
        for name in ("stop_gain", "cascade", "allocate"):
            if getattr(self, name) == fields[name].default:
                younger[name] = True
        if not self.host:
            younger["host"] = True
        usual, names = MeasureSettings(), ("approx", "figures", "screen", "sizes")
        unchanged = {name for name in names if getattr(self.measure, name) == getattr(usual, name)}
        if unchanged:
            younger["measure"] = unchanged
        if self.llm.reasoning == "keep":
            younger["llm"] = {"reasoning"}
        return content_hash(self.model_dump(mode="json", exclude=younger))


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


MAX_LESSON_CHARS = 320


class Lesson(Record):
    """One short sentence of advice, with its source."""

    family: str
    """Operator family: ``matmul``, ``softmax``..."""
    text: str = Field(min_length=1, max_length=MAX_LESSON_CHARS)
    task: str
    """The task that taught it."""
    provider: str
    """Who wrote it."""
    gain: float | None = None
    """Factor by which that task's time fell from its first correct attempt to its best; None if unknown."""
    written: str
    """UTC, ISO 8601."""


class Usage(Record):
    """Tokens, dollars and time of one call, as the provider counted them. None is unknown, never zero."""

    model: str
    """The model that answered, as the provider names it."""
    input_tokens: int | None = Field(default=None, ge=0)
    """All tokens of the prompt, cached ones included."""
    cached_tokens: int | None = Field(default=None, ge=0)
    """Part of ``input_tokens`` that was read from the provider's prompt cache."""
    cache_write_tokens: int | None = Field(default=None, ge=0)
    """Part of ``input_tokens`` that was written to the provider's prompt cache."""
    output_tokens: int | None = Field(default=None, ge=0)
    """All tokens of the reply, reasoning included."""
    reasoning_tokens: int | None = Field(default=None, ge=0)
    """Part of ``output_tokens`` that was reasoning."""
    dollars: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    """None: the price is unknown."""
    seconds: float = Field(ge=0, allow_inf_nan=False)
    """Wall time of the call that succeeded, waiting for limits and retries excluded."""
    batch: bool = False
    """Whether it went through the provider's batch interface, which sells at half price."""
    retries: int = Field(default=0, ge=0)
    """Calls that failed before this one succeeded."""

    @property
    def tokens(self) -> int | None:
        """Input and output together, or None when either is unknown."""
        if self.input_tokens is None or self.output_tokens is None:
            return None
        return self.input_tokens + self.output_tokens


class Operator(StrEnum):
    """Kind of request of a strategy to a Coder."""

    SEED = "seed"
    REPAIR = "repair"
    OPTIMISE = "optimise"
    CONTRAST = "contrast"
    """Write a new kernel, from scored examples (``inspirations``)."""
    FSR = "fsr"
    """Write a new kernel, from the fastest correct one, or from a failed one with its errors, and the history."""
    CROSSOVER = "crossover"
    """Join the strengths of the parent and of one inspiration."""
    TUNE = "tune"
    """The parent with other values of its ``# tune:`` names; no agent is called."""
    START = "start"
    """The kernel that the search was started from; no agent is called, and no round is spent."""


class Finding(Record):
    """The Judge's one finding. Optimise: bottleneck, method, plan. Repair: critical issue, why, minimal fix."""

    kind: Literal["optimise", "repair", "stop"]
    headline: str
    """The bottleneck, the critical issue, or the reason to stop."""
    why: str
    """The metrics that justify it, or why the issue matters."""
    action: str
    """The method and modification plan, or the minimal fix."""
    move: str | None = None
    """Name of the built-in move, where the Judge is built in."""
    metrics: tuple[str, ...] = ()
    """Names of the metrics that the action should lower (or raise, with a leading ``+``)."""
    bottleneck: str | None = None
    """Bottleneck found by the built-in Judge, by its name in :mod:`kernelforge.agents.diagnosis.rules`."""


AgentName = Literal["coder", "judge", "tester", "reflexion"]
"""Agents of messages. ``reflexion`` writes lessons for later tasks."""


class Message(Record):
    """One prompt or reply, kept verbatim."""

    agent: AgentName
    role: Literal["prompt", "reply"]
    provider: str
    content: str
    usage: Usage | None = None
    """Cost of a reply; None for a free one."""
    reasoning: str | None = None
    """What the model showed of its reasoning before a reply, or a summary of it; no part of ``content``."""

    @model_validator(mode="after")
    def _replies_cost(self) -> Message:
        if self.role != "reply" and (self.usage is not None or self.reasoning is not None):
            raise ValueError("only a reply carries a usage or reasoning")
        return self


class TuneTrial(Record):
    """One combination of a plan's ``# tune:`` values that was tried."""

    choices: dict[str, int]
    rung: int = Field(ge=0)
    """The last rung that it reached; higher rungs time more precisely. Of a search among many: 0 cheaply,
    1 completely."""
    time_us: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """Its time at that rung, or None."""
    problem: str = ""
    """Why it has no time."""

    @model_validator(mode="after")
    def _timed_or_not(self) -> TuneTrial:
        if (self.time_us is None) == (self.problem == ""):
            raise ValueError("a trial has either a time or a problem")
        return self


class Reward(Record):
    """A reward policy's number, with its components."""

    policy: str
    """Name and version: ``kernelforge/1``."""
    value: float | None = Field(allow_inf_nan=False)
    """None: no score (verdict ``INFRA``, or a run without a jail)."""
    components: dict[str, float | None]


class Attempt(Record):
    """One proposal and its result."""

    id: str
    """``<run>/<task>/<number>``; the number is two digits or more."""
    run: str
    task: str
    number: int = Field(ge=0)
    operator: Operator
    parent: str | None = None
    start: StartOrigin | None = None
    """Where a start comes from; None for every other attempt."""
    inspirations: tuple[str, ...] = ()
    """Ids of the other attempts that the Coder was shown as examples."""
    coder: str = ""
    """Specification of the Coder that wrote it; empty for ``tune`` and ``start``."""
    technique: str = ""
    """Optimisation technique that the Coder was asked to use, or empty."""
    finding: Finding | None = None
    messages: tuple[Message, ...] = ()
    candidate: Candidate | None = None
    """None if the reply held no candidate."""
    evaluation: Evaluation
    profile: Profile | None = None
    trials: tuple[TuneTrial, ...] = ()
    """Results of the plan's ``# tune:`` combinations, if they were searched."""
    reward: Reward
    accepted: bool
    """Whether it became the task's best."""
    note: str = ""
    """Reason why it was or was not accepted."""
    started: str
    """UTC, ISO 8601."""
    seconds: float = Field(ge=0, allow_inf_nan=False)

    @model_validator(mode="after")
    def _consistent(self) -> Attempt:
        verdict = self.evaluation.verdict
        if self.candidate is not None and self.candidate.hash != self.evaluation.candidate:
            raise ValueError("the evaluation is of another candidate")
        if self.candidate is None and verdict is Verdict.OK:
            raise ValueError("OK needs a candidate")
        if verdict is not Verdict.OK and (self.accepted or self.profile is not None):
            raise ValueError(f"an attempt with verdict {verdict} cannot be accepted or carry a profile")
        if self.profile is not None and self.profile.device != self.evaluation.fingerprint.device:
            raise ValueError("the profile is of another device")
        if verdict is Verdict.INFRA and self.reward.value is not None:
            raise ValueError("INFRA is never a score")
        if (self.operator in (Operator.SEED, Operator.START)) != (self.parent is None):
            raise ValueError("a seed and a start have no parent, every other attempt has one")
        if (self.operator is Operator.START) != (self.start is not None):
            raise ValueError("a start says where it comes from, and no other attempt does")
        if self.trials and verdict is not Verdict.OK:
            raise ValueError("only a correct candidate is tuned")
        return self
