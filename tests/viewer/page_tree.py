"""A page as a tree, by the standard library's parser, so that tests ask for elements and not for text."""

from __future__ import annotations

from html.parser import HTMLParser
from xml.etree.ElementTree import Element, TreeBuilder

_VOID = {"br", "col", "hr", "img", "input", "link", "meta"}


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.builder = TreeBuilder()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.builder.start(tag, {name: value or "" for name, value in attrs})
        if tag in _VOID:
            self.builder.end(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in _VOID:
            self.builder.end(tag)

    def handle_data(self, data: str) -> None:
        self.builder.data(data)


def tree(page: str) -> Element:
    """The root element. What is after it, such as a last line break, is left out."""
    reader = _Reader()
    reader.feed(page.strip())
    reader.close()
    return reader.builder.close()


def with_class(page: str, *names: str) -> list[Element]:
    """Elements that have all of these classes, in order."""
    return [element for element in tree(page).iter() if set(names) <= set(element.get("class", "").split())]


def text_of(*elements: Element) -> str:
    """Their text, on one line."""
    return " ".join(" ".join("".join(element.itertext()).split()) for element in elements)
