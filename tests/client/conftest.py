"""A server that speaks the wire, and clients that know no environment."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from wire_server import WireServer


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("KERNELFORGE_SERVER", "KERNELFORGE_TOKEN"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def server() -> Iterator[WireServer]:
    with WireServer().running() as running:
        yield running
