"""Digest of what PTX does, independent of names, comments and layout.

Every name that the module declares (kernels, functions, parameters, variables, labels, named registers of inline
assembly) is replaced by its position in the order of first use; comments, source lines and debug sections are dropped.
Numbered registers stay, because the compiler numbers them in order. So two texts get one hash only if a one-to-one
renaming of declared names makes them equal. KernelAgent deduplicates its beam by such a fingerprint.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from kernelforge.records import content_hash

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


def ptx_hash(ptx: bytes) -> str:
    """16 hex digits that name what the PTX does."""
    return content_hash("ptx/1", list(_canonical(_tokens(ptx.decode("latin-1")))))


def _tokens(text: str) -> list[tuple[str, str]]:
    """Kind (``word``, ``target`` or ``other``) and text of each token that is code."""
    found = ((match.lastgroup or "", match[0]) for match in _TOKEN.finditer(text))
    return [(kind, token) for kind, token in found if kind != "skip"]


def _canonical(tokens: list[tuple[str, str]]) -> Iterator[str]:
    """The tokens, with declared names replaced by ``#0``, ``#1``... in the order of their first use."""
    declared = {token for token, role in _roles(tokens) if role == "declares"}
    order: dict[str, int] = {}
    for token, role in _roles(tokens):
        head, dot, component = token.partition(".")
        if role in ("declares", "operand") and head in declared:
            yield f"#{order.setdefault(head, len(order))}{dot}{component}"
        else:
            yield token


def _roles(tokens: list[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """Each token with ``declares`` for a name that the module declares, ``operand`` for a word that may be such a name
    used, ``fixed`` for anything else.

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
