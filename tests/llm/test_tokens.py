"""The estimate of tokens is near a real tokenizer's count on the texts that this project sends."""

from __future__ import annotations

import pytest

from kernelforge.llm.rate_limits import estimate_tokens

COUNTED = {
    "": 0,
    "__global__ void scale(const float* __restrict__ x, float* out, int n) {\n": 21,
    "    const int i = blockIdx.x * blockDim.x + threadIdx.x;\n    if (i < n) out[i] = 0.5f * x[i];\n}\n": 38,
    "def forward(x):\n    n, d = x.shape\n    out = empty_like(x)\n    softmax[n, 256](x, out, i32(d))\n": 35,
    "The candidate below failed. Fix the one issue that the Judge names, and change as little else as you can.": 23,
    "| dram__bytes_read.sum | 16,777,216 | byte | modelled |\n": 19,
}
"""Texts with what OpenAI's o200k_base counts."""


@pytest.mark.parametrize("text", COUNTED, ids=range(len(COUNTED)))
def test_the_estimate_is_near_what_a_tokenizer_counts(text: str) -> None:
    assert abs(estimate_tokens(text) - COUNTED[text]) <= max(2, 0.25 * COUNTED[text])


def test_longer_texts_have_more_tokens() -> None:
    line = next(text for text in COUNTED if "__global__" in text)
    assert estimate_tokens(line * 1000) > 15_000
    assert estimate_tokens("内存" * 100) > 100
