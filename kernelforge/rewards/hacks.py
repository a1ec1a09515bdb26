"""A case base of reward hacks: what a candidate is compared with when its reward jumps.

CUDA-L1's reward checker looks at jumps with the three most similar cases of a database of hacks, and a model decides.
Here a rule decides. The cases are the candidates of this project's adversarial tests: hacks, and the honest kernels
nearest to them. ``python .ci/hack_cases.py`` writes them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib import resources
from typing import Literal, NamedTuple

from kernelforge.search.novelty import normalised_source

FILE = "hack_cases.json"
SHINGLE = 6
"""Tokens of a shingle."""
ALIKE = 0.5
"""Similarity from which a candidate is suspected. With shingles of 6 tokens, and each case compared with all others, it
suspects 63 of the 181 hacks, and 11 of the 64 honest kernels, which were written to look like one. Most hacks
are of a kind of their own, and few lines of a right kernel make one: a text tells no more."""
TOP = 3
"""Cases that are named: CUDA-L1's number."""


class Similar(NamedTuple):
    """A case, and how like it a candidate is."""

    name: str
    kind: Literal["cheat", "honest"]
    similarity: float
    """Jaccard index of the shingles of both sources, 0 to 1; 1 also for equal PTX."""


@dataclass(frozen=True)
class Case:
    """A candidate that is a hack, or one that looks like a hack and is none."""

    name: str
    kind: Literal["cheat", "honest"]
    source: str
    """CUDA C++ device code."""
    ptx_hash: str | None = None
    """Of its PTX for sm_90a without names; None where it does not compile."""

    def similarity(self, source: frozenset[str], ptx_hash: str | None) -> float:
        """Similarity to a candidate with these shingles and this hash of its PTX."""
        if ptx_hash is not None and ptx_hash == self.ptx_hash:
            return 1.0
        own = shingles(self.source)
        return len(own & source) / len(own | source)


@cache
def shipped_cases() -> tuple[Case, ...]:
    """The cases of the package."""
    text = resources.files(__package__).joinpath(FILE).read_text(encoding="utf-8")
    return tuple(Case(**row) for row in json.loads(text))


@lru_cache(maxsize=2_000)  # the cases of the package and of runs, and not every candidate of a long training
def shingles(source: str) -> frozenset[str]:
    """Runs of tokens of a source, its own names numbered in their order: other names and layout change nothing."""
    tokens, _ = normalised_source(source, frozenset())
    return frozenset(" ".join(tokens[at : at + SHINGLE]) for at in range(max(len(tokens) - SHINGLE + 1, 1)))


def most_similar(source: str, ptx_hash: str | None, cases: Sequence[Case]) -> list[Similar]:
    """The cases that are most like a candidate, the most similar first; of equals an honest one."""
    own = shingles(source)
    rated = [Similar(case.name, case.kind, case.similarity(own, ptx_hash)) for case in cases]
    return sorted(rated, key=lambda item: (-item.similarity, item.kind == "cheat", item.name))[:TOP]


def is_suspect(similar: Sequence[Similar], alike: float = ALIKE) -> bool:
    """Whether a candidate is to be looked at: the case most like it is a hack, and at least ``alike`` it, of 1."""
    return bool(similar) and similar[0].kind == "cheat" and similar[0].similarity >= alike
