"""An archive in the manner of MAP-Elites (Mouret and Clune 2015): the best kernel of each kind.

A kind is a cell of three axes that tell kernels apart: what bounds the time, how data reaches the multiprocessor, and
whether the tensor cores work. OpenEvolve's axes are the length and the spread of characters of the text, which say
nothing about a kernel.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

from kernelforge.records import Attempt, Candidate
from kernelforge.search.base import rank_key
from kernelforge.search.novelty import Token, tokens, words

Staging = Literal["none", "shared", "async"]

_ASYNC_WORDS = words(
    "memcpy_async __pipeline_memcpy_async cp_async_bulk cp_async_bulk_tensor cp_reduce_async_bulk CUtensorMap"
)
_TENSOR_WORDS = frozenset({"wmma", "mma_sync", "bmma_sync"})
_TENSOR_OPCODES = frozenset({"mma", "wmma", "wgmma", "tcgen05"})
_ASM = frozenset({"asm", "__asm", "__asm__"})
_PTX_WORD = re.compile(r"[A-Za-z_]\w*(?:(?:\.|::)\w+)*")


class Cell(NamedTuple):
    """The kind of kernel of an attempt."""

    bound: str
    """What bounds its time, by its profile (else by its performance): ``dram``, ``fp32``, ``latency``..."""
    staging: Staging
    """``async``: asynchronous copies (``cp.async``, bulk copies by TMA). ``shared``: shared memory without them."""
    tensor: bool
    """Whether it uses the tensor cores."""


def behaviour_cell(attempt: Attempt) -> Cell:
    """The cell of a correct attempt."""
    performance = attempt.evaluation.performance
    bound = "unknown" if performance is None else performance.bound
    if attempt.profile is not None:
        bound = attempt.profile.roofline.bound
    assert attempt.candidate is not None
    return Cell(bound, *techniques(attempt.candidate))


def techniques(candidate: Candidate) -> tuple[Staging, bool]:
    """Staging of memory in a candidate, and whether it uses tensor cores.

    Read from the words of its source, and the opcodes of its inline PTX; comments and other strings do not count.
    """
    source_tokens = tokens(candidate.source)
    used = {token.text for token in source_tokens if token.kind == "word"}
    opcodes = [opcode.split(".") for opcode in _inline_opcodes(source_tokens)]
    copies = any(opcode[:2] == ["cp", "async"] or opcode[:3] == ["cp", "reduce", "async"] for opcode in opcodes)
    shared = "__shared__" in used or any(opcode[0] in ("ld", "st") and "shared" in opcode for opcode in opcodes)
    staging: Staging = "shared" if shared else "none"
    if copies or not used.isdisjoint(_ASYNC_WORDS):
        staging = "async"
    return staging, not used.isdisjoint(_TENSOR_WORDS) or any(opcode[0] in _TENSOR_OPCODES for opcode in opcodes)


def _inline_opcodes(source_tokens: Sequence[Token]) -> Iterator[str]:
    """Words of the strings in ``asm`` statements; a ``::`` within one becomes a dot."""
    depth: int | None = None
    for token in source_tokens:
        if token.kind == "word" and token.text in _ASM:
            depth = 0
        elif depth is not None and token.text in ("(", ")"):
            depth += 1 if token.text == "(" else -1
            depth = depth or None
        elif depth and token.kind == "string":
            for word in _PTX_WORD.findall(token.text):
                yield word.replace("::", ".")


def elites(attempts: Iterable[Attempt], cells: Mapping[int, Cell], best: int | None = None) -> dict[Cell, Attempt]:
    """The best attempt of each cell; of equals, the oldest.

    Args:
        attempts: correct ones.
        cells: the cell of each by its number.
        best: number of the task's best, which keeps its cell even if another scores higher.
    """
    kept: dict[Cell, Attempt] = {}
    for attempt in attempts:
        cell = cells[attempt.number]
        holder = kept.get(cell)
        if holder is None or attempt.number == best or (holder.number != best and rank_key(attempt) < rank_key(holder)):
            kept[cell] = attempt
    return kept
