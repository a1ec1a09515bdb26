"""``kernelforge tasks audit``, ``tasks check`` and ``tasks score-tester`` on a suite of four tasks, in the jail."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest

from kernelforge.sandbox import Zygote

TASK = '''
"""{title}."""
import torch
import torch.nn as nn

ROWS = 8

class Model(nn.Module):
    def forward(self, a):
        return {forward}

def get_inputs():
    return [torch.randn(ROWS, 40)]

def get_init_inputs():
    return []
'''

ARGUMENT = """
[[equivalent]]
task = "positive"
mutant = "{mutant}"
argument = "the operand is a softmax, which is never negative"
"""


FORWARDS = {
    "positive": "torch.relu(torch.softmax(a, 1))",
    "broken": "a.no_such_method()",
    "again": "torch.relu(torch.softmax(a, 1))",
    "random": "a + torch.rand(40)",
}


@pytest.fixture(scope="module")
def zygote(kept_zygotes: Callable[..., Zygote]) -> Zygote:
    return kept_zygotes("oracle")


@pytest.fixture
def suite(tmp_path: Path, zygote: Zygote, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Four tasks in a folder. Its commands share one warm zygote, which takes seconds to start."""
    monkeypatch.setattr("kernelforge.cli.tasks.oracle_zygote", lambda allow_unconfined: nullcontext(zygote))
    folder = tmp_path / "mine"
    folder.mkdir()
    for name, forward in FORWARDS.items():
        (folder / f"{name}.py").write_text(TASK.format(title=name.title(), forward=forward))
    tasks = "".join(f'[[task]]\nname = "{name}"\nsmall = {{ ROWS = 4 }}\n' for name in FORWARDS)
    (folder / "suite.toml").write_text(f'title = "Mine"\n{tasks}')
    return folder


@pytest.mark.slow
def test_a_survivor_is_listed_and_a_broken_task_is_one_line(cli, suite):
    done = cli("tasks", "audit", str(suite), "--jobs", "2", "--threshold", "0.5")
    assert done.code == 1  # two tasks could not be audited
    assert "mine/broken" in done.out
    assert "no_such_method" in done.out
    assert "survived: removed@relu (bitwise equal to the reference)" in done.out
    assert "4 tasks (1 the same as another)" in done.out
    assert "2 tasks FAILED" in done.out


@pytest.mark.slow
def test_tasks_are_audited_in_order_and_what_is_the_same_once(cli, suite):
    """An argued survivor is not counted; an argument whose mutant is rejected is stale."""
    arguments = [ARGUMENT.format(mutant=mutant) for mutant in ("removed@relu", "stale@output0")]
    (suite / "audit.toml").write_text("".join(arguments))
    done = cli("tasks", "audit", str(suite), "--json", "--jobs", "2", "--most", "5", "--threshold", "0.9")
    assert done.code == 1
    data = done.json()
    positive, broken, second, random = data["tasks"]
    assert [task["task"] for task in data["tasks"]] == list(FORWARDS)
    assert "no_such_method" in broken["error"]
    assert "random" in random["error"]
    assert second["same_as"] == "positive"
    assert [item["mutant"] for item in second["mutants"]] == [item["mutant"] for item in positive["mutants"]]
    outcomes = {mutant["mutant"]: mutant["outcome"] for mutant in positive["mutants"]}
    assert len(outcomes) == 6, "five, and one argued that is not among them"
    assert outcomes["removed@relu"] == "equivalent"
    assert outcomes["stale@output0"] == "killed"
    assert data["equivalent"] == 1
    assert data["kernelbench_killed"] < data["killed"] == data["judged"] == 5
    assert positive["stale"] == ["stale@output0 is argued to be equivalent, but it is killed"]


@pytest.mark.slow
def test_all_and_one_task_cannot_both_be_meant(cli):
    for verb in ("check", "audit"):
        done = cli("tasks", verb, "--all", "--task", "softmax")
        assert done.code == 2
        assert done.err.count("\n") == 1
        assert "leave out --task" in done.err


@pytest.mark.slow
def test_tasks_are_checked_side_by_side_in_their_order(cli, suite):
    done = cli("tasks", "check", str(suite), "--task", "positive", "--task", "broken", "--jobs", "2", "--json")
    data = done.json()
    assert done.code == 1
    assert data["refused"] == ["broken"]
    assert data["findings"][0]["task"] == "positive"
    assert "no_such_method" in data["findings"][-1]["text"]


@pytest.mark.slow
def test_a_tester_is_scored_and_a_broken_task_is_one_line(cli, suite):
    done = cli("tasks", "score-tester", str(suite), "--task", "positive", "--task", "broken", "--most", "6")
    assert done.code == 1  # one task could not be scored
    (broken,) = (line for line in done.out.splitlines() if "no_such_method" in line)
    assert broken.startswith("mine/broken")
    verdict = done.out.splitlines()[-1]
    assert verdict.startswith("builtin: 3 of 3 tests admitted; ")
    assert verdict.endswith("6 faults in 2 tasks; 1 tasks FAILED")


@pytest.mark.slow
def test_the_scores_of_a_tester_for_programs(cli, suite):
    done = cli("tasks", "score-tester", str(suite), "--task", "positive", "--json", "--output", "rows.jsonl")
    assert done.code == 0
    data = done.json()
    [trained] = [json.loads(line) for line in Path("rows.jsonl").read_text().splitlines()]
    assert (trained["task"], trained["reward"], trained["written_by"]) == ("positive", data["score"], "builtin")
    assert "# Request: further test inputs" in trained["messages"][0]["content"]
    (row,) = data["tasks"]
    assert [test["name"] for test in row["tests"]] == ["far_below_zero", "last_largest", "few_values"]
    assert row["tests"][0]["plan"].startswith("def inputs(x0):")
    assert 0 < row["rejected"] <= max(test["rejected"] for test in row["tests"]) * 2
    assert row["counted"] == row["rejected"] + len(row["missed"])
    assert data["score"] == row["score"] == row["rejected"] / row["counted"]


def test_a_file_that_cannot_be_written_costs_no_call(cli, suite):
    done = cli("tasks", "score-tester", str(suite), "--output", str(suite))
    assert done.code == 2
    assert done.out == ""
    assert "is a folder: name a file" in done.err


def test_a_tester_that_cannot_be_asked_is_one_line(cli, suite):
    done = cli("tasks", "score-tester", str(suite), "--tester", "absent:model")
    assert done.code == 2
    assert done.out == ""
    assert "there is no provider 'absent:model'" in done.err
