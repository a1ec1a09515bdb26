"""Classify failures of providers: retryable or not, how long to wait, and a message without keys."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

from pydantic import SecretStr

from kernelforge.errors import ProviderError

PASSING_STATUS = frozenset({408, 409, 425, 429})
"""With all of 5xx (Anthropic's 529 "overloaded" among them), the statuses that both providers document as worth
another try."""

_BILLING_CODES = frozenset(
    {"insufficient_quota", "billing_not_active", "billing_hard_limit_reached", "account_deactivated", "billing_error"}
)
"""Codes that make a 429 lasting: waiting does not fill an account."""

_LASTING_CODES = _BILLING_CODES | {
    "invalid_request_error", "authentication_error", "permission_error", "not_found_error", "request_too_large",
    "invalid_prompt", "context_length_exceeded", "model_not_found", "data_residency_mismatch",
}  # fmt: skip
"""Codes of errors inside a reply, where there is no status, that no waiting mends."""

_MAX_MESSAGE = 600


class BrokenReply(Exception):
    """A reply that arrived whole by HTTP's rules and is not one by the protocol's."""


class ReportedFailure(Exception):
    """A failure that a provider reports inside a reply; ``body`` is its error object, with whatever it repeats."""

    def __init__(self, body: Mapping[str, Any]) -> None:
        super().__init__("the provider reports a failure")
        self.body = body


@dataclass(frozen=True)
class Remote:
    """Who is called, for messages."""

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


def failure(error: Exception, remote: Remote) -> ProviderError:
    """What an SDK's error means. The SDK's own exception holds the request and its headers: never chain it."""
    status = getattr(error, "status_code", None)
    if isinstance(error, BrokenReply):
        return ProviderError(f"{remote.server} sent a broken reply: {remote.redact(str(error))}", passing=True)
    if isinstance(status, int) and status != 200:
        response = getattr(error, "response", None)
        return status_failure(
            status, getattr(error, "body", None), remote, headers=getattr(response, "headers", None) or {}
        )
    if isinstance(body := getattr(error, "body", None), Mapping):
        return code_failure(body, remote)
    if "Timeout" in type(error).__name__:
        return ProviderError(f"{remote.server} sent nothing for too long; the call was given up", passing=True)
    if isinstance(error, ValueError | RecursionError):
        return ProviderError(f"{remote.server} sent a broken reply: it is not JSON that can be read", passing=True)
    cause = error.__cause__ or error
    return ProviderError(
        f"the connection to {remote.server} failed: {remote.redact(str(cause)) or type(cause).__name__}", passing=True
    )


def status_failure(
    status: int, body: object, remote: Remote, *, headers: Mapping[str, str] | None = None
) -> ProviderError:
    """What an HTTP status means, with the error object that came with it."""
    code, message = _code_and_message(body)
    said = f": {remote.redact(message)}" if message else ""
    if status == 401:
        # The message repeats parts of the key.
        return ProviderError(f"{remote.server} refused the key in {remote.key_name} (401); check it")
    if status == 403:
        return ProviderError(f"{remote.server} does not let the key in {remote.key_name} do this (403){said}")
    if status == 404:
        return ProviderError(f"{remote.server} has no model {remote.model!r}, or not at this address (404){said}")
    passing = status >= 500 or (status in PASSING_STATUS and code not in _BILLING_CODES)
    if not passing:
        return ProviderError(f"{remote.server} refused the call ({status}){said}")
    return ProviderError(
        f"{remote.server} could not answer now ({status}){said}",
        passing=True,
        retry_after_s=retry_after_s(headers or {}),
    )


def code_failure(body: object, remote: Remote) -> ProviderError:
    """What an error object inside a reply means: there is no status, so its code decides."""
    code, message = _code_and_message(body)
    said = f": {remote.redact(message)}" if message else ""
    if code in _LASTING_CODES:
        return ProviderError(f"{remote.server} refused the call ({code}){said}")
    return ProviderError(f"{remote.server} failed while answering ({code or 'no code'}){said}", passing=True)


def retry_after_s(headers: Mapping[str, str]) -> float | None:
    """How long a server asks to wait, in seconds: ``retry-after-ms``, or ``Retry-After`` as seconds or as a date
    (RFC 9110, section 10.2.3)."""
    for name, scale in (("retry-after-ms", 1e-3), ("retry-after", 1.0)):
        try:
            seconds = float(headers[name]) * scale
        except (KeyError, ValueError):
            continue
        if 0 <= seconds < float("inf"):
            return seconds
    try:
        date = parsedate_to_datetime(headers["retry-after"])
    except (KeyError, ValueError):
        return None
    if date.tzinfo is None:
        date = date.replace(tzinfo=UTC)
    return max(0.0, (date - datetime.now(UTC)).total_seconds())


def _code_and_message(body: object) -> tuple[str | None, str]:
    """From OpenAI's ``{"error": {"code", "type", "message"}}``, with or without its wrapping, or Anthropic's."""
    inner: Any = (body.get("error") or body) if isinstance(body, Mapping) else None
    if isinstance(inner, str):
        return None, inner
    if not isinstance(inner, Mapping):
        return None, ""
    codes = [code for code in (inner.get("code"), inner.get("type")) if isinstance(code, str)]
    code = next((code for code in codes if code in _LASTING_CODES), codes[0] if codes else None)
    message = inner.get("message")
    return code, message if isinstance(message, str) else ""
