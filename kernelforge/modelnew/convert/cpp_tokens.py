"""Tokenise C++ with positions; comments dropped, preprocessor lines kept whole."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Problem:
    """One construct that has no counterpart in a launch plan, or that we cannot read."""

    line: int
    """1-based line of the candidate's file."""
    construct: str
    """The text at hand, shortened."""
    why: str

    def __str__(self) -> str:
        construct = f"`{self.construct}`: " if self.construct else ""
        return f"line {self.line}: {construct}{self.why}"


class Unconvertible(Exception):
    """Raised where a construct is met, collected where its statement ends."""

    def __init__(self, line: int, construct: str, why: str) -> None:
        super().__init__(why)
        text = " ".join(construct.split())
        self.problem = Problem(line, text if len(text) <= 80 else text[:77] + "...", why)


Kind = Literal["name", "number", "string", "mark", "directive", "end"]

_MARKS = (
    "<<<", ">>>", "<<=", ">>=", "...", "->*", "::", "->", "++", "--", "<<", ">>", "<=", ">=", "==", "!=", "&&", "||",
    "+=", "-=", "*=", "/=", "%=", "&=", "|=", "^=", "##",
)  # fmt: skip
_CLOSING = {"(": ")", "[": "]", "{": "}"}


@dataclass(frozen=True)
class Token:
    """One token; ``start`` and ``end`` are offsets into the source, ``line`` is of the candidate's file."""

    kind: Kind
    text: str
    start: int
    end: int
    line: int


def tokenize(source: str, first_line: int = 1) -> list[Token]:
    """Split C++ text.

    Raises:
        Unconvertible: a string, comment or character is left open.
    """
    tokens: list[Token] = []
    at, line, fresh = 0, first_line, True
    while at < len(source):
        char = source[at]
        start = at
        if char == "\n":
            line, fresh, at = line + 1, True, at + 1
            continue
        if char in " \t\r\f\v":
            at += 1
            continue
        if source.startswith("//", at):
            at = _line_end(source, at)
            continue
        if source.startswith("/*", at):
            end = source.find("*/", at + 2)
            if end < 0:
                raise Unconvertible(line, source[at : at + 40], "this comment has no end")
            line += source.count("\n", at, end)
            at = end + 2
            continue
        if char == "#" and fresh:
            at = _directive_end(source, at)
            kind: Kind = "directive"
        elif char in "\"'":
            at = _quoted_end(source, at, line)
            kind = "string"
        elif char.isalpha() or char == "_":
            while at < len(source) and (source[at].isalnum() or source[at] == "_"):
                at += 1
            kind = "name"
        elif char.isdigit() or (char == "." and source[at + 1 : at + 2].isdigit()):
            at = _number_end(source, at)
            kind = "number"
        else:
            mark = next((mark for mark in _MARKS if source.startswith(mark, at)), char)
            at += len(mark)
            kind = "mark"
        tokens.append(Token(kind, source[start:at], start, at, line))
        line += source.count("\n", start, at)
        fresh = False
    tokens.append(Token("end", "", at, at, line))
    return tokens


def matching(tokens: Sequence[Token], opening: int) -> int:
    """Position of the bracket that closes the one at ``opening``.

    Raises:
        Unconvertible: none does.
    """
    if opening >= len(tokens) or tokens[opening].text not in _CLOSING:
        near = tokens[min(opening, len(tokens) - 1)]
        raise Unconvertible(near.line, near.text, "a bracket is missing here")
    open_mark = tokens[opening].text
    closing, depth = _CLOSING[open_mark], 0
    for position in range(opening, len(tokens)):
        if tokens[position].text == open_mark:
            depth += 1
        elif tokens[position].text == closing:
            depth -= 1
            if depth == 0:
                return position
    raise Unconvertible(tokens[opening].line, open_mark, "this bracket is never closed")


def outermost(tokens: Sequence[Token], at: int) -> Iterator[int]:
    """Positions from ``at`` on, but for those inside brackets that open there."""
    while at < len(tokens):
        yield at
        at = (matching(tokens, at) if tokens[at].text in _CLOSING else at) + 1


def split_commas(tokens: Sequence[Token]) -> list[list[Token]]:
    """Parts between commas that stand in no bracket, nor between ``<`` and ``>`` of template arguments."""
    parts: list[list[Token]] = [[]]
    depth = angle = 0
    for position, token in enumerate(tokens):
        if token.text in _CLOSING:
            depth += 1
        elif token.text in (")", "]", "}"):
            depth -= 1
        elif token.text == "<" and position and tokens[position - 1].text in _TEMPLATES:
            angle += 1
        elif token.text == ">" and angle:
            angle -= 1
        if token.text == "," and depth == 0 and angle == 0:
            parts.append([])
        else:
            parts[-1].append(token)
    return [part for part in parts if part]


_TEMPLATES = frozenset({"static_cast", "reinterpret_cast", "data_ptr", "data", "min", "max", "vector", "tuple"})


def text_of(tokens: Sequence[Token]) -> str:
    """The tokens as one readable line."""
    text = ""
    for token in tokens:
        if text and (text[-1].isalnum() or text[-1] == "_") and (token.text[:1].isalnum() or token.text[:1] == "_"):
            text += " "
        text += token.text
    return text


def _line_end(source: str, at: int) -> int:
    end = source.find("\n", at)
    return len(source) if end < 0 else end


def _directive_end(source: str, at: int) -> int:
    end = _line_end(source, at)
    while end < len(source) and source[:end].rstrip("\r").endswith("\\"):
        end = _line_end(source, end + 1)
    return end


def _quoted_end(source: str, at: int, line: int) -> int:
    quote, position = source[at], at + 1
    while position < len(source) and source[position] != "\n":
        if source[position] == "\\":
            position += 1
        elif source[position] == quote:
            return position + 1
        position += 1
    raise Unconvertible(line, source[at : at + 40], "this string has no end")


def _number_end(source: str, at: int) -> int:
    position = at
    while position < len(source):
        char = source[position]
        signed = char in "+-" and source[position - 1] in "eE" and source[at : at + 2].lower() != "0x"
        if not (char.isalnum() or char in "._'" or signed):
            break
        position += 1
    return position
