"""Hosted models by specification, ``openai:gpt-5?effort=high``: its options, its key, its server, its client.

Keys and base URLs come from the environment, or from ``.env`` in the working directory. Nothing read from ``.env`` is
put into the environment of this process, so no child process can inherit it. A key is a ``SecretStr`` until it enters
the client of an SDK: its text and ``repr`` are asterisks.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NoReturn
from urllib.parse import parse_qsl, urlsplit

from pydantic import Field, SecretStr

from kernelforge.errors import UsageError
from kernelforge.records import Record

Provider = Literal["openai", "anthropic"]

EFFORTS: dict[Provider, tuple[str, ...]] = {
    "openai": ("none", "minimal", "low", "medium", "high", "xhigh", "max"),
    "anthropic": ("low", "medium", "high", "xhigh", "max"),
}
"""Reasoning effort as each provider names it (``reasoning.effort``, ``output_config.effort``); which of these a model
takes is the model's affair."""

SUMMARIES = ("auto", "concise", "detailed")
"""Summaries of reasoning that OpenAI's Responses can be asked for (``reasoning.summary``)."""

OPTIONS: dict[Provider, dict[str, str]] = {
    "openai": {
        "effort": "|".join(EFFORTS["openai"]),
        "summary": "|".join(SUMMARIES),
        "temperature": "0 to 2",
        "max_output_tokens": "a positive integer",
        "base_url": "http://HOST:PORT/v1 of a compatible server",
        "api": "responses|chat",
    },
    "anthropic": {
        "effort": "|".join(EFFORTS["anthropic"]),
        "thinking": "adaptive|disabled|a budget of at least 1024 tokens",
        "temperature": "0 to 1",
        "max_output_tokens": "a positive integer",
        "base_url": "http://HOST:PORT of a compatible server",
    },
}
"""What may follow the model's name, and its values."""

MIN_THINKING_TOKENS = 1_024
"""Smallest budget that Anthropic takes (messages API, ``thinking.budget_tokens``)."""

_MAX_TEMPERATURE: dict[Provider, float] = {"openai": 2.0, "anthropic": 1.0}


class AgentSpec(Record):
    """A hosted model and how it is asked. None leaves a choice to the provider."""

    provider: Provider
    model: str = Field(min_length=1)
    temperature: float | None = Field(default=None, ge=0, le=2, allow_inf_nan=False)
    effort: str | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None
    """Which summary of the reasoning OpenAI's Responses shall show; None: none."""
    thinking: str | None = None
    """Anthropic's: ``adaptive``, ``disabled``, or a budget in tokens; what a model does by default differs."""
    max_output_tokens: int | None = Field(default=None, ge=1)
    base_url: str | None = None
    api: Literal["responses", "chat"] | None = None
    """Which of OpenAI's interfaces; None: Responses at OpenAI, chat completions elsewhere."""

    @property
    def name(self) -> str:
        """``provider:model``."""
        return f"{self.provider}:{self.model}"


def is_hosted(text: str) -> bool:
    """Whether a specification is that of a hosted model, which is asked for money."""
    return text.partition(":")[0] in OPTIONS


def parse_spec(text: str) -> AgentSpec:
    """Read a specification, ``PROVIDER:MODEL[?OPTION=VALUE[&OPTION=VALUE...]]``.

    The model's name may hold slashes and colons (``openai:Qwen/Qwen3-32B``, ``openai:llama3:8b``).

    Raises:
        UsageError: it is not one; the message says what may stand there.
    """
    head, question, query = text.partition("?")
    name, _, model = head.partition(":")
    provider: Provider
    if name == "openai":
        provider = "openai"
    elif name == "anthropic":
        provider = "anthropic"
    else:
        raise UsageError(f"{text!r} names no hosted model: it starts with 'openai:' or 'anthropic:'")
    if not model or model != model.strip() or "," in text:
        raise UsageError(
            f"{text!r} is not a model: give {provider}:MODEL, such as '{provider}:MODEL?effort=high', without commas"
        )
    pairs = parse_qsl(query, keep_blank_values=True)
    options = dict(pairs)
    if question and (len(options) != len(pairs) or not pairs):
        _refuse(text, provider, "give each option once, as NAME=VALUE")
    for option, value in options.items():
        if option not in OPTIONS[provider]:
            _refuse(text, provider, f"there is no option {option!r}")
        _check_value(text, provider, option, value)
    return AgentSpec.model_validate({"provider": provider, "model": model, **options})


def check_url(url: str) -> None:
    """See that ``url`` can be a server's address.

    Raises:
        UsageError: it cannot, or it holds a password, which would be recorded with the run.
    """
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    else:
        if parts.username or parts.password:
            raise UsageError("a base URL must not hold a user or a password; put the key in the environment or in .env")
    if not usable or not url.isprintable() or " " in url:
        raise UsageError(f"{url!r} is no server's address; give one such as http://localhost:8000/v1")


def _check_value(text: str, provider: Provider, option: str, value: str) -> None:
    if option == "base_url":
        check_url(value)
        return
    if option == "effort":
        good = value in EFFORTS[provider]
    elif option == "api":
        good = value in ("responses", "chat")
    elif option == "summary":
        good = value in SUMMARIES
    elif option == "thinking":
        good = value in ("adaptive", "disabled") or _integer(value) >= MIN_THINKING_TOKENS
    elif option == "temperature":
        good = 0 <= _number(value) <= _MAX_TEMPERATURE[provider]
    else:
        good = _integer(value) >= 1
    if not good:
        _refuse(text, provider, f"{option}={value} is not one of its values")


def _integer(value: str) -> int:
    """The number that the digits of ``value`` spell, or -1."""
    return int(value) if value.isascii() and value.isdecimal() and len(value) < 10 else -1


def _number(value: str) -> float:
    """The number that ``value`` spells, or NaN, which lies in no range."""
    try:
        return float(value)
    except ValueError:
        return float("nan")


def _refuse(text: str, provider: Provider, why: str) -> NoReturn:
    options = ", ".join(f"{option} ({values})" for option, values in OPTIONS[provider].items())
    raise UsageError(f"{text!r}: {why}; the options of {provider}: models are {options}")


KEY_NAMES = {"openai": "OPENAI_API_KEY", "anthropic": "ANTHROPIC_API_KEY"}
URL_NAMES = {"openai": "OPENAI_BASE_URL", "anthropic": "ANTHROPIC_BASE_URL"}

NO_KEY = SecretStr("none")
"""What a compatible server gets that asks for no key: the SDKs insist on sending one."""


def find_key(provider: str, *, required: bool) -> SecretStr:
    """The key of a provider; :data:`NO_KEY` where there is none and none is required.

    Raises:
        UsageError: the key is required and missing, or holds what no HTTP header can.
    """
    name = KEY_NAMES[provider]
    key = _find(name)
    if key is None:
        if not required:
            return NO_KEY
        raise UsageError(
            f"{provider}: models need a key: set {name} in the environment, or write {name}=... into .env in the "
            "working directory"
        )
    # An HTTP library that refuses a header quotes it; so a bad key must not get that far.
    if not _fits_a_header(key):
        raise UsageError(f"{name} holds characters that no key has; set it again, without spaces and quotes")
    return key


def key_source(provider: str) -> str | None:
    """Source of the key of a provider: ``environment`` or ``.env``; None where it is not set.

    Raises:
        UsageError: ``.env`` cannot be read.
    """
    name = KEY_NAMES[provider]
    if os.environ.get(name, "").strip():
        return "environment"
    return ".env" if _read_file(Path.cwd() / ".env", name) else None


def find_url(provider: str) -> str | None:
    """The server that the environment or ``.env`` names for a provider, if any.

    Raises:
        UsageError: ``.env``, which may be part of a downloaded folder, would send the environment's key to another
            machine.
    """
    name, key_name = URL_NAMES[provider], KEY_NAMES[provider]
    url = os.environ.get(name, "").strip()
    if url:
        return url
    file = Path.cwd() / ".env"
    url = _read_file(file, name)
    if url and not _is_here(url) and _is_anothers(file, key_name):
        raise UsageError(
            f"{file} names the server {url[:200]!r}, and {key_name} is set in the environment: the key would go there. "
            f"If that is meant, set {name} in the environment too; else take it out of .env"
        )
    return url or None


def _is_anothers(file: Path, key_name: str) -> bool:
    """Whether the key that would be sent is none that ``file`` holds."""
    key = os.environ.get(key_name, "").strip()
    return bool(key) and key != _read_file(file, key_name)


def _is_here(url: str) -> bool:
    """Whether a server is on this machine."""
    try:
        return urlsplit(url).hostname in ("localhost", "127.0.0.1", "::1")
    except ValueError:
        return False


def _fits_a_header(key: SecretStr) -> bool:
    value = key.get_secret_value()
    return value.isascii() and value.isprintable() and " " not in value


def _find(name: str) -> SecretStr | None:
    """A variable's value, blanks around it removed; the environment comes before ``.env``."""
    value = os.environ.get(name, "").strip() or _read_file(Path.cwd() / ".env", name)
    return SecretStr(value) if value else None


def _read_file(path: Path, name: str) -> str:
    if not path.is_file():
        return ""
    from dotenv import dotenv_values

    try:
        return (dotenv_values(path, interpolate=False, encoding="utf-8").get(name) or "").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = (error.strerror or "unknown") if isinstance(error, OSError) else "it is not UTF-8 text"
    # Outside the handler: a decoding error holds the bytes that it could not decode.
    raise UsageError(f"{path} cannot be read: {reason}; change its rights, or remove it")


_MAX_MESSAGE = 600


@dataclass(frozen=True)
class Remote:
    """The server, model and key of calls, for messages."""

    server: str
    """``OpenAI``, ``Anthropic``, or a compatible server's address."""
    model: str
    key_name: str
    key: SecretStr

    def hide(self, text: str) -> str:
        """``text`` without the key: a server has it, and may say it back."""
        secret = self.key.get_secret_value()
        return text.replace(secret, "[key]") if len(secret) >= 8 else text

    def redact(self, text: str) -> str:
        """``text`` without the key, whole or as the providers abbreviate it, and not too long."""
        text = self.hide(text)
        text = re.sub(r"\bsk-[\w*.…-]+", "[key]", text)
        return text if len(text) <= _MAX_MESSAGE else text[:_MAX_MESSAGE] + "..."
