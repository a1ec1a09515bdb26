"""The engine of a Ray cluster: a worker for each of its GPUs, or for each slot of an emulated device, and some that
only prepare. Nodes may come and go while it runs."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

from kernelforge.devices.gpu_locks import parse_devices
from kernelforge.errors import KernelForgeError, UsageError
from kernelforge.evaluation.stages.full_size_measured import check_measure
from kernelforge.evaluation.warm_evaluators import WARM_TASKS
from kernelforge.records import MeasureSettings
from kernelforge.workers.base import Health
from kernelforge.workers.compile_worker import Target
from kernelforge.workers.pool import WorkerPoolEngine, check_counts, check_limits
from kernelforge.workers.ray.cluster import Cluster, Node
from kernelforge.workers.ray.worker import RayWorker
from kernelforge.workers.slot import WorkerSlot
from kernelforge.workers.worker_main import WorkerSettings

POLL_S = 1.0
"""How often the nodes of the cluster are looked at."""

_OF_ONE_PLACE = {"device", "gpu_uuid"}
"""What fingerprints of one engine's devices may differ in."""

_LOG = logging.getLogger(__name__)


class Places(NamedTuple):
    """How many workers a node has room for."""

    slots: int
    compilers: int


class RayEngine(WorkerPoolEngine):
    """See :class:`kernelforge.workers.base.Engine`. One per process, on a node of the cluster.

    Args:
        device: ``emulated:h100``; or ``cuda``, which is every GPU of every node.
        address: of the cluster's head node, as in ``10.0.0.1:6379``.
        slots: candidates that a node evaluates at a time; None for all that its GPUs or CPUs have room for.
        compilers: workers of a node that prepare candidates and brief agents.
        measure: how a device that measures is used.
        allow_unconfined: run children without a jail where none works.
        threads: threads that one emulated run, and an oracle, may use: CPUs that each slot takes.
        warm_tasks: oracles that each slot keeps, as far as a third of its node's memory, over its slots, holds them.
        cache: folder of the build cache on every node; None for the user's own. Where nodes share no file system, a
            slot compiles anew what another node has prepared.
        run_limit_s: longest that one run of a candidate's plan may take, in wall seconds; None for 20 s.
        compile_limit_s: longest that one compilation may take, in seconds of wall and of CPU time; None for 60 s.

    Raises:
        UsageError: options that do not go together; no address, no Ray, no token.
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
        measure: MeasureSettings | None = None,
        allow_unconfined: bool = False,
        threads: int = 1,
        warm_tasks: int = WARM_TASKS,
        cache: Path | None = None,
        run_limit_s: float | None = None,
        compile_limit_s: float | None = None,
    ) -> None:
        super().__init__()
        self._device = _checked(device)
        check_counts(slots=slots, compilers=compilers, threads=threads)
        check_limits(run_limit_s=run_limit_s, compile_limit_s=compile_limit_s)
        self._slots, self._compilers, self._threads = slots, compilers, threads
        self._common: dict[str, Any] = {
            "threads": threads,
            "allow_unconfined": allow_unconfined,
            "cache": None if cache is None else str(cache.resolve()),
            "run_limit_s": run_limit_s,
            "compile_limit_s": compile_limit_s,
        }
        measured = check_measure(measure or MeasureSettings(), self._device)
        self._slot_settings = WorkerSettings(
            role="device", device=self._device, measure=measured, warm_tasks=warm_tasks, **self._common
        )
        self._cluster = Cluster(address)
        self._nodes: dict[str, Node] = {}
        self._leaving: set[asyncio.Task[None]] = set()
        """Close the seats of nodes that went."""
        self._lost_restarts = 0
        self._trouble = ""
        self._tender: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Join the cluster, start workers on its nodes, and return when a slot can be used.

        Raises:
            KernelForgeError: no cluster, one that asks for no token, no node with room for a slot, or none starts.
        """
        await self._cluster.connect()
        try:
            await self._look()
            if not self._seats:
                wanted = "GPU" if self._on_gpu else "CPU"
                raise KernelForgeError(
                    f"no node of the Ray cluster at {self._cluster.address} has a {wanted} for a slot: start one with "
                    "`ray start --address`"
                )
            await self._first_target()
            await self._look()
        except BaseException:
            await self.close()
            raise
        self._tender = asyncio.create_task(self._tend())
        self._change.set()

    def health(self) -> Health:
        told = super().health()
        notes = (*told.notes, self._trouble) if self._trouble else told.notes
        extra = {**told.extra, "nodes": float(len(self._nodes))}
        return Health(told.workers, told.restarts + self._lost_restarts, notes, extra)

    async def close(self) -> None:
        """End every actor and leave the cluster."""
        if self._tender is not None:
            self._tender.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._tender
        await super().close()
        await asyncio.gather(*self._leaving, return_exceptions=True)
        await self._cluster.disconnect()

    @property
    def _on_gpu(self) -> bool:
        return self._device == "cuda"

    async def _tend(self) -> None:
        """Follow the cluster's nodes for as long as the engine runs."""
        while True:
            await asyncio.sleep(POLL_S)
            try:
                await self._look()
                self._trouble = ""
            except Exception as error:  # Whatever Ray raises while its head node is away; it is asked again.
                if not self._trouble:
                    _LOG.warning("the Ray cluster does not say what nodes it has: %s", error)
                self._trouble = f"the Ray cluster does not say what nodes it has: {error}"

    async def _look(self) -> None:
        """Give up the places of nodes that went, and fill those of nodes that came: in one step of the event loop, so
        that nobody sees half of it."""
        alive = {node.id: node for node in await self._cluster.nodes()}
        gone = [node for id, node in self._nodes.items() if id not in alive]
        self._nodes = alive
        for node in gone:
            self._give_up(node)
        for node in alive.values():
            places = places_on(
                node, on_gpu=self._on_gpu, threads=self._threads, slots=self._slots, compilers=self._compilers
            )
            share = {"warm_bytes": node.memory_bytes // (3 * max(places.slots, 1))}
            settings = self._slot_settings.model_copy(update=share)
            for number in range(places.slots):
                name = f"{node.label}/{self._device}#{number + 1}"
                self._fill(self._seats, name, node, settings, self._change.set)
            if self._target is not None:
                settings = WorkerSettings(role="cpu", target=self._target, **self._common)
                for number in range(places.compilers):
                    name = f"{node.label}/compiler#{number + 1}"
                    self._fill(self._desks, name, node, settings, self._desk_change.set)

    def _fill(
        self, seats: dict[str, WorkerSlot], name: str, node: Node, settings: WorkerSettings, changed: Callable[[], None]
    ) -> None:
        if name not in seats:
            seats[name] = WorkerSlot(name, settings, changed, partial(self._started, node))
            seats[name].open()
            changed()

    def _give_up(self, node: Node) -> None:
        """Take a node's seats away. They are closed beside, for that waits on processes that may be out of reach."""
        mark = node.label + "/"
        for seats in (self._seats, self._desks):
            for name in [name for name in seats if name.startswith(mark)]:
                seat = seats.pop(name)
                self._lost_restarts += seat.restarts
                closing = asyncio.create_task(seat.close())
                self._leaving.add(closing)
                closing.add_done_callback(self._left)
        _LOG.warning("node %s left the Ray cluster", node.label)
        self._change.set()
        self._desk_change.set()

    def _left(self, closing: asyncio.Task[None]) -> None:
        self._leaving.discard(closing)
        if not closing.cancelled() and closing.exception() is not None:
            _LOG.warning("a worker of a node that left was not ended in good order: %s", closing.exception())

    async def _started(self, node: Node, name: str, settings: WorkerSettings) -> RayWorker:
        """A worker that evaluates with what all others do.

        Raises:
            KernelForgeError: it does not start, or its node is unlike the others.
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
        complaint = unlike(worker.target, worker.toolchain, self._target)
        if complaint:
            await worker.close()
            raise KernelForgeError(f"{name} is unlike the engine's other workers: {complaint}")
        return worker


def _checked(device: str) -> str:
    """The device of every node.

    Raises:
        UsageError: single GPUs were named.
        DeviceError: there is no such device.
    """
    wanted = device.strip().lower()
    if wanted in ("cuda", "gpu"):
        return "cuda"
    if wanted.startswith("cuda"):
        raise UsageError(
            f"--device {device} names GPUs of one machine: with --engine ray give --device cuda, which is every GPU "
            "that the cluster's nodes were started with"
        )
    return parse_devices(device)[0]


def places_on(node: Node, *, on_gpu: bool, threads: int, slots: int | None, compilers: int) -> Places:
    """The places of a node: each slot takes ``threads`` CPUs and, on GPUs, one of those; each compiler a CPU.

    A node that has CPUs for a slot and more gives compilers theirs first; one that has not compiles in its slot.
    """
    if on_gpu:
        most = min(node.gpus, node.cpus // threads)
    else:
        most = (node.cpus - min(compilers, max(node.cpus - threads, 0))) // threads
    chosen = most if slots is None else min(most, slots)
    return Places(chosen, min(compilers, node.cpus - chosen * threads))


def unlike(found: Target, toolchain: Mapping[str, str], expected: Target) -> str:
    """What a node has that differs from what the engine's numbers are made with; empty where nothing does.

    Args:
        found: what a worker of the node works for: a slot says what it has, a compiler repeats what it was told.
        toolchain: what the node has in any case, by the names of a fingerprint.
    """
    others = expected.fingerprint.model_dump(exclude=_OF_ONE_PLACE)
    here = {**found.fingerprint.model_dump(exclude=_OF_ONE_PLACE), **toolchain}
    return ", ".join(f"{name} {here[name]} (others: {value})" for name, value in others.items() if here[name] != value)
