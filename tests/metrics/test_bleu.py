"""BLEU in plain Python and on tensors is NLTK's, and of a corpus sacrebleu's."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sacrebleu.metrics import BLEU

from kernelforge.errors import UsageError
from kernelforge.metrics import Ngrams, Smoothing, corpus_bleu, sentence_bleu
from kernelforge.metrics.tensor_bleu import tensor_corpus_bleu, tensor_sentence_bleu

SMOOTHING = {
    Smoothing(): "method0",
    Smoothing("floor", 0.1): "method1",
    Smoothing("add-k", 1): "method2",
    Smoothing("exponential"): "method3",
}
"""NLTK's names. It imports SciPy, which collecting the tests must not: see the test that calls it."""
SACREBLEU = {Smoothing("floor", 0.1): "floor", Smoothing("add-k", 1): "add-k", Smoothing("exponential"): "exp"}
WEIGHTS = ((0.25, 0.25, 0.25, 0.25), (1.0,), (0.5, 0.0, 0.5), (0.1, 0.2, 0.3, 0.2, 0.2))
PAD = -7

Text = list[int]
texts = st.lists(st.integers(0, 3), max_size=9)
references = st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=9), min_size=1, max_size=3)
batches = st.lists(st.tuples(texts, references), min_size=1, max_size=4)


def padded(rows: Sequence[Text], width: int, at: int) -> torch.Tensor:
    """Rows of one width; the padding stands behind, in front, or all over the text."""
    made = torch.full((len(rows), width), PAD, dtype=torch.int64)
    for row, text in enumerate(rows):
        spare = width - len(text)
        places = [range(len(text)), range(spare, width), range(0, 2 * len(text), 2)][at]
        made[row, list(places)] = torch.tensor(text, dtype=torch.int64)
    return made


def tensors(batch: Sequence[tuple[Text, list[Text]]], at: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids of the texts, and of their references; those that a text lacks are padding."""
    several = max(len(group) for _, group in batch)
    others = [padded([*group, *([[]] * (several - len(group)))], 20, at) for _, group in batch]
    return padded([text for text, _ in batch], 18, at), torch.stack(others)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@settings(max_examples=60, deadline=None)
@given(
    batch=batches,
    at=st.integers(0, 2),
    smoothing=st.sampled_from(sorted(SMOOTHING)),
    weights=st.sampled_from(WEIGHTS),
    shift=st.sampled_from([0, 10**18]),
)
def test_both_are_nltks(
    batch: list[tuple[Text, list[Text]]], at: int, smoothing: Smoothing, weights: tuple[float, ...], shift: int
) -> None:
    from nltk.translate import bleu_score as nltk_bleu

    function = getattr(nltk_bleu.SmoothingFunction(), SMOOTHING[smoothing])
    expected = [nltk_bleu.sentence_bleu(group, text, weights, function) for text, group in batch]
    counted = [(Ngrams.of(text, len(weights)), [Ngrams.of(o, len(weights)) for o in group]) for text, group in batch]
    plain = [sentence_bleu(*pair, weights=weights, smoothing=smoothing) for pair in counted]
    assert plain == pytest.approx(expected, rel=1e-12, abs=1e-60)
    ids, others = tensors(batch, at)
    masks = {"candidate_mask": ids != PAD, "reference_mask": others != PAD}
    # Ids as large as these leave no room for the number of a text in the same integer.
    ids, others = (torch.where(tensor == PAD, PAD, tensor * (shift or 1) - shift) for tensor in (ids, others))
    scored = tensor_sentence_bleu(ids, others, weights=weights, smoothing=smoothing, **masks)
    assert scored.tolist() == pytest.approx(expected, rel=1e-12, abs=1e-60)
    corpus = nltk_bleu.corpus_bleu([group for _, group in batch], [text for text, _ in batch], weights, function)
    assert corpus_bleu(counted, weights=weights, smoothing=smoothing) == pytest.approx(corpus, rel=1e-12, abs=1e-60)
    together = tensor_corpus_bleu(ids, others, weights=weights, smoothing=smoothing, **masks)
    assert together.item() == pytest.approx(corpus, rel=1e-12, abs=1e-60)


@pytest.mark.parametrize("smoothing", SACREBLEU)
def test_a_corpus_of_texts_with_four_tokens_or_more_is_sacrebleus(smoothing: Smoothing) -> None:
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0, 9, (12, 11), generator=generator)
    others = torch.randint(0, 9, (12, 2, 11), generator=generator)
    others[:4, 0] = torch.where(torch.rand(4, 11, generator=generator) < 0.8, ids[:4], others[:4, 0])
    spelled = [" ".join(map(str, row)) for row in ids.tolist()]
    streams = [[" ".join(map(str, row)) for row in others[:, at].tolist()] for at in range(2)]
    metric = BLEU(tokenize="none", smooth_method=SACREBLEU[smoothing], smooth_value=smoothing.value or None)
    expected = metric.corpus_score(spelled, streams).score / 100
    assert 0.1 < expected < 1
    assert tensor_corpus_bleu(ids, others, smoothing=smoothing).item() == pytest.approx(expected, rel=1e-12)


def test_a_batch_is_scored_as_its_texts_alone() -> None:
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(0, 50, (64, 40), generator=generator)
    others = torch.where(torch.rand(64, 40, generator=generator) < 0.3, 0, ids)
    scores = tensor_sentence_bleu(ids, others)
    alone = [tensor_sentence_bleu(ids[row : row + 1], others[row : row + 1]).item() for row in range(64)]
    assert scores.tolist() == pytest.approx(alone, rel=1e-12)
    assert scores.min() > 0
    assert tensor_sentence_bleu(ids, ids).tolist() == [1.0] * 64
    narrow = tensor_sentence_bleu(ids.to(torch.uint8), others.to(torch.uint8))
    assert torch.equal(scores, narrow)


def test_a_batch_may_hold_no_token_and_no_text() -> None:
    nothing = torch.full((3, 5), PAD)
    assert tensor_sentence_bleu(nothing, nothing, pad=PAD).tolist() == [0.0] * 3
    assert tensor_sentence_bleu(torch.ones(3, 5, dtype=torch.int64), nothing, pad=PAD).tolist() == [0.0] * 3
    assert tensor_sentence_bleu(torch.ones(2, 5, dtype=torch.int64), torch.ones(2, 0, 5, dtype=torch.int64)).sum() == 0
    assert tensor_sentence_bleu(nothing[:0], nothing[:0]).shape == (0,)
    assert tensor_corpus_bleu(nothing, nothing, pad=PAD).item() == 0
    assert sentence_bleu(Ngrams.of([1, 2]), []) == 0


def test_what_does_not_fit_is_refused() -> None:
    ids = torch.ones(2, 4, dtype=torch.int64)
    for wrong in (ids[0], ids[:1], ids.float(), ids.reshape(2, 1, 1, 4), ids.to("meta")):
        with pytest.raises(UsageError):
            tensor_sentence_bleu(ids, wrong)
    with pytest.raises(UsageError, match="not both"):
        tensor_sentence_bleu(ids, ids, pad=0, candidate_mask=ids > 0)
    with pytest.raises(UsageError, match="a mask of shape"):
        tensor_sentence_bleu(ids, ids, reference_mask=ids[:1] > 0)
    with pytest.raises(UsageError, match="one order"):
        tensor_sentence_bleu(ids, ids, weights=())


@pytest.mark.gpu
def test_a_gpu_gives_the_same_scores() -> None:
    if not torch.cuda.is_available():
        pytest.skip("this build of torch has no GPU")
    generator = torch.Generator().manual_seed(2)
    ids = torch.randint(0, 50, (32, 200), generator=generator)
    others = torch.where(torch.rand(32, 3, 200, generator=generator) < 0.3, 0, ids.unsqueeze(1))
    for smoothing in SMOOTHING:
        on_gpu = tensor_sentence_bleu(ids.cuda(), others.cuda(), pad=0, smoothing=smoothing)
        assert on_gpu.tolist() == pytest.approx(tensor_sentence_bleu(ids, others, pad=0, smoothing=smoothing).tolist())
