"""Novelty of candidates: equality and likeness of their tokens, and equality of their PTX, to earlier attempts."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Container, Hashable, Mapping, Sequence, Set
from functools import lru_cache
from typing import Literal, NamedTuple

import numpy as np

from kernelforge.candidate import parse_plan
from kernelforge.errors import CandidateError
from kernelforge.metrics import NO_SMOOTHING, Ngrams
from kernelforge.metrics.bleu import UNIFORM, score
from kernelforge.records import Attempt, Candidate, Language, content_hash

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
    result: list[Token] = []
    directive, line_start = False, True
    for match in _TOKEN.finditer(source):
        kind, text = match.lastgroup, match[0]
        if match["skip"] is not None:
            if text.isspace() and "\n" in text:
                if directive:
                    result.append(Token("mark", "\n", True))
                directive, line_start = False, True
            continue
        directive = directive or (text == "#" and line_start)
        line_start = False
        if match["string"] is not None:
            kind = "string"
        result.append(Token(kind, text, directive))  # type: ignore[arg-type]
    return result


_INTRODUCE = frozenset({"struct", "class", "typename", "enum", "union", "using", "namespace"})
_NO_TYPES = words(
    "return else case goto new delete throw sizeof alignof operator do if while for switch break continue default "
    "struct class typename enum union using namespace template public private protected and or not"
)
_QUALIFIERS = words("const volatile constexpr static inline extern unsigned signed long short mutable")
_TYPES = words("void bool char short int long float double auto unsigned signed half half2 dim3")
_TYPE = re.compile(r"(u?(char|short|int|long|longlong)|float|double)[1-4] | \w+_t | __half2? | __nv_bfloat16\d?", re.X)
_KEYWORDS = _INTRODUCE | _NO_TYPES | _QUALIFIERS | _TYPES | words("true false nullptr this friend typedef")
_ACCESS = (".", "->")
_INDICES = ("threadIdx", "blockIdx", "blockDim", "gridDim")
_BOUNDS_TOKENS = 64
"""How far back the words before a parenthesis are looked for."""
_FOLLOW = frozenset(";,)=([{:")


class Novelty:
    """Fingerprints of the candidates seen so far."""

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


NEAR = 0.9
"""BLEU from which on a candidate is a near copy. In the transcripts that ship, 28 of 36 revised kernels have at most
0.78 with an earlier one of their task, and 8 at least 0.97."""


class Likeness:
    """Token BLEU of candidates to earlier ones: 1 for texts that are equal but for names, comments and layout."""

    def __init__(self, least: float) -> None:
        self.least = least
        """BLEU from which on two candidates are alike."""
        self._seen = EarlierTexts()
        self._numbers: list[int] = []
        self._alike: dict[int, dict[int, float]] = {}

    def add(self, attempt: Attempt) -> dict[int, float]:
        """Take an attempt in; BLEU to each earlier one that it is alike, by number."""
        if attempt.candidate is None:
            return {}
        own = Ngrams.of(blind_tokens(attempt.candidate))
        scores = {self._numbers[index]: bleu for index, bleu in self._seen.bleu(own, self.least).items()}
        self._seen.add(own)
        self._numbers.append(attempt.number)
        self._alike[attempt.number] = scores
        return scores

    def between(self, first: int, second: int) -> float:
        """BLEU of two attempts that were taken in, the later against the earlier; 0 where they are not alike."""
        earlier, later = sorted((first, second))
        return self._alike.get(later, {}).get(earlier, 0.0)


class EarlierTexts:
    """Texts that were taken in, and BLEU-4 of each further one to all of them, without smoothing.

    The counts of all texts are in arrays, so that a text is compared with hundreds in milliseconds.
    """

    def __init__(self) -> None:
        self._lengths: list[int] = []
        self._ids: dict[tuple[Hashable, ...], int] = {}
        # For each n-gram of each text: what it is, in which text and of which order, and how often.
        self._ngrams, self._groups, self._counts = (np.zeros(0, np.int32) for _ in range(3))

    def add(self, text: Ngrams) -> None:
        """Take a text in: its n-grams of orders 1 to 4."""
        entries = [
            (self._ids.setdefault(ngram, len(self._ids)), order, count)
            for order, counts in enumerate(text.counts)
            for ngram, count in counts.items()
        ]
        own, order, counts = np.array(entries, np.int32).reshape(-1, 3).T
        self._ngrams = np.concatenate([self._ngrams, own])
        self._groups = np.concatenate([self._groups, len(self._lengths) * len(UNIFORM) + order])
        self._counts = np.concatenate([self._counts, counts])
        self._lengths.append(text.length)

    def bleu(self, text: Ngrams, least: float = 0.0) -> dict[int, float]:
        """BLEU of a text to each one taken in, by number from 0, where it is at least ``least``.

        Args:
            text: its n-grams of orders 1 to 4.
            least: precisions are at most 1, so one order alone shows that most other texts are below it.
        """
        orders, number = len(UNIFORM), len(self._lengths)
        here = np.zeros(len(self._ids), np.int32)
        for counts in text.counts:
            for ngram, count in counts.items():
                if (index := self._ids.get(ngram)) is not None:
                    here[index] = count
        matched = np.minimum(here[self._ngrams], self._counts)
        matches = np.bincount(self._groups, matched, number * orders).reshape(number, orders)
        possible = [max(1, text.length - order) for order in range(orders)]
        hopeful = np.flatnonzero((matches / possible).min(axis=1, initial=1) ** UNIFORM[0] >= least)
        scores = {
            int(other): score(matches[other], possible, text.length, self._lengths[other], UNIFORM, NO_SMOOTHING)
            for other in hopeful
        }
        return {other: bleu for other, bleu in scores.items() if bleu >= least}


def blind_tokens(candidate: Candidate) -> list[str]:
    """Tokens of source and plan with one word in place of every name that they declare."""
    plan = _read_plan(candidate.plan, candidate.language or "cuda")
    source, names = blind_source(candidate.source, candidate.language, plan.constants)
    own = plan.bound | plan.constants | names
    return [*source, *normalised_plan(plan, dict.fromkeys(own, _ANY_NAME), own)]


def blind_source(
    source: str, language: Language | None, constants: Set[str] = frozenset()
) -> tuple[list[str], Set[str]]:
    """Tokens of a source with one word in place of every name that it declares, and these names.

    Numbered names would make all that follows a new variable differ.

    Args:
        language: with anything but CUDA the tokens are Python's, and names stay.
        constants: names of the plan that the source sees.
    """
    if language != "cuda":
        return _PYTHON_TOKEN.findall(source), set()
    text, names = normalised_source(source, constants)
    numbered = set(names.values())
    return [_ANY_NAME if token in numbered else token for token in text], names.keys()


_ANY_NAME = "#name"
_PYTHON_TOKEN = re.compile(r"\w+|[^\w\s]")


def fingerprints(attempt: Attempt) -> tuple[str, ...]:
    """Fingerprints of the candidate of an attempt: its normalised text, and its PTX and plan where it was compiled."""
    candidate, build = attempt.candidate, attempt.evaluation.build
    if candidate is None:
        return ()
    language = candidate.language or "cuda"
    plan = _read_plan(candidate.plan, language)
    # The tokens of Triton are Python's: its text is compared without the blank lines around it.
    triton: tuple[str, Mapping[str, str]] = candidate.source.strip(), {}
    source, names = triton if language == "triton" else normalised_source(candidate.source, plan.constants)
    # What the plan binds is its own, but for the constants that it shares with the source.
    replacements = {
        name: replacement for name, replacement in names.items() if name in plan.constants or name not in plan.bound
    }
    own = plan.bound | plan.constants
    values = [candidate.choices.get(name, first) for name, first in plan.tunables.items()]
    rest = [values or list(candidate.choices.values()), candidate.lane]
    text = content_hash("text/1", source, normalised_plan(plan, replacements, own), *rest)
    if build is None or build.ptx_hash is None:
        return (text,)
    # Names of the source are numbered as the plan uses them: the source itself may well differ.
    return text, content_hash("ptx/1", build.ptx_hash, normalised_plan(plan, {}, own | set(names)), *rest)


def normalised_source(source: str, constants: Set[str]) -> tuple[list[str], dict[str, str]]:
    """The tokens with declared names replaced, and what replaces each of these names.

    ``constants`` are names of the plan that the source sees.
    """
    stream = tokens(source)
    declared = declared_names(stream) | constants
    names: dict[str, str] = {}
    text = []
    for position, token in enumerate(stream):
        field = position > 0 and stream[position - 1].text in _ACCESS
        if token.kind == "word" and token.text in declared and not field:
            text.append(names.setdefault(token.text, f"#{len(names)}"))
        else:
            text.append(token.text)
    return text, names


def declared_names(stream: Sequence[Token]) -> set[str]:
    """Names that the text plainly declares: types, macros, and what stands behind a type. Fields keep their names."""
    types = (
        {stream[at].text for at in range(1, len(stream)) if stream[at - 1].text in _INTRODUCE} | _TYPES | _QUALIFIERS
    )
    fields = {
        stream[at].text
        for at in range(2, len(stream))
        if stream[at - 1].text in _ACCESS and stream[at - 2].text not in _INDICES
    }
    return {stream[at].text for at in range(1, len(stream)) if _declares(stream, at, types)} - fields


def _declares(stream: Sequence[Token], at: int, types: set[str]) -> bool:
    token, before = stream[at], stream[at - 1]
    if token.kind != "word" or token.text in _KEYWORDS or token.text.startswith("__") or _TYPE.fullmatch(token.text):
        return False
    if token.directive:
        return before.text == "define"
    if before.text in _INTRODUCE:
        return True
    if at + 1 < len(stream) and stream[at + 1].text not in _FOLLOW:
        return False
    if before.kind == "word":
        return before.text not in _NO_TYPES and not before.directive
    if before.text == ")":
        return _bounds_before(stream, at - 1)
    pointer = at - 1
    while pointer > 0 and stream[pointer].text in ("*", "&", "&&"):
        pointer -= 1
    kind = stream[pointer].text
    return pointer < at - 1 and (kind in types or _TYPE.fullmatch(kind) is not None)


def _bounds_before(stream: Sequence[Token], close: int) -> bool:
    """Whether a closing parenthesis is that of ``__launch_bounds__``."""
    depth, at, farthest = 1, close, max(0, close - _BOUNDS_TOKENS)
    while depth and at > farthest:
        at -= 1
        depth += (stream[at].text == ")") - (stream[at].text == "(")
    return at > 0 and stream[at - 1].text == "__launch_bounds__"


class _Plan(NamedTuple):
    """A plan and its names."""

    text: str
    readable: bool = False
    tunables: Mapping[str, int] = {}
    """Names of the ``# tune:`` lines with their first values."""
    constants: frozenset[str] = frozenset()
    """Names bound at the top level, where the source sees them; tunables too."""
    bound: frozenset[str] = frozenset()
    """All names that it binds, but for tunables."""


@lru_cache(maxsize=64)  # a Coder seldom changes the plan with the source
def _read_plan(text: str, language: Language) -> _Plan:
    try:
        # Only what this lets through is safe to give to Python's own parser and tokenizer.
        plan = parse_plan(text, language)
    except CandidateError:
        return _Plan(text)
    tree = ast.parse(plan.text)
    bound: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            bound.add(node.id)
        elif isinstance(node, ast.arg):
            bound.add(node.arg)
        elif isinstance(node, ast.FunctionDef) and node.name not in ("forward", "setup"):
            bound.add(node.name)
    targets = [target for node in tree.body if isinstance(node, ast.Assign) for target in node.targets]
    top = {target.id for target in targets if isinstance(target, ast.Name)}
    tunables = plan.combinations[0]
    return _Plan(plan.text, True, tunables, frozenset(top | set(tunables)), frozenset(bound))


@lru_cache(maxsize=64)
def _plan_tokens(text: str) -> tuple[tuple[int, str], ...]:
    """Kind and text of each token of a plan that can be read."""
    return tuple((token.type, token.string) for token in tokenize.generate_tokens(io.StringIO(text).readline))


def normalised_plan(plan: _Plan, replacements: Mapping[str, str], own: Container[str]) -> list[str]:
    """The plan's tokens without comments; ``known`` names are replaced as given, its ``own`` ones by their order.

    A plan that cannot be read stays as it is.
    """
    if not plan.readable:
        return [plan.text]
    order: dict[str, str] = {}

    def replaced(name: str) -> str:
        if name in replacements:
            return replacements[name]
        return order.setdefault(name, f"${len(order)}") if name in own else name

    result: list[str] = []
    before = ""
    for kind, token in _plan_tokens(plan.text):
        if kind in (tokenize.INDENT, tokenize.DEDENT, tokenize.NEWLINE):
            result.append(tokenize.tok_name[kind])
        elif kind == tokenize.NAME and before != ".":
            result.append(replaced(token))
        elif kind == tokenize.STRING:
            result.append(re.sub(r"[A-Za-z_]\w*", lambda match: replaced(match[0]), token))
        elif kind not in (tokenize.COMMENT, tokenize.NL):
            result.append(token)
        before = token
    return result
