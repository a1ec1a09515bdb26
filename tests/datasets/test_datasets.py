"""Published candidates are read from their own formats; what cannot be read is listed with its reason."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from kernelforge.datasets import as_task, read_cuda_l1, read_kernelbench
from kernelforge.errors import TaskError, UsageError
from tests.support.kernelbench_files import DOUBLE

CUSTOM = "class ModelNew: pass\n"


def lines(path: Path, *rows: Any) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def row(**changes: Any) -> dict[str, Any]:
    fields = {"level_id": 1, "task_id": 9, "ref_code": DOUBLE, "custom_code": CUSTOM, "cuda_graph_code": "None",
              "cudnn_code": None, "score_default": 1.5, "score_cuda_graph": None, "score_cudnn": None}  # fmt: skip
    return fields | changes


def test_lines_of_cuda_l1_become_candidates_with_their_published_scores(tmp_path: Path) -> None:
    path = lines(tmp_path / "h100.json", row(), row(task_id="12", cuda_graph_code=CUSTOM, score_cuda_graph="2.25"))
    result = read_cuda_l1(path)
    assert result.unread == ()
    assert [(item.name, item.published_score, item.origin) for item in result.candidates] == [
        ("level1_problem9", 1.5, "h100.json:1:custom_code"),
        ("level1_problem12", 1.5, "h100.json:2:custom_code"),
        ("level1_problem12_cuda_graph", 2.25, "h100.json:2:cuda_graph_code"),
    ]
    assert result.candidates[0].candidate.lane == "modelnew"


@pytest.mark.parametrize("missing", [None, "", "None", " None\n"])
def test_every_way_to_leave_code_out_is_listed(tmp_path: Path, missing: str | None) -> None:
    result = read_cuda_l1(lines(tmp_path / "a.json", row(custom_code=missing)))
    assert result.candidates == ()
    assert [(item.name, "no custom_code" in item.reason) for item in result.unread] == [("level1_problem9", True)]


def test_one_object_by_level_is_the_same_data(tmp_path: Path) -> None:
    path = tmp_path / "codes.json"
    entry = {"task_id": 3, "ref_code": DOUBLE, "custom_code": CUSTOM, "score": 4.0}
    path.write_text(json.dumps({"1": [entry], "2": [entry, "odd"], "3": []}))
    result = read_cuda_l1(path)
    assert [(item.level, item.problem, item.published_score) for item in result.candidates] == [
        (1, "3", 4.0),
        (2, "3", 4.0),
    ]
    assert [item.origin for item in result.unread] == ["codes.json:2[1]"]


def test_rows_that_cannot_be_read_do_not_hide_the_others(tmp_path: Path) -> None:
    path = lines(tmp_path / "a.json", row(level_id="x"), row(task_id="../9"), row(ref_code="None"), [1], row())
    with path.open("a") as file:
        file.write("{broken\n")
    result = read_cuda_l1(path)
    assert [item.name for item in result.candidates] == ["level1_problem9"]
    assert [item.reason.split(":")[0] for item in result.unread] == [
        "level 'x' and task_id 9 name no problem", "level 1 and task_id '../9' name no problem", "no ref_code",
        "not a JSON object", "not a JSON object",
    ]  # fmt: skip


def test_a_file_that_is_missing_or_no_text_is_said(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot read"):
        read_cuda_l1(tmp_path / "none.json")
    (tmp_path / "bytes.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match="not UTF-8"):
        read_cuda_l1(tmp_path / "bytes.json")


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "runs" / "mine"
    folder.mkdir(parents=True)
    for problem, sample in ((9, 0), (9, 1), (12, 0)):
        (folder / f"level_1_problem_{problem}_sample_{sample}_kernel.py").write_text(CUSTOM)
    (folder / "level_1_problem_13_sample_0_kernel.py").write_text("")
    (folder / "notes.py").write_text("x = 1\n")
    results = {"9": [{"sample_id": 0, "correctness": True, "runtime": 2.0, "ref_runtime": 3.0},
                     {"sample_id": 1, "correctness": False, "runtime": -1.0}],
               "12": {"sample_id": 0, "correctness": True}, "14": ["odd"]}  # fmt: skip
    (folder / "eval_results.json").write_text(json.dumps(results))
    return folder


def test_a_run_folder_gives_kernels_with_what_was_found_of_them(run_folder: Path) -> None:
    result = read_kernelbench(run_folder)
    assert {(item.name, item.published_correct, item.published_score) for item in result.candidates} == {
        ("level1_problem9_sample0", True, 1.5),
        ("level1_problem9_sample1", False, None),
        ("level1_problem12_sample0", True, None),
    }
    assert {item.origin for item in result.unread} == {
        "notes.py", "level_1_problem_13_sample_0_kernel.py", "eval_results.json",
    }  # fmt: skip


def test_references_come_from_a_folder_of_tasks(run_folder: Path, tmp_path: Path) -> None:
    tasks = tmp_path / "KernelBench" / "level1"
    tasks.mkdir(parents=True)
    (tasks / "9_Double.py").write_text(DOUBLE)
    result = read_kernelbench(run_folder, tasks.parent)
    assert {item.problem: item.reference is not None for item in result.candidates} == {"9": True, "12": False}
    assert any(item.name == "level1_problem12_sample0" and "not known" in item.reason for item in result.unread)


def test_a_reference_becomes_a_task_that_shrinks_only_as_told(tmp_path: Path) -> None:
    (item,) = read_cuda_l1(lines(tmp_path / "a.json", row())).candidates
    assert as_task(item).size("small").constants == {}
    assert as_task(item, {"N": 3}).size("small").constants == {"N": 3}
    with pytest.raises(TaskError, match="no module constant"):
        as_task(item, {"M": 3})


def test_a_candidate_without_a_reference_is_no_task(run_folder: Path) -> None:
    with pytest.raises(TaskError, match="without its reference"):
        as_task(read_kernelbench(run_folder).candidates[0])


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"level_id": "1" * 6000}, "name no problem"),
        ({"level_id": "\u0663"}, "name no problem"),
        ({"task_id": "a" * 5000}, "name no problem"),
        ({"task_id": "\u2177"}, "name no problem"),
        ({"custom_code": "x = '\ud800'"}, "half a surrogate pair"),
        ({"ref_code": "\udfff"}, "half a surrogate pair"),
    ],
)
def test_rows_that_no_file_can_hold_are_listed(tmp_path: Path, change: dict[str, object], reason: str) -> None:
    result = read_cuda_l1(lines(tmp_path / "a.json", row() | change))
    assert not result.candidates
    (unread,) = result.unread
    assert reason in unread.reason
    assert len(unread.reason) < 300


def test_a_name_that_is_taken_is_not_written_over(tmp_path: Path) -> None:
    result = read_cuda_l1(lines(tmp_path / "a.json", row() | {"task_id": "A"}, row() | {"task_id": "a"}))
    assert len(result.candidates) == 1
    assert "a.json:1:custom_code has this name already" in result.unread[0].reason


@pytest.mark.parametrize("score", ["1" + "0" * 400, "NaN", "Infinity", "[]"])
def test_scores_that_are_no_numbers_are_none(tmp_path: Path, score: str) -> None:
    path = tmp_path / "a.json"
    path.write_text(json.dumps(row() | {"score_default": "SCORE"}).replace('"SCORE"', score))
    assert read_cuda_l1(path).candidates[0].published_score is None


def test_results_of_impossible_size_are_none(run_folder: Path) -> None:
    text = '{"9": {"sample_id": 0, "runtime": 1e-300, "ref_runtime": %s}, "%s": {"sample_id": 0}}'
    for reference in ("1e300", "1" + "0" * 400, "NaN"):
        (run_folder / "eval_results.json").write_text(text % (reference, "1" * 6000))
        assert all(item.published_score is None for item in read_kernelbench(run_folder).candidates)


def test_only_plain_files_of_a_run_folder_are_read(run_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "private.py").write_text("secret = 1\n")
    (run_folder / "level_1_problem_20_sample_0_kernel.py").symlink_to(tmp_path / "private.py")
    os.mkfifo(run_folder / "level_1_problem_21_sample_0_kernel.py")
    (run_folder / "eval_results.json").unlink()
    (run_folder / "eval_results.json").symlink_to("/dev/zero")
    result = read_kernelbench(run_folder)
    assert not any("secret" in item.source for item in result.candidates)
    assert sum("no plain file" in item.reason for item in result.unread) == 3
