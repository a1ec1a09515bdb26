"""Calls of Ray: connect, list nodes, create actors.

Ray runs any code that whoever reaches it sends, so the only thing between a network and every node is the token (since
2.52: ``RAY_AUTH_MODE=token``). A client that has one is let into a cluster that asks for none, without a word; hence
the look at the door before anything is sent through it.
Source: https://docs.ray.io/en/latest/ray-security/token-auth.html
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import signal
import sys
import threading
from asyncio.subprocess import DEVNULL, PIPE
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernelforge.errors import KernelForgeError, UsageError
from kernelforge.utils.shell_hints import install_hint
from kernelforge.workers.ray.actor import Lease

TOKEN_HELP = "see docs/engines.md for how to start a cluster"

_REACH_S = 5.0
_KNOCK_S = 60.0
_REFUSED = 7
_KNOCK = f"""
import sys
from ray._raylet import GcsClient
from ray.exceptions import AuthenticationError
try:
    GcsClient(address=sys.argv[1])
except AuthenticationError:
    sys.exit({_REFUSED})
"""


@dataclass(frozen=True)
class Node:
    """A machine of the cluster that is alive."""

    id: str
    host: str
    cpus: int
    gpus: int
    memory_bytes: int
    """What Ray says that its actors may use."""

    @property
    def label(self) -> str:
        """What operators call it: several nodes may be on one host."""
        return f"{self.host}-{self.id[:6]}"


class Cluster:
    """A connection to a running cluster; a process can have one.

    Args:
        address: of the head node, as in ``10.0.0.1:6379``.

    Raises:
        UsageError: Ray is not installed, or the address is none.
    """

    def __init__(self, address: str | None) -> None:
        if address is None:
            raise UsageError(f"--engine ray needs --address HOST:PORT, that of the cluster's head node; {TOKEN_HELP}")
        host, _, port = address.rpartition(":")
        if not host or not port.isdigit() or "/" in host:
            raise UsageError(
                f"--address {address!r} is no address of a Ray cluster: give HOST:PORT of its head node, as in "
                "10.0.0.1:6379. The reward server runs on one of the cluster's nodes, so ray:// is of no use"
            )
        self.address, self._host, self._port = address, host.strip("[]"), int(port)
        check_token()
        try:
            import ray
        except ImportError:
            raise UsageError(f"--engine ray needs Ray: {install_hint('ray')}") from None
        self._ray = ray

    async def connect(self) -> None:
        """Join the cluster, once it is known to turn away who has no token.

        Raises:
            KernelForgeError: nothing answers there, it lets anybody in, or it refuses our token.
        """
        try:
            async with asyncio.timeout(_REACH_S):
                _, writer = await asyncio.open_connection(self._host, self._port)
            writer.close()
        except (OSError, TimeoutError) as error:
            why = str(error) or f"no answer in {_REACH_S:g} s"
            raise KernelForgeError(f"no Ray cluster answers at {self.address}: {why}; {TOKEN_HELP}") from None
        # Strangers first: a cluster that lets them in is not told our token.
        stranger = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(16)}
        if await self._knock(stranger):
            raise KernelForgeError(
                f"the Ray cluster at {self.address} lets anybody in who reaches it, and would run what they send: "
                f"start every node of it with RAY_AUTH_MODE=token; {TOKEN_HELP}"
            )
        if not await self._knock({}):
            raise KernelForgeError(
                f"the Ray cluster at {self.address} refuses the token of this process: give it the cluster's by "
                f"RAY_AUTH_TOKEN_PATH, RAY_AUTH_TOKEN or ~/.ray/auth_token; {TOKEN_HELP}"
            )
        if self._ray.is_initialized():
            raise KernelForgeError("this process is in a Ray cluster already, and can be in one only")
        try:
            # In a thread: it blocks, and in the main one it would take SIGTERM from the server.
            await asyncio.to_thread(
                self._ray.init,
                self.address,
                namespace="kernelforge",
                log_to_driver=False,
                logging_level=logging.ERROR,
            )
        except Exception as error:
            raise KernelForgeError(f"the Ray cluster at {self.address} cannot be joined: {error}") from error
        _take_back(signal.SIGTERM)

    async def nodes(self) -> list[Node]:
        """The nodes that are alive now."""
        found = await asyncio.to_thread(self._ray.nodes)
        return [
            Node(
                id=node["NodeID"],
                host=node["NodeManagerHostname"],
                cpus=int(node["Resources"].get("CPU", 0)),
                gpus=int(node["Resources"].get("GPU", 0)),
                memory_bytes=int(node["Resources"].get("memory", 0)),
            )
            for node in found
            if node["Alive"]
        ]

    def lease(self, node: str, *, cpus: float, gpus: int) -> Any:
        """The handle of a new actor on a node; it starts when what it takes is free there. Ray tries nothing again."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        return (
            self._ray.remote(Lease)
            .options(
                num_cpus=cpus,
                num_gpus=gpus,
                max_restarts=0,
                max_task_retries=0,
                scheduling_strategy=NodeAffinitySchedulingStrategy(node_id=node, soft=False),
            )
            .remote()
        )

    def kill(self, actor: Any) -> None:
        """End an actor and the process that it is in."""
        self._ray.kill(actor, no_restart=True)

    @property
    def error(self) -> type[Exception]:
        """What a call of an actor raises where the actor or its node is gone, among others."""
        error: type[Exception] = self._ray.exceptions.RayError
        return error

    async def disconnect(self) -> None:
        """Leave the cluster; every actor of ours ends."""
        await asyncio.to_thread(self._ray.shutdown)

    async def _knock(self, changes: dict[str, str]) -> bool:
        """Whether the cluster lets a process in whose environment is ours with ``changes``.

        Raises:
            KernelForgeError: it answers neither yes nor no.
        """
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", _KNOCK, self.address,
            env={**os.environ, **changes}, stdin=DEVNULL, stdout=DEVNULL, stderr=PIPE,
        )  # fmt: skip
        try:
            async with asyncio.timeout(_KNOCK_S):
                _, told = await process.communicate()
        except BaseException as error:
            process.kill()
            await process.wait()
            if isinstance(error, TimeoutError):
                raise KernelForgeError(
                    f"what answers at {self.address} does not speak as Ray {self.version} does"
                ) from None
            raise
        if process.returncode in (0, _REFUSED):
            return process.returncode == 0
        lines = told.decode(errors="replace").strip().splitlines()
        raise KernelForgeError(
            f"the Ray cluster at {self.address} cannot be asked: {lines[-1] if lines else 'it crashed'}"
        )

    @property
    def version(self) -> str:
        return str(self._ray.__version__)


def _take_back(number: signal.Signals) -> None:
    """Put this process's own handler of a signal in front again: Ray's, below Python, prints a stack trace first."""
    own = signal.getsignal(number)
    if own is not None and threading.current_thread() is threading.main_thread():
        signal.signal(number, own)


def check_token() -> None:
    """Have Ray use a token in this process.

    Raises:
        UsageError: there is none, or this process is told to do without.
    """
    if "ray" in sys.modules and "RAY_AUTH_MODE" not in os.environ:
        raise UsageError("Ray was imported before it could be told to use a token: set RAY_AUTH_MODE=token")
    # Ray reads it once, when it is imported.
    mode = os.environ.setdefault("RAY_AUTH_MODE", "token")
    if mode.lower() != "token":
        raise UsageError(f"RAY_AUTH_MODE={mode}: a reward server only joins a Ray cluster with RAY_AUTH_MODE=token")
    if os.environ.get("RAY_AUTH_TOKEN"):
        return
    # Ray aborts the process where it cannot read the file, so that is found out before.
    named = os.environ.get("RAY_AUTH_TOKEN_PATH")
    path = Path(named) if named else Path.home() / ".ray" / "auth_token"
    try:
        empty = not path.read_text().strip()
    except OSError as error:
        raise UsageError(f"no token for the Ray cluster: {path}: {error.strerror}; {TOKEN_HELP}") from None
    if empty:
        raise UsageError(f"no token for the Ray cluster: {path} is empty; {TOKEN_HELP}")
