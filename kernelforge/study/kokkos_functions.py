"""Read the function of a Kokkos suggestion that computes the kernel, and prepare its text for the compiler.

For reading alone, aliases are expanded, templates get the types that the study's call gives them, and each type of a
view becomes one word, which stands for it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from kernelforge.metrics.codebleu import uncommented
from kernelforge.records.task import MAX_SOURCE_BYTES
from kernelforge.study.signatures import Function, Underivable, ViewType, entry_function
from kernelforge.utils.commas import comma_parts

_RENAMED: Final = re.compile(r"\b(initialize|finalize)\b(?=\s*\()")
_ALIAS: Final = re.compile(r"\busing\s+(\w+)\s*=\s*([^;{}]{1,300});|\btypedef\s+([^;{}]{1,300}?)\s*\b(\w+)\s*;")
_TEMPLATE: Final = re.compile(r"\btemplate\s*<")
_TEMPLATE_HEAD: Final = re.compile(r"\btemplate\s*<[^;{}]*>\s*$")
_TEMPLATE_PARAMETER: Final = re.compile(r"\s*(?:typename|class)\s+(\w+)\s*(?:=\s*(.*\S)\s*)?", re.DOTALL)
_OF_CLASS: Final = re.compile(r"\s*(?:struct|class|using|union|template)\b")
_VIEW: Final = re.compile(r"\b(?:typename\s+)?(?:(?:::\s*)?Kokkos\s*::\s*)?View\s*<")
_MEMBER_TYPE: Final = re.compile(r"\s*::\s*(?:template\s+)?\w+")
_DATA: Final = re.compile(r"(?:const )?((?:std ?:: ?)?\w+(?: \w+){0,3}?)(?: const)? ?((?:\* ?){1,3})")
_INDEX_NAME: Final = re.compile(r"row|col|ptr|ind|idx|offset", re.IGNORECASE)
_CLOSING: Final = {"<": ">", "(": ")", "{": "}"}
_NO_TYPE: Final = ";{"
"""Letters that no list of template arguments has."""
_MOST_DEPTH: Final = 4
"""Aliases of aliases that are expanded."""
_MOST_HEAD: Final = 300
"""Letters of a template's head in front of an alias."""
_BLOCKED_TEAMS: Final = re.compile(r"\bleague_rank\s*\(\s*\)\s*\*|\*\s*\w+\s*\.\s*league_rank\s*\(")
_KERNELS: Final = re.compile(r"\bKokkos(?:Blas|Sparse|Batched|Kernels|FFT|Graph)\w*(?=\s*::|[./_])")


def kokkos_source(code: str) -> str:
    """The text for the compiler: it neither initialises nor finalises Kokkos, which all calls of a process share.

    Raises:
        Underivable: it needs what Kokkos's device here lacks.
    """
    text = uncommented(code)
    if lack := _KERNELS.search(text):
        raise Underivable(f"it uses `{lack.group()}` of Kokkos Kernels, and Kokkos's core alone is here")
    if _BLOCKED_TEAMS.search(text) and re.search(r"\bteam_rank\b", text):
        raise Underivable("it counts elements by threads of its teams, which have one thread each here")
    return _RENAMED.sub(r"kernelforge_\1", code)


def kokkos_function(code: str, names: re.Pattern[str]) -> Function:
    """The function of a suggestion that computes the kernel, as :func:`entry_function` chooses it.

    Args:
        code: of the suggestion.
        names: in names of functions that compute the kernel.

    Raises:
        Underivable: there is none, or a parameter has no role.
    """
    text = _without_templates(_expanded(uncommented(code)))
    views: dict[str, ViewType] = {}
    return entry_function(_with_words(text, views), names, views)


def _expanded(text: str) -> str:
    """The text with each alias of its outermost level in its place, where it stands alone."""
    aliases: dict[str, str] = {}
    parts, last = [], 0
    for match in _ALIAS.finditer(text):
        before = text[: match.start()]
        if before.count("{") == before.count("}") and not _TEMPLATE_HEAD.search(before[-_MOST_HEAD:]):
            aliases[match[1] or match[4]] = (match[2] or match[3]).strip()
            parts.append(text[last : match.start()])
            last = match.end()
    text = "".join([*parts, text[last:]])
    if not aliases:
        return text
    word = re.compile(rf"(?<![\w.>])(?<!:)({'|'.join(map(re.escape, aliases))})\b(?!\s*\()")
    for _ in range(_MOST_DEPTH):
        text = word.sub(lambda match: aliases[match[1]], text)
        if len(text) > MAX_SOURCE_BYTES:
            raise Underivable("its aliases stand for too long a text")
    return text


def _closing(text: str, opening: int, until: str = "") -> int:
    """Place of the bracket that closes the one at ``opening``, before any of the letters ``until``.

    Raises:
        Underivable: nothing closes it.
    """
    bracket = text[opening]
    closing, depth = _CLOSING[bracket], 0
    for at in range(opening, len(text)):
        depth += (text[at] == bracket) - (text[at] == closing)
        if not depth:
            return at
        if text[at] in until:
            break
    raise Underivable("it is cut short or malformed")


def _split(text: str) -> list[str]:
    """Parts between commas that stand in no bracket."""
    return [part for part in comma_parts(text, angles=True) if part]


def _without_templates(text: str) -> str:
    """The text without its templates of functions, whose parameters have types."""
    at = 0
    while match := _TEMPLATE.search(text, at):
        at, end = match.end(), _closing(text, match.end() - 1, _NO_TYPE)
        if _OF_CLASS.match(text, end + 1):
            continue
        body = text.find("{", end)
        close = _closing(text, body) + 1 if body >= 0 else len(text)
        function = text[end + 1 : close]
        for part in _split(text[match.end() : end]):
            parameter = _TEMPLATE_PARAMETER.fullmatch(part)
            if parameter is None:
                raise Underivable("it has a template with a number for a parameter")
            function = _typed(function, parameter[1], parameter[2])
        at = match.start()
        text = text[:at] + function + text[close:]
    return text


def _typed(function: str, name: str, default: str | None) -> str:
    """A function with a type in place of a template's parameter: of numbers, or of the views that it is used as."""
    word = re.compile(rf"\b{re.escape(name)}\b")
    if default is not None:
        return word.sub(default, function)
    if re.search(rf"\bView\s*<\s*(?:const\s+)?{re.escape(name)}\b", function):
        return word.sub("double", function)

    head, brace, body = function.partition("{")

    def declared(match: re.Match[str]) -> str:
        item = match[2]
        call = re.search(rf"(?<![\w.]){re.escape(item)}\s*\(", body)
        if call is None:
            return f"double{match[1]}{item}"
        indices = _split(body[call.end() : _closing(body, call.end() - 1)])
        element = "int" if len(indices) == 1 and _INDEX_NAME.search(item) else "double"
        return f"Kokkos::View<{element}{'*' * len(indices)}>{match[1]}{item}"

    return re.sub(rf"\b{re.escape(name)}\b(\s*(?:const\s*)?&?\s*)(\w+)", declared, head) + brace + body


def _with_words(text: str, views: dict[str, ViewType]) -> str:
    """The text with a word in place of each type of a view; the words are added to ``views``."""
    parts, last = [], 0
    for start, end in _view_types(text):
        parts.append(text[last:start])
        word = f"kernelforge_view_{len(views)}"
        views[word] = _view_type(text[start:end])
        parts.append(f" {word} ")
        last = end
    return "".join([*parts, text[last:]])


def _view_types(text: str) -> Iterator[tuple[int, int]]:
    """Start and end of each type of a view, with the type that it names as its member."""
    at = 0
    while match := _VIEW.search(text, at):
        at = _closing(text, match.end() - 1, _NO_TYPE) + 1
        while member := _MEMBER_TYPE.match(text, at):
            at = member.end()
        yield match.start(), at


def _view_type(text: str) -> ViewType:
    plain = " ".join(text.split())
    inside = plain[plain.index("<") + 1 : _closing(plain, plain.index("<"), _NO_TYPE)]
    arguments = _split(inside)
    data = _DATA.fullmatch(arguments[0]) if arguments else None
    if data is None:
        return ViewType(plain, "", 0, False)
    return ViewType(
        plain, data[1].replace("::", " :: "), data[2].count("*"), re.search(r"\bconst\b", arguments[0]) is not None
    )
