"""Profiles of a CUDA device: through ncu's own way of speaking, and what stands in where counters are denied.

The GPU is the software driver and ncu a stand-in (``imitated_ncu.py``); the launcher, the replay program in its own
process and the readers are the real ones. Numbers of the stand-in are made up.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kernelforge.candidate.resolved import Launch, ResolvedPlan
from kernelforge.compile import Artifact, Compiler
from kernelforge.devices.base import RunFailed
from kernelforge.devices.cuda.device import CudaDevice
from kernelforge.devices.cuda.discovery import gpus
from kernelforge.devices.cuda.tools import fallback_profile, ncu, replay, tool_process
from kernelforge.devices.cuda.tools.ncu import profile, profiler_status, select_launches
from kernelforge.devices.cuda.tools.tool_process import find_tool, read_result, replay_command, request_folder, run_tool
from kernelforge.errors import DeviceError, UnsupportedError
from kernelforge.hardware.specs import spec_by_key
from kernelforge.profiling.floor import attainable_us
from kernelforge.profiling.ncu.catalogue import base_name, default_metrics
from kernelforge.records import Origin, Profile
from tests.devices.cuda.plans import ADD, ADD_PLAN, OVERRUN_PLAN, SPIN, Array, build, randoms, request, resolve
from tests.devices.cuda.software import with_ptx
from tests.support.factories import sum_facts

DRIVER = "tests.profiling.ncu.light_driver:create"

TWICE_PLAN = """
def forward(a, b):
    n = a.numel()
    out = empty_like(a)
    for i in range(5):
        add[ceil_div(n, 256), 256](a, b, out, i32(n))
    add[1, 128](a, b, out, i32(128))
    return out
"""


@pytest.fixture(scope="module")
def arrays() -> list[Array]:
    return [randoms(1000), randoms(1000, seed=1)]


@pytest.fixture(scope="module")
def device() -> Iterator[CudaDevice]:
    with CudaDevice(0, driver=DRIVER) as made:
        yield made


class Stage:
    """An ``ncu`` on the PATH that plays one scene."""

    def __init__(self, folder: Path) -> None:
        self.script = folder / "ncu"
        self.play("good")

    def play(self, name: str) -> None:
        spoken = Path(__file__).with_name("imitated_ncu.py")
        self.script.write_text(f'#!/bin/sh\nexec {sys.executable} -I {spoken} {name} "$@"\n')
        self.script.chmod(0o755)


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stage:
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    ncu._version.cache_clear()
    ncu._selection.cache_clear()
    return Stage(tmp_path)


def built(compiler: Compiler, plan: ResolvedPlan, source: str = ADD) -> Artifact:
    return with_ptx(build(compiler, source, plan))


@pytest.fixture
def profiled(compiler: Compiler, device: CudaDevice, arrays: list[Array]) -> Callable[..., Profile]:
    """``profiled(ADD_PLAN)``: the profile of a plan on the software GPU."""

    def call(text: str = ADD_PLAN, **options: Any) -> Profile:
        plan = resolve(text, arrays)
        run_request = request(plan, *arrays, **options)
        return profile(device.target, device.runners, built(compiler, plan), run_request, sum_facts(1000))

    return call


@pytest.mark.slow
def test_a_profile_has_measured_metrics_of_the_plans_kernels_alone(
    profiled: Callable[..., Profile], scene: Stage
) -> None:
    result = profiled(TWICE_PLAN)
    (kernel,) = result.kernels
    assert (kernel.kernel, kernel.launches, kernel.grid) == ("add", 6, (4, 1, 1))
    # Launches 0 and 1 stand for five, launch 5 for itself: 2.5 * (1 + 2) + 6 times the made-up unit.
    assert result.value("dram__bytes.sum") == pytest.approx(13.5 * 4096)
    assert result.value("gpu__time_duration.sum") == pytest.approx(13.5 * 10000)
    assert result.roofline.time_us == pytest.approx(135.0)
    assert result.roofline.time_origin is Origin.MEASURED
    assert result.roofline.bound == "dram"
    assert kernel.sampled == pytest.approx((2 * 4 + 1) / (5 * 4 + 1))
    assert {metric.origin for metric in (*result.metrics, *kernel.metrics)} == {Origin.MEASURED}
    assert any("memory_dependency" in note for note in result.notes)
    assert any("3 of 6 launches" in note for note in result.notes)
    # The GPU is called "Software GPU", which nothing is known of.
    assert any("(nearest known: NVIDIA H100 PCIe 80 GB): launch overhead." in note for note in result.notes)
    assert result.roofline.floor_us is None


@pytest.mark.slow
def test_metrics_of_the_host_link_are_collected_for_inputs_in_host_memory_alone(
    profiled: Callable[..., Profile], scene: Stage
) -> None:
    """The list of metrics here has none of them, so each profile that wants some says so."""
    requested = [
        any("lts__t_sectors_aperture_sysmem_op_read.sum" in note for note in profiled(mapped=mapped).notes)
        for mapped in (frozenset({0}), frozenset[int]())
    ]
    assert requested == [True, False]


@pytest.mark.slow
@pytest.mark.parametrize("played", ["good", "denied"])
def test_a_gpu_whose_figures_are_known_has_a_floor_in_its_profile(
    compiler: Compiler, device: CudaDevice, arrays: list[Array], scene: Stage, played: str
) -> None:
    scene.play(played)
    h100 = spec_by_key("h100")
    facts = replace(device.target.facts, name=h100.names[0], sm_count=h100.sm_count, compute_capability=(9, 0))
    target, plan = replace(device.target, facts=facts), resolve(ADD_PLAN, arrays)
    made = profile(target, device.runners, built(compiler, plan), request(plan, *arrays), sum_facts(1000))
    assert made.roofline.floor_us == attainable_us(h100, sum_facts(1000))


@pytest.mark.slow
def test_denied_counters_leave_times_by_events_and_the_emulators_numbers_each_with_its_origin(
    profiled: Callable[..., Profile], scene: Stage
) -> None:
    scene.play("denied")
    result = profiled()
    assert "ERR_NVGPUCTRPERM" in result.notes[0]
    assert "NVreg_RestrictProfilingToAdminUsers=0" in result.notes[0]
    by_origin = {metric.name: metric.origin for metric in (*result.metrics, *result.kernels[0].metrics)}
    assert [name for name, origin in by_origin.items() if origin is Origin.MEASURED] == [fallback_profile.TIME]
    assert by_origin["l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum"] is Origin.COUNTED
    assert by_origin["dram__bytes.sum"] is Origin.MODELLED
    assert by_origin["launch__registers_per_thread"] is Origin.COMPILER
    assert result.value("l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum") == 2 * 1000 * 4 / 32
    assert result.roofline.time_us == result.value(fallback_profile.TIME)
    assert result.device == "cuda:0"
    assert "for another GPU than Software GPU (nearest known: NVIDIA H100 PCIe 80 GB)" in result.notes[2]


@pytest.fixture
def stood_in(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Reasons for fallback profiles; the fallback itself does not run, as another test covers it."""
    reasons: list[str] = []

    def note(*arguments: object) -> None:
        reasons.append(str(arguments[5]))

    monkeypatch.setattr(ncu, "estimate_profile", note)
    return reasons


@pytest.mark.slow
@pytest.mark.parametrize(("played", "says"), [("mute", "profiled no launch"), ("torn", "breaks off")])
def test_a_profiler_that_gives_nothing_is_said_and_stood_in_for(
    profiled: Callable[..., Profile], scene: Stage, stood_in: list[str], played: str, says: str
) -> None:
    scene.play(played)
    profiled()
    (why,) = stood_in
    assert says in why


@pytest.mark.parametrize("knows", ["its name", "the GPU", "neither"])
def test_an_ncu_that_does_not_know_a_chips_name_is_asked_for_the_gpu_itself(
    monkeypatch: pytest.MonkeyPatch, knows: str
) -> None:
    queries: list[list[str]] = []

    def answer(command: list[str]) -> SimpleNamespace:
        queries.append(command[2:])
        good = knows == ("its name" if "--chips" in command else "the GPU")
        table = "".join(f"{base_name(name)}  Counter  #\n" for name in default_metrics())
        return SimpleNamespace(output=table if good else "==ERROR== Unknown chip gb202.")

    monkeypatch.setattr(ncu, "ask_tool", answer)
    ncu._selection.cache_clear()
    if knows == "neither":
        with pytest.raises(ncu._NoCounters, match="Unknown chip"):
            ncu._selection("ncu", (12, 0))
    else:
        assert ncu._selection("ncu", (12, 0)).requested
    assert queries == [["--chips", "gb202"], []][: 1 if knows == "its name" else 2]
    ncu._selection.cache_clear()


@pytest.mark.slow
def test_a_profiler_that_hangs_is_stopped_and_stood_in_for(
    profiled: Callable[..., Profile], scene: Stage, stood_in: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.play("hangs")
    monkeypatch.setattr(ncu, "START_S", 1.0)
    monkeypatch.setattr(ncu, "SECONDS_PER_LAUNCH", 0.1)
    profiled(deadline_s=0.1)
    (why,) = stood_in
    assert "did not end within" in why


@pytest.fixture
def unreplayable(scene: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither ncu nor the replay program can be run."""
    scene.script.unlink()
    monkeypatch.setattr(fallback_profile, "replay_command", lambda folder: ["/bin/sh", "-c", "echo no CUDA; exit 1"])


@pytest.mark.slow
@pytest.mark.usefixtures("unreplayable")
def test_where_nothing_can_be_replayed_the_profile_is_the_emulators_and_says_so(
    profiled: Callable[..., Profile],
) -> None:
    result = profiled()
    assert "ncu was not found" in result.notes[0]
    assert "the replay program ended with status 1: no CUDA" in result.notes[1]
    assert result.roofline.time_origin is Origin.MODELLED
    assert Origin.MEASURED not in {metric.origin for metric in (*result.metrics, *result.kernels[0].metrics)}
    assert (result.device, result.value("l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum")) == ("cuda:0", 250)
    assert result.energy is None


@pytest.mark.usefixtures("unreplayable")
def test_where_the_emulator_cannot_run_it_either_there_is_no_profile_and_a_sick_gpu_is_no_excuse(
    compiler: Compiler, device: CudaDevice, arrays: list[Array], monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = resolve(ADD_PLAN, arrays)
    arguments = (device.target, device.runners, built(compiler, plan), request(plan, *arrays), sum_facts(1000))
    monkeypatch.setattr(fallback_profile, "_emulated", lambda *_: (None, "The emulator cannot run this plan."))
    with pytest.raises(UnsupportedError, match=r"no hardware counters.*No times of single launches.*cannot run"):
        profile(*arguments)

    def sick() -> None:
        raise DeviceError("cuda:0 is unhealthy")

    monkeypatch.setattr(device.runners, "recover", sick)
    with pytest.raises(DeviceError, match="unhealthy"):
        profile(*arguments)


def test_without_ncu_the_profile_says_what_to_install(
    profiled: Callable[..., Profile], stood_in: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ncu, "find_tool", lambda name: None)
    profiled()
    (why,) = stood_in
    assert "install Nsight Compute" in why


@pytest.mark.slow
def test_a_plan_that_faults_is_a_fault_and_no_profile(profiled: Callable[..., Profile], scene: Stage) -> None:
    with pytest.raises(RunFailed) as caught:
        profiled(OVERRUN_PLAN)
    assert caught.value.fault.kind == "crash"
    assert "'add'" in caught.value.fault.message


@pytest.mark.slow
def test_the_replay_program_leaves_a_result_and_gives_up_what_it_can(
    compiler: Compiler, device: CudaDevice, arrays: list[Array]
) -> None:
    plan = resolve(TWICE_PLAN, arrays)
    run_request = request(plan, *arrays)
    with request_folder("time", device.driver_options, built(compiler, plan), run_request, repeats=3) as folder:
        ended = run_tool(replay_command(folder), folder=folder, deadline_s=240)
        assert ended.status == 0, ended.output
        result = read_result(folder)
    assert result is not None
    assert [len(times) for times in result.data["times_us"]] == [3] * 6
    assert any(layer.startswith("landlock") for layer in result.data["layers"]) or os.uname().release < "5.13"
    assert not folder.exists()


def test_a_result_that_is_none_of_ours_is_refused(tmp_path: Path) -> None:
    assert read_result(tmp_path) is None
    for text in ("", "[]", '{"faults": [["fine", "x"]]}', '{"faults": 3}'):
        (tmp_path / "result.json").write_text(text)
        with pytest.raises(DeviceError, match="cannot be read"):
            read_result(tmp_path)


def test_tools_get_no_environment_and_no_descriptors_of_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    with open(tmp_path / "held", "w") as open_file:
        os.set_inheritable(open_file.fileno(), True)
        ended = run_tool(["/bin/sh", "-c", "env; ls -l /proc/self/fd"], folder=tmp_path, deadline_s=240)
    assert ended.status == 0
    assert "secret" not in ended.output
    assert "held" not in ended.output
    assert f"HOME={tmp_path}" in ended.output


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def set_clock(monkeypatch: pytest.MonkeyPatch, clock: Callable[[], float]) -> None:
    """Deadlines of tools go by another clock."""
    monkeypatch.setattr(tool_process, "time", SimpleNamespace(monotonic=clock, sleep=time.sleep))


def test_output_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    set_clock(monkeypatch, map(float, count()).__next__)
    ended = run_tool(["/bin/sh", "-c", "yes"], folder=tmp_path, deadline_s=100, output_bytes=1000)
    assert ended.timed_out
    assert len(ended.output) == 1000


def test_a_deadline_ends_all_that_was_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The deadline is when both children run; the first reading, from which it counts, may come after that."""
    readings = count()
    set_clock(monkeypatch, lambda: 100.0 if next(readings) and (tmp_path / "both").exists() else 0.0)
    script = "(sleep 600 & echo $!; setsid sleep 600 & echo $!) > begun; mv begun both; wait; sleep 600"
    ended = run_tool(["/bin/sh", "-c", script], folder=tmp_path, deadline_s=50)
    assert ended.timed_out
    children = [int(line) for line in (tmp_path / "both").read_text().split()]
    assert len(children) == 2
    # They work nowhere any more; the kernel may still be taking down what is left of them.
    end = time.monotonic() + 120
    while any(map(is_running, children)) and time.monotonic() < end:
        time.sleep(0.01)
    assert not any(map(is_running, children))


def test_what_is_started_while_processes_are_looked_for_is_ended_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[subprocess.Popen[bytes]] = []
    look = tool_process._working_in

    def meanwhile(folder: str) -> list[int]:
        pids = look(folder)
        if not started:
            started.append(subprocess.Popen(["sleep", "600"], cwd=folder))
        return pids

    child = subprocess.Popen(["sleep", "600"], cwd=tmp_path)
    monkeypatch.setattr(tool_process, "_working_in", meanwhile)
    tool_process._kill_in(tmp_path)
    assert {child.wait(), started[0].wait()} == {-signal.SIGKILL}


def test_a_result_is_there_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that is killed while it writes leaves none, which is no fault of the GPU."""
    seen = []

    def killed(part: Path, target: Path) -> None:
        seen.append(json.loads(part.read_text()))
        raise KeyboardInterrupt

    monkeypatch.setattr(replay, "run", lambda folder: {"faults": []})
    monkeypatch.setattr(Path, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        replay.main([str(tmp_path)])
    assert seen == [{"faults": []}]
    assert read_result(tmp_path) is None


def test_a_daemon_that_keeps_the_pipe_does_not_hold_us_up(tmp_path: Path) -> None:
    ended = run_tool(["/bin/sh", "-c", "sleep 600 & echo done"], folder=tmp_path, deadline_s=240)
    assert (ended.status, ended.output) == (0, "done\n")


def launches(*grids: int, expression: str = "f") -> list[Launch]:
    return [Launch(expression, (grid, 1, 1), (32, 1, 1), 0, (), 1) for grid in grids]


def test_two_launches_of_each_shape_are_profiled(profiled: Callable[..., Profile]) -> None:
    assert select_launches(launches(1, 1, 1, 2, 1, 2, 2)) == [0, 1, 3, 5]


def test_never_more_launches_than_the_bound_and_every_kernel_among_them() -> None:
    many = [*launches(*range(1, 200)), *launches(7, expression="last")]
    ordinals = select_launches(many)
    assert len(ordinals) == ncu.MAX_PROFILED
    assert 199 in ordinals
    assert len(select_launches(launches(*range(1, 50), *range(1, 50)))) == 49


def test_the_status_tells_people_what_is_there(scene: Stage, tmp_path: Path) -> None:
    parameters = tmp_path / "params"
    parameters.write_text("EnableMSI: 1\nRmProfilingAdminOnly: 0\n")
    status = profiler_status(str(parameters))
    assert (status.version, status.counters) == ((2025, 3, 1, 0), "allowed")
    assert str(scene.script) in status.message
    assert profiler_status(str(tmp_path / "none")).counters == "unknown"
    parameters.write_text("RmProfilingAdminOnly: 1\n")
    capable = os.geteuid() == 0 and profiler_status(str(parameters)).counters == "allowed"
    assert capable or "NVreg_RestrictProfilingToAdminUsers=0" in profiler_status(str(parameters)).message


def test_a_missing_tool_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("kernelforge.devices.cuda.tools.tool_process._PATTERNS", {"ncu": (), "compute-sanitizer": ()})
    assert find_tool("ncu") is None


@pytest.mark.slow
def test_an_endless_kernel_ends_with_the_deadline(
    compiler: Compiler, device: CudaDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ncu, "find_tool", lambda name: None)
    monkeypatch.setattr(fallback_profile, "START_S", 3.0)
    x = randoms(32)
    plan = resolve("def forward(x):\n    out = empty_like(x)\n    spin[1, 32](x, out)\n    return out\n", [x])
    # It was right and was timed before: that a tool does not end with it costs the profile, and nothing else.
    with pytest.raises(UnsupportedError, match="the replay program did not end within 4 s"):
        profile(
            device.target, device.runners, built(compiler, plan, SPIN), request(plan, x, deadline_s=0.2), sum_facts(32)
        )


@pytest.mark.skipif(find_tool("ncu") is None or bool(gpus()), reason="needs ncu, and no GPU")
def test_the_real_ncu_without_a_gpu_is_stood_in_for(profiled: Callable[..., Profile], stood_in: list[str]) -> None:
    profiled()
    (why,) = stood_in
    assert "ncu profiled no launch" in why
    assert "failed to connect to the CUDA driver" in why


def test_a_plan_without_kernels_of_its_own_has_nothing_to_profile(
    compiler: Compiler, device: CudaDevice, arrays: list[Array], scene: Stage, stood_in: list[str]
) -> None:
    plan = resolve(ADD_PLAN, arrays)
    bare = replace(plan, steps=())
    profile(device.target, device.runners, built(compiler, plan), request(bare, *arrays), sum_facts(1000))
    assert stood_in == ["the plan launches no kernel of its own"]
