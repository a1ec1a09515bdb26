"""Names of devices on other machines: ``ssh://user@host:2222/cuda:0``, or several with commas between them.

``modal://H100`` is a sandbox of Modal with that GPU.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import parse_qs, quote, unquote, urlsplit

from kernelforge.errors import UsageError

SCHEME, MODAL = "ssh://", "modal://"
CPU = "cpu"
"""Torch on the host, for ``ModelNew`` classes: values are checked, nothing is timed."""
_NAME = re.compile(r"[A-Za-z0-9_][\w.+-]*")
_DEVICE = re.compile(r"cuda|cuda:\d+(,cuda:\d+)*|cpu|emulated(:[\w.-]+)?")
_NEXT = re.compile(rf",(?=\s*(?:{SCHEME}|{MODAL}))", re.IGNORECASE)
_FORM = (
    "write ssh://[user@]host[:port]/cuda:0 for a GPU, /cuda:0,cuda:1 for two of them, /cuda for all, or "
    "/emulated:h100; further machines follow after commas"
)


@dataclass(frozen=True)
class HostAddress:
    """A machine that ``ssh`` reaches, or a sandbox of Modal."""

    host: str
    """Name or address, or a ``Host`` of the user's ``~/.ssh/config``; of a sandbox the GPU, as Modal names it."""
    user: str = ""
    port: int | None = None
    """None for what the user's configuration says, else 22; of a sandbox the number of GPUs, None for one."""
    python: str = ""
    """Absolute path of a Python there whose environment holds what KernelForge needs; empty to install one."""
    modal: bool = False

    @property
    def destination(self) -> str:
        """As ``ssh`` takes it."""
        return f"{self.user}@{self.host}" if self.user else self.host

    def url(self, device: str = "") -> str:
        """The address of devices there, or of the machine."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        port = "" if self.port is None else f":{self.port}"
        python = f"?python={quote(self.python)}" if self.python else ""
        scheme = MODAL if self.modal else SCHEME
        return f"{scheme}{f'{self.user}@' if self.user else ''}{host}{port}{f'/{device}' if device else ''}{python}"


def is_remote(device: str) -> bool:
    """Whether devices are on other machines."""
    return device.strip().lower().startswith((SCHEME, MODAL))


def parse_address(url: str) -> tuple[HostAddress, str]:
    """One machine and its devices, with commas between them; the first GPU where none is named.

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
    device = re.sub(r"\s", "", unquote(parts.path)).strip("/").lower() or "cuda:0"
    device = {"emulated": "emulated:h100"}.get(device, device)
    modal = url.strip().lower().startswith(MODAL)
    host, user = written[0] if written else "", parts.username or ""
    pythons = options.pop("python", [""])
    plain = _NAME.fullmatch(host) or re.fullmatch(r"[0-9a-fA-F:.]+", host)
    if not plain or (user and not _NAME.fullmatch(user)) or parts.password or parts.fragment or options:
        raise refusal
    if not _DEVICE.fullmatch(device):
        raise UsageError(f"{url!r} names no device of that machine: {_FORM}")
    if len(pythons) > 1 or (pythons[0] and not pythons[0].startswith("/")):
        raise UsageError(f"{url!r}: python= takes the absolute path of one Python there")
    if modal and (user or pythons[0] or not device.startswith("cuda") or port == 0):
        raise UsageError(
            f"{url!r} is no sandbox of Modal: write {MODAL}H100, or {MODAL}H100:2/cuda for one with two GPUs"
        )
    return HostAddress(host, user, port, pythons[0], modal), device


def parse_machines(text: str) -> tuple[str, ...]:
    """One address for each machine of a list, with all its devices.

    Raises:
        UsageError: one is no address, a device is named twice, or they are of several kinds.
    """
    machines: dict[HostAddress, list[str]] = {}
    for part in _NEXT.split(text):
        address, devices = parse_address(part)
        machines.setdefault(address, []).extend(devices.split(","))
    for address, named in machines.items():
        for device in named:
            if named.count(device) > 1 or ("cuda" in named and len(named) > 1):
                raise UsageError(f"--device {text!r} names {address.url(device)} twice")
    names = {device for named in machines.values() for device in named}
    if len(names) > 1 and not all(name.startswith("cuda") for name in names):
        raise UsageError(
            f"--device {text!r} mixes kinds of devices: GPUs can share a run, or an emulated device of several machines"
        )
    return tuple(address.url(",".join(named)) for address, named in machines.items())


def split_host(device: str) -> tuple[str, str]:
    """The addresses of the machines and the devices there, each with commas between them; no address for devices of
    this machine.

    There is one address for all devices, one device for all addresses, or as many of each.
    """
    if not is_remote(device):
        return "", device
    parsed = [parse_address(url) for url in parse_machines(device)]
    pairs = [(address.url(), name) for address, names in parsed for name in names.split(",")]
    hosts, names = ([pair[position] for pair in pairs] for position in (0, 1))
    if len(set(hosts)) == 1:
        return hosts[0], ",".join(names)
    return ",".join(hosts), names[0] if len(set(names)) == 1 and len(set(hosts)) == len(hosts) else ",".join(names)


def join_host(host: str, device: str) -> str:
    """The devices that :func:`split_host` split."""
    if not host:
        return device
    hosts, names = host.split(","), device.split(",")
    hosts, names = hosts * (len(names) if len(hosts) == 1 else 1), names * (len(hosts) if len(names) == 1 else 1)
    return join_machines([parse_address(url)[0].url(name) for url, name in zip(hosts, names, strict=True)])


def join_machines(urls: Sequence[str]) -> str:
    """A list of addresses as one text, each machine once."""
    return ",".join(parse_machines(",".join(urls)))
