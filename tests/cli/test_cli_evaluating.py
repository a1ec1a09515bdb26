"""``eval`` and a small run, for real."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from kernelforge.evaluation.evaluator import EvaluationResult
from kernelforge.records import UNCOMPARED
from tests.support.factories import make_evaluation, uncompared_evaluation


def test_a_reply_without_code_is_a_verdict_and_exit_code_1(cli, tmp_path: Path):
    (tmp_path / "reply.md").write_text("I would rather not.")
    done = cli("eval", "reply.md", "--task", "softmax", "--json")
    assert done.code == 1
    data = done.json()
    assert data["evaluation"]["verdict"] == "POLICY"
    assert data["evaluation"]["stage"] == "parse"
    assert "```cuda" in data["evaluation"]["reason"]
    assert data["profile"] is None


@pytest.mark.parametrize(("compared", "code"), [(True, 0), (False, 1)])
def test_ok_without_the_full_size_is_no_success(cli, tmp_path: Path, monkeypatch, compared: bool, code: int):
    evaluation = make_evaluation() if compared else uncompared_evaluation()
    result = EvaluationResult(evaluation, None)
    monkeypatch.setattr("kernelforge.evaluation.api.evaluate", lambda *args, **options: result)
    (tmp_path / "reply.md").write_text("none")
    done = cli("eval", "reply.md", "--task", "softmax", "--device", "emulated:h100")
    assert done.code == code
    assert (UNCOMPARED in done.out) == (not compared)


@pytest.mark.slow
def test_a_run_journals_what_show_and_eval_then_read(cli, tmp_path: Path):
    done = cli("run", "--task", "transpose", "--rounds", "1", "--seed", "1")
    assert done.code == 0, done.err
    assert "transpose 00 seed OK best so far" in done.out
    rendered = cli("show", "transpose/0", "--json").json()
    assert rendered["verdict"] == "OK"
    (tmp_path / "reply.md").write_text(cli("show", "transpose/0", "--candidate").out)
    second = cli("eval", "reply.md", "--task", "transpose", "--json")
    assert second.code == 0
    assert second.json()["evaluation"]["candidate"] == rendered["candidate"]
    (line,) = cli("export").out.splitlines()
    parts = json.loads(line)["reward"]["components"]
    assert parts["correct"] == 0.3
    assert 0 < parts["log_predicted"] < 1.04
    assert cli("resume").code == 2
    text = cli("eval", "reply.md", "--task", "transpose", "--no-profile").out
    assert "hidden_odd" in text
    assert "Profile at size" not in text


@pytest.mark.slow
def test_the_facts_of_a_task_are_shown(cli):
    done = cli("tasks", "show", "matmul")
    assert done.code == 0
    assert "float32[5, 7], float32[7, 3]" in done.out
    assert "class Model" in done.out


@pytest.mark.slow
def test_the_floor_of_a_task_is_its_bytes_at_each_gpus_bandwidth(cli):
    detail = json.loads(cli("tasks", "show", "matmul", "--json").out)
    full = next(size for size in detail["facts"]["sizes"] if size["size"] == "full")
    assert full["compulsory_bytes"] == 3 * 4 * 1024**2
    assert full["flops"] == 2 * 1024**3
    floors = {row["device"]: row for row in detail["floors"]}
    # One GPU of each generation and more, not all forty.
    assert set(floors) == {
        "h100", "h200", "a100", "b200", "l40s", "a10", "t4", "rtx-5090", "rtx-4090", "rtx-3090"
    }  # fmt: skip
    assert floors["h100"]["floor_us"] == pytest.approx(3 * 4 * 1024**2 / 3350e9 * 1e6)
    assert floors["t4"]["floor_us"] == pytest.approx(3 * 4 * 1024**2 / 320e9 * 1e6)
    assert floors["a100"]["arithmetic_us"] == pytest.approx(2 * 1024**3 / 19.5e12 * 1e6, rel=0.01)
    assert json.loads(cli("tasks", "show", "matmul", "--no-facts", "--json").out)["floors"] == []


@pytest.mark.slow
def test_launches_of_pytorch_are_predicted_with_the_batch_from_which_on_the_gpu_is_slower(cli):
    detail = json.loads(cli("tasks", "show", "level1/batch_norm", "--json").out)
    rows = {row["title"]: row for row in detail["launches"]}
    h100, t4 = rows["NVIDIA H100 SXM5 80 GB"], rows["NVIDIA T4 16 GB"]
    assert h100["queue"]["origin"] == "predicted"
    batches = sorted({row["batch"] for row in detail["batches"]})
    assert batches == [1 << power for power in range(len(batches))]
    assert h100["largest_batch"] == batches[-1]
    assert 1 <= t4["gpu_bound_batch"] < h100["gpu_bound_batch"] <= batches[-1]
    swept = [row["queue"] for row in detail["batches"] if row["device"] == "h100"]
    waits = [queue["tklqt_us"] for queue in swept]
    assert waits == sorted(waits)
    assert [queue["gpu_us"] > queue["host_us"] for queue in swept].index(True) == batches.index(h100["gpu_bound_batch"])
    text = cli("tasks", "show", "softmax").out
    assert "launch and queue time of its kernels (TKLQT)" in text
    # Its batch is no constant called so: the table names that constant.
    assert re.search(r"ROWS (> )?\d+", text)
    assert "predicted" in text


@pytest.mark.slow
def test_the_time_of_pytorch_is_shown_where_it_was_published_or_predicted(cli):
    rows = {row["title"]: row for row in json.loads(cli("tasks", "show", "level1/relu", "--json").out)["baselines"]}
    measured, predicted = rows["NVIDIA H100 SXM5 80 GB"], rows["NVIDIA T4 16 GB"]
    assert (measured["eager"]["origin"], measured["compile"]["origin"]) == ("published", "predicted")
    assert predicted["eager"]["origin"] == "predicted"
    assert predicted["eager"]["time_us"] > 5 * measured["eager"]["time_us"]
    assert "(published)" in cli("tasks", "show", "level1/relu").out
