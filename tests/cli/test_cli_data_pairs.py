"""``kernelforge data pairs``: pairs that are right on both sides become rows, and a second call goes on."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from kernelforge.candidate import parse_reply
from kernelforge.tasks import load_task
from tests.cli.conftest import Done

needs_cc = pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler `cc`")


@pytest.mark.slow
@needs_cc
def test_each_pair_has_a_row_in_both_directions_and_the_folder_is_gone_on_with(
    cli: Callable[..., Done], tmp_path: Path
) -> None:
    words = ("data", "pairs", "core", "--task", "core/layernorm", "--seed", "1", "--output", "made")
    done = cli(*words, "--augment", "0", "--json")
    assert done.code == 0, done.err
    card = Path("made/README.md").read_text()
    assert "path: train.jsonl" in card
    assert "licences of the tasks | Apache" in card
    assert (done.json()["pairs"], done.json()["traced_with_pair"]) == (1, 1)
    to_c, to_cuda = [json.loads(line) for line in Path("made/train.jsonl").read_text().splitlines()]
    assert (to_c["direction"], to_cuda["direction"]) == ("cuda-to-c", "c-to-cuda")
    assert (to_c["verdict"], to_cuda["verdict"]) == ("OK", "OK")
    assert (to_c["lane"], to_cuda["lane"], to_cuda["device"]) == ("c", "plan", "emulated:h100")
    assert to_c["task_digest"] == to_cuda["task_digest"]
    assert to_c["verified"]
    assert to_c["sizes"][:2] == ["full", "small: ROWS = 32, COLS = 512"]
    assert to_c["licence"] == load_task("core/layernorm").license
    ask, answer = (message["content"] for message in to_c["messages"])
    assert to_c["cuda"].strip() in ask
    assert to_c["code"].strip() in answer
    assert "#pragma omp parallel for" in to_c["code"]
    ask, answer = (message["content"] for message in to_cuda["messages"])
    assert to_c["code"].strip() in ask
    assert parse_reply(answer).plan.strip() == to_c["plan"].strip()
    assert "torch" not in to_c["messages"][0]["content"]

    before = Path("made/train.jsonl").read_bytes()
    done = cli(*words, "--augment", "1", "--limit", "2")
    assert done.code == 0, done.err
    assert Path("made/train.jsonl").read_bytes().startswith(before)
    assert "layernorm 0" not in done.err
    rows = [json.loads(line) for line in Path("made/train.jsonl").read_text().splitlines()]
    dropped = Path("made/dropped.jsonl")
    assert len(rows) == 4 or (len(rows) == 2 and dropped.read_text())
    assert all(row["edits"] for row in rows[2:])


@pytest.mark.slow
def test_a_dry_run_writes_nothing(cli: Callable[..., Done], tmp_path: Path) -> None:
    done = cli("data", "pairs", "core", "--task", "softmax", "--augment", "1", "--dry-run")
    assert done.code == 0, done.err
    assert "2 pairs would be judged" in done.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "name a folder for the pairs"),
        (("--dry-run", "--output", "made"), "leave --output out"),
        (("core", "--task", "nothing", "--dry-run"), "nothing"),
    ],
)
def test_bad_words_cost_nothing(cli: Callable[..., Done], words: tuple[str, ...], message: str) -> None:
    done = cli("data", "pairs", *words)
    assert done.code == 2
    assert message in done.err
