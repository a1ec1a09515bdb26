"""Likeness of translations: tokens without comments, and scores that a renamed copy does not reach."""

from __future__ import annotations

import pytest

from kernelforge.translation.likeness import likeness, tokens

CODE = "void f(int n, float *x)\n{\n    for (int i = 0; i < n; i++)\n        x[i] = 2.0f * x[i];\n}\n"


def test_tokens_are_those_of_c_without_comments() -> None:
    assert tokens('x[i]+=1.5f; // y\nputs("a b"); /* z */') == [
        "x", "[", "i", "]", "+", "=", "1.5f", ";", "puts", "(", '"a b"', ")", ";",
    ]  # fmt: skip


def test_a_copy_scores_one_and_a_renamed_one_less() -> None:
    copy = likeness([CODE.replace("\n", "\n// same\n")], [CODE], "c")
    renamed = likeness([CODE.replace("x", "values")], [CODE], "c")
    assert copy is not None
    assert renamed is not None
    assert copy.bleu == pytest.approx(1.0)
    assert renamed.bleu < 0.9
    assert likeness([], [], "c") is None


def test_codebleu_sees_that_a_renamed_copy_has_the_same_tree() -> None:
    pytest.importorskip("tree_sitter_c", reason="the extra `metrics` is not installed")
    copy, renamed = likeness([CODE], [CODE], "c"), likeness([CODE.replace("x", "values")], [CODE], "c")
    assert copy is not None
    assert renamed is not None
    assert copy.codebleu == pytest.approx(1.0)
    assert renamed.codebleu is not None
    assert renamed.bleu < renamed.codebleu < 1


def test_the_same_texts_are_compared_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The summary of a run and its board ask for the same likeness one after the other."""
    first = likeness([CODE, CODE], [CODE, CODE], "c")
    monkeypatch.setattr("kernelforge.translation.likeness.corpus_bleu", lambda pairs: pytest.fail("compared again"))
    assert likeness([CODE, CODE], [CODE, CODE], "c") == first
