"""Keys and addresses of providers: from the environment, or from ``.env`` in the working directory.

Nothing read from ``.env`` is put into this process's environment, so no child process can inherit it. A key is a
``SecretStr`` from here until it enters an SDK's client: its text and ``repr`` are asterisks.
"""

from __future__ import annotations

import os
from pathlib import Path

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
    value = _find(name)
    if value is None:
        if not required:
            return NO_KEY
        raise UsageError(
            f"{provider}: models need a key: set {name} in the environment, or write {name}=... into .env in the "
            "working directory"
        )
    # An HTTP library that refuses a header quotes it; so a bad key must not get that far.
    if not value.isascii() or not value.isprintable() or " " in value:
        raise UsageError(f"{name} holds characters that no key has; set it again, without spaces and quotes")
    return SecretStr(value)


def find_url(provider: str) -> str | None:
    """The server that the environment or ``.env`` names for a provider, if any."""
    return _find(URL_NAMES[provider])


def _find(name: str) -> str | None:
    """A variable's value, blanks around it removed; the environment comes before ``.env``."""
    if value := os.environ.get(name, "").strip():
        return value
    path = Path.cwd() / ".env"
    if not path.is_file():
        return None
    from dotenv import dotenv_values

    try:
        value = (dotenv_values(path, interpolate=False, encoding="utf-8").get(name) or "").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise UsageError(f"{path} cannot be read: {reason}; change its rights, or remove it") from None
    return value or None
