"""From the text of a plan to a bounded syntax tree and its ``# tune:`` lines.

Python's parser may crash or take very long on hostile text, so the text is bounded first: size, line length,
tokens per statement, bracket depth. Nothing here compiles or runs the text.
"""

from __future__ import annotations

import ast
import io
import math
import re
import tokenize
from collections.abc import Iterator

from kernelforge.candidate.language.values import Fault
from kernelforge.records.candidate import MAX_PLAN_BYTES

MAX_LINE_CHARS = 2_000
MAX_STATEMENT_TOKENS = 1_200
MAX_BRACKETS = 24
MAX_INDENTS = 16
MAX_NUMBER_CHARS = 40
MAX_TREE_DEPTH = 72
MAX_COMBINATIONS = 16

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")
_TUNE = re.compile(r"#\s*tune\s*:(.*)", re.DOTALL)
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_INT = re.compile(r"-?[0-9]{1,10}", re.ASCII)
_LAYOUT = frozenset(
    {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
)
_KEYWORDS = {
    "while": "while loops: use for over range(...)",
    "break": "break: use if inside the loop",
    "continue": "continue: use if inside the loop",
    "lambda": "lambda: write a helper def at top level",
    "import": "import: everything a plan can use is already there",
    "from": "import: everything a plan can use is already there",
    "class": "classes",
    "try": "try",
    "except": "try",
    "finally": "try",
    "raise": "raise: refuse a size with assert condition, 'message'",
    "with": "with",
    "async": "async",
    "await": "await",
    "global": "global",
    "nonlocal": "nonlocal",
    "del": "del: empty reuses dead buffers by itself",
    "yield": "yield",
}  # fmt: skip


def normalise(text: str) -> str:
    """Line ends as ``\\n``."""
    return text.replace("\r\n", "\n").replace("\r", "\n")


def read(text: str) -> tuple[ast.Module, dict[str, tuple[int, ...]]]:
    """Parse normalised text.

    Returns:
        The syntax tree, of bounded depth, and the tune names with their values.

    Raises:
        Fault: the text is not Python, is too large or too deep, or has a malformed ``# tune:`` line.
    """
    _check_characters(text)
    tunables = _check_tokens(text)
    try:
        tree = ast.parse(text)
    except SyntaxError as error:
        raise Fault(f"syntax error: {error.msg}", error.lineno) from None
    except (RecursionError, MemoryError, ValueError, OverflowError):
        raise Fault("the plan is too deeply nested to be read") from None
    _check_depth(tree)
    return tree, tunables


def _check_characters(text: str) -> None:
    if len(text) > MAX_PLAN_BYTES:
        raise Fault(f"the plan has {len(text):,} characters; the limit is {MAX_PLAN_BYTES:,} bytes")
    try:
        encoded = text.encode()
    except UnicodeEncodeError as error:
        raise Fault("the plan holds half of a surrogate pair", text.count("\n", 0, error.start) + 1) from None
    if len(encoded) > MAX_PLAN_BYTES:
        raise Fault(f"the plan has {len(encoded):,} bytes; the limit is {MAX_PLAN_BYTES:,}")
    if found := _CONTROL.search(text):
        line = text.count("\n", 0, found.start()) + 1
        raise Fault(f"the plan holds the control character {found.group()!r}", line)
    for line, content in enumerate(text.split("\n"), 1):
        if len(content) > MAX_LINE_CHARS:
            raise Fault(f"the line has {len(content):,} characters; the limit is {MAX_LINE_CHARS:,}", line)


def _tokens(text: str) -> Iterator[tokenize.TokenInfo]:
    try:
        yield from tokenize.generate_tokens(io.StringIO(text).readline)
    except tokenize.TokenError as error:
        message, (line, _) = error.args
        raise Fault(f"syntax error: {message}", min(line, text.count("\n") + 1)) from None
    except SyntaxError as error:
        raise Fault(f"syntax error: {error.msg}", error.lineno) from None


def _check_tokens(text: str) -> dict[str, tuple[int, ...]]:
    tunables: dict[str, tuple[int, ...]] = {}
    brackets = indents = in_statement = 0
    number_end = (0, 0)
    for token in _tokens(text):
        line = token.start[0]
        if token.type == tokenize.NAME and token.start == number_end:
            raise Fault(f"syntax error: a number runs into {token.string[:20]!r}", line)
        if token.type == tokenize.NUMBER:
            number_end = token.end
        if token.type == tokenize.COMMENT:
            _read_tune(token.string, line, tunables)
        elif token.type == tokenize.NEWLINE:
            in_statement = 0
        elif token.type in (tokenize.INDENT, tokenize.DEDENT):
            indents += 1 if token.type == tokenize.INDENT else -1
        elif token.type not in _LAYOUT:
            in_statement += 1
            _check_token(token)
            if token.type == tokenize.OP and token.string in ("(", "[", "{", ")", "]", "}"):
                brackets += 1 if token.string in "([{" else -1
        if in_statement > MAX_STATEMENT_TOKENS:
            raise Fault(f"one statement has more than {MAX_STATEMENT_TOKENS:,} tokens; split it", line)
        if brackets > MAX_BRACKETS or indents > MAX_INDENTS:
            raise Fault("the plan is nested too deeply; split it into statements or helpers", line)
    combinations = math.prod(len(values) for values in tunables.values())
    if combinations > MAX_COMBINATIONS:
        raise Fault(f"the # tune: lines make {combinations:,} combinations; the limit is {MAX_COMBINATIONS}")
    return tunables


def _check_token(token: tokenize.TokenInfo) -> None:
    line, content = token.start[0], token.string
    if token.type == tokenize.ERRORTOKEN:
        raise Fault(f"syntax error: {content[:20]!r} is not part of the language", line)
    if token.type == tokenize.NAME:
        if not content.isascii():
            raise Fault(f"the name {content[:40]!r} is not plain ASCII", line)
        if content in _KEYWORDS:
            raise Fault(f"the plan language has no {_KEYWORDS[content]}", line)
    elif token.type == tokenize.NUMBER and len(content) > MAX_NUMBER_CHARS:
        raise Fault("the number is too long", line)
    elif token.type == tokenize.STRING and "\\" in content:
        raise Fault("strings hold no backslash", line)


def _read_tune(comment: str, line: int, tunables: dict[str, tuple[int, ...]]) -> None:
    match = _TUNE.fullmatch(comment)
    if match is None:
        return
    name, _, options = (part.strip() for part in match.group(1).partition("="))
    texts = [option.strip() for option in options.split("|")]
    if not _NAME.fullmatch(name) or not all(_INT.fullmatch(option) for option in texts):
        raise Fault("a tune line reads '# tune: NAME = 128 | 256', with integers", line)
    values = tuple(int(option) for option in texts)
    if len(set(values)) != len(values):
        raise Fault(f"the values of {name} repeat", line)
    if not all(-(2**31) <= value < 2**31 for value in values):
        raise Fault(f"the values of {name} must fit an int of 32 bits", line)
    if name in tunables:
        raise Fault(f"{name} has two tune lines", line)
    tunables[name] = values


def _check_depth(tree: ast.Module) -> None:
    stack: list[tuple[ast.AST, int, int]] = [(tree, 0, 1)]
    while stack:
        node, depth, line = stack.pop()
        line = getattr(node, "lineno", line)
        if depth > MAX_TREE_DEPTH:
            raise Fault("the expression is nested too deeply; split it into statements", line)
        for child in ast.iter_child_nodes(node):
            # An elif is an if inside else: a long chain is flat to its reader, and to us.
            flat = isinstance(node, ast.If) and node.orelse == [child] and isinstance(child, ast.If)
            stack.append((child, depth if flat else depth + 1, line))
