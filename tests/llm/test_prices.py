"""Prices: the user's own before the list's, every kind of token at its own, and unknown is never zero."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from kernelforge.errors import UsageError
from kernelforge.llm.prices import dollars_of, has_price, load_prices
from kernelforge.records import Price, Usage

LISTED = "gpt-4o-mini-2024-07-18"
"""A dated model whose price will not change: $0.15 in, $0.60 out, $0.075 cached, per million tokens."""


def usage(model: str = LISTED, **fields) -> Usage:
    return Usage(**({"model": model, "input_tokens": 1_000_000, "output_tokens": 100_000, "seconds": 1.0} | fields))


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("prices must not be fetched")

    monkeypatch.setattr(socket.socket, "connect", refuse)


def test_a_listed_model_has_its_list_price() -> None:
    assert dollars_of({}, "openai", LISTED, usage()) == pytest.approx(0.15 + 0.06)


def test_cached_tokens_are_cheaper() -> None:
    assert dollars_of({}, "openai", LISTED, usage(cached_tokens=400_000)) == pytest.approx(
        0.6 * 0.15 + 0.4 * 0.075 + 0.06
    )


def test_tokens_written_to_the_cache_have_a_price_of_their_own() -> None:
    """Claude 3 Haiku: $0.25 in, $1.25 out, $0.03 read from and $0.30 written to the cache."""
    spent = usage("claude-3-haiku-20240307", cached_tokens=200_000, cache_write_tokens=300_000)
    dollars = dollars_of({}, "anthropic", "claude-3-haiku-20240307", spent)
    assert dollars == pytest.approx(0.5 * 0.25 + 0.2 * 0.03 + 0.3 * 0.30 + 0.125)


def test_the_model_that_answered_is_priced_else_the_one_that_was_asked() -> None:
    prices = dict[str, Price]()
    assert dollars_of(prices, "openai", "gpt-4o", usage(LISTED)) == pytest.approx(0.21)
    assert dollars_of(prices, "openai", LISTED, usage("something-internal")) == pytest.approx(0.21)


def test_own_prices_go_first() -> None:
    prices = {f"openai:{LISTED}": Price(input=1.0, output=10.0)}
    assert dollars_of(prices, "openai", LISTED, usage(cached_tokens=400_000)) == pytest.approx(1.0 + 1.0)
    prices = {"openai:local": Price(input=1.0, output=10.0, cached=0.1, cache_write=2.0)}
    spent = usage("local", cached_tokens=500_000, cache_write_tokens=200_000)
    assert dollars_of(prices, "openai", "local", spent) == pytest.approx(0.3 + 0.05 + 0.4 + 1.0)
    free = {"openai:local": Price(input=0, output=0)}
    assert dollars_of(free, "openai", "local", usage("local"), elsewhere=True) == 0.0


@pytest.mark.parametrize("own", [{}, {f"openai:{LISTED}": Price(input=0.15, output=0.6)}])
def test_a_batch_costs_half(own: dict[str, Price]) -> None:
    assert dollars_of(own, "openai", LISTED, usage(batch=True)) == pytest.approx(0.105)


@pytest.mark.parametrize("unknown", [{"input_tokens": None}, {"output_tokens": None}])
def test_unknown_tokens_have_an_unknown_price(unknown: dict[str, None]) -> None:
    own = {"openai:local": Price(input=1.0, output=1.0)}
    assert dollars_of({}, "openai", LISTED, usage(**unknown)) is None
    assert dollars_of(own, "openai", "local", usage("local", **unknown)) is None


def test_an_unknown_model_has_an_unknown_price() -> None:
    prices = dict[str, Price]()
    assert dollars_of(prices, "openai", "no-such-model", usage("no-such-model")) is None
    assert not has_price(prices, "openai", "no-such-model")
    assert has_price(prices, "openai", LISTED)


def test_the_list_does_not_hold_for_other_servers() -> None:
    """A server of one's own may call its model what it likes."""
    prices = dict[str, Price]()
    assert dollars_of(prices, "openai", LISTED, usage(), elsewhere=True) is None
    assert not has_price(prices, "openai", LISTED, elsewhere=True)
    own = {f"openai:{LISTED}": Price(input=1, output=1)}
    assert has_price(own, "openai", LISTED, elsewhere=True)
    assert dollars_of(own, "openai", LISTED, usage(), elsewhere=True) == pytest.approx(1.1)


def test_prices_are_read_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "prices.toml"
    file.write_text(
        '["openai:Qwen/Qwen3-32B"]\ninput = 0.1\noutput = 0.3\n'
        '["anthropic:x"]\ninput = 1\noutput = 2\ncached = 0.1\ncache_write = 1.25\n'
    )
    assert load_prices(file) == {
        "openai:Qwen/Qwen3-32B": Price(input=0.1, output=0.3),
        "anthropic:x": Price(input=1, output=2, cached=0.1, cache_write=1.25),
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("not toml", "are not TOML"),
        ("[model]\ninput = 1\noutput = 1\n", "'model', which is no model"),
        ("currency = 'EUR'\n", "'currency', which is no model"),
        ('["openai:m"]\ninput = 1\n', "openai:m, output: Field required"),
        ('["openai:m"]\ninput = -1\noutput = 1\n', "openai:m, input: "),
        ('["openai:m"]\ninput = 1\noutput = 1\nimages = 2\n', "openai:m, images: Extra inputs"),
        ('["openai:m"]\ninput = nan\noutput = 1\n', "openai:m, input: "),
    ],
)
def test_a_bad_file_is_refused_with_its_place(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "prices.toml"
    file.write_text(text)
    with pytest.raises(UsageError) as caught:
        load_prices(file)
    assert message in str(caught.value)
    assert str(file) in str(caught.value)


def test_a_missing_file_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read: No such file"):
        load_prices(tmp_path / "none.toml")
