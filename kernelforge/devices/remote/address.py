"""Names of devices on other machines: ``ssh://user@host:2222/cuda:0``."""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import parse_qs, quote, unquote, urlsplit

from kernelforge.errors import UsageError

SCHEME = "ssh://"
_NAME = re.compile(r"[A-Za-z0-9_][\w.+-]*")
_DEVICE = re.compile(r"cuda:\d+|emulated(:[\w.-]+)?")
_FORM = "write ssh://[user@]host[:port]/cuda:0 for a GPU, or ssh://[user@]host[:port]/emulated:h100"


@dataclass(frozen=True)
class HostAddress:
    """A machine that ``ssh`` reaches."""

    host: str
    """Name or address, or a ``Host`` of the user's ``~/.ssh/config``."""
    user: str = ""
    port: int | None = None
    """None for what the user's configuration says, else 22."""
    python: str = ""
    """Absolute path of a Python there whose environment holds what KernelForge needs; empty to install one."""

    @property
    def destination(self) -> str:
        """As ``ssh`` takes it."""
        return f"{self.user}@{self.host}" if self.user else self.host

    def url(self, device: str = "") -> str:
        """The address of a device there, or of the machine."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        port = "" if self.port is None else f":{self.port}"
        python = f"?python={quote(self.python)}" if self.python else ""
        return f"{SCHEME}{f'{self.user}@' if self.user else ''}{host}{port}{f'/{device}' if device else ''}{python}"


def is_remote(device: str) -> bool:
    """Whether a device is on another machine."""
    return device.strip().lower().startswith(SCHEME)


def parse_address(url: str) -> tuple[HostAddress, str]:
    """The machine and the device there; the first GPU where none is named.

    Raises:
        UsageError: it is no such address.
    """
    refusal = UsageError(f"{url!r} is not the address of a device: {_FORM}")
    try:
        parts = urlsplit(url.strip())
        options = parse_qs(parts.query, strict_parsing=True) if parts.query else {}
        port = parts.port
        # The name as it is written: a Host of the configuration may have capitals.
        written = re.search(re.escape(parts.hostname or "") + r"(?=\]?(:\d*)?$)", parts.netloc, re.IGNORECASE)
    except ValueError:
        raise refusal from None
    device = unquote(parts.path).strip("/").lower() or "cuda:0"
    device = {"cuda": "cuda:0", "emulated": "emulated:h100"}.get(device, device)
    host, user = written[0] if written else "", parts.username or ""
    pythons = options.pop("python", [""])
    plain = _NAME.fullmatch(host) or re.fullmatch(r"[0-9a-fA-F:.]+", host)
    if not plain or (user and not _NAME.fullmatch(user)) or parts.password or parts.fragment or options:
        raise refusal
    if not _DEVICE.fullmatch(device):
        raise UsageError(f"{url!r} names no device of that machine: {_FORM}; several GPUs are several runs")
    if len(pythons) > 1 or (pythons[0] and not pythons[0].startswith("/")):
        raise UsageError(f"{url!r}: python= takes the absolute path of one Python there")
    return HostAddress(host, user, port, pythons[0]), device


def split_host(device: str) -> tuple[str, str]:
    """The address of a machine and the device there; no address for a device of this machine."""
    if not is_remote(device):
        return "", device
    address, name = parse_address(device)
    return address.url(), name


def join_host(host: str, device: str) -> str:
    """The device that :func:`split_host` split."""
    return parse_address(host)[0].url(device) if host else device
