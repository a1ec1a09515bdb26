"""Names become paths: none leads out of the folder, meets another one, or is too long for a file system."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelforge.report.html import paths
from kernelforge.report.html.paths import FolderLinks, OneFileLinks, slug

AWKWARD = [
    "", ".", "..", "../../etc/passwd", "/abs", "a/b", "a-b", "a\\b", "A", "a", "CON", "con", "nul.html", "com1",
    "index", "a.b", "a..b", ".hidden", "x" * 60, "x" * 61, "x" * 300, "ß", "ſ", "\u202eevil", "a b", "a\nb", "\x00",
    "\ud800", "%2e%2e", "<script>", "softmax-0123456789", "-x", "a.", "x?y#z",
]  # fmt: skip


def test_plain_names_stay_as_they_are():
    for name in ("softmax", "layer_norm", "20261121-212600-42df", "level1-19_relu", "v1.2"):
        assert slug(name) == name


@pytest.mark.parametrize("name", AWKWARD, ids=ascii)
def test_an_awkward_name_is_one_short_part_of_a_path(name: str):
    made = slug(name)
    assert 0 < len(made) <= 60
    assert made.isascii()
    assert made == made.lower()
    assert not set(made) & set("/\\:?#%<>\"'& \t\n\x00")
    assert made not in (".", "..")
    assert not made.startswith((".", "-"))
    assert not made.endswith(".")
    assert made.split(".")[0] not in ("con", "nul", "com1")


def test_awkward_names_stay_different():
    assert len({slug(name) for name in AWKWARD}) == len(AWKWARD)


@given(st.text(), st.text())
def test_different_names_have_different_slugs(a: str, b: str):
    assert (slug(a) == slug(b)) == (a == b)


def test_a_name_cannot_pass_for_the_slug_of_another():
    assert slug(slug("A")) != slug("A")


def test_links_between_files_are_relative():
    links = FolderLinks(paths.attempt_page("r", "t", 3))
    assert links.to(paths.attempt_page("r", "t", 12)) == "12.html"
    assert links.to(paths.task_page("r", "t"), "lineage") == "index.html#lineage"
    assert links.to(paths.INDEX) == "../../../index.html"
    assert links.to("assets/style.css") == "../../../assets/style.css"
    assert links.to(paths.attempt_page("r", "t", 3), "why") == "#why"


def test_links_within_one_file_are_fragments_with_ids_of_their_own():
    page = paths.attempt_page("r", "t", 3)
    links = OneFileLinks(page, twin=paths.run_page("r"))
    assert links.to(page, "why") == f"#{links.id('why')}"
    assert links.id("why") != OneFileLinks(paths.INDEX).id("why")
    assert links.to(paths.run_page("r")) == links.to(paths.INDEX)
