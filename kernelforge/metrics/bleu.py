"""BLEU of token sequences in plain Python, without torch: for a few texts at a time.

:mod:`kernelforge.metrics.tensor_bleu` computes the same of batches of token ids. Formula: Papineni et al. (2002), with
the details of NLTK's ``bleu_score``; smoothing: Chen and Cherry (2014), as far as TensorBLEU (arXiv 2510.05485) has it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from typing import Literal, NamedTuple

UNIFORM = (0.25, 0.25, 0.25, 0.25)
"""Weights of the orders 1 to 4: those of BLEU-4."""


class Smoothing(NamedTuple):
    """Treatment of precisions of zero.

    ==============  ==========================================================  =============
    method          precision                                                   NLTK's method
    ==============  ==========================================================  =============
    none            0, and so the score                                         0
    floor           ``value`` matches instead of none                           1
    add-k           of orders above 1, ``value`` more matches and n-grams       2
    exponential     of the k-th order without a match, 1 / (2^k n-grams)        3
    ==============  ==========================================================  =============
    """

    method: Literal["none", "floor", "add-k", "exponential"] = "none"
    value: float = 0.0
    """0.1 for ``floor`` and 1 for ``add-k`` are the values of NLTK and of TensorBLEU."""


NO_SMOOTHING = Smoothing()


class Ngrams(NamedTuple):
    """The n-grams of a text."""

    length: int
    """Tokens."""
    counts: tuple[Counter[tuple[Hashable, ...]], ...]
    """How often each n-gram occurs, for the orders from 1."""

    @classmethod
    def of(cls, tokens: Sequence[Hashable], orders: int = len(UNIFORM)) -> Ngrams:
        """Count the n-grams of a text up to an order."""
        return cls(
            len(tokens),
            tuple(Counter(zip(*(tokens[start:] for start in range(n)), strict=False)) for n in range(1, orders + 1)),
        )


def sentence_bleu(
    candidate: Ngrams,
    references: Sequence[Ngrams],
    *,
    weights: Sequence[float] = UNIFORM,
    smoothing: Smoothing = NO_SMOOTHING,
) -> float:
    """BLEU of a text against one reference or several, from 0 to 1. Without any reference it is 0."""
    return corpus_bleu([(candidate, references)], weights=weights, smoothing=smoothing)


def corpus_bleu(
    pairs: Iterable[tuple[Ngrams, Sequence[Ngrams]]],
    *,
    weights: Sequence[float] = UNIFORM,
    smoothing: Smoothing = NO_SMOOTHING,
) -> float:
    """BLEU of several texts, each with its references: matches and n-grams are added up before they are divided."""
    matches, possible = [0] * len(weights), [0] * len(weights)
    length = reference_length = 0
    for candidate, references in pairs:
        length += candidate.length
        reference_length += closest_length(candidate.length, [reference.length for reference in references])
        for order in range(len(weights)):
            matches[order] += clipped_matches(candidate, references, order)
            possible[order] += max(1, candidate.length - order)  # one at least, as with NLTK
    return score(matches, possible, length, reference_length, weights, smoothing)


def clipped_matches(candidate: Ngrams, references: Sequence[Ngrams], order: int) -> int:
    """Matched n-grams of a candidate; each counts as often as the reference that has it most.

    Args:
        order: from 0, for single tokens.
    """
    return sum(
        min(count, max((reference.counts[order][ngram] for reference in references), default=0))
        for ngram, count in candidate.counts[order].items()
    )


def closest_length(length: int, references: Sequence[int]) -> int:
    """Length of the reference that is nearest to a text's; of two as near the shorter. 0 without any."""
    return min(references, key=lambda other: (abs(other - length), other), default=0)


def score(
    matches: Sequence[float],
    possible: Sequence[float],
    length: int,
    reference_length: int,
    weights: Sequence[float],
    smoothing: Smoothing,
) -> float:
    """BLEU from counts: the weighted geometric mean of the precisions, times the brevity penalty."""
    if not matches[0]:
        return 0.0
    logarithms, misses = [], 0
    for order, (matched, total, weight) in enumerate(zip(matches, possible, weights, strict=True)):
        precision = matched / total
        if smoothing.method == "add-k" and order > 0:
            precision = (matched + smoothing.value) / (total + smoothing.value)
        elif smoothing.method == "floor" and not matched:
            precision = smoothing.value / total
        elif smoothing.method == "exponential" and not matched:
            misses += 1
            precision = 1 / (2**misses * total)
        if precision == 0 and weight:
            return 0.0
        logarithms.append(weight * math.log(precision) if weight else 0.0)
    return brevity_penalty(length, reference_length) * math.exp(math.fsum(logarithms))


def brevity_penalty(length: int, reference_length: int) -> float:
    """Factor below 1 for texts that are shorter than their references."""
    if length > reference_length:
        return 1.0
    return math.exp(1 - reference_length / length) if length else 0.0
