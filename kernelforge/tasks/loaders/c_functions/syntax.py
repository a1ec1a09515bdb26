"""A parser of the C functions that can become tasks: counted loops, conditions, numbers and one-dimensional arrays.

What it does not know, it refuses: pointers that move, structures, other functions, loops without a count.
"""

from __future__ import annotations

import keyword
import re
from dataclasses import dataclass
from typing import Final, Literal

from kernelforge.errors import TaskError

Kind = Literal["int", "float"]


@dataclass(frozen=True)
class Number:
    value: int | float


@dataclass(frozen=True)
class Name:
    name: str


@dataclass(frozen=True)
class Element:
    """An element of an array."""

    array: str
    at: Expression


@dataclass(frozen=True)
class Unary:
    op: str
    value: Expression


@dataclass(frozen=True)
class Binary:
    op: str
    first: Expression
    second: Expression


@dataclass(frozen=True)
class Choice:
    condition: Expression
    yes: Expression
    no: Expression


@dataclass(frozen=True)
class Call:
    name: str
    values: tuple[Expression, ...]


@dataclass(frozen=True)
class Cast:
    kind: Kind
    value: Expression


Expression = Number | Name | Element | Unary | Binary | Choice | Call | Cast


@dataclass(frozen=True)
class Declare:
    kind: Kind
    name: str
    value: Expression | None
    length: Expression | None
    wide: bool
    """Whether it holds whole numbers of 32 bits or more."""


@dataclass(frozen=True)
class Assign:
    """``op`` is empty for ``=``, and ``+`` for ``+=``."""

    target: Name | Element
    op: str
    value: Expression


@dataclass(frozen=True)
class If:
    condition: Expression
    yes: tuple[Statement, ...]
    no: tuple[Statement, ...]


@dataclass(frozen=True, eq=False)
class For:
    """``variable`` from ``start`` to before ``stop``, or from ``start`` down to ``stop`` where the step is -1."""

    variable: str
    own: bool
    """Whether it declares its variable."""
    start: Expression
    stop: Expression
    step: int
    body: tuple[Statement, ...]


@dataclass(frozen=True)
class Return:
    value: Expression | None


@dataclass(frozen=True)
class Continue:
    pass


Statement = Declare | Assign | If | For | Return | Continue


@dataclass(frozen=True)
class Parameter:
    type: str
    """As in the text of the function, without ``const``: ``unsigned char``."""
    name: str
    array: bool


@dataclass(frozen=True)
class Function:
    result: str
    """Type of what it returns."""
    name: str
    parameters: tuple[Parameter, ...]
    body: tuple[Statement, ...]


_TOKEN: Final = re.compile(
    r"\s+|//[^\n]*|/\*.*?\*/|\#\s*pragma\s+omp[^\n]*|"
    r"(?P<number>0[xX][0-9a-fA-F]+[uUlL]*|(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?[fFuUlL]*)|(?P<name>[A-Za-z_]\w*)|"
    r"(?P<sign><<=|>>=|\+\+|--|&&|\|\||<<|>>|[-+*/%<>=!&|^]=|[-+*/%<>=!&|^~?:;,.(){}\[\]])",
    re.DOTALL,
)
_WORDS: Final = frozenset({"unsigned", "signed", "char", "short", "int", "long", "float", "double", "bool"})
_INTS: Final = frozenset({"size_t", "int32_t", "int64_t", "uint32_t", "uint64_t", "uint8_t", "int8_t", "int16_t"})
_NARROW: Final = re.compile(r"char|short|bool|int8|int16")
_LEVELS: Final = (
    ("||",), ("&&",), ("|",), ("^",), ("&",), ("==", "!="), ("<", ">", "<=", ">="), ("<<", ">>"), ("+", "-"),
    ("*", "/", "%"),
)  # fmt: skip
RESERVED: Final = frozenset(
    {"torch", "nn", "self", "real", "device", "span", "read", "write", "total", "chosen", "neither", "called",
     "as_real", "as_int", "quotient", "remainder", "result", "range", "max", "min", "abs", "len", "float", "int",
     "Model"}
)  # fmt: skip
"""Names that a reference has for itself."""
_MOST_TEXT = 64 << 10
TOO_DEEP: Final = "its C is nested too deep to be read"
_REFUSED: Final = frozenset({"while", "do", "goto", "switch", "break", "sizeof", "struct", "template", "static"})


def parse_function(text: str) -> Function:
    """The one function of a text.

    Raises:
        TaskError: it is no function, or has something that no task is made of; one line that names it.
    """
    try:
        return _Parser(text).function()
    except RecursionError:
        raise TaskError(TOO_DEEP) from None


class _Parser:
    def __init__(self, text: str) -> None:
        if len(text) > _MOST_TEXT:
            raise TaskError(f"its C has more than {_MOST_TEXT >> 10} KiB")
        self.tokens: list[str] = []
        self.numbers: set[int] = set()
        at = 0
        while at < len(text):
            match = _TOKEN.match(text, at)
            if match is None:
                raise TaskError(f"its C has {text[at]!r}, which is not read")
            if match.lastgroup:
                if match.lastgroup == "number":
                    self.numbers.add(len(self.tokens))
                self.tokens.append(match[0])
            at = match.end()
        self.at = 0
        self.scopes: list[dict[str, str]] = [{}]
        self.used: set[str] = set()

    def declare(self, name: str) -> str:
        """A name that nothing else in the function has, nor Python."""
        if name in self.scopes[-1]:
            raise TaskError(f"its C declares {name[:40]!r} twice")
        unique, number = name, 1
        while unique in self.used or unique in RESERVED or keyword.iskeyword(unique):
            number += 1
            unique = f"{name}_{number}"
        self.used.add(unique)
        self.scopes[-1][name] = unique
        return unique

    def unique(self, name: str) -> str:
        for scope in reversed(self.scopes):
            if name in scope:
                return scope[name]
        raise TaskError(f"its C has the name {name[:40]!r}, which it does not declare")

    @property
    def next(self) -> str:
        return self.tokens[self.at] if self.at < len(self.tokens) else ""

    def take(self, *expected: str) -> str:
        token = self.next
        if not token or (expected and token not in expected):
            raise TaskError(f"its C has {token[:40] or 'an end'!r} where {' or '.join(expected) or 'more'} should be")
        self.at += 1
        return token

    def accept(self, token: str) -> bool:
        if self.next == token:
            self.at += 1
            return True
        return False

    def name(self) -> str:
        token = self.take()
        if not re.fullmatch(r"[A-Za-z_]\w*", token) or token in _WORDS | _REFUSED:
            raise TaskError(f"its C has {token[:40]!r} where a name should be")
        return token

    def type_ahead(self) -> bool:
        return self.next in _WORDS or self.next in _INTS or self.next == "const"

    def type(self) -> str:
        """A type without its ``const``."""
        words = []
        while self.type_ahead():
            token = self.take()
            if token != "const":
                words.append(token)
        if not words:
            raise TaskError(f"its C has {self.next[:40] or 'an end'!r} where a type should be")
        return " ".join(words)

    def function(self) -> Function:
        result = self.take() if self.next == "void" else self.type()
        name = self.name()
        self.take("(")
        parameters: list[Parameter] = []
        while not self.accept(")"):
            if parameters:
                self.take(",")
            kind = self.type()
            array = self.accept("*")
            while self.next in ("const", "__restrict__", "restrict"):
                self.take()
            called = self.name()
            if self.accept("["):
                self.take("]")
                array = True
            parameters.append(Parameter(kind, self.declare(called), array))
        self.take("{")
        body = self.block()
        if self.next:
            raise TaskError("its C is more than one function")
        return Function(result, name, tuple(parameters), body)

    def block(self) -> tuple[Statement, ...]:
        """Statements up to the closing brace."""
        self.scopes.append({})
        statements = self.rest()
        self.scopes.pop()
        return statements

    def rest(self) -> tuple[Statement, ...]:
        statements: list[Statement] = []
        while not self.accept("}"):
            made = self.statement()
            if made and isinstance(made[0], If) and made[0].yes[-1:] == (Continue(),) and not made[0].no:
                # `if (c) { ...; continue; } rest` is `if (c) ... else rest`.
                return (*statements, If(made[0].condition, made[0].yes[:-1], self.rest()))
            statements += made
        return tuple(statements)

    def body(self) -> tuple[Statement, ...]:
        return self.block() if self.accept("{") else tuple(self.statement())

    def statement(self) -> list[Statement]:
        if self.accept(";"):
            return []
        if self.accept("{"):
            return list(self.block())
        if self.next in _REFUSED:
            raise TaskError(f"its C has `{self.next}`, which no reference is written for")
        if self.accept("if"):
            self.take("(")
            condition = self.expression()
            self.take(")")
            yes = self.body()
            return [If(condition, yes, self.body() if self.accept("else") else ())]
        if self.accept("for"):
            return [self.loop()]
        if self.accept("continue"):
            self.take(";")
            return [Continue()]
        if self.accept("return"):
            value = None if self.next == ";" else self.expression()
            self.take(";")
            return [Return(value)]
        made = self.declaration() if self.type_ahead() else self.assignments()
        self.take(";")
        return made

    def declaration(self) -> list[Statement]:
        written = self.type()
        kind = kind_of(written)
        wide = kind == "int" and not _NARROW.search(written)
        made: list[Statement] = []
        while not made or self.accept(","):
            if self.next == "*":
                raise TaskError("its C declares a pointer, and what it points to is not known")
            name, length = self.name(), None
            if self.accept("["):
                length = self.expression()
                self.take("]")
            value = self.choice() if self.accept("=") else None
            made.append(Declare(kind, self.declare(name), value, length, wide))
        return made

    def assignments(self) -> list[Statement]:
        made = [self.assignment()]
        while self.accept(","):
            made.append(self.assignment())
        return list(made)

    def assignment(self) -> Assign:
        if self.next in ("++", "--"):
            op = self.take()[0]
            return Assign(self.target(), op, Number(1))
        target = self.target()
        op = self.take("=", "+=", "-=", "*=", "/=", "%=", "&=", "|=", "^=", "<<=", ">>=", "++", "--")
        if op in ("++", "--"):
            return Assign(target, op[0], Number(1))
        value = self.choice()
        if self.next == "=":
            raise TaskError("its C assigns in an expression")
        return Assign(target, op[:-1], value)

    def target(self) -> Name | Element:
        target = self.primary()
        if not isinstance(target, Name | Element):
            raise TaskError("its C assigns to what is neither a name nor an element")
        return target

    def loop(self) -> For:
        self.scopes.append({})
        self.take("(")
        own = self.type_ahead()
        if own and kind_of(self.type()) != "int":
            raise TaskError("a loop of its C counts in another type than whole numbers")
        written = self.name()
        self.take("=")
        start = self.choice()
        variable = self.declare(written) if own else self.unique(written)
        self.take(";")
        if self.next != written:
            raise TaskError("a loop of its C has another condition than a bound of its variable")
        self.take()
        compare = self.take("<", "<=", ">", ">=")
        limit = self.binary(8)
        self.take(";")
        step = self.assignment()
        self.take(")")
        if step.target != Name(variable) or not isinstance(step.value, Number) or step.op not in ("+", "-"):
            raise TaskError("a loop of its C counts by something else than a number")
        count, up = step.value.value, step.op == "+"
        if not isinstance(count, int) or count < 1 or (count > 1 and not up) or up != (compare[0] == "<"):
            raise TaskError("a loop of its C does not count to its bound")
        # Both count on to a last value: `i < n` to before n, `i > n` down to n + 1.
        stop = Binary("+", limit, Number(1)) if compare in ("<=", ">") else limit
        made = For(variable, own, start, stop, count if up else -1, self.body())
        self.scopes.pop()
        return made

    def expression(self) -> Expression:
        return self.choice()

    def choice(self) -> Expression:
        condition = self.binary(0)
        if self.accept("?"):
            yes = self.choice()
            self.take(":")
            condition = Choice(condition, yes, self.choice())
        return condition

    def binary(self, level: int) -> Expression:
        if level == len(_LEVELS):
            return self.unary()
        first = self.binary(level + 1)
        while self.next in _LEVELS[level]:
            first = Binary(self.take(), first, self.binary(level + 1))
        return first

    def unary(self) -> Expression:
        if self.next in ("-", "+", "!", "~"):
            made: Expression = Unary(self.take(), self.unary())
            return made
        if self.next in ("*", "&", "++", "--"):
            raise TaskError(f"its C has `{self.next}` in an expression, which no reference is written for")
        if self.next == "(" and self.at + 1 < len(self.tokens):
            self.at += 1
            if self.type_ahead():
                kind = kind_of(self.type())
                if self.next == "*":
                    raise TaskError("its C casts to a pointer")
                self.take(")")
                return Cast(kind, self.unary())
            self.at -= 1
        return self.primary()

    def primary(self) -> Expression:
        if self.accept("("):
            inner = self.choice()
            self.take(")")
            return inner
        if self.at in self.numbers:
            return Number(_number(self.take()))
        name = self.name()
        if self.accept("("):
            values: list[Expression] = []
            while not self.accept(")"):
                if values:
                    self.take(",")
                values.append(self.choice())
            return Call(name, tuple(values))
        if self.accept("["):
            at = self.choice()
            self.take("]")
            if self.next == "[":
                raise TaskError("its C has an array of arrays")
            return Element(self.unique(name), at)
        return Name(self.unique(name))


def kind_of(type_name: str) -> Kind:
    """Whether a type holds whole numbers or fractions."""
    return "float" if {"float", "double"} & set(type_name.split()) else "int"


def _number(text: str) -> int | float:
    if text[:2].lower() == "0x":
        return int(text.rstrip("uUlL"), 16)
    if re.fullmatch(r"\d+[uUlL]*", text):
        digits = text.rstrip("uUlL")
        if digits.startswith("0") and digits != "0":
            raise TaskError("its C has an octal number")
        return int(digits)
    return float(text.rstrip("fFlL"))
