"""The engine of a Ray cluster: device workers on its GPUs or emulated slots, and compile workers.

Nodes may join and leave while it runs.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple, Unpack

from kernelforge.devices.gpu_locks import parse_devices
from kernelforge.devices.remote.address import is_remote
from kernelforge.errors import KernelForgeError, UsageError
from kernelforge.workers.base import Health
from kernelforge.workers.pool import WorkerOptions, WorkerPoolEngine, kept_memory
from kernelforge.workers.ray.actor import OracleHostActor
from kernelforge.workers.ray.autoscaling import Autoscaling, kept_nodes
from kernelforge.workers.ray.cluster import Cluster, Node
from kernelforge.workers.ray.worker import RayWorker
from kernelforge.workers.roles import Target, WorkerSettings
from kernelforge.workers.slot import WorkerSlot, oracle_address

POLL_S = 1.0
"""Interval of checks for new and lost nodes."""

FIRST_NODE_S = 1800.0
"""Longest time until an autoscaler has started the first node: clouds take minutes, more with a large image."""

_DEVICE_SPECIFIC = {"device", "gpu_uuid"}
"""Fields in which fingerprints of one engine's devices may differ."""

_LOG = logging.getLogger(__name__)


class Capacity(NamedTuple):
    """Number of workers that fit on a node."""

    slots: int
    compilers: int


class RayEngine(WorkerPoolEngine):
    """Workers of a cluster's nodes. One per process, on a node of the cluster.

    Args:
        device: ``emulated:h100``; or ``cuda``, which is every GPU of every node.
        address: address of the cluster's head node, as in ``10.0.0.1:6379``.
        slots: candidates that a node evaluates at a time; None for as many as its GPUs or CPUs allow.
        compilers: compile workers of a node.
        resource: a resource of Ray: only the nodes that were started with it have slots, as many as its units. The rest
            of the cluster is other programs', such as a trainer's.
        autoscale: how many slots the cluster is to have, by the jobs; None for all that its nodes have room for.
        options: ``threads`` are the number of CPUs per slot, 1 by default. ``cache`` is each machine's own: builds
            travel with the orders.

    Raises:
        UsageError: contradicting options; no address, no Ray, no token.
        DeviceError: there is no such device.
    """

    name: Literal["local", "ray"] = "ray"

    def __init__(
        self,
        device: str,
        *,
        address: str | None,
        slots: int | None = None,
        compilers: int = 1,
        resource: str | None = None,
        autoscale: Autoscaling | None = None,
        **options: Unpack[WorkerOptions],
    ) -> None:
        counts = {"slots": slots, "compilers": compilers}
        super().__init__(_checked(device), threads=1, counts=counts, options=options)
        self._settings = self._settings.model_copy(update={"share_builds": True})
        self._device, self._threads = self._settings.device, self._settings.threads
        self._slots, self._compilers = slots, compilers
        self._cluster = Cluster(address, resource)
        self._autoscale = autoscale
        self._jobs = 0
        """Jobs that wait or run."""
        self._requested: tuple[int, int] | None = None
        """The last request of slots and further CPUs."""
        self._hosts: dict[str, WorkerSlot] = {}
        """The oracle hosts of the nodes, by their labels."""
        self._surplus: set[str] = set()
        """Labels of nodes whose slots are not wanted now."""
        self._nodes: dict[str, Node] = {}
        self._closing: set[asyncio.Task[None]] = set()
        """Tasks that close the slots of lost nodes."""
        self._lost_restarts = 0
        self._problem = ""
        self._follower: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Join the cluster, start workers on its nodes, and return when a slot can be used.

        Raises:
            KernelForgeError: no cluster, a cluster without tokens, no node with room for a slot, or no worker starts.
        """
        await self._cluster.connect()
        try:
            await self._update_nodes()
            await self._autoscaled()
            if not self._worker_slots:
                resource = "GPU" if self._on_gpu else "CPU"
                raise KernelForgeError(
                    f"no node of the Ray cluster at {self._cluster.address} has a {resource} for a slot: "
                    "start one with `ray start --address`"
                )
            await self._first_target()
            await self._update_nodes()
        except BaseException:
            await self.close()
            raise
        self._follower = asyncio.create_task(self._follow_nodes())
        self._change.set()

    async def _autoscaled(self) -> None:
        """Ask for the fewest slots, and wait for the first node."""
        if self._autoscale is None:
            return
        await self._scale()
        end = time.monotonic() + FIRST_NODE_S
        while not self._worker_slots and time.monotonic() < end:
            await asyncio.sleep(POLL_S)
            await self._update_nodes()

    def demand(self, jobs: int) -> None:
        self._jobs = jobs

    async def _scale(self) -> None:
        """Ask the cluster for the wanted slots, and give up those of nodes beyond them."""
        assert self._autoscale is not None
        target = self._autoscale.target(self._jobs, time.monotonic())
        slots, busy = Counter[str](), Counter[str]()
        for name, worker_slot in self._worker_slots.items():
            label = name.partition("/")[0]
            slots[label] += 1
            busy[label] += worker_slot.state == "busy"
        kept = kept_nodes(slots, busy, target)
        # Those of the nodes that are given up would keep these from idling.
        compilers = 0 if self._on_gpu else self._compilers * max(len(kept), 1)
        if (target, compilers) != self._requested:
            await self._cluster.request(
                target, compilers, cpus_per_slot=self._threads, gpus_per_slot=1 if self._on_gpu else 0
            )
            self._requested = target, compilers
        for label in slots.keys() - kept - self._surplus:
            self._each_of(label, WorkerSlot.drain)
        for label in self._surplus & kept:
            self._each_of(label, self._resume_slot)
        self._surplus = slots.keys() - kept

    def _each_of(self, label: str, act: Callable[[WorkerSlot], None]) -> None:
        for worker_slot in self._matching(f"{label}/*"):
            act(worker_slot)

    def _resume_slot(self, worker_slot: WorkerSlot) -> None:
        """Start a slot's worker again, unless an operator has drained it."""
        if not self._is_drained(worker_slot.name):
            worker_slot.resume()

    def health(self) -> Health:
        health = super().health()
        notes = [
            *health.notes,
            *(f"{host.name} is {host.state}: {host.why}" for host in self._hosts.values() if host.why),
        ]
        notes += [self._problem] if self._problem else []
        extra = {**health.extra, "nodes": float(len(self._nodes))}
        return Health(health.workers, health.restarts + self._lost_restarts, tuple(notes), extra)

    async def close(self) -> None:
        """End every actor and leave the cluster."""
        if self._follower is not None:
            self._follower.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._follower
        await super().close()
        await asyncio.gather(*(host.close() for host in self._hosts.values()))
        await asyncio.gather(*self._closing, return_exceptions=True)
        await self._cluster.disconnect()

    @property
    def _on_gpu(self) -> bool:
        return self._device == "cuda"

    async def _follow_nodes(self) -> None:
        """Update the nodes periodically."""
        while True:
            await asyncio.sleep(POLL_S)
            try:
                await self._update_nodes()
                if self._autoscale is not None:
                    await self._scale()
                self._rest_hosts()
                self._problem = ""
            except Exception as error:  # Ray raises various errors while its head node is away; try again.
                if not self._problem:
                    _LOG.warning("the Ray cluster does not list its nodes: %s", error)
                self._problem = f"the Ray cluster does not list its nodes: {error}"

    async def _update_nodes(self) -> None:
        """Remove the slots of lost nodes, and add those of new nodes, in one step of the event loop."""
        alive = {node.id: node for node in await self._cluster.nodes()}
        lost = [node for id, node in self._nodes.items() if id not in alive]
        self._nodes = alive
        for node in lost:
            self._remove_node(node)
        for node in alive.values():
            capacity = capacity_of(
                node, on_gpu=self._on_gpu, threads=self._threads, slots=self._slots, compilers=self._compilers
            )
            if not sum(capacity):
                continue
            host_bytes, slot_bytes = kept_memory(node.memory_bytes, capacity.slots, on_gpu=self._on_gpu)
            address = self._open_host(node, host_bytes)
            settings = self._settings.model_copy(update={"oracles": address, "warm_bytes": slot_bytes})
            for number in range(capacity.slots):
                name = f"{node.label}/{self._device}#{number + 1}"
                self._add_slot(self._worker_slots, name, node, settings, self._change.set)
            if self._target is not None:
                settings = self._compile_settings(self._target).model_copy(update={"oracles": address})
                for number in range(capacity.compilers):
                    name = f"{node.label}/compiler#{number + 1}"
                    self._add_slot(self._compile_slots, name, node, settings, self._compile_change.set)

    def _add_slot(
        self,
        worker_slots: dict[str, WorkerSlot],
        name: str,
        node: Node,
        settings: WorkerSettings,
        changed: Callable[[], None],
    ) -> None:
        if name not in worker_slots:
            worker_slots[name] = WorkerSlot(name, settings, changed, partial(self._start_worker, node))
            self._open(worker_slots[name])
            changed()

    def _open_host(self, node: Node, most_bytes: int) -> Path:
        """The address of a node's oracle host, which is started with the first call."""
        host = self._hosts.get(node.label)
        if host is None:
            settings = self._settings.model_copy(update={"oracles": oracle_address(), "warm_bytes": most_bytes})
            start = partial(RayWorker.start, cluster=self._cluster, node=node.id, cpus=0, gpus=0, actor=OracleHostActor)
            host = self._hosts[node.label] = WorkerSlot(f"{node.label}/oracles", settings, self._change.set, start)
            host.open()
        assert host.settings.oracles is not None
        return host.settings.oracles

    def _rest_hosts(self) -> None:
        """End the oracle hosts of nodes without workers, which would keep these from idling, and start them again."""
        for label, host in self._hosts.items():
            if any(item.worker is not None or not item.drained for item in self._matching(f"{label}/*")):
                host.resume()
            else:
                host.drain()

    def _remove_node(self, node: Node) -> None:
        """Remove a node's slots. They are closed in the background, because their processes may be unreachable."""
        prefix = node.label + "/"
        lost = [self._hosts.pop(node.label)] if node.label in self._hosts else []
        for worker_slots in (self._worker_slots, self._compile_slots):
            for name in [name for name in worker_slots if name.startswith(prefix)]:
                lost.append(worker_slots.pop(name))
                self._lost_restarts += lost[-1].restarts
        for worker_slot in lost:
            closing = asyncio.create_task(worker_slot.close())
            self._closing.add(closing)
            closing.add_done_callback(self._closed)
        _LOG.warning("node %s left the Ray cluster", node.label)
        self._change.set()
        self._compile_change.set()

    def _closed(self, closing: asyncio.Task[None]) -> None:
        self._closing.discard(closing)
        if not closing.cancelled() and closing.exception() is not None:
            _LOG.warning("a worker of a lost node was not closed properly: %s", closing.exception())

    async def _start_worker(self, node: Node, name: str, settings: WorkerSettings) -> RayWorker:
        """Start a worker with the same toolchain as all others.

        Raises:
            KernelForgeError: it does not start, or its node differs from the others.
        """
        on_device = settings.role == "device"
        worker = await RayWorker.start(
            name,
            settings,
            cluster=self._cluster,
            node=node.id,
            cpus=self._threads if on_device else 1,
            gpus=1 if on_device and self._on_gpu else 0,
        )
        assert worker.target is not None
        self._target = self._target or worker.target
        difference = differences(worker.target, worker.toolchain, self._target)
        if difference:
            await worker.close()
            raise KernelForgeError(f"{name} differs from the engine's other workers: {difference}")
        return worker


def _checked(device: str) -> str:
    """The device of every node.

    Raises:
        UsageError: single GPUs were named, or one machine.
        DeviceError: there is no such device.
    """
    name = device.strip().lower()
    if name in ("cuda", "gpu"):
        return "cuda"
    if name.startswith("cuda"):
        raise UsageError(
            f"--device {device} names GPUs of one machine: with --engine ray give --device cuda, which is every GPU "
            "that the cluster's nodes were started with"
        )
    if is_remote(device):
        raise UsageError(f"--device {device} is one machine: leave --engine ray out, or --address names the cluster")
    return parse_devices(device)[0]


def capacity_of(node: Node, *, on_gpu: bool, threads: int, slots: int | None, compilers: int) -> Capacity:
    """Workers that fit on a node. A slot takes ``threads`` CPUs, and a GPU if the device is one; a compiler one CPU.

    Compilers get their CPUs first if at least one slot still fits; otherwise the slot compiles.
    """
    if on_gpu:
        most = min(node.gpus, node.cpus // threads)
    else:
        most = (node.cpus - min(compilers, max(node.cpus - threads, 0))) // threads
    if node.units is not None:
        most = min(most, node.units)
    slot_count = most if slots is None else min(most, slots)
    return Capacity(slot_count, min(compilers, node.cpus - slot_count * threads))


def differences(actual: Target, toolchain: Mapping[str, str], expected: Target) -> str:
    """Differences between a node and the engine's other nodes, as text; empty if there are none.

    Args:
        actual: target of a worker of the node; a compile worker repeats that of its settings.
        toolchain: versions on the node, by the names of a fingerprint.
    """
    others = expected.fingerprint.model_dump(exclude=_DEVICE_SPECIFIC)
    here = {**actual.fingerprint.model_dump(exclude=_DEVICE_SPECIFIC), **toolchain}
    return ", ".join(f"{name} {here[name]} (others: {value})" for name, value in others.items() if here[name] != value)
