"""CodeBLEU of CUDA, C and C++: BLEU, BLEU with weights for keywords, matched subtrees, and matched data flow.

Ren et al., CodeBLEU (arXiv 2009.10297). For C and C++ the parts are those of the package ``codebleu`` 0.7, which
continues the code that the authors published, and where it departs from the paper they do too: the weighted part is a
recall; its brevity penalty never takes effect; subtrees are the reference's that the candidate has too; and data flow
is read with the node names of C#, so that a declaration with a value is no flow. For CUDA, which the package does not
have, flow is read with C's own names.

One thing differs. There, a data-flow match of 0 counts as 1. Here it does so only where no reference has any flow.

Parsing needs the extra ``metrics``, which is imported where a text is parsed.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import TYPE_CHECKING, Literal, NamedTuple

from kernelforge.errors import UsageError
from kernelforge.metrics.bleu import UNIFORM, Ngrams, Smoothing, closest_length, corpus_bleu, score
from kernelforge.metrics.dataflow import C_NODES, CSHARP_NODES, DataFlow, data_flow
from kernelforge.utils.shell_hints import install_hint

if TYPE_CHECKING:
    from tree_sitter import Node, Parser

CodeLanguage = Literal["cuda", "c", "cpp"]

OTHER_WORD = 0.2
"""Weight of a token that is no keyword; a keyword's is 1."""
_SMOOTHING = Smoothing("floor", 0.1)
"""Of both n-gram parts."""

_C_WORDS = (
    "auto break case char const continue default do double else enum extern float for goto if int long register return "
    "short signed sizeof static struct switch typedef union unsigned void volatile while"
)
_CPP_WORDS = (
    f"{_C_WORDS} and asm bitand bitor bool catch class compl const_cast delete dynamic_cast explicit false friend "
    "inline mutable namespace new not not_eq operator or or_eq private protected public reinterpret_cast static_cast "
    "template this throw true try typeid typename using virtual wchar_t xor xor_eq and_eq"
)
_CPP_LIBRARY = "INT_MAX INT_MIN MAX_RAND NULL cin cout endl include iomanip iostream main npos std string"
"""Names that the package counts among the keywords of C++."""
_CUDA_WORDS = (
    f"{_CPP_WORDS} alignas alignof constexpr decltype noexcept nullptr static_assert thread_local "
    "__global__ __device__ __host__ __shared__ __constant__ __managed__ __grid_constant__ __restrict__ __noinline__ "
    "__forceinline__ __launch_bounds__ __cluster_dims__ __syncthreads __syncwarp __threadfence __threadfence_block "
    "threadIdx blockIdx blockDim gridDim warpSize dim3 half __half __half2 __nv_bfloat16 __nv_bfloat162"
)
KEYWORDS: dict[CodeLanguage, frozenset[str]] = {
    "c": frozenset(f"{_C_WORDS} _Packed".split()),
    "cpp": frozenset(f"{_CPP_WORDS} {_CPP_LIBRARY}".split()),
    "cuda": frozenset(_CUDA_WORDS.split()),
}
"""Tokens of weight 1, by language. CUDA's are C++'s, and what the language, not a library, adds to it."""

_COMMENT_OR_TEXT = re.compile(r"//.*?$|/\*.*?\*/|'(?:\\.|[^\\'])*'|\"(?:\\.|[^\\\"])*\"", re.S | re.M)


class CodeBleu(NamedTuple):
    """The four parts, each from 0 to 1, and their weighted sum."""

    ngram: float
    weighted_ngram: float
    """Of single tokens, keywords count five times as much as others."""
    syntax: float
    """Share of the references' subtrees that the candidate has too."""
    dataflow: float | None
    """Share of the references' data flow that the candidate has too; None where they have none."""
    weights: tuple[float, float, float, float]

    @property
    def score(self) -> float:
        """The weighted sum; a missing data-flow part counts as 1, as in the package."""
        flow = 1.0 if self.dataflow is None else self.dataflow
        parts = (self.ngram, self.weighted_ngram, self.syntax, flow)
        return sum(weight * part for weight, part in zip(self.weights, parts, strict=True))


def codebleu(
    candidates: Sequence[str],
    references: Sequence[Sequence[str]],
    language: CodeLanguage = "cuda",
    *,
    weights: tuple[float, float, float, float] = UNIFORM,
    tokenize: Callable[[str], Sequence[str]] = str.split,
) -> CodeBleu:
    """CodeBLEU of a corpus: of each candidate against its references.

    Args:
        weights: of n-grams, weighted n-grams, syntax and data flow.
        tokenize: tokens of the n-gram parts. Published scores split at white space, texts having been spaced before.

    Raises:
        UsageError: the parsers are not installed, there are no texts, a candidate has no reference, or a text is
            nested too deeply.
    """
    if not candidates or len(candidates) != len(references) or not all(references):
        raise UsageError("CodeBLEU needs texts, and a reference for each of them at least")
    texts = [text.strip() for text in candidates]
    others = [[text.strip() for text in group] for group in references]
    words = [tokenize(text) for text in texts]
    other_words = [[tokenize(text) for text in group] for group in others]
    pairs = [
        (Ngrams.of(own), [Ngrams.of(other) for other in group]) for own, group in zip(words, other_words, strict=True)
    ]
    parser = _parser(language)
    syntax, flow = _Share(), _Share()
    for text, group in zip(texts, others, strict=True):
        root = parser.parse(uncommented(text).encode()).root_node
        own_flow, own_trees = _flow(root, language), frozenset(_subtrees(root))
        for other in group:
            root = parser.parse(uncommented(other).encode()).root_node
            edges, trees = _flow(root, language), list(_subtrees(root))
            syntax.add(sum(tree in own_trees for tree in trees), len(trees))
            flow.add((own_flow & edges).total(), edges.total())
    return CodeBleu(
        ngram=corpus_bleu(pairs, smoothing=_SMOOTHING),
        weighted_ngram=weighted_recall(pairs, KEYWORDS[language]),
        syntax=syntax.value or 0.0,
        dataflow=flow.value,
        weights=weights,
    )


def weighted_recall(pairs: Sequence[tuple[Ngrams, Sequence[Ngrams]]], keywords: frozenset[str]) -> float:
    """Geometric mean of the shares of the references' n-grams that the candidates have, single tokens by weight."""
    matches, possible = [0.0] * len(UNIFORM), [0.0] * len(UNIFORM)
    length = reference_length = 0
    for candidate, references in pairs:
        length += candidate.length
        # The package takes a reference and its weights, a pair, for the text, whose length is then two.
        reference_length += closest_length(candidate.length, [2] * len(references))
        for reference in references:
            for order, (own, theirs) in enumerate(zip(candidate.counts, reference.counts, strict=True)):
                weights = {ngram: OTHER_WORD if order == 0 and ngram[0] not in keywords else 1.0 for ngram in theirs}
                matches[order] += sum(weights[ngram] * min(count, own[ngram]) for ngram, count in theirs.items())
                possible[order] += max(1.0, sum(weights[ngram] * count for ngram, count in theirs.items()))
    return score(matches, possible, length, reference_length, UNIFORM, _SMOOTHING)


def uncommented(source: str) -> str:
    """A text with a space in place of each comment, and without empty lines. A comment that is not closed is none."""
    # What cannot be closed is hidden, so that no text takes long: each such place would be looked for to the end.
    before, mark, after = source.rpartition("*/")
    source = before + mark + after.replace("/*", "/\0*")
    text = _COMMENT_OR_TEXT.sub(lambda match: " " if match[0].startswith("/") else match[0], source)
    text = text.replace("/\0*", "/*")
    return "\n".join(line for line in text.split("\n") if line.strip())


class _Share:
    """A sum of matches over a sum of what could match."""

    def __init__(self) -> None:
        self.matched = self.total = 0

    def add(self, matched: int, total: int) -> None:
        self.matched += matched
        self.total += total

    @property
    def value(self) -> float | None:
        return self.matched / self.total if self.total else None


def _subtrees(root: Node) -> Iterator[str]:
    """The S-expressions of the root and of all nodes with children below it."""
    nodes = [root]
    while nodes:
        node = nodes.pop()
        yield str(node)
        nodes.extend(child for child in node.children if child.children)


def _flow(root: Node, language: CodeLanguage) -> Counter[DataFlow]:
    """Data flow of a tree. Deep trees end here, before their subtrees are spelled out, each with all below it."""
    try:
        return Counter(data_flow(root, C_NODES if language == "cuda" else CSHARP_NODES))
    except RecursionError:
        raise UsageError("a text is nested too deeply for its data flow to be read") from None


@cache
def _parser(language: CodeLanguage) -> Parser:
    try:
        import tree_sitter
        import tree_sitter_c
        import tree_sitter_cpp
        import tree_sitter_cuda
    except ImportError as error:
        raise UsageError(f"CodeBLEU needs tree-sitter and its grammars ({error}): {install_hint('metrics')}") from None
    grammar = {"c": tree_sitter_c, "cpp": tree_sitter_cpp, "cuda": tree_sitter_cuda}[language]
    return tree_sitter.Parser(tree_sitter.Language(grammar.language()))
