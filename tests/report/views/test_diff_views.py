"""Differences are right, numbered as editors count, and bounded however long or hostile the texts are."""

from __future__ import annotations

import difflib
import random

import pytest

from kernelforge.report.views.diff import MAX_DIFF_LINES, Diff, diff_view, text_diff, unified
from tests.report.golden.golden_runs import golden_records


def diff(before: str, after: str) -> Diff:
    return text_diff(before, after, name="source", beside="parent", against="r/t/00")


def applied(before: str, result: Diff) -> list[str]:
    """The new text, from the old one and the difference alone."""
    old, made, at = before.splitlines(), [], 0
    for line in result.lines:
        if line.kind == "gap":
            continue
        if line.old_number is not None:
            made += old[at : line.old_number - 1]
            at = line.old_number
            assert old[at - 1] == line.text
        if line.kind != "removed":
            made.append(line.text)
            assert line.new_number is not None
    return made + old[at:]


def test_a_difference_makes_the_new_text_of_the_old_one() -> None:
    selected = random.Random(7)
    for length in (0, 1, 5, 40, 400, 900):
        for alphabet in ("ab", "abcdefghijklmnop"):
            old = [selected.choice(alphabet) + str(selected.randrange(9)) for _ in range(length)]
            new = [line for line in old if selected.random() < 0.9]
            for _ in range(6):
                new.insert(selected.randrange(len(new) + 1), selected.choice("xyz"))
            before, after = "\n".join(old), "\n".join(new)
            result = diff(before, after)
            assert applied(before, result) == new
            assert result.added - result.removed == len(new) - len(old)
            assert result.added == sum(line.kind == "added" for line in result.lines)


def test_new_lines_are_numbered_in_the_new_text() -> None:
    result = diff("a\nb\nc\nd\ne\nf\ng\nh\n", "a\nB\nB2\nc\nd\ne\nf\ng\nh\n")
    new = ["a", "B", "B2", "c", "d", "e", "f", "g", "h"]
    text = [(line.kind, line.old_number, line.new_number, line.text) for line in result.lines]
    assert text == [
        ("same", 1, 1, "a"), ("removed", 2, None, "b"), ("added", None, 2, "B"), ("added", None, 3, "B2"),
        ("same", 3, 4, "c"), ("same", 4, 5, "d"), ("same", 5, 6, "e"), ("gap", None, None, "3 lines left out"),
    ]  # fmt: skip
    assert all(new[line.new_number - 1] == line.text for line in result.lines if line.new_number)


def test_the_text_form_is_a_unified_diff() -> None:
    before, after = "\n".join("abcdefghijklmnopqrstuvw"), "\n".join("abXdefghijklmnopqrstYw")
    own_text = unified(diff(before, after)).split("\n")
    theirs = list(
        difflib.unified_diff(before.splitlines(), after.splitlines(), "parent source", "this source", lineterm="")
    )
    assert own_text == theirs
    assert unified(diff(before, before)) == ""


@pytest.mark.parametrize("every", [1, 2])
def test_ten_thousand_changed_lines_are_compared_line_by_line(every: int) -> None:
    """Neither ends in reasonable time where every line is held against every other."""
    old = [f"line {number} {'x' * 30}" for number in range(10_000)]
    new = [f"{line} changed" if at % every == 0 else line for at, line in enumerate(old)]
    before, after = "\n".join(old), "\n".join(new)
    result = diff(before, after)
    assert (result.added, result.removed) == (10_000 // every, 10_000 // every)
    assert applied(before, result) == new


def test_lines_that_repeat_and_never_meet_are_replaced_as_a_whole() -> None:
    before, after = "\n".join(["a"] * 3_000), "\n".join(["b", "a"] * 1_500)
    assert applied(before, diff(before, after)) == after.split("\n")


def test_one_line_of_a_megabyte_and_too_many_lines() -> None:
    long = diff("x" * 1_000_000, "x" * 999_999 + "y")
    assert (long.added, long.removed) == (1, 1)
    many = diff("a\n" * MAX_DIFF_LINES, "b\n" * MAX_DIFF_LINES)
    assert not many.compared
    assert not many.equal
    assert many.lines == ()
    assert unified(many) is None
    assert diff("a\n" * 2 * MAX_DIFF_LINES, "a\n" * 2 * MAX_DIFF_LINES).equal


def test_a_line_ends_where_a_compiler_ends_it() -> None:
    result = diff("int a;\u2028int b;\x0cint c;\n", "int a;\u2028int b;\x0cint d;\n")
    assert [line.old_number for line in result.lines if line.kind == "removed"] == [1]
    assert [line.text for line in result.lines if line.kind == "added"] == ["int a;\u2028int b;\x0cint d;"]


def test_two_attempts_are_compared_in_the_texts_that_are_asked_for() -> None:
    first, second = golden_records("modelled").of_task("softmax")[:2]
    view = diff_view(first, second)
    assert [diff.name for diff in view.diffs] == ["source", "plan"]
    assert (view.before, view.after) == (first.id, second.id)
    assert [diff.name for diff in diff_view(first, second, ["plan"]).diffs] == ["plan"]
