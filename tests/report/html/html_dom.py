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
        expected = {key.rstrip("_").replace("_", "-"): value for key, value in attributes.items()}
        return [
            child
            for child in self._elements()
            if (not element or child.name == element)
            and all(
                value in child.attributes.get(key, "").split() if key == "class" else child.attributes.get(key) == value
                for key, value in expected.items()
            )
        ]

    def only(self, element: str = "", **attributes: str) -> Element:
        (result,) = self.all(element, **attributes)
        return result

    def _elements(self) -> Iterator[Element]:
        for child in self.inside:
            if isinstance(child, Element):
                yield child
                yield from child._elements()

    @property
    def text(self) -> str:
        return "".join(child if isinstance(child, str) else child.text for child in self.inside)

    def table(self, label: str) -> list[dict[str, Element]]:
        """Rows of the table with that caption, each cell by its column's key, parts of cells by that of theirs."""
        (result,) = (element for element in self.all("table") if element.only("caption").text == label)
        keys = [
            element.attributes["data-key"] for element in result.only("thead").all() if "data-key" in element.attributes
        ]
        rows = (
            [element for element in row.inside if isinstance(element, Element)]
            for row in result.only("tbody").all("tr")
        )
        return [dict(zip(keys, cells, strict=True)) | _parts(cells) for cells in rows]


def _parts(cells: Sequence[Element]) -> dict[str, Element]:
    result = [element for cell in cells for element in cell.all() if "data-part" in element.attributes]
    return {element.attributes["data-part"]: element for element in result}


def value(cell: Element) -> Any:
    """The number in a cell's ``data-value``; None without one."""
    value = cell.attributes.get("data-value")
    return None if value is None else json.loads(value)


class _Parser(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.root = Element("document")
        self._open = [self.root]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        made = Element(tag, {name: attributes or "" for name, attributes in attrs})
        assert len(attrs) == len(made.attributes), f"<{tag}> has an attribute twice"
        self._open[-1].inside.append(made)
        if tag not in VOID:
            self._open.append(made)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._open[-1].inside.append(Element(tag, {name: attributes or "" for name, attributes in attrs}))

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
