"""The script that measures PyTorch on a GPU: what needs no GPU of it, and what it gave on an H100."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import hardware_baselines
from kernelforge.tasks import load_suite

KEPT = Path(__file__).resolve().parents[2] / "results" / "reference" / "h100" / "baselines.jsonl"


def test_the_references_are_written_at_their_full_sizes(tmp_path: Path) -> None:
    hardware_baselines.prepare(tmp_path, ["core-large"])
    listed = {task["task"]: task["source"] for task in json.loads((tmp_path / "tasks.json").read_text())}
    assert list(listed) == [task.name for task in load_suite("core-large")]
    assert "ROWS = 16384" in listed["softmax"]


def test_equal_launches_are_one_entry() -> None:
    add = {"name": "void at::native::(anonymous namespace)::add<4>(int, float*)", "us": 1.5, "grid": [2, 1, 1]}
    entries = hardware_baselines.grouped([add, add | {"grid": [3, 1, 1]}, add])
    assert [(entry["name"], entry["launches"], entry["us"]) for entry in entries] == [
        ("at::native::add<4>", 2, 3.0),
        ("at::native::add<4>", 1, 1.5),
    ]


@pytest.mark.slow
def test_an_h100_measured_every_task_of_its_time(capsys: pytest.CaptureFixture[str]) -> None:
    names = {(suite, task.name) for suite in hardware_baselines.SUITES for task in load_suite(suite)}
    records = [json.loads(line) for line in KEPT.read_text(encoding="utf-8").splitlines()]
    measured = {(record["suite"], record["task"]) for record in records}
    assert measured <= names
    assert len(records) == len(measured)
    # No GPU was at hand since others were added to these suites.
    assert {suite for suite, _ in names - measured} <= {"backward", "hpc", "llm", "papers"}
    for record in records:
        kernels = sum(kernel["us"] for kernel in record["kernels"])
        assert 0.7 < kernels / record["graph_us"]["median"] < 1.7, record["task"]
    assert hardware_baselines.show(KEPT) == 0
    assert f"{len(records)} of {len(records)} tasks measured" in capsys.readouterr().out


def test_a_file_without_a_measured_task_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "baselines.jsonl"
    file.write_text(json.dumps({"suite": "core", "task": "softmax", "error": "RuntimeError: no GPU"}) + "\n")
    assert hardware_baselines.show(file) == 1
    assert "no GPU" in capsys.readouterr().out
