"""Request and result models of the reward server's API, with their limits.

The server reads requests with these models and refuses what they do not allow; the client reads answers with them.
Unknown fields of a request are refused, so that a misspelt option is never dropped in silence; unknown fields of an
answer are ignored, so that an older client can talk to a newer server.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, field_validator, model_validator

from kernelforge.errors import MissingRewardError

MAX_COMPLETION_CHARS = 2 << 20
MAX_SOURCE_CHARS = 256 << 10
MAX_PLAN_CHARS = 64 << 10
MAX_BATCH = 1_000
"""Jobs in one batch, and ids in one wait."""
MAX_WAIT_S = 60.0
"""Longest that one request is held open; a client that waits longer asks again."""
MAX_TAG_CHARS = 1_000
MAX_TURNS = 32
MAX_CHOICES = 32
MAX_EXEMPLARS = 1_000

Name = Annotated[str, StringConstraints(min_length=1, max_length=100, pattern=r"^[A-Za-z0-9][A-Za-z0-9._:/-]*$")]
"""Names that callers choose: runs, idempotency keys."""
JobId = Annotated[str, StringConstraints(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9_-]+$")]


class Narrow(BaseModel):
    """A model that refuses an object with more fields than it has by one fault, and not by one for each of them."""

    @model_validator(mode="before")
    @classmethod
    def _no_wider_than_its_fields(cls, data: Any) -> Any:
        if isinstance(data, dict) and len(data) > len(cls.model_fields):
            unknown = next((name for name in data if name not in cls.model_fields), None)
            if unknown is not None:
                raise ValueError(f"it has {len(data)} fields, and there is none called {str(unknown)[:100]!r}")
        return data


class _Request(Narrow):
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class _Answer(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", use_attribute_docstrings=True)


class CandidateText(_Request):
    """A candidate in its parts, for callers that extract them themselves."""

    source: str = Field(min_length=1, max_length=MAX_SOURCE_CHARS)
    """CUDA C++ device code."""
    plan: str = Field(min_length=1, max_length=MAX_PLAN_CHARS)
    """The launch plan."""
    choices: dict[Annotated[str, StringConstraints(max_length=100)], int] = Field(default={}, max_length=MAX_CHOICES)
    """Values of the plan's ``# tune:`` names."""

    @field_validator("choices", mode="before")
    @classmethod
    def _few(cls, choices: Any) -> Any:
        if isinstance(choices, dict) and len(choices) > MAX_CHOICES:  # before each value is validated
            raise ValueError(f"there are {len(choices)} choices; the limit is {MAX_CHOICES}")
        return choices


class JobRequest(_Request):
    """One completion to be rewarded. It carries a completion, or a candidate."""

    task: str | None = Field(default=None, min_length=1, max_length=200, examples=["core/swish"])
    """``suite/name``, the name of a task of the default suite, or a task's digest. Optional with
    ``reference_code``."""
    completion: str | None = Field(default=None, max_length=MAX_COMPLETION_CHARS)
    """A model's complete reply with its two fenced blocks; text around them is ignored."""
    candidate: CandidateText | None = None
    reference_code: str | None = Field(default=None, max_length=MAX_SOURCE_CHARS)
    """The task file, for callers without the task's name. Never executed: only its hash is used, and a text that
    belongs to no registered task is refused."""
    policy: str | None = Field(default=None, max_length=100, examples=["kernelforge/1"])
    """Reward policy; by default the server's."""
    run_id: Name = "default"
    """Runs share the devices in proportion to their weights."""
    policy_version: int | None = Field(default=None, ge=0, le=2**53)
    """Version of the trainer's weights that wrote the completion. Stale jobs can be cancelled by it."""
    priority: int = Field(default=0, ge=-10, le=10)
    """Among jobs of the same run, higher goes first."""
    deadline_s: float | None = Field(default=None, gt=0, le=86_400, allow_inf_nan=False)
    """Seconds from submission after which the job expires and frees its worker."""
    profile: bool = False
    """Also profile a correct candidate at the full size; on an emulated device a modelled time needs it."""
    max_age_s: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    """Oldest measured time that may be answered from the cache, in seconds; the server's limit applies too."""
    sizes: Literal["all", "train"] | None = None
    """Sizes to check, among those that the server offers; by default the run's, else the server's."""
    fresh: bool = False
    """Evaluate even if the same candidate was evaluated before."""
    tag: str = Field(default="", max_length=MAX_TAG_CHARS)
    """Returned unchanged. Those like ``session/ID/2`` are refused: the turns of sessions have them."""
    group_id: Name | None = None
    """Group of completions that are compared with each other, such as those of one prompt in a step."""
    prompt: str | None = Field(default=None, min_length=1, max_length=MAX_COMPLETION_CHARS)
    """What the model was asked. It is stored, once for equal ones, for exports of training data."""

    @model_validator(mode="after")
    def _one_of_each(self) -> JobRequest:
        if (self.completion is None) == (self.candidate is None):
            raise ValueError("give either a completion or a candidate")
        if self.task is None and self.reference_code is None:
            raise ValueError("name a task, or give the reference code of one")
        return self


class BatchRequest(_Request):
    """Several jobs. Each is accepted or refused separately."""

    jobs: list[JobRequest] = Field(min_length=1, max_length=MAX_BATCH)
    idempotency_keys: list[Name] | None = Field(default=None, max_length=MAX_BATCH)
    """One per job: a key that was used before returns the same job."""

    @model_validator(mode="after")
    def _a_key_each(self) -> BatchRequest:
        if self.idempotency_keys is not None and len(self.idempotency_keys) != len(self.jobs):
            raise ValueError("give one idempotency key per job, or none")
        return self


ComponentOrigin = Literal["checked", "measured", "counted", "modelled", "predicted"]
"""``checked``: it follows from the verdict and its stages. ``counted``: from the PTX that ran. ``modelled`` and
``predicted``: from a model of the hardware, and of PyTorch's time on it."""


TrainingStage = Literal["correctness", "speed"]
"""Stage of a run's training: rewarded for being right alone, or by the job's policy."""


class Components(_Answer):
    """Components of a reward. Every key is always present; None means unknown or not applicable."""

    format: float | None = None
    """1 if the reply held a candidate, else 0."""
    built: float | None = None
    """1 if it compiled and passed the policy gate, else 0."""
    correct: float | None = None
    """1 if it is correct at every size, else 0."""
    speedup: float | None = None
    """Against the fastest baseline; None if no time was measured."""
    speedup_lower: float | None = None
    """Lower end of its 95 % interval."""
    speedup_upper: float | None = None
    coverage: float | None = None
    """Share of device time in the candidate's own kernels."""
    energy_ratio: float | None = None
    """Energy of the fastest baseline over that of the candidate, where ``energy`` was measured."""
    policy: float | None = None
    """0 if the verdict is ``POLICY``: it was refused, or the reply held no candidate; else 1."""
    cost: float | None = None
    """Seconds of compiler, oracle and device that the original evaluation took."""
    stage: float | None = None
    """Share of the stages that it passed: 0 for a reply without a candidate, 1 for one that is OK."""
    error: float | None = None
    """Largest error of any compared value, as a multiple of the tolerance: above 1 fails. At most a million."""
    predicted: float | None = None
    """Predicted speedup over eager PyTorch; needs a ``profile`` on an emulated device."""
    predicted_lower: float | None = None
    """Lower end of its 90 % interval."""
    predicted_upper: float | None = None
    floor_share: float | None = None
    """Least time that the task's bytes and operations and a launch take on the device, over the candidate's time.
    Needs a ``profile``, as do the components below."""
    dram_ratio: float | None = None
    """DRAM bytes over the least bytes that any kernel must move."""
    sector_ratio: float | None = None
    """Bytes of the 32-byte sectors of all accesses to global memory, over the same least bytes."""
    sectors_per_request: float | None = None
    """Sectors per request of loads from and stores to global memory: 4 for aligned 4-byte accesses of a warp."""
    launches: float | None = None
    """Kernels that one call of the plan launches, and with a ``profile`` its fills too."""
    origins: dict[str, ComponentOrigin] = {}
    """Origin of each component that is not None."""

    def numbers(self) -> dict[str, float | None]:
        """Every component by its name, without their origins."""
        return {name: value for name, value in self if name != "origins"}

    def flags(self) -> dict[str, float]:
        """Components that are 0 or 1, under fixed keys, for logs that average. A stage that a candidate did not reach
        counts as 0."""
        return {
            "format": self.format or 0.0,
            "built": self.built or 0.0,
            "correct": self.correct or 0.0,
            "policy": 1.0 if self.policy is None else self.policy,
        }


FaultCode = Literal[
    "cancelled",
    "deadline",
    "stale",
    "worker_died",
    "unsupported",
    "device",
    "oracle",
    "sandbox",
    "internal",
    "withheld",
]


class Fault(_Answer):
    """Reason for a missing score."""

    code: FaultCode
    message: str
    retryable: bool = False
    """Whether the same job may succeed when it is submitted again."""


class RewardResult(_Answer):
    """Result of a job: a score, a candidate that the device cannot run, or an infrastructure failure."""

    outcome: Literal["scored", "unsupported", "withheld", "infra_error"]
    """``unsupported``: the candidate needs what the device lacks, so nothing is known of it, and another try changes
    nothing. ``withheld``: its reward jumped and it is like a known hack, so an operator decides."""
    reward: float | None = Field(default=None, allow_inf_nan=False)
    """None exactly if the outcome is not ``scored``."""
    failure_reward: float | None = Field(default=None, allow_inf_nan=False)
    """Reward of a candidate that built and did not run, by the policy; present exactly if the outcome is
    ``unsupported`` or ``withheld``. It is for trainers that cannot leave a sample out, and whose policy must not gain
    by one."""
    policy: str = ""
    """Reward policy with its version."""
    components: Components = Components()
    verdict: str | None = None
    """One of ``OK WRONG POLICY BUILD CRASH TIMEOUT LIMIT INFRA``; None if nothing was evaluated."""
    uncompared: bool = False
    """Whether the verdict is OK although no value was compared at the full size: not correct, and rewarded as wrong."""
    sizes: Literal["all", "train"] = "all"
    """``train``: the server checks less, for training: see ``kernelforge serve --sizes``."""
    stage: str | None = None
    """Stage in which the evaluation ended."""
    feedback: str = ""
    """Feedback for a Coder: the errors, the worst element, or the sizes that were correct."""
    device: str | None = None
    origin: Literal["measured", "modelled"] | None = None
    """Origin of the time, if there is one."""
    candidate: str | None = None
    """Hash of the candidate."""
    evaluation: str | None = None
    """Key of the stored evaluation, from which rewards can be recomputed."""
    equals: str | None = None
    """Key of the evaluation that answered, because its candidate has the same PTX and plan but for names."""
    lane: Literal["plan", "modelnew"] = "plan"
    """``modelnew``: the completion's ``ModelNew`` ran as it is, and the reward is by its own policy."""
    converted: bool = False
    """Whether the completion held a ``ModelNew``, and the candidate is what it was converted to."""
    notes: list[str] = []
    """What the conversion of a ``ModelNew`` left out or assumed, or why there was none."""
    training_stage: TrainingStage | None = None
    """Stage of the run that the reward is of; None if the run has no stages."""
    cached: bool = False
    """Whether an earlier evaluation answered."""
    age_s: float | None = None
    """How old the evaluation is, in seconds."""
    error: Fault | None = None

    @model_validator(mode="after")
    def _trouble_is_no_number(self) -> RewardResult:
        scored = self.outcome == "scored"
        if scored != (self.reward is not None) or scored != (self.error is None):
            raise ValueError("a scored result has a reward and no error; any other has an error and no reward")
        if (self.outcome in ("unsupported", "withheld")) != (self.failure_reward is not None):
            raise ValueError("an unsupported or withheld candidate has the reward of a failure, and nothing else has")
        return self

    @property
    def trained_reward(self) -> float | None:
        """The reward, or that of a failure where there is one in its place."""
        return self.reward if self.failure_reward is None else self.failure_reward

    @property
    def verdict_words(self) -> str | None:
        """The verdict for display, ``OK, full size not compared`` if :attr:`uncompared`."""
        return f"{self.verdict}, full size not compared" if self.uncompared else self.verdict

    def require(self) -> float:
        """The reward.

        Raises:
            MissingRewardError: there is none; contains the reason.
        """
        if self.reward is None:
            assert self.error is not None
            hint = "; it may succeed when it is submitted again" if self.error.retryable else ""
            raise MissingRewardError(
                f"the completion has no reward ({self.error.code}): {self.error.message}{hint}",
                code=self.error.code,
                retryable=self.error.retryable,
            )
        return self.reward


class StoredEvaluation(_Answer):
    """A stored evaluation with all that was recorded, as :mod:`kernelforge.records` describes it."""

    task: str
    """``suite/name``."""
    finished_at: float
    """UTC seconds since 1970."""
    source: str | None = None
    """The candidate's source; None if the completion held no candidate."""
    notes: list[str] = []
    """What the conversion of a ``ModelNew`` to this candidate left out or assumed, or why there was none, in the job
    that came last."""
    evaluation: dict[str, Any]
    """:class:`~kernelforge.records.Evaluation`: build, checks at each size, time, fingerprint."""
    profile: dict[str, Any] | None = None
    """:class:`~kernelforge.records.Profile`: metrics of each kernel; None where no job asked for one."""


class JobStatus(StrEnum):
    """Status of a job. The last three are final, and have a result."""

    QUEUED = "queued"
    RUNNING = "running"
    FINISHED = "finished"
    CANCELLED = "cancelled"
    EXPIRED = "expired"

    @property
    def ended(self) -> bool:
        return self not in (JobStatus.QUEUED, JobStatus.RUNNING)


class Job(_Answer):
    """One accepted job. Times are UTC seconds since 1970."""

    id: JobId
    status: JobStatus
    task: str
    """``suite/name``."""
    run_id: str
    policy_version: int | None = None
    priority: int = 0
    tag: str = ""
    submitted_at: float
    started_at: float | None = None
    finished_at: float | None = None
    tries: int = 0
    """How often it was given to a worker."""
    result: RewardResult | None = None
    """Present once the job has ended."""

    @model_validator(mode="after")
    def _ended_with_a_result(self) -> Job:
        if self.status.ended != (self.result is not None):
            raise ValueError("a job has a result exactly when it has ended")
        return self


class Problem(_Answer):
    """A request, or one job of a batch, that was refused: the reason and the next step."""

    code: str
    """Machine-readable reason: ``unknown_task``, ``queue_full``, ``unauthorised``, ``invalid``..."""
    message: str
    retry_after_s: float | None = None
    """Seconds after which to try again, if that helps."""


class ProblemAnswer(_Answer):
    """The body of every answer with a status of 400 or more."""

    error: Problem
    request_id: str = ""
    """Id of the request in the server's log."""


class BatchItem(_Answer):
    """An accepted job, or the reason for its refusal."""

    job: Job | None = None
    problem: Problem | None = None


class BatchAnswer(_Answer):
    items: list[BatchItem]
    """In the order of the request."""


class WaitRequest(_Request):
    """Wait until any ``k`` of some jobs have ended."""

    ids: list[JobId] = Field(min_length=1, max_length=MAX_BATCH)
    k: int | None = Field(default=None, ge=1, le=MAX_BATCH)
    """None: all of them. A larger number than that of the ids counts as all."""
    timeout_s: float = Field(default=30.0, ge=0, le=MAX_WAIT_S, allow_inf_nan=False)


class WatchRequest(_Request):
    """Follow some jobs: their current state, and every change of status."""

    ids: list[JobId] = Field(min_length=1, max_length=MAX_BATCH)


class WaitAnswer(_Answer):
    ended: list[Job]
    """Jobs that have ended, in that order; fewer than ``k`` if time ran out."""
    pending: list[str]


class CancelRequest(_Request):
    """Cancel some jobs, or the queued and running jobs of a run."""

    ids: list[JobId] | None = Field(default=None, min_length=1, max_length=MAX_BATCH)
    run_id: Name | None = None
    older_than: int | None = Field(default=None, ge=0, le=2**53)
    """With ``run_id``: only jobs whose ``policy_version`` is lower."""

    @model_validator(mode="after")
    def _one_kind(self) -> CancelRequest:
        if (self.ids is None) == (self.run_id is None):
            raise ValueError("give either ids or a run_id")
        if self.older_than is not None and self.run_id is None:
            raise ValueError("older_than goes with run_id")
        return self


class CancelAnswer(_Answer):
    cancelled: list[str]
    """Jobs that ended by this request."""


class RunSettings(_Request):
    """Settings of a run. Missing or None keeps a setting."""

    weight: float | None = Field(default=None, ge=0.01, le=100, allow_inf_nan=False)
    """Share of the devices, relative to other runs with queued jobs; the default is 1."""
    min_policy_version: int | None = Field(default=None, ge=0, le=2**53)
    """Jobs of older policy versions end as ``stale``, now and on submission; 0 accepts all."""
    policy_version: int | None = Field(default=None, ge=0, le=2**53)
    """Version of the weights that the trainer has now; lags of jobs are counted from it."""
    max_staleness: int | None = Field(default=None, ge=-1, le=2**53)
    """AReaL's bound: a job whose ``policy_version`` is further behind the run's is refused, with the code ``stale``; -1
    removes the bound."""
    batch_size: int | None = Field(default=None, ge=0, le=10**9)
    """Trajectories that one version of the trainer uses. With ``max_staleness`` no more than ``(max_staleness +
    policy_version + 1) * batch_size`` are admitted, and others are refused with the code ``ahead_of_trainer``; 0
    admits any number."""
    exemplars: int | None = Field(default=None, ge=0, le=MAX_EXEMPLARS)
    """Right candidates that are kept for each task, as examples for prompts; the default is 64."""

    stage: Literal["correctness", "speed", "none"] | None = None
    """In the stage ``correctness`` every job is rewarded by ``autotriton/1``, 1 or 0; in ``speed`` by the policy that
    it names. ``none`` ends staged training."""
    advance_at: float | None = Field(default=None, ge=0, le=1)
    """The stage becomes ``speed`` once this share of the latest ``advance_window`` jobs of the stage ``correctness`` is
    right; 0 leaves it to the trainer."""
    advance_window: int | None = Field(default=None, ge=1, le=100_000)
    """The default is 256."""
    jump_factor: float | None = Field(default=None, ge=0, le=1_000, allow_inf_nan=False)
    """A right candidate that is more than so many times as fast as the best of its task before, or has so many times
    its reward, is compared with known hacks, and its reward withheld if it is like one; CUDA-L1's is 2. 0 compares
    nothing, as by default."""

    sizes: Literal["all", "train", "server"] | None = None
    """Sizes that are checked of its jobs, among those that the server offers; ``server`` for the server's."""

    def changes(self) -> dict[str, Any]:
        """The settings to change, with None for those to remove."""
        none = {"min_policy_version": 0, "max_staleness": -1, "batch_size": 0, "stage": "none", "advance_at": 0.0}
        none |= {"jump_factor": 0.0, "sizes": "server"}
        given_settings = self.model_dump(exclude_none=True)
        return {name: None if none.get(name) == value else value for name, value in given_settings.items()}


class RunStatus(_Answer):
    run_id: str
    weight: float
    min_policy_version: int | None = None
    policy_version: int | None = None
    max_staleness: int | None = None
    batch_size: int | None = None
    trajectories: int = 0
    """Admitted jobs, and sessions by their first turns, that have a result or have not ended."""
    capacity: int | None = None
    """How many may be by now; None: any number."""
    lags: dict[int, int] = {}
    """Jobs admitted since the start of the server, by how many versions they were behind the run's."""
    refused: dict[str, int] = {}
    """Jobs refused since then: ``stale`` ones, and those ``ahead`` of the trainer."""
    exemplars: int = 64
    stage: TrainingStage | None = None
    advance_at: float | None = None
    advance_window: int = 256
    jump_factor: float | None = None
    sizes: Literal["all", "train"] | None = None
    """None for the server's."""
    share_correct: float | None = None
    """Of the latest jobs of the stage ``correctness``, since the start of the server or of the stage."""
    owner: str | None = None
    """Name of the token without the scope ``admin`` that set the run, and alone submits to it."""
    queued: int
    running: int
    ended: int


class WorkerRow(_Answer):
    """A place where candidates are evaluated or compiled, with its worker."""

    name: str
    """``cuda:0``, ``emulated:h100#1``, or ``NODE/cuda#1`` on a Ray cluster."""
    kind: Literal["device", "compiler"]
    device: str
    state: Literal["starting", "idle", "busy", "quarantined", "drained"]
    why: str = ""
    """Why it is quarantined, or its worker is replaced."""


class WorkerPattern(_Request):
    """Names of workers."""

    name: Annotated[str, Field(min_length=1, max_length=200)]
    """A worker's name, in which ``*`` stands for anything: ``gpu-3-*`` is a node of that name."""


class TaskRow(_Answer):
    task: str
    """``suite/name``."""
    digest: str
    title: str
    level: int | None = None
    tags: list[str] = []


PromptedAgent = Literal["coder", "tester"]
"""Whose prompt a page of a task has: that of a Coder, or of a Tester, which proposes further test inputs."""


class TaskPage(TaskRow):
    device: str
    prompt: str
    """The prompt for a model, verbatim."""
    system: str = ""
    """Its first part, which is the same for all requests about the task: rules, device, task, sizes."""
    user: str = ""
    """Its other part, the request."""
    reference_sha256: str
    """Hash of the task file, by which ``reference_code`` finds its task."""


MAX_MUTANTS = 200


class InputTestsRequest(_Request):
    """A Tester's reply to be scored by the faults that its inputs show."""

    task: str = Field(min_length=1, max_length=200, examples=["core/softmax"])
    """``suite/name``, the name of a task of the default suite, or a task's digest."""
    completion: str = Field(max_length=MAX_COMPLETION_CHARS)
    """The reply: the last JSON object in it counts, ``{"generators": [{"name", "why", "plan"}]}``."""
    most: int = Field(default=60, ge=1, le=MAX_MUTANTS)
    """Faults of the task that are tried at most, spread over their kinds."""


class GeneratorScore(_Answer):
    name: str
    admitted: bool
    """Whether the reference passes on its inputs, at one of the sizes that are checked at least."""
    reason: str = ""
    """Why it was refused, or left out at some sizes."""
    sizes: int
    """Number of sizes where it is used."""
    rejected: int
    """Faults that its inputs show, of those that count."""


class InputTestsAnswer(_Answer):
    task: str
    outcome: Literal["scored", "unreadable", "no_faults"]
    """``no_faults``: the task's own inputs show each fault that can be shown, so that no test can earn anything."""
    reward: float | None = None
    """``rejected / counted``; 0 for a reply that cannot be read, None with the outcome ``no_faults``."""
    fault: str | None = None
    """Why the reply cannot be read."""
    tests: list[GeneratorScore] = []
    mutants: int = 0
    """Faults that were tried."""
    counted: int = 0
    """Those that the task's own inputs do not show, and other inputs of the check do."""
    rejected: int = 0
    """Those of them that the reply's inputs show."""


class PolicyRow(_Answer):
    policy: str
    """Name with version."""
    title: str
    source: str
    """Its publication, and the choices made here."""
    bounds: tuple[float, float]
    default: bool
    """Whether it is the server's default."""


PromptKindName = Literal["refine", "contrast", "fsr"]
"""Search strategy whose prompts are asked for. ``refine``: repair, or optimise by the Judge's finding (CudaForge).
``contrast``: from scored examples (CUDA-L1, CUDA-L2). ``fsr``: from the fastest, or from a failed one (CUDA-LLM)."""
PromptOptions = Annotated[dict[Annotated[str, StringConstraints(max_length=100)], bool | int | float | str], Field()]
MAX_PROMPTS = 32


class PromptRequest(_Request):
    """Prompts about a task, written from a run's exemplars: its right candidates, as far as their jobs were yours."""

    task: str = Field(min_length=1, max_length=200)
    run_id: Name = "default"
    kind: PromptKindName = "contrast"
    count: int = Field(default=1, ge=1, le=MAX_PROMPTS)
    """Independent prompts, as a search asks the samples of one round."""
    options: PromptOptions = Field(default={}, max_length=16)
    """Options of the strategy of this name, such as ``metrics``, ``exemplars`` and ``temperature`` of ``contrast``."""
    seed: int | None = Field(default=None, ge=0, le=2**53)
    """Of the draw of exemplars; by default a random one."""


class Exemplar(_Answer):
    """A right candidate of a run; a failed one where there is none and the prompt is to repair it."""

    candidate: str
    """Hash of the candidate."""
    evaluation: str
    """Key of its evaluation."""
    verdict: str
    score: float | None = None
    """Log of its speed, by which buckets are made; None if no time is known."""


class DrawnPrompt(_Answer):
    operator: str
    """What it asks for: ``contrast``, ``fsr``, ``optimise``; ``seed`` where the run has no exemplar yet."""
    prompt: str
    system: str = ""
    """Its first part, which is the same for all requests about the task."""
    user: str = ""
    """Its other part, the request."""
    exemplars: list[Exemplar] = []
    """Candidates that it shows."""


class PromptAnswer(_Answer):
    task: str
    run_id: str
    kind: str
    seed: int
    """The same seed draws the same exemplars, as long as the run has no others."""
    prompts: list[DrawnPrompt]


class SessionRequest(_Request):
    """A conversation about one task: each turn is evaluated, and the next prompt is its observation."""

    task: str = Field(min_length=1, max_length=200)
    run_id: Name = "default"
    policy: str | None = Field(default=None, max_length=100)
    policy_version: int | None = Field(default=None, ge=0, le=2**53)
    sizes: Literal["all", "train"] | None = None
    """Sizes that its turns check, as in :class:`JobRequest`."""
    turns: int = Field(default=4, ge=1, le=MAX_TURNS)
    """Number of turns after which the conversation ends."""
    discount: float = Field(default=0.4, ge=0, le=1)
    """Weight of a later turn's reward for an earlier one; 0.4 is Kevin's."""
    observations: Literal["delta", "whole"] = "delta"
    """``delta``: what is new, for a model that has the dialogue before it. ``whole``: prompts that stand alone."""
    kind: PromptKindName = "refine"
    """Strategy that writes the prompts. ``contrast`` and ``fsr`` also know the run's exemplars."""
    options: PromptOptions = Field(default={}, max_length=16)
    """Options of that strategy."""
    start: str | None = Field(default=None, min_length=1, max_length=MAX_COMPLETION_CHARS)
    """Completion with a kernel to begin with: it is evaluated before the first prompt, which revises it, and is no
    turn. Such a conversation is shown no exemplars of the run."""


class TurnRequest(_Request):
    number: int | None = Field(default=None, ge=1, le=MAX_TURNS)
    """Number of the turn, from 1: a repeated turn gets the same answer. Without it every request is a new turn."""
    completion: str = Field(max_length=MAX_COMPLETION_CHARS)
    policy_version: int | None = Field(default=None, ge=0, le=2**53)
    """Version of the weights that wrote this reply; by default the session's."""
    deadline_s: float | None = Field(default=None, gt=0, le=86_400, allow_inf_nan=False)


class Turn(_Answer):
    """One evaluated turn of a session."""

    number: int
    """From 1."""
    completion: str
    result: RewardResult
    observation: str
    """The next message, as the session's ``observations`` has it; empty after the last turn."""
    best: bool
    """Whether it is the best of the session so far."""
    policy_version: int | None = None
    """Version of the weights that wrote the reply."""


class Session(_Answer):
    id: JobId
    task: str
    run_id: str
    policy: str
    """Reward policy with its version."""
    prompt: str
    """The first prompt."""
    system: str = ""
    """Its first part, which is the same for all requests about the task: rules, device, task, sizes."""
    user: str = ""
    """Its other part, the request."""
    turns: list[Turn] = []
    start: RewardResult | None = None
    """Result of the kernel that it began with."""
    max_turns: int
    discount: float
    done: bool
    returns: list[float | None] = []
    """Discounted return of each turn so far; None if it or a later turn has no score."""


MAX_CLAIM = 256
"""Trajectories in one claim or page."""
LeaseId = Annotated[str, StringConstraints(max_length=40, pattern=r"^[0-9]{1,3}-[0-9a-f]{24}$")]


class ClaimRequest(_Request):
    """Lease the next trajectories of a run to one consumer of a group."""

    run_id: Name = "default"
    group: Name = "default"
    """Consumers of one group share the trajectories; each group gets all of them."""
    count: int = Field(default=1, ge=1, le=MAX_CLAIM)
    """At most so many."""
    lease_s: float = Field(default=600.0, gt=0, le=86_400, allow_inf_nan=False)
    """Seconds after which what was not acknowledged is claimed again."""
    max_staleness: int | None = Field(default=None, ge=0, le=2**53)
    """Pass over, for the whole group, trajectories that are further behind the run's ``policy_version``."""
    wait_s: float = Field(default=0.0, ge=0, le=MAX_WAIT_S, allow_inf_nan=False)
    """Hold the answer until there is a trajectory."""


class Experience(_Answer):
    """A scored trajectory: a job, or a session that is done."""

    number: int
    """Its position in the stream."""
    job: Job | None = None
    session: Session | None = None
    prompt: str | None = None
    """Of a job, as its request had it."""
    completion: str | None = None
    """Of a job; None if its request had a candidate in parts."""
    group_id: str | None = None


class Claim(_Answer):
    """Leased trajectories."""

    lease: str
    """For the acknowledgement."""
    experiences: list[Experience]
    passed_over: int
    """Stale trajectories that this claim skipped."""


class AcknowledgeRequest(_Request):
    lease: LeaseId


class Acknowledged(_Answer):
    acknowledged: int
    """Number of trajectories."""


class SimilarCase(_Answer):
    """A case that a suspect is like."""

    case: str
    kind: Literal["cheat", "honest"]
    similarity: float
    """Of the texts, 0 to 1; 1 also for equal PTX."""


class Suspect(_Answer):
    """A candidate whose reward is withheld, or was."""

    id: JobId
    caller: str
    run_id: str
    task: str
    candidate: str
    work: int
    """Number of its evaluation in the server's database."""
    decision: Literal["release", "confirm"] | None = None
    """None: it waits for one."""
    why: str
    """What its reward jumped by."""
    cases: list[SimilarCase]
    created_at: float
    """UTC seconds since 1970."""


class SuspectDecision(_Request):
    """``release``: the jobs get their rewards, and the candidate counts as honest. ``confirm``: it counts as a hack."""

    decision: Literal["release", "confirm"]


class GroupRow(_Answer):
    """A job of a group."""

    id: JobId
    status: JobStatus
    policy_version: int | None = None
    reward: float | None = None
    """That of a failure if the candidate is unsupported; None if it has no score yet, or none at all."""
    smoothed: float | None = None
    """``clip((reward - mean) / deviation, -1.5, 1.5)`` over the group (CUDA-L1); None until it is complete."""


class GroupAnswer(_Answer):
    """Jobs with one ``group_id``, in the order of submission."""

    run_id: str
    group_id: str
    complete: bool
    """Whether all of its jobs have ended, and there are as many as were expected."""
    jobs: list[GroupRow]


class ServerStatus(_Answer):
    """State of the server."""

    state: Literal["starting", "ready", "draining"]
    version: str
    engine: str
    devices: list[str]
    workers: int
    queued: int
    running: int
