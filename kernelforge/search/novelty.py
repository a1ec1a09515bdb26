"""Whether a candidate is new, or an earlier one in other words.

Two tests, the cheap one first (ShinkaEvolve rejects by the similarity of embeddings; for kernels both of these are
exact and need no model):

- *text*: source and plan token by token, without comments and layout, declared names replaced by their order;
- *PTX*: the same code after compilation. Grid, block and shared memory of a launch are no part of PTX, so the plan
  counts as well.

A name counts as declared only where the text makes that plain. So a renamed copy may pass the first test as new, and
the second finds it; a kernel that does something else passes both.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator, Sequence

from kernelforge.candidate import parse_plan
from kernelforge.errors import CandidateError
from kernelforge.records import Attempt, Candidate, content_hash
from kernelforge.search.cuda_tokens import Token, tokens, words

_INTRODUCE = frozenset({"struct", "class", "typename", "enum", "union", "using", "namespace"})
_NO_TYPES = words(
    "return else case goto new delete throw sizeof alignof operator do if while for switch break continue default "
    "struct class typename enum union using namespace template public private protected and or not"
)
_QUALIFIERS = words("const volatile constexpr static inline extern unsigned signed long short mutable")
_TYPES = words("void bool char short int long float double auto unsigned signed half half2 dim3")
_TYPE = re.compile(r"(u?(char|short|int|long|longlong)|float|double)[1-4] | \w+_t | __half2? | __nv_bfloat16\d?", re.X)
_KEYWORDS = _INTRODUCE | _NO_TYPES | _QUALIFIERS | _TYPES | words("true false nullptr this friend typedef")
_FOLLOW = frozenset(";,)=([{:")


class Novelty:
    """What was seen so far."""

    def __init__(self) -> None:
        self._seen: set[str] = set()

    def add(self, attempt: Attempt) -> bool:
        """Take an attempt in; True if nothing before it is the same. One without a candidate is not new."""
        if attempt.candidate is None:
            return False
        names = fingerprints(attempt)
        new = self._seen.isdisjoint(names)
        self._seen.update(names)
        return new


def fingerprints(attempt: Attempt) -> tuple[str, ...]:
    """What names an attempt's candidate: its normalised text, and its PTX and plan where it was compiled."""
    candidate, build = attempt.candidate, attempt.evaluation.build
    if candidate is None:
        return ()
    source, names = normalised_source(candidate.source)
    values = _tuned_values(candidate)
    text = content_hash("text/1", source, normalised_plan(candidate.plan, names), values, candidate.lane)
    if build is None or build.ptx_hash is None:
        return (text,)
    plan = normalised_plan(candidate.plan, dict.fromkeys(names, ""))
    return text, content_hash("ptx/1", build.ptx_hash, plan, values)


def normalised_source(source: str) -> tuple[list[str], dict[str, str]]:
    """The tokens with declared names replaced, and what replaces each of these names."""
    found = tokens(source)
    known = declared_names(found)
    names: dict[str, str] = {}
    text = []
    for position, token in enumerate(found):
        field = position > 0 and found[position - 1].text in (".", "->")
        if token.kind == "word" and token.text in known and not field:
            text.append(names.setdefault(token.text, f"#{len(names)}"))
        else:
            text.append(token.text)
    return text, names


def declared_names(found: Sequence[Token]) -> set[str]:
    """Names that the text plainly declares: types, macros, and what stands behind a type."""
    types = {found[at].text for at in range(1, len(found)) if found[at - 1].text in _INTRODUCE}
    return {found[at].text for at in range(1, len(found)) if _declares(found, at, types)}


def _declares(found: Sequence[Token], at: int, types: set[str]) -> bool:
    token, before = found[at], found[at - 1]
    if token.kind != "word" or token.text in _KEYWORDS or token.text.startswith("__") or _TYPE.fullmatch(token.text):
        return False
    if token.directive:
        return before.text == "define"
    if before.text in _INTRODUCE:
        return True
    if at + 1 < len(found) and found[at + 1].text not in _FOLLOW:
        return False
    if before.kind == "word":
        return before.text not in _NO_TYPES and not before.directive
    if before.text == ")":
        return _bounds_before(found, at - 1)
    pointer = at - 1
    while pointer > 0 and found[pointer].text in ("*", "&", "&&"):
        pointer -= 1
    kind = found[pointer].text
    return pointer < at - 1 and (kind in types | _TYPES | _QUALIFIERS or _TYPE.fullmatch(kind) is not None)


def _bounds_before(found: Sequence[Token], close: int) -> bool:
    """Whether a closing parenthesis is that of ``__launch_bounds__``."""
    depth, at = 1, close
    while depth and at > 0:
        at -= 1
        depth += (found[at].text == ")") - (found[at].text == "(")
    return at > 0 and found[at - 1].text == "__launch_bounds__"


def normalised_plan(plan: str, names: dict[str, str]) -> list[str]:
    """The plan's tokens without comments; ``names`` of the source and those that the plan binds are replaced.

    A name of the source with an empty replacement is numbered with the plan's own.
    """
    try:
        known = {name: given for name, given in names.items() if given}
        own = {*names, *_bound_names(ast.parse(plan))} - set(known)
        return list(_plan_tokens(plan, known, own))
    except (SyntaxError, ValueError, RecursionError, tokenize.TokenError):
        return [plan]


def _plan_tokens(plan: str, known: dict[str, str], own: set[str]) -> Iterator[str]:
    order: dict[str, str] = {}

    def replaced(name: str) -> str:
        if name in own:
            return order.setdefault(name, f"${len(order)}")
        return known.get(name, name)

    before = ""
    for token in tokenize.generate_tokens(io.StringIO(plan).readline):
        if token.type in (tokenize.COMMENT, tokenize.NL):
            continue
        if token.type in (tokenize.INDENT, tokenize.DEDENT, tokenize.NEWLINE):
            text = tokenize.tok_name[token.type]
        elif token.type == tokenize.NAME and before != ".":
            text = replaced(token.string)
        elif token.type == tokenize.STRING:
            text = re.sub(r"[A-Za-z_]\w*", lambda match: replaced(match[0]), token.string)
        else:
            text = token.string
        before = token.string
        yield text


def _bound_names(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.FunctionDef) and node.name not in ("forward", "setup"):
            yield node.name


def _tuned_values(candidate: Candidate) -> list[int]:
    """Values of the plan's ``# tune:`` names, in the plan's order."""
    try:
        first = parse_plan(candidate.plan).combinations[0]
    except CandidateError:
        return list(candidate.choices.values())
    return [candidate.choices.get(name, value) for name, value in first.items()]
