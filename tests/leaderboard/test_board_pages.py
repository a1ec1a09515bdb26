"""Boards as web pages: they have the numbers of the JSON, and untrusted text stays text."""

from __future__ import annotations

import json
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import pytest

from kernelforge.leaderboard.build import BoardSite, Submitted, build
from kernelforge.leaderboard.entry import EntryFile
from kernelforge.report.html.writer import write_folder

HOSTILE = """<script>x</script><img src=x onerror=y>"'</table>"""


class Page(HTMLParser):
    """Rows of all tables, a dictionary from the key of a column, or of what stands beneath one, to ``(text,
    data-value)`` each; and every element's name."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.rows: list[dict[str, list[str | None]]] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self._keys: list[str] = []
        self._cells: list[list[str | None]] = []
        self._parts: dict[str, list[str | None]] = {}
        self._open: list[str | None] | None = None
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = dict(attrs)
        self.elements.append((tag, attributes))
        if tag == "thead":
            self._keys = []
        elif tag == "th" and "data-key" in attributes:
            self._keys.append(attributes["data-key"] or "")
        elif tag in ("th", "td"):
            self._open = ["", attributes.get("data-value")]
            self._cells.append(self._open)
        elif tag == "small":
            self._open = None
        elif "data-part" in attributes:
            self._open = self._parts[attributes["data-part"] or ""] = ["", attributes.get("data-value")]

    def handle_endtag(self, tag: str) -> None:
        if tag in ("th", "td") or (tag == "span" and self._open in self._parts.values()):
            self._open = None
        elif tag == "tr" and self._cells:
            self.rows.append(dict(zip(self._keys, self._cells, strict=True)) | self._parts)
            self._cells, self._parts = [], {}

    def handle_data(self, data: str) -> None:
        if self._open is not None:
            self._open[0] = (self._open[0] or "") + data


@pytest.fixture(scope="module")
def folder(made: Callable[..., EntryFile], tmp_path_factory: pytest.TempPathFactory) -> Path:
    entries = (made("measured-a", by=HOSTILE, note=HOSTILE), made("measured-c"), made("modelled"))
    folder = tmp_path_factory.mktemp("boards") / "site"
    write_folder(BoardSite(build(Submitted(entries, ()))), folder)
    return folder


def test_a_row_of_the_page_has_the_numbers_of_the_json(folder: Path):
    entries = [
        entry
        for board in json.loads((folder / "data" / "leaderboard.json").read_text())["boards"]
        for entry in board["entries"]
    ]
    rows = {row["run"][0]: row for row in Page((folder / "index.html").read_text()).rows if "rank" in row}
    assert set(rows) == {entry["run"] for entry in entries}
    for entry in entries:
        row = rows[entry["run"]]
        text = {name: entry[name] for name in ("attempts", "tokens_per_task", "tasks_ok", "tasks_total")}
        text |= {f"fast_{point['p']:g}".replace(".", "_"): point["value"] for point in entry["fast_p"]}
        for name in ("correct", "geomean_speedup", "win_rate", "floor_share", "median_dram_ratio"):
            if name in row:
                text[name] = entry[name] and entry[name]["value"]
            if f"{name}_low" in row:
                text |= {f"{name}_{end}": entry[name][end] for end in ("low", "high")}
        for name, value in text.items():
            text = row[name][1]
            assert (None if text is None else float(text)) == value, name
        assert (row["strategy"][0], row["judge"][0]) == (entry["strategy"], entry["judge"])
    assert sum("fast_1" in row for row in rows.values()) == 2
    assert sum("geomean_speedup_high" in row for row in rows.values()) == 2


def test_every_entry_tells_its_digest_and_who_verified_it(folder: Path):
    boards = json.loads((folder / "data" / "leaderboard.json").read_text())["boards"]
    entries = [entry for board in boards for entry in board["entries"]]
    page = Page((folder / "index.html").read_text())
    text = {attributes["id"] for name, attributes in page.elements if name == "details" and "id" in attributes}
    assert {f"entry-{entry['digest']}" for entry in entries} <= text


def test_what_strangers_wrote_is_text(folder: Path):
    page = Page((folder / "index.html").read_text())
    assert {row["by"][0] for row in page.rows if "by" in row} == {HOSTILE, "Ada"}
    assert not [name for name, _ in page.elements if name == "img"]
    inline = [attributes for name, attributes in page.elements if name == "script" and "src" not in attributes]
    assert {attributes.get("type") for attributes in inline} <= {"application/json"}


def test_every_link_leads_to_a_page_that_is_there(folder: Path):
    for path in sorted(folder.glob("*.html")):
        for name, attributes in Page(path.read_text()).elements:
            address = attributes.get("href") if name in ("a", "link") else attributes.get("src")
            if address and not address.startswith(("#", "data:")):
                assert (path.parent / address.partition("#")[0]).exists(), address
