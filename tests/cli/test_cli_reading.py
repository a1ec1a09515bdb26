"""Verbs that read: what they print for people and for programs."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path

import pytest

from tests.support.recorded_run import HOSTILE, TASKS

pytestmark = pytest.mark.usefixtures("journal")


@pytest.mark.slow
def test_show_begins_with_the_latest_run(cli):
    done = cli("show")
    assert done.code == 0
    assert re.search(r"^run +newer interrupted$", done.out, re.M)
    for step, count in (("generated", 11), ("parsed", 10), ("built", 8), ("ran", 7), ("correct", 4)):
        assert re.search(rf"^{step} +{count} +█", done.out, re.M)
    for task in TASKS:
        assert re.search(rf"^{task} ", done.out, re.M)


@pytest.mark.slow
def test_show_takes_a_unique_beginning(cli):
    assert cli("show", "old", "--json").json()["id"] == "older"
    assert cli("show", "older", "--json").json()["seconds"] == 245.0


@pytest.mark.slow
def test_show_a_task(cli):
    done = cli("show", "older/softmax")
    assert done.code == 0
    assert re.search(r"^00 seed OK  1.91x the least DRAM  accepted *$", done.out, re.M)
    line = r"^  └ 01 vectorise OK  \d+ % alike 00  1.00x the least DRAM  -50.0 % time  accepted  ← best *$"
    assert re.search(line, done.out, re.M)
    assert "no new best in 4 rounds" in done.out
    data = cli("show", "softmax", "--json").json()
    assert (data["run"], data["task"]) == ("newer", "softmax")
    assert [node["depth"] for node in data["lineage"]] == [0, 1, 2, 2]


@pytest.mark.slow
def test_show_an_attempt_answers_four_questions(cli):
    done = cli("show", "newer/softmax/1")
    assert done.code == 0
    for title in ("What changed", "Is it right", "Is it fast", "Why", "Metrics"):
        assert title in done.out
    assert "-  // version 0" in done.out
    assert "+  // version 1" in done.out
    assert "hidden_odd" in done.out
    assert "coder reply" not in done.out
    assert "coder reply (builtin)" in cli("show", "newer/softmax/1", "--messages").out
    assert cli("show", "softmax/01", "--json").json()["id"] == "newer/softmax/01"


def test_show_a_candidate_as_eval_reads_it(cli):
    from kernelforge.candidate import parse_reply

    done = cli("show", "softmax/1", "--candidate")
    assert done.code == 0
    candidate = parse_reply(done.out)
    assert "// version 1" in candidate.source
    assert "k[2, BLOCK]" in candidate.plan


@pytest.mark.slow
def test_what_was_said_can_be_searched(cli):
    lines = cli("show", "newer", "--find", "```CUDA", "--json").json()["lines"]
    assert len({item["attempt"] for item in lines}) == len(lines) == 11
    assert {(item["agent"], item["role"], item["line"], item["text"]) for item in lines} == {
        ("coder", "reply", 1, "```cuda")
    }
    of_task = cli("show", "softmax", "--find", "```cuda", "--json").json()["lines"]
    assert of_task == [item for item in lines if item["task"] == "softmax"] != lines
    done = cli("show", "softmax/1", "--find", "finding")
    assert re.search(r"^newer/softmax/01 judge reply, line 1: finding 1 ", done.out, re.M)
    assert "lines that hold 'finding': 1\n" in done.out
    assert "\x1b" not in done.out  # what a model wrote is hostile
    assert cli("show", "newer", "--find", "no such words").out == "lines that hold 'no such words': 0\n"


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["show", "no-such-run"], "no run 'no-such-run'"),
        (["show", "sofmax"], "tasks of the latest run: softmax, matmul, argmax"),
        (["show", "softmax/x"], "number of an attempt"),
        (["show", "newer/nothing"], "softmax, matmul, argmax"),
        (["show", "newer/softmax/99"], "0 to 3"),
        (["show", "newer/softmax/x"], "number of an attempt: see `kernelforge show newer/softmax`"),
        (["show", "newer", "--messages"], "needs an attempt"),
        (["show", "newer", "--find", ""], "--find needs a text"),
        (["show", "softmax/1", "--find", "x", "--messages"], "neither --messages"),
        (["show", "argmax/2", "--candidate"], "held no candidate"),
        (["export", "no-such-run"], "no run 'no-such-run'"),
        (["export", "newer", "--task", "nothing"], "argmax, matmul, softmax"),
        (["resume", "no-such-run"], "no run 'no-such-run'"),
        (["leaderboard", "show", "--run", "no-such-run"], "no run 'no-such-run'"),
        (["leaderboard", "show", "--output", "x.md"], "--format"),
        (["leaderboard", "show", "--format", "xml"], "xml"),
        (["tasks", "list", "nosuite"], "no suite 'nosuite'"),
        (["tasks", "show", "nothing", "--no-facts"], "no task 'nothing'"),
        (["tasks", "check", "core", "--task", "nothing"], "no task 'nothing'"),
        (["eval", "missing.md", "--task", "softmax"], "missing.md"),
        (["eval", ".", "--task", "softmax"], "is a folder"),
        (["nonsense"], "nonsense"),
        (["show", "--nonsense"], "--nonsense"),
        (["run", "--rounds", "0"], "--rounds"),
        (["run", "--wall-minutes", "-1"], "some time"),
        (["run", "--suite", "nosuite"], "no suite 'nosuite'"),
        (["run", "--task", "nothing"], "no task 'nothing'"),
        (["run", "--device", "cuda:0"], "emulated:h100"),
        (["run", "--strategy", "magic"], "refine, best-of-n"),
        (["run", "--coder", "oracle"], "builtin"),
        (["run", "--reward", "gold"], "kernelforge/1"),
        (["eval", "results/kernelforge.db", "--task", "softmax"], "not UTF-8"),
    ],
)
def test_bad_input_is_one_clear_message_and_exit_code_2(cli, arguments, words):
    done = cli(*arguments)
    assert done.code == 2
    assert words in done.err
    assert "Traceback" not in done.err + done.out
    assert done.out == ""


@pytest.mark.slow
def test_the_leaderboard_in_every_format(cli, tmp_path: Path):
    terminal = cli("leaderboard", "show")
    assert "emulated:h100 · suite core" in terminal.out
    assert "fast 1" not in terminal.out
    data = cli("leaderboard", "show", "--json").json()
    assert data == json.loads(cli("leaderboard", "show", "--format", "json").out)
    assert [entry["run"] for entry in data["boards"][0]["entries"]] == ["older", "newer"]
    rows = list(csv.DictReader(io.StringIO(cli("leaderboard", "show", "--format", "csv").out)))
    assert len(rows) == 6
    page = cli("leaderboard", "show", "--format", "markdown", "--output", "board.md")
    assert page.out == ""
    assert (tmp_path / "board.md").read_text().startswith("# Leaderboard\n")
    only = cli("leaderboard", "show", "--run", "old", "--json").json()
    assert [entry["run"] for entry in only["boards"][0]["entries"]] == ["older"]


@pytest.mark.slow
def test_export_writes_one_object_a_line(cli, tmp_path: Path):
    done = cli("export")
    lines = [json.loads(line) for line in done.out.splitlines()]
    assert len(lines) == 11
    assert {line["run"] for line in lines} == {"newer"}
    assert len(cli("export", "all").out.splitlines()) == 22
    some = cli("export", "older", "--task", "softmax", "--task", "argmax", "--output", "out.jsonl")
    assert some.out == ""
    assert "8 attempts" in some.err
    assert len((tmp_path / "out.jsonl").read_text().splitlines()) == 8


@pytest.mark.slow
def test_export_to_a_bad_place_leaves_nothing(cli, tmp_path: Path):
    (tmp_path / "folder").mkdir()
    for index in ("folder", "nowhere/out.jsonl"):
        done = cli("export", "--output", index)
        assert done.code == (2 if index == "folder" else 1)
        assert f"error: {index}" in done.err
        assert "Traceback" not in done.err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder", "results"]


@pytest.mark.slow
def test_export_to_a_full_disk_is_one_clear_message(start):
    if not Path("/dev/full").exists():
        pytest.skip("this system has no /dev/full")
    with open("/dev/full", "w") as full:
        process = start("-m", "kernelforge.cli.main", "export", stdout=full)
        _, output = process.communicate()
    assert process.returncode == 1
    assert output == "error: No space left on device\n"


@pytest.mark.slow
def test_a_reader_that_leaves_early_is_no_error(start):
    process = start("-m", "kernelforge.cli.main", "export", "all")
    assert process.stdout.read(10).startswith('{"version"')
    process.stdout.close()
    assert process.stderr.read() == ""
    process.wait()


@pytest.mark.parametrize("reference", ["newer", "newer/softmax", "newer/softmax/2"])
def test_nothing_hostile_reaches_the_terminal(cli, reference):
    options = ["--messages"] if reference.count("/") == 2 else []
    done = cli("show", reference, *options)
    assert HOSTILE not in done.out
    for bad in "\x1b\x07\u202e":
        assert bad not in done.out


@pytest.mark.slow
def test_colours_stay_away_from_pipes_and_from_no_color(cli, monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert "\x1b[" in cli("show").out
    monkeypatch.setenv("NO_COLOR", "1")
    assert not re.search(r"\x1b\[[0-9;]*3[0-9]m", cli("show").out)
    monkeypatch.delenv("FORCE_COLOR")
    assert "\x1b" not in cli("show").out


@pytest.mark.slow
def test_a_results_folder_without_a_database_says_how_to_begin(cli, tmp_path: Path):
    for verb in (["show"], ["leaderboard", "show"], ["export"], ["resume"]):
        done = cli(*verb, "--results", "elsewhere")
        assert done.code == 1
        assert "kernelforge run" in done.err
        assert "elsewhere" in done.err
    assert not (tmp_path / "elsewhere").exists()


def test_a_damaged_database_is_one_clear_message(cli, tmp_path: Path):
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "kernelforge.db").write_text("not a database " * 100)
    done = cli("show", "--results", "bad")
    assert done.code == 1
    assert "not an intact results database" in done.err


@pytest.mark.slow
def test_debug_adds_the_traceback(cli, monkeypatch):
    monkeypatch.setenv("KERNELFORGE_DEBUG", "0")
    assert "Traceback" not in cli("show", "no-such-run").err
    done = cli("--debug", "show", "no-such-run")
    assert done.code == 2
    assert "Traceback" in done.err
    assert done.err.rstrip().splitlines()[-1].startswith("error: there is no run 'no-such-run'")


def test_the_results_folder_may_come_from_the_environment(cli, monkeypatch, journal: Path):
    monkeypatch.setenv("KERNELFORGE_RESULTS", str(journal.rename(journal.with_name("moved"))))
    assert cli("show", "--json").json()["id"] == "newer"
