"""A real server on a free port of 127.0.0.1, in a thread, for clients that speak over a socket."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import uvicorn
from fastapi import FastAPI

from kernelforge.server.http.app import create_app
from kernelforge.server.jobs.service import JobService
from kernelforge.server.sessions import routes as session_routes
from kernelforge.server.sessions.service import Sessions
from kernelforge.tasks.suites import Catalogue
from tests.support.inprocess_engine import InProcessEngine


@contextmanager
def serving(app: FastAPI) -> Iterator[str]:
    """Serve an application; gives its ``http://127.0.0.1:port``."""
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", lifespan="off", timeout_graceful_shutdown=2))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(20)
        listener.close()


class ServedJobs:
    """A job service with sessions over the in-process engine, in a thread with an event loop of its own."""

    def __init__(self, folder: Path) -> None:
        self.engine = InProcessEngine()
        self.url = ""
        self._folder = folder
        self._started = threading.Event()

    def hold(self, on: bool) -> None:
        """Have evaluations wait, or go on."""
        self._loop.call_soon_threadsafe(self.engine.gate.clear if on else self.engine.gate.set)

    @contextmanager
    def running(self) -> Iterator[ServedJobs]:
        thread = threading.Thread(target=self._run, daemon=True)
        thread.start()
        assert self._started.wait(60)
        assert thread.is_alive(), "the job service did not start"
        yield self
        self.hold(False)
        self._server.should_exit = True
        thread.join(30)

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        finally:
            self._started.set()

    async def _serve(self) -> None:
        service = JobService(self.engine, Catalogue(["core"]), self._folder)
        await service.start()
        sessions = Sessions(service, self._folder / "server.db")
        app = create_app(service, routers=[session_routes.router(sessions)])
        self._server = uvicorn.Server(
            uvicorn.Config(app, log_level="error", lifespan="off", timeout_graceful_shutdown=1)
        )
        listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        self._loop = asyncio.get_running_loop()
        self._started.set()
        await self._server.serve([listener])
        await sessions.close()
        await service.close()
