"""``kernelforge reward``: policies are listed, and stored evaluations are scored again without touching the journal."""

from __future__ import annotations

import csv
import io
import json
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kernelforge.rewards import POLICIES

Cli = Callable[..., Any]
UNCHANGED = "the journal was not changed"


def content(journal: Path) -> list[str]:
    with sqlite3.connect(f"file:{journal / 'kernelforge.db'}?mode=ro", uri=True) as database:
        return list(database.iterdump())


@pytest.mark.slow
def test_every_policy_is_listed_with_its_source(cli: Cli) -> None:
    result = cli("reward", "list")
    assert result.code == 0
    listed = cli("reward", "list", "--json").json()
    assert [item["name"] for item in listed] == list(POLICIES)
    for item in listed:
        assert item["name"] in result.out
        assert " ".join(item["source"].split()) in " ".join(result.out.split())


def test_recomputing_under_the_runs_own_policy_changes_nothing(cli: Cli, journal: Path) -> None:
    before = content(journal)
    done = cli("reward", "recompute", "all", "--json", "--results", str(journal))
    assert done.code == 0
    rows = done.json()["rows"]
    assert len(rows) == 22
    assert not any(row["differs"] for row in rows)
    assert "0 of 22 differ" in done.err
    assert UNCHANGED in done.err
    assert content(journal) == before


def test_other_policies_stand_beside_what_was_stored(cli: Cli, journal: Path) -> None:
    done = cli(
        "reward", "recompute", "older", "--task", "matmul", "--policy", "kevin/1", "--policy", "cuda-agent/1",
        "--json", "--results", str(journal),
    )  # fmt: skip
    rows = done.json()["rows"]
    assert [row["id"] for row in rows] == [f"older/matmul/{number:02d}" for number in (0, 0, 1, 1, 2, 2)]
    assert [row["value"] for row in rows] == [0.0, -1.0, 0.0, -1.0, 0.3, 1.0]
    assert {row["stored_policy"] for row in rows} == {"kernelforge/1"}
    assert [row["stored"] for row in rows] == [0.0, 0.0, 0.0, 0.0, 0.3, 0.3]


def test_a_stored_reward_that_the_policy_does_not_give_is_told(cli: Cli, journal: Path) -> None:
    with sqlite3.connect(journal / "kernelforge.db") as database:
        changed = database.execute(
            "UPDATE attempts SET record = json_set(record, '$.reward.value', 0.9) WHERE id = 'newer/softmax/01'"
        ).rowcount
    assert changed == 1
    done = cli("reward", "recompute", "newer", "--json", "--results", str(journal))
    assert [row["id"] for row in done.json()["rows"] if row["differs"]] == ["newer/softmax/01"]
    assert "1 of 11 differ" in done.err


@pytest.mark.slow
def test_what_has_no_score_says_why(cli: Cli, journal: Path) -> None:
    rows = cli("reward", "recompute", "--policy", "kevin/1", "--json", "--results", str(journal)).json()["rows"]
    (infra,) = [row for row in rows if row["verdict"] == "INFRA"]
    assert infra["value"] is None
    assert infra["why"].startswith("it could not be evaluated")
    assert all(row["why"] == "" for row in rows if row is not infra)


@pytest.mark.slow
def test_a_table_and_csv_have_a_row_for_each_reward(cli: Cli, journal: Path) -> None:
    table = cli("reward", "recompute", "newer", "--policy", "cuda-l2/1", "--results", str(journal))
    assert table.out.count("cuda-l2/1") >= 11
    path = journal / "rewards.csv"
    done = cli(
        "reward", "recompute", "newer", "--policy", "cuda-l2/1", "--format", "csv", "--output", str(path),
        "--results", str(journal),
    )  # fmt: skip
    assert done.out == ""
    rows = list(csv.DictReader(io.StringIO(path.read_text())))
    assert len(rows) == 11
    assert set(json.loads(rows[0]["components"])) == set(POLICIES["cuda-l2/1"].parts)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--policy", "gold/1"), "no reward policy 'gold/1'; choose one of kernelforge/2"),
        (("--task", "nope"), "no task 'nope' here; there is: argmax, matmul, softmax"),
        (("--output", "x.txt"), "--output needs --format json or csv"),
        (("nosuchrun",), "nosuchrun"),
    ],
)
def test_bad_input_is_one_line(cli: Cli, journal: Path, arguments: tuple[str, ...], message: str) -> None:
    done = cli("reward", "recompute", *arguments, "--results", str(journal))
    assert done.code == 2
    assert message in done.err
    assert done.err.count("\n") == 1
