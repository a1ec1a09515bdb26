"""BLEU of batches of token ids, against NLTK and sacrebleu in the same run, and equal to NLTK.

    python benchmarks/bleu.py [--device cpu|cuda] [--threads N] [--reps N] [--batch N ...] [--length N ...] [--json]

A text is a reference with 30 % of its tokens replaced, ids are below 32,000. What is compared is the score of each text
of a batch: for tensors one call on token ids that are on the device; for NLTK a call for each pair of lists of ids; for
sacrebleu, which takes strings, a call for each pair of texts of ids with spaces, tokenised by them. Making the lists
and the strings is not counted. Smoothing is exponential. Times are medians; the peers' are of one repetition for
batches of a second or more.

Exits with 1 where tensors are slower than NLTK, or a score differs from NLTK's by more than 1e-12.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from nltk.translate.bleu_score import SmoothingFunction, sentence_bleu
from sacrebleu.metrics import BLEU

from kernelforge.metrics import Smoothing
from kernelforge.metrics.tensor_bleu import tensor_sentence_bleu

BATCHES, LENGTHS = (16, 64, 256), (128, 256, 1024)
VOCABULARY, REPLACED = 32_000, 0.3
MOST_DIFFERENCE = 1e-12


def seconds(call: Callable[[], Any], reps: int, *, patient: bool) -> float:
    """Median time of a call after one that is not counted; a slow peer is timed once."""
    begun = time.perf_counter()
    call()
    first = time.perf_counter() - begun
    if not patient and first > 1:
        return first
    times = []
    for _ in range(reps):
        begun = time.perf_counter()
        call()
        times.append(time.perf_counter() - begun)
    return statistics.median(times)


def compare(batch: int, length: int, device: str, reps: int) -> dict[str, float]:
    """Times of one batch in milliseconds, ratios to the peers, and the largest difference from NLTK."""
    generator = torch.Generator().manual_seed(batch * length)
    references = torch.randint(0, VOCABULARY, (batch, length), generator=generator)
    others = torch.randint(0, VOCABULARY, (batch, length), generator=generator)
    texts = torch.where(torch.rand(batch, length, generator=generator) < REPLACED, others, references)
    ids = texts.to(device), references.to(device)
    lists = list(zip(texts.tolist(), references.tolist(), strict=True))
    strings = [(" ".join(map(str, text)), [" ".join(map(str, other))]) for text, other in lists]
    method = SmoothingFunction().method3
    metric = BLEU(tokenize="none", smooth_method="exp", effective_order=True)

    def tensors() -> list[float]:
        scores: list[float] = tensor_sentence_bleu(*ids, smoothing=Smoothing("exponential")).tolist()
        return scores

    def nltk() -> list[float]:
        return [sentence_bleu([other], text, smoothing_function=method) for text, other in lists]

    def sacrebleu() -> list[float]:
        return [metric.sentence_score(text, group).score / 100 for text, group in strings]

    own = seconds(tensors, reps, patient=True)
    peers = {"nltk": seconds(nltk, reps, patient=False), "sacrebleu": seconds(sacrebleu, reps, patient=False)}
    difference = max(abs(a - b) for a, b in zip(tensors(), nltk(), strict=True))
    return {
        "batch": batch,
        "length": length,
        "tensor_ms": own * 1e3,
        **{f"{name}_ms": taken * 1e3 for name, taken in peers.items()},
        **{f"{name}_ratio": taken / own for name, taken in peers.items()},
        "difference": difference,
    }


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=1, help="of torch on the CPU")
    parser.add_argument("--reps", type=int, default=5)
    parser.add_argument("--batch", type=int, nargs="+", default=BATCHES)
    parser.add_argument("--length", type=int, nargs="+", default=LENGTHS)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    rows = []
    for length in options.length:
        for batch in options.batch:
            row = compare(batch, length, options.device, options.reps)
            rows.append(row)
            if not options.json:
                print(
                    f"{batch:4} texts of {length:5,}: {row['tensor_ms']:9.2f} ms on {options.device}, "
                    f"{row['nltk_ratio']:6.1f} x NLTK, {row['sacrebleu_ratio']:6.1f} x sacrebleu, "
                    f"differs by {row['difference']:.0e}",
                    flush=True,
                )
    if options.json:
        print(json.dumps({"device": options.device, "threads": options.threads, "rows": rows}, indent=2))
    missed = [row for row in rows if row["nltk_ratio"] < 1 or row["difference"] > MOST_DIFFERENCE]
    if missed:
        print(f"{len(missed)} of {len(rows)} batches miss the target", file=sys.stderr)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
