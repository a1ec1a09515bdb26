"""Generate the API reference, `docs/reference/*.md`, from the docstrings of the public packages.

python .ci/reference.py            # write the pages
python .ci/reference.py --check    # exit with 1 if a page is not what its docstrings say
"""

from __future__ import annotations

import re
import sys
import textwrap
from pathlib import Path

import griffe

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "docs" / "reference"
WIDTH = 120
PAGES = {
    "kernelforge": "Search, evaluate, load tasks",
    "kernelforge.client": "HTTP clients of a reward server",
    "kernelforge.records": "Records that everything takes and returns",
    "kernelforge.rewards": "Reward policies",
    "kernelforge.tasks": "Tasks and suites",
    "kernelforge.errors": "Exceptions",
}
"""Packages with a page, and the subject of each. A page lists the names of `__all__`, or every public class."""

ROLE = re.compile(r":\w+:`~?([^`]+)`")


def prose(text: str) -> str:
    """Docstring text as Markdown, wrapped to the width; indented blocks stay as they are."""
    text = ROLE.sub(r"`\1`", text).replace("``", "`")
    blocks = []
    for block in text.strip().split("\n\n"):
        if block.lstrip().startswith(("-", "*", "|", ">>>", "```")) or block.startswith("    "):
            blocks.append(block)
        else:
            blocks.append(textwrap.fill(" ".join(block.split()), WIDTH, break_long_words=False, break_on_hyphens=False))
    return "\n\n".join(blocks)


def item(name: str, description: str) -> str:
    """One entry of a list of arguments or attributes."""
    text = prose(description).replace("\n\n", "\n")
    return textwrap.fill(
        f"- **`{name}`**" + (f": {' '.join(text.split())}" if text.strip() else ""),
        WIDTH,
        subsequent_indent="  ",
        break_long_words=False,
        break_on_hyphens=False,
    )


def signature(function: griffe.Function, name: str) -> str:
    """The call as Python, one parameter a line where it does not fit on one."""
    parameters, separator = [], False
    for parameter in function.parameters:
        if parameter.name in ("self", "cls"):
            continue
        kind = parameter.kind
        if kind is griffe.ParameterKind.keyword_only and not separator:
            parameters.append("*")
            separator = True
        stars = {griffe.ParameterKind.var_positional: "*", griffe.ParameterKind.var_keyword: "**"}.get(kind, "")
        separator = separator or stars == "*"
        text = f"{stars}{parameter.name}"
        if parameter.annotation is not None:
            text += f": {parameter.annotation}"
        if parameter.default is not None and not stars:
            text += f" = {parameter.default}" if parameter.annotation is not None else f"={parameter.default}"
        parameters.append(text)
    result = f" -> {function.returns}" if function.returns is not None else ""
    line = f"{name}({', '.join(parameters)}){result}"
    if len(line) > WIDTH:
        line = f"{name}(\n" + "".join(f"    {parameter},\n" for parameter in parameters) + f"){result}"
    return f"```python\n{line}\n```"


def documented(thing: griffe.Object) -> list[str]:
    """The sections of a docstring as Markdown blocks."""
    if thing.docstring is None:
        return []
    blocks = []
    for section in thing.docstring.parse("google"):
        if section.kind is griffe.DocstringSectionKind.text:
            blocks.append(prose(section.value))
        elif section.kind in (griffe.DocstringSectionKind.parameters, griffe.DocstringSectionKind.attributes):
            title = "Arguments" if section.kind is griffe.DocstringSectionKind.parameters else "Attributes"
            blocks.append(f"{title}:\n\n" + "\n".join(item(entry.name, entry.description) for entry in section.value))
        elif section.kind is griffe.DocstringSectionKind.returns:
            blocks.append("Returns:\n\n" + "\n".join(prose(entry.description) for entry in section.value))
        elif section.kind is griffe.DocstringSectionKind.raises:
            entries = [item(str(entry.annotation), entry.description) for entry in section.value]
            blocks.append("Raises:\n\n" + "\n".join(entries))
        elif section.kind is griffe.DocstringSectionKind.examples:
            for kind, text in section.value:
                code = kind is griffe.DocstringSectionKind.examples
                blocks.append(f"```pycon\n{text}\n```" if code else prose(text))
        elif section.kind is griffe.DocstringSectionKind.admonition:
            blocks.append(f"{section.title}: {prose(section.value.description)}")
    return blocks


def inherited_and_own(thing: griffe.Class) -> list[tuple[str, griffe.Object]]:
    """Members of a class by name, those of base classes first; what every record has stands with `Record` alone."""
    members: dict[str, griffe.Object] = {}
    for base in [*reversed(thing.mro()), thing]:
        if base.name != "Record" or base is thing:
            for name, member in base.members.items():
                members[name] = member.final_target if isinstance(member, griffe.Alias) else member
    return list(members.items())


def entry(name: str, thing: griffe.Object | griffe.Alias, level: int = 2) -> list[str]:
    """Blocks of one public name."""
    thing = thing.final_target if isinstance(thing, griffe.Alias) else thing
    blocks = [f"{'#' * level} `{name}`"]
    if isinstance(thing, griffe.Function):
        blocks.append(signature(thing, name))
    blocks += documented(thing)
    if isinstance(thing, griffe.Class):
        fields = [
            item(
                f"{field}: {member.annotation}" if member.annotation is not None else field,
                member.docstring.value if member.docstring else "",
            )
            for field, member in inherited_and_own(thing)
            if isinstance(member, griffe.Attribute)
            and not field.startswith("_")
            and (member.annotation or member.docstring)
        ]
        if fields:
            blocks.append("Fields:\n\n" + "\n".join(fields))
        for method, member in inherited_and_own(thing):
            if isinstance(member, griffe.Function) and not method.startswith("_") and member.docstring:
                blocks += entry(method, member, level + 1)
    return blocks


def public_names(package: griffe.Module) -> list[str]:
    """Names of `__all__`; without one, the classes and functions that do not start with an underscore."""
    if package.exports:
        return [str(name) for name in package.exports if not str(name).startswith("__")]
    kinds = (griffe.Class, griffe.Function)
    return [name for name, member in package.members.items() if isinstance(member, kinds) and not name.startswith("_")]


def page(module: griffe.Module) -> str:
    """The Markdown page of one package."""
    blocks = [f"# `{module.path}`", *documented(module)]
    for name in public_names(module):
        member = module.members.get(name)
        if member is not None and not (member.is_module or (member.is_alias and member.final_target.is_module)):
            blocks += entry(name, member)
    return "\n\n".join(block for block in blocks if block) + "\n"


def pages() -> dict[Path, str]:
    """Every page of the reference by its path."""
    loader = griffe.GriffeLoader(search_paths=[ROOT], allow_inspection=False)
    loader.load("kernelforge")
    loader.resolve_aliases(implicit=False, external=False)
    modules = {name: loader.modules_collection[name] for name in PAGES}
    rows = "\n".join(f"| [`{name}`]({name}.md) | {subject} |" for name, subject in PAGES.items())
    index = f"""# API reference

Generated from docstrings. A test compares these pages with the code.

```bash
python .ci/reference.py    # write them again
```

| package | subject |
|---|---|
{rows}
"""
    return {FOLDER / "README.md": index, **{FOLDER / f"{name}.md": page(module) for name, module in modules.items()}}


def main(arguments: list[str]) -> int:
    """Write the pages, or compare them with `--check`."""
    if arguments not in ([], ["--check"]):
        print(__doc__, file=sys.stderr)
        return 2
    texts = pages()
    stale = [path for path, text in texts.items() if not path.is_file() or path.read_text() != text]
    if arguments:
        for path in stale:
            print(
                f"{path.relative_to(ROOT)} is not what the docstrings say: run python .ci/reference.py", file=sys.stderr
            )
        return int(bool(stale))
    FOLDER.mkdir(exist_ok=True)
    for path, text in texts.items():
        path.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
