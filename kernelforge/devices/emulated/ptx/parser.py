"""Parse PTX text into modules, functions and instructions.

The parser covers the text that NVRTC emits and what inline assembly may add to it. Scoped names (registers, call
parameters and labels declared inside ``{ }``) become unique here, so later stages see flat functions.
"""

from __future__ import annotations

import bisect
import re
import struct
from dataclasses import dataclass, field

from kernelforge.compile.ptx_text import without_comments
from kernelforge.devices.emulated.ptx.constants import NotConstant, constant_float, constant_integer
from kernelforge.utils.commas import comma_parts

TYPE_BYTES: dict[str, int] = {
    "pred": 1, "b8": 1, "u8": 1, "s8": 1, "e4m3": 1, "e5m2": 1, "e2m1x2": 1,
    "b16": 2, "u16": 2, "s16": 2, "f16": 2, "bf16": 2, "e4m3x2": 2, "e5m2x2": 2,
    "e2m3x2": 2, "e3m2x2": 2, "ue8m0x2": 2,
    "b32": 4, "u32": 4, "s32": 4, "f32": 4, "f16x2": 4, "bf16x2": 4, "tf32": 4,
    "b64": 8, "u64": 8, "s64": 8, "f64": 8, "f32x2": 8, "b128": 16,
}  # fmt: skip
"""Size in bytes of every PTX fundamental and packed type."""

TYPE_BITS: dict[str, int] = {name: 1 if name == "pred" else 8 * size for name, size in TYPE_BYTES.items()}


class PtxSyntaxError(ValueError):
    """The text is not PTX that this parser understands; the message names the line."""


@dataclass(frozen=True, slots=True)
class Reg:
    """A virtual register, by its unique name."""

    name: str


@dataclass(frozen=True, slots=True)
class NotReg:
    """A negated predicate operand, ``!%p1``."""

    name: str


@dataclass(frozen=True, slots=True)
class Special:
    """A special register such as ``%tid.x``."""

    name: str


@dataclass(frozen=True, slots=True)
class Imm:
    """An immediate. ``value`` is the integer, or the IEEE bit pattern when ``kind`` is ``f32`` or ``f64``."""

    value: int
    kind: str = "int"


@dataclass(frozen=True, slots=True)
class Sym:
    """The address of a named variable, function or label, plus a byte offset."""

    name: str
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Addr:
    """A memory operand ``[base + offset]``, or ``[tensor map, {coordinates}]``."""

    base: Reg | Sym | Imm
    offset: int = 0
    coordinates: tuple[Operand, ...] = ()


@dataclass(frozen=True, slots=True)
class Vec:
    """A brace list ``{a, b}`` or a parenthesised argument list."""

    items: tuple[Operand, ...]


@dataclass(frozen=True, slots=True)
class Pair:
    """Two destinations, ``%r1|%p1``."""

    first: Operand
    second: Operand


@dataclass(frozen=True, slots=True)
class Sink:
    """The bit bucket ``_``."""


Operand = Reg | NotReg | Special | Imm | Sym | Addr | Vec | Pair | Sink


@dataclass(frozen=True, slots=True)
class Location:
    """A location in the CUDA source, from ``.loc``; line 0 when the PTX carries no line information."""

    file: str = ""
    line: int = 0


@dataclass(slots=True)
class Instruction:
    """One PTX instruction. ``opcode`` is the part before the first dot, ``modifiers`` the rest."""

    opcode: str
    modifiers: tuple[str, ...]
    operands: tuple[Operand, ...]
    predicate: Reg | None = None
    negated: bool = False
    ptx_line: int = 0
    location: Location = Location()
    text: str = ""
    selectors: tuple[str, ...] = ()
    """Of the operands of a scalar video instruction: the part of each, ``b0`` to ``h1``, and a ``-`` before it."""

    @property
    def type(self) -> str:
        """The last modifier, which is the operation's type for most instructions."""
        return self.modifiers[-1] if self.modifiers else ""

    @property
    def name(self) -> str:
        """The full dotted name, for example ``ld.global.nc.v4.f32``."""
        return ".".join((self.opcode, *self.modifiers))


@dataclass(slots=True)
class Label:
    """A branch target inside a function body."""

    name: str


@dataclass(slots=True)
class Variable:
    """A declared variable; ``count`` is the number of elements, 0 for an unsized extern array."""

    space: str
    type: str
    name: str
    align: int
    size: int
    initialiser: str | None = None
    extern: bool = False


@dataclass(slots=True)
class Function:
    """An ``.entry`` or ``.func`` with its flat body. ``defined`` is False for a bare declaration."""

    name: str
    is_entry: bool
    params: list[Variable]
    returns: list[Variable]
    defined: bool = True
    registers: dict[str, str] = field(default_factory=dict)
    variables: list[Variable] = field(default_factory=list)
    body: list[Instruction | Label] = field(default_factory=list)
    branch_targets: dict[str, list[str]] = field(default_factory=dict)
    directives: dict[str, tuple[int, ...]] = field(default_factory=dict)


@dataclass(slots=True)
class Module:
    """A parsed PTX module."""

    version: str = ""
    target: str = ""
    variables: dict[str, Variable] = field(default_factory=dict)
    functions: dict[str, Function] = field(default_factory=dict)
    files: dict[int, str] = field(default_factory=dict)


MAX_REGISTERS = 1 << 20
"""Most registers that one declaration may name; each takes memory here."""

_IDENTIFIER = r"[A-Za-z_$%][\w$]*"
_SPACE = re.compile(r"\s*")
_NEWLINE = re.compile(r"\n")
# ptxas ignores line ends: the next statement may follow a directive on its line.
_HEADER = re.compile(r"\.(version|target|address_size)\s+([\w.]+(?:\s*,\s*\w+)*)(?![\w.])")
_FILE = re.compile(r'\.file\s+(\d+)\s+"([^"]*)"(?:\s*,\s*\d+\s*,\s*\d+)?(?!\w)')
_FUNCTION = re.compile(r"(?:\.(?:visible|extern|weak)\s+)*\.(entry|func)\b")
_LOC = re.compile(
    r"\.loc\s+(\d+)\s+(\d+)\s+(\d+)(?!\w)"
    r"((?:\s*,\s*function_name\s+[\w$]+(?:\s*\+\s*\d+)?\s*,\s*inlined_at\s+\d+\s+\d+\s+\d+(?!\w))?)"
)
_INLINED = re.compile(r"inlined_at\s+(\d+)\s+(\d+)\s+(\d+)")
_LABEL = re.compile(rf"({_IDENTIFIER})\s*:(?!:)")
_REG_RANGE = re.compile(r"([%\w$]+)<(\d+)>$")
_OPCODE = re.compile(r"([a-z_][\w:]*(?:\s*\.[\w:]+)*)\s*(.*)$", re.S)
_PREDICATE = re.compile(r"@\s*(!?)\s*([%\w$]+)\s+")
_DIRECTIVE = re.compile(r"\.([a-z]\w*)(?:\s+([\d, ]*\d))?")
_LINKAGE = re.compile(r"\.(extern|visible|weak|common)\s+")
_VARIABLE = re.compile(
    r"\.(?P<space>shared|global|const|local|param)\s+(?:\.attribute\([^)]*\)\s*)?(?:\.align\s+(?P<align1>\d+)\s+)?"
    r"\.(?P<type>\w+)\s+(?:\.ptr\s*(?:\.\w+\s+)?(?:\.align\s+\d+\s+)?)?"
    r"(?P<name>[\w$%]+)\s*(?P<dims>(?:\[\s*\d*\s*\])*)\s*(?:=\s*(?P<init>.*))?$",
    re.S,
)
_INTEGER = re.compile(r"[+-]?(0[xX][0-9a-fA-F]+|0[bB][01]+|\d+)U?$")
_SYMBOL = re.compile(rf"({_IDENTIFIER}(?:\.[xyzw])?)\s*([+-].*)?$", re.S)
_VIDEO = {"vadd", "vsub", "vabsdiff", "vmin", "vmax", "vset", "vshl", "vshr", "vmad"}
_SELECTED = re.compile(r"(-?)\s*([%A-Za-z_$][\w$%]*)(?:\.(b[0-3]|h[01]))?$")
_FLOAT_BITS = re.compile(r"0([fFdD])([0-9a-fA-F]+)$")


def split_list(text: str) -> list[str]:
    """The parts of a list; one that is empty, or ends with a comma, has none there."""
    *parts, last = comma_parts(text)
    return [*parts, last] if last else parts


def parse_variable(text: str) -> Variable:
    """Parse one variable declaration without its semicolon."""
    rest = text.strip()
    extern = False
    while (match := _LINKAGE.match(rest)) is not None:
        extern |= match[1] == "extern"
        rest = rest[match.end() :]
    match = _VARIABLE.match(rest)
    if match is None or match["type"] not in TYPE_BYTES:
        raise PtxSyntaxError(f"cannot parse the declaration {text.strip()[:120]!r}")
    element = TYPE_BYTES[match["type"]]
    count = 1
    for extent in re.findall(r"\[\s*(\d*)\s*\]", match["dims"]):
        count *= int(extent) if extent else 0
    if not count and match["init"]:
        count = len(split_list(match["init"].replace("{", " ").replace("}", " ")))
    return Variable(
        match["space"], match["type"], match["name"], int(match["align1"] or element), count * element,
        match["init"], extern,
    )  # fmt: skip


def parse_variables(text: str) -> list[Variable]:
    """Parse a declaration, without its semicolon, of one variable or several."""
    first, *others = split_list(text)
    head = re.match(r"\s*(?:\.\w+\s+(?:\d+\s+)?)*", first)
    assert head is not None
    return [parse_variable(first), *(parse_variable(head[0] + other) for other in others)]


def parse_initialiser(variable: Variable) -> tuple[bytes, list[tuple[int, str, int]]]:
    """Return the variable's initial bytes and its relocations ``(byte offset, symbol, addend)``."""
    data = bytearray(variable.size)
    relocations: list[tuple[int, str, int]] = []
    if variable.initialiser is None:
        return bytes(data), relocations
    element = TYPE_BYTES[variable.type]
    flat = variable.initialiser.replace("{", " ").replace("}", " ")
    for index, item in enumerate(split_list(flat)):
        at = index * element
        if at + element > variable.size:
            raise PtxSyntaxError(f"too many initialisers for {variable.name!r}")
        if item[:2] in ("0f", "0F", "0d", "0D"):
            data[at : at + element] = int(item[2:], 16).to_bytes(element, "little")
        elif (number := _number(item)) is not None and number.kind == "int":
            data[at : at + element] = (number.value % (1 << 8 * element)).to_bytes(element, "little")
        elif re.match(r"[+-]?\d*\.\d*", item) and variable.type in ("f32", "f64"):
            data[at : at + element] = struct.pack("<f" if element == 4 else "<d", float(item))
        else:
            match = re.match(rf"(?:generic\(\s*)?({_IDENTIFIER})\s*\)?\s*(?:\+\s*(\d+))?\s*\)?$", item)
            if match is None or element != 8:
                raise PtxSyntaxError(f"cannot parse the initialiser {item!r} of {variable.name!r}")
            relocations.append((at, match[1], int(match[2] or 0)))
    return bytes(data), relocations


def _number(text: str) -> Imm | None:
    """The immediate that a constant expression stands for; None where it is none. Lone literals keep their kind."""
    if text[:2] in ("0f", "0F", "0d", "0D") or (text[0] == "(" and "," in text):
        return None
    try:
        return Imm(constant_integer(text))
    except NotConstant:
        pass
    try:
        return Imm(constant_float(text), "f64")
    except NotConstant:
        return None


class _Scope:
    """One ``{ }`` level: the unique names of what it declares."""

    def __init__(self, parent: _Scope | None) -> None:
        self.parent = parent
        self.names: dict[str, str] = {}

    def resolve(self, name: str) -> str:
        scope: _Scope | None = self
        while scope is not None:
            if name in scope.names:
                return scope.names[name]
            scope = scope.parent
        return name


class _Parser:
    def __init__(self, text: str) -> None:
        try:
            self.text = without_comments(text)
        except ValueError as error:
            raise PtxSyntaxError(str(error)) from None
        self.newlines = [match.start() for match in _NEWLINE.finditer(self.text)]
        self.position = 0
        # NVRTC puts the file table at the end, after its uses.
        self.module = Module(files={int(m[1]): m[2] for m in _FILE.finditer(self.text)})
        self.serial = 0
        self.inlined: dict[tuple[int, int, int], tuple[int, int, int]] = {}

    def line(self, position: int) -> int:
        return bisect.bisect_left(self.newlines, position) + 1

    def fail(self, what: str) -> PtxSyntaxError:
        return PtxSyntaxError(f"PTX line {self.line(self.position)}: {what}")

    def until(self, char: str) -> str:
        end = self.text.find(char, self.position)
        if end < 0:
            raise self.fail(f"expected {char!r} before the end of the file")
        statement = self.text[self.position : end]
        self.position = end + 1
        return statement

    def parse(self) -> Module:
        text, module = self.text, self.module
        while True:
            space = _SPACE.match(text, self.position)
            assert space is not None
            self.position = space.end()
            if self.position >= len(text):
                return module
            if (match := _HEADER.match(text, self.position)) is not None:
                if match[1] == "version":
                    module.version = match[2].strip()
                elif match[1] == "target":
                    module.target = match[2].strip()
                self.position = match.end()
            elif (match := _FILE.match(text, self.position)) is not None:
                self.position = match.end()
            elif text.startswith(".section", self.position):
                self.until("}")
            elif (match := _FUNCTION.match(text, self.position)) is not None:
                self.position = match.end()
                self.function(match[1] == "entry")
            elif text[self.position] == "}":
                raise self.fail("unbalanced '}'")
            else:
                statement = self.until(";")
                if not statement.lstrip().startswith((".alias", ".pragma")):
                    try:
                        for variable in parse_variables(statement):
                            module.variables[variable.name] = variable
                    except PtxSyntaxError as error:
                        raise self.fail(str(error)) from None

    def function(self, is_entry: bool) -> None:
        brace = self.text.find("{", self.position)
        semicolon = self.text.find(";", self.position)
        declaration = semicolon >= 0 and (brace < 0 or semicolon < brace)
        header = self.until(";" if declaration else "{").strip()
        header = re.sub(r"^\.attribute\([^)]*\)\s*", "", header)
        returns: list[Variable] = []
        if header.startswith("("):
            inner, header = header[1:].split(")", 1)
            returns = [parse_variable(item) for item in split_list(inner)]
        match = re.match(rf"\s*({_IDENTIFIER})\s*", header)
        if match is None:
            raise self.fail("expected a function name")
        name, header = match[1], header[match.end() :]
        params: list[Variable] = []
        if header.startswith("("):
            inner, header = header[1:].split(")", 1)
            params = [parse_variable(item) for item in split_list(inner)]
        function = Function(name, is_entry, params, returns, defined=not declaration)
        for directive in _DIRECTIVE.finditer(header):
            values = tuple(int(v) for v in directive[2].split(",")) if directive[2] else ()
            function.directives[directive[1]] = values
        previous = self.module.functions.get(name)
        if previous is None or not previous.defined:
            self.module.functions[name] = function
        if not declaration:
            self.body(function)

    def unique(self, name: str) -> str:
        self.serial += 1
        return f"{name}@{self.serial}"

    def body(self, function: Function) -> None:
        text = self.text
        scope = _Scope(None)
        depth = 1
        location = Location()
        pending: list[tuple[Instruction, _Scope]] = []
        pending_targets: list[tuple[str, _Scope]] = []
        while depth:
            space = _SPACE.match(text, self.position)
            assert space is not None
            self.position = space.end()
            if self.position >= len(text):
                raise self.fail(f"function {function.name!r} does not end")
            char = text[self.position]
            if char == "{":
                depth += 1
                scope = _Scope(scope)
                self.position += 1
                continue
            if char == "}":
                depth -= 1
                scope = scope.parent or scope
                self.position += 1
                continue
            if char == "." and (match := _LOC.match(text, self.position)) is not None:
                location = self.location(match)
                self.position = match.end()
                continue
            if char != "@" and (match := _LABEL.match(text, self.position)) is not None:
                label = match[1] if depth == 1 else self.unique(match[1])
                scope.names[match[1]] = label
                self.position = match.end()
                space = _SPACE.match(text, self.position)
                assert space is not None
                if text.startswith(".branchtargets", space.end()):
                    targets = self.until(";").strip()[len(".branchtargets") :]
                    function.branch_targets[label] = [item.strip() for item in targets.split(",")]
                    pending_targets.append((label, scope))
                elif text.startswith(".callprototype", space.end()) or text.startswith(".calltargets", space.end()):
                    self.until(";")
                else:
                    function.body.append(Label(label))
                continue
            line = self.line(self.position)
            statement = self.until(";").strip()
            if statement.startswith("."):
                self.declaration(function, statement, scope, depth)
            elif statement:
                instruction = self.instruction(function, statement, scope, line, location)
                function.body.append(instruction)
                if instruction.opcode in ("bra", "brx"):
                    pending.append((instruction, scope))
        # Labels may be used before they are declared, so branch operands are resolved last.
        for instruction, where in pending:
            instruction.operands = tuple(
                Sym(where.resolve(op.name), op.offset) if isinstance(op, Sym) else op for op in instruction.operands
            )
        for label, where in pending_targets:
            function.branch_targets[label] = [where.resolve(item) for item in function.branch_targets[label]]

    def location(self, match: re.Match[str]) -> Location:
        """Return the innermost location outside the toolkit's headers, following ``inlined_at``."""
        position = (int(match[1]), int(match[2]), int(match[3]))
        inlined = _INLINED.search(match[4])
        if inlined is not None:
            self.inlined[position] = (int(inlined[1]), int(inlined[2]), int(inlined[3]))
        else:
            self.inlined.pop(position, None)
        here = position
        for _ in range(16):
            file = self.module.files.get(here[0], "")
            if not file.endswith((".h", ".hpp", ".cuh")) or here not in self.inlined:
                return Location(file, here[1])
            here = self.inlined[here]
        return Location(self.module.files.get(position[0], ""), position[1])

    def declaration(self, function: Function, statement: str, scope: _Scope, depth: int) -> None:
        if statement.startswith(".reg"):
            match = re.match(r"\.reg\s*\.(\w+)\s+(.*)$", statement, re.S)
            if match is None or match[1] not in TYPE_BITS:
                raise self.fail(f"cannot parse {statement!r}")
            for raw in match[2].split(","):
                name = raw.strip()
                ranged = _REG_RANGE.match(name)
                if ranged and int(ranged[2]) > MAX_REGISTERS:
                    raise self.fail(f"more than {MAX_REGISTERS} registers: {statement!r}")
                names = [f"{ranged[1]}{i}" for i in range(int(ranged[2]))] if ranged else [name]
                for item in names:
                    unique = item if depth == 1 else self.unique(item)
                    scope.names[item] = unique
                    function.registers[unique] = match[1]
        elif statement.startswith(".pragma"):
            return
        else:
            try:
                variables = parse_variables(statement)
            except PtxSyntaxError as error:
                raise self.fail(str(error)) from None
            for variable in variables:
                self.variable(function, variable, scope, depth)

    def variable(self, function: Function, variable: Variable, scope: _Scope, depth: int) -> None:
        unique = variable.name if depth == 1 and variable.space != "param" else self.unique(variable.name)
        scope.names[variable.name] = unique
        variable.name = unique
        function.variables.append(variable)

    def instruction(
        self, function: Function, statement: str, scope: _Scope, line: int, location: Location
    ) -> Instruction:
        text = " ".join(statement.split())
        rest = text
        predicate: Reg | None = None
        negated = False
        if (match := _PREDICATE.match(rest)) is not None:
            negated = bool(match[1])
            predicate = Reg(scope.resolve(match[2]))
            if predicate.name not in function.registers:
                raise self.fail(f"unknown predicate {match[2]!r}")
            rest = rest[match.end() :]
        match = _OPCODE.match(rest)
        if match is None:
            raise self.fail(f"cannot parse {text!r}")
        opcode, *modifiers = match[1].replace(" ", "").split(".")
        listed = opcode == "call"  # parentheses are those of an argument list, not of an expression
        items, selectors = split_list(match[2]), []
        if opcode in _VIDEO:
            for k, item in enumerate(items):
                part = _SELECTED.match(item)
                items[k] = part[2] if part else item
                selectors.append(part[1] + (part[3] or "") if part else "")
        operands = tuple(self.operand(function, item, scope, listed=listed) for item in items)
        return Instruction(
            opcode, tuple(modifiers), operands, predicate, negated, line, location, text, tuple(selectors)
        )  # fmt: skip

    def operand(self, function: Function, text: str, scope: _Scope, *, listed: bool = False) -> Operand:
        text = text.strip()
        if not text:
            raise self.fail("an operand is missing")
        if text[0] == "%" and text[1:].isalnum() and (name := scope.resolve(text)) in function.registers:
            return Reg(name)  # most operands
        if text[0] in "0123456789+-~!(." and not (listed and text[0] == "(") and (number := _number(text)) is not None:
            return number
        if text[0] == "{" or (listed and text[0] == "("):
            items = split_list(text[1:-1])
            if text[-1] not in "})" or any(item[0] in "{(" for item in items):
                raise self.fail(f"cannot parse the operand {text[:120]!r}")
            return Vec(tuple(self.operand(function, item, scope) for item in items))
        if text[0] == "[":
            return self.address(function, text[1:-1].strip(), scope)
        if "|" in text:
            first, second = text.split("|", 1)
            return Pair(self.operand(function, first, scope), self.operand(function, second, scope))
        if text == "_":
            return Sink()
        if text[0] == "!":
            name = scope.resolve(text[1:].strip())
            if name not in function.registers:
                raise self.fail(f"unknown predicate {name!r}")
            return NotReg(name)
        match = _FLOAT_BITS.match(text)
        if match is not None and len(match[2]) == (8 if match[1] in "fF" else 16):
            return Imm(int(match[2], 16), "f32" if match[1] in "fF" else "f64")
        if text == "WARP_SZ":
            return Imm(32)
        match = _SYMBOL.match(text)
        if match is None:
            raise self.fail(f"cannot parse the operand {text!r}")
        name = scope.resolve(match[1])
        if name in function.registers:
            return Reg(name)
        if name.startswith("%"):
            return Special(name)
        return Sym(name, self.offset(match[2]))

    def offset(self, text: str | None) -> int:
        """Value of ``+ 4 * 2`` behind a name."""
        try:
            return constant_integer(text) if text else 0
        except NotConstant:
            raise self.fail(f"cannot parse the offset {text!r}") from None

    def address(self, function: Function, text: str, scope: _Scope) -> Addr:
        base, *rest = split_list(text) or [""]
        if rest:
            coordinates = self.operand(function, rest[0], scope)
            if len(rest) > 1 or not isinstance(coordinates, Vec):
                raise self.fail(f"cannot parse the address [{text}]")
            address = self.address(function, base, scope)
            return Addr(address.base, address.offset, coordinates.items)
        match = _SYMBOL.match(text)
        if match is None:
            return Addr(Imm(self.offset(text or "?")))
        # ptxas adds modulo 2**64, and so may inline assembly write a negative offset.
        offset = self.offset(match[2])
        name = scope.resolve(match[1])
        return Addr(Reg(name) if name in function.registers else Sym(name), offset)


def parse(text: str) -> Module:
    """Parse a PTX module.

    Raises:
        PtxSyntaxError: The text is malformed or uses syntax outside this parser's scope.
    """
    return _Parser(text).parse()
