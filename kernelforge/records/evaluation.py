"""Evaluations: verdict, reason, correctness, performance; and profiles: metrics of each kernel of a plan."""

from __future__ import annotations

import math
import re
from enum import StrEnum
from typing import Final, Literal

from pydantic import Field, FiniteFloat, field_validator, model_validator

from kernelforge.records.base import Record, content_hash
from kernelforge.records.task import DRAWN_SIZE, Build, Lane
from kernelforge.records.timing import LaunchQueue, Timing


class Verdict(StrEnum):
    """Outcome of an evaluation. ``INFRA`` (infrastructure failure, or unsupported) is never a score."""

    OK = "OK"
    WRONG = "WRONG"
    POLICY = "POLICY"
    BUILD = "BUILD"
    CRASH = "CRASH"
    TIMEOUT = "TIMEOUT"
    LIMIT = "LIMIT"
    INFRA = "INFRA"


UNCOMPARED: Final = "OK, full size not compared"
"""Label in place of ``OK`` when no value was compared at the full size."""


class Comparison(Record):
    """Comparison of a candidate's outputs with the oracle's, at one size with one draw of inputs."""

    ok: bool
    message: str = ""
    """Message for the Coder: output, worst element with index, expected and actual value, count of differences."""
    output: int | None = None
    """Position of the wrong output."""
    mismatched: int = Field(default=0, ge=0)
    total: int = Field(default=0, ge=0)
    worst_index: tuple[int, ...] | None = None
    expected: float | None = None
    got: float | None = None
    error: float | None = None
    """Largest error found, as a multiple of the tolerance: above 1 fails."""

    @model_validator(mode="after")
    def _explained(self) -> Comparison:
        if self.mismatched > self.total:
            raise ValueError(f"{self.mismatched} of {self.total} elements cannot differ")
        if not self.ok and not self.message:
            raise ValueError("a failed comparison needs a message")
        if self.ok and self.mismatched:
            raise ValueError(f"a comparison with {self.mismatched} wrong elements is not ok")
        return self


class SizeCheck(Record):
    """Correctness at one size."""

    size: str
    status: Literal["passed", "failed", "guarded", "skipped"]
    """``guarded``: the plan's own assert refused a hidden size. ``skipped``: no value was compared, see
    ``message``."""
    families: tuple[str, ...] = ()
    """Input distributions that were run, in order."""
    message: str = ""
    error: float | None = None
    """Largest error over the draws, as a multiple of the tolerance."""
    launches: int | None = None

    @model_validator(mode="after")
    def _explained(self) -> SizeCheck:
        if self.status != "passed" and not self.message:
            raise ValueError(f"size {self.size} {self.status}: a message must say why")
        if self.status == "guarded" and not self.size.startswith("hidden"):
            raise ValueError(f"a plan may refuse hidden sizes only, not {self.size}")
        return self


class Correctness(Record):
    """Correctness over all sizes."""

    sizes: tuple[SizeCheck, ...]

    @model_validator(mode="after")
    def _each_size_once(self) -> Correctness:
        names = [check.size for check in self.sizes]
        if len(set(names)) != len(names):
            raise ValueError(f"sizes repeat: {', '.join(names)}")
        return self

    def at(self, size: str) -> SizeCheck | None:
        """The check at a size; None if it was not reached."""
        return next((check for check in self.sizes if check.size == size), None)

    @property
    def passed(self) -> bool:
        """Whether values were compared at one size at least, and no size failed."""
        states = {check.status for check in self.sizes}
        return "passed" in states and "failed" not in states

    @property
    def full_size_compared(self) -> bool:
        """Whether values were compared at the full size too, all of them or a part."""
        return not any(check.size == "full" and check.status == "skipped" for check in self.sizes)

    @property
    def generality(self) -> float:
        """Share of the listed sizes that the plan did not refuse; the size drawn per evaluation does not count."""
        listed = [check for check in self.sizes if check.size != DRAWN_SIZE]
        return sum(check.status != "guarded" for check in listed) / max(len(listed), 1)


class Origin(StrEnum):
    """Origin of a number."""

    MEASURED = "measured"
    """Read from hardware counters or clocks."""
    COUNTED = "counted"
    """Counted exactly over the PTX that ran (or scaled from sampled blocks; then ``sampled`` is below 1)."""
    COMPILER = "compiler"
    """Reported by ptxas for the real architecture."""
    ESTIMATED = "estimated"
    """Worked out from counts of the PTX: executions of the machine code that it was assembled to, and energy."""
    MODELLED = "modelled"
    """Computed from a model of the hardware."""


class PredictedSpeedup(Record):
    """Ratio of eager PyTorch's time on a GPU to a candidate's, of which neither was measured here."""

    gpu: str
    """Name of the GPU."""
    speedup: float = Field(gt=0, allow_inf_nan=False)
    low: float = Field(gt=0, allow_inf_nan=False)
    high: float = Field(gt=0, allow_inf_nan=False)
    """Ends of the 90 % interval, by the errors of both times where hardware answered."""
    eager_us: float = Field(gt=0, allow_inf_nan=False)
    """Time of eager PyTorch."""
    eager_origin: Literal["predicted", "published"]
    eager_source: str
    """The model of PyTorch's time, or where the time was published."""

    @model_validator(mode="after")
    def _inside(self) -> PredictedSpeedup:
        if not self.low <= self.speedup <= self.high:
            raise ValueError(f"{self.speedup} lies outside of its interval, {self.low} to {self.high}")
        return self


class Performance(Record):
    """Time of the candidate at the full size. A modelled time can never be labelled measured."""

    time_us: float = Field(gt=0, allow_inf_nan=False)
    origin: Origin
    interval_us: tuple[float, float] | None = None
    """Confidence interval of a measured time: lower and upper end."""
    samples: int | None = Field(default=None, ge=1)
    protocol: str
    """``emulated/7`` for modelled times; the timing protocol's version for measured ones."""
    bound: str
    speedup: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """Against the fastest baseline; only where both were measured."""
    speedup_lower: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """Lower end of the confidence interval of ``speedup``."""
    speedup_eager: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """Against eager PyTorch, as others publish it."""
    timing: Timing | None = None
    """Samples and baselines of a measured time."""
    quarantined: str | None = None
    """Reason why a measured time of correct values is not believed: it has no speedup, and appears under integrity."""
    predicted: PredictedSpeedup | None = None
    """Of a modelled time; a measured one has a speedup, or none."""
    predicted_launches: LaunchQueue | None = None
    """Launch and queue time of eager PyTorch next to a modelled time; a measured one may have a trace in ``timing``."""

    @model_validator(mode="after")
    def _honest(self) -> Performance:
        if self.origin not in (Origin.MEASURED, Origin.MODELLED):
            raise ValueError("a time is measured or modelled")
        if self.origin is Origin.MODELLED:
            if self.protocol.split("/")[0] != "emulated":
                raise ValueError("a modelled time belongs to the protocol 'emulated/N'")
            if self.samples is not None or self.interval_us is not None:
                raise ValueError("a modelled time has no samples and no interval")
            if self.speedup is not None or self.speedup_lower is not None or self.speedup_eager is not None:
                raise ValueError("a modelled time has no speedup")
            if self.timing is not None or self.quarantined is not None:
                raise ValueError("a modelled time was not timed")
            if self.predicted is not None:
                eager_us = self.predicted.speedup * self.time_us
                if not math.isclose(eager_us, self.predicted.eager_us, rel_tol=1e-6):
                    raise ValueError("a predicted speedup is the time of eager PyTorch over the modelled one")
        elif self.predicted is not None or self.predicted_launches is not None:
            raise ValueError("a measured time has no predicted speedup")
        elif self.samples is None or self.interval_us is None or self.protocol.startswith("emulated"):
            raise ValueError("a measured time needs samples, an interval and a timing protocol")
        if self.quarantined is not None and (self.speedup, self.speedup_lower, self.speedup_eager) != (None,) * 3:
            raise ValueError("a quarantined time has no speedup")
        if self.interval_us is not None and not 0 < self.interval_us[0] <= self.interval_us[1] < math.inf:
            raise ValueError(f"{self.interval_us} is not an interval of times")
        if self.speedup_lower is not None and (self.speedup is None or self.speedup_lower > self.speedup):
            raise ValueError("the lower bound of a speedup needs a speedup that is not below it")
        return self

    @property
    def plausible_us(self) -> float | None:
        """The time in microseconds if it was measured and is not quarantined."""
        return self.time_us if self.origin is Origin.MEASURED and self.quarantined is None else None


def eager_launches(performance: Performance | None) -> LaunchQueue | None:
    """Launch and queue time of eager PyTorch next to a candidate's time: traced, else predicted, else None."""
    if performance is None:
        return None
    return performance.predicted_launches if performance.timing is None else performance.timing.eager_launches


def without_prediction(performance: Performance | None) -> Performance | None:
    """The time alone: a prediction follows from it, and from data that change with the version of the package."""
    alone = {"predicted": None, "predicted_launches": None}
    return None if performance is None else performance.model_copy(update=alone)


class Forecast(Record):
    """Time that the model gave for a candidate before a GPU could measure it. It is no measurement, and none rests on
    it."""

    expected_us: float = Field(gt=0, allow_inf_nan=False)
    """The time that is expected to be measured: :attr:`modelled_us`, multiplied by the median of measured over modelled
    time on the same GPU, which is drawn towards 1 while it rests on few candidates."""
    low_us: float = Field(gt=0, allow_inf_nan=False)
    high_us: float = Field(gt=0, allow_inf_nan=False)
    """Ends of its 90 % interval, by the model's errors where hardware answered."""
    modelled_us: float = Field(gt=0, allow_inf_nan=False)
    """As the model gave it; the ranks of a round are by this one."""
    idle: float = Field(default=0.0, ge=0, le=1)
    """Share of it in kernels that leave schedulers of the GPU idle, whose times scatter more."""
    measured: int = Field(default=0, ge=0)
    """Measured candidates of the results folder that the median is of."""
    tasks: int = Field(default=0, ge=0)
    """Tasks that these were for."""
    median: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """That median; None where nothing was measured."""
    protocol: str
    """Version of the model: ``emulated/7``."""
    gpu: str
    """The GPU whose figures the model used."""
    exact: bool
    """Whether it is the GPU that measures; else the nearest known one."""
    figures: str
    """Hash of these figures."""

    @property
    def factor(self) -> float:
        """Ratio of the expected to the modelled time: what earlier measurements on the same GPU say."""
        return self.expected_us / self.modelled_us

    @model_validator(mode="after")
    def _consistent(self) -> Forecast:
        if not self.low_us <= self.expected_us <= self.high_us:
            raise ValueError(f"{self.expected_us} us lies outside of its interval, {self.low_us} to {self.high_us} us")
        if self.protocol.partition("/")[0] != "emulated":
            raise ValueError("a forecast belongs to the protocol 'emulated/N'")
        if self.tasks > self.measured or (self.measured == 0 and self.expected_us != self.modelled_us):
            raise ValueError("a factor rests on measured candidates, of which each is for one task")
        if (self.measured == 0) != (self.median is None):
            raise ValueError("measured candidates have a median, and nothing else has")
        return self


class Rank(Record):
    """Position of a candidate in its round by the predicted times, where only the first are measured."""

    position: int = Field(ge=1)
    """1 is the fastest."""
    of: int = Field(ge=1)
    """Candidates of the round with a predicted time."""
    measured: int = Field(ge=1)
    """How many of them are measured: the first."""

    @model_validator(mode="after")
    def _inside(self) -> Rank:
        if self.position > self.of:
            raise ValueError(f"there is no position {self.position} among {self.of}")
        return self


class Screening(Record):
    """Outcome of a candidate on the emulated device in front of a GPU, before the GPU was taken."""

    device: str
    """``emulated:h100``."""
    outcome: Literal["passed", "failed", "unsupported", "infra"]
    """``failed``: it ended the evaluation, and no GPU was used. The others left the candidate to the GPU:
    ``unsupported`` lacks what the candidate needs; ``infra`` is trouble of the machine, twice where a child died."""
    message: str = ""
    """Why it did not run; of a candidate that passed, why there is no forecast."""
    forecast: Forecast | None = None
    rank: Rank | None = None
    """In its round, where not all candidates are measured."""

    @model_validator(mode="after")
    def _explained(self) -> Screening:
        if self.device.partition(":")[0] != "emulated":
            raise ValueError(f"{self.device} is no emulated device")
        if not self.ran and not self.message:
            raise ValueError("a message must say why the emulated device did not run the candidate")
        if self.outcome != "passed" and self.forecast is not None:
            raise ValueError("only a candidate that passed has a forecast")
        if self.rank is not None and self.forecast is None:
            raise ValueError("a rank follows from a forecast")
        return self

    @property
    def ran(self) -> bool:
        """Whether the candidate ran there, so that its accesses were checked."""
        return self.outcome in ("passed", "failed")

    @property
    def passed_over(self) -> bool:
        """Whether others of its round are measured, and the candidate is not."""
        return self.rank is not None and self.rank.position > self.rank.measured


CheckedSizes = Literal["all", "train"]
"""``train``: the full size is compared in part at most, on shared draws of the other sizes."""
TRAIN_SUFFIX: Final = "+train"
"""In the evaluator version of evaluations for training; see :attr:`.MeasureSettings.sizes`."""


class Fingerprint(Record):
    """Hardware, software and jail of an evaluation."""

    device: str
    device_kind: Literal["cuda", "emulated", "cpu"]
    """``cpu`` is torch on the host, which checks values of ``modelnew`` candidates and measures nothing."""
    arch: str
    toolchain: str
    kernelforge: str
    evaluator: str
    """Version of the evaluation protocol; changes whenever a verdict may change."""
    torch: str
    python: str
    host: str
    jail: str
    gpu: str | None = None
    """Name of the GPU that measured: ``NVIDIA H200``."""
    gpu_uuid: str | None = None
    driver: str | None = None
    """Version of the GPU's driver."""
    runtime: str | None = None
    """Package that calls the driver: ``cupy 14.2.0``."""

    @property
    def sizes(self) -> CheckedSizes:
        """``train``: the full size was compared in part at most, on shared draws of the other sizes."""
        return "train" if TRAIN_SUFFIX.removeprefix("+") in self.evaluator.split("+") else "all"

    def at_sizes(self, sizes: CheckedSizes | None) -> Fingerprint:
        """The same of an evaluation that checks other sizes; None for the same sizes."""
        if sizes is None or sizes == self.sizes:
            return self
        parts = [part for part in self.evaluator.split("+") if part != TRAIN_SUFFIX.removeprefix("+")]
        evaluator = "+".join(parts) + (TRAIN_SUFFIX if sizes == "train" else "")
        return self.model_copy(update={"evaluator": evaluator})

    @model_validator(mode="after")
    def _kind_is_in_the_name(self) -> Fingerprint:
        if self.device.partition(":")[0] != self.device_kind:
            raise ValueError(f"device {self.device} is not of kind {self.device_kind}")
        if (self.gpu is None) != (self.device_kind != "cuda"):
            raise ValueError("a fingerprint names the GPU where one measured, and only there")
        return self


Stage = Literal["parse", "plan", "compile", "policy", "small", "hidden", "full", "sanitizer", "timing", "done"]
"""Stages at which a cascade can end, in order."""


class Evaluation(Record):
    """Build, verdict, correctness and performance of one candidate on one task and device."""

    candidate: str
    task: str
    """Digest of the task."""
    fingerprint: Fingerprint
    verdict: Verdict
    stage: Stage
    """Where the cascade ended."""
    reason: str = ""
    """Empty for OK; otherwise the reason, for a Coder and for people."""
    build: Build | None = None
    lane: Lane = "plan"
    """Kind of the candidate. ``modelnew`` and ``c`` have host code and no build, and earn no reward by default."""
    correctness: Correctness | None = None
    performance: Performance | None = None
    screening: Screening | None = None
    """Of a GPU's candidate: what the emulated device in front found, and the time that it predicted. None where there
    was no such device, or the evaluation ended before it."""
    seconds: dict[str, FiniteFloat] = {}
    """Wall time by stage: ``build oracle emulation harness ...``."""
    equals: str | None = None
    """Key of the evaluation that answered, because its candidate has the same PTX and plan but for names. None where
    the candidate ran itself."""

    @model_validator(mode="after")
    def _consistent(self) -> Evaluation:
        if self.verdict is Verdict.OK:
            if self.lane == "plan" and (self.build is None or not self.build.ok):
                raise ValueError("OK needs a good build")
            if self.correctness is None or not self.correctness.passed:
                raise ValueError("OK needs passed correctness")
            if self.reason:
                raise ValueError("OK needs no reason")
        else:
            if self.performance is not None:
                raise ValueError(f"verdict {self.verdict} must not carry a performance")
            if not self.reason:
                raise ValueError(f"verdict {self.verdict} needs a reason")
        if self.performance is not None:
            measured = self.performance.origin is Origin.MEASURED
            on_cpu = self.lane == "c" and self.fingerprint.device_kind == "cpu"
            if measured and on_cpu != self.performance.protocol.startswith("cpu/"):
                raise ValueError("a C function alone is timed on a CPU, by the protocol 'cpu/N'")
            if measured and not on_cpu and self.fingerprint.device_kind != "cuda":
                raise ValueError(f"{self.fingerprint.device_kind} device cannot carry a measured time")
            if not measured and self.fingerprint.device_kind != "emulated":
                raise ValueError("a modelled time comes from an emulated device only")
        if self.equals is not None and self.verdict not in (Verdict.OK, Verdict.WRONG):
            raise ValueError(f"verdict {self.verdict} says nothing about an equal candidate")
        if self.screening is not None:
            if self.passed_over:
                self._predicted_alone(self.screening)
            elif self.fingerprint.device_kind != "cuda":
                raise ValueError("an emulated device stands in front of a GPU only")
            if self.screening.outcome == "failed" and self.verdict is Verdict.OK:
                raise ValueError("a candidate that failed on the emulated device is not OK")
        return self

    def _predicted_alone(self, screening: Screening) -> None:
        """Refuse a passed-over candidate that claims anything of a GPU."""
        if self.fingerprint.device != screening.device:
            raise ValueError("a candidate that was not measured belongs to the emulated device that ran it")
        if self.verdict is Verdict.OK and not self.uncompared:
            raise ValueError("a candidate that was not measured was not compared at the full size")

    @property
    def passed_over(self) -> bool:
        """Whether others of its round were predicted to be faster, and it was not measured: it has no score, never
        becomes the best, and counts on no board."""
        return self.screening is not None and self.screening.passed_over

    @property
    def uncompared(self) -> bool:
        """Whether it is OK without a compared value at the full size: it then earns no reward and leads no board."""
        return self.verdict is Verdict.OK and self.correctness is not None and not self.correctness.full_size_compared

    @property
    def outcome(self) -> str:
        """The verdict in words, such as ``OK, full size not compared``."""
        return outcome_words(self.verdict, self.uncompared)

    @property
    def failed_at_hidden(self) -> bool:
        """Whether a hidden size ended it: each such answer reveals something about the hidden sizes."""
        checks = self.correctness.sizes if self.correctness else ()
        return any(check.status == "failed" and check.size.startswith("hidden") for check in checks)

    @property
    def key(self) -> str:
        """Hash of all that the evaluation depends on: candidate, task, evaluator, device, toolchain."""
        return evaluation_key(self.candidate, self.task, self.fingerprint)


class ForecastOutcome(Record):
    """A measured time, and the forecast that was made before it."""

    task: str
    candidate: str
    """Its hash."""
    gpu: str
    """Name of the GPU that measured."""
    measured_us: float = Field(gt=0, allow_inf_nan=False)
    forecast: Forecast


def forecast_outcome(evaluation: Evaluation, task: str) -> ForecastOutcome | None:
    """The outcome of an evaluation's forecast; None where there is none, or the time says nothing about the model.

    That is a time that is not believed, or holds what the model does not have: launches by the host, a warm L2, gaps
    between requests. Nor is that of an equal candidate one more.
    """
    speed, screening, gpu = evaluation.performance, evaluation.screening, evaluation.fingerprint.gpu
    if speed is None or screening is None or screening.forecast is None or gpu is None or evaluation.equals is not None:
        return None
    if speed.origin is not Origin.MEASURED or speed.quarantined is not None or speed.protocol != "graph/1":
        return None
    return ForecastOutcome(
        task=task,
        candidate=evaluation.candidate,
        gpu=gpu,
        measured_us=speed.time_us,
        forecast=screening.forecast,
    )


def outcome_words(verdict: Verdict, uncompared: bool) -> str:
    """A verdict in words."""
    return UNCOMPARED if uncompared else verdict.value


def evaluation_key(candidate: str, task: str, fingerprint: Fingerprint) -> str:
    """Key of an evaluation.

    Args:
        candidate: hash of the candidate.
        task: digest of the task.
        fingerprint: names device and toolchain.
    """
    f = fingerprint
    device = f.device if f.gpu is None else f"{f.gpu}, driver {f.driver}"
    return content_hash("evaluation", candidate, task, f.evaluator, device, f.toolchain)


class Metric(Record):
    """One number, named as in Nsight Compute if it has the same meaning, or ``ptx__*`` if it counts PTX."""

    name: str
    value: float
    unit: str
    """``byte``, ``sector``, ``inst``, ``%``, ``us``, ``warp``, ``block``, ``register/thread``, ``request``, ``1``..."""
    origin: Origin


ENERGY_ESTIMATE = "kernelforge__energy_estimate.sum"
"""Metric of a plan: its estimated energy in millijoules. A profile has it by this name alone, not among its metrics."""
MODELLED_TIME = "kernelforge__time_us"
"""Metric of a kernel: its modelled time."""
_LIMIT_METRIC = re.compile(r"kernelforge__limit_(\w+)_us")


def limit_metric(limit: str) -> str:
    """Name of the metric of a kernel's modelled time under one limit alone, such as ``dram``."""
    return f"kernelforge__limit_{limit}_us"


class MemoryHotSpot(Record):
    """One memory instruction, with its cost and source line."""

    source_line: int
    opcode: str
    space: str
    access: str
    requests: int
    transactions: int
    """32-byte sectors for global and local, wavefronts for shared memory."""
    ideal_transactions: int


class SassOpcode(Record):
    """Machine instructions of one opcode, without modifiers: ``LDG``."""

    opcode: str
    warp_instructions: int = Field(ge=0)


class SassLine(Record):
    """Machine instructions that come from one line of the source."""

    source_line: int = Field(ge=1)
    warp_instructions: int = Field(ge=0)
    opcode: str
    """The one that warps execute the most."""


class SassProfile(Record):
    """Executions of a kernel's machine code by warps, over all launches."""

    origin: Origin = Origin.ESTIMATED
    warp_instructions: int = Field(ge=0)
    opcodes: tuple[SassOpcode, ...]
    """All of them, the most frequent first."""
    lines: tuple[SassLine, ...] = ()
    """Those with the most instructions, the first of them first."""


class KernelProfile(Record):
    """Metrics of all launches of one kernel in one run of the plan, summed where they are sums."""

    kernel: str
    launches: int = Field(ge=1)
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    sampled: float = Field(gt=0, le=1)
    """Share of executed blocks; sums are scaled up by its inverse."""
    metrics: tuple[Metric, ...]
    hot_spots: tuple[MemoryHotSpot, ...] = ()
    sass: SassProfile | None = None
    """Of machine code; None where there is no estimate."""

    @property
    def modelled_us(self) -> float | None:
        """Modelled time of all launches in microseconds; None where none is modelled."""
        return next((metric.value for metric in self.metrics if metric.name == MODELLED_TIME), None)

    @property
    def limits_us(self) -> dict[str, float]:
        """Modelled time under each limit of the GPU alone, in microseconds, by the limit: ``dram l2 l1 shared fp32
        tensor issue latency blocks atomics host launch``. Empty where none is modelled."""
        names = ((_LIMIT_METRIC.fullmatch(metric.name), metric.value) for metric in self.metrics)
        return {match[1]: value for match, value in names if match}


class EnergyPart(Record):
    """Estimated energy of one kind of work in one run of a plan."""

    name: str
    """``dram``, ``l2``, ``shared``, ``fp32``, ``int``, or ``tensor`` with the type of A: ``tensor f16``."""
    millijoules: float = Field(ge=0, allow_inf_nan=False)
    low_mj: float = Field(ge=0, allow_inf_nan=False)
    high_mj: float = Field(ge=0, allow_inf_nan=False)
    """By the least and by the most that was published of such an operation or byte."""
    source: str
    """Publications of the three."""

    @model_validator(mode="after")
    def _inside(self) -> EnergyPart:
        if not self.low_mj <= self.millijoules <= self.high_mj:
            raise ValueError(f"{self.name}: {self.millijoules} mJ is not from {self.low_mj} to {self.high_mj} mJ")
        return self


class EnergyEstimate(Record):
    """Energy of one run of a plan, from counted work and published energies of each kind of it. Never measured.

    It has arithmetic and moved bytes alone: instructions, leakage and clocks take most of a GPU's power.
    """

    origin: Literal[Origin.ESTIMATED] = Origin.ESTIMATED
    parts: tuple[EnergyPart, ...]
    omitted: tuple[str, ...] = ()
    """Arithmetic of the run of which no energy was published: ``fp64``, ``special``, ``tensor e4m3``."""

    @property
    def millijoules(self) -> float:
        return sum(part.millijoules for part in self.parts)

    @property
    def interval_mj(self) -> tuple[float, float]:
        """By the least and the most that was published. No confidence interval: leakage and clocks are in neither."""
        return sum(part.low_mj for part in self.parts), sum(part.high_mj for part in self.parts)


class Roofline(Record):
    """Position of the complete plan on the device's roofline."""

    flops: float
    dram_bytes: float
    compulsory_bytes: float
    host_bytes: float = 0.0
    """Bytes of host memory that must be read; 0 in profiles of earlier versions."""
    arithmetic_intensity: float
    """Flop per DRAM byte."""
    ridge: float
    """Flop per byte where the device's compute roof begins to bind."""
    bound: str
    """One of the limits of a modelled time, such as ``dram``, or ``launch``."""
    time_us: float
    """Time under that bound."""
    time_origin: Origin
    floor_us: float | None = None
    """Least time that a kernel can be expected to take: the longer of the compulsory bytes at the bandwidth that the
    memory sustains and the reference's operations at the peak that its types allow, and one launch. None where
    the figures of the GPU are not known, and in profiles of earlier versions."""

    @field_validator("time_origin")
    @classmethod
    def _a_time(cls, value: Origin) -> Origin:
        if value not in (Origin.MEASURED, Origin.MODELLED):
            raise ValueError("a time is measured or modelled")
        return value


class Profile(Record):
    """Counters of one candidate at one size on one device."""

    size: str
    device: str
    kernels: tuple[KernelProfile, ...]
    metrics: tuple[Metric, ...]
    """Totals over the plan."""
    roofline: Roofline
    notes: tuple[str, ...] = ()
    """Remarks for readers: metrics that the chip lacks, omitted launches, why counters are not measured."""
    energy: EnergyEstimate | None = None
    """Of an emulated device alone, and None in profiles of earlier versions: a GPU's energy is measured."""

    @model_validator(mode="after")
    def _nothing_measured_when_emulated(self) -> Profile:
        if self.device.partition(":")[0] != "emulated":
            if self.energy is not None:
                raise ValueError("an energy is estimated of an emulated device alone")
            return self
        if self.roofline.time_origin is Origin.MEASURED:
            raise ValueError("an emulated device cannot carry a measured time")
        for metric in (*self.metrics, *(kernel_metric for kernel in self.kernels for kernel_metric in kernel.metrics)):
            if metric.origin is Origin.MEASURED:
                raise ValueError(f"an emulated device cannot carry the measured metric {metric.name}")
        return self

    def metric(self, name: str) -> Metric | None:
        """The plan-wide metric of that name, or None; the estimated energy too."""
        for metric in self.metrics:
            if metric.name == name:
                return metric
        if name == ENERGY_ESTIMATE and self.energy is not None:
            return Metric(name=name, value=self.energy.millijoules, unit="mJ", origin=self.energy.origin)
        return None

    def value(self, name: str) -> float | None:
        metric = self.metric(name)
        return None if metric is None else metric.value
