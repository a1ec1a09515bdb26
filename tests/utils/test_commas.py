"""Lists are split at the commas that stand in no bracket."""

from __future__ import annotations

from kernelforge.utils.commas import comma_parts


def test_commas_in_brackets_split_nothing() -> None:
    assert comma_parts("a[1, 2], f(x, {y, z}) , c") == ["a[1, 2]", "f(x, {y, z})", "c"]
    assert comma_parts("View<int, 2>, b") == ["View<int", "2>", "b"]
    assert comma_parts("View<int, 2>, b", angles=True) == ["View<int, 2>", "b"]
    assert comma_parts("a->b, c", angles=True) == ["a->b", "c"]


def test_a_part_may_be_empty() -> None:
    assert comma_parts("") == [""]
    assert comma_parts("a,, b,") == ["a", "", "b", ""]


def test_the_list_ends_where_a_bracket_closes_that_it_does_not_open() -> None:
    assert comma_parts("a, b); f(c, d)") == ["a", "b); f(c, d)"]
