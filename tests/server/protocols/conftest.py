"""A reward server with every protocol of trainers, over the scripted service."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kernelforge.server.http.app import create_app
from kernelforge.server.protocols import routers
from kernelforge.server.sessions.service import Sessions
from tests.server.socket_server import serving
from tests.support.scripted_service import ScriptedService


@pytest.fixture(scope="module")
def service() -> ScriptedService:
    return ScriptedService()


@pytest.fixture(scope="module")
def url(service: ScriptedService, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    sessions = Sessions(service, tmp_path_factory.mktemp("sessions") / "server.db")
    with serving(create_app(service, routers=routers(service, sessions))) as url:
        yield url
