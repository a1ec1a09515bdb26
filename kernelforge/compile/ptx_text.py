"""Find comments and strings in PTX text as ptxas does; ambiguous text is refused.

ptxas takes whichever of ``//``, ``/*`` and ``"`` comes first. A string has no escapes and may span lines; a comment of
one line ends at a newline alone. Inline assembly can hold any of them, so whoever looks for a comment without knowing
strings (or the reverse) can be shown other code than the one that runs.
"""

from __future__ import annotations

import re

_PIECE = re.compile(
    r'(?P<comment>//[^\n]*|/\*.*?\*/) | "(?P<string>[^"]*)" | (?P<other>/\* | ["\\#] | [^\x20-\x7e\n\t\r])', re.S | re.X
)
_NOT_NEWLINE = re.compile(r"[^\n]")
_IN_STRING = re.compile(r"[^;{}\\\x00-\x08\x0b-\x1f\x7f-\uffff]*")


def without_comments(ptx: str) -> str:
    """PTX with spaces in place of comments, so that positions and line numbers stay.

    Raises:
        ValueError: it holds what only ptxas knows how to read: a comment or a string without an end, a string with
            ``;`` or braces, a line directive (``#``), a backslash or a control character.
    """

    def code(match: re.Match[str]) -> str:
        if match.lastgroup == "comment":
            return _NOT_NEWLINE.sub(" ", match[0])
        if match.lastgroup == "string" and _IN_STRING.fullmatch(match["string"]):
            return match[0]
        line = ptx.count("\n", 0, match.start()) + 1
        raise ValueError(f"PTX line {line}: {match[0][:20]!r} is nothing that a compiled kernel holds")

    return _PIECE.sub(code, ptx)
