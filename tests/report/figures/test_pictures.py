"""Pictures hold what their figures say, load nothing, and are the same every time."""

from __future__ import annotations

import re
import struct
import sys
from functools import cache
from xml.etree import ElementTree

import pytest

from kernelforge.errors import UsageError
from kernelforge.report import attempt_view, leaderboard, run_view, task_view
from kernelforge.report.figures import (
    Figure,
    draw_attempt,
    draw_board,
    draw_compare,
    draw_run,
    draw_task,
    figures_of,
)
from kernelforge.report.render_image import png, svg
from kernelforge.report.views.compare import compare_view
from kernelforge.utils.shell_hints import install_hint
from tests.report.golden.golden_runs import golden_records

SVG = "{http://www.w3.org/2000/svg}"


@cache
def figures() -> dict[str, Figure]:
    """One of every kind."""
    records = golden_records("measured-a")
    by_id = {attempt.id: attempt for attempt in records.attempts}
    child = next(attempt for attempt in records.attempts if attempt.profile and attempt.parent)
    modelled = next(attempt for attempt in golden_records("modelled").attempts if attempt.profile)
    (board,) = leaderboard([records, golden_records("measured-c")]).boards
    result = (
        *draw_run(run_view(records)),
        *draw_task(task_view(records, child.task)),
        *figures_of(draw_attempt(attempt_view(child, by_id[child.parent or ""]))),
        *figures_of(draw_attempt(attempt_view(modelled, None)))[:2],  # those of modelled times
        *draw_compare(compare_view(records, golden_records("measured-c"))),
        *draw_board(board),
    )
    return {attempt.name: attempt for attempt in result}


@cache
def drawn(name: str) -> ElementTree.Element:
    return ElementTree.fromstring(svg(figures()[name]))


def marks(picture: ElementTree.Element, kind: str) -> int:
    """Number of marks of a kind, without those of legends."""
    groups = [g for g in picture.iter(f"{SVG}g") if g.get("class", "").startswith(f"mark-{kind} role-mark")]
    return sum(len(group) for group in groups)


def words(picture: ElementTree.Element) -> str:
    return " ".join("".join(text.itertext()) for text in picture.iter(f"{SVG}text"))


@pytest.mark.parametrize("name", [name for name in figures() if not name.startswith(("fast-p-", "anytime-"))])
def test_every_kind_of_figure_can_be_drawn_with_its_axes_named(name: str) -> None:
    titles = [
        node["title"]
        for layer in figures()[name].spec["layer"]
        for node in layer["encoding"].values()
        if isinstance(node, dict) and node.get("title") and "axis" in node
    ]
    text = words(drawn(name))
    assert titles
    assert all(title in text for title in titles)


def test_speedups_have_as_many_marks_as_tasks_with_one() -> None:
    tasks = [task for task in run_view(golden_records("measured-a")).tasks if task.speedup is not None]
    assert marks(drawn("speedups"), "symbol") == len(tasks)
    assert marks(drawn("task-speedups"), "rect") == len(tasks)


def test_a_picture_holds_no_script_and_no_address() -> None:
    for element in drawn("speedups").iter():
        assert element.tag != f"{SVG}script"
        assert not [name for name in element.attrib if name.endswith("href") or name.startswith("on")]


@pytest.mark.slow
def test_the_same_figure_gives_the_same_picture() -> None:
    figure = figures()["funnel"]
    assert svg(figure) == svg(figure)
    assert png(figure) == png(figure)


def test_a_picture_has_the_size_that_is_asked_for() -> None:
    figure = figures()["funnel"]
    image = png(figure, width=300, scale=2)
    assert image.startswith(b"\x89PNG\r\n\x1a\n")
    assert struct.unpack(">I", image[16:20])[0] == 600
    tall = [ElementTree.fromstring(svg(figure, width=300, height=height)) for height in (100, 200)]
    assert [picture.get("width") for picture in tall] == ["300", "300"]
    assert float(tall[1].get("height", 0)) - float(tall[0].get("height", 0)) == 100


def test_the_title_can_be_left_to_the_caption() -> None:
    figure = figures()["funnel"]
    assert figure.title in words(drawn("funnel"))
    assert figure.title not in words(ElementTree.fromstring(svg(figure, title=False)))


def test_a_figure_that_wants_data_from_elsewhere_is_not_drawn() -> None:
    mark = {"data": {"url": "http://127.0.0.1:9/data.json"}, "mark": "point", "encoding": {"x": {"field": "a"}}}
    reaching = Figure(name="reaching", title="", description="", spec=mark)
    with pytest.raises(ValueError, match="External data url not allowed"):
        svg(reaching)


def test_without_the_extra_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    with pytest.raises(UsageError, match=re.escape(install_hint("figures"))):
        svg(figures()["funnel"])
