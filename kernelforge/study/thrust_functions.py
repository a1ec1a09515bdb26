"""Function objects of a Thrust suggestion that lack ``__device__``, which no host compiler misses.

nvcc compiles the call of an algorithm on the device for the device, and with it the function object's ``operator()``,
which has to be marked for it. Here each class and lambda without the mark gets another one, which
``thrust_system.h`` refuses in algorithms on the device and ignores in all else.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final

from kernelforge.modelnew.convert.cpp_tokens import Token, Unconvertible, matching, tokenize
from kernelforge.study.signatures import Underivable

_CLASS_MARK: Final = "public: using kernelforge_of_host = void; "
_LAMBDA_MARK: Final = "kernelforge::of_host * "
_BEFORE_LAMBDA: Final = frozenset({"(", ",", "=", "return", "{", "}", ";", "?", ":", "&&", "||"})
_CUDA_INCLUDE: Final = re.compile(
    r"^[ \t]*#[ \t]*include[ \t]*[<\"]cuda(?:_runtime(?:_api)?)?\.h[>\"][^\n]*", re.MULTILINE
)
_DEVICE: Final = "__device__"
_MACRO: Final = re.compile(r"^[ \t]*#[ \t]*define[ \t]+(\w+)[ \t][^\n]*__device__", re.MULTILINE)


def marked_function_objects(code: str) -> str:
    """The code, with a mark at each class of function objects and each lambda that lacks ``__device__``, and without
    includes of CUDA's runtime, of which ``thrust_prelude.h`` has a part.

    Raises:
        Underivable: it cannot be read.
    """
    code = _CUDA_INCLUDE.sub("", code)
    try:
        tokens = tokenize(code)
        marks = sorted((*_classes(code, tokens), *_lambdas(code, tokens)), reverse=True)
    except (Unconvertible, LookupError) as error:
        raise Underivable("it is cut short or malformed") from error
    for at, mark in marks:
        code = code[:at] + mark + code[at:]
    return code


def _is_for_device(code: str, words: Sequence[Token]) -> bool:
    return bool({_DEVICE, *_MACRO.findall(code)} & {token.text for token in words})


def _classes(code: str, tokens: Sequence[Token]) -> Iterator[tuple[int, str]]:
    """Marks of classes whose ``operator()`` lacks ``__device__``: offset in the code, and text."""
    for at, token in enumerate(tokens):
        if token.text not in ("struct", "class") or tokens[at - 1].text in ("<", ",", "enum"):
            continue
        opening = next((i for i in range(at, len(tokens)) if tokens[i].text in ("{", ";", "(", ")")), at)
        if tokens[opening].text != "{":
            continue
        body = tokens[opening + 1 : matching(tokens, opening)]
        calls = [i for i in range(len(body) - 2) if [t.text for t in body[i : i + 3]] == ["operator", "(", ")"]]
        if calls and not any(_is_for_device(code, _declaration(body, i)) for i in calls):
            back = "private: " if token.text == "class" else ""
            yield tokens[opening].end, _CLASS_MARK + back


def _declaration(body: Sequence[Token], name: int) -> Sequence[Token]:
    """Tokens of a member's declaration in front of its name."""
    start = next((i for i in range(name - 1, -1, -1) if body[i].text in (";", "}", "{", ":")), -1)
    return body[start + 1 : name]


def _lambdas(code: str, tokens: Sequence[Token]) -> Iterator[tuple[int, str]]:
    """Marks of lambdas that lack ``__device__``, likewise; a lambda that is called at once needs none."""
    for at, token in enumerate(tokens):
        if token.text != "[" or not at or tokens[at - 1].text not in _BEFORE_LAMBDA:
            continue
        inside = matching(tokens, at) + 1
        opening = next((i for i in range(inside, len(tokens)) if tokens[i].text in ("{", ";", "]")), inside)
        if tokens[inside].text == "[" or tokens[opening].text != "{":
            continue
        called = tokens[matching(tokens, opening) + 1].text == "("
        if not called and not _is_for_device(code, tokens[inside:opening]):
            yield token.start, _LAMBDA_MARK
