"""The folder of pairs: half pairs are removed, other folders are refused, and counts are of all graphs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kernelforge.datasets.graph_pairs import DroppedGraph, GraphKey, PairFolder, Stage
from kernelforge.errors import UsageError


def row(name: str, direction: str, number: int = 0, **more: Any) -> dict[str, Any]:
    edits = ["append relu"] * number
    shared = {"operators": [name, "relu"], "families": ["softmax"], "seconds": 2.0, "graph": f"{name}{number}"}
    return {"origin": name, "number": number, "seed": 3, "direction": direction, "edits": edits, **shared, **more}


def both(name: str, number: int = 0) -> list[dict[str, Any]]:
    return [row(name, direction, number) for direction in ("cuda-to-c", "c-to-cuda")]


def write(folder: Path, rows: list[dict[str, Any]], end: str = "") -> None:
    (folder / "train.jsonl").write_text("".join(f"{json.dumps(item)}\n" for item in rows) + end)


def test_half_pairs_and_cut_lines_are_removed(tmp_path: Path) -> None:
    write(tmp_path, [*both("core/a"), row("core/b", "cuda-to-c")], '{"origin": "core/c", "num')
    folder = PairFolder(tmp_path, 3)
    assert folder.done == {GraphKey("core/a", 0)}
    kept = [json.loads(line) for line in (tmp_path / "train.jsonl").read_text().splitlines()]
    assert kept == both("core/a")


def test_counts_are_of_all_graphs(tmp_path: Path) -> None:
    write(tmp_path, [*both("core/a"), *both("core/a", 1)])
    folder = PairFolder(tmp_path, 3)
    stages: tuple[Stage, ...] = ("c", "trace", "repeat")
    for stage in stages:
        folder.add(DroppedGraph(GraphKey(f"core/{stage}", 0), stage, "why"), 1.0)
    summary = folder.summary()
    assert PairFolder(tmp_path, 3).summary() == summary
    assert (summary.graphs, summary.pairs, summary.rows) == (5, 2, 4)
    assert (summary.traced, summary.traced_with_pair) == (2, 1)
    assert summary.dropped == {"trace": 1, "repeat": 1, "c": 1}
    assert (summary.edits, summary.families, summary.operators) == ({"0": 1, "1": 1}, {"softmax": 2}, 2)


@pytest.mark.parametrize(("text", "words"), [('{"a": 1}\n', "holds no pairs"), ("no json\n", "holds no pairs")])
def test_other_files_are_left_as_they_are(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "train.jsonl").write_text(text)
    with pytest.raises(UsageError, match=words):
        PairFolder(tmp_path, 3)
    assert (tmp_path / "train.jsonl").read_text() == text


def test_another_seed_is_refused(tmp_path: Path) -> None:
    write(tmp_path, both("core/a"))
    with pytest.raises(UsageError, match="go on with --seed 3"):
        PairFolder(tmp_path, 4)
