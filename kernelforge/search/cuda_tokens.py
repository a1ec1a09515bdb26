"""Tokens of CUDA C++ text, as the language splits it: no comments, no layout, strings whole.

What is not closed ends with its line, or with the text, so that reading takes time in proportion to the text.
"""

from __future__ import annotations

import re
from typing import Literal, NamedTuple

_TOKEN = re.compile(
    r"""
      (?P<skip>[^\S\n]*\n\s* | [^\S\n]+ | \\\n | //(?:\\\n|[^\n])* | /\*.*?(?:\*/|\Z))
    | (?P<string>(?:u8|[uUL])?R"(?P<fence>[^()\\\s"]{0,16})\((?:.*?\)(?P=fence)"|.*)
        | (?:u8|[uUL])?"(?:\\.|[^"\\\n])*+"? | [uUL]?'(?:\\.|[^'\\\n])*+'?)
    | (?P<number>\.?\d(?:[eEpP][+-] | '?[\w.])*)
    | (?P<word>[A-Za-z_]\w*)
    | (?P<mark><<= | >>= | \.\.\. | :: | ->\*? | \+\+ | -- | << | >> | <= | >= | == | != | && | \|\| | [-+*/%&|^]=
        | \#\# | .)
    """,
    re.X | re.S,
)


class Token(NamedTuple):
    kind: Literal["string", "number", "word", "mark"]
    text: str
    directive: bool
    """Whether it stands in a line of the preprocessor; such a line ends with a mark that is a newline."""


def words(text: str) -> frozenset[str]:
    """The words of a text, for sets of names."""
    return frozenset(text.split())


def tokens(source: str) -> list[Token]:
    """Tokens of a translation unit, in order."""
    found: list[Token] = []
    directive, line_start = False, True
    for match in _TOKEN.finditer(source):
        kind, text = match.lastgroup, match[0]
        if match["skip"] is not None:
            if text.isspace() and "\n" in text:
                if directive:
                    found.append(Token("mark", "\n", True))
                directive, line_start = False, True
            continue
        directive = directive or (text == "#" and line_start)
        line_start = False
        if match["string"] is not None:
            kind = "string"
        found.append(Token(kind, text, directive))  # type: ignore[arg-type]
    return found
