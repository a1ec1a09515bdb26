"""A candidate is new unless its text or its PTX is that of an earlier one; names do not count."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelforge.metrics import Ngrams, sentence_bleu
from kernelforge.records import Attempt, Candidate, Verdict
from kernelforge.search.novelty import NEAR, EarlierTexts, Likeness, Novelty, fingerprints, tokens
from tests.support.factories import make_attempt, make_build, make_candidate, make_evaluation

SOURCE = """
#include <cuda_fp16.h>
#define TILE 32
struct Pair { float low; float high; };
__device__ float sum(Pair p) { return p.low + 2 * p.high; }
template <class T>
__global__ void __launch_bounds__(256) scale(const T* __restrict__ x, T* out, int n) {
  __shared__ T tile[TILE];
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  tile[threadIdx.x] = x[i] * 2.0f;  // twice
  __syncthreads();
  if (i < n) out[i] = tile[threadIdx.x];
}
"""
RENAMED = """
/* The same, written by another author. */
#include <cuda_fp16.h>
#define WIDTH 32
struct Both { float low; float high; };
__device__ float total(Both b) { return b.low + 2 * b.high; }

template <class Number>
__global__ void __launch_bounds__(256)
twice(const Number* __restrict__ input, Number* output, int count)
{
  __shared__ Number buffer[WIDTH];
  const int at = blockIdx.x*blockDim.x + threadIdx.x;
  buffer[threadIdx.x] = input[at] * 2.0f;
  __syncthreads();
  if (at < count)
    output[at] = buffer[threadIdx.x];
}
"""
PLAN = """# tune: BLOCK = 128 | 256
def forward(x):
    n = x.numel()
    out = empty_like(x)
    kernel("scale<float>")[ceil_div(n, BLOCK), BLOCK](x, out, i32(n))
    return out
"""
PLAN_RENAMED = """# tune: THREADS = 128 | 256
# a comment
def forward(x):

    count = x.numel()
    result = empty_like( x )
    kernel('twice<float>')[ceil_div(count, THREADS), THREADS](x, result, i32(count))
    return result
""".replace("'", '"')


def attempt(candidate: Candidate, ptx: str | None = None, verdict: Verdict = Verdict.OK) -> Attempt:
    build = make_build(ptx_hash=ptx)
    evaluation = make_evaluation(verdict, candidate=candidate.hash, build=build)
    return make_attempt(0, candidate=candidate, evaluation=evaluation)


def same(first: Candidate, second: Candidate, *, ptx: tuple[str | None, str | None] = (None, None)) -> bool:
    novelty = Novelty()
    assert novelty.add(attempt(first, ptx[0]))
    return not novelty.add(attempt(second, ptx[1]))


BASE = Candidate(source=SOURCE, plan=PLAN)


def test_names_comments_and_layout_make_nothing_new() -> None:
    assert same(BASE, Candidate(source=RENAMED, plan=PLAN_RENAMED))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("* 2.0f", "* 3.0f"),
        ("* 2.0f", "+ 2.0f"),
        ("TILE 32", "TILE 64"),
        ("i < n", "i <= n"),
        ("__syncthreads()", "__syncwarp()"),
        ("threadIdx.x;", "threadIdx.y;"),
        ("float low; float high;", "float high; float low;"),
        ("const T*", "const float*"),
        ("x[i] *", "__ldg(&x[i]) *"),
        ("= tile[threadIdx.x]", "= x[i]"),
    ],
)
def test_another_kernel_is_new(old: str, new: str) -> None:
    assert old in SOURCE
    assert not same(BASE, Candidate(source=SOURCE.replace(old, new), plan=PLAN))


@pytest.mark.parametrize(
    ("old", "new"),
    [("BLOCK), BLOCK]", "BLOCK), 128]"), ("128 | 256", "256 | 128"), ("n = x.numel()", "n = x.shape[0]")],
)
def test_another_plan_is_new_even_with_the_same_ptx(old: str, new: str) -> None:
    assert old in PLAN
    assert not same(BASE, Candidate(source=SOURCE, plan=PLAN.replace(old, new)), ptx=("p", "p"))


def test_other_values_of_tune_names_are_new_and_the_first_values_are_those_left_out() -> None:
    assert not same(BASE, BASE.model_copy(update={"choices": {"BLOCK": 256}}))
    assert same(BASE, BASE.model_copy(update={"choices": {"BLOCK": 128}}))


def test_the_same_ptx_and_plan_are_the_same_whatever_the_source_says() -> None:
    shorter = Candidate(source=SOURCE.replace("x[i] * 2.0f", "x[i] + x[i]"), plan=PLAN)
    assert same(BASE, shorter, ptx=("p", "p"))
    assert not same(BASE, shorter, ptx=("p", "q"))
    assert not same(BASE, shorter)


def test_the_same_ptx_under_other_names_needs_the_same_plan_under_other_names() -> None:
    other = Candidate(source=RENAMED.replace("* 2.0f", "+ input[at]"), plan=PLAN_RENAMED)
    assert same(BASE, other, ptx=("p", "p"))


def test_a_failed_candidate_makes_its_copy_old_too() -> None:
    novelty = Novelty()
    assert novelty.add(attempt(BASE, verdict=Verdict.WRONG))
    assert not novelty.add(attempt(BASE))


def test_a_reply_without_a_candidate_is_not_new() -> None:
    assert not Novelty().add(make_attempt(0, Verdict.POLICY, candidate=None))


def test_a_plan_that_cannot_be_read_counts_as_it_is() -> None:
    broken = Candidate(source=SOURCE, plan="def forward(x:\n")
    assert same(broken, broken)
    assert not same(broken, Candidate(source=SOURCE, plan="def forward(x :\n"))


def test_fields_are_not_variables() -> None:
    """A variable that is called like a field is renamed, the field is not."""
    item, other = (
        f"__device__ float f(float4 v) {{ float {name} = v.{field}; return {name}; }}\n{SOURCE}"
        for name, field in (("x", "x"), ("y", "y"))
    )
    assert not same(Candidate(source=item, plan=PLAN), Candidate(source=other, plan=PLAN))


def words(source: str) -> list[str]:
    return [token.text for token in tokens(source)]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("a--b", ["a", "--", "b"]),
        ("a - -b", ["a", "-", "-", "b"]),
        ("x /* y */ z // w", ["x", "z"]),
        ("a // b \\\n c\nd", ["a", "d"]),
        ('f("// no comment", \'"\')', ["f", "(", '"// no comment"', ",", "'\"'", ")"]),
        ('R"x(a " )" b)x" c', ['R"x(a " )" b)x"', "c"]),
        ("1.5e-3f+0x1p-2 1'000", ["1.5e-3f", "+", "0x1p-2", "1'000"]),
        ("#define A 1\nb", ["#", "define", "A", "1", "\n", "b"]),
        ("#define A \\\n 1\nb", ["#", "define", "A", "1", "\n", "b"]),
        ("a\n  # pragma unroll\nb", ["a", "#", "pragma", "unroll", "\n", "b"]),
        ("A ## b", ["A", "##", "b"]),
        ("a<<=b->c", ["a", "<<=", "b", "->", "c"]),
    ],
)
def test_text_is_split_as_the_language_does(source: str, expected: list[str]) -> None:
    assert words(source) == expected


@pytest.mark.slow
@given(st.text(max_size=200), st.text(alphabet="\"'/*\\\n#(){}aR1 .", max_size=200))
def test_any_text_can_be_read(first: str, second: str) -> None:
    for source in (first, second, first + second):
        tokens(source)
        candidate = make_candidate(source=source or " ", plan=second or " ")
        assert fingerprints(attempt(candidate)) == fingerprints(attempt(candidate))


# Likeness.

OTHER = """
__global__ void twice_by_rows(const float* in, float* out, int rows, int columns) {
  for (int row = blockIdx.y; row < rows; row += gridDim.y) {
    float4 packed = reinterpret_cast<const float4*>(in)[row * columns / 4 + threadIdx.x];
    packed.x += packed.x; packed.y += packed.y; packed.z += packed.z; packed.w += packed.w;
    reinterpret_cast<float4*>(out)[row * columns / 4 + threadIdx.x] = packed;
  }
}
"""


def alike(*candidates: Candidate, least: float = 1e-9) -> dict[int, float]:
    """BLEU of the last candidate to those before it."""
    likeness = Likeness(least)
    for number, candidate in enumerate(candidates):
        scores = likeness.add(attempt(candidate).model_copy(update={"number": number}))
        assert all(likeness.between(number, other) == score for other, score in scores.items())
    return scores


def test_names_comments_and_layout_do_not_lessen_the_likeness() -> None:
    assert alike(BASE, Candidate(source=RENAMED, plan=PLAN_RENAMED)) == {0: pytest.approx(1)}


def test_a_near_copy_is_told_from_a_rewritten_kernel() -> None:
    local = SOURCE.replace("  const int i", "  const int twice = 2; const int i").replace("* 2.0f", "* twice")
    wider = PLAN.replace("128 | 256", "256 | 512")
    scores = alike(BASE, Candidate(source=OTHER, plan=PLAN), Candidate(source=local, plan=wider))
    assert NEAR <= scores[0] < 1
    assert scores[1] < 0.7


def test_what_is_below_the_least_is_not_alike() -> None:
    near, other = Candidate(source=SOURCE.replace("2.0f", "3.0f"), plan=PLAN), Candidate(source=OTHER, plan=PLAN)
    assert alike(BASE, other, near, least=NEAR).keys() == {0}
    assert alike(BASE, other, near, least=0.999).keys() == set()


def test_every_candidate_has_a_likeness() -> None:
    triton = "@triton.jit\ndef k(x):\n    y = x // 2  # half\n    tl.store(x, y)\n"
    same = Candidate(source=triton, plan="def forward(x):\n    return x")
    assert alike(same, same) == {0: pytest.approx(1)}
    a_class = Candidate(source="class ModelNew:\n    half = 4 // 2\n", plan="", lane="modelnew")
    other = Candidate(source="class ModelNew:\n    half = 4 // 3\n", plan="", lane="modelnew")
    assert alike(a_class, other, a_class).keys() == {0, 1}
    assert alike(a_class, other, a_class)[0] == 1
    assert alike(Candidate(source="'", plan="def ("), BASE, BASE) == {1: pytest.approx(1)}


def test_the_bleu_of_a_text_to_earlier_ones_is_that_of_each_pair() -> None:
    draw = random.Random(5)
    base = draw.choices("abcdef", k=60)
    texts = [[], ["a"], list("abc"), base]
    for changes in (1, 2, 5, 20, 60):
        text = [draw.choice("abcdef") if draw.random() < changes / 60 else token for token in base]
        texts += [text, text[: 60 - changes // 2], [*text, "f"]]
    counted = [Ngrams.of(text) for text in texts]
    for least in (0.0, 0.5, 0.9):
        earlier, alike_pairs = EarlierTexts(), 0
        for number, text in enumerate(counted):
            expected = {other: sentence_bleu(text, [counted[other]]) for other in range(number)}
            expected = {other: bleu for other, bleu in expected.items() if bleu >= least}
            assert earlier.bleu(text, least) == pytest.approx(expected)
            earlier.add(text)
            alike_pairs += len(expected)
        assert 0 < alike_pairs <= len(texts) * (len(texts) - 1) / 2
        assert (least == 0) == (alike_pairs == len(texts) * (len(texts) - 1) / 2)
