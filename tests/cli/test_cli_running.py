"""Runs under the command line: progress, Ctrl-C, the summary. A stand-in for the engine journals golden attempts."""

from __future__ import annotations

import io
import re
import signal
from pathlib import Path

import pytest

from kernelforge.cli.run import _next_commands, print_summary
from kernelforge.records import RunState
from kernelforge.report import RunRecords
from kernelforge.store import Store
from tests.run.run_helpers import small_core
from tests.support.recorded_run import fill, golden_attempts, make_run

ENGINE = """
import sys, time
from pathlib import Path
from tests.support.recorded_run import golden_attempts, make_facts, make_run, make_task
from kernelforge.cli.run import Display, conduct
from kernelforge.errors import KernelForgeError
from kernelforge.records import RunState
from kernelforge.run.events import Event
from kernelforge.store import Store

mode, results = sys.argv[1], Path("results")
store = Store.open(results / "kernelforge.db")
run = make_run()

def work(observer, stop):
    store.start_run(run)
    for name in run.config.tasks:
        store.put_task(run.id, make_task(name), make_facts(make_task(name)), None)
    observer.on_event(Event("run_started", message=run.id))
    attempts = golden_attempts(run)
    for attempt in attempts:
        observer.on_event(Event("stage", task=attempt.task, round=attempt.number, stage="evaluate"))
        store.add_attempt(attempt)
        observer.on_event(Event("attempt", task=attempt.task, round=attempt.number, attempt=attempt))
        if mode == "wait" and attempt.number == 3 and attempt.task == "softmax":
            observer.on_event(Event("warning", task="softmax", message="waiting \\x1b[2J"))
            while not stop.draining:
                time.sleep(0.01)
            break
        if mode == "break" and attempt.number == 2:
            raise KernelForgeError("the disk is full")
        if mode == "fail" and attempt.number == 1:
            observer.on_event(Event("warning", task=attempt.task, message="no model answers", failed=True))
            store.update_run(run.id, RunState.STOPPED, "2026-11-21T06:10:00+00:00")
            return run.model_copy(update={"state": RunState.STOPPED})
        if mode == "hang" and attempt.number == 1:
            print("hanging", flush=True)
            while not stop.aborting:
                time.sleep(0.01)
            break
    state = RunState.STOPPED if stop.draining else RunState.FINISHED
    store.update_run(run.id, state, "2026-11-21T06:10:00+00:00")
    return run.model_copy(update={"state": state})

conduct(work, run.config, store, results, display=Display.NONE if mode == "quiet" else Display.PLAIN)
"""


@pytest.mark.slow
def test_a_run_in_a_pipe_is_a_line_per_attempt_and_a_summary(start):
    process = start("-c", ENGINE, "all")
    out, err = process.communicate()
    assert process.returncode == 0, err
    lines = out.splitlines()
    assert lines[0] == "run r1"
    attempts = [line for line in lines if re.match(r"(softmax|matmul|argmax) \d\d ", line)]
    assert len(attempts) == len(golden_attempts(make_run()))
    assert attempts[1] == "softmax 01 vectorise OK best so far: 8.39 MB DRAM, 1.00x the least"
    assert attempts[4].startswith("matmul 00 seed BUILD candidate.cu:2: error")
    assert "\x1b" not in out
    summary = lines[lines.index("run       r1 finished") :]
    assert any(line.startswith("correct   2 of 3 tasks") for line in summary)
    assert any("emulated:h100 · suite core" in line for line in summary)
    assert [line.split("  ")[1] for line in summary[summary.index("Next:") + 1 :]] == [
        "kernelforge show r1",
        "kernelforge show r1/softmax",
        "kernelforge show r1/softmax/01",
        "kernelforge report r1 --open",
        "kernelforge export r1 --output attempts.jsonl",
    ]


@pytest.mark.slow
def test_a_quiet_run_prints_its_summary_alone(start):
    out, _ = start("-c", ENGINE, "quiet").communicate()
    assert not re.search(r"^softmax \d\d ", out, re.M)
    assert "correct   2 of 3 tasks" in out


def wait_for(stream: io.TextIOBase, text: str) -> str:
    seen = ""
    while text not in seen:
        line = stream.readline()
        assert line, seen
        seen += line
    return seen


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_interrupt_drains_and_says_how_to_go_on(start, tmp_path: Path, number: signal.Signals):
    process = start("-c", ENGINE, "wait")
    wait_for(process.stdout, "softmax 03")
    process.send_signal(number)
    out, err = process.communicate()
    assert process.returncode == 0
    assert "attempts in flight are being finished" in err
    assert "warning: softmax: waiting \\x1b[2J" in err
    assert "run       r1 stopped" in out
    assert "kernelforge resume r1" in out
    with Store.open(tmp_path / "results" / "kernelforge.db") as store:
        assert store.run("r1").state is RunState.STOPPED
        assert len(store.attempts("r1")) == 4


@pytest.mark.slow
def test_the_second_interrupt_aborts_with_130(start):
    process = start("-c", ENGINE, "hang")
    wait_for(process.stdout, "hanging")
    process.send_signal(signal.SIGINT)
    wait_for(process.stderr, "being finished")
    process.send_signal(signal.SIGINT)
    _, err = process.communicate()
    assert process.returncode == 130
    assert "aborted; go on with: kernelforge resume r1" in err
    assert "Traceback" not in err


@pytest.mark.slow
def test_a_run_whose_model_fails_is_summed_up_and_leaves_with_1(start):
    process = start("-c", ENGINE, "fail")
    out, err = process.communicate()
    assert process.returncode == 1
    assert "warning: softmax: no model answers" in err
    assert "run       r1 stopped" in out
    assert "kernelforge resume r1" in out


@pytest.mark.slow
def test_an_error_of_the_engine_says_what_is_kept_and_how_to_go_on(start, tmp_path: Path):
    process = start("-c", ENGINE, "break")
    _, err = process.communicate()
    assert process.returncode == 1
    assert "finished attempts are journalled" in err
    assert "kernelforge resume r1" in err
    with Store.open(tmp_path / "results" / "kernelforge.db") as store:
        assert len(store.attempts("r1")) == 3


def test_next_commands_name_the_results_folder_and_come_without_a_best(tmp_path: Path, capsys):
    run = make_run()
    assert _next_commands(RunRecords(run, (), results="my runs")) == [
        ("kernelforge resume r1 --results 'my runs'", "go on with this run"),
        ("kernelforge show r1 --results 'my runs'", "this run"),
        ("kernelforge report r1 --open --results 'my runs'", "all of it as web pages"),
        ("kernelforge export r1 --output attempts.jsonl --results 'my runs'", "every attempt as JSON lines"),
    ]
    with Store.open(tmp_path / "x" / "kernelforge.db") as store:
        fill(store, run)
        print_summary(store.run("r1"), store)
    assert f"--results {tmp_path / 'x'}" in capsys.readouterr().out


@pytest.mark.slow
def test_a_gpu_that_does_not_start_gives_way_to_the_emulated_device_with_a_word(cli, monkeypatch: pytest.MonkeyPatch):
    from kernelforge import devices
    from kernelforge.devices.cuda.device import CudaDevice
    from kernelforge.devices.cuda.target import GpuInfo

    class Broken(CudaDevice):
        def __init__(self, ordinal: int, **options: object) -> None:
            super().__init__(ordinal, driver="tests.cuda_stack.start_worker:make")

    with monkeypatch.context() as broken:
        broken.setattr("kernelforge.devices.cuda.device.CudaDevice", Broken)
        gpu = GpuInfo(0, "NVIDIA H200", "GPU-0", 150 << 30, "580.1", "13.0")
        broken.setattr(devices, "_default_gpus", lambda: (gpu,))
        broken.setattr(devices, "unused_gpu", lambda: None)
        broken.setattr(devices, "check_device", lambda name: name)
        broken.setattr("kernelforge.devices.cuda.discovery.require_packages", lambda runtime: None)
        devices._start_failure.cache_clear()
        name, why = devices.usable_device()
        devices._start_failure.cache_clear()
    assert name == "emulated:h100"
    assert why is not None
    assert why.startswith("cuda:0 is there and not used: cuda:0 cannot be used: ")
    note = "cuda:0 is there and not used: x"
    monkeypatch.setattr(devices, "usable_device", lambda measure, **options: ("emulated:h100", note))
    done = cli("run", "--task", "softmax", "--rounds", "1", "--quiet")
    assert (done.code, done.err.count(f"note: {note}")) == (0, 1), done.err


@pytest.mark.slow
def test_a_gpu_that_cannot_be_used_is_passed_over_with_a_word_or_refused(cli, monkeypatch: pytest.MonkeyPatch):
    from kernelforge.devices.cuda import discovery
    from kernelforge.devices.cuda.target import GpuInfo
    from kernelforge.hardware.wheels import InstalledCuda

    old = GpuInfo(0, "NVIDIA A100", "GPU-0a", 40 << 30, "570.124.06", "12.8", (8, 0))
    monkeypatch.setattr(discovery, "gpus", lambda: (old,))
    monkeypatch.setattr(discovery, "installed_cuda", lambda: InstalledCuda(13, 13, "cupy-cuda13x"))
    why = "its driver (570.124.06, CUDA 12.8) is older than 580"
    done = cli("run", "--task", "softmax", "--dry-run")
    assert done.code == 0, done.err
    assert done.err.count(f"note: cuda:0 is there and not used: {why}") == 1
    done = cli("run", "--task", "softmax", "--dry-run", "--device", "cuda")
    assert done.code not in (0, None)
    assert f"cuda:0 cannot be used: {why}" in done.err
    assert "Traceback" not in done.err


KERNEL = """\
/* plan:
def forward(x):
    out = empty_like(x)
    swish[ceil_div(x.numel(), 32), 32](x, out, i32(x.numel()))
    return out
*/
__global__ void swish(const float* x, float* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = x[i] / (1.0f + expf(-x[i]));
}
"""


@pytest.mark.slow
def test_a_run_is_started_from_a_file_and_compared_with_it(cli, tmp_path: Path):
    (tmp_path / "mine.cu").write_text(KERNEL)
    where = ("--suite", small_core(), "--task", "swish", "--device", "emulated:h100", "--seed", "5", "--no-tune")
    done = cli("run", *where, "--rounds", "1", "--from", "mine.cu")
    assert done.code == 0, done.err
    assert "swish 00 start OK" in done.out
    assert "does not read the start; a model revises it: --coder openai:MODEL" in done.err
    assert re.search(r"^start +mine\.cu \([0-9a-f]{16}\)$", cli("show", "latest/swish/0").out, re.MULTILINE)
    first = cli("compare", "latest", "--json").json()
    assert [pair["a_best"][-2:] for pair in first["pairs"]] == ["00"]
    second = cli("run", *where, "--rounds", "1", "--from", "swish=latest/swish/0")
    assert second.code == 0, second.err
    assert cli("show", "latest/swish/0", "--json").json()["start"]["attempt"] == f"{first['a'].split(',')[0]}/swish/00"


@pytest.mark.slow
def test_a_start_that_is_none_ends_the_command_before_anything_is_written(cli, tmp_path: Path):
    (tmp_path / "notes.txt").write_text("no kernel")
    where = ("run", "--suite", small_core(), "--device", "emulated:h100")
    for arguments, words in (
        (["--task", "swish", "--from", "notes.txt"], "it holds no kernel; a start is "),
        (["--task", "swish", "--from", "missing.cu"], "cannot read the start missing.cu"),
        (["--task", "swish", "--from", "latest/swish/0"], "results holds no results"),
        (["--from", "notes.txt"], "this run has 4 tasks; write TASK=FILE"),
    ):
        done = cli(*where, *arguments)
        assert done.code == 2
        assert words in done.err
        assert len(done.err.strip().splitlines()) == 1
    assert not (tmp_path / "results").exists()
