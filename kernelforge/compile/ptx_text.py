"""PTX text: its comments and strings as ptxas reads them, its hash, and which instructions are inline assembly."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from pathlib import PurePath
from typing import NamedTuple

from kernelforge.records import content_hash

OBJECT_INSTRUCTIONS = frozenset({"tex", "tld4", "txq", "suld", "sust", "sured", "suq", "istypep"})
"""Instructions on textures and surfaces."""
_PIECE = re.compile(
    r'(?P<comment>//[^\n]*|/\*.*?\*/) | "(?P<string>[^"]*)" | (?P<other>/\* | ["\\#] | [^\x20-\x7e\n\t\r])', re.S | re.X
)
_NOT_NEWLINE = re.compile(r"[^\n]")
_IN_STRING = re.compile(r"[^;{}\\\x00-\x08\x0b-\x1f\x7f-\uffff]*")


def without_comments(ptx: str) -> str:
    """PTX with spaces in place of comments; positions and line numbers stay.

    ptxas takes the first of ``//``, ``/*`` and ``"``. A string has no escapes and may span lines; a line comment ends
    only at a newline. Inline assembly can hold any of them, so that a reader of comments that ignores strings (or the
    reverse) can be shown other code than the code that runs. Ambiguous text is refused.

    Raises:
        ValueError: the text holds a comment or a string without an end, a string with ``;`` or braces, a line directive
            (``#``), a backslash or a control character.
    """

    def code(match: re.Match[str]) -> str:
        if match.lastgroup == "comment":
            return _NOT_NEWLINE.sub(" ", match[0])
        if match.lastgroup == "string" and _IN_STRING.fullmatch(match["string"]):
            return match[0]
        line = ptx.count("\n", 0, match.start()) + 1
        raise ValueError(f"PTX line {line}: {match[0][:20]!r} is nothing that a compiled kernel holds")

    return _PIECE.sub(code, ptx)


_TOKEN = re.compile(
    r"""
      (?P<skip>\s+ | //[^\n]* | /\*.*?(?:\*/|\Z)
        | \.loc\s+\d+\s+\d+\s+\d+ (?:\s*,\s*function_name\s+[\w$]+(?:\+\d+)?)? (?:\s*,\s*inlined_at\s+\d+\s+\d+\s+\d+)?
        | \.file\s+\d+\s+"[^"]*"? (?:\s*,\s*\d+\s*,\s*\d+)?
        | \.section\s+[\w.$]+\s*\{[^}]*\}?)
    | (?P<target>\.target[^\n]*)
    | (?P<word>[%.]?[A-Za-z_$][\w$]*(?:(?:\.|::)\w+)*)
    | (?P<other>"[^"]*"? | \d[\w.]* | .)
    """,
    re.X | re.S,
)


class CanonicalPtx(NamedTuple):
    """PTX without names, comments and layout, and what it leaves out."""

    digest: str
    """As of :func:`ptx_hash`."""
    names: dict[str, int]
    """Declared names by the order of their first use, which stands for them."""
    lines: tuple[int, ...]
    """Source line of each statement; 0 for those of headers, and where there is none."""


def ptx_hash(ptx: bytes) -> str:
    """Digest of the PTX in 16 hex digits, independent of names, comments and layout.

    Every name that the module declares (kernels, functions, parameters, variables, labels, named registers of inline
    assembly) is replaced by its position in the order of first use; comments, source lines and debug sections are
    dropped. Numbered registers stay, because the compiler numbers them in order. So two texts have one digest only if a
    one-to-one renaming of declared names makes them equal. KernelAgent deduplicates its beam by such a fingerprint.
    """
    return canonical_ptx(ptx).digest


@lru_cache(maxsize=16)
def canonical_ptx(ptx: bytes) -> CanonicalPtx:
    """The PTX without names, comments and layout; kept, for sizes share builds."""
    text = ptx.decode("latin-1")
    order: dict[str, int] = {}
    digest = content_hash("ptx/1", list(_canonical(_tokens(text), order)))
    return CanonicalPtx(digest, order, tuple(_statement_lines(text)))


_LOC = re.compile(r"\.loc\s+(\d+)\s+(\d+)")
_FILE = re.compile(r'\.file\s+(\d+)\s+"([^"]*)"')
_KERNEL = frozenset({".entry", ".func", ".visible", ".weak"})


def _statement_lines(text: str) -> Iterator[int]:
    headers = {number for number, path in _FILE.findall(text) if PurePath(path).suffix not in ("", ".cu")}
    line = 0
    for match in _TOKEN.finditer(text):
        token = match[0]
        if match.lastgroup == "skip":
            if position := _LOC.match(token):
                line = 0 if position[1] in headers else int(position[2])
        elif token in _KERNEL:
            line = 0
        elif token == ";":
            yield line


def _tokens(text: str) -> list[tuple[str, str]]:
    """Kind (``word``, ``target`` or ``other``) and text of each token that is code."""
    matches = ((match.lastgroup or "", match[0]) for match in _TOKEN.finditer(text))
    return [(kind, token) for kind, token in matches if kind != "skip"]


def _canonical(tokens: list[tuple[str, str]], order: dict[str, int]) -> Iterator[str]:
    """The tokens, with declared names replaced by ``#0``, ``#1``... in the ``order`` of their first use."""
    roles = list(_roles(tokens))
    declared = {token for token, role in roles if role == "declares"}
    for token, role in roles:
        head, dot, component = token.partition(".")
        if role in ("declares", "operand") and head in declared:
            yield f"#{order.setdefault(head, len(order))}{dot}{component}"
        else:
            yield token


def _roles(tokens: list[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """Each token with its role: ``declares`` (a name that the module declares), ``operand`` (a word that may use such a
    name) or ``fixed``.

    In a statement that begins with a directive every plain word is a declared name (or refers to one); in an
    instruction the first word is the opcode. A brace opens a block, unless it belongs to an initialiser or an operand.
    """
    begins, directive, initialiser, guarded = True, False, False, False
    braces: list[bool] = []  # True for those of a block
    for position, (kind, token) in enumerate(tokens):
        if kind == "word":
            if begins and not guarded:
                directive = token.startswith(".")
            label = begins and position + 1 < len(tokens) and tokens[position + 1][1] == ":"
            plain = not token.startswith((".", "%"))
            if plain and (label or (directive and "." not in token)):
                yield token, "declares"
            else:
                yield token, "operand" if plain and (not begins or guarded) else "fixed"
            if guarded:
                guarded = False  # the word was the predicate; the opcode is still to come
            else:
                begins = False
            continue
        yield token, "fixed"
        if token == "@":
            guarded = True
        elif token == "=":
            initialiser = True
        elif token == "{":
            block = begins or (directive and not initialiser)
            braces.append(block)
            begins = begins or block
        elif token == "}":
            begins = (braces.pop() if braces else True) or begins
        elif token in (";", ":") or kind == "target":
            begins = True
        if begins:
            directive = initialiser = False


_SPLICE = re.compile(r"\\[^\S\n]*\n")
_ASSEMBLY = re.compile(r"\b(?:asm|__asm|__asm__)\b|##|%:|\?\?|\\[uU]")
"""The keywords, and other spellings of them: pasted tokens, digraphs, trigraphs, ``\\u0061sm``."""
_MADE_TEXT = re.compile(
    r"""R" | \\[^nt"'\\] | ^.*\S.*\# | %: | \b__(?:BASE_)?FILE(?:_NAME)?__\b | ^\s*\#\s*(?:line\b|\d)
      | ^(?!\s*\#\s*include\b)(?=.*").*/""",
    re.M | re.X,
)
"""Ways for a literal to hold a slash: as it is, raw, by numeric escapes, or by a macro."""
_BEGIN, _END = "// begin inline asm", "// end inline asm"


def written_inline(source: str, ptx: str, line: int) -> bool:
    """Whether the candidate, not the compiler, wrote the instruction on a line of its build's PTX.

    NVRTC marks inline assembly by comments. The assembly's own text can hold the same comments, and text of the
    toolkit's headers is marked like the candidate's. So an instruction is the compiler's if the source cannot write
    assembly, or if it lies outside the markers and the source cannot write a comment into its assembly. C++ is not
    parsed here: in doubt, no trick with comments, macros or literals makes an instruction the compiler's.

    Args:
        source: The candidate's CUDA C++.
        ptx: Its PTX.
        line: Line from 1; 0 if unknown.
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
