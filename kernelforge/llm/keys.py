"""API keys and base URLs of providers: from the environment, or from ``.env`` in the working directory.

Nothing read from ``.env`` is put into this process's environment, so no child process can inherit it. A key is a
``SecretStr`` from here until it enters an SDK's client: its text and ``repr`` are asterisks.
"""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import urlsplit

from pydantic import SecretStr

from kernelforge.errors import UsageError

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
    """Where the key of a provider is found: ``environment`` or ``.env``; None where it is not set.

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
        UsageError: a file that came with somebody's folder would have the environment's key sent to another machine.
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
