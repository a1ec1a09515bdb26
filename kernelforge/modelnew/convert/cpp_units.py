"""Split CUDA source at its top level into device code, host functions and constants."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from kernelforge.modelnew.convert.cpp_tokens import (
    Problem,
    Token,
    Unconvertible,
    matching,
    outermost,
    split_commas,
    text_of,
    tokenize,
)

_DROPPED_INCLUDES = ("torch/", "ATen/", "c10/", "pybind11/", "THC/")
_DROPPED_HEADERS = frozenset({
    "algorithm", "cublasLt.h", "cublas_v2.h", "cuda.h", "cuda_runtime.h", "cuda_runtime_api.h", "cudnn.h", "curand.h",
    "iostream", "memory", "sstream", "stdexcept", "string", "tuple",
    "utility", "vector",
})  # fmt: skip
_HOST_WORDS = frozenset({"torch", "at", "c10", "pybind11", "py"})
_CHECKS = ("TORCH_CHECK", "AT_ASSERT", "cudaError", "cudaSuccess", "TORCH_INTERNAL_ASSERT")


@dataclass(frozen=True)
class Parameter:
    """One parameter of a function: the tokens of its type, and its name."""

    type: tuple[str, ...]
    name: str

    @property
    def is_pointer(self) -> bool:
        return "*" in self.type or "[" in self.type


@dataclass(frozen=True)
class Kernel:
    """A ``__global__`` function."""

    name: str
    """With its namespaces, as in ``mine::scale``."""
    parameters: tuple[Parameter, ...]
    template: tuple[str, ...]
    """Names of its template parameters."""
    line: int


@dataclass(frozen=True)
class HostFunction:
    """A function of the host; ``body`` are the tokens between its braces."""

    name: str
    returns: tuple[str, ...]
    parameters: tuple[Parameter, ...]
    body: tuple[Token, ...]
    line: int


@dataclass
class Unit:
    """Contents of one or several sources."""

    device: list[str] = field(default_factory=list)
    """Text that is kept as it is, in order."""
    kernels: dict[str, Kernel] = field(default_factory=dict)
    """By each name that a launch may have: with and without namespaces."""
    namespaces: tuple[str, ...] = ()
    """Named namespaces around what is being read."""
    hosts: dict[str, HostFunction] = field(default_factory=dict)
    constants: dict[str, tuple[Token, ...]] = field(default_factory=dict)
    """Object-like macros and constants: the tokens of their values."""
    macros: dict[str, tuple[tuple[str, ...], tuple[Token, ...]]] = field(default_factory=dict)
    """Function-like macros: parameters and body."""
    checks: set[str] = field(default_factory=set)
    """Macros that only check and raise."""
    problems: list[Problem] = field(default_factory=list)

    def device_code(self) -> str:
        """The device code, with the standard header that came with those of torch where it needs one."""
        text = "\n".join(self.device) + "\n"
        included = any(line.startswith("#") and "<limits>" in line for line in self.device)
        return text if included or "std::numeric_limits" not in text else f"#include <limits>\n{text}"


def read_unit(source: str, first_line: int, unit: Unit) -> None:
    """Add the top level of one source to ``unit``; what cannot be read is among its problems."""
    try:
        _read(source, tokenize(source, first_line)[:-1], unit)
    except Unconvertible as error:
        unit.problems.append(error.problem)


def _read(source: str, tokens: Sequence[Token], unit: Unit) -> None:
    at = 0
    while at < len(tokens):
        token = tokens[at]
        if token.kind == "directive":
            _directive(token, unit)
            at += 1
        elif token.text == ";":
            at += 1
        elif token.text == "namespace" and tokens[at + 1].text == "{":
            end = matching(tokens, at + 1)
            _read(source, tokens[at + 2 : end], unit)
            at = end + 1
        elif token.text == "namespace" and (opened := _named_namespace(tokens, at)):
            end = matching(tokens, opened)
            _in_namespace(source, tokens[at + 1 : opened], tokens[opened + 1 : end], unit)
            at = end + 1
        elif token.text == "extern" and tokens[at + 1].text == '"C"' and tokens[at + 2].text == "{":
            raise Unconvertible(
                token.line, 'extern "C" {', "a linkage block cannot be split; mark each function instead"
            )
        else:
            end = item_end(tokens, at)
            try:
                _item(source, tokens[at:end], unit)
            except Unconvertible as error:
                unit.problems.append(error.problem)
            at = end


def _named_namespace(tokens: Sequence[Token], at: int) -> int:
    """Position of the brace that opens ``namespace a::b {``; 0 for an alias of a namespace."""
    opened = next((each for each in range(at, len(tokens)) if tokens[each].text in ("{", "=", ";")), 0)
    return opened if opened and tokens[opened].text == "{" else 0


def _in_namespace(source: str, name: Sequence[Token], tokens: Sequence[Token], unit: Unit) -> None:
    """Add what a named namespace has; its device code stays in it."""
    outer, before = unit.namespaces, len(unit.device)
    unit.namespaces = (*outer, *(token.text for token in name if token.text != "::"))
    unit.device.append(f"namespace {text_of(name)} {{")
    _read(source, tokens, unit)
    if len(unit.device) > before + 1:
        unit.device.append(f"}}  // namespace {text_of(name)}")
    else:
        unit.device.pop()
    unit.namespaces = outer


def item_end(tokens: Sequence[Token], at: int) -> int:
    """One past the item that begins at ``at``: a function or a block ends with its body, all else with a semicolon."""
    called = False
    for position in outermost(tokens, at):
        text = tokens[position].text
        if text == ";":
            return position + 1
        if text == "{" and (called or tokens[at].text in ("namespace", "extern")):
            return matching(tokens, position) + 1
        called = called or text == "("
    raise Unconvertible(tokens[at].line, text_of(tokens[at : at + 8]), "this declaration has no end")


def _item(source: str, tokens: Sequence[Token], unit: Unit) -> None:
    words = {token.text for token in tokens}
    first = tokens[0].text
    text = source[tokens[0].start : tokens[-1].end]
    if "__global__" in words:
        if tokens[-1].text == "}":
            kernel = _kernel(tokens)
            names = [*unit.namespaces, kernel.name]
            kernel = replace(kernel, name="::".join(names))
            unit.kernels |= {"::".join(names[at:]): kernel for at in range(len(names))}
        unit.device.append(text)
    elif first in ("PYBIND11_MODULE", "TORCH_LIBRARY", "TORCH_LIBRARY_IMPL"):
        return
    elif "__device__" in words or "__constant__" in words:
        unit.device.append(text)
    elif first in ("using", "namespace", "typedef"):
        if not words & _HOST_WORDS and "std" not in words:
            unit.device.append(text)
    elif first in ("struct", "class", "enum", "union"):
        if words & _HOST_WORDS:
            raise Unconvertible(tokens[0].line, text_of(tokens[:6]), "a type of the host")
        unit.device.append(text)
    else:
        _host_item(text, tokens, unit)


def _host_item(text: str, tokens: Sequence[Token], unit: Unit) -> None:
    marks = [token.text for token in tokens]
    called = marks.index("(") if "(" in marks else len(marks)
    equals = marks.index("=") if "=" in marks else len(marks)
    if equals < called:
        unit.constants[tokens[equals - 1].text] = tuple(tokens[equals + 1 : -1])
        unit.device.append(text)
        return
    if called == len(marks):
        raise Unconvertible(tokens[0].line, text_of(tokens[:10]), "a declaration that is neither function nor constant")
    if tokens[-1].text == ";":
        return  # a prototype
    if marks[0] == "template":
        raise Unconvertible(tokens[0].line, text_of(tokens[:10]), "templates of host functions are not read")
    close = matching(tokens, called)
    body = next(at for at in range(close, len(tokens)) if marks[at] == "{")
    returns = tuple(mark for mark in marks[: called - 1] if mark not in ("static", "inline", "constexpr", "extern"))
    name = tokens[called - 1].text
    parameters = tuple(_parameter(part) for part in split_commas(tokens[called + 1 : close]))
    unit.hosts[name] = HostFunction(name, returns, parameters, tuple(tokens[body + 1 : -1]), tokens[0].line)


def _kernel(tokens: Sequence[Token]) -> Kernel:
    template: tuple[str, ...] = ()
    at = 0
    if tokens[0].text == "template":
        end = next(at for at, token in enumerate(tokens) if token.text == ">")
        template = tuple(part[-1].text if "=" not in [t.text for t in part] else _before_equals(part)
                         for part in split_commas(tokens[2:end]))  # fmt: skip
        at = end + 1
    # `__launch_bounds__(256)` and its like stand before the name.
    while tokens[at].text != "(" or (tokens[at - 1].text.startswith("__") and tokens[at - 1].text.endswith("__")):
        at = matching(tokens, at) + 1 if tokens[at].text == "(" else at + 1
    close = matching(tokens, at)
    parameters = tuple(_parameter(part) for part in split_commas(tokens[at + 1 : close]))
    return Kernel(tokens[at - 1].text, parameters, template, tokens[0].line)


def _before_equals(part: Sequence[Token]) -> str:
    marks = [token.text for token in part]
    return marks[marks.index("=") - 1]


def _parameter(tokens: Sequence[Token]) -> Parameter:
    marks = [token.text for token in tokens]
    if "=" in marks:
        marks = marks[: marks.index("=")]
    if marks[-1:] == ["]"]:
        at = marks.index("[")
        return Parameter((*marks[: at - 1], "["), marks[at - 1])
    if len(marks) < 2:
        raise Unconvertible(tokens[0].line, text_of(tokens), "a parameter without a name")
    return Parameter(tuple(marks[:-1]), marks[-1])


def _directive(token: Token, unit: Unit) -> None:
    words = token.text[1:].strip().split(None, 1)
    kind, rest = [*words, "", ""][:2]
    if kind == "include":
        name = rest.strip().strip('<>"')
        if not name.startswith(_DROPPED_INCLUDES) and name not in _DROPPED_HEADERS:
            unit.device.append(token.text)
        return
    if kind == "define":
        _define(token, rest.replace("\\\n", " "), unit)
    elif not any(check in token.text for check in _CHECKS):
        unit.device.append(token.text)


def _define(token: Token, rest: str, unit: Unit) -> None:
    tokens = tokenize(rest, token.line)[:-1]
    if not tokens:
        return
    name = tokens[0].text
    if any(check in rest for check in _CHECKS):
        unit.checks.add(name)
        return
    if len(tokens) > 1 and tokens[1].text == "(" and tokens[1].start == tokens[0].end:
        close = matching(tokens, 1)
        parameters = tuple(part[0].text for part in split_commas(tokens[2:close]))
        unit.macros[name] = (parameters, tuple(tokens[close + 1 :]))
        if any(check in unit.checks for check in (t.text for t in tokens[close + 1 :])):
            unit.checks.add(name)
            return
    elif len(tokens) > 1:
        unit.constants[name] = tuple(tokens[1:])
    unit.device.append(token.text)
