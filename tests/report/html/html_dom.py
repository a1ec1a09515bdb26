"""A page as a tree: what the tests of pages look into, so that none of them searches its text."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import Any

VOID = {"meta", "link", "input", "br", "hr", "img", "wbr"}


@dataclass
class Element:
    """One element with what is in it, in order."""

    name: str
    attributes: dict[str, str] = field(default_factory=dict)
    inside: list[Element | str] = field(default_factory=list)

    def all(self, element: str = "", **attributes: str) -> list[Element]:
        """Elements in it of that name and with these attributes; ``_`` in a name stands for ``-``."""
        wanted = {key.rstrip("_").replace("_", "-"): value for key, value in attributes.items()}
        return [
            one
            for one in self._elements()
            if (not element or one.name == element)
            and all(
                value in one.attributes.get(key, "").split() if key == "class" else one.attributes.get(key) == value
                for key, value in wanted.items()
            )
        ]

    def one(self, element: str = "", **attributes: str) -> Element:
        (found,) = self.all(element, **attributes)
        return found

    def _elements(self) -> Iterator[Element]:
        for one in self.inside:
            if isinstance(one, Element):
                yield one
                yield from one._elements()

    @property
    def text(self) -> str:
        return "".join(one if isinstance(one, str) else one.text for one in self.inside)

    def table(self, label: str) -> list[dict[str, Element]]:
        """Rows of the table with that caption, each cell by its column's key, parts of cells by that of theirs."""
        (found,) = (one for one in self.all("table") if one.one("caption").text == label)
        keys = [one.attributes["data-key"] for one in found.one("thead").all() if "data-key" in one.attributes]
        rows = ([one for one in row.inside if isinstance(one, Element)] for row in found.one("tbody").all("tr"))
        return [dict(zip(keys, cells, strict=True)) | _parts(cells) for cells in rows]


def _parts(cells: Sequence[Element]) -> dict[str, Element]:
    found = [one for cell in cells for one in cell.all() if "data-part" in one.attributes]
    return {one.attributes["data-part"]: one for one in found}


def value(cell: Element) -> Any:
    """The number that a cell carries beside its text; None for none."""
    held = cell.attributes.get("data-value")
    return None if held is None else json.loads(held)


class _Parser(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.root = Element("document")
        self._open = [self.root]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        made = Element(tag, {name: given or "" for name, given in attrs})
        assert len(attrs) == len(made.attributes), f"<{tag}> has an attribute twice"
        self._open[-1].inside.append(made)
        if tag not in VOID:
            self._open.append(made)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._open[-1].inside.append(Element(tag, {name: given or "" for name, given in attrs}))

    def handle_endtag(self, tag: str) -> None:
        closed = self._open.pop()
        assert closed.name == tag, f"</{tag}> closes <{closed.name}>"

    def handle_data(self, data: str) -> None:
        self._open[-1].inside.append(data)


def parse(text: str) -> Element:
    """The tree of a page whose elements are all closed in order."""
    parser = _Parser()
    parser.feed(text)
    parser.close()
    assert parser._open == [parser.root], f"<{parser._open[-1].name}> is never closed"
    return parser.root
