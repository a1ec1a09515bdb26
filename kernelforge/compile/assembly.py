"""Tell instructions that a candidate wrote in inline assembly from those that the compiler emitted.

NVRTC marks inline assembly by comments. The assembly's own text can hold the same comments, and text of the toolkit's
headers is marked like the candidate's. So an instruction is the compiler's where the source has no way to write
assembly, or where it lies outside the markers and the source has no way to write a comment into its assembly. For any
other the candidate is responsible: an author of instructions can choose them. C++ is not parsed here: doubt counts
against the markers, so no trick with comments, macros or literals turns an instruction into the compiler's.
"""

from __future__ import annotations

import re

_SPLICE = re.compile(r"\\[^\S\n]*\n")
_ASSEMBLY = re.compile(r"\b(?:asm|__asm|__asm__)\b|##|%:|\?\?|\\[uU]")
"""The keywords, and what could spell them otherwise: tokens that are pasted, digraphs, trigraphs, ``\\u0061sm``."""
_MADE_TEXT = re.compile(
    r"""R" | \\[^nt"'\\] | ^.*\S.*\# | %: | \b__(?:BASE_)?FILE(?:_NAME)?__\b | ^\s*\#\s*(?:line\b|\d)
      | ^(?!\s*\#\s*include\b)(?=.*").*/""",
    re.M | re.X,
)
"""How a literal could hold a slash: it has one, or is raw, has escapes by number, or is made by a macro."""
_BEGIN, _END = "// begin inline asm", "// end inline asm"


def written_inline(source: str, ptx: str, line: int) -> bool:
    """Whether the candidate answers for the instruction on a line of its build's PTX.

    Args:
        source: The candidate's CUDA C++.
        ptx: What it was compiled to.
        line: From 1; 0 where it is not known.
    """
    joined = _SPLICE.sub("", source)
    if not any(_ASSEMBLY.search(text) for text in (source, joined)):
        return False
    return line < 1 or any(_MADE_TEXT.search(text) for text in (source, joined)) or _is_marked(ptx, line)


def _is_marked(ptx: str, line: int) -> bool:
    """Whether a line lies between the markers of inline assembly."""
    marked = False
    for text in ptx.split("\n")[:line]:
        if text.strip() in (_BEGIN, _END):
            marked = text.strip() == _BEGIN
    return marked
