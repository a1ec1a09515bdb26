"""A tokenizer that needs no download: a token per printable character."""

from __future__ import annotations

from typing import Any

import pytest

LETTERS = ["<pad>", "<eos>", "\n", *map(chr, range(32, 127))]


def character_tokenizer() -> Any:
    """Skips the test where tokenizers or transformers is missing."""
    tokenizers = pytest.importorskip("tokenizers")
    transformers = pytest.importorskip("transformers")
    characters = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({letter: index for index, letter in enumerate(LETTERS)}, unk_token="<pad>")
    )
    characters.pre_tokenizer = tokenizers.pre_tokenizers.Split("", "isolated")
    characters.decoder = tokenizers.decoders.Fuse()
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=characters, pad_token="<pad>", eos_token="<eos>", bos_token="<pad>"
    )
