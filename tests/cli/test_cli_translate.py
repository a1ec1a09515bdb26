"""``kernelforge translate``: every verdict becomes a row for training, on the disk before the next call is paid for."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import Done
from tests.support.llm_server import Fail, FakeLLM, Say
from tests.support.shipped_prompts import shipped

needs_cc = pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler `cc`")


@pytest.fixture
def small_suite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The path of a suite with a task of ``translate`` whose full size is small, and a budget that it needs no more of
    than two rounds."""
    monkeypatch.setattr("kernelforge.translation.timing.SECONDS", 1e-3)
    folder = tmp_path / "suite"
    folder.mkdir()
    origin = Path(__file__).parents[2] / "tasks" / "translate"
    for suffix in ("c", "md"):
        shutil.copy(origin / f"heat_step.{suffix}", folder)
    source = (origin / "heat_step.py").read_text()
    small = source.replace("ROWS = 4096", "ROWS = 96").replace("COLS = 8192", "COLS = 128")
    assert small != source
    (folder / "heat_step.py").write_text(small)
    (folder / "suite.toml").write_text(
        'title = "Small"\ndescription = "One task."\nlicense = "Apache-2.0"\n[[task]]\nname = "heat_step"\n'
        'c_source = "heat_step.c"\ntranslation = "heat_step.md"\nsmall = { ROWS = 12, COLS = 16 }\n'
        "hidden.odd = { ROWS = 7, COLS = 13, R = 0.125 }\nhidden.tiny = { ROWS = 5, COLS = 9 }\n"
    )
    return str(folder)


@pytest.mark.slow
@needs_cc
def test_a_timed_function_has_verdict_protocol_and_speedups(cli: Callable[..., Done], small_suite: str) -> None:
    file, task = f"{small_suite}/heat_step.c", f"{small_suite}/heat_step.py"
    done = cli("eval", file, "--task", task, "--lane", "c", "--time", "--json")
    assert done.code == 0, done.err
    evaluation = done.json()["evaluation"]
    performance = evaluation["performance"]
    timing = performance["timing"]
    assert (evaluation["verdict"], evaluation["lane"], evaluation["fingerprint"]["device"]) == ("OK", "c", "cpu")
    assert (performance["origin"], performance["protocol"]) == ("measured", "cpu/1")
    assert performance["time_us"] == timing["candidate"]["median_us"] > 0
    assert {ratio["baseline"]: ratio["interval"][0] <= ratio["speedup"] <= ratio["interval"][1]
            for ratio in timing["ratios"]} == {"c": True, "eager": True}  # fmt: skip
    speedups = {ratio["baseline"]: ratio["speedup"] for ratio in timing["ratios"]}
    assert performance["speedup"] == speedups[timing["fastest"]] == min(speedups.values())
    assert performance["speedup_eager"] == speedups["eager"]
    assert timing["cpu"]["command"].startswith("cc -std=gnu11 -O2 -fopenmp")
    assert timing["cpu"]["overhead_us"] > 0
    assert (timing["absent"], timing["budget_s"]) == ({}, 1e-3)


@pytest.mark.slow
@needs_cc
def test_a_wrong_function_has_no_time(cli: Callable[..., Done], small_suite: str) -> None:
    file, task = Path(small_suite, "heat_step.c"), f"{small_suite}/heat_step.py"
    source = file.read_text()
    file.write_text(source.replace("4.0f *", "3.0f *"))
    assert file.read_text() != source
    done = cli("eval", str(file), "--task", task, "--lane", "c", "--time", "--json")
    assert done.code == 1
    evaluation = done.json()["evaluation"]
    assert (evaluation["verdict"], evaluation["stage"], evaluation["performance"]) == ("WRONG", "small", None)


@pytest.mark.slow
@needs_cc
def test_translations_are_timed_and_their_table_has_a_row_for_each(
    cli: Callable[..., Done], small_suite: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "test-key")
    right = f"```c\n{Path(small_suite, 'heat_step.c').read_text()}```\n"
    with FakeLLM([Say(right), Say(right)]) as server:
        options = ("--coder", "openai:m", "--base-url", server.openai_url, "--suite", small_suite, "--samples", "2")
        done = cli("translate", *options, "--time")
    assert done.code == 0, done.err
    assert "heat_step 1/2: OK" in done.err
    lines = [line.split() for line in done.out.splitlines()]
    assert ["compile", "rate", "100.0%"] in lines
    rows = [line for line in lines if line[:1] == ["heat_step"]]
    assert [row[1] for row in rows] == ["1", "2"]
    for row in rows:
        assert all(float(cell.replace(",", "")) > 0 for cell in row[2:4]), row  # its time, and that of an empty call
        assert sum(cell.endswith("x)") for cell in row) == 2, row  # over the suite's C, and over PyTorch


@pytest.mark.slow
@needs_cc
def test_the_shipped_transcript_has_every_task_and_can_be_replayed(cli: Callable[..., Done]) -> None:
    recording = Path(__file__).parents[2] / "results" / "reference" / "translate-openmp.jsonl"
    answered = {json.loads(line)["task"] for line in recording.read_text().splitlines()[1:]}
    assert answered == {task.name for task in shipped("translate")}
    done = cli("translate", "--coder", f"replay:{recording}", "--task", "run_lengths")
    assert done.code == 0, done.err
    assert "run_lengths 1/1: OK" in done.err


@pytest.mark.slow
@needs_cc
def test_rows_hold_prompt_reply_and_verdict_though_a_later_call_fails(
    cli: Callable[..., Done], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "test-key")
    task = next(task for task in shipped("translate") if task.name == "horner")
    right = f"Here it is:\u2028\n```c\n{task.c_source}```\n"
    wrong = right.replace("terms - 2", "terms - 3")
    with FakeLLM([Say(right), Say("I cannot."), Say(wrong), Fail(401)]) as server:
        options = ("--coder", "openai:m", "--base-url", server.openai_url, "--output", "rows.jsonl")
        done = cli("translate", *options, "--task", "horner", "--samples", "3")
        prompt = server.calls[0].body["messages"][0]["content"]
    assert done.code == 1
    good, bad = [json.loads(line) for line in Path("rows.jsonl").read_bytes().split(b"\n")[:-1]]
    assert [turn["content"] for turn in good["messages"]] == [prompt, right]
    assert (good["verified"], good["verdict"], good["direction"]) == (True, "OK, full size not compared", "cuda-to-c")
    assert (good["task"], good["task_digest"], good["written_by"]) == ("horner", task.digest, "openai:m")
    assert (good["lane"], good["device"], good["sample"]) == ("c", "cpu", 0)
    assert good["code"].strip() == task.c_source.strip()
    assert [turn["role"] for turn in bad["messages"]] == ["user", "assistant"] * 2
    assert bad["messages"][-1]["content"] == wrong
    assert (bad["verified"], bad["verdict"], bad["stage"], bad["sample"]) == (False, "WRONG", "small", 1)
    assert bad["reason"]
    assert bad["group"] == good["group"]


@pytest.mark.slow
def test_a_file_that_cannot_be_written_costs_no_call(cli: Callable[..., Done], tmp_path: Path) -> None:
    done = cli("translate", "--coder", "openai:m", "--output", str(tmp_path))
    assert done.code == 2
    assert "is a folder: name a file" in done.err


@pytest.mark.parametrize("command", [["translate", "--coder", "openai:m"], ["tasks", "score-tester", "core"]])
def test_rows_that_were_paid_for_are_not_overwritten(
    command: list[str], cli: Callable[..., Done], tmp_path: Path
) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"a": 1}\n')
    done = cli(*command, "--output", str(rows))
    assert done.code == 2
    assert "name a file that does not" in done.err
    assert rows.read_text() == '{"a": 1}\n'


def test_a_budget_of_nothing_is_refused(cli: Callable[..., Done], tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    done = cli("translate", "--coder", "openai:m", "--dollars", "0", "--output", str(rows))
    assert done.code == 2
    assert "--dollars 0" in done.err
    assert not rows.exists()


def test_both_directions_need_a_file(cli: Callable[..., Done]) -> None:
    done = cli("translate", "--coder", "openai:m", "--both")
    assert done.code == 2
    assert "--both adds rows to the file of --output" in done.err
