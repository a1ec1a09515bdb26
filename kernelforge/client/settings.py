"""Settings of a client, and validation of its requests."""

from __future__ import annotations

import functools
import ipaddress
import os
import ssl
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import httpx2
from pydantic import BaseModel, ValidationError

from kernelforge.client.flow import Limits, new_key
from kernelforge.client.models import JobRequest
from kernelforge.errors import UsageError
from kernelforge.version import __version__

DEFAULT_URL = "http://127.0.0.1:8765"
URL_VARIABLE = "KERNELFORGE_SERVER"
TOKEN_VARIABLE = "KERNELFORGE_TOKEN"
KEEPALIVE_S = 4.0
"""Shorter than servers keep an idle connection (uvicorn: 5 s), so that none is used while it is being closed."""
SHORTEST_DEADLINE_S = 0.001
LONGEST_DEADLINE_S = 86_400.0
Model = TypeVar("Model", bound=BaseModel)
Request = JobRequest | Mapping[str, Any]
"""A request, or its fields."""


@dataclass(frozen=True)
class Settings:
    """The arguments of a client.

    Raises:
        UsageError: the URL, the token or a limit is invalid.
    """

    url: str
    token: str | None = field(repr=False)
    timeout_s: float
    connections: int
    retries: int

    def __post_init__(self) -> None:
        try:
            parsed = httpx2.URL(self.url)
        except httpx2.InvalidURL as error:
            raise UsageError(f"the server's address {self.url!r} is not a URL: {error}") from None
        if parsed.scheme not in ("http", "https") or not parsed.host:
            raise UsageError(f"the server's address {self.url!r} is not a URL such as {DEFAULT_URL}")
        if self.token is not None and not (self.token.isascii() and self.token.isprintable()):
            raise UsageError("the token holds a character that tokens do not have: was it copied with a line feed?")
        if self.timeout_s <= 0 or self.connections < 2 or self.retries < 0:
            raise UsageError("a client needs a timeout above 0 s, at least 2 connections, and retries of 0 or more")

    @classmethod
    def of(cls, url: str | None, token: str | None, timeout_s: float, connections: int, retries: int) -> Settings:
        """Settings whose missing URL and token come from the environment."""
        url = url or os.environ.get(URL_VARIABLE) or DEFAULT_URL
        token = token or os.environ.get(TOKEN_VARIABLE) or None
        return cls(url.rstrip("/"), token, timeout_s, connections, retries)

    def limits(self, timeout_s: float | None) -> Limits:
        return Limits(self.url, self.retries, time.monotonic() + self.time_s(timeout_s))

    def time_s(self, timeout_s: float | None) -> float:
        return self.timeout_s if timeout_s is None else timeout_s

    def http(self) -> dict[str, Any]:
        """Arguments of the HTTP client, sync or async."""
        headers = {"user-agent": f"kernelforge/{__version__}", "accept": "application/json"}
        if self.token is not None:
            headers["authorization"] = f"Bearer {self.token}"
        return {
            "base_url": self.url,
            "headers": headers,
            # A redirect could send the token to another server.
            "follow_redirects": False,
            "limits": httpx2.Limits(
                max_connections=self.connections,
                max_keepalive_connections=self.connections,
                keepalive_expiry=KEEPALIVE_S,
            ),
            "verify": _tls(self.url.startswith("https:")),
            # Proxies are for remote servers only.
            "trust_env": not _loopback(httpx2.URL(self.url).host),
        }


@functools.cache
def _tls(encrypted: bool) -> ssl.SSLContext:
    """A context with the list of authorities, which takes some 20 ms to read, only for encrypted connections."""
    return httpx2.create_ssl_context() if encrypted else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


def _loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def checked(model: type[Model], fields: Mapping[str, Any] | BaseModel) -> Model:
    """A validated request.

    Raises:
        UsageError: the server would refuse it; names the wrong field.
    """
    if isinstance(fields, model):
        return fields
    try:
        return model.model_validate(fields)
    except ValidationError as error:
        flaw = error.errors(include_url=False, include_input=False)[0]
        field_path = ".".join(map(str, flaw["loc"]))
        raise UsageError(f"{field_path}: {flaw['msg']}" if field_path else flaw["msg"]) from None


def checked_job(fields: Request) -> JobRequest:
    """A validated job. Fields that are None count as missing."""
    if not isinstance(fields, JobRequest):
        fields = {name: value for name, value in fields.items() if value is not None}
    return checked(JobRequest, fields)


def job_request(fields: Request, limit_s: float | None) -> JobRequest:
    """A validated job. ``limit_s`` is its default deadline, so that a killed client leaves no job behind."""
    request = checked_job(fields)
    if limit_s is None or request.deadline_s is not None:
        return request
    return request.model_copy(update={"deadline_s": min(max(limit_s, SHORTEST_DEADLINE_S), LONGEST_DEADLINE_S)})


def job_requests(requests: Sequence[Request], limit_s: float | None) -> tuple[list[JobRequest], list[str]]:
    """Validated jobs, and an idempotency key for each."""
    made = []
    for number, request in enumerate(requests, 1):
        try:
            made.append(job_request(request, limit_s))
        except UsageError as error:
            raise UsageError(f"request {number} of {len(requests)}: {error}") from None
    return made, [new_key() for _ in made]
