"""Likeness of translations to known ones: BLEU of tokens, and CodeBLEU where its parsers are installed."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Final, Literal

from pydantic import Field

from kernelforge.errors import UsageError
from kernelforge.metrics import Ngrams, codebleu, corpus_bleu
from kernelforge.metrics.codebleu import uncommented
from kernelforge.records.base import Record

_TOKEN: Final = re.compile(r'"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'|[A-Za-z_]\w*|\.?\d[\w.]*|\S')


class Likeness(Record):
    """Scores of a corpus, each from 0 to 1."""

    texts: int = Field(ge=1)
    """Translations that were compared."""
    bleu: float
    """Of the tokens of C, without comments; four orders, no smoothing."""
    codebleu: float | None
    """None where the extra `metrics` is not installed, or a text is nested too deeply for its parser."""


def tokens(source: str) -> list[str]:
    """Tokens of C or CUDA, without comments; a character that begins no other token is one."""
    return _TOKEN.findall(uncommented(source))


def likeness(candidates: Sequence[str], references: Sequence[str], language: Literal["c", "cuda"]) -> Likeness | None:
    """Compare translations with a known one each; None without any. The last scores are kept: the summary of a run and
    its board ask for the same.

    Args:
        candidates: texts.
        references: the known translation of each.
        language: of both.
    """
    return _scored(tuple(candidates), tuple(references), language) if candidates else None


@lru_cache(maxsize=2)
def _scored(candidates: tuple[str, ...], references: tuple[str, ...], language: Literal["c", "cuda"]) -> Likeness:
    originals = {text: Ngrams.of(tokens(text)) for text in set(references)}
    pairs = [
        (Ngrams.of(tokens(text)), [originals[reference]])
        for text, reference in zip(candidates, references, strict=True)
    ]
    try:
        code: float | None = codebleu(candidates, [[text] for text in references], language, tokenize=tokens).score
    except UsageError:
        code = None
    return Likeness(texts=len(candidates), bleu=corpus_bleu(pairs), codebleu=code)
