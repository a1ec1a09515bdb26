"""``kernelforge figure``: names, forms, and what is said when there is nothing to draw."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from tests.report.golden.golden_runs import golden, golden_store


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A modelled and two measured runs; nothing writes to them."""
    return golden_store(tmp_path_factory.mktemp("results"), "modelled", "measured-a", "measured-c").parent


@pytest.fixture
def figure(cli: Callable[..., Any], results: Path) -> Callable[..., Any]:
    """``kernelforge figure`` on those runs."""
    return lambda *words: cli("figure", *words, "--results", str(results))


MODELLED, MEASURED, OTHER = (golden(name).run.id for name in ("modelled", "measured-a", "measured-c"))


@pytest.mark.slow
def test_a_figure_is_written_in_the_form_that_the_name_of_the_file_says(figure: Any, tmp_path: Path) -> None:
    done = figure("fast-p", MEASURED, "--output", "curve.svg", "--width", "500", "--bare")
    assert (done.code, done.out) == (0, "")
    assert ElementTree.parse(tmp_path / "curve.svg").getroot().get("width") == "500"
    assert figure("funnel", MEASURED, "--output", "funnel.PNG", "--scale", "1").code == 0
    assert (tmp_path / "funnel.PNG").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_the_list_names_what_can_be_drawn_and_why_the_rest_cannot(figure: Any) -> None:
    listed = {row["name"]: row.get("why") for row in figure("--list", MODELLED, "--json").json()}
    assert "modelled" in listed["fast-p"]
    assert listed["funnel"] is None
    text = figure("--list", MODELLED).out
    assert "How far attempts came" in text
    assert all(name in text for name in listed)


@pytest.mark.slow
def test_tasks_attempts_pairs_and_boards_have_figures_of_their_own(figure: Any) -> None:
    task = golden("measured-a").run.config.tasks[0]
    for what, name in (
        (f"{MEASURED}/{task}", "attempts-time"),
        (f"{MEASURED}/{task}/1", "roofline"),
        (f"{MEASURED}..{OTHER}", "scatter"),
        ("leaderboard", "board-correct"),
        ("leaderboard/2", "board-correct"),
    ):
        assert name in {row["name"] for row in figure("--list", what, "--json").json()}, what


def test_what_cannot_be_drawn_says_why_and_what_can(figure: Any, tmp_path: Path) -> None:
    done = figure("fast-p", MODELLED, "--output", "no.svg")
    assert done.code == 2
    assert "a modelled time has no speedup; there are: task-dram" in done.err
    assert not (tmp_path / "no.svg").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nothing", MEASURED, "--output", "a.svg"], "there is no figure 'nothing'; there are: fast-p"),
        (["funnel", MEASURED], "--output FILE.svg"),
        (["funnel", MEASURED, "--output", "a.pdf"], "--output FILE.svg"),
        (["--output", "a.svg"], "say which figure; there are: "),
        (["--all", MEASURED], "--output FOLDER"),
        (["--list", "funnel", MEASURED], "without the NAME"),
        (["funnel", "leaderboard/9", "--output", "a.svg"], "there is no board"),
        (["funnel", "no-such-run", "--output", "a.svg"], "no-such-run"),
    ],
)
def test_bad_input_is_one_line(figure: Any, words: list[str], message: str) -> None:
    done = figure(*words)
    assert done.code == 2
    assert message in done.err
    assert done.err.count("\n") == 1


@pytest.mark.slow
def test_all_figures_go_into_a_folder(figure: Any, tmp_path: Path) -> None:
    task = golden("modelled").run.config.tasks[0]
    assert figure("--all", f"{MODELLED}/{task}", "--output", "all").code == 0
    names = {"attempts-time", "attempts-dram"}
    assert {path.name for path in (tmp_path / "all").iterdir()} == {
        f"{n}{form}" for n in names for form in (".svg", ".png")
    }


@pytest.mark.slow
def test_the_specification_is_what_pages_draw(figure: Any, tmp_path: Path) -> None:
    spec = figure("funnel", MEASURED, "--json").json()
    assert spec["$schema"].endswith("/vega-lite/v6.json")
    assert figure("funnel", MEASURED, "--json", "--output", "funnel.json").code == 0
    assert json.loads((tmp_path / "funnel.json").read_text()) == spec
