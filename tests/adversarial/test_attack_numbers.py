"""Numbers and texts that no honest process would send: they are refused where they are read, and end nothing else."""

import json
import os

import pytest

from kernelforge.devices import wire
from kernelforge.devices.cuda.tools.fallback_profile import _medians
from kernelforge.devices.cuda.tools.sanitizer import MAX_FINDINGS, parse_log
from kernelforge.devices.gpu_locks import GpuLocks, _Wait
from kernelforge.errors import DeviceError, SandboxError
from kernelforge.profiling.ncu.parse import parse_table, rows_from_output, rows_from_wire, trouble
from kernelforge.sandbox import Frame

HUGE = 10**400


@pytest.mark.parametrize("value", [HUGE, -1, -0.5, float("nan"), float("inf"), True, None, "1", [], 1 << 2000])
def test_a_time_that_is_none_is_refused(value):
    with pytest.raises(SandboxError) as caught:
        wire.read_time(value)
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize("value", [HUGE, 1 << 63, -1, True, 0.5, "1", None])
def test_a_count_that_no_record_holds_is_none(value):
    assert wire.read_count(Frame({"n": value}), "n") is None


@pytest.mark.parametrize("value", [HUGE, float("nan"), float("inf"), -1, "1"])
def test_seconds_that_are_none_are_zero(value):
    assert wire.read_seconds(Frame({"seconds": value})) == 0.0


def launch(**changes):
    return {"symbol": "k", "grid": [1, 1, 1], "block": [1, 1, 1], "metrics": {}, "instructions": []} | changes


@pytest.mark.parametrize(
    "row",
    [
        launch(grid=[HUGE, 1, 1]),
        launch(metrics={"m": [HUGE, "byte"]}),
        launch(metrics={"m": [float("nan"), "byte"]}),
        launch(instructions=[[HUGE, "f", "LDG", 1]]),
        launch(symbol="k" * 5000),
        launch(metrics={"m": [1.0]}),
        [],
        None,
    ],
)
def test_a_report_with_impossible_launches_is_refused(row):
    with pytest.raises(DeviceError, match="something else"):
        rows_from_wire([row])


@pytest.mark.parametrize("text", ["", "\n", "Traceback", '[{"symbol": "k", "gri', "[" * 100_000, "{}"])
def test_a_report_that_is_cut_short_or_no_json_is_refused(text):
    with pytest.raises(DeviceError, match=r"no JSON|something else"):
        rows_from_output(text)


def test_the_last_line_is_the_report():
    assert rows_from_output("a warning\n" + json.dumps([launch()]))[0].symbol == "k"


@pytest.mark.parametrize("raw", [[[HUGE]], [[float("nan")]], [["1e999"]], [[-1.0]], [[]], None, [None]])
def test_impossible_times_of_the_replay_are_refused(raw):
    with pytest.raises(DeviceError, match="replay program left"):
        _medians(raw, 1)


def test_a_name_with_commas_quotes_and_lines_stays_one_cell():
    name = 'k,"x"\n"ID","0",\x1b[2J'
    quoted = name.replace('"', '""')
    head = '"ID","Kernel Name","Block Size","Grid Size","m"\n"","","","","byte"\n'
    (row,) = parse_table(f'{head}"0","{quoted}","(1, 1, 1)","(2, 1, 1)","{"9" * 500}"\n')
    assert (row.symbol, row.grid, row.metrics) == (name, (2, 1, 1), {})


PREFIX = "========= "


@pytest.mark.slow
@pytest.mark.parametrize("line", ["at " * 60_000, "a:" * 60_000, " in a:1" * 20_000])
@pytest.mark.timeout(20)
def test_long_lines_of_a_log_take_no_time(line):
    report = f"{PREFIX}Invalid __global__ write of size 4 bytes\n{PREFIX}    at {line}\n"
    log = parse_log(report * 100 + f"{PREFIX}ERROR SUMMARY: {'1' * 5000} errors\n")
    assert 0 < len(log.findings) <= MAX_FINDINGS
    assert log.errors is None
    assert trouble("not supported" * 40_000 + line) is None


def test_a_link_in_place_of_a_lock_is_not_emptied(tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("kept")
    (tmp_path / "locks").mkdir()
    (tmp_path / "locks" / "GPU-1.lock").symlink_to(victim)
    with (
        pytest.raises(DeviceError, match="cannot lock cuda:0"),
        GpuLocks(["cuda:0"], tmp_path / "locks", keys={"cuda:0": "GPU-1"}).hold("cuda:0"),
    ):
        pass
    assert victim.read_text() == "kept"


def test_a_key_names_no_other_folder(tmp_path):
    with GpuLocks(["cuda:0"], tmp_path / "locks", keys={"cuda:0": "../../x/.."}).hold("cuda:0"):
        assert all(name.endswith((".lock", ".next")) for name in os.listdir(tmp_path / "locks"))
    assert os.listdir(tmp_path) == ["locks"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (json.dumps({"pid": 7, "task": "a\x1b[2J\nb", "since": 1.7e9}), "process 7 has had it for task a[2Jb"),
        (json.dumps({"pid": 7, "task": "", "since": HUGE}), "another process has it"),
        (json.dumps({"pid": HUGE, "task": "", "since": float("nan")}), "has had it"),
        ("[" * 4096, "another process has it"),
        ("[]", "another process has it"),
    ],
    ids=["escapes", "no-time", "no-process", "deep", "no-mapping"],
)
def test_what_a_lock_file_says_is_told_without_harm(tmp_path, text, expected):
    path = tmp_path / "GPU-1.lock"
    path.write_text(text)
    holder = _Wait("cuda:0", path, None, None).holder()
    assert expected in holder
    assert holder.isprintable()
