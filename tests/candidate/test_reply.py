"""Replies: what is tolerated, and what is said when something is missing."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelforge.candidate import format_reply, parse_plan, parse_reply, split_reasoning
from kernelforge.errors import CandidateError
from kernelforge.records import Candidate
from kernelforge.records.task import MAX_PLAN_BYTES, MAX_SOURCE_BYTES

SOURCE = "__global__ void k(float* out) { out[0] = 1.f; }"
PLAN = "def forward(x):\n    out = empty_like(x)\n    k[1, 1](out)\n    return out"


def reply(source: str = SOURCE, plan: str = PLAN, cuda: str = "cuda", python: str = "python") -> str:
    return f"Here it is.\n\n```{cuda}\n{source}\n```\n\nand the plan\n\n```{python}\n{plan}\n```\nDone.\n"


def refusal(text: str) -> CandidateError:
    with pytest.raises(CandidateError) as caught:
        parse_reply(text)
    return caught.value


def test_two_blocks_in_prose_are_the_candidate() -> None:
    candidate = parse_reply(reply())
    assert candidate.source == SOURCE
    assert candidate.plan == PLAN


@pytest.mark.parametrize("cuda", ["cuda", "CUDA", "cu", "cpp", "c++", "C++", "cpp title=kernel.cu", "{.cuda}", ""])
@pytest.mark.parametrize("python", ["python", "Python", "py", "python3", "plan", "python plan", ""])
def test_labels_may_vary_or_be_missing(cuda: str, python: str) -> None:
    assert parse_reply(reply(cuda=cuda, python=python)) == Candidate(source=SOURCE, plan=PLAN)


def test_order_of_the_blocks_does_not_matter() -> None:
    assert parse_reply(f"```python\n{PLAN}\n```\n```cuda\n{SOURCE}\n```").plan == PLAN


def test_tilde_fences_and_windows_line_ends_are_read() -> None:
    assert parse_reply(reply().replace("```", "~~~").replace("\n", "\r\n")) == parse_reply(reply())


def test_indented_fences_lose_their_indentation() -> None:
    text = "\n".join("    " + line if line else line for line in reply().split("\n"))
    assert parse_reply(text) == parse_reply(reply())


def test_other_blocks_and_inline_code_are_ignored() -> None:
    extra = "Use ```inline``` code.\n```bash\nnvcc -O3\n```\n```\nsome output\n```\n"
    assert parse_reply(extra + reply() + extra) == parse_reply(reply())


def test_the_last_complete_block_of_each_kind_wins() -> None:
    draft = reply("__global__ void draft() {}", "def forward(x):\n    return x")
    assert parse_reply(draft + reply()) == parse_reply(reply())


def test_a_later_fragment_does_not_replace_a_complete_block() -> None:
    fragment = "The line that matters is\n```cuda\nout[0] = 1.f;\n```\nand\n```python\nk[1, 1](out)\n```\n"
    assert parse_reply(reply() + fragment) == parse_reply(reply())


def test_a_correction_of_the_source_alone_keeps_the_plan() -> None:
    fixed = SOURCE.replace("1.f", "2.f")
    candidate = parse_reply(reply() + f"Correction:\n```cuda\n{fixed}\n```\n")
    assert candidate == Candidate(source=fixed, plan=PLAN)


@pytest.mark.parametrize(
    "thought",
    [
        "<think>\nfirst\n```cuda\n__global__ void half(\n</think>\n",
        "thinking without an opening tag\n```cuda\n__global__ void half(\n</think>\n",
        "<thinking>a ``` fence</thinking>\n",
    ],
)
def test_thinking_is_not_read(thought: str) -> None:
    assert parse_reply(thought + reply()) == parse_reply(reply())


@pytest.mark.parametrize(
    ("text", "reasoning", "answer"),
    [
        ("<think>\none\n\ntwo\n</think>\n\nthree\n", "one\n\ntwo", "three\n"),
        ("one\n</think>\n\nthree", "one", "three"),
        ("one\r\n</think>\r\n\r\nthree", "one", "three"),
        ("<thinking>one</thinking>two\n<reasoning>three</reasoning>\nfour", "one\n\nthree", "two\n\nfour"),
        ("<think>\nit was cut", "it was cut", ""),
        ("no thought <think> of it", "", "no thought <think> of it"),
        ("\nplain\n", "", "\nplain\n"),
    ],
)
def test_reasoning_is_split_from_the_reply(text: str, reasoning: str, answer: str) -> None:
    assert split_reasoning(text) == (reasoning, answer)


def test_a_reply_wrapped_in_a_markdown_block_is_read() -> None:
    assert parse_reply(f"```markdown\n{reply()}\n```\n") == parse_reply(reply())


def test_a_longer_fence_may_hold_shorter_ones() -> None:
    source = SOURCE + "\n/*\n```\n*/"
    assert parse_reply(f"````cuda\n{source}\n````\n```python\n{PLAN}\n```").source == source


def test_a_reply_without_code_says_both_blocks_are_needed() -> None:
    message = str(refusal("I could not find a way to make this faster."))
    assert "no code" in message
    assert "```cuda" in message
    assert "```python" in message


def test_an_empty_reply_is_a_reply_without_code() -> None:
    assert "no code" in str(refusal(""))
    assert "it is empty" in str(refusal(" \n"))


def test_a_reply_without_code_is_quoted_because_it_may_say_why() -> None:
    assert "it says: I cannot write aten.gru here; it needs" in str(refusal("I cannot write\n aten.gru  here.\n"))
    assert len(str(refusal("word " * 100_000))) < 600
    assert len(str(refusal("x" * 100_000))) < 600


def test_half_of_a_surrogate_pair_is_quoted_as_a_question_mark() -> None:
    """Of it no journal and no prompt can be made."""
    with pytest.raises(CandidateError, match=r"it says: I \? cannot"):
        parse_reply("I \ud800 cannot")
    with pytest.raises(CandidateError, match=r"half of a surrogate pair\n    # \?"):
        parse_plan("# \ud800\ndef forward(x):\n    return x\n")


def test_only_a_cuda_block_says_that_the_plan_is_missing() -> None:
    message = str(refusal(f"intro\n```cuda\n{SOURCE}\n```"))
    assert "no ```python block with the launch plan" in message
    assert "line 2" in message


def test_only_a_plan_says_that_the_source_is_missing() -> None:
    assert "no ```cuda block with the device source" in str(refusal(f"```python\n{PLAN}\n```"))


def test_a_module_class_is_told_what_to_send_instead() -> None:
    text = "```python\nfrom torch.utils.cpp_extension import load_inline\nclass ModelNew(nn.Module):\n    pass\n```"
    assert "not a ModelNew class" in str(refusal(text))


@pytest.mark.parametrize("label", ["cuda", ""])
def test_an_unclosed_fence_names_the_line_where_it_opened(label: str) -> None:
    error = refusal(f"one\ntwo\n```{label}\n{SOURCE}\n\nno end")
    assert error.line == 3
    assert "opens on line 3" in str(error)


def test_a_fence_left_open_before_the_next_block_names_its_line() -> None:
    error = refusal(f"```cuda\n{SOURCE}\n\n```python\n{PLAN}\n```\n")
    assert error.line == 1
    assert "never closed" in str(error)


def test_line_numbers_count_the_thinking_too() -> None:
    error = refusal(f"<think>\na\nb\n</think>\n```cuda\n{SOURCE}")
    assert error.line == 5


def test_a_plan_without_forward_is_named() -> None:
    assert "no 'def forward(...)'" in str(refusal(reply(plan="k[1, 1](out)")))


def test_a_source_without_a_kernel_is_named() -> None:
    assert "no __global__ kernel" in str(refusal(reply(source="int f() { return 1; }")))


@pytest.mark.parametrize(("source", "plan", "what"), [("  \n", PLAN, "source"), (SOURCE, "\n", "plan")])
def test_an_empty_block_is_named(source: str, plan: str, what: str) -> None:
    assert f"the {what} block" in str(refusal(reply(source, plan)))


def test_a_source_or_plan_over_its_limit_is_refused_with_the_limit() -> None:
    assert f"{MAX_SOURCE_BYTES:,}" in str(refusal(reply(source=SOURCE + " " * MAX_SOURCE_BYTES)))
    assert f"{MAX_PLAN_BYTES:,}" in str(refusal(reply(plan=PLAN + "\n#" + "é" * (MAX_PLAN_BYTES // 2))))


def test_a_huge_reply_is_refused_before_it_is_read() -> None:
    assert "limit" in str(refusal("```" * (1 << 20)))


@pytest.mark.parametrize("bad", ["\0", "\ud800"])
def test_characters_that_a_compiler_cannot_take_are_refused(bad: str) -> None:
    refusal(reply(source=SOURCE + bad))


def test_format_reply_survives_fences_inside_the_code() -> None:
    candidate = Candidate(source=SOURCE + "\n// ```\n", plan=PLAN)
    assert parse_reply(format_reply(candidate, "prose")) == candidate


code = st.text(
    st.characters(codec="utf-8", exclude_characters="\r\0\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029"), max_size=200
)


@given(code, code)
def test_parse_reply_inverts_format_reply(source: str, plan: str) -> None:
    candidate = Candidate(source=SOURCE + source, plan=plan + "\n" + PLAN)
    assert parse_reply(format_reply(candidate, "Some words.")) == candidate


@given(
    st.text(max_size=300)
    | st.lists(
        st.sampled_from(["```", "```cuda", "```python", "~~~", "\n", SOURCE, PLAN, "<think>", "</think>", " "]),
        max_size=20,
    ).map("".join)
)
def test_any_text_is_a_candidate_or_a_candidate_error(text: str) -> None:
    with contextlib.suppress(CandidateError):
        assert parse_reply(text).source


def test_a_reply_of_code_blocks_without_end_is_not_read_to_its_end() -> None:
    code = "```cuda\n__global__ void k() {}\n```\n```python\ndef forward(x):\n    return x\n```\n"
    assert parse_reply("```text\n```\n" * 1_998 + code).source == "__global__ void k() {}"
    with pytest.raises(CandidateError, match="more than 2,000 code blocks"):
        parse_reply("```text\n```\n" * 1_999 + code)
