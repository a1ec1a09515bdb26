"""Lint names and prose: weak identifiers, words that hide the subject, riddles as first lines, long lines in documents.

Run from the root of the checkout, for everything or for some files and folders:

    python .ci/plain_english.py [PATH ...]
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterable, Iterator
from pathlib import Path

NAMES = frozenset(
    [
        "again",
        "asked",
        "chosen",
        "found",
        "given",
        "held",
        "known",
        "lane",
        "left",
        "mine",
        "one",
        "ours",
        "place",
        "said",
        "shown",
        "told",
        "wanted",
        "whole",
    ]
)
WORDS = re.compile(
    r"\b(?:afresh|anew|becomes? of|beside|came of|comes of|ere|hence|it is as if|lest|meanwhile|mend(?:s|ed|ing)?"
    r"|no one|nobody|nothing of|shirk\w*|somebody|someone|there(?:of|upon)|told|what(?:ever|soever)|whichever"
    r"|who(?:m|so)?ever|where(?:of|upon))\b",
    re.IGNORECASE,
)
RIDDLE = re.compile(r"(?:How|That|Those|What|When|Where|Which|Who|Whom|Whose|Why)\b")
LONGEST_LINE = 120
ROOTS = (
    "kernelforge",
    "tests",
    "benchmarks",
    "docs",
    "prompts",
    ".ci",
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
)
KEPT = {
    # Fields of stored records, of exports and of journalled state.
    "kernelforge/agents/diagnosis/": ("`place`",),
    "kernelforge/client/models.py": ("`lane`",),
    "kernelforge/records/": ("`lane`",),
    "kernelforge/report/": ("`lane`", "`place`", '"beside"'),
    "kernelforge/run/proposals.py": ("`whole`",),
    "kernelforge/search/refine.py": ('"mending"',),
    "kernelforge/server/jobs/results.py": ("`lane`",),
    "kernelforge/server/sessions/turns.py": ("`asked`",),
    # Reasons of hidden failures, and of the table of mutants.
    "kernelforge/evaluation/audit/mutations_sums.py": ('"anew"',),
    "kernelforge/evaluation/stages/compile_stage.py": ('"told"',),
    "docs/audit.md": ('"anew"',),
    # Examples of what is reported.
    "tests/test_checks.py": ('"',),
}
"""By file or folder: the beginnings of messages that are not reported there."""
# Text of others, data, and this file's own word list.
SKIPPED = re.compile(
    r"static/vendor/|tests/planted/[\w-]+\.md$|tests/(?:adversarial/cases|adversarial/tasks|planted/tasks|[\w/]*(?:golden|fixtures?|recorded|samples))/|plain_english\.py$"
)


def names(nodes: Iterable[ast.AST]) -> Iterator[tuple[int, str]]:
    """Every name that nodes bind, with its line."""
    for node in nodes:
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.lineno, node.name


def first_lines(nodes: Iterable[ast.AST]) -> Iterator[tuple[int, str]]:
    """The first line of every docstring."""
    for node in nodes:
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text:
                yield getattr(node, "lineno", 1), text.splitlines()[0]


def prose(source: str) -> Iterator[tuple[int, str]]:
    """Comments and string literals of Python source, line by line."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type in (tokenize.COMMENT, tokenize.STRING):
            for offset, line in enumerate(token.string.splitlines()):
                yield token.start[0] + offset, line


def problems(path: Path) -> Iterator[tuple[int, str]]:
    """(line, message) of each problem in one file."""
    source = path.read_text()
    if path.suffix == ".py":
        nodes = list(ast.walk(ast.parse(source)))
        for line, name in names(nodes):
            if name.strip("_") in NAMES:
                yield line, f"name `{name}`: use the noun of what it holds"
        for line, text in first_lines(nodes):
            if RIDDLE.match(text):
                yield line, f'docstring "{text[:50]}": say first what it is or does'
        lines = prose(source) if WORDS.search(source) else iter(())
    else:
        lines = enumerate(source.splitlines(), 1)
        for line, text in enumerate(source.splitlines(), 1):
            if len(text) > LONGEST_LINE and path.suffix == ".md":
                yield line, f"{len(text)} characters, more than {LONGEST_LINE}"
    for line, text in lines:
        for match in WORDS.finditer(text):
            yield line, f'"{match[0]}": put it in plain words'


def is_kept(path: Path, message: str) -> bool:
    """Whether the name or word has to stay in this file."""
    return any(
        path.as_posix().startswith(prefix) and message.removeprefix("name ").startswith(words)
        for prefix, words in KEPT.items()
    )


def files(roots: list[str]) -> Iterator[Path]:
    """Python and Markdown files under the roots."""
    for root in map(Path, roots):
        for path in sorted(root.rglob("*")) if root.is_dir() else [root]:
            if path.suffix in (".py", ".md", ".jinja", ".j2", ".html") and not SKIPPED.search(path.as_posix()):
                yield path


def main(roots: list[str]) -> int:
    """Print every problem as FILE:LINE: MESSAGE; the status is 1 if there was one."""
    seen = [
        (path, line, message)
        for path in files(roots or list(ROOTS))
        for line, message in sorted(problems(path))
        if not is_kept(path, message)
    ]
    for path, line, message in seen:
        print(f"{path}:{line}: {message}")
    if seen:
        print(f"{len(seen)} problems", file=sys.stderr)
    return int(bool(seen))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
