"""Likeness of texts: BLEU of tokens, of batches of token ids on tensors, and CodeBLEU of CUDA, C and C++."""

from kernelforge.metrics.bleu import NO_SMOOTHING, Ngrams, Smoothing, corpus_bleu, sentence_bleu
from kernelforge.metrics.codebleu import CodeBleu, codebleu

__all__ = ["NO_SMOOTHING", "CodeBleu", "Ngrams", "Smoothing", "codebleu", "corpus_bleu", "sentence_bleu"]
