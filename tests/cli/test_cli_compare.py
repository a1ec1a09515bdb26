"""``kernelforge compare`` in every format, over journalled runs."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

from tests.report.golden.golden_runs import golden, golden_store


@pytest.fixture(scope="module")
def journalled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A results folder with two measured runs."""
    return golden_store(tmp_path_factory.mktemp("results"), "measured-a", "measured-b").parent


@pytest.fixture
def runs(journalled: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, str]:
    """Ids of two measured runs in the results folder that the verbs read."""
    monkeypatch.setenv("KERNELFORGE_RESULTS", str(journalled))
    return golden("measured-a").run.id, golden("measured-b").run.id


@pytest.mark.slow
def test_every_format_says_the_same(cli, runs, tmp_path: Path):
    a, b = runs
    view = cli("compare", a, b, "--json").json()
    assert (view["a"], view["b"], view["wins"], view["losses"]) == (a, b, 3, 2)
    assert view == json.loads(cli("compare", a, b, "--format", "json").out)
    rows = list(csv.DictReader(io.StringIO(cli("compare", a, b, "--format", "csv").out)))
    assert [(row["task"], row["outcome"]) for row in rows] == [
        (item["task"], item["outcome"]) for item in view["pairs"]
    ]
    terminal = cli("compare", a, b)
    assert terminal.code == 0
    assert "b wins 3, loses 2; 4 ties, 1 failed in both" in terminal.out
    written = cli("compare", a, b, "--format", "markdown", "--output", "compare.md")
    assert written.out == ""
    assert (tmp_path / "compare.md").read_text().startswith("# Two runs\n")


@pytest.mark.slow
def test_the_order_says_which_run_is_judged(cli, runs):
    a, b = runs
    assert cli("compare", b, a, "--json").json()["wins"] == 2
    assert cli("compare", a[:-2], "latest", "--json").json()["b"] == b


@pytest.mark.slow
def test_bad_input_is_one_clear_message(cli, runs):
    a, b = runs
    for arguments, words in (
        (["compare", a, "no-such-run"], "no run 'no-such-run'"),
        (["compare", a, a[:-1]], "are one run"),
        (["compare", a, b, "--output", "x.md"], "--format"),
        (["compare", a, b, "--format", "xml"], "xml"),
        (["compare", a], "was started from a kernel (--from): name another run"),
    ):
        done = cli(*arguments)
        assert done.code == 2
        assert words in done.err
        assert done.out == ""
