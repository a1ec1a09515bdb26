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
