"""A reply to ``contrast`` has its three parts, and the Coder insists on them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kernelforge.agents import CoderRequest
from kernelforge.agents.llm_agents import LLMCoder
from kernelforge.agents.prompts import check_three_parts
from kernelforge.errors import CandidateError
from kernelforge.llm.base import Answer, Question
from kernelforge.records import Operator
from tests.agents.prompt_samples import BRIEF, FAST, HISTORY, SLOW

BLOCKS = "```cuda\n__global__ void k() {}\n```\n\n```python\ndef forward(x):\n    return x\n```\n"
GOOD = f"## Performance Analysis\nA is faster.\n\n## Algorithm Design\n1. Tiles.\n\n## Code Implementation\n{BLOCKS}"


@pytest.mark.parametrize(
    "text",
    [
        GOOD,
        "Sure!\n" + GOOD,
        GOOD.replace("## ", "### "),
        GOOD.replace("## Performance Analysis", "1. **Performance Analysis**:"),
        GOOD.replace("## Algorithm Design", "# 2) algorithm design"),
        GOOD.replace("A is faster.", "A is.\n```text\n## Code Implementation\n```"),
    ],
)
def test_three_parts_in_order_are_taken(text: str) -> None:
    check_three_parts(text)


@pytest.mark.parametrize(
    ("text", "expected_text"),
    [
        ("", "'Performance Analysis' is missing"),
        (BLOCKS, "'Performance Analysis' is missing"),
        (GOOD.replace("## Algorithm Design", "Then"), "'Algorithm Design' is missing"),
        (GOOD.replace("## Code Implementation", "```\n## Code Implementation"), "'Code Implementation' is missing"),
        (GOOD + GOOD, "each once"),
        ("## Algorithm Design\nx\n## Performance Analysis\nx\n## Code Implementation\nx", "in this order"),
        (GOOD.replace("1. Tiles.", ""), "'Algorithm Design' of the reply is empty"),
    ],
)
def test_parts_that_are_missing_empty_or_out_of_order_are_named(text: str, expected_text: str) -> None:
    with pytest.raises(CandidateError, match=expected_text):
        check_three_parts(text)


@pytest.mark.parametrize("text", ["# " * 500_000, "```\n" * 300_000, "**Performance Analysis**\n" * 100_000])
def test_hostile_replies_are_refused_in_linear_time(text: str) -> None:
    with pytest.raises(CandidateError) as caught:
        check_three_parts(text)
    assert len(str(caught.value)) < 1000


class Asked:
    """An answerer that hands out one reply, and keeps the check it was asked with."""

    name = "test"

    def __init__(self) -> None:
        self.check: Callable[[str], None] = lambda text: None

    def ask(self, question: Question) -> Answer:
        self.check = question.check
        return Answer(GOOD, ())


@pytest.mark.parametrize(("operator", "insists"), [(Operator.CONTRAST, True), (Operator.FSR, False)])
def test_only_contrast_insists_on_the_parts(operator: Operator, insists: bool) -> None:
    requested = Asked()
    request = CoderRequest(BRIEF, operator, SLOW, None, HISTORY, FAST, inspirations=(SLOW, FAST))
    assert LLMCoder("test", requested).propose(request).text == GOOD
    requested.check(GOOD)
    if insists:
        with pytest.raises(CandidateError, match="three parts"):
            requested.check(BLOCKS)
    else:
        requested.check(BLOCKS)
    with pytest.raises(CandidateError):
        requested.check(GOOD.replace("```cuda", "```text"))
