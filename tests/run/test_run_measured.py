"""Whole runs where time is measured: built-in agents, two software GPUs in real jailed processes, a real journal.

Times are made up and every launch takes 1 ms, so no candidate beats torch: what is tested is what a run makes of
measured times, and its end when GPUs fail.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console, RenderableType

from kernelforge.devices.base import Device
from kernelforge.errors import DeviceError
from kernelforge.evaluation.pool import EvaluatorPool
from kernelforge.evaluation.remote import machines
from kernelforge.leaderboard.make_entry import make_entry
from kernelforge.leaderboard.verify import verify
from kernelforge.records import (
    Attempt,
    Budget,
    MeasureSettings,
    Operator,
    Origin,
    Run,
    RunConfig,
    RunState,
    Verdict,
)
from kernelforge.report import RunRecords, attempt_view, export_lines, leaderboard, run_view
from kernelforge.report.terminal import attempt_lines, leaderboard_lines, run_lines
from kernelforge.rewards import reward
from kernelforge.run import StopSignal, resume_run, start_run
from kernelforge.sandbox import Zygote, select_tier
from kernelforge.tasks import load_suite, load_task
from kernelforge.tasks.suites import size_source
from tests.devices.cuda.fake_timer import FakeTimer
from tests.run.run_helpers import Watcher, open_store, quick_config
from tests.run.software_gpus import Gpu, SoftwareWorkshop

pytestmark = [
    pytest.mark.usefixtures("own_leases", "warm_zygotes"),
    pytest.mark.skipif(select_tier().tier == "none", reason="no jail tier works on this machine"),
]

TASKS = ("gelu", "transpose")
COMPILED = TASKS[:1]
"""Tasks that are tried with ``torch.compile`` too."""
SUITE = """
title = "Small"
description = "Two tasks of core, at their small sizes."
level = 1
"""
ENTRY = """
[[task]]
name = "{name}"
title = "{name}"
small = {{ ROWS = 9, COLS = 32 }}
hidden.odd = {{ ROWS = 7, COLS = 33 }}
"""


@pytest.fixture(scope="module", autouse=True)
def oracles(kept_zygotes: Callable[..., Zygote]) -> None:
    SoftwareWorkshop.oracles = kept_zygotes("oracle")


@pytest.fixture(scope="module")
def suite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("suite")
    (folder / "suite.toml").write_text(SUITE + "".join(ENTRY.format(name=name) for name in TASKS))
    for name in TASKS:
        (folder / f"{name}.py").write_text(size_source(load_task(f"core/{name}"), "small"))
    return folder


def config_of(suite: Path, devices: str = "cuda:0,cuda:1", **changes: Any) -> RunConfig:
    options: dict[str, Any] = {"suite": str(suite), "tasks": TASKS, "device": "emulated:h100", "tune": False}
    config = quick_config(**(options | {"budget": Budget(rounds=2)} | changes))
    measure = MeasureSettings(precision=0.9, seconds=0.1)
    return config.model_copy(update={"device": devices, "measure": measure})


def drawn(renderable: RenderableType) -> str:
    console = Console(file=io.StringIO(), width=200)
    console.print(renderable)
    text = console.file
    assert isinstance(text, io.StringIO)
    return text.getvalue()


class Runs:
    """Runs in one folder, each on devices of its own."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.devices: Callable[[], list[Device]] = list
        self.watcher = Watcher()
        self.thorough = True
        """Candidates are profiled, and those of a task timed against compiled code too."""
        patch.setattr(machines, "EvaluatorPool", self._workshop)
        patch.setattr("kernelforge.evaluation.stages.full_size_measured.CandidateTimer", FakeTimer)

    def _workshop(self, device: str, **how: Any) -> EvaluatorPool:
        made = SoftwareWorkshop(device, opened=self.devices(), **how)
        made.compiled = COMPILED if self.thorough else ()
        return made

    def start(self, config: RunConfig, *gpus: str, stop: StopSignal | None = None) -> Run:
        self.devices = lambda: [Gpu(at, factory, self.thorough) for at, factory in enumerate(gpus)]
        with open_store(self.folder) as store:
            return start_run(config, store, self.watcher, stop or StopSignal())

    def resume(self, *gpus: str) -> Run:
        self.devices = lambda: [Gpu(at, factory, self.thorough) for at, factory in enumerate(gpus)]
        with open_store(self.folder) as store:
            return resume_run("latest", store, self.watcher, StopSignal())

    @property
    def attempts(self) -> list[Attempt]:
        with open_store(self.folder) as store:
            return store.attempts(store.run("latest").id)

    @property
    def state(self) -> RunState:
        with open_store(self.folder) as store:
            return store.run("latest").state

    @property
    def warnings(self) -> list[str]:
        return [event.message for event in self.watcher.events if event.kind == "warning"]


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Runs:
    return Runs(tmp_path, monkeypatch)


@pytest.fixture(scope="module")
def finished(
    suite: Path, tmp_path_factory: pytest.TempPathFactory, warmly: Callable[[], AbstractContextManager[None]]
) -> Iterator[Runs]:
    """One undisturbed run on two GPUs."""
    with pytest.MonkeyPatch.context() as patch, warmly():
        runs = Runs(tmp_path_factory.mktemp("measured"), patch)
        run = runs.start(config_of(suite), "create", "create")
        assert run.state is RunState.FINISHED, runs.warnings
        yield runs


@pytest.mark.slow
def test_attempts_are_journalled_with_how_their_time_came_about(finished: Runs) -> None:
    attempts = finished.attempts
    assert {attempt.task for attempt in attempts} == set(TASKS)
    assert any(attempt.operator is Operator.OPTIMISE for attempt in attempts)
    for attempt in attempts:
        assert attempt.evaluation.verdict is Verdict.OK, attempt.evaluation.reason
        speed = attempt.evaluation.performance
        assert speed is not None
        assert speed.origin is Origin.MEASURED
        assert speed.timing is not None
        assert speed.timing.candidate.median_us > 1000  # each launch takes as long as that
        names = {side.name for side in speed.timing.baselines}
        assert names >= {"eager"}
        # A jail in which no compiler can be started says so.
        tried = "compile" in names or "compile" in speed.timing.absent
        assert tried is (attempt.task in COMPILED)
        assert speed.speedup_lower is not None


@pytest.mark.slow
def test_rewards_and_acceptance_follow_the_lower_bound_of_the_speedup(finished: Runs) -> None:
    best: dict[str, float] = {}
    for attempt in finished.attempts:
        assert attempt.evaluation.performance is not None
        lower = attempt.evaluation.performance.speedup_lower
        assert lower is not None
        assert attempt.reward == reward("kernelforge/2", attempt.evaluation)
        assert attempt.accepted is (lower > best.get(attempt.task, 0.0)), attempt.note
        best[attempt.task] = max(lower, best.get(attempt.task, 0.0))


@pytest.mark.slow
def test_the_judge_reads_measured_times_beside_the_emulators_counts(finished: Runs) -> None:
    for attempt in finished.attempts:
        profile = attempt.profile
        assert profile is not None
        assert profile.roofline.time_origin is Origin.MEASURED
        assert any("No hardware counters" in note for note in profile.notes)
        origins = {metric.name: metric.origin for metric in profile.metrics}
        assert origins["ptx__warp_inst_executed.sum"] is Origin.COUNTED
        assert origins["dram__bytes.sum"] is Origin.MODELLED
        if attempt.operator is Operator.OPTIMISE:
            assert attempt.finding is not None
            assert set(attempt.finding.metrics) & origins.keys()


@pytest.mark.slow
def test_tasks_spread_over_both_gpus_and_each_stays_on_one(finished: Runs) -> None:
    places: dict[str, set[tuple[str, str | None]]] = {}
    for attempt in finished.attempts:
        message = attempt.evaluation.fingerprint
        places.setdefault(attempt.task, set()).add((message.device, message.gpu_uuid))
    assert [len(result) for result in places.values()] == [1, 1]
    assert {device for result in places.values() for device, _ in result} == {"cuda:0", "cuda:1"}
    assert len(set.union(*places.values())) == 2


@pytest.mark.slow
def test_a_fingerprint_names_the_jail_that_the_gpus_runner_has(finished: Runs) -> None:
    assert {item.evaluation.fingerprint.jail for item in finished.attempts} == {Zygote("gpu-runner").tier}


@pytest.mark.slow
def test_reports_work_on_a_measured_run(finished: Runs) -> None:
    with open_store(finished.folder) as store:
        records = RunRecords.load(store, store.run("latest"))
    assert drawn(run_lines(run_view(records)))
    (board,) = leaderboard([records]).boards
    assert drawn(leaderboard_lines(leaderboard([records])))
    assert board.key.origin is Origin.MEASURED
    for attempt in records.attempts:
        parent = next((item for item in records.attempts if item.id == attempt.parent), None)
        message = drawn(attempt_lines(attempt_view(attempt, parent)))
        assert "measured" in message
        assert "No hardware counters" in message
    for line in export_lines(records.attempts):
        exported = json.loads(line)
        assert exported["performance"]["timing"]["candidate"]["samples_us"]


@pytest.mark.slow
def test_a_gpu_that_dies_is_set_aside_and_its_task_goes_on_with_the_other(suite: Path, runs: Runs) -> None:
    runs.thorough = False
    run = runs.start(config_of(suite), "create", "create_dying")
    assert run.state is RunState.FINISHED, runs.warnings
    assert {attempt.task for attempt in runs.attempts} == set(TASKS)
    assert {attempt.evaluation.verdict for attempt in runs.attempts} == {Verdict.OK}
    assert {attempt.evaluation.fingerprint.device for attempt in runs.attempts} == {"cuda:0"}
    (message,) = [message for message in runs.warnings if "set aside" in message]
    assert message.startswith("cuda:1 is set aside: ")
    assert "unhealthy" in message


@pytest.mark.slow
def test_without_any_gpu_left_a_run_stops_with_one_error_and_can_go_on(suite: Path, runs: Runs) -> None:
    runs.thorough = False
    with pytest.raises(DeviceError, match="no GPU is left to run on") as caught:
        runs.start(config_of(suite, budget=Budget(rounds=1)), "create_dying", "create_dying")
    assert "cuda:0" in str(caught.value)
    assert "cuda:1" in str(caught.value)
    assert "kernelforge resume" in str(caught.value)
    assert not [event for event in runs.watcher.events if event.failed]
    assert runs.state is RunState.STOPPED
    with pytest.raises(DeviceError, match="CUDA_ERROR_NO_DEVICE"):
        runs.resume("create_fallen", "create_fallen")
    assert runs.state is RunState.STOPPED
    assert runs.attempts == []
    runs.watcher = Watcher()
    assert runs.resume("create_fallen", "create").state is RunState.FINISHED
    assert {item.task for item in runs.attempts if item.evaluation.verdict is Verdict.OK} == set(TASKS)
    assert {item.evaluation.fingerprint.device for item in runs.attempts} == {"cuda:1"}
    (message,) = [message for message in runs.warnings if "set aside" in message]
    assert message.startswith("cuda:0 is set aside: ")


@pytest.mark.slow
def test_an_entry_of_a_measured_run_is_verified_by_measuring_again(finished: Runs, suite: Path) -> None:
    with open_store(finished.folder) as store:
        records = RunRecords.load(store, store.run("latest"))
    entry = make_entry(records, {}, by="Ann")

    def new_pool() -> EvaluatorPool:
        return SoftwareWorkshop("cuda:0", opened=[Gpu(0, "create", True)], measure=config_of(suite).measure)

    record = verify(entry, load_suite(suite), sample=1, seed=0, open_pool=new_pool)
    assert record.agrees, record
    (result,) = [item for item in record.tasks if item.status != "not re-run"]
    claimed = next(row.best for row in entry.tasks if row.task == result.task)
    assert claimed is not None
    assert claimed.evaluation.performance is not None
    assert result.verdict is Verdict.OK
    assert result.speedup == pytest.approx(claimed.evaluation.performance.speedup, rel=0.1)
    assert record.fingerprint is not None
    assert record.fingerprint.gpu == entry.key.device
