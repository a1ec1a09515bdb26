"""Hostile names and texts on disk: a report stays in its folder, and its files do not surprise who opens them."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from kernelforge.report.html import Site
from kernelforge.report.html.writer import write_folder
from tests.report.golden.golden_runs import golden_records


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    outside = tmp_path_factory.mktemp("outside")
    write_folder(Site([golden_records("hostile"), golden_records("escaping")]), outside / "a" / "b" / "report")
    return outside


@pytest.mark.slow
def test_no_name_leads_out_of_the_folder(folder: Path):
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert all(path.is_relative_to(folder / "a" / "b" / "report") for path in files)


def test_names_are_portable_and_differ_on_any_file_system(folder: Path):
    names = [str(path.relative_to(folder)) for path in folder.rglob("*")]
    assert len({name.lower() for name in names}) == len(names)
    parts = {part for name in names for part in name.split("/")}
    assert all(part.isascii() and len(part) < 100 and not set(part) & set('<>:"\\|?*% ') for part in parts)


def test_every_task_of_a_run_has_a_page_of_its_own(folder: Path):
    records = golden_records("hostile")
    site = Site([records])
    pages = [path for path in site.pages() if path.endswith("/index.html") and path.count("/") == 3]
    assert len(set(pages)) == len(pages) == len(records.run.config.tasks)


def test_no_cell_of_a_spreadsheet_is_a_formula(folder: Path):
    read = 0
    for path in folder.rglob("*.csv"):
        with path.open(newline="") as file:
            cells = [cell for row in csv.reader(file) for cell in row]
        read += len(cells)
        for cell in cells:
            if cell[:1] in ("=", "+", "-", "@", "\t", "\r"):
                float(cell)
    assert read > 100
