"""Fortran suggestions: the subroutine that answers, what its parameters are, and a call of it for a form.

The call is a subroutine with C linkage behind the suggestion in one file, so that it passes arrays with their extents
and numbers of the right kind. Indices of rows and columns begin with 1, as Fortran's own do.
"""

from __future__ import annotations

import re
from typing import Final, Literal, NamedTuple

from kernelforge.records import Candidate
from kernelforge.study.kernels import Form
from kernelforge.study.signatures import Function, Kind, Parameter, Real, Underivable
from kernelforge.translation.evaluator import c_candidate

_MODULE: Final = "study_suggestion"
_LITERAL: Final = re.compile(r"'[^'\n]*'|\"[^\"\n]*\"")
_BLOCK: Final = r"[ \t]*(?:(?:pure|elemental|recursive|impure)[ \t]+)*"
_SUBROUTINE: Final = re.compile(rf"^{_BLOCK}subroutine[ \t]+(\w+)[ \t]*\(([^()]*)\)", re.MULTILINE)
_FUNCTION: Final = re.compile(r"^[ \t]*(?:[\w*]+(?:\([^()\n]*\))?[ \t]+)*function[ \t]+(\w+)[ \t]*\(", re.MULTILINE)
_END: Final = re.compile(r"^[ \t]*end[ \t]*(?:subroutine\b.*)?$", re.MULTILINE)
_DECLARATION: Final = re.compile(
    r"^[ \t]*(integer|real|double[ \t]*precision|logical|character|complex|type)[ \t]*"
    r"(\*[ \t]*\d+|\((?:[^()]|\([^()]*\))*\))?([^:\n]*::)?[ \t]*(.+)$",
    re.MULTILINE,
)
_DIMENSION: Final = re.compile(r"\bdimension[ \t]*(\((?:[^()]|\([^()]*\))*\))")
_DOUBLE_KINDS: Final = r"8|real64|c_double|kind\((?:1|0)\.?0?d0?\)|selected_real_kind\((?:p=)?1[2-9].*\)"
_SINGLE_KINDS: Final = r"4|real32|c_float|kind\((?:1|0)\.?0?(?:e0)?\)|selected_real_kind\((?:p=)?6.*\)"
_LONG_KINDS: Final = r"8|int64|c_long|c_long_long|c_size_t|selected_int_kind\(1[0-8]\)"

_MOST_PARAMETERS: Final = 64


class _Detail(NamedTuple):
    """Type and shape of a parameter."""

    bytes: int
    """Of an element or number."""
    shaped: bool
    """Whether its extents come with the call: an assumed shape."""
    only_written: bool
    """Whether it holds nothing before the call: intent(out)."""


class Procedure(NamedTuple):
    """A subroutine that can be called."""

    function: Function
    details: tuple[_Detail, ...]
    module: str
    """Module that holds it; empty for none."""
    source: str
    """The suggestion without its main program."""


def read_procedure(code: str, names: re.Pattern[str]) -> Procedure:
    """The subroutine that a suggestion answers with: its only one, or the last one that is named so.

    Args:
        code: of the suggestion, in free form.
        names: in names of subroutines that compute the kernel.

    Raises:
        Underivable: there is none, or a parameter has no role.
    """
    source = _without_main(code)
    text = _logical_lines(source)
    subroutines = list(_SUBROUTINE.finditer(text))
    named = [match for match in subroutines if names.search(match[1])]
    if not subroutines:
        raise Underivable(
            "its functions return their results, and only results in arguments are compared"
            if _FUNCTION.search(text)
            else "it defines no subroutine with parameters"
        )
    if len(subroutines) > 1 and not named:
        raise Underivable(
            f"it has several subroutines, none with the kernel's name: {', '.join(m[1] for m in subroutines)}"
        )
    match = (named or subroutines)[-1]
    end = _END.search(text, match.end())
    body = text[match.end() : end.start() if end else len(text)]
    order = [name.strip() for name in match[2].split(",") if name.strip()]
    if len(order) > _MOST_PARAMETERS:
        raise Underivable(f"`{match[1]}` has more than {_MOST_PARAMETERS} parameters")
    parameters, details = [], []
    for name in order:
        parameter, detail = _parameter(name, body, text, match[1])
        parameters.append(parameter)
        details.append(detail)
    reals = {item.real for item in parameters if item.is_real_array}
    if len(reals) != 1:
        what = "mixes two types" if reals else "has no array of real numbers"
        raise Underivable(f"`{match[1]}` {what}")
    real = reals.pop()
    assert real is not None
    module = re.search(r"^[ \t]*module[ \t]+(?!procedure\b)(\w+)[ \t]*$", text[: match.start()], re.MULTILINE)
    shaped = any(item.shaped for item in details)
    if module is None and shaped:
        source = f"module {_MODULE}\ncontains\n{source}\nend module {_MODULE}\n"
    name = _MODULE if module is None and shaped else module[1] if module else ""
    return Procedure(Function(match[1], tuple(parameters), real, False, by_columns=True), tuple(details), name, source)


def fortran_forms(procedure: Procedure, forms: list[Form]) -> list[Form]:
    """The forms without those that add to an array of intent(out), where there are others."""
    written = [item.only_written for item in procedure.details]
    kept = [form for form in forms if not form.start or (True, "out") not in zip(written, form.values, strict=True)]
    return kept or forms


def fortran_entry(procedure: Procedure, form: Form) -> Candidate:
    """A candidate of lane ``c``, in Fortran, that calls a subroutine for a form."""
    real = f"real({_bytes(form.real)})"
    numbers = [name for name, _ in form.extents]
    result = "real(4)" if form.solver else real
    arrays = {name: "integer(4)" if kind == "int" else real for name, kind in form.inputs}
    lengths = form.lengths if not form.solver else {**form.lengths, **dict.fromkeys(("s", "t", "out"), ("n",))}
    lines = [
        f"subroutine {form.name}({', '.join([*numbers, *form.scalars, *arrays, 'out'])}) bind(c, name='{form.name}')",
        *([f"use {procedure.module}, only: {procedure.function.name}"] if procedure.module else []),
        "implicit none",
        *(f"integer(4), value :: {name}" for name in numbers),
        *(f"{real}, value :: {name}" for name in form.scalars),
        *(f"{kind} :: {name}({_extents(lengths[name])})" for name, kind in arrays.items()),
        f"{result} :: out({_extents(lengths['out'])})",
    ]
    if form.solver:
        lines += [
            f"{real} :: a(n, n), b(n), x(n), study_shift",
            "integer :: study_i, study_j",
            f"study_shift = 1 + sum(real(s, {_bytes(form.real)})**2)",
            "do study_j = 1, n",
            "do study_i = 1, n",
            f"a(study_i, study_j) = real(s(study_i), {_bytes(form.real)}) * s(study_j)",
            "end do",
            "a(study_j, study_j) = a(study_j, study_j) + study_shift",
            "end do",
            "b = t",
            "x = 0",
        ]
    if form.start:
        lines.append(f"out = {form.start}")
    arguments = [
        _actual(item, detail, value)
        for item, detail, value in zip(procedure.function.parameters, procedure.details, form.values, strict=True)
    ]
    lines.append(f"call {procedure.function.name}({', '.join(arguments)})")
    if form.solver:
        lines.append("out = real(x, 4)")
    lines.append(f"end subroutine {form.name}")
    return c_candidate(f"{procedure.source}\n" + "\n".join(lines) + "\n")


def _actual(item: Parameter, detail: _Detail, value: str) -> str:
    if item.kind == "index":
        return f"int({value} + 1, {detail.bytes})"
    if item.kind == "int":
        return f"int({value}, {detail.bytes})"
    if item.kind == "real":
        return f"real({value.replace('e', 'd') if value[0].isdigit() else value}, {detail.bytes})"
    return value


def _extents(lengths: tuple[str, ...]) -> str:
    """Of an array by rows, in Fortran's order: the first varies fastest."""
    return ", ".join(reversed(lengths))


def _bytes(real: Real) -> Literal[4, 8]:
    return 8 if real == "double" else 4


# ---- reading --------------------------------------------------------------------------------------------------------


def _logical_lines(source: str) -> str:
    """A text in small letters, without comments, each statement on one line."""
    lines: list[str] = []
    joined = False
    for line in source.lower().split("\n"):
        hidden = _LITERAL.sub(lambda match: " " * len(match[0]), line)
        plain = line[: hidden.index("!")] if "!" in hidden else line
        if not plain.strip():
            continue
        plain = plain.strip()
        goes_on = plain.endswith("&")
        plain = plain.strip("&")
        if joined:
            lines[-1] += plain
        else:
            lines.append(plain)
        joined = goes_on
    return "\n".join(lines)


def _without_main(code: str) -> str:
    """A suggestion without its main program; procedures within that become the only text, with what they use of it."""
    start = re.search(r"^[ \t]*program[ \t]+(\w+)[ \t]*(?:!.*)?$", code, re.MULTILINE | re.IGNORECASE)
    if start is None:
        return code
    end = re.compile(r"^[ \t]*end[ \t]*program\b.*$", re.MULTILINE | re.IGNORECASE).search(code, start.end())
    if end is None:
        raise Underivable("its main program has no end")
    inner = re.compile(r"^[ \t]*contains[ \t]*$", re.MULTILINE | re.IGNORECASE).search(code, start.end(), end.start())
    before, after = code[: start.start()], code[end.end() :]
    if inner is None:
        return before + after
    head = [
        line
        for line in code[start.end() : inner.start()].split("\n")
        if re.match(r"[ \t]*(?:use\b|implicit\b|[^!]*\bparameter\b)", line, re.IGNORECASE)
    ]
    body = "\n".join([f"module {_MODULE}", *head, "contains", code[inner.end() : end.start()], f"end module {_MODULE}"])
    return f"{before}{body}\n{after}"


def _parameter(name: str, body: str, text: str, procedure: str) -> tuple[Parameter, _Detail]:
    for match in _DECLARATION.finditer(body):
        item = re.search(rf"(?<![\w%]){re.escape(name)}\b[ \t]*(\((?:[^()]|\([^()]*\))*\))?", match[4])
        if item is None:
            continue
        attributes = match[3] or ""
        shape = item[1] or (dimension[1] if (dimension := _DIMENSION.search(attributes)) else "")
        bounds = [part.strip() for part in shape.strip("()").split(",")] if shape else []
        if any(":" in bound and bound not in (":", "1:") and not bound.startswith("1:") for bound in bounds):
            raise Underivable(f"the array `{name}` of `{procedure}` has lower bounds of its own")
        if re.search(r"\b(?:pointer|allocatable|optional)\b", attributes):
            raise Underivable(f"the parameter `{name}` of `{procedure}` is optional, or allocated by its caller")
        kind, size = _type(match[1], match[2] or "", text)
        if kind is None:
            break
        const = re.search(r"\bintent[ \t]*\([ \t]*in[ \t]*\)", attributes) is not None
        only_written = re.search(r"\bintent[ \t]*\([ \t]*out[ \t]*\)", attributes) is not None
        detail = _Detail(size, any(":" in bound for bound in bounds), only_written)
        if kind == "int":
            return Parameter(name, "index" if bounds else "int", None, const), detail
        of: Kind = "shaped" if detail.shaped else "columns" if len(bounds) > 1 else "array" if bounds else "real"
        return Parameter(name, of, "double" if size == 8 else "float", const), detail
    raise Underivable(f"the parameter `{name}` of `{procedure}` has no known role")


def _type(word: str, kind: str, text: str) -> tuple[Literal["int", "real"] | None, int]:
    """Whether a type is an integer or a real number, and its bytes; None for any other."""
    named = re.sub(r"[ \t]|[*()]|kind=", "", kind) if "kind(" not in kind else kind.strip()[1:-1].replace("kind=", "")
    constant = (
        re.search(rf"\b{re.escape(named)}[ \t]*=[ \t]*((?:\([^()\n]*\)|[^\n,()])+)", text)
        if named.isidentifier()
        else None
    )
    value = re.sub(r"\s", "", constant[1] if constant else named)
    if word == "integer":
        return "int", 8 if re.fullmatch(_LONG_KINDS, value) else 4
    if word.startswith("double"):
        return "real", 8
    if word == "real" and (not value or re.fullmatch(_SINGLE_KINDS, value)):
        return "real", 4
    if word == "real" and re.fullmatch(_DOUBLE_KINDS, value):
        return "real", 8
    renamed = re.search(rf"\b{re.escape(named)}[ \t]*=>[ \t]*(\w+)", text) if named.isidentifier() else None
    if word == "real" and renamed:
        return "real", 8 if renamed[1] in ("real64", "c_double") else 4
    return None, 0
