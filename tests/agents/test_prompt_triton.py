"""A run in Triton asks for it, takes nothing else, and says so before it starts; other prompts do not change."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from kernelforge.agents import CoderRequest
from kernelforge.agents.prompts import coder_prompt
from kernelforge.candidate import parse_reply
from kernelforge.candidate.plan import parse_plan
from kernelforge.compile.triton_source import read_source
from kernelforge.errors import CandidateError, UsageError
from kernelforge.records import Operator
from kernelforge.run import configure
from tests.agents.prompt_samples import BRIEF

CUDA = "```cuda\n__global__ void k() {}\n```\n\n```python\ndef forward(x):\n    return x\n```\n"
TRITON = "```triton\n@triton.jit\ndef k():\n    pass\n```\n\n```python\ndef forward(x):\n    return x\n```\n"


def request_in(language: Any) -> CoderRequest:
    brief = replace(BRIEF, language=language)
    return CoderRequest(brief, Operator.SEED, None, None, ())


def test_the_part_on_triton_follows_the_preamble_of_a_cuda_run() -> None:
    cuda, triton, either = (coder_prompt(request_in(language)) for language in ("cuda", "triton", "any"))
    before, after = cuda.text[: cuda.stable], cuda.text[cuda.stable :]
    assert either.text.startswith(f"{before}## Triton, where it suits better")
    assert either.text.endswith(after)
    for part in ("## The device", "## Precision"):
        assert before[before.index(part) :] + "## Triton instead of CUDA C++" in triton.text
    assert triton.text.endswith(after)
    assert "triton" not in cuda.text.lower()


def test_what_only_cuda_has_use_for_is_in_no_prompt_for_triton() -> None:
    cuda, triton, either = (coder_prompt(request_in(language)).text for language in ("cuda", "triton", "any"))
    for text in ("```cuda\ntemplate", "dynamic_shared_bytes", "C++17 for NVRTC"):
        assert text in cuda
        assert text in either
        assert text not in triton


def test_the_worked_example_is_a_whole_candidate() -> None:
    text = coder_prompt(request_in("triton")).text
    example = parse_reply(text[text.index("## Triton instead") : text.index("- `kernel[grid](arguments)`")], "triton")
    assert parse_plan(example.plan, "triton").tunables == {"WARPS": (4, 8)}
    assert list(read_source(example.source).functions) == ["softmax_rows"]
    assert text.count("```python\n# tune") == 1


def test_a_reply_in_another_language_is_refused() -> None:
    assert parse_reply(TRITON, "triton") == parse_reply(TRITON, "any")
    assert parse_reply(CUDA, "cuda") == parse_reply(CUDA)
    with pytest.raises(CandidateError, match="is a cuda block; here it has to be a triton block"):
        parse_reply(CUDA, "triton")
    with pytest.raises(CandidateError, match="is a triton block; here it has to be a cuda block"):
        parse_reply(TRITON, "cuda")


def test_a_run_in_triton_needs_triton_and_a_coder_that_writes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernelforge.run.runner.installed_triton", lambda: "triton 3.9.0")
    assert configure(device="emulated:a100", language="any").language == "any"
    with pytest.raises(UsageError, match=r"the built-in Coder writes CUDA C\+\+ alone"):
        configure(device="emulated:a100", language="triton")
    monkeypatch.setattr("kernelforge.run.runner.installed_triton", lambda: None)
    with pytest.raises(UsageError, match="--language any needs Triton: pip install"):
        configure(device="emulated:a100", language="any")
