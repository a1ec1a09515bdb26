"""The five levels of arXiv 2306.15121, by the rules that docs/study.md states."""

from __future__ import annotations

import pytest

from kernelforge.records import Message
from kernelforge.report.terminal.study import study_lines, study_markdown
from kernelforge.study.codex import (
    LEVELS,
    StudyPrompt,
    Suggestion,
    SuggestionVerdict,
    proficiency,
    study_scores,
)
from tests.support.terminal import drawn


def suggestion(verdict: SuggestionVerdict, model: str = "cuda", code: str = "", *, position: int = 0) -> Suggestion:
    messages = (
        Message(agent="coder", role="prompt", provider="x", content="AXPY CUDA"),
        Message(agent="coder", role="reply", provider="x", content=code),
    )
    return Suggestion(
        kernel="axpy",
        model="cuda",
        hint="",
        position=position,
        coder="x",
        messages=messages,
        code="" if verdict == "no code" else code or f"{model} {verdict}",
        used_model=None if verdict == "no code" else model,
        verdict=verdict,
    )


RIGHT, OTHER, WRONG = suggestion("right"), suggestion("right", "openmp"), suggestion("wrong")
SECOND = suggestion("right", code="cuda again")
PROSE = suggestion("no code")


@pytest.mark.parametrize(
    ("suggestions", "score"),
    [
        ([PROSE], 0.0),
        ([WRONG], 0.0),
        ([OTHER], 0.0),
        ([OTHER, WRONG], 0.0),
        ([RIGHT, WRONG], 0.25),
        ([RIGHT, SECOND, OTHER, WRONG], 0.25),
        ([RIGHT, suggestion("wrong", "openmp")], 0.25),
        ([RIGHT, suggestion("not judged", "sycl")], 0.25),
        ([RIGHT, OTHER], 0.5),
        ([RIGHT, SECOND, OTHER, PROSE], 0.5),
        ([RIGHT, SECOND], 0.75),
        ([RIGHT], 1.0),
        ([RIGHT, PROSE, RIGHT], 1.0),
    ],
)
def test_a_score_follows_from_the_different_codes(suggestions: list[Suggestion], score: float) -> None:
    assert proficiency("cuda", suggestions)[0] == score
    assert proficiency("cuda", suggestions[::-1])[0] == score


def test_comments_and_spacing_make_no_other_code() -> None:
    same = suggestion("right", code="cuda /* of course */\n   right // yes")
    assert proficiency("cuda", [RIGHT, same]) == (1.0, {"right": 1, "other": 0, "wrong": 0})


def test_a_prompt_without_all_verdicts_has_no_score_and_counts_in_no_mean() -> None:
    assert proficiency("cuda", [RIGHT, suggestion("failed")])[0] is None
    assert proficiency("cuda", [])[0] is None
    prompts = [StudyPrompt("axpy", "cuda", ""), StudyPrompt("gemv", "cuda", ""), StudyPrompt("axpy", "openmp", "")]
    scores = study_scores(prompts, [RIGHT, OTHER, suggestion("not judged", "sycl")], 3)
    assert [(row.score, row.level) for row in scores.prompts] == [(0.25, "novice"), (None, ""), (None, "")]
    assert (scores.prompts[0].wrong, scores.prompts[0].not_judged) == (1, 1)
    assert scores.by_kernel == {"axpy": 0.25, "gemv": None}
    assert scores.by_model == {"cuda": 0.25, "openmp": None}


def test_a_prompt_with_fewer_suggestions_than_requested_has_no_score() -> None:
    prompts = [StudyPrompt("axpy", "cuda", ""), StudyPrompt("gemv", "cuda", "")]
    scores = study_scores(prompts, [RIGHT], 10)
    assert [(row.suggestions, row.right, row.score, row.level) for row in scores.prompts] == [
        (1, 1, None, ""),
        (0, 0, None, ""),
    ]
    assert (scores.by_kernel, scores.by_model) == ({"axpy": None, "gemv": None}, {"cuda": None})
    assert scores.missing == 19
    words = "19 of 20 suggestions: a prompt without all 10 has no score"
    assert words in drawn(study_lines(scores), width=200)
    assert words in study_markdown(scores)
    complete = study_scores(prompts[:1], [RIGHT], 1)
    assert "issing" not in drawn(study_lines(complete), width=200) + study_markdown(complete)


def test_levels_have_the_names_of_the_paper() -> None:
    assert list(LEVELS.values()) == ["non-knowledge", "novice", "learner", "proficient", "expert"]
