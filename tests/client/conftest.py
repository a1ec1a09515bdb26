"""A server of the native protocol, and an environment without settings for clients."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.protocol_server import ProtocolServer


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("KERNELFORGE_SERVER", "KERNELFORGE_TOKEN"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="session")
def started() -> Iterator[ProtocolServer]:
    with ProtocolServer().running() as running:
        yield running


@pytest.fixture
def server(started: ProtocolServer) -> ProtocolServer:
    """The same server for all tests, in each as it was at the start."""
    started.reset()
    return started
