"""A reward server with an experience stream that is killed as its consumers come on, and started again on its folder.

Arguments: the folder, and how often to kill it. It prints the server's port. The consumers write a line to
``consumed.txt`` in the folder for each trajectory; each life ends after sixty more of them, and the last at the end of
the input. Lives are forked, and share the listening socket.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import time
from pathlib import Path

sys.path[0] = str(Path(__file__).parents[2])  # next to this file is a package http

import uvicorn  # noqa: E402

from kernelforge.server.http.app import create_app  # noqa: E402
from kernelforge.server.sessions import routes  # noqa: E402
from kernelforge.server.sessions.service import Sessions  # noqa: E402
from tests.server.service_tools import serving  # noqa: E402
from tests.support.inprocess_engine import InProcessEngine  # noqa: E402


async def live(folder: Path, listener: socket.socket) -> None:
    async with serving(folder, InProcessEngine(slots=2, seconds=0.005)) as service:
        app = create_app(service, routers=[routes.router(Sessions(service, folder / "server.db"))])
        await uvicorn.Server(uvicorn.Config(app, log_level="error", lifespan="off")).serve([listener])


def main(folder: Path, kills: int) -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    print(listener.getsockname()[1], flush=True)
    consumed = folder / "consumed.txt"
    for life in range(kills + 1):
        child = os.fork()
        if child == 0:
            try:
                asyncio.run(live(folder, listener))
            finally:
                os._exit(1)
        while life < kills and (consumed.read_text().count("\n") if consumed.exists() else 0) < 60 * (life + 1):
            assert os.waitpid(child, os.WNOHANG) == (0, 0), "the server ended by itself"
            time.sleep(0.005)
        if life == kills:
            sys.stdin.read()
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


main(Path(sys.argv[1]), int(sys.argv[2]))
