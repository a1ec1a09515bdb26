"""The text given to the compiler: the candidate's source, the plan's constants, and checks of its launches.

``#line`` keeps every diagnostic on the line the Coder wrote.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from kernelforge.candidate.plan import LaunchSignature
from kernelforge.errors import CandidateError
from kernelforge.records import DType

CANDIDATE_FILE = "candidate.cu"
CONSTANTS_FILE = "constants of the plan"
LAUNCHES_FILE = "launches of the plan"
SIGNATURE_HEADER = "kernelforge_signature.h"
"""Our own header, which checks what launches pass."""
MAX_EXPRESSION_CHARACTERS = 512

_ARGUMENT_TYPES = frozenset(
    {"tensor_map", "i32", "i64", "f32", "f64", "f16", "bf16", *(f"tensor:{dtype.value}" for dtype in DType)}
)
_EXPRESSION = re.compile(r"[A-Za-z_][\w:<>,*&() \-]*")
_IDENTIFIER = re.compile(r"[A-Za-z_]\w*")


def check_expression(expression: str) -> None:
    """Refuse a kernel name that is more than a name with template arguments.

    Raises:
        CandidateError: the message says what a name may hold.
    """
    if len(expression) > MAX_EXPRESSION_CHARACTERS or not _EXPRESSION.fullmatch(expression):
        raise CandidateError(
            f"{expression[:80]!r} is not a kernel name: use an identifier, with template arguments if need be, "
            "such as softmax<float, 256>"
        )


def compose(source: str, constants: Mapping[str, int], signatures: Sequence[LaunchSignature]) -> str:
    """The whole translation unit.

    Raises:
        CandidateError: a constant's name or value, or a kernel's name, is malformed.
    """
    for signature in signatures:
        check_expression(signature.expression)
        for arg in signature.args:
            if arg not in _ARGUMENT_TYPES:
                raise CandidateError(f"{signature.expression}: {arg!r} is not a type that a launch can pass")
    # C++ ends a line at a newline alone: str.splitlines would also make code of what follows a U+2028 in a comment.
    lines = source.removesuffix("\n").split("\n")
    at = _after_leading_includes(lines)
    text = [*lines[:at]]
    if constants:
        text.append(f'#line 1 "{CONSTANTS_FILE}"')
        text += [_constant(name, value) for name, value in constants.items()]
        text.append(f'#line {at + 1} "{CANDIDATE_FILE}"')
    text += lines[at:]
    if signatures:
        text += ["", f"#include <{SIGNATURE_HEADER}>", f'#line 1 "{LAUNCHES_FILE}"']
        text += [_check(number, signature) for number, signature in enumerate(signatures)]
    return "\n".join(text) + "\n"


def _constant(name: str, value: int) -> str:
    if not _IDENTIFIER.fullmatch(name) or isinstance(value, bool) or not isinstance(value, int):
        raise CandidateError(f"constant {name!r} = {value!r}: a constant is an integer with a C++ name")
    if not -(2**63) < value < 2**63:
        raise CandidateError(f"constant {name} = {value} does not fit in 64 bits")
    kind = "int" if -(2**31) < value < 2**31 else "long long"
    suffix = "" if kind == "int" else "ll"
    return f"[[maybe_unused]] static constexpr {kind} {name} = {value}{suffix};"


def _check(number: int, signature: LaunchSignature) -> str:
    passed = "".join(f", kernelforge_plan::{arg.replace(':', '_')}" for arg in signature.args)
    return (
        f"static_assert(kernelforge_plan::launch<{number}, decltype(&{signature.expression}){passed}>::checked, "
        '"kernelforge launch");'
    )


def _after_leading_includes(lines: Sequence[str]) -> int:
    """Number of lines up to the last ``#include`` of the file's head, never inside an ``#if`` or a comment.

    The head is everything before the first line of code: blank lines, comments, preprocessor lines.
    """
    at = depth = 0
    pending = in_comment = continued = False
    for number, line in enumerate(lines):
        directive = continued
        continued = line.rstrip().endswith("\\")
        if directive:
            continue
        code, in_comment = without_comments(line, in_comment)
        code = code.strip()
        if not code:
            continue
        match = re.match(r"#\s*(\w*)", code)
        if match is None:
            break
        if match[1] in ("if", "ifdef", "ifndef"):
            depth += 1
        elif match[1] == "endif":
            depth -= 1
        elif match[1] == "include":
            pending = True
        if pending and depth <= 0 and not in_comment and not continued:
            at, pending = number + 1, False
    return at


def without_comments(line: str, in_comment: bool) -> tuple[str, bool]:
    """The line's text outside comments, and whether a comment is open at its end."""
    kept = ""
    while line:
        if in_comment:
            _, end, line = line.partition("*/")
            in_comment = not end
            continue
        block, single = line.find("/*"), line.find("//")
        if single >= 0 and (block < 0 or single < block):
            return kept + line[:single], False
        if block < 0:
            return kept + line, False
        kept, line, in_comment = kept + line[:block] + " ", line[block + 2 :], True
    return kept, in_comment
