"""Boards built from files: all statistics computed from the rows, all files written or none."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from kernelforge.errors import UsageError
from kernelforge.leaderboard.build import BOARD_FILES, board_texts, build, read_submitted, stale, write_texts
from kernelforge.leaderboard.entry import EntryError, EntryFile, entry_text
from kernelforge.leaderboard.make_entry import entry_result
from kernelforge.leaderboard.verification import Check, TaskCheck, Verification
from kernelforge.leaderboard.verify import static_checks
from kernelforge.records import Verdict
from kernelforge.report.tables.run import entry_table
from kernelforge.report.terminal import leaderboard_lines
from kernelforge.report.views.board import boards_of, run_result
from kernelforge.tasks import load_suite
from tests.report.golden.golden_runs import golden_records

HOSTILE = "\x1b[31m </script><script>x</script> | =1+1 [a](b) \u202e `c`"


@pytest.fixture
def folder(tmp_path: Path, made: Callable[..., EntryFile]) -> Path:
    """Three entries: two of one board, one of another."""
    for name in ("measured-a", "measured-c", "modelled"):
        (tmp_path / f"{name}.json").write_text(entry_text(made(name)))
    return tmp_path


def record(entry: EntryFile, rerun: int, *, differs: bool = False, when: str = "2026-11-21T10:00:00+00:00"):
    solved = [row.task for row in entry.tasks if row.best is not None]
    statuses = dict.fromkeys(solved[:rerun], "agrees") | ({solved[0]: "differs"} if differs else {})
    return Verification(
        entry=entry.digest, run=entry.run.id, when=when, kernelforge="0.1.0", host="linux-x86_64",
        fingerprint=entry.fingerprints[0],
        seed=1, sample=rerun, checks=(Check(name="entry", ok=True),),
        tasks=tuple(
            TaskCheck(task=row.task, status=statuses.get(row.task, "not re-run"), reason="r", verdict=Verdict.OK)
            for row in entry.tasks
        ),
    )  # fmt: skip


def test_entries_that_differ_in_key_never_share_a_table(folder: Path):
    boards = build(read_submitted([folder])).boards
    assert sorted(len(board.entries) for board in boards) == [1, 2]
    for board in boards:
        measured = board.key.origin.value == "measured"
        assert all(bool(entry.fast_p) == measured for entry in board.entries)
        assert all((entry.geomean_speedup is not None) == measured for entry in board.entries)


def test_the_same_entry_twice_is_one_and_the_same_name_twice_is_two(folder: Path, made: Callable[..., EntryFile]):
    (folder / "copy.json").write_bytes((folder / "modelled.json").read_bytes())
    (folder / "again.json").write_text(entry_text(made("modelled", note="another file")))
    entries = [entry for board in build(read_submitted([folder])).boards for entry in board.entries]
    assert len(entries) == 4
    assert [entry.by for entry in entries] == ["Ada"] * 4


def test_every_denominator_is_all_tasks(folder: Path):
    for board in build(read_submitted([folder])).boards:
        for entry in board.entries:
            assert entry.correct.value == entry.tasks_ok / board.key.task_count
            for point in entry.fast_p:
                faster = [task for task in entry.tasks if task.best and point.p < (task.speedup or 0.0)]
                expected = entry.tasks_ok if point.p == 0 else len(faster)
                assert point.value == pytest.approx(expected / board.key.task_count)
                assert point.low <= point.value <= point.high


def test_a_modelled_board_ranks_by_predicted_speedup_and_never_by_traffic():
    def retimed(run: str, time_us: float, dram_bytes: float):
        result = run_result(golden_records("modelled"))
        task = next(task for task in result.tasks if task.correct)
        eager_us = task.predicted.eager_us
        speedup = {"speedup": eager_us / time_us, "low": eager_us / time_us / 2, "high": eager_us / time_us * 2}
        changed = {
            "time_us": time_us,
            "predicted": task.predicted.model_copy(update=speedup),
            "dram_bytes": dram_bytes,
            "dram_ratio": dram_bytes / task.compulsory_bytes,
        }
        tasks = tuple(task.model_copy(update=changed) if row is task else row for row in result.tasks)
        return result.model_copy(update={"run": run, "tasks": tasks})

    (board,) = boards_of([retimed("less-traffic", 20.0, 8.4e6), retimed("less-time", 10.0, 9e7)]).boards
    assert [entry.run for entry in board.entries] == ["less-time", "less-traffic"]
    assert min(task.time_us for task in board.records if task.time_us) < 20
    assert {task.dram_bytes for task in board.records} >= {9e7}
    header = entry_table("Board", board.entries, origin=board.key.origin).columns
    keys = [column.key for column in header]
    assert keys.index("predicted_geomean") < keys.index("median_dram_ratio")


@pytest.mark.slow
def test_json_csv_and_page_say_the_same(folder: Path):
    texts = board_texts(build(read_submitted([folder])))
    data = json.loads(texts["leaderboard.json"])
    rows = {row["digest"]: row for row in csv.DictReader(io.StringIO(texts["leaderboard.csv"]))}
    page = texts["LEADERBOARD.md"]
    entries = [entry for board in data["boards"] for entry in board["entries"]]
    assert {entry["digest"] for entry in entries} == set(rows)
    for entry in entries:
        row = rows[entry["digest"]]
        for name in ("correct", "geomean_speedup", "win_rate", "floor_share", "median_dram_ratio"):
            for end, suffix in (("value", ""), ("low", "_low"), ("high", "_high")):
                text = row[name + suffix]
                assert (float(text) if text else None) == (entry[name][end] if entry[name] else None)
        points = {f"fast_{point['p']:g}".replace(".", "_"): point["value"] for point in entry["fast_p"]}
        assert {name: float(row[name]) for name in points} == points
        assert entry["run"] in page
    tasks = list(csv.DictReader(io.StringIO(texts["tasks.csv"])))
    assert len(tasks) == sum(entry["tasks_total"] for entry in entries)


def test_what_strangers_wrote_is_shown_and_not_obeyed(tmp_path: Path, made: Callable[..., EntryFile]):
    (tmp_path / "x.json").write_text(entry_text(made("modelled", by=HOSTILE, note=HOSTILE)))
    texts = board_texts(build(read_submitted([tmp_path])))
    for name in ("LEADERBOARD.md", "leaderboard.csv"):
        assert "\x1b" not in texts[name]
        assert "\u202e" not in texts[name]
    assert "<script>" not in texts["LEADERBOARD.md"]
    (row,) = csv.DictReader(io.StringIO(texts["leaderboard.csv"]))
    assert not row["note"].startswith("=")


def test_a_bad_file_is_named_and_nothing_is_built(folder: Path):
    path = folder / "zzz.json"
    data = json.loads((folder / "modelled.json").read_text())
    data["tasks"][0]["attempts"] = "many"
    path.write_text(json.dumps(data))
    with pytest.raises(EntryError, match=r"zzz\.json: tasks\.0\.attempts: "):
        read_submitted([folder])
    path.write_text('{"format": "something"}')
    with pytest.raises(EntryError, match=r"zzz\.json: format: "):
        read_submitted([folder])


def test_a_folder_without_entries_says_how_to_make_one(tmp_path: Path):
    with pytest.raises(UsageError, match="leaderboard entry"):
        read_submitted([tmp_path])


@pytest.mark.slow
def test_files_are_written_whole_and_found_stale_when_an_entry_goes(folder: Path, tmp_path: Path):
    output = tmp_path / "board"
    texts = board_texts(build(read_submitted([folder])))
    assert stale(texts, output) == BOARD_FILES
    write_texts(texts, output)
    assert {path.name for path in output.iterdir()} == set(BOARD_FILES)
    assert stale(texts, output) == ()
    (folder / "modelled.json").unlink()
    changed = stale(board_texts(build(read_submitted([folder]))), output)
    assert set(changed) == {"leaderboard.json", "leaderboard.csv", "tasks.csv", "LEADERBOARD.md"}


def test_a_failed_write_leaves_the_old_board(folder: Path, tmp_path: Path):
    output = tmp_path / "board"
    texts = board_texts(build(read_submitted([folder])))
    write_texts(texts, output)
    with pytest.raises(UnicodeEncodeError):
        write_texts(dict.fromkeys(texts, "new") | {"tasks.csv": "\ud800"}, output)
    assert stale(texts, output) == ()
    assert {path.name for path in output.iterdir()} == set(BOARD_FILES)


@pytest.mark.slow
def test_a_verification_counts_for_the_very_entry_alone(folder: Path, made: Callable[..., EntryFile]):
    (folder / "c.verification.json").write_text(record(made("measured-c"), 5).text())
    (folder / "a.verification.json").write_text(record(made("measured-a", note="an older file"), 5).text())
    view = build(read_submitted([folder]))
    result = {entry.run: entry.verified for board in view.boards for entry in board.entries}
    text = result.pop(made("measured-c").run.id)
    assert (text.rerun, text.tasks, text.agree) == (5, 12, True)
    assert set(result.values()) == {None}
    assert "5 of 12 re-run" in board_texts(view)["LEADERBOARD.md"]


def test_a_verification_that_differs_is_never_hidden_by_one_that_agrees(folder: Path, made: Callable[..., EntryFile]):
    entry = made("measured-c")
    (folder / "bad.verification.json").write_text(record(entry, 1, differs=True).text())
    (folder / "good.verification.json").write_text(record(entry, 9, when="2026-11-22T10:00:00+00:00").text())
    page = board_texts(build(read_submitted([folder])))["LEADERBOARD.md"]
    assert "1 of 12 re-run: DIFFERS" in page
    assert "9 of 12" not in page


def _made_up(data: dict[str, Any]) -> None:
    data["tasks"] += [dict(data["tasks"][0], task=f"more{number}") for number in range(99)]


def _unsolved(data: dict[str, Any]) -> None:
    for row in data["tasks"]:
        row["status"] = "agrees"


def _elsewhere(data: dict[str, Any]) -> None:
    data["fingerprint"] |= {"device": "emulated:h100", "device_kind": "emulated", "gpu": None}


@pytest.mark.parametrize(
    ("flatter", "message"),
    [
        (_made_up, "tasks: they are not those of the entry"),
        (_unsolved, "the entry has nothing for it"),
        (_elsewhere, "fingerprint: evaluated on emulated:h100, the entry is of NVIDIA H200"),
        (lambda data: data.update(run="another"), "run: it is of run another"),
        (lambda data: data.update(fingerprint=None), "it does not say where"),
        (lambda data: data["tasks"][0].update(verdict="WRONG"), "what came to WRONG does not agree"),
    ],
)
def test_a_record_that_flatters_is_refused_by_file_and_field(folder: Path, made, flatter, message: str):
    data = json.loads(record(made("measured-c"), 5).text())
    flatter(data)
    (folder / "c.verification.json").write_text(json.dumps(data))
    with pytest.raises(EntryError, match=rf"c\.verification\.json: .*{message}"):
        read_submitted([folder])


def test_no_link_that_lies_in_a_board_leads_what_is_written_elsewhere(folder: Path, tmp_path: Path):
    """A pull request may bring links; names of parts cannot be guessed."""
    output, own_rows = tmp_path / "board", tmp_path / "mine.txt"
    output.mkdir()
    own_rows.write_text("mine")
    texts = board_texts(build(read_submitted([folder])))
    for name in texts:
        (output / f".{name}.part").symlink_to(own_rows)
        (output / name).symlink_to(own_rows)
    write_texts(texts, output)
    assert own_rows.read_text() == "mine"
    assert stale(texts, output) == ()


def test_a_time_that_nobody_believes_is_the_best_of_no_task(made: Callable[..., EntryFile], forged):
    def unbelieved(data: dict[str, Any]) -> None:
        for row in data["tasks"]:
            if row["best"] is not None:
                performance = row["best"]["evaluation"]["performance"]
                performance |= dict.fromkeys(("speedup", "speedup_lower", "speedup_eager"))
                performance |= {"quarantined": "too fast", "time_us": 1e-9, "interval_us": [1e-9, 1e-9]}

    honest = made("measured-c")
    results = [entry_result(honest), entry_result(forged(honest, unbelieved))]
    (board,) = boards_of(results).boards
    timed = {row.task: row.best.evaluation.performance for row in honest.tasks if row.best is not None}
    assert all(record.time_us == timed[record.task].time_us for record in board.records if timed.get(record.task))


def _not_compared(data: dict[str, Any]) -> None:
    """No best was compared at its full size."""
    for row in data["tasks"]:
        for check in row["best"]["evaluation"]["correctness"]["sizes"] if row["best"] else ():
            if check["size"] == "full":
                check |= {"status": "skipped", "message": "values not compared: too large", "error": None}


@pytest.mark.slow
def test_what_was_not_compared_at_its_full_size_is_the_best_of_no_task_and_correct_on_no_board(
    tmp_path: Path, reference: EntryFile, forged: Callable[..., EntryFile]
):
    marked = forged(reference, _not_compared)
    (tmp_path / "marked.json").write_text(entry_text(marked))
    (alone,) = build(read_submitted([tmp_path])).boards
    (entry,) = alone.entries
    assert (entry.tasks_ok, entry.correct.value, entry.median_dram_ratio) == (0, 0, None)
    assert entry.uncompared == len(reference.tasks)
    texts = board_texts(build(read_submitted([tmp_path])))
    assert f"{len(reference.tasks)} with full size not compared" in texts["LEADERBOARD.md"]
    assert "full size not compared: not counted as correct, no reward" in texts["LEADERBOARD.md"]
    (board,) = boards_of([entry_result(marked), entry_result(reference)]).boards
    assert all(task.correct for task in board.records)
    assert [listed.tasks_ok for listed in board.entries] == [len(reference.tasks), 0]
    (sizes,) = [check for check in static_checks(marked, load_suite("core")) if check.name == "sizes"]
    assert f"the full size of {len(reference.tasks)} was not compared" in sizes.detail


def test_the_schema_in_the_repository_is_that_of_the_model(reference_folder: Path):
    from kernelforge.leaderboard.entry import entry_schema

    assert (reference_folder / "entry.schema.json").read_text() == entry_schema(), "build the board there again"


def test_the_board_in_the_repository_is_built_from_its_entries(reference_folder: Path):
    changed = stale(board_texts(build(read_submitted([reference_folder / "entries"]))), reference_folder)
    assert not changed, "its README has the command that builds it again"


def _against_eager(data: dict[str, Any], tasks: int = 1000) -> None:
    """The first tasks with a speedup have no baseline but eager, which they are then compared with."""
    for row in data["tasks"]:
        speed = (row["best"] or {"evaluation": {"performance": None}})["evaluation"]["performance"]
        if tasks == 0 or not speed or not speed["timing"] or speed["speedup"] is None:
            continue
        tasks -= 1
        timing = speed["timing"]
        timing["baselines"] = [side for side in timing["baselines"] if side["name"] == "eager"]
        timing["ratios"] = [ratio for ratio in timing["ratios"] if ratio["baseline"] == "eager"]
        timing["fastest"] = "eager" if timing["ratios"] else None


@pytest.mark.slow
def test_a_board_says_at_how_many_tasks_compile_was_not_there(
    tmp_path: Path, made: Callable[..., EntryFile], forged: Callable[..., EntryFile]
):
    total = made("measured-a")
    entry = forged(total, lambda data: _against_eager(data, tasks=1))
    texts = {}
    for item, name in ((total, "whole"), (entry, "entry")):
        file = tmp_path / f"{name}.json"
        file.write_text(entry_text(item))
        texts[name] = board_texts(build(read_submitted([file])))
    board = json.loads(texts["entry"]["leaderboard.json"])["boards"][0]
    before = json.loads(texts["whole"]["leaderboard.json"])["boards"][0]
    assert board["key"]["baseline"] == "fastest", "at other tasks it was there"
    missing = board["entries"][0]["uncompiled"]
    assert missing == before["entries"][0]["uncompiled"] + 1
    (row,) = csv.DictReader(io.StringIO(texts["entry"]["leaderboard.csv"]))
    assert row["uncompiled"] == str(missing)
    page = texts["entry"]["LEADERBOARD.md"]
    assert f"{missing} without compile" in page
    assert "against a weaker baseline there" in page
    assert "TF32 is off for every baseline, in convolutions too" in page
    console = Console(width=400, file=io.StringIO(), color_system=None)
    console.print(leaderboard_lines(build(read_submitted([tmp_path / "entry.json"]))))
    lines = console.file.getvalue()  # type: ignore[attr-defined]
    assert f"{missing} without compile" in lines
    assert "against a weaker baseline there" in lines


@pytest.mark.slow
def test_results_without_compile_have_a_board_of_their_own(
    tmp_path: Path, made: Callable[..., EntryFile], forged: Callable[..., EntryFile]
):
    def without(data: dict[str, Any]) -> None:
        _against_eager(data)
        data["key"]["baseline"] = "fastest without compile"

    (tmp_path / "with.json").write_text(entry_text(made("measured-a")))
    (tmp_path / "without.json").write_text(entry_text(forged(made("measured-a"), without)))
    boards = build(read_submitted([tmp_path])).boards
    assert sorted(board.key.baseline for board in boards) == ["fastest", "fastest without compile"]
    page = board_texts(build(read_submitted([tmp_path])))["LEADERBOARD.md"]
    assert "fastest baseline that was there, and torch.compile was not" in page
    with pytest.raises(EntryError, match="baseline is fastest, the rows say fastest without compile"):
        forged(made("measured-a"), _against_eager)
