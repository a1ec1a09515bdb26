"""Parse plan text to a bounded syntax tree and its ``# tune:`` lines.

Python's tokenizer and parser may fail, crash or take very long on hostile text (f-strings above all), so a small
lexer checks the text first. It accepts only tokens of the language, in bounded statements of bounded depth. The text is
never compiled or run here.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping

from kernelforge.candidate.plan_language.values import Fault
from kernelforge.records.task import MAX_PLAN_BYTES

MAX_LINE_CHARS = 2_000
MAX_STATEMENT_TOKENS = 1_200
MAX_BRACKETS = 24
MAX_INDENT_COLUMNS = 80
MAX_NUMBER_CHARS = 40
MAX_TREE_DEPTH = 72

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")
_TUNE = re.compile(r"#\s*tune\s*:(.*)", re.DOTALL)
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_INT = re.compile(r"-?[0-9]{1,10}", re.ASCII)
_TOKEN = re.compile(
    r"""
    (?P<space> [ \t]+ | \\\n )
    | (?P<comment> \#[^\n]* )
    | (?P<newline> \n )
    | (?P<string> [A-Za-z]* (?: \"\"\"[^\\]*?\"\"\" | '''[^\\]*?''' | "[^"\\\n]*" | '[^'\\\n]*' ) )
    | (?P<number>
        (?: 0[xX][0-9a-fA-F_]+ | (?: [0-9][0-9_]*\.?[0-9_]* | \.[0-9][0-9_]* ) (?: [eE][+-]?[0-9]+ )? )
        (?! [A-Za-z0-9_] ) )
    | (?P<name> [A-Za-z_][A-Za-z0-9_]* )
    | (?P<operator> [-+*/%=<>!()\[\]{}:,.;@|&^~] )
    """,
    re.VERBOSE | re.ASCII,
)
_FIELDS = re.compile(r"(?: [^{}] | \{\{ | \}\} | \{[^{}]*\} )*", re.VERBOSE)
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
    lexer = _Lexer(text)
    lexer.check()
    try:
        tree = ast.parse(text)
    except SyntaxError as error:
        raise Fault(f"syntax error: {error.msg}", error.lineno) from None
    except (RecursionError, MemoryError, ValueError, OverflowError):
        raise Fault("the plan is too deeply nested to be read") from None
    _check_depth(tree)
    return tree, lexer.tunables


def chosen_first(text: str, choices: Mapping[str, int]) -> str:
    """Normalised text with the chosen value first on each ``# tune:`` line; an unreadable text stays unchanged."""
    parts: list[str] = []
    position = 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            return text
        parts.append(_with_choice(match.group(), choices) if match.lastgroup == "comment" else match.group())
        position = match.end()
    return "".join(parts)


def _with_choice(comment: str, choices: Mapping[str, int]) -> str:
    tunables: dict[str, tuple[int, ...]] = {}
    try:
        _read_tune(comment, 0, tunables)
    except Fault:
        return comment
    for name, values in tunables.items():
        if choices.get(name, values[0]) != values[0] and choices[name] in values:
            order = [choices[name], *(value for value in values if value != choices[name])]
            return f"# tune: {name} = {' | '.join(map(str, order))}"
    return comment


def _check_characters(text: str) -> None:
    if len(text) > MAX_PLAN_BYTES:
        raise Fault(f"the plan has {len(text):,} characters; the limit is {MAX_PLAN_BYTES:,} bytes")
    try:
        encoded = text.encode()
    except UnicodeEncodeError as error:
        raise Fault("the plan holds half of a surrogate pair", text.count("\n", 0, error.start) + 1) from None
    if len(encoded) > MAX_PLAN_BYTES:
        raise Fault(f"the plan has {len(encoded):,} bytes; the limit is {MAX_PLAN_BYTES:,}")
    if match := _CONTROL.search(text):
        line = text.count("\n", 0, match.start()) + 1
        raise Fault(f"the plan holds the control character {match.group()!r}", line)
    for line, content in enumerate(text.split("\n"), 1):
        if len(content) > MAX_LINE_CHARS:
            raise Fault(f"the line has {len(content):,} characters; the limit is {MAX_LINE_CHARS:,}", line)


class _Lexer:
    """Checks the tokens of a text and refuses the first one that is out of bounds."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.line = 1
        self.tunables: dict[str, tuple[int, ...]] = {}
        self._open: list[int] = []
        """Lines of the brackets that are open."""
        self._in_statement = 0

    def check(self) -> None:
        position = 0
        while position < len(self.text):
            match = _TOKEN.match(self.text, position)
            if match is None:
                raise Fault(f"syntax error at {self.text[position : position + 20]!r}{self._hint(position)}", self.line)
            self._token(str(match.lastgroup), match.group(), position)
            position = match.end()
            self.line += match.group().count("\n")
        if self._open:
            raise Fault("syntax error: the bracket is never closed", self._open[-1])

    def _hint(self, position: int) -> str:
        if self.text[position] in "\"'":
            return ": strings end on their line and hold no backslash"
        return ": names and operators are plain ASCII" if not self.text[position].isascii() else ""

    def _token(self, kind: str, content: str, position: int) -> None:
        if kind == "comment":
            _read_tune(content, self.line, self.tunables)
        elif kind == "newline":
            self._in_statement = self._in_statement if self._open else 0
        elif kind == "space":
            at_start = position == 0 or self.text[position - 1] == "\n"
            if at_start and not self._open and len(content) > MAX_INDENT_COLUMNS:
                raise Fault(f"indented by more than {MAX_INDENT_COLUMNS} columns", self.line)
        else:
            self._in_statement += 1
            self._significant(kind, content)
        if self._in_statement > MAX_STATEMENT_TOKENS:
            raise Fault(f"one statement has more than {MAX_STATEMENT_TOKENS:,} tokens; split it", self.line)
        if len(self._open) > MAX_BRACKETS:
            raise Fault(f"more than {MAX_BRACKETS} brackets inside each other; split the statement", self.line)

    def _significant(self, kind: str, content: str) -> None:
        if kind == "name" and content in _KEYWORDS:
            raise Fault(f"the plan language has no {_KEYWORDS[content]}", self.line)
        if kind == "number" and len(content) > MAX_NUMBER_CHARS:
            raise Fault("the number is too long", self.line)
        if kind == "string":
            self._string(content)
        elif content in "([{":
            self._open.append(self.line)
        elif content in ")]}":
            if not self._open:
                raise Fault(f"syntax error: {content!r} closes nothing", self.line)
            self._open.pop()

    def _string(self, content: str) -> None:
        prefix = content[: min(content.find(quote) for quote in "\"'" if quote in content)]
        if prefix.lower() not in ("", "f"):
            raise Fault(f"strings have no prefix but f, not {prefix[:20]!r}", self.line)
        if not prefix:
            return
        # Fields of f-strings are code: they count as such, and stay on one line, without inner braces.
        body = content[len(prefix) + 1 : -1]
        if "\n" in content or content.endswith(('"""', "'''")) or not _FIELDS.fullmatch(body):
            raise Fault("an f-string is one line; its {fields} hold no braces and not its own quote", self.line)
        self._in_statement += len(body)
        if sum(body.count(bracket) for bracket in "([") > MAX_BRACKETS:
            raise Fault("the f-string holds too many brackets", self.line)


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
            # An elif is an if inside else: a long chain counts as flat.
            flat = isinstance(node, ast.If) and node.orelse == [child] and isinstance(child, ast.If)
            stack.append((child, depth if flat else depth + 1, line))
