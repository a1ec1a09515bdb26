"""The C functions that can become tasks: counted loops, conditions, numbers and one-dimensional arrays.

pycparser reads the text. What has no counterpart here is refused: pointers that move, structures, other functions,
loops without a count.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from pycparser import CParser, c_ast
from pycparser.c_generator import CGenerator
from pycparser.c_parser import ParseError

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


_IGNORED: Final = re.compile(r"//[^\n]*|/\*.*?\*/|#\s*pragma\s+omp[^\n]*|\b__restrict__\b|\r", re.DOTALL)
_HEADERS: Final = (
    "bool", "size_t", "int8_t", "int16_t", "int32_t", "int64_t", "uint8_t", "uint32_t", "uint64_t",
)  # fmt: skip
"""Types that headers declare, all of whole numbers."""
_TYPES: Final = frozenset({*_HEADERS, "unsigned", "signed", "char", "short", "int", "long", "float", "double"})
_NARROW: Final = re.compile(r"char|short|bool|int8|int16")
RESERVED: Final = frozenset(
    {"torch", "nn", "self", "real", "device", "span", "read", "write", "total", "chosen", "neither", "called",
     "as_real", "as_int", "quotient", "remainder", "result", "range", "max", "min", "abs", "len", "float", "int",
     "Model"}
)  # fmt: skip
"""Names that a reference has for itself."""
_MOST_TEXT = 64 << 10
TOO_DEEP: Final = "its C is nested too deep to be read"


def parse_function(text: str) -> Function:
    """The one function of a text.

    Raises:
        TaskError: it is no function, or has something that no task is made of; one line that names it.
    """
    if len(text) > _MOST_TEXT:
        raise TaskError(f"its C has more than {_MOST_TEXT >> 10} KiB")
    text = _IGNORED.sub(" ", text)
    if unread := re.search("[#$]", text):  # pycparser takes directives of its own, and `$` in names
        raise TaskError(f"its C has {unread[0]!r}, which is not read")
    try:
        tree = CParser().parse(f"typedef int {', '.join(_HEADERS)};{text}")
        return _Translation().function(tree.ext[len(_HEADERS) :])
    except ParseError as error:
        _, _, reason = str(error).partition(": ")
        raise TaskError(f"its C cannot be parsed as C ({_short(reason)})") from None
    except RecursionError:
        raise TaskError(TOO_DEEP) from None


class _Translation:
    def __init__(self) -> None:
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

    def function(self, nodes: Sequence[c_ast.Node]) -> Function:
        if len(nodes) != 1:
            raise TaskError(f"its C is {'more than one function' if nodes else 'an end without a function'}")
        match nodes[0]:
            case c_ast.FuncDef(
                decl=c_ast.Decl(name=name, storage=[], type=c_ast.FuncDecl(type=result, args=args)), param_decls=None,
                body=body,
            ):  # fmt: skip
                parameters = tuple(map(self.parameter, args.params if args else ()))
                return Function(_type(result, "void"), name, parameters, self.statement(body))
        raise _refused(_text(nodes[0]))

    def parameter(self, node: c_ast.Node) -> Parameter:
        match node:
            case c_ast.Decl(name=name, type=c_ast.PtrDecl(type=kind) | c_ast.ArrayDecl(type=kind, dim=None)):
                return Parameter(_type(kind), self.declare(name), True)
            case c_ast.Decl(name=name, type=kind):
                return Parameter(_type(kind), self.declare(name), False)
        raise _refused(_text(node))

    def statement(self, node: c_ast.Node | None) -> tuple[Statement, ...]:
        match node:
            case None | c_ast.EmptyStatement():
                return ()
            case c_ast.Compound(block_items=items):
                self.scopes.append({})
                made = self.statements(items or ())
                self.scopes.pop()
                return made
            case c_ast.If(cond=condition, iftrue=yes, iffalse=no):
                return (If(self.expression(condition), self.statement(yes), self.statement(no)),)
            case c_ast.For():
                return (self.loop(node),)
            case c_ast.Continue():
                return (Continue(),)
            case c_ast.Return(expr=value):
                return (Return(None if value is None else self.expression(value)),)
            case c_ast.Decl(storage=[], type=c_ast.ArrayDecl(type=kind, dim=c_ast.Node() as length)):
                return (self.declaration(node, kind, self.expression(length)),)
            case c_ast.Decl(storage=[], type=kind):
                return (self.declaration(node, kind, None),)
            case c_ast.ExprList(exprs=parts):
                return self.statements(parts)
            case c_ast.UnaryOp(op="++" | "--" | "p++" | "p--" as op, expr=target):
                return (Assign(self.target(target), op[-1], Number(1)),)
            case c_ast.Assignment(op=op, lvalue=target, rvalue=value):
                return (Assign(self.target(target), op[:-1], self.expression(value)),)
        raise _refused(re.split(r"(?<=\w)\W", _text(node), maxsplit=1)[0])

    def statements(self, nodes: Sequence[c_ast.Node]) -> tuple[Statement, ...]:
        return tuple(made for node in nodes for made in self.statement(node))

    def declaration(self, node: c_ast.Decl, type_node: c_ast.Node, length: Expression | None) -> Declare:
        written = _type(type_node)
        kind = kind_of(written)
        wide = kind == "int" and not _NARROW.search(written)
        value = None if node.init is None else self.expression(node.init)
        return Declare(kind, self.declare(node.name), value, length, wide)

    def target(self, node: c_ast.Node) -> Name | Element:
        target = self.expression(node)
        if not isinstance(target, Name | Element):
            raise TaskError("its C assigns to what is neither a name nor an element")
        return target

    def loop(self, node: c_ast.For) -> For:
        self.scopes.append({})
        match node.init:
            case c_ast.DeclList(decls=[c_ast.Decl(name=written, type=kind, init=c_ast.Node() as first)]):
                if kind_of(_type(kind)) != "int":
                    raise TaskError("a loop of its C counts in another type than whole numbers")
                own, start, variable = True, self.expression(first), self.declare(written)
            case c_ast.Assignment(op="=", lvalue=c_ast.ID(name=written), rvalue=first):
                own, start, variable = False, self.expression(first), self.unique(written)
            case _:
                raise TaskError("a loop of its C does not begin with the first value of one variable")
        match node.cond:
            case c_ast.BinaryOp(op="<" | "<=" | ">" | ">=" as sign, left=c_ast.ID(name=name), right=last) if (
                name == written
            ):
                limit = self.expression(last)
            case _:
                raise TaskError("a loop of its C has another condition than a bound of its variable")
        match self.statement(node.next):
            case (Assign(Name(name), "+" | "-" as op, Number(int(count))),) if name == variable:
                up = op == "+"
            case _:
                raise TaskError("a loop of its C counts by something else than a whole number")
        if count < 1 or (count > 1 and not up) or up != (sign[0] == "<"):
            raise TaskError("a loop of its C does not count to its bound")
        # Both count on to a last value: `i < n` to before n, `i > n` down to n + 1.
        stop = Binary("+", limit, Number(1)) if sign in ("<=", ">") else limit
        made = For(variable, own, start, stop, count if up else -1, _without_continue(self.statement(node.stmt)))
        self.scopes.pop()
        return made

    def expression(self, node: c_ast.Node) -> Expression:
        match node:
            case c_ast.Constant(type=kind, value=text):
                return Number(_number(kind, text))
            case c_ast.ID(name=name):
                return Name(self.unique(name))
            case c_ast.ArrayRef(name=c_ast.ID(name=name), subscript=at):
                return Element(self.unique(name), self.expression(at))
            case c_ast.UnaryOp(op="-" | "+" | "!" | "~" as op, expr=value):
                return Unary(op, self.expression(value))
            case c_ast.BinaryOp(op=op, left=first, right=second):
                return Binary(op, self.expression(first), self.expression(second))
            case c_ast.TernaryOp(cond=condition, iftrue=yes, iffalse=no):
                return Choice(self.expression(condition), self.expression(yes), self.expression(no))
            case c_ast.Cast(to_type=c_ast.Typename(type=kind), expr=value):
                return Cast(kind_of(_type(kind)), self.expression(value))
            case c_ast.FuncCall(name=c_ast.ID(name=name), args=args):
                return Call(name, tuple(map(self.expression, args.exprs if args else ())))
            case c_ast.UnaryOp(op=op):
                raise _refused(op.lstrip("p"), " in an expression")
        raise _refused(_text(node), " in an expression")


def _without_continue(body: tuple[Statement, ...]) -> tuple[Statement, ...]:
    """A loop's body in which `if (c) { ...; continue; } rest` is `if (c) ... else rest`."""
    for index, statement in enumerate(body):
        match statement:
            case If(condition, (*yes, Continue()), ()):
                return (*body[:index], If(condition, tuple(yes), _without_continue(body[index + 1 :])))
    return body


def kind_of(type_name: str) -> Kind:
    """Whether a type holds whole numbers or fractions."""
    return "float" if {"float", "double"} & set(type_name.split()) else "int"


def _type(node: c_ast.Node, *also: str) -> str:
    """A type of numbers, without its ``const``."""
    match node:
        case c_ast.TypeDecl(type=c_ast.IdentifierType(names=names)) if _TYPES.union(also).issuperset(names):
            return " ".join(names)
    raise TaskError(f"its C has `{_short(_text(node))}`, which is neither a number nor an array of numbers")


def _number(kind: str, text: str) -> int | float:
    try:
        return int(text.rstrip("uUlL"), 0) if "int" in kind else float(text.rstrip("fFlL"))
    except ValueError:  # an octal number too
        raise TaskError(f"its C has {text[:40]!r}, which is not read") from None


def _text(node: c_ast.Node) -> str:
    return str(CGenerator().visit(node))


def _short(text: str) -> str:
    return " ".join(text.split())[:40]


def _refused(text: str, where: str = "") -> TaskError:
    return TaskError(f"its C has `{_short(text)}`{where}, which no reference is written for")
