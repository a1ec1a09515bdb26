"""Every page of golden runs, parsed: links lead somewhere, ids are unique, numbers are those of JSON and CSV."""

from __future__ import annotations

import csv
import io
import json
import posixpath
from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest

from kernelforge.records import Message
from kernelforge.report.html import Page, Site
from kernelforge.report.html.contexts import headline
from kernelforge.report.html.rendering import assets
from tests.report.golden.golden_runs import golden, golden_records
from tests.report.html.html_dom import Element, parse, value

Pages = Callable[..., Mapping[str, str]]
Trees = Callable[..., Mapping[str, Element]]
SITES = [("modelled",), ("measured-a", "measured-b"), ("hostile", "escaping")]
MEASURED = golden("measured-a").run.id
MODELLED = golden("modelled").run.id


@pytest.fixture(scope="module", params=SITES, ids="+".join)
def site(request: pytest.FixtureRequest, pages: Pages, trees: Trees) -> tuple[Mapping[str, str], Mapping[str, Element]]:
    return pages(*request.param), trees(*request.param)


@pytest.mark.slow
def test_every_link_leads_to_a_page_a_part_of_one_an_asset_or_data(site):
    result, parsed = site
    ids = {
        path: {element.attributes["id"] for element in tree.all() if "id" in element.attributes}
        for path, tree in parsed.items()
    }
    links = 0
    for path, tree in parsed.items():
        for element in tree.all():
            for name in ("href", "src"):
                target = element.attributes.get(name)
                if target is None or target == "data:,":
                    continue
                links += 1
                where, _, part = target.partition("#")
                to = posixpath.normpath(posixpath.join(posixpath.dirname(path), where)) if where else path
                assert to in result or posixpath.relpath(to, "assets") in assets(), f"{path} leads to {target}"
                assert not part or part in ids[to], f"{path} leads to {target}, which has no such part"
    assert links > 100


@pytest.mark.slow
def test_every_page_can_be_reached_from_the_front_page(site):
    result, parsed = site
    seen, todo = set(), ["index.html"]
    while todo:
        path = todo.pop()
        if path in seen or path not in parsed:
            continue
        seen.add(path)
        for link in parsed[path].all("a"):
            target = link.attributes["href"].partition("#")[0]
            todo.append(posixpath.normpath(posixpath.join(posixpath.dirname(path), target)) if target else path)
    twin = {path for path in parsed if path not in seen and result[path].count("<h1>Run ") == 1}
    assert parsed.keys() - seen <= twin  # of one run, the front page is the run's page
    assert len(twin) <= 1


def test_no_page_has_an_id_twice_a_style_or_a_handler_of_its_own_or_a_script_that_is_no_asset(site):
    for path, tree in site[1].items():
        ids = [element.attributes["id"] for element in tree.all() if "id" in element.attributes]
        assert len(ids) == len(set(ids)), path
        for element in tree.all():
            assert element.name not in ("style", "iframe", "object", "img", "base"), path
            assert not {name for name in element.attributes if name == "style" or name.startswith("on")}, path
            if element.name == "script" and "src" not in element.attributes:
                assert element.attributes["type"] == "application/json"
                json.loads(element.text)
            if element.name == "a":
                assert ":" not in element.attributes["href"].split("#")[0], element.attributes["href"]


def test_every_page_has_one_heading_a_title_a_policy_and_names_for_its_tables(site):
    for path, tree in site[1].items():
        assert len(tree.all("h1")) == 1, path
        assert tree.only("title").text.endswith(" · KernelForge")
        (policy,) = [
            element.attributes["content"] for element in tree.all("meta") if "http-equiv" in element.attributes
        ]
        assert policy.startswith("default-src 'none'; ")
        assert "unsafe" not in policy
        for table in tree.all("table"):
            assert table.only("caption").text
            assert {element.attributes.get("scope") for element in table.all("th")} <= {"col", "row"}
        assert all(element.attributes["aria-label"] for element in tree.all(class_="scroll"))


def test_what_others_wrote_stays_text_with_its_control_characters_written_out(trees: Trees):
    own_text = {
        "a", "b", "body", "button", "caption", "code", "dd", "del", "details", "div", "dl", "document", "dt",
        "figcaption", "figure", "footer", "form", "h1", "h2", "h3", "head", "header", "html", "i", "input", "ins",
        "label", "li", "link", "main", "meta", "nav", "ol", "option", "output", "p", "pre", "rect", "script",
        "section", "select", "small", "span", "summary", "svg", "table", "tbody", "td", "th", "thead", "title", "tr",
        "ul", "wbr",
    }  # fmt: skip
    hidden = {"\x1b", "\x07", "\u202e", "\u2066", "\u200b"}
    for path, tree in trees("hostile", "escaping").items():
        elements = tree.all()
        assert {element.name for element in elements} <= own_text, path
        assert not hidden & set(tree.text), path
        assert not any(hidden & set(text) for element in elements for text in element.attributes.values()), path
    assert any("\\x1b" in tree.text for tree in trees("hostile", "escaping").values())


def test_pages_of_a_modelled_run_say_so_and_hold_no_speedup(trees: Trees):
    result = {path: tree for path, tree in trees("modelled").items() if path != "leaderboard.html"}
    assert all(tree.only("h1").only(class_="origin").text == "modelled" for tree in result.values())
    keys = {element.attributes.get("data-key") for tree in result.values() for element in tree.all("th")}
    assert not keys & {"speedup", "speedup_lower", "fast_1", "geomean_speedup_low"}
    assert not result["index.html"].all(id="f-fast-p")


def test_an_attempt_on_an_emulated_device_has_an_energy_that_is_marked_as_estimated(trees: Trees):
    page = trees("modelled")[f"runs/{MODELLED}/softmax/01.html"]
    (energy,) = (part.text for part in page.all("p") if part.text.startswith("Energy of a run: "))
    assert "mJ estimated, not measured" in energy
    assert "dram 80 %, fp32 20 %; without instructions, leakage, clocks, special." in energy
    measured = trees("measured-a", "measured-b")
    assert not any("Energy of a run" in part.text for page in measured.values() for part in page.all("p"))


def test_pages_of_a_measured_run_say_so(trees: Trees):
    result = trees("measured-a", "measured-b")
    marked = [tree.only("h1").all(class_="origin") for path, tree in result.items() if path.startswith("runs/")]
    assert {element.text for ones in marked for element in ones} == {"measured"}
    assert all(marked)


def test_numbers_of_the_run_page_are_those_of_its_json_and_csv(pages: Pages, trees: Trees):
    result = pages("measured-a", "measured-b")
    tree = trees("measured-a", "measured-b")[f"runs/{MEASURED}/index.html"]
    data = json.loads(result[f"data/{MEASURED}.json"])
    rows = tree.table("Tasks")
    text = list(csv.DictReader(io.StringIO(result[f"data/{MEASURED}.csv"])))
    assert len(rows) == len(text) == len(data["tasks"])
    compared = 0
    for row, line, task in zip(rows, text, data["tasks"], strict=True):
        assert row.keys() == line.keys()
        for key, cell in row.items():
            if isinstance(task[key], (int, float)):
                assert value(cell) == task[key] == float(line[key])
                compared += 1
            elif task[key] is None:
                assert (value(cell), line[key]) == (None, "")
    assert compared > 40
    text = {
        element.only("dt").text: value(element.only("dd")) for element in tree.only("dl", class_="headline").all("div")
    }
    assert text["tasks correct"] == data["tasks_ok"]
    assert text["fast 1"] == data["headline"]["fast_1"]["value"]
    assert text["speedup"] == data["headline"]["geomean_speedup"]["value"]
    assert text["paid"] == data["cost"]["dollars"]
    funnel = tree.table("Failure funnel: attempts that came through each step")
    assert [value(row["count"]) for row in funnel] == [step["count"] for step in data["funnel"]]
    assert [row["step"].text for row in funnel] == [step["step"] for step in data["funnel"]]


def test_numbers_of_a_comparison_are_those_of_its_json_and_csv(pages: Pages):
    result = pages("measured-a", "measured-b")
    (path,) = (page for page in result if page.startswith("compare/"))
    stem = next(page for page in result if page.startswith("data/compare") and page.endswith(".json")).removesuffix(
        ".json"
    )
    view = json.loads(result[f"{stem}.json"])
    rows = parse(result[path]).table("Tasks")
    text = list(csv.DictReader(io.StringIO(result[f"{stem}.csv"])))
    assert [row["task"].text for row in rows] == [pair["task"] for pair in view["pairs"]]
    for row, pair, line in zip(rows, view["pairs"], text, strict=True):
        for key in ("a_value", "b_value", "ratio", "low", "high"):
            assert value(row[key]) == pair[key]
            assert line[key] == ("" if pair[key] is None else repr(pair[key]))


def test_the_matrix_holds_every_attempt_with_what_filters_ask_for(trees: Trees):
    tree = trees("measured-a", "measured-b")[f"runs/{MEASURED}/index.html"]
    matrix = tree.only("table", class_="matrix")
    cells = [cell for box in matrix.all("td", class_="cells") for cell in box.all("a")]
    records = golden_records("measured-a")
    attempts = [attempt for task in records.run.config.tasks for attempt in records.of_task(task)]
    assert len(cells) == len(attempts)
    assert [cell.attributes["data-verdict"] for cell in cells] == [
        attempt.evaluation.verdict.value for attempt in attempts
    ]
    assert [cell.attributes["data-stage"] for cell in cells] == [attempt.evaluation.stage for attempt in attempts]
    best = {element.attributes["href"] for element in cells if "best" in element.attributes["class"].split()}
    led = {element.attributes["href"] for row in tree.table("Tasks") for element in row["moves"].all("a")}
    assert best == led
    assert len(best) == sum(
        any(attempt.accepted for attempt in records.of_task(task)) for task in records.run.config.tasks
    )
    offered = {element.attributes["value"] for element in tree.only("select", name_="verdict").all("option")}
    assert offered == {"", *(attempt.evaluation.verdict.value for attempt in attempts)}
    section = tree.only(id=tree.only("form", class_="filters").attributes["data-filters"])
    assert section.all("table", class_="matrix")
    assert all(
        element.attributes["href"] == "#matrix" for element in tree.all("a") if "data-state" in element.attributes
    )


def test_an_attempt_answers_four_questions_in_order_with_its_prompts_below(trees: Trees):
    tree = trees("modelled")[f"runs/{MODELLED}/softmax/01.html"]
    requests = [element.text for element in tree.all("h2")]
    assert requests == ["What changed", "Is it right", "Is it fast", "Why", "What was said"]
    linked = [element.attributes["href"] for element in tree.only("ol", class_="questions").all("a")]
    assert linked == [f"#{element.attributes['id']}" for element in tree.all("h2")]
    attempt = next(element for element in golden_records("modelled").attempts if element.id.endswith("softmax/01"))
    messages = [element.only("pre").text for element in tree.only(class_="said").all("details")]
    assert messages == [message.content for message in attempt.messages]
    assert [value(row["error"]) for row in tree.table("By size")] == [
        check.error for check in attempt.evaluation.correctness.sizes
    ]


def test_reasoning_is_folded_above_its_reply():
    records = golden_records("modelled")
    first, *others = records.attempts
    thought = "The floor is <b>12</b> µs."
    words = (Message(agent="coder", role="reply", provider="m", content="the kernel", reasoning=thought),)
    site = Site([replace(records, attempts=(first.model_copy(update={"messages": words}), *others))])
    words_below = parse(site.render(f"runs/{first.id}.html") or "").only(class_="said")
    assert [element.text for element in words_below.all("pre")] == [thought, "the kernel"]
    _reply, reasoning = words_below.all("details")
    assert reasoning.only("summary").text.split() == ["Reasoning", "about", "13", "tokens"]


def test_neighbours_follow_each_other_through_all_attempts_of_a_task(trees: Trees):
    result = trees("modelled")
    path, seen = f"runs/{MODELLED}/softmax/00.html", []
    while path:
        seen.append(path)
        after = result[path].all("a", rel="next")
        path = posixpath.join(posixpath.dirname(path), after[0].attributes["href"]) if after else ""
    assert seen == sorted(page for page in result if f"/{'softmax'}/" in page and not page.endswith("index.html"))
    assert len(seen) > 3


def test_a_run_without_attempts_has_its_pages():
    golden_run = golden("modelled").run
    from kernelforge.report import RunRecords

    site = Site([RunRecords(golden_run, ())])
    for path in site.pages():
        tree = parse(site.render(path) or "")
        assert tree.only("h1").text
    assert value(headline_of(site)["attempts"]) == 0


def headline_of(site: Site) -> dict[str, Element]:
    tree = parse(site.render("index.html") or "")
    return {element.only("dt").text: element.only("dd") for element in tree.only("dl", class_="headline").all("div")}


def test_the_headline_of_a_modelled_run_has_counters_and_no_speed():
    view = Site([golden_records("modelled")]).runs[MODELLED].view
    labels = [entry.label for entry in headline(view)]
    assert "DRAM vs least" in labels
    assert not {"fast 1", "speedup", "faster beyond noise"} & set(labels)


def test_of_more_than_four_runs_each_is_compared_with_the_first(tmp_path):
    many = [golden_records("modelled")]
    for number in range(4):
        run = many[0].run.model_copy(update={"id": f"r{number}"})
        many.append(type(many[0])(run, ()))
    assert len(Site(many[:4]).pairs) == 6
    assert [(a.id, b.id) for a, b in Site(many).pairs] == [(MODELLED, f"r{number}") for number in range(4)]


def test_what_is_not_there_is_none_and_a_page_of_another_room_gets_the_layout(tmp_path):
    (tmp_path / "other.html.j2").write_text("{% extends layout %}{% block content %}<h1>{{ said }}</h1>{% endblock %}")
    site = Site([golden_records("modelled")], live=True, templates=(tmp_path,))
    assert site.render("runs/../index.html") is None
    assert site.render("runs/unknown/index.html") is None
    tree = parse(site.page(Page("live.html", "Live", "other.html.j2", lambda links: {"said": "<b>"})))
    assert tree.only("h1").text == "<b>"
    assert "assets/live.js" in [element.attributes.get("src") for element in tree.all("script")]
    (policy,) = [element.attributes["content"] for element in tree.all("meta") if "http-equiv" in element.attributes]
    assert "connect-src 'self'" in policy
