"""Constant expressions of PTX: literals, casts and C's operators, with 64-bit arithmetic."""

from __future__ import annotations

import operator
import re
import struct
from collections.abc import Callable
from functools import lru_cache

_TOKEN = re.compile(
    r"\s*(?:(?P<float>0[fF][0-9a-fA-F]{8}|0[dD][0-9a-fA-F]{16}|\d+\.\d*(?:[eE][+-]?\d+)?|\.\d+(?:[eE][+-]?\d+)?"
    r"|(?!0[xXbB])\d+[eE][+-]?\d+)|(?P<integer>0[xX][0-9a-fA-F]+U?|0[bB][01]+U?|\d+U?)(?![\w.])|(?P<name>WARP_SZ)\b"
    r"|(?P<cast>\(\s*\.(?:s64|u64)\s*\))|(?P<symbol><<|>>|<=|>=|==|!=|&&|\|\||[-+!~*/%<>&^|?:()]))"
)
_LEVELS = (("||",), ("&&",), ("|",), ("^",), ("&",), ("==", "!="), ("<", ">", "<=", ">="), ("<<", ">>"), ("+", "-"),
           ("*", "/", "%"))  # fmt: skip
_SIMPLE: dict[str, Callable[[int, int], int]] = {
    "|": operator.or_, "^": operator.xor, "&": operator.and_, "==": operator.eq, "!=": operator.ne, "<": operator.lt,
    ">": operator.gt, "<=": operator.le, ">=": operator.ge, "+": operator.add, "-": operator.sub, "*": operator.mul,
    "||": lambda a, b: bool(a) or bool(b), "&&": lambda a, b: bool(a) and bool(b),
}  # fmt: skip


_MAX_TOKENS = 64
_MAX_DEPTH = 12
"""Parentheses and choices; each takes a frame of Python's stack for every level of precedence."""


class NotConstant(ValueError):
    """The text is no constant expression."""


def parse_integer(text: str) -> int:
    """Return the value of a PTX integer literal (decimal, hexadecimal, octal or binary, optional ``U``)."""
    digits = text.rstrip("U")
    sign = -1 if digits.startswith("-") else 1
    digits = digits.lstrip("+-")
    if len(digits) > 1 and digits[0] == "0" and digits[1] in "01234567":
        return sign * int(digits, 8)
    return sign * int(digits, 0)


def constant_integer(text: str) -> int:
    """Value of an integer constant expression.

    Raises:
        NotConstant: it is none, or divides by zero.
    """
    value = _value(text)
    if isinstance(value, float):
        raise NotConstant(text)
    return value


def constant_float(text: str) -> int:
    """Bits, as f64, of a floating-point literal with a sign.

    Raises:
        NotConstant: it is none.
    """
    value = _value(text)
    if not isinstance(value, float):
        raise NotConstant(text)
    return int(struct.unpack("<Q", struct.pack("<d", value))[0])


def _value(text: str) -> int | float:
    return _value_of_short(text) if len(text) <= _SHORT else _Expression(text).value()


_SHORT = 24


@lru_cache(maxsize=4096)
def _value_of_short(text: str) -> int | float:
    """Value of a short text: kernels repeat their constants and offsets."""
    return _Expression(text).value()


class _Expression:
    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens: list[tuple[str, str]] = []
        at = 0
        while at < len(text.rstrip()):
            match = _TOKEN.match(text, at)
            if match is None:
                raise NotConstant(text)
            self.tokens.append((str(match.lastgroup), match[0].strip()))
            at = match.end()
        self.at = 0
        if len(self.tokens) > _MAX_TOKENS or text.count("(") > _MAX_DEPTH or text.count("?") > _MAX_DEPTH:
            raise NotConstant(text)

    def value(self) -> int | float:
        result = self.choice()
        if self.at != len(self.tokens):
            raise NotConstant(self.text)
        return result if isinstance(result, float) else _wrap(result, False)

    def accept(self, *symbols: str) -> str:
        if self.at < len(self.tokens) and self.tokens[self.at][1] in symbols:
            self.at += 1
            return self.tokens[self.at - 1][1]
        return ""

    def choice(self) -> int | float:
        condition = self.binary(0)
        if not self.accept("?"):
            return condition
        first = self.choice()
        if not self.accept(":"):
            raise NotConstant(self.text)
        second = self.choice()
        return first if condition else second

    def binary(self, level: int) -> int | float:
        if level == len(_LEVELS):
            return self.unary()
        result = self.binary(level + 1)
        while symbol := self.accept(*_LEVELS[level]):
            result = self.apply(symbol, result, self.binary(level + 1))
        return result

    def apply(self, symbol: str, a: int | float, b: int | float) -> int:
        if isinstance(a, float) or isinstance(b, float) or (symbol in "/%" and b == 0):
            raise NotConstant(self.text)
        unsigned = isinstance(a, _Unsigned) or isinstance(b, _Unsigned)
        if symbol in ("<<", ">>"):
            unsigned = isinstance(a, _Unsigned)
            count = b % (1 << 64)
            return _wrap((a << count if symbol == "<<" else a >> count) if count < 64 else 0, unsigned)
        if unsigned:
            a, b = a % (1 << 64), b % (1 << 64)
        if symbol in "/%":
            quotient = abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)
            return _wrap(quotient if symbol == "/" else a - quotient * b, unsigned)
        return _wrap(int(_SIMPLE[symbol](a, b)), unsigned)

    def unary(self) -> int | float:
        if self.at >= len(self.tokens):
            raise NotConstant(self.text)
        kind, token = self.tokens[self.at]
        self.at += 1
        if kind == "float":
            if token[:2] in ("0f", "0F"):
                return float(struct.unpack("<f", int(token[2:], 16).to_bytes(4, "little"))[0])
            if token[:2] in ("0d", "0D"):
                return float(struct.unpack("<d", int(token[2:], 16).to_bytes(8, "little"))[0])
            return float(token)
        if kind == "integer":
            number = parse_integer(token)
            return _wrap(number, token.endswith("U") or number >> 63 != 0)
        if kind == "name":
            return 32
        if token == "(":
            inside = self.choice()
            if not self.accept(")"):
                raise NotConstant(self.text)
            return inside
        operand = self.unary() if kind == "cast" or token in ("-", "+", "!", "~") else None
        if operand is None or (isinstance(operand, float) and token not in ("-", "+")):
            raise NotConstant(self.text)
        if isinstance(operand, float):
            return -operand if token == "-" else operand
        if kind == "cast":
            return _wrap(operand, "u64" in token)
        result = {"-": -operand, "+": operand, "!": int(operand == 0), "~": ~operand}[token]
        return _wrap(result, isinstance(operand, _Unsigned) and token != "!")


class _Unsigned(int):
    """A value of type .u64."""


def _wrap(value: int, unsigned: bool) -> int:
    value %= 1 << 64
    if unsigned:
        return _Unsigned(value)
    return value - (1 << 64) if value >> 63 else value
