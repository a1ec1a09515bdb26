"""Every part of the GPU script has run, at tiny sizes, on the software device and with torch on the CPU."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from benchmarks import gpu
from benchmarks.gpu_parts import core, emulating, evaluating, pytest_parts
from benchmarks.gpu_parts.copying import measure_copy
from benchmarks.gpu_parts.emulating import Kernel
from benchmarks.gpu_parts.machine import Machine
from benchmarks.gpu_parts.report import Report, read_report
from benchmarks.gpu_parts.samples import PLAIN, SAMPLES, SOFTMAX, SWISH
from kernelforge.candidate import parse_reply
from kernelforge.records import Metric, Origin, Profile
from kernelforge.run.runner import configure, new_run
from kernelforge.tasks import load_suite, size_source
from tests.gpu_script.software_machine import SoftwareMachine
from tests.support.factories import TASK, make_attempt, make_candidate, measured, measured_evaluation


@pytest.fixture
def report(tmp_path: Path) -> Report:
    return Report("part", tmp_path)


def saved(report: Report) -> dict[str, Any]:
    assert report.folder is not None
    data: dict[str, Any] = json.loads((report.folder / "part.json").read_text())
    return data


@pytest.mark.slow
def test_evaluations_are_timed_cold_and_warm_beside_the_published_protocol(
    machine: SoftwareMachine, report: Report
) -> None:
    evaluating.evaluate(machine, report, [SWISH], warm_evaluations=1)
    (row,) = saved(report)["rows"]
    assert row["verdict"] == "OK", row["reason"]
    assert row["cold_s"] > 0
    assert row["warm_s"] > 0
    assert "timing" in row["stages"]
    assert "error" in row["kernelbench"], "there is no CUDA toolkit here to build an extension with"
    assert row["ratio"] is None
    (figure,) = report.figures
    assert figure.name == "warm evaluation, slowest"


@pytest.mark.slow
def test_the_published_protocol_runs_and_judges(machine: SoftwareMachine) -> None:
    reference = size_source(load_suite(machine.suite).task("swish"), "full")
    answer = evaluating.kernelbench(PLAIN, reference, "cpu", wait_s=240)
    assert answer["correct"] is True
    assert answer["trials"] == 100
    assert min(answer["mean_us"], answer["flushed_us"]) > 0
    assert set(answer["seconds"]) == {"start", "build", "correctness", "performance", "performance_flushed"}
    assert all(0 < wall_s < answer["wall_s"] for wall_s in evaluating._walls(answer))
    wrong = evaluating.kernelbench(PLAIN.replace("x * ", "2 * x * "), reference, "cpu", wait_s=240)
    assert wrong["correct"] is False
    late = evaluating.kernelbench(PLAIN, reference, "cpu", wait_s=0.1)
    assert "no answer within" in late["error"]
    assert evaluating._walls(late) == (0.0, 0.0)


@pytest.mark.slow
def test_a_kernel_is_evaluated_again_and_again(machine: SoftwareMachine, report: Report) -> None:
    evaluating.repeat(machine, report, SWISH, repeats=2)
    rows = saved(report)["rows"]
    assert [row["verdict"] for row in rows] == ["OK", "OK"], rows
    assert all("eager" in row["speedups"] for row in rows)
    assert "eager" in report.facts["spreads"]
    assert "over 2 evaluations" in report.figures[0].value


def test_a_part_that_is_out_of_time_says_how_far_it_came() -> None:
    now = 100.0
    report = Report("part", seconds=5.0, clock=lambda: now)
    now = 104.0
    assert not report.out_of_time(1, 3)
    now = 106.0
    assert report.out_of_time(2, 3)
    assert report.notes == ["out of time after 5 s: 2 of 3 done"]


@pytest.mark.slow
def test_profiles_are_taken_with_both_sets_of_counters(machine: SoftwareMachine, report: Report) -> None:
    """Nothing is measured here: the profile is what stands in, and the part says that it missed its target."""
    evaluating.profile(machine, report, SWISH)
    rows = saved(report)["rows"]
    assert [(row["counters"], row["verdict"]) for row in rows] == [("default", "OK"), ("full", "OK")], rows
    assert all(row["metrics"] > 5 and row["notes"] for row in rows)
    assert rows[0]["profile_s"] > 0
    assert report.facts["profiler"]


@pytest.mark.slow
def test_counters_of_both_devices_are_compared(machine: SoftwareMachine, report: Report) -> None:
    task = load_suite(machine.emulator_suite).task("softmax")
    emulating.emulator(machine, report, [Kernel("mine", task, parse_reply(SOFTMAX.reply))])
    (row,) = saved(report)["rows"]
    assert (row["gpu"], row["emulated"], row["equal"]) == ("OK", "OK", True), row
    assert row["counters"]["load_sectors"]["emulated"] > 0
    assert row["load_sectors"] is None, "the software device measures no counters"
    assert report.figures[0].value == "1 of 1"


def profile_with(value: float, origin: Origin, name: str) -> Profile:
    metric = Metric(name=name, value=value, unit="sector", origin=origin)
    device = "cuda:0" if origin is Origin.MEASURED else "emulated:h100"
    roofline = {"flops": 1, "dram_bytes": 1, "compulsory_bytes": 1, "arithmetic_intensity": 1, "ridge": 1,
                "bound": "dram", "time_us": 1, "time_origin": Origin.MODELLED}  # fmt: skip
    return Profile.model_validate(
        {"size": "full", "device": device, "kernels": (), "metrics": (metric,), "roofline": roofline}
    )


def test_only_what_the_gpu_measured_is_compared() -> None:
    name = emulating.COUNTERS["load_sectors"][0]
    emulated = profile_with(200.0, Origin.COUNTED, name)
    compared = emulating.compare(profile_with(300.0, Origin.MEASURED, name), emulated)
    assert compared["load_sectors"] == {"gpu": 300.0, "emulated": 200.0, "ratio": 1.5}
    assert compared["dram_bytes"] == {"gpu": None, "emulated": None, "ratio": None}
    assert emulating.compare(emulated, emulated)["load_sectors"]["ratio"] is None
    nothing = profile_with(0.0, Origin.MEASURED, name)
    assert emulating.compare(nothing, emulated)["load_sectors"]["ratio"] is None
    assert emulating.compare(nothing, profile_with(0.0, Origin.COUNTED, name))["load_sectors"]["ratio"] == 1.0


@pytest.mark.slow
def test_there_are_twenty_kernels_to_compare_without_any_run(tmp_path: Path) -> None:
    assert len(emulating.planted_kernels()) >= emulating.LEAST_KERNELS
    assert emulating.best_kernels(tmp_path, "core") == []


@pytest.mark.slow
def test_modelnew_classes_are_judged_in_their_lane(machine: SoftwareMachine, report: Report) -> None:
    evaluating.modelnew(machine, report, {"plain torch": PLAIN, "wrong": PLAIN.replace("x * ", "2 * x * ")})
    rows = saved(report)["rows"]
    assert [row["verdict"] for row in rows] == ["OK", "WRONG"]
    assert report.figures[0].value == "1 of 2"
    assert report.failed


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.task)
def test_samples_say_the_same_in_both_lanes(sample: evaluating.Sample) -> None:
    assert sample.device in sample.load_inline
    compile(sample.load_inline, sample.task, "exec")
    assert sample.load_inline.count("data_ptr<float>()") == 2 + len(sample.weights)


@pytest.mark.slow
def test_a_run_of_the_built_in_agents_becomes_a_board(machine: SoftwareMachine, report: Report) -> None:
    """On the emulated device: the run itself needs no GPU."""
    emulated = Machine(device="emulated:h100", torch_device="cpu", suite=machine.suite, threads=1)
    core.core(emulated, report, tasks=["swish"], rounds=2)
    (row,) = saved(report)["rows"]
    assert (row["task"], row["verdict"]) == ("swish", "OK")
    assert row["share_of_copy"] > 0
    assert report.folder is not None
    board = json.loads((report.folder / "board.json").read_text())
    assert board["fingerprints"][0]["device"] == "emulated:h100"
    assert board["boards"][0]["entries"][0]["tasks_ok"] == 1
    assert board["suite"] == "tiny"
    assert str(machine.suite) not in json.dumps({**board, "boards": []})
    kernels = emulating.best_kernels(report.folder / "core", machine.emulator_suite)
    assert [kernel.task.name for kernel in kernels] == ["swish"]


def test_measured_times_become_shares_of_a_copy(report: Report) -> None:
    config = configure(suite="core", tasks=[TASK], device="emulated:h100")
    run = new_run(config)
    candidate = make_candidate()
    evaluation = measured_evaluation(
        candidate=candidate.hash, performance=measured(100.0, speedup=2.0, speedup_lower=1.9, speedup_eager=3.0)
    )
    attempt = make_attempt(0, candidate=candidate, evaluation=evaluation, accepted=True)
    core.summarise(core.RunRecords(run, (attempt,)), 1000.0, report)
    named = {figure.name: figure for figure in report.figures}
    assert named["fast_1, against the fastest baseline"].value == "100%"
    assert named["geometric mean, against eager, correct"].value == "3.000"
    task_summary = core.RunRecords(run, (attempt,)).summaries[0]
    moved = task_summary.model_copy(update={"compulsory_bytes": 50e6})
    assert core.bandwidth_share(moved, 1000.0) == pytest.approx(0.5)


@pytest.mark.slow
def test_a_copy_is_timed_in_a_process_of_its_own() -> None:
    assert measure_copy("cpu") > 0
    with pytest.raises(RuntimeError, match="could not be timed"):
        measure_copy("nowhere:0")


@pytest.mark.slow
def test_a_part_that_fails_leaves_its_error_and_its_rows(machine: SoftwareMachine, tmp_path: Path) -> None:
    def breaks(machine: Machine, report: Report) -> None:
        report.row(done="one")
        raise ValueError("the second went wrong")

    report = gpu.run_part("part", gpu.Part(breaks, 1), machine, tmp_path, 1.0)
    stored = read_report(tmp_path / "part.json")
    assert report.failed
    assert stored.error == "ValueError: the second went wrong"
    assert stored.rows == [{"done": "one"}]
    assert "breaks" in (tmp_path / "part.traceback").read_text()


def test_the_table_has_every_figure(tmp_path: Path) -> None:
    good, bad = Report("good"), Report("bad", error="it broke")
    good.figure("spread", "1 %", "<= 2 %", met=True)
    good.figure("other", "7")
    good.row(task="swish", seconds=1.23456, held=True, stages={"hidden": 1})
    console = Console(width=140, record=True, file=(tmp_path / "out").open("w"))
    gpu.show([good, bad], console)
    text = console.export_text()
    assert all(
        word in text for word in ("spread", "1 %", "<= 2 %", "yes", "other", "swish", "1.235", "it broke", "failed")
    )
    assert "hidden" not in text
    gpu.write_summary([good, bad], tmp_path)
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert [(part["part"], part["state"]) for part in summary] == [("good", "done"), ("bad", "failed")]


class Awaiting(Report):
    """A part whose time is up once a file is there."""

    @property
    def remaining(self) -> float:
        assert self.folder is not None
        while not (self.folder / "begun").exists():
            time.sleep(0.02)
        return 0.0


@pytest.mark.slow
def test_pytest_is_read_and_ended_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pytest_parts, "_END_S", 240.0)
    path = tmp_path / "test_some.py"
    long = f"open({str(tmp_path / 'begun')!r}, 'w').close(); time.sleep(600)"
    tests = ("good(): pass", "bad(): assert not 1", f"long(): {long}")
    path.write_text("import time\n" + "".join(f"def test_{test}\n" for test in tests))
    report = Awaiting("tests", tmp_path, seconds=4.0)
    cases = pytest_parts.run_pytest([str(path)], report, expression="not gpu")
    assert {case.name.partition("::")[2]: case.outcome for case in cases}.items() >= {
        "test_good": "passed", "test_bad": "failed",
    }.items()  # fmt: skip
    assert report.notes == ["out of time after 4 s: the tests that follow were not run"]
    pytest_parts.tell(cases, report)
    assert report.failed
    assert all("gpu_script" not in str(path) for path in pytest_parts.marked_files())


def test_all_parts_together_stay_under_twenty_minutes() -> None:
    assert sum(part.seconds for part in gpu.PARTS.values()) < 20 * 60


@pytest.mark.slow
def test_without_a_gpu_every_part_says_so_and_the_next_goes_on(tmp_path: Path) -> None:
    command = [sys.executable, "benchmarks/gpu.py", "--part", "repeat", "--part", "modelnew", "--output", str(tmp_path)]
    if not Path("/dev/nvidiactl").exists():
        ended = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
        assert ended.returncode == 1
        assert ended.stdout.count("'cuda:0' is not available") >= 2
        assert {path.name for path in tmp_path.glob("*.json")} == {"repeat.json", "modelnew.json", "summary.json"}
