"""Price of a call in dollars, from the user's prices or genai-prices. Unknown is None, never 0.

The list is the installed package's own; nothing is fetched, so a run's prices are those of its installation.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path

from pydantic import ValidationError

from kernelforge.errors import UsageError
from kernelforge.records import Price, Usage, first_fault

BATCH_SHARE = 0.5
"""Of the list price, for calls through a batch interface: both OpenAI (Batch API guide) and Anthropic (Message Batches)
halve it."""
LISTED_PROVIDERS = ("openai", "anthropic")
"""Providers whose own servers the list is about, under the names it has for them."""
_PER = 1_000_000


def has_price(own: Mapping[str, Price], provider: str, model: str, *, elsewhere: bool = False) -> bool:
    """Whether calls of a model can be priced: by its ``own`` price, or by the list.

    Args:
        own: prices by ``provider:model``; each goes before the list.
        elsewhere: a server other than the provider's own answers.
    """
    if f"{provider}:{model}" in own:
        return True
    sample_usage = Usage(model=model, input_tokens=1, output_tokens=1, seconds=0)
    return not elsewhere and provider in LISTED_PROVIDERS and _listed(provider, model, sample_usage) is not None


def dollars_of(
    own: Mapping[str, Price], provider: str, model: str, usage: Usage, *, elsewhere: bool = False
) -> float | None:
    """Cost of a call in dollars, as :func:`has_price`; None where the price or the count of tokens is unknown."""
    if usage.input_tokens is None or usage.output_tokens is None:
        return None
    price = own.get(f"{provider}:{model}")
    if price is not None:
        return _at(price, usage) * (BATCH_SHARE if usage.batch else 1.0)
    if elsewhere or provider not in LISTED_PROVIDERS:
        return None
    # An alias is answered by a dated model, which has the price that was charged.
    for name in (usage.model, model):
        listed = _listed(provider, name, usage)
        if listed is not None:
            return listed
    return None


def _at(price: Price, usage: Usage) -> float:
    """Dollars at a price; the tokens are known."""
    cached, written = _parts(usage)
    plain = (usage.input_tokens or 0) - cached - written
    cached_price = price.input if price.cached is None else price.cached
    write_price = price.input if price.cache_write is None else price.cache_write
    total = plain * price.input + cached * cached_price + written * write_price
    return (total + (usage.output_tokens or 0) * price.output) / _PER


def _parts(usage: Usage) -> tuple[int, int]:
    """Tokens read from the cache and written to it, never more than the input had."""
    total = usage.input_tokens or 0
    cached = min(usage.cached_tokens or 0, total)
    return cached, min(usage.cache_write_tokens or 0, total - cached)


def _listed(provider: str, model: str, usage: Usage) -> float | None:
    """Dollars by the list, or None where it does not know the model."""
    from genai_prices import Usage as ListedUsage
    from genai_prices import calc_price

    cached, written = _parts(usage)
    counts = ListedUsage(
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        cache_read_tokens=cached,
        cache_write_tokens=written,
    )
    try:
        plain = calc_price(counts, model, provider_id=provider).total_price
        if not usage.batch:
            return float(plain)
        batched = calc_price(counts, model, provider_id=provider, price_context={"processing": "batch"}).total_price
    except LookupError:
        return None
    return float(batched if batched < plain else plain * Decimal(BATCH_SHARE))


def load_prices(path: str | Path) -> dict[str, Price]:
    """Prices from a TOML file: a table ``["provider:model"]`` with ``input``, ``output`` and, where they differ,
    ``cached`` and ``cache_write``, in dollars per million tokens.

    Raises:
        UsageError: the file cannot be read, or is no such table.
    """
    try:
        table = tomllib.loads(Path(path).expanduser().read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"the prices {path} cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"the prices {path} are not TOML: {error}") from error
    prices: dict[str, Price] = {}
    form = 'write ["provider:model"] with input = ... and output = ..., dollars per million tokens'
    for name, fields in table.items():
        provider, _, model = name.partition(":")
        if not provider or not model or not isinstance(fields, dict):
            raise UsageError(f"the prices {path} have {name!r}, which is no model; {form}")
        try:
            prices[name] = Price.model_validate(fields)
        except ValidationError as error:
            raise UsageError(f"the prices {path}, {name}, {first_fault(error)}; {form}") from error
    return prices
