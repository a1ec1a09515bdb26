"""The cascade where time is measured: real jailed processes, PTX on the software driver, baselines on the CPU.

No GPU is at hand, so times are made up, and every launch takes 1 ms: what is tested is who is asked what, in which
order, and what is made of the answers.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from kernelforge.compile import Artifact, Compiler
from kernelforge.devices import make_device
from kernelforge.devices.base import Device, RunFailure, RunRequest, RunResult
from kernelforge.devices.cuda.device import CudaDevice
from kernelforge.devices.cuda.session import CudaSession
from kernelforge.errors import ChildDied, DeviceError, SandboxError, TaskError, UnsupportedError
from kernelforge.evaluation import EvaluationResult, Evaluator
from kernelforge.evaluation.oracle.client import Oracle
from kernelforge.evaluation.stages import screening
from kernelforge.evaluation.stages.correctness import CorrectnessStage
from kernelforge.evaluation.stages.screening import Screen
from kernelforge.prediction.correction import ModelErrors
from kernelforge.records import (
    Candidate,
    Fingerprint,
    KernelProfile,
    MeasureSettings,
    Metric,
    Origin,
    Profile,
    Roofline,
    Screening,
    SizeFacts,
    Verdict,
    forecast_outcome,
)
from kernelforge.rewards import reward
from kernelforge.sandbox import Zygote, select_tier
from tests.devices.cuda import fake_timer
from tests.devices.cuda.fake_timer import FakeTimer
from tests.devices.cuda.software import with_ptx
from tests.devices.cuda.timer_driver import CARVE_OUT_US, NODE_GAP_US
from tests.support.axpy import KERNEL, PLAN, SIZES, axpy_task
from tests.support.factories import make_fingerprint

pytestmark = pytest.mark.skipif(select_tier().tier == "none", reason="no jail tier works on this machine")

TASK = axpy_task(sizes=SIZES[:3])
SETTINGS = MeasureSettings(precision=0.5, seconds=1.0)


class Session(CudaSession):
    """Profiles nothing: there are no counters here."""

    def profile(self, request: RunRequest, facts: SizeFacts) -> tuple[Profile, None]:
        raise AssertionError("a profile was taken where none was asked for")


class TimedDevice(CudaDevice):
    """``cuda:0`` where a launch takes 1 ms."""

    def __init__(self) -> None:
        super().__init__(0, driver="tests.devices.cuda.timer_driver:create", grace_s=5.0)
        self.opened = 0
        self.session: type[CudaSession] = Session

    def open(self, artifact: Artifact) -> CudaSession:
        self.runners.require_healthy()
        self.opened += 1
        return self.session(self.target, self.runners, with_ptx(artifact))

    def clocks(self) -> None:
        return None


@pytest.fixture(autouse=True)
def _clocks_that_nothing_disturbs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernelforge.evaluation.stages.full_size_measured.CandidateTimer", FakeTimer)


@pytest.fixture(scope="module")
def device() -> Iterator[TimedDevice]:
    with TimedDevice() as made:
        yield made


@pytest.fixture(scope="module")
def emulated() -> Iterator[Device]:
    made = make_device("emulated:h100")
    yield made
    made.close()


MakeScreen = Callable[..., Screen]


@pytest.fixture(scope="module")
def screen_on(compiler: Compiler, device: TimedDevice) -> MakeScreen:
    """Makes screens: an emulated device in front of the software GPU, of which no figures are known."""

    def make(emulated: Device, open_oracle: Callable[[], Oracle], errors: ModelErrors | None = None) -> Screen:
        fingerprint = make_fingerprint(device=emulated.name)
        return Screen(emulated, open_oracle, compiler, device, fingerprint=fingerprint, exact=False, errors=errors)

    return make


@pytest.fixture(scope="module")
def screen(screen_on: MakeScreen, emulated: Device, kept_zygotes: Callable[..., Zygote]) -> Iterator[Screen]:
    with screen_on(emulated, lambda: Oracle(kept_zygotes("oracle"), TASK)) as made:
        yield made


@pytest.fixture(scope="module")
def compiler(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Compiler]:
    with Compiler(tmp_path_factory.mktemp("builds")) as made:
        yield made


@pytest.fixture(scope="module")
def oracle(kept_zygotes: Callable[..., Zygote]) -> Iterator[Oracle]:
    with Oracle(kept_zygotes("oracle"), TASK) as made:
        yield made


def fingerprint_on(device: Device) -> Fingerprint:
    return Fingerprint(
        device=device.name, device_kind="cuda", arch=device.arch, toolchain="nvrtc", kernelforge="0", evaluator="1",
        torch="2", python="3", host="test", jail="namespaces", **device.identity(),
    )  # fmt: skip


class Leases:
    """Counts who holds the device."""

    def __init__(self) -> None:
        self.held = 0
        self.taken = 0
        self._lock = threading.Lock()

    @contextmanager
    def __call__(self) -> Iterator[None]:
        with self._lock:
            self.held += 1
            self.taken += 1
        try:
            yield
        finally:
            self.held -= 1


@pytest.fixture
def leases() -> Leases:
    return Leases()


@pytest.fixture
def evaluator(oracle: Oracle, compiler: Compiler, device: TimedDevice, screen: Screen, leases: Leases) -> Evaluator:
    fingerprint = fingerprint_on(device)
    return Evaluator(TASK, oracle, compiler, device, fingerprint, screen=screen, settings=SETTINGS, gpu_lock=leases)


def run(evaluator: Evaluator, source: str = KERNEL, plan: str = PLAN, **options: Any) -> EvaluationResult:
    return evaluator.evaluate(Candidate(source=source, plan=plan), seed=11, profile=False, **options)


@pytest.mark.slow
def test_a_good_candidate_is_timed_against_eager(evaluator: Evaluator, leases: Leases) -> None:
    evaluation, profile = run(evaluator)
    assert evaluation.verdict is Verdict.OK, evaluation.reason
    assert profile is None
    speed = evaluation.performance
    assert speed is not None
    assert speed.timing is not None
    assert speed.origin is Origin.MEASURED
    assert speed.bound == "unprofiled"
    timing = speed.timing
    assert timing.protocol == "graph/1"
    assert timing.candidate.captured
    assert timing.candidate.median_us > 1000  # each launch takes as long as that
    assert "eager" in {side.name for side in timing.baselines}
    assert speed.quarantined is None, speed.quarantined
    assert speed.speedup_eager is not None
    assert speed.speedup_eager < 1
    assert speed.speedup_lower is not None
    assert speed.speedup is not None
    assert speed.speedup_lower <= speed.speedup
    assert (leases.taken, leases.held) == (1, 0)
    assert {"timing", "oracle", "build"} <= evaluation.seconds.keys()


@pytest.mark.slow
def test_a_profile_and_a_sanitizer_that_cannot_be_had_are_noted_and_cost_nothing(
    oracle: Oracle, compiler: Compiler, device: TimedDevice, screen: Screen, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Unprofiled(CudaSession):
        def profile(self, request: RunRequest, facts: SizeFacts) -> tuple[Profile, None]:
            raise UnsupportedError("no hardware counters: ncu was not found")

    def sanitize(*arguments: object) -> tuple[RunFailure, ...]:
        raise UnsupportedError("compute-sanitizer memcheck came to no result")

    monkeypatch.setattr(device, "session", Unprofiled)
    monkeypatch.setattr(device, "sanitize", sanitize)
    settings = SETTINGS.model_copy(update={"sanitizer": True})
    evaluator = Evaluator(TASK, oracle, compiler, device, fingerprint_on(device), screen=screen, settings=settings)
    evaluation, profile = evaluator.evaluate(Candidate(source=KERNEL, plan=PLAN), seed=11, profile=True)
    assert (evaluation.verdict, profile) == (Verdict.OK, None), evaluation.reason
    assert evaluation.performance is not None
    assert evaluation.performance.timing is not None
    notes = evaluation.performance.timing.notes
    assert notes.count("no profile: no hardware counters: ncu was not found") == 1
    assert notes.count("not checked by the sanitizer: compute-sanitizer memcheck came to no result") == 1


SHARING = KERNEL.replace(
    "if (i < n) out[i] = ",
    "__shared__ volatile float kept[128]; kept[threadIdx.x] = 0.0f; if (i < n) out[i] = kept[threadIdx.x] + ",
)


@pytest.mark.slow
@pytest.mark.parametrize(("source", "switch_us"), [(KERNEL, 0.0), (SHARING, CARVE_OUT_US)])
def test_what_a_place_in_the_graph_costs_stands_beside_each_time(
    evaluator: Evaluator, source: str, switch_us: float
) -> None:
    """The gap between kernels, and what a kernel with shared memory waits for behind the flush, once in a sample."""
    evaluation, _ = run(evaluator, source)
    assert evaluation.performance is not None, evaluation.reason
    timing = evaluation.performance.timing
    assert timing is not None
    assert not timing.flush_each
    found_us = NODE_GAP_US + switch_us / timing.sets
    assert timing.candidate.node_gap_us == pytest.approx(found_us)
    assert timing.candidate.median_us > 1000 + found_us, "it is not subtracted"
    assert {side.node_gap_us for side in timing.baselines} == {fake_timer.NODE_GAP_US}


@pytest.mark.slow
def test_a_slow_candidate_earns_no_more_than_being_right(evaluator: Evaluator) -> None:
    scored = reward("kernelforge/1", run(evaluator).evaluation)
    assert scored.components["log_speedup"] == 0
    assert scored.value == scored.components["correct"]


@pytest.mark.slow
def test_an_access_that_no_gpu_reports_is_seen_beside_it(evaluator: Evaluator) -> None:
    """Reads one element too many, which is within the allocation's padding on a GPU."""
    evaluation, _ = run(evaluator, KERNEL.replace("out[i] = 2.0f * x[i]", "out[i] = 0.0f * x[n] + 2.0f * x[i]"))
    assert evaluation.verdict is Verdict.CRASH
    assert "small size" in evaluation.reason
    assert evaluation.performance is None


WRONG_VALUES = KERNEL.replace("2.0f * x[i]", "2.5f * x[i]")
BAD_ACCESS = KERNEL.replace("out[i] = 2.0f * x[i]", "out[i] = 0.0f * x[n] + 2.0f * x[i]")


@pytest.mark.slow
@pytest.mark.parametrize(("source", "verdict"), [(WRONG_VALUES, Verdict.WRONG), (BAD_ACCESS, Verdict.CRASH)])
def test_a_candidate_that_fails_on_the_emulated_device_never_takes_the_gpu(
    evaluator: Evaluator, device: TimedDevice, leases: Leases, source: str, verdict: Verdict
) -> None:
    opened = device.opened
    evaluation, profile = run(evaluator, source)
    assert (leases.taken, device.opened, profile) == (0, opened, None)
    assert (evaluation.verdict, evaluation.stage) == (verdict, "small")
    assert evaluation.screening == Screening(device="emulated:h100", outcome="failed")
    assert evaluation.fingerprint.gpu == "Software GPU"
    assert evaluation.correctness is not None
    assert [check.status for check in evaluation.correctness.sizes] == ["failed"]


@pytest.mark.slow
def test_what_does_not_compile_meets_neither_device(evaluator: Evaluator, leases: Leases) -> None:
    evaluation, _ = run(evaluator, KERNEL.replace("float", "flaot", 1))
    assert (evaluation.verdict, evaluation.screening, leases.taken) == (Verdict.BUILD, None, 0)


@pytest.mark.slow
def test_a_measured_candidate_has_the_time_that_was_foretold_beside_its_own(
    evaluator: Evaluator, emulated: Device
) -> None:
    evaluation, _ = run(evaluator)
    assert evaluation.performance is not None
    assert evaluation.performance.predicted is None
    screening = evaluation.screening
    assert screening is not None
    assert (screening.device, screening.outcome, screening.message) == ("emulated:h100", "passed", "")
    forecast = screening.forecast
    assert forecast is not None
    assert forecast.modelled_us < 100 < evaluation.performance.time_us, "the software GPU takes 1 ms for a launch"
    assert (forecast.factor, forecast.measured) == (1.0, 0)
    assert forecast.low_us < forecast.expected_us == forecast.modelled_us < forecast.high_us
    assert forecast.protocol.startswith("emulated/")
    assert (forecast.gpu, forecast.exact) == (emulated.spec.title, False)


@pytest.mark.slow
def test_earlier_measurements_on_the_same_gpu_correct_the_next_forecast(
    screen_on: MakeScreen, evaluator: Evaluator, emulated: Device, screen: Screen
) -> None:
    first, _ = run(evaluator)
    outcome = forecast_outcome(first, TASK.name)
    assert outcome is not None
    errors = ModelErrors([outcome])
    evaluator.screen = screen_on(emulated, screen._open_oracle, errors)
    with evaluator.screen:
        second, _ = run(evaluator)
    assert first.screening is not None
    assert second.screening is not None
    before, after = first.screening.forecast, second.screening.forecast
    assert before is not None
    assert after is not None
    ratio = outcome.measured_us / outcome.forecast.modelled_us
    assert ratio > 10, "the software GPU takes 1 ms for a launch"
    assert (after.modelled_us, after.measured, after.tasks) == (before.modelled_us, 1, 1)
    assert after.median == pytest.approx(ratio)
    assert after.factor == pytest.approx(ratio ** (1 / 5))
    assert after.expected_us == pytest.approx(before.modelled_us * ratio ** (1 / 5))
    assert after.high_us / after.expected_us > before.high_us / before.expected_us, "one so far off is no certainty"


@pytest.mark.slow
def test_a_reference_that_does_not_run_on_the_cpu_is_left_to_the_gpu(
    screen_on: MakeScreen, evaluator: Evaluator, emulated: Device, leases: Leases
) -> None:
    def refused() -> Oracle:
        raise TaskError("the reference runs on a GPU alone")

    evaluator.screen = screen_on(emulated, refused)
    evaluation, _ = run(evaluator)
    assert (evaluation.verdict, leases.taken) == (Verdict.OK, 1)
    message = "the reference runs on a GPU alone"
    assert evaluation.screening == Screening(device="emulated:h100", outcome="unsupported", message=message)


class Troubled:
    """An emulated device whose first sessions cannot be opened."""

    def __init__(self, device: Device, *errors: Exception) -> None:
        self._device = device
        self.errors = list(errors)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._device, name)

    def open(self, artifact: Artifact) -> Any:
        if self.errors:
            raise self.errors.pop(0)
        return self._device.open(artifact)


DIED = ChildDied("the oracle child died at extent 924", signal=9)


@pytest.mark.slow
def test_a_child_that_died_once_in_front_of_the_gpu_changes_nothing(
    screen_on: MakeScreen, evaluator: Evaluator, emulated: Device, screen: Screen
) -> None:
    device: Any = Troubled(emulated, DIED)
    evaluator.screen = screen_on(device, screen._open_oracle)
    with evaluator.screen:
        evaluation, _ = run(evaluator)
    assert evaluation.verdict is Verdict.OK, evaluation.reason
    assert evaluation.screening is not None
    assert (evaluation.screening.outcome, evaluation.screening.message) == ("passed", "")
    assert evaluation.screening.forecast is not None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("errors", "message"),
    [
        ((DIED, DIED), "a child of it failed (ChildDied)"),
        ((SandboxError("no jail for extent 924"),), "a child of it failed (SandboxError)"),
        ((DeviceError("llvmlite is missing: pip install llvmlite"),), "llvmlite is missing: pip install llvmlite"),
    ],
)
def test_trouble_of_the_machine_is_not_the_candidates_and_holds_none_back(
    screen_on: MakeScreen,
    evaluator: Evaluator,
    emulated: Device,
    screen: Screen,
    leases: Leases,
    errors: tuple[Exception, ...],
    message: str,
) -> None:
    device: Any = Troubled(emulated, *errors)
    evaluator.screen = screen_on(device, screen._open_oracle)
    with evaluator.screen:
        evaluation, _ = run(evaluator, WRONG_VALUES)
        assert (evaluation.verdict, leases.taken) == (Verdict.WRONG, 1), "the GPU alone decides"
        assert evaluation.screening == Screening(device="emulated:h100", outcome="infra", message=message)
        assert not device.errors, "no more tries than elsewhere"
        evaluation, _ = run(evaluator)
    assert evaluation.screening is not None
    assert evaluation.screening.outcome == "passed", "the next candidate is screened"


@pytest.mark.slow
def test_what_fails_there_at_a_hidden_size_is_not_told(
    evaluator: Evaluator, screen: Screen, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(self: CorrectnessStage, *arguments: object) -> None:
        if self._runs.device.kind == "emulated":
            raise TaskError("buffer 0 has 924 bytes in one draw and 928 in another")

    monkeypatch.setattr(CorrectnessStage, "check_generators", failing)
    evaluation, _ = run(evaluator)
    assert evaluation.verdict is Verdict.OK, evaluation.reason
    assert evaluation.screening is not None
    assert evaluation.screening.message == "its oracle on the CPU could not check it (TaskError)"


@pytest.mark.slow
def test_without_an_emulated_device_in_front_the_record_says_that_no_access_was_checked(evaluator: Evaluator) -> None:
    evaluator.screen = None
    evaluation, _ = run(evaluator)
    assert (evaluation.verdict, evaluation.screening) == (Verdict.OK, None)
    assert evaluation.correctness is not None
    full = evaluation.correctness.sizes[-1]
    assert full.message == "accesses were not checked: no emulated device ran in front of the GPU"


@pytest.mark.slow
def test_a_screen_over_its_budget_foretells_nothing_and_is_no_fault_of_the_candidate(
    evaluator: Evaluator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The budget is of counted work: a launch of 12,288 threads is over 1,000 instructions on every machine."""
    monkeypatch.setattr(screening, "COUNTING_INSTRUCTIONS", 1000)
    first, _ = run(evaluator)
    assert first.verdict is Verdict.OK, first.reason
    assert first.performance is not None
    assert first.screening is not None
    assert (first.screening.outcome, first.screening.forecast) == ("passed", None)
    assert "the budget is 1e+03 thread instructions" in first.screening.message
    assert " were counted" in first.screening.message
    second, _ = run(evaluator)
    assert second.screening == first.screening, "the same count"
    monkeypatch.undo()
    monkeypatch.setattr("kernelforge.evaluation.stages.full_size_measured.CandidateTimer", FakeTimer)
    within, _ = run(evaluator)
    assert within.screening is not None
    assert within.screening.forecast is not None


class Lacking:
    """An emulated device whose emulator lacks every feature that the candidate uses."""

    def __init__(self, device: Device) -> None:
        self._device = device

    def __getattr__(self, name: str) -> Any:
        return getattr(self._device, name)

    def open(self, artifact: Artifact) -> Any:
        session = self._device.open(artifact)
        lacking = RunResult((), (RunFailure("unsupported", "no instruction wgmma.fence here"),))
        session.run = lambda request: lacking  # type: ignore[method-assign]
        return session


@pytest.fixture
def lacking(screen_on: MakeScreen, emulated: Device, kept_zygotes: Callable[..., Zygote]) -> Iterator[Screen]:
    device: Any = Lacking(emulated)
    with screen_on(device, lambda: Oracle(kept_zygotes("oracle"), TASK)) as made:
        yield made


@pytest.mark.slow
def test_what_the_emulator_lacks_is_left_to_the_gpu(evaluator: Evaluator, lacking: Screen) -> None:
    evaluator.screen = lacking
    evaluation, _ = run(evaluator)
    assert evaluation.verdict is Verdict.OK, evaluation.reason
    assert evaluation.correctness is not None
    full = evaluation.correctness.sizes[-1]
    assert full.message == "accesses were not checked on emulated:h100: no instruction wgmma.fence here"
    assert evaluation.screening is not None
    assert (evaluation.screening.outcome, evaluation.screening.forecast) == ("unsupported", None)


@pytest.mark.slow
def test_a_kernel_that_counts_its_runs_is_stopped_before_it_is_timed(evaluator: Evaluator) -> None:
    source = "__device__ int runs;\n" + KERNEL.replace("if (i < n)", "if (i == 0) runs = runs + 1;\n    if (i < n)")
    evaluation, _ = run(evaluator, source)
    assert evaluation.verdict is Verdict.CRASH
    assert evaluation.stage == "small"


@pytest.mark.slow
def test_the_published_protocol_has_a_name_of_its_own(evaluator: Evaluator) -> None:
    evaluator.settings = MeasureSettings(protocol="kernelbench")
    evaluation, _ = run(evaluator)
    assert evaluation.performance is not None
    assert evaluation.performance.protocol == "kernelbench/1"
    assert evaluation.performance.timing is not None
    assert [side.name for side in evaluation.performance.timing.baselines] == ["eager"]


@pytest.mark.slow
def test_requests_with_gaps_are_on_a_board_of_their_own(evaluator: Evaluator) -> None:
    evaluator.settings = SETTINGS.model_copy(update={"qps": 2000.0})
    evaluation, _ = run(evaluator)
    assert evaluation.performance is not None, evaluation.reason
    assert evaluation.performance.protocol.endswith("+server")
    assert evaluation.performance.timing is not None
    assert evaluation.performance.timing.mode == "server"


class Counting(Session):
    """Gives hardware counters of a kernel, as ncu would."""

    def profile(self, request: RunRequest, facts: SizeFacts) -> tuple[Profile, None]:
        def measured(name: str, value: float) -> Metric:
            return Metric(name=name, value=value, unit="1", origin=Origin.MEASURED)

        metrics = (measured("dram__bytes.sum", 4096.0), measured("gpu__time_duration.sum", 9e3))
        kernel = KernelProfile(
            kernel="axpy", launches=1, grid=(48, 1, 1), block=(128, 1, 1), sampled=1.0, metrics=metrics
        )
        roofline = Roofline(
            flops=facts.flops, dram_bytes=4096.0, compulsory_bytes=facts.compulsory_bytes, arithmetic_intensity=1.0,
            ridge=10.0, bound="dram", time_us=9.0, time_origin=Origin.MEASURED,
        )  # fmt: skip
        profile = Profile(size=facts.size, device="cuda:0", kernels=(kernel,), metrics=metrics, roofline=roofline)
        return profile, None


@pytest.fixture
def counting(evaluator: Evaluator, device: TimedDevice, monkeypatch: pytest.MonkeyPatch) -> Evaluator:
    monkeypatch.setattr(device, "session", Counting)
    return evaluator


@pytest.mark.slow
def test_a_measured_profile_gets_the_emulators_counts_of_the_same_run(counting: Evaluator) -> None:
    evaluation, profile = counting.evaluate(Candidate(source=KERNEL, plan=PLAN), seed=11)
    assert evaluation.verdict is Verdict.OK, evaluation.reason
    assert profile is not None
    origins = {metric.name: (metric.origin, metric.value) for metric in profile.kernels[0].metrics}
    assert origins["dram__bytes.sum"] == (Origin.MEASURED, 4096.0)
    assert origins["ptx__warp_inst_executed.sum"][0] is Origin.COUNTED
    assert origins["kernelforge__limit_latency_us"][0] is Origin.MODELLED
    assert profile.kernels[0].hot_spots
    assert (profile.device, profile.roofline.time_us) == ("cuda:0", 9.0)
    assert profile.notes == (
        "Metrics that are not 'measured' are the emulator's, from the same PTX on emulated:h100 "
        "(nearest known: NVIDIA H100 SXM5 80 GB).",  # nothing is known of a GPU called "Software GPU"
    )


@pytest.mark.slow
def test_what_the_emulator_lacks_leaves_a_measured_profile_alone(counting: Evaluator, lacking: Screen) -> None:
    counting.screen = lacking
    _, profile = counting.evaluate(Candidate(source=KERNEL, plan=PLAN), seed=11)
    assert profile is not None
    assert {metric.origin for metric in profile.metrics} == {Origin.MEASURED}
    assert "no instruction wgmma.fence here" in profile.notes[-1]


@pytest.mark.slow
def test_a_bad_access_at_the_full_size_alone_is_seen_by_the_emulators_profile(counting: Evaluator) -> None:
    source = KERNEL.replace("if (i < n)", "if (n > 5000 && x[n] == 7.25f) out[0] = 1.0f;\n    if (i < n)")
    evaluation, profile = counting.evaluate(Candidate(source=source, plan=PLAN), seed=11)
    assert evaluation.verdict is Verdict.CRASH
    assert "full size" in evaluation.reason
    assert profile is None
