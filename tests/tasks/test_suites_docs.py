"""The page on suites names every suite that ships, with as many tasks as it has."""

from __future__ import annotations

import re
from pathlib import Path

from kernelforge.tasks import list_suites
from tests.support.shipped_prompts import shipped

ROOT = Path(__file__).resolve().parents[2]
ROW = re.compile(r"^\| `([\w-]+)` \| ([\d,]+) \|", re.MULTILINE)
COUNTS = {name: len(shipped(name)) for name in list_suites()}


def test_the_page_lists_the_suites_with_their_numbers_of_tasks() -> None:
    rows = ROW.findall((ROOT / "docs" / "suites.md").read_text())
    assert {name: int(count.replace(",", "")) for name, count in rows} == COUNTS


def test_readme_gives_the_number_of_all_tasks() -> None:
    assert f"# {sum(COUNTS.values()):,} tasks" in (ROOT / "README.md").read_text()
