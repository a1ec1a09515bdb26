"""Entries: contents of a file, and files that are refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kernelforge.errors import UsageError
from kernelforge.leaderboard.entry import (
    MAX_FILE_BYTES,
    EntryError,
    EntryFile,
    digest_of,
    entry_text,
    load_entry,
    parse_entry,
    read_object,
)
from kernelforge.leaderboard.make_entry import entry_result, make_entry, public_spec
from kernelforge.report import leaderboard
from kernelforge.report.views.board import boards_of


@pytest.mark.parametrize("name", ["modelled", "measured-a", "measured-b", "measured-c"])
def test_a_board_of_the_entry_has_the_numbers_of_the_run(made: Callable[..., EntryFile], name: str):
    from tests.report.golden.golden_runs import golden_records

    of_run = leaderboard([golden_records(name)]).boards[0]
    of_file = boards_of([entry_result(parse_entry(json.loads(entry_text(made(name))), "x.json"))]).boards[0]
    assert of_file.key == of_run.key
    own_rows, theirs = (board.entries[0].model_dump(mode="json") for board in (of_file, of_run))
    for text in (own_rows, theirs):
        for summary in text["tasks"]:
            del summary["reward"]  # an entry has none: policies are not what boards compare
    assert {field for field in own_rows if own_rows[field] != theirs[field]} == {"by", "digest"}


def test_an_entry_has_no_totals_that_would_have_to_be_believed():
    assert set(EntryFile.model_fields) == {
        "format", "by", "note", "run", "key", "suite", "suite_digest", "fingerprints", "tasks", "digest",
    }  # fmt: skip


def test_reading_gives_back_what_was_written(made: Callable[..., EntryFile], tmp_path: Path):
    entry = made("measured-a", note="with a note")
    path = tmp_path / "a.json"
    path.write_text(entry_text(entry))
    assert load_entry(path) == entry


def test_a_run_that_goes_on_is_not_submitted():
    from kernelforge.records import RunState
    from kernelforge.report import RunRecords
    from tests.support.recorded_run import golden_attempts, make_run

    run = make_run()
    with pytest.raises(UsageError, match="resume r1"):
        make_entry(RunRecords(run, tuple(golden_attempts(run))), {}, by="x")
    done = make_run(state=RunState.FINISHED)
    with pytest.raises(UsageError, match="no attempt"):
        make_entry(RunRecords(done, ()), {}, by="x")


def test_a_run_without_a_jail_is_not_submitted(made: Callable[..., EntryFile]):
    from tests.report.golden.golden_runs import golden_records

    records = golden_records("modelled")
    attempt = records.attempts[-1]
    bare = attempt.evaluation.fingerprint.model_copy(update={"jail": "none"})
    loose = attempt.model_copy(update={"evaluation": attempt.evaluation.model_copy(update={"fingerprint": bare})})
    changed = type(records)(records.run, (*records.attempts[:-1], loose), records.finished)
    with pytest.raises(UsageError, match="without a jail"):
        make_entry(changed, {}, by="x")


@pytest.mark.parametrize("name", ["hostile", "escaping"])
def test_a_run_with_names_that_no_file_may_have_is_refused_in_a_line(name: str):
    from tests.report.golden.golden_runs import golden_records

    with pytest.raises(UsageError, match="cannot be submitted"):
        make_entry(golden_records(name), {}, by="x")


def test_addresses_and_paths_stay_at_home():
    assert public_spec("openai:m?base_url=http://10.0.0.7:8000/v1&effort=high") == "openai:m?effort=high"
    assert public_spec("replay:some/folder/file.jsonl") == "replay"
    assert public_spec("exchange:some/desk") == "exchange"
    assert public_spec("builtin") == "builtin"
    assert public_spec("mcp:agent/1.0") == "mcp:agent/1.0"


def _tasks(data: dict[str, Any]) -> list[dict[str, Any]]:
    return [row for row in data["tasks"] if row["best"]]


def _source(data: dict[str, Any]) -> None:
    _tasks(data)[0]["best"]["candidate"]["source"] += "\n// faster"


def _choice(data: dict[str, Any]) -> None:
    _tasks(data)[0]["best"]["candidate"]["choices"]["BLOCK"] = 1024


def _time(data: dict[str, Any]) -> None:
    _tasks(data)[0]["best"]["evaluation"]["performance"]["speedup"] = 1e300


def _twice(data: dict[str, Any]) -> None:
    data["tasks"].append(data["tasks"][0])


def _set(*path: Any, value: Any) -> Callable[[dict[str, Any]], None]:
    def change(data: dict[str, Any]) -> None:
        for step in path[:-1]:
            data = data[step]
        data[path[-1]] = value

    change.__name__ = ".".join(map(str, path))
    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_source, r"tasks\.0\.best: .*candidate_hash"),
        (_choice, r"tasks\.0\.best: .*candidate_hash"),
        (_time, "digest"),
        (_twice, "listed twice"),
        (_set("by", value="mallory"), "digest"),
        (_set("by", value="x" * 81), "by: "),
        (_set("surprise", value=1), "surprise: "),
        (_set("format", value="kernelforge-entry/9"), "format: "),
        (_set("suite", value="../../etc"), "suite: "),
        (_set("run", "id", value="../../etc/passwd"), "run.id: "),
        (_set("tasks", 0, "task", value="../up"), "digest|task"),
        (_set("tasks", 0, "task", value="/etc/passwd"), r"tasks\.0\.task: "),
        (_set("tasks", 0, "attempts", value=-1), r"tasks\.0\.attempts: "),
        (_set("tasks", 0, "dollars", value="NaN"), r"tasks\.0\.dollars: "),
        (_set("key", "device", value="NVIDIA B200"), "key: device"),
        (_set("key", "device", value="two\nlines \x1b[31m"), "key: device is two lines .x1b"),
        (_set("key", "origin", value="modelled"), "key: origin"),
        (_set("tasks", 0, "verdict", value="WRONG"), "verdict OK"),
        (_set("fingerprints", 0, "gpu", value="x" * 201), "fingerprint"),
        (_set("run", "measure", "qps", value=1e-9), r"run\.measure: .*qps"),
        (_set("run", "started", value="yesterday"), "run.started: "),
        (_set("tasks", 0, "best", "evaluation", "verdict", value="WRONG"), r"tasks\.0\.best"),
        (_set("tasks", 0, "best", "profile", "roofline", "dram_bytes", value=-1.0), "roofline"),
        (_set("tasks", 0, "best", "profile", "roofline", "dram_bytes", value="NaN"), "roofline"),
        (_set("tasks", 0, "best", "candidate", "lane", value="modelnew"), "lane|plan"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_what_contradicts_itself_is_refused_by_file_and_field(made, change, message: str):
    data = json.loads(entry_text(made("measured-a")))
    change(data)
    with pytest.raises(EntryError, match=rf"^who\.json: .*({message})") as refused:
        parse_entry(data, "who.json")
    assert "\n" not in str(refused.value)


def _many_faults(data: dict[str, Any]) -> None:
    data["tasks"][0]["best"]["evaluation"]["build"]["diagnostics"] = [{}] * 200_000


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_many_faults, "tasks.0: more than 200,000 values"),
        (_set("tasks", value=[1] * 200_000), "tasks.0: Input should be"),
        (_set("fingerprints", value=[{}] * 200_000), "fingerprints.0.device: Field required"),
        (_set("run", value=dict.fromkeys(map(str, range(200_000)), 1)), "more than 200,000 values"),
        (_set("tasks", value=[]), "tasks: "),
        (_set("tasks", value={}), "tasks: "),
    ],
    ids=["row", "tasks", "fingerprints", "run", "none", "object"],
)
def test_faults_are_not_collected_until_memory_is_full(made, change, message: str):
    """A fault takes some 2 KB where pydantic collects it, and three bytes in a file."""
    data = json.loads(entry_text(made("measured-a")))
    change(data)
    with pytest.raises(EntryError) as refused:
        parse_entry(data, "who.json")
    assert str(refused.value).startswith(f"who.json: {message}")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not usable JSON"),
        ("[]", "a JSON list"),
        ('{"a": NaN}', "NaN"),
        ('{"a": Infinity}', "Infinity"),
        ('{"a": 1e999}', "too large"),
        ('{"a": ' + "9" * 5_000 + "}", "5000 digits"),
        ('{"a": 1, "a": 2}', "given twice"),
        ('{"a": ' + "[" * 100_000 + "]" * 100_000 + "}", "too deep"),
        ('{"a": "\ud800"}', "not usable JSON"),
    ],
    ids=["empty", "list", "nan", "infinity", "overflow", "digits", "twice", "deep", "surrogate"],
)
def test_hostile_json_is_one_line_and_no_traceback(tmp_path: Path, text: str, message: str):
    path = tmp_path / "entry.json"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    with pytest.raises(EntryError, match=message) as refused:
        read_object(path)
    assert str(refused.value).startswith(str(path))
    assert "\n" not in str(refused.value)


def test_a_file_above_the_limit_is_not_parsed(tmp_path: Path):
    path = tmp_path / "entry.json"
    with path.open("wb") as file:
        file.truncate(MAX_FILE_BYTES + 1)
    with pytest.raises(EntryError, match="larger than 64 MiB"):
        read_object(path)
    with pytest.raises(EntryError, match="no such file"):
        read_object(tmp_path)


def test_the_digest_is_of_the_content_and_not_of_its_layout():
    assert digest_of({"a": 1, "b": [2.5], "digest": "x"}) == digest_of({"b": [2.5], "a": 1})
    assert digest_of({"a": 1}) != digest_of({"a": 1.5})


def test_a_run_that_was_started_from_a_kernel_says_so_on_every_board():
    from kernelforge.records import Start, StartOrigin
    from kernelforge.report.tables.run import board_tables
    from tests.report.golden.golden_runs import golden_records
    from tests.support.factories import make_candidate

    records = golden_records("modelled")
    task = records.run.config.tasks[0]
    start = Start(task=task, origin=StartOrigin(file="mine.cu", digest="0" * 64), candidate=make_candidate())
    config = records.run.config.model_copy(update={"starts": (start,)})
    changed = replace(records, run=records.run.model_copy(update={"config": config}))
    entry = make_entry(changed, {name: record.digest for name, record in records.tasks.items()}, by="x")
    for board in (leaderboard([changed]).boards[0], boards_of([entry_result(entry)]).boards[0]):
        assert board.entries[0].starts == 1
        assert "1 started from a kernel" in repr(board_tables(board))
