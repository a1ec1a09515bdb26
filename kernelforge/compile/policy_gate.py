"""The policy gate: reads the cubin and the PTX of one compilation, never the source alone.

Rules, each with a message for the Coder:

- Every kernel the plan launches is an entry point of both the PTX and the cubin. A further entry point is allowed only
  where the source plainly declares it (``__global__ ... name(``): a plan may launch it at another size. One that the
  source does not declare came out of inline PTX, and is refused.
- Nothing external but dynamic shared memory and the driver's own ``.nv.reservedSmem.*``; ``vprintf`` and
  ``__assertfail`` outside scored runs.
- No clock is read (``%clock``, ``%clock64``, ``%clock_hi``, ``%globaltimer``...): a kernel that can tell time can tell
  a benchmark from a check. Waits of libcu++ read none: in the supplied ``cuda/std/__cuda/chrono.h`` the clock
  stands still. Nor where the kernel runs (``%smid``, ``%nsmid``, ``%warpid``, ``%gridid``...):
  one that can tell a GPU from the emulated device can be right on one of them alone.
- No texture and no surface is used: CUDA's host functions make them, of memory and a description, and a launch plan has
  no words for one. A number that a kernel takes for such an object names none.
- Inline PTX holds instructions, not entry points, functions or module variables; and no text that ptxas could read
  otherwise than this gate and the emulated device do (:mod:`kernelforge.compile.ptx_text`).

Module globals are allowed (CUDA's own libraries emit them) and reported, because a device maps them read-only.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from kernelforge.compile.cubin import CubinFacts, read_cubin
from kernelforge.compile.ptx_text import OBJECT_INSTRUCTIONS, without_comments
from kernelforge.records import Diagnostic

_TOKEN = re.compile(
    r"""
      (?P<begin>//[ ]begin[ ]inline[ ]asm[^\n]*) | (?P<end>//[ ]end[ ]inline[ ]asm[^\n]*)
    | (?P<comment>//[^\n]*|/\*.*?\*/) | (?P<string>"[^"]*")
    | (?P<word>[%.]?[A-Za-z_$%][\w$]*(?:\.[A-Za-z_][\w$]*)*) | (?P<punctuation>[{}();,=\[\]])
    """,
    re.X | re.S,
)
_WORD = re.compile(r"%\w+")
_CLOCKS = re.compile(r"%(clock(64|_hi)?|globaltimer(_lo|_hi)?|pm\d+(_64)?)(\..*)?")
_PLACES = re.compile(r"%(n?smid|n?warpid|gridid|(total|aggr)_smem_size|reserved_smem_\w+)(\..*)?")
"""Special registers that differ between launches or devices, where the emulated one has constants."""
_MODIFIER = re.compile(r"(?:\s|//[^\n]*\n|/\*.*?\*/)*\.", re.S)
"""Beginning of an instruction's modifiers, which need not follow at once."""
_DIRECTIVES = frozenset({".entry", ".func", ".global", ".const", ".extern", ".visible", ".weak"})
_DEBUG_EXTERNS = frozenset({"vprintf", "__assertfail"})


@dataclass(frozen=True)
class GateResult:
    """``refused`` is None for a build that passes; ``notes`` report what a Coder should know."""

    refused: str | None
    notes: tuple[Diagnostic, ...] = ()


@dataclass(frozen=True)
class _Module:
    """Declarations in PTX text."""

    entries: tuple[str, ...]
    externs: tuple[str, ...]
    module_globals: tuple[str, ...]
    registers: tuple[str, ...]
    """Special registers that no kernel may read, in alphabetical order."""
    smuggled: tuple[str, ...]
    """Module-level directives inside inline assembly."""
    objects: tuple[str, ...]
    """Instructions on textures and surfaces, in alphabetical order."""
    ambiguity: str
    """What ptxas could read otherwise than the emulated device does; empty where there is nothing."""


def check(
    ptx: bytes, cubin: bytes, source: str, launched: Sequence[tuple[str, str]], *, scored: bool = True
) -> GateResult:
    """Judge one good compilation. ``launched`` pairs the plan's expression with its lowered name."""
    try:
        module = _read_ptx(ptx.decode("ascii"))
        facts = read_cubin(cubin)
    except (UnicodeDecodeError, ValueError) as error:
        return GateResult(f"the compiler's output cannot be read: {error}")
    problems = list(_problems(module, facts, source, launched, scored))
    if module.ambiguity:
        problems.append(f"{module.ambiguity}; remove it from the inline assembly")
    notes = [
        Diagnostic(
            file="candidate.cu",
            severity="remark",
            message=f"module variable {name}: a kernel must not write it (devices keep it read-only)",
        )
        for name in _own_variables(module, source)
    ]
    return GateResult("; ".join(problems) or None, tuple(notes[:8]))


def _problems(
    module: _Module,
    cubin: CubinFacts,
    source: str,
    launched: Sequence[tuple[str, str]],
    scored: bool,
) -> Iterator[str]:
    entries, defined = frozenset(module.entries), cubin.entries
    for expression, symbol in launched:
        if symbol not in entries or symbol not in defined:
            yield f"the plan launches {expression}, which is not a kernel (__global__ function) of the build"
    if module.smuggled:
        yield f"inline PTX declares {', '.join(sorted(set(module.smuggled)))}: it may hold instructions only"
    declared = declared_kernels(source)
    for symbol in sorted(entries.symmetric_difference(defined)):
        yield f"entry point {symbol} is not in both the PTX and the cubin"
    for symbol in sorted(entries - {symbol for _, symbol in launched}):
        if not any(symbol == name or f"{len(name)}{name}" in symbol for name in declared):
            yield f"entry point {symbol} is neither launched by the plan nor declared as a __global__ function"
    allowed = frozenset() if scored else _DEBUG_EXTERNS
    for name in sorted((set(module.externs) | cubin.undefined) - allowed):
        if name in _DEBUG_EXTERNS:
            yield f"{'printf' if name == 'vprintf' else 'assert'} is not allowed in a scored kernel: remove it"
        else:
            yield f"external symbol {name} is not allowed (device malloc, launches and linked code are not available)"
    clocks = [name for name in module.registers if _CLOCKS.fullmatch(name)]
    if clocks:
        yield f"a kernel must not read the time: {', '.join(clocks)}"
    places = [name for name in module.registers if _PLACES.fullmatch(name)]
    if places:
        names = ", ".join(places)
        yield f"a kernel must not ask where it runs: {names}; use threadIdx, blockIdx and the plan's arguments"
    if module.objects:
        names = ", ".join(module.objects)
        yield f"a kernel must not use textures or surfaces ({names}), for no plan can make one; read the tensor itself"


@lru_cache(maxsize=16)
def _read_ptx(text: str) -> _Module:
    """Declarations in PTX text; kept, for each size of a task judges the build that all of them share.

    Raises:
        ValueError: its braces are not in pairs.
    """
    entries: list[str] = []
    externs: list[str] = []
    variables: list[str] = []
    registers: set[str] = set()
    objects: set[str] = set()
    smuggled: list[str] = []
    depth, inline = 0, False
    statement: list[str] = []
    for match in _TOKEN.finditer(text):
        kind, token = match.lastgroup, match[0]
        if kind == "begin":
            inline = True
        elif kind == "end":
            inline = False
        elif kind == "string":
            # Only ptxas knows for certain where a string ends: apparent strings are searched as well.
            registers |= set(filter(_is_refused, _WORD.findall(token)))
        elif kind == "word":
            if _is_refused(token):
                registers.add(token)
            opcode = token.partition(".")[0]
            # Other names have no dot in PTX.
            if opcode in OBJECT_INSTRUCTIONS and ("." in token or _MODIFIER.match(text, match.end())):
                objects.add(opcode)
            # The markers are comments, which inline PTX can forge; NVRTC itself never uses these directives in a body.
            if (inline or depth > 0) and token in _DIRECTIVES:
                smuggled.append(token)
            if depth == 0:
                statement.append(token)
        elif kind == "punctuation":
            if token == "{":
                if depth == 0:
                    _declare(statement, entries, externs, variables)
                    statement = []
                depth += 1
            elif token == "}":
                depth -= 1
                if depth == 0:
                    statement = []
            elif depth == 0 and token == ";":
                _declare(statement, entries, externs, variables)
                statement = []
            elif depth == 0:
                statement.append(token)
    if depth != 0:
        raise ValueError("unbalanced braces in the PTX")
    unique = tuple(dict.fromkeys(entries))
    return _Module(
        entries=unique,
        externs=tuple(externs),
        module_globals=tuple(variables),
        registers=tuple(sorted(registers)),
        smuggled=tuple(smuggled),
        objects=tuple(sorted(objects)),
        ambiguity=_ambiguity(text),
    )


def _ambiguity(text: str) -> str:
    try:
        without_comments(text)
    except ValueError as error:
        return str(error)
    return ""


def _is_refused(register: str) -> bool:
    return bool(_CLOCKS.fullmatch(register) or _PLACES.fullmatch(register))


def _declare(statement: Sequence[str], entries: list[str], externs: list[str], variables: list[str]) -> None:
    """Add one module-level statement to the entries, the external symbols or the module variables."""
    words = set(statement)
    if ".entry" in words:
        entries.append(_name_after(statement, ".entry"))
    elif ".extern" in words and ".shared" not in words:
        externs.append(_name_after(statement, ".func") if ".func" in words else _variable(statement))
    elif ".global" in words and ".extern" not in words:
        name = _variable(statement)
        # A constexpr of the source becomes a variable with an initial value.
        if "=" not in statement:
            variables.append(name)


def _name_after(statement: Sequence[str], directive: str) -> str:
    """The function's name: after the directive and, for a function, its parenthesised return value."""
    depth = 0
    for token in statement[list(statement).index(directive) + 1 :]:
        if token == "(":
            depth += 1
        elif token == ")":
            depth -= 1
        elif depth == 0 and not token.startswith("."):
            return token
    return "?"


def _variable(statement: Sequence[str]) -> str:
    names = []
    for token in statement:
        if token in ("=", "["):
            break
        if not token.startswith(".") and token not in ("(", ")", ","):
            names.append(token)
    return names[-1] if names else "?"


_SOURCE_TOKEN = re.compile(
    r'//[^\n]*|/\*.*?\*/|R"([^()\\\s]{0,16})\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'|[A-Za-z_]\w*|[^\s\w]',
    re.S,
)


_LENGTH = re.compile(r"\d{1,3}")


def _tokens(source: str) -> list[str]:
    """Identifiers and punctuation of C++ text, without comments and literals."""
    return [
        match[0] for match in _SOURCE_TOKEN.finditer(source) if not match[0].startswith(("//", "/*", '"', "'", 'R"'))
    ]


def declared_kernels(source: str) -> frozenset[str]:
    """Names that the source plainly declares as ``__global__`` functions: the identifier before the parameters."""
    tokens = _tokens(source)
    names: set[str] = set()
    for start, token in enumerate(tokens):
        if token == "__global__":
            names.update(_declarator(tokens[start + 1 : start + 80]))
    return frozenset(names)


def _own_variables(module: _Module, source: str) -> list[str]:
    """Module variables that the source declares itself, rather than a library that it includes or the plan."""
    declared = _declared_variables(source)
    own: list[str] = []
    for symbol in module.module_globals:
        name, rest = symbol, symbol if symbol.startswith("_Z") else ""
        while match := _LENGTH.search(rest):
            end = match.end() + int(match[0])
            name, rest = rest[match.end() : end], rest[end:]
        if name in declared:
            own.append(name)
    return own


def _declared_variables(source: str) -> frozenset[str]:
    """Names before ``;``, ``=``, ``[``, ``{`` or ``,`` of declarations with ``__device__`` or ``static`` that are no
    functions and no constants."""
    tokens = _tokens(source)
    names: set[str] = set()
    for start, token in enumerate(tokens):
        if token in ("__device__", "__managed__", "static"):
            names.update(_declared_after(tokens[start + 1 : start + 80]))
    return frozenset(names)


def _declared_after(tokens: Sequence[str]) -> Iterator[str]:
    skip = 0
    for position, token in enumerate(tokens):
        if skip:
            skip += (token == "(") - (token == ")")
        elif token == "(" and position and tokens[position - 1].startswith("__"):
            skip = 1  # __align__(16)
        elif token in ("(", "const", "constexpr"):
            return
        elif token in (";", "=", "[", "{", ",") and position:
            yield tokens[position - 1]
            if token in (";", "{"):
                return


def _declarator(tokens: Sequence[str]) -> Iterator[str]:
    """The name of the function declared next, skipping ``__launch_bounds__(...)`` and its like."""
    skip = 0
    for position, token in enumerate(tokens):
        if skip:
            skip += (token == "(") - (token == ")")
            continue
        if token == "(" and position:
            before = tokens[position - 1]
            if before.startswith("__") and before.endswith("__"):
                skip = 1
                continue
            yield before
            return
        if token in ("{", ";"):
            return
