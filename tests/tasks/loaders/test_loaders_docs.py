"""docs/loaders.md and the command's help name every format, and no other."""

from __future__ import annotations

import re
from pathlib import Path

from kernelforge.cli.import_tasks import FORMATS as NAMED
from kernelforge.evaluation.size_search import Bounds
from kernelforge.evaluation.size_search.search import TILES
from kernelforge.tasks.loaders import FORMATS, loader_named

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "loaders.md").read_text()


def test_every_format_has_one_command() -> None:
    assert re.findall(r"^\$ kernelforge tasks import \S+ --format (\S+)", PAGE, re.MULTILINE) == list(FORMATS)
    assert re.findall(r"^\|.* \| `(\w\S+)` \|$", PAGE, re.MULTILINE) == list(FORMATS)


def test_the_help_names_the_formats() -> None:
    assert NAMED == FORMATS
    assert [loader_named(name).name for name in FORMATS] == list(FORMATS)


def test_the_bounds_it_names_are_those_in_force() -> None:
    bounds = Bounds()
    for ceiling in (bounds.base, bounds.reach):
        assert f"{ceiling.elements:,} elements" in PAGE
        assert f"{ceiling.flops // 10**6} million operations" in PAGE
    assert f"at most {bounds.judged_flops // 10**9} thousand million operations" in PAGE
    assert f"in {bounds.answer_s:g} seconds" in PAGE
    assert f"tile ({', '.join(map(str, TILES[:-1]))} or {TILES[-1]})" in PAGE
