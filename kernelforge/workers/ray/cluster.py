"""Calls of Ray: connect, list nodes, create actors.

Ray executes any code it receives over the network; only its token protects the nodes (since 2.52:
``RAY_AUTH_MODE=token``). A cluster without tokens silently accepts a client that has one, so the cluster is probed
before anything is sent.
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

TOKEN_HELP = "see docs/engines.md for how to start a cluster"

_CONNECT_S = 5.0
_PROBE_S = 60.0
_REFUSED = 7
_PROBE = f"""
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
    """A live machine of the cluster."""

    id: str
    host: str
    cpus: int
    gpus: int
    memory_bytes: int
    """Memory that Ray offers to actors."""
    units: int | None = None
    """Amount of the resource whose units are slots; None where none was named."""

    @property
    def label(self) -> str:
        """Name for operators, unique although several nodes may run on one host."""
        return f"{self.host}-{self.id[:6]}"


class Cluster:
    """A connection to a running cluster; a process can have one.

    Args:
        address: address of the head node, as in ``10.0.0.1:6379``.
        resource: a resource of Ray that some nodes were started with; each unit of it is a slot. None for all nodes.

    Raises:
        UsageError: Ray is not installed, or the address is invalid.
    """

    def __init__(self, address: str | None, resource: str | None = None) -> None:
        if address is None:
            raise UsageError(f"--engine ray needs --address HOST:PORT, that of the cluster's head node; {TOKEN_HELP}")
        host, _, port = address.rpartition(":")
        if not host or not port.isdigit() or "/" in host:
            raise UsageError(
                f"--address {address!r} is not the address of a Ray cluster: give HOST:PORT of its head node, as in "
                "10.0.0.1:6379. The reward server runs on one of the cluster's nodes, so ray:// is not supported"
            )
        self.address, self._host, self._port = address, host.strip("[]"), int(port)
        self._resource = resource
        check_token()
        try:
            import ray
        except ImportError:
            raise UsageError(f"--engine ray needs Ray: {install_hint('ray')}") from None
        self._ray = ray

    async def connect(self) -> None:
        """Join the cluster, after checking that it rejects invalid tokens.

        Raises:
            KernelForgeError: it cannot be reached, accepts any client, or rejects this process's token.
        """
        try:
            async with asyncio.timeout(_CONNECT_S):
                _, writer = await asyncio.open_connection(self._host, self._port)
            writer.close()
        except (OSError, TimeoutError) as error:
            why = str(error) or f"no answer in {_CONNECT_S:g} s"
            raise KernelForgeError(f"no Ray cluster answers at {self.address}: {why}; {TOKEN_HELP}") from None
        # With a random token first: a cluster that accepts it does not receive the real one.
        random_token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(16)}
        if await self._probe(random_token):
            raise KernelForgeError(
                f"the Ray cluster at {self.address} accepts clients without a valid token and runs their code: "
                f"start every node of it with RAY_AUTH_MODE=token; {TOKEN_HELP}"
            )
        if not await self._probe({}):
            raise KernelForgeError(
                f"the Ray cluster at {self.address} refuses the token of this process: provide the cluster's token in "
                f"RAY_AUTH_TOKEN_PATH, RAY_AUTH_TOKEN or ~/.ray/auth_token; {TOKEN_HELP}"
            )
        if self._ray.is_initialized():
            raise KernelForgeError("this process has joined a Ray cluster already, and can join only one")
        try:
            # In a thread: it blocks, and in the main thread it would replace the SIGTERM handler of the server.
            await asyncio.to_thread(
                self._ray.init,
                self.address,
                namespace="kernelforge",
                log_to_driver=False,
                logging_level=logging.ERROR,
            )
        except Exception as error:
            raise KernelForgeError(f"the Ray cluster at {self.address} cannot be joined: {error}") from error
        _restore_handler(signal.SIGTERM)

    async def nodes(self) -> list[Node]:
        """The nodes that are alive now, and are to have slots."""
        nodes = await asyncio.to_thread(self._ray.nodes)
        return [
            Node(
                id=node["NodeID"],
                host=node["NodeManagerHostname"],
                cpus=int(node["Resources"].get("CPU", 0)),
                gpus=int(node["Resources"].get("GPU", 0)),
                memory_bytes=int(node["Resources"].get("memory", 0)),
                units=None if self._resource is None else int(node["Resources"].get(self._resource, 0)),
            )
            for node in nodes
            if node["Alive"] and (self._resource is None or self._resource in node["Resources"])
        ]

    async def request(self, slots: int, cpus: int, *, cpus_per_slot: int, gpus_per_slot: int) -> None:
        """Ask Ray's autoscaler for room for some slots, and for further CPUs. It holds until the next request."""
        from ray.autoscaler.sdk import request_resources

        bundle: dict[str, float] = {"CPU": cpus_per_slot}
        if gpus_per_slot:
            bundle["GPU"] = gpus_per_slot
        if self._resource is not None:
            bundle[self._resource] = 1
        await asyncio.to_thread(request_resources, bundles=[*[bundle] * slots, *[{"CPU": 1}] * cpus])

    def start_actor(self, actor: type, node: str, *, cpus: float, gpus: int, slot: bool) -> Any:
        """The handle of a new actor on a node; it starts once its resources are free. Ray retries nothing.

        Args:
            actor: its class.
            slot: whether it takes a unit of the resource whose units are slots.
        """
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        return (
            self._ray.remote(actor)
            .options(
                num_cpus=cpus,
                num_gpus=gpus,
                resources={self._resource: 1} if slot and self._resource is not None else {},
                max_restarts=0,
                max_task_retries=0,
                scheduling_strategy=NodeAffinitySchedulingStrategy(node_id=node, soft=False),
            )
            .remote()
        )

    def kill(self, actor: Any) -> None:
        """End an actor and its process."""
        self._ray.kill(actor, no_restart=True)

    @property
    def error(self) -> type[Exception]:
        """Base class of errors of actor calls, for example of an actor or node that is gone."""
        error: type[Exception] = self._ray.exceptions.RayError
        return error

    async def disconnect(self) -> None:
        """Leave the cluster; every actor of this process ends."""
        await asyncio.to_thread(self._ray.shutdown)

    async def _probe(self, changes: dict[str, str]) -> bool:
        """Whether the cluster accepts a process with this environment and ``changes``.

        Raises:
            KernelForgeError: the answer is neither acceptance nor refusal.
        """
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", _PROBE, self.address,
            env={**os.environ, **changes}, stdin=DEVNULL, stdout=DEVNULL, stderr=PIPE,
        )  # fmt: skip
        try:
            async with asyncio.timeout(_PROBE_S):
                _, stderr = await process.communicate()
        except BaseException as error:
            process.kill()
            await process.wait()
            if isinstance(error, TimeoutError):
                raise KernelForgeError(
                    f"the server at {self.address} does not answer like Ray {self.version}"
                ) from None
            raise
        if process.returncode in (0, _REFUSED):
            return process.returncode == 0
        lines = stderr.decode(errors="replace").strip().splitlines()
        raise KernelForgeError(
            f"the Ray cluster at {self.address} cannot be probed: {lines[-1] if lines else 'it crashed'}"
        )

    @property
    def version(self) -> str:
        return str(self._ray.__version__)


def _restore_handler(number: signal.Signals) -> None:
    """Reinstall this process's handler of a signal, which Ray replaced by one that prints a stack trace."""
    own = signal.getsignal(number)
    if own is not None and threading.current_thread() is threading.main_thread():
        signal.signal(number, own)


def check_token() -> None:
    """Make Ray use a token in this process.

    Raises:
        UsageError: there is no token, or the environment disables it.
    """
    if "ray" in sys.modules and "RAY_AUTH_MODE" not in os.environ:
        raise UsageError("Ray was imported before a token was configured: set RAY_AUTH_MODE=token")
    # Ray reads the variable once, at import.
    mode = os.environ.setdefault("RAY_AUTH_MODE", "token")
    if mode.lower() != "token":
        raise UsageError(f"RAY_AUTH_MODE={mode}: a reward server only joins a Ray cluster with RAY_AUTH_MODE=token")
    if os.environ.get("RAY_AUTH_TOKEN"):
        return
    # Ray aborts the process if it cannot read the file, so check that first.
    configured = os.environ.get("RAY_AUTH_TOKEN_PATH")
    path = Path(configured) if configured else Path.home() / ".ray" / "auth_token"
    try:
        empty = not path.read_text().strip()
    except OSError as error:
        raise UsageError(f"no token for the Ray cluster: {path}: {error.strerror}; {TOKEN_HELP}") from None
    if empty:
        raise UsageError(f"no token for the Ray cluster: {path} is empty; {TOKEN_HELP}")
