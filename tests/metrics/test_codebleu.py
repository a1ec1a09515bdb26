"""CodeBLEU is what the package ``codebleu`` says for C and C++, and reads CUDA."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest

from kernelforge.errors import UsageError
from kernelforge.metrics import codebleu
from kernelforge.metrics.codebleu import CodeLanguage, uncommented
from tests.metrics.record_codebleu import FILE, TEXTS

KERNEL = """
__global__ void scale(const float* __restrict__ x, float* y, float a, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  float v = x[i] * a;
  if (i < n) { y[i] = v; }
}
void run(const float* x, float* y, int n) { scale<<<(n + 255) / 256, 256>>>(x, y, 2.0f, n); }
"""


@pytest.mark.slow
def test_every_part_is_the_packages() -> None:
    rows = json.loads(FILE.read_text())
    assert len(rows) == 86
    assert {round(row["dataflow_match_score"], 2) for row in rows} > {0.0, 1.0}
    for row in rows:
        candidates = [TEXTS[at] for at in row["candidates"]]
        references = [[TEXTS[at] for at in group] for group in row["references"]]
        result = codebleu(candidates, references, row["language"])
        assert result.ngram == pytest.approx(row["ngram_match_score"], abs=1e-12)
        assert result.weighted_ngram == pytest.approx(row["weighted_ngram_match_score"], abs=1e-12)
        assert result.syntax == pytest.approx(row["syntax_match_score"], abs=1e-12)
        assert (result.dataflow or 0.0) == pytest.approx(row["dataflow_match_score"], abs=1e-12)
        if result.dataflow != 0:  # which the package counts as 1
            assert result.score == pytest.approx(row["codebleu"], abs=1e-12)


def test_only_a_reference_without_flow_counts_as_matched() -> None:
    missed = codebleu([TEXTS[5]], [[TEXTS[3]]], "c")
    none = codebleu([TEXTS[3]], [[TEXTS[5]]], "c")
    assert missed.dataflow == 0
    assert missed.score == pytest.approx((missed.ngram + missed.weighted_ngram + missed.syntax) / 4)
    assert none.dataflow is None
    assert none.score == pytest.approx((none.ngram + none.weighted_ngram + none.syntax + 1) / 4)


def test_a_kernel_is_equal_to_itself_and_names_matter_to_its_n_grams_alone() -> None:
    assert codebleu([KERNEL], [[KERNEL]]).score == pytest.approx(1)
    renamed = KERNEL.replace("float v", "float w").replace("= v;", "= w;")
    result = codebleu([renamed], [[KERNEL]])
    assert result.ngram < 1
    assert (result.syntax, result.dataflow) == (1, 1)


def test_the_flow_of_cuda_passes_through_declarations_with_a_value() -> None:
    reference, swapped = (
        "int f(int a, int b) { int c = a; return c + b; }",
        "int f(int a, int b) { int c = b; return c + a; }",
    )
    assert codebleu([swapped], [[reference]], "cuda").dataflow == pytest.approx(5 / 6)
    # The package's rules, made for C#, see the uses of a, b and c, and not what c is made of.
    assert codebleu([swapped], [[reference]], "cpp").dataflow == 1


def test_keywords_weigh_five_times_as_much() -> None:
    reference = "__shared__ alpha beta gamma delta"
    keyword, word = (codebleu([text], [[reference]], "cuda") for text in ("__shared__ b c d e", "a alpha c d e"))
    assert keyword.ngram == pytest.approx(word.ngram)
    # One of the order of single tokens is 1 of 1.8, or 0.2 of it; the other orders are equal.
    assert keyword.weighted_ngram / word.weighted_ngram == pytest.approx(5**0.25)


@pytest.mark.parametrize(
    "text", ["int a; /* open", "/* closed */ int a; /* '*' /* open", '"/*" // x /*', "/*/ a", "'/*'"]
)
def test_a_comment_that_is_not_closed_is_none(text: str) -> None:
    blank = re.sub(r"//.*?$|/\*.*?\*/|('(?:\\.|[^\\'])*'|\"(?:\\.|[^\\\"])*\")", r"\1", text, flags=re.S | re.M)
    assert uncommented(text).split() == blank.split()
    assert len(uncommented(text + "\n" + "/* " * 80_000)) > 200_000


@pytest.mark.parametrize("text", ["", "x = ;", "__global__ void k(", "a" * 5000, "≠ ü = 'x", "if (a) else else"])
@pytest.mark.parametrize("language", ["c", "cpp", "cuda"])
def test_what_does_not_parse_still_has_a_score(text: str, language: CodeLanguage) -> None:
    assert 0 <= codebleu([text], [[KERNEL]], language).score <= 1
    assert 0 <= codebleu([KERNEL], [[text]], language).score <= 1


def test_texts_without_references_or_nested_too_deeply_are_refused() -> None:
    for candidates, references in ([], []), (["a"], []), (["a"], [[]]):
        with pytest.raises(UsageError, match="a reference for each"):
            codebleu(candidates, references)
    with pytest.raises(UsageError, match="nested too deeply"):
        codebleu([KERNEL], [["int x = " + "(" * 5000 + "1" + ")" * 5000 + ";"]])


def test_neither_torch_nor_parsers_are_imported_before_they_are_used() -> None:
    code = "import sys, kernelforge.metrics; print(sorted({'torch', 'tree_sitter', 'numpy'} & sys.modules.keys()))"
    assert subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout == "[]\n"
