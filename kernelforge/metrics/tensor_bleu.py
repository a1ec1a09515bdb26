"""TensorBLEU: BLEU of batches of token ids, on the device where they are (arXiv 2510.05485).

As in the paper, a dictionary of the batch's n-grams is made by ``torch.unique``, and counts are bins of its entries.
Two things differ, for speed and memory, and change no score. An n-gram is looked up by two numbers, the entry of its
first n - 1 tokens and its last token, so that ``unique`` sorts integers and not rows; entries belong to one text and
its references, so that counts need no table of texts by entries. And an n-gram is looked at only where its first n - 1
tokens are in the text and in a reference, since no other can match.

A score of token ids depends on the tokenizer: compare it with scores of the same tokenizer alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from kernelforge.errors import UsageError
from kernelforge.metrics.bleu import NO_SMOOTHING, UNIFORM, Smoothing


class BatchCounts(NamedTuple):
    """Counts of a batch of B texts."""

    matches: Tensor
    """Clipped matches of each order, (orders, B)."""
    possible: Tensor
    """N-grams of each order, at least 1, (orders, B)."""
    lengths: Tensor
    """Tokens of each text, (B,)."""
    reference_lengths: Tensor
    """Tokens of the reference that is nearest in length, (B,)."""


def tensor_sentence_bleu(
    candidates: Tensor,
    references: Tensor,
    *,
    pad: int | None = None,
    candidate_mask: Tensor | None = None,
    reference_mask: Tensor | None = None,
    weights: Sequence[float] = UNIFORM,
    smoothing: Smoothing = NO_SMOOTHING,
) -> Tensor:
    """BLEU of each text of a batch, float64 (B,).

    Args:
        candidates: token ids, (B, T).
        references: token ids, (B, S), or of R references of each text (B, R, S).
        pad: a token id that is no token, wherever it stands.
        candidate_mask: True where there is a token, of the shape of ``candidates``; in place of ``pad``.
        reference_mask: the same of ``references``. A reference without tokens is none.
        weights: of the orders from 1; their number is the highest order.

    Raises:
        UsageError: shapes, types or devices do not fit together, or a mask and ``pad`` are both there.
    """
    counts = batch_counts(
        candidates,
        references,
        pad=pad,
        candidate_mask=candidate_mask,
        reference_mask=reference_mask,
        orders=len(weights),
    )
    return batch_scores(counts, weights, smoothing)


def tensor_corpus_bleu(
    candidates: Tensor,
    references: Tensor,
    *,
    pad: int | None = None,
    candidate_mask: Tensor | None = None,
    reference_mask: Tensor | None = None,
    weights: Sequence[float] = UNIFORM,
    smoothing: Smoothing = NO_SMOOTHING,
) -> Tensor:
    """BLEU of a batch as one corpus, a float64 scalar: counts are added up first. Arguments as above."""
    counts = batch_counts(
        candidates,
        references,
        pad=pad,
        candidate_mask=candidate_mask,
        reference_mask=reference_mask,
        orders=len(weights),
    )
    total = BatchCounts(*(part.sum(-1, keepdim=True) for part in counts))
    return batch_scores(total, weights, smoothing)[0]


def batch_counts(
    candidates: Tensor,
    references: Tensor,
    *,
    pad: int | None = None,
    candidate_mask: Tensor | None = None,
    reference_mask: Tensor | None = None,
    orders: int = len(UNIFORM),
) -> BatchCounts:
    """Matches, n-grams and lengths of a batch, from which scores are made. Arguments as above."""
    if references.dim() == 2:
        references = references.unsqueeze(1)
        reference_mask = None if reference_mask is None else reference_mask.unsqueeze(1)
    _check(candidates, references, orders)
    masked = _mask(candidates, candidate_mask, pad), _mask(references, reference_mask, pad)
    batch, several = references.shape[:2]
    lengths, reference_lengths = masked[0].sum(-1), masked[1].sum(-1)
    possible = torch.stack([(lengths - order).clamp(min=1) for order in range(orders)])
    return BatchCounts(
        matches=_matches(candidates, references, *masked, batch, several, orders),
        possible=possible,
        lengths=lengths,
        reference_lengths=_closest(lengths, reference_lengths),
    )


def batch_scores(counts: BatchCounts, weights: Sequence[float], smoothing: Smoothing) -> Tensor:
    """BLEU from counts, float64 (B,): the weighted geometric mean of the precisions, times the brevity penalty."""
    matches, possible = counts.matches.double(), counts.possible.double()
    missed = matches == 0
    precision = matches / possible
    if smoothing.method == "add-k":
        precision[1:] = (matches[1:] + smoothing.value) / (possible[1:] + smoothing.value)
    elif smoothing.method == "floor":
        precision = torch.where(missed, smoothing.value / possible, precision)
    elif smoothing.method == "exponential":
        precision = torch.where(missed, 0.5 ** missed.cumsum(0) / possible, precision)
    weight = torch.tensor(weights, dtype=torch.float64, device=matches.device).unsqueeze(1)
    logarithm = torch.xlogy(weight, precision)  # 0 where the weight is
    penalty = torch.exp((1 - counts.reference_lengths.double() / counts.lengths).clamp(max=0))
    return torch.where(missed[0], 0.0, penalty * logarithm.sum(0).exp())


def _check(candidates: Tensor, references: Tensor, orders: int) -> None:
    if candidates.dim() != 2 or references.dim() != 3 or candidates.shape[0] != references.shape[0]:
        raise UsageError(
            f"texts of shape {tuple(candidates.shape)} and references of {tuple(references.shape)} do not fit: "
            "a batch is (B, T), its references are (B, S) or (B, R, S)"
        )
    if orders < 1:
        raise UsageError("a score needs the weight of one order at least")
    for tensor in (candidates, references):
        if tensor.is_floating_point() or tensor.is_complex() or tensor.device != candidates.device:
            raise UsageError(f"token ids are integers on one device, not {tensor.dtype} on {tensor.device}")


def _mask(tokens: Tensor, mask: Tensor | None, pad: int | None) -> Tensor:
    if mask is None:
        return torch.ones_like(tokens, dtype=torch.bool) if pad is None else tokens != pad
    if pad is not None:
        raise UsageError("a mask or the id of the padding says what is a token, not both")
    if mask.shape != tokens.shape or mask.device != tokens.device:
        raise UsageError(f"a mask of shape {tuple(mask.shape)} does not fit token ids of {tuple(tokens.shape)}")
    return mask.bool()


def _closest(lengths: Tensor, references: Tensor) -> Tensor:
    """Length of the nearest reference that there is, of two as near the shorter: (B,) of (B,) and (B, R)."""
    if not references.shape[1]:
        return torch.zeros_like(lengths)
    # Twice the distance leaves a bit to order two that are as near.
    distance = 2 * (references - lengths.unsqueeze(1)).abs() + (references > lengths.unsqueeze(1))
    nearest = distance.masked_fill(references == 0, torch.iinfo(torch.int64).max).argmin(1, keepdim=True)
    return references.gather(1, nearest).squeeze(1)


def _matches(
    candidates: Tensor,
    references: Tensor,
    candidate_mask: Tensor,
    reference_mask: Tensor,
    batch: int,
    several: int,
    orders: int,
) -> Tensor:
    """Clipped matches, (orders, B)."""
    device = candidates.device
    # One line of tokens: first the texts, then their references. ``owner`` numbers both, ``row`` the texts.
    tokens = torch.cat([candidates[candidate_mask], references[reference_mask]]).long()
    texts = torch.arange(batch, device=device)
    of_text = texts.unsqueeze(1).expand_as(candidates)[candidate_mask]
    own = batch + torch.arange(batch * several, device=device).view(batch, several, 1)
    owner = torch.cat([of_text, own.expand_as(references)[reference_mask]])
    row = torch.where(owner < batch, owner, (owner - batch) // max(several, 1))
    which = torch.where(owner < batch, 0, (owner - batch) % max(several, 1))
    first = _entries(row, tokens)
    matches = torch.zeros((orders, batch), dtype=torch.int64, device=device)
    at = torch.arange(len(tokens), device=device)
    entry = first
    for order in range(orders):
        if order:
            at, entry = _longer(at, entry, order, owner, first)
        if not len(at):
            break
        size = int(entry.max()) + 1
        in_text = owner[at] < batch
        counts = torch.bincount(entry[in_text], minlength=size)
        in_reference = entry[~in_text] + which[at[~in_text]] * size
        most = torch.bincount(in_reference, minlength=max(several, 1) * size).view(-1, size).amax(0)
        clipped = torch.minimum(counts, most)
        rows = torch.zeros(size, dtype=torch.int64, device=device).scatter_(0, entry, row[at])
        matches[order].index_add_(0, rows, clipped)
        live = clipped[entry] > 0
        at, entry = at[live], entry[live]
    return matches


def _longer(at: Tensor, entry: Tensor, order: int, owner: Tensor, first: Tensor) -> tuple[Tensor, Tensor]:
    """Starts and entries of the n-grams that are a token longer than those at ``at``."""
    inside = at + order < len(owner)
    at, entry = at[inside], entry[inside]
    inside = owner[at] == owner[at + order]
    at, entry = at[inside], entry[inside]
    return at, _entries(entry, first[at + order]) if len(at) else entry


def _entries(major: Tensor, minor: Tensor) -> Tensor:
    """Number of each pair in the dictionary of all pairs."""
    if not len(minor):
        return minor
    low, high = int(minor.min()), int(minor.max())
    if (high - low + 1) * (int(major.max()) + 1) > torch.iinfo(torch.int64).max:
        minor = torch.unique(minor, return_inverse=True)[1]
        low, high = 0, int(minor.max())
    entries: Tensor = torch.unique(major * (high - low + 1) + (minor - low), return_inverse=True)[1]
    return entries
