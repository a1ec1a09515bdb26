"""Pairs of two languages in two files, the same line of each being one pair, as CodeRosetta has them.

``cpp.para.test.tok`` and ``cuda.para.test.tok``: text, a function in each line, its tokens with spaces between.
``fortran.para.test.jsonl`` and ``cpp.para.test.jsonl``: JSON lines with a column ``text``. The files ``mono`` are
unpaired, and are not read. From README and ``src/dataset/`` of ``tehranixyz/CodeRosetta``; its C++ and CUDA are
BabelTower's (``IPRC-ICT/BabelTower``, ``dataset/``).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from kernelforge.errors import UsageError
from kernelforge.tasks.loaders.rows import Row, too_much

PAIRED: Final = "{language}.para.test.tok"
"""Name of a file of pairs."""
_SPLITS: Final = ("train", "valid", "test")
_SUFFIXES: Final = (".tok", ".jsonl")


def source_files(source: Path, language: str, other: str) -> list[Path]:
    """Files of a language that have a counterpart: SOURCE, with or without one, or those of a folder by their names."""
    names = {f"{language}.para.{split}{suffix}" for split in _SPLITS for suffix in _SUFFIXES}
    if source.is_file():
        return [source] if source.name in names and _is_plain(source) else []
    paths = [source / name for name in sorted(names)]
    return [path for path in paths if _is_plain(path) and _is_plain(_counterpart(path, language, other))]


def _is_plain(path: Path) -> bool:
    return path.is_file() and not path.is_symlink()


def _counterpart(path: Path, language: str, other: str) -> Path:
    return path.with_name(f"{other}{path.name.removeprefix(language)}")


def pairs_of(path: Path, language: str, other: str) -> Iterator[Row]:
    """Rows with a column for each language, of a file and its counterpart in the same folder.

    Raises:
        UsageError: there is no counterpart, one cannot be read, or they have different numbers of lines.
    """
    counterpart = _counterpart(path, language, other)
    if not _is_plain(counterpart):
        raise UsageError(f"{path} has no counterpart: there is no file {counterpart.name} in its folder")
    texts, others = _texts(path), _texts(counterpart)
    number = 0
    while True:
        text, translation = next(texts, None), next(others, None)
        if text is None and translation is None:
            return
        if text is None or translation is None:
            raise UsageError(f"{path} and {counterpart.name} have different numbers of lines, so no line has a pair")
        origin, fault = f"{path.name}, row {number}", text.fault or translation.fault
        values = {language: text.values.get("text"), other: translation.values.get("text")}
        yield Row(origin, {} if fault else values, fault)
        if fault and (text.values.get("last") or translation.values.get("last")):
            return
        number += 1


def _texts(path: Path) -> Iterator[Row]:
    """The text of each line."""
    try:
        with path.open("rb") as file:
            total = number = 0
            while line := file.readline((4 << 20) + 1):
                total += len(line)
                if fault := too_much(number, len(line), total):
                    yield Row("", {"last": True}, fault)
                    return
                yield _text(path, line)
                number += 1
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error


def _text(path: Path, line: bytes) -> Row:
    try:
        text = line.decode().strip()
        value = json.loads(text)["text"] if path.suffix == ".jsonl" else text
    except UnicodeDecodeError:
        return Row("", {}, "the row is not UTF-8 text")
    except (ValueError, RecursionError, LookupError, TypeError):
        return Row("", {}, "the row is no JSON object with a text")
    return Row("", {"text": value})
