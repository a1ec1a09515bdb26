"""Worker slots between two workers, and nodes that join and leave a cluster. Needs no Ray."""

from __future__ import annotations

import asyncio
import os
import socket
import tempfile
from pathlib import Path
from typing import Any

import pytest

from kernelforge.workers.base import WorkerDied
from kernelforge.workers.ray import engine as ray_engine
from kernelforge.workers.ray.cluster import Node
from kernelforge.workers.ray.engine import RayEngine
from kernelforge.workers.roles import Target, WorkerSettings
from kernelforge.workers.slot import WorkerSlot, remove_dead_folders
from tests.support.factories import make_fingerprint
from tests.workers.engine_orders import until

TARGET = Target(fingerprint=make_fingerprint(), description={}, spec="h100")


class Puppet:
    """A worker that does what a test says, when it says so."""

    target, cached_tasks, pid = TARGET, frozenset[str](), 1

    def __init__(self) -> None:
        self.alive = True
        self.replies: list[asyncio.Future[dict[str, Any]]] = []
        self.may_close = asyncio.Event()
        self.closed = False
        self._ended = asyncio.Event()

    async def ended(self) -> None:
        await self._ended.wait()

    def end(self) -> None:
        """Its end is noticed."""
        self.alive = False
        self._ended.set()

    def send(self, op: str, **content: Any) -> tuple[int, asyncio.Future[dict[str, Any]]]:
        self.replies.append(asyncio.get_running_loop().create_future())
        return len(self.replies), self.replies[-1]

    def interrupt(self, number: int) -> None:
        pass

    def kill(self) -> None:
        self.alive = False

    async def close(self) -> None:
        await self.may_close.wait()
        self.closed = True


class Opened:
    """A worker_slot with its first worker, and those that follow."""

    def __init__(self) -> None:
        self.workers: list[Puppet] = []
        self.worker_slot = WorkerSlot(
            "a", WorkerSettings(role="device", device="emulated:h100"), lambda: None, self._start
        )

    async def _start(self, name: str, settings: WorkerSettings) -> Puppet:
        self.workers.append(Puppet())
        return self.workers[-1]

    async def worker(self) -> Puppet:
        """The newest, once it is idle."""
        await until(lambda: self.worker_slot.state == "idle")
        return self.workers[-1]


async def test_a_worker_that_is_being_replaced_is_given_nothing_more() -> None:
    opened = Opened()
    opened.worker_slot.open()
    worker = await opened.worker()
    opened.worker_slot.replace("its device is not well")
    assert opened.worker_slot.slot().state == "starting"
    with pytest.raises(WorkerDied, match="no idle worker"):
        await opened.worker_slot.ask("evaluate")
    assert worker.replies == []
    worker.may_close.set()
    worker.end()
    await until(lambda: len(opened.workers) == 2)
    assert (await opened.worker()).alive
    opened.workers[1].may_close.set()
    await opened.worker_slot.close()


async def test_an_order_that_a_worker_of_before_never_answered_does_not_keep_the_seat_busy() -> None:
    opened = Opened()
    opened.worker_slot.open()
    first = await opened.worker()
    first.may_close.set()
    call = asyncio.create_task(opened.worker_slot.ask("evaluate"))
    await until(lambda: bool(first.replies))
    call.cancel()
    await asyncio.wait({call})
    first.end()  # and its reply, through another process, is still on its way
    await until(lambda: len(opened.workers) == 2)
    second = await opened.worker()
    call = asyncio.create_task(opened.worker_slot.ask("evaluate"))
    await until(lambda: bool(second.replies))
    second.replies[0].set_result({})
    assert await call == {}
    assert opened.worker_slot.slot().state == "idle"
    first.replies[0].set_exception(WorkerDied("late"))
    second.may_close.set()
    await opened.worker_slot.close()


async def test_a_seat_that_closes_leaves_nothing_of_a_worker_that_ended_just_before() -> None:
    opened = Opened()
    opened.worker_slot.open()
    first = await opened.worker()
    first.end()
    await until(lambda: opened.worker_slot.worker is None)
    closing = asyncio.create_task(opened.worker_slot.close())
    await asyncio.sleep(0)
    first.may_close.set()
    await closing
    assert first.closed


async def test_a_drained_slot_finishes_what_it_is_at_and_starts_no_worker_until_it_is_resumed() -> None:
    opened = Opened()
    opened.worker_slot.open()
    worker = await opened.worker()
    call = asyncio.create_task(opened.worker_slot.ask("evaluate"))
    await until(lambda: bool(worker.replies))
    opened.worker_slot.drain()
    assert opened.worker_slot.state == "busy"
    worker.replies[0].set_result({})
    assert await call == {}
    assert opened.worker_slot.state == "drained"
    with pytest.raises(WorkerDied, match="it is drained"):
        await opened.worker_slot.ask("evaluate")
    worker.may_close.set()
    await until(lambda: worker.closed)
    worker.end()
    await until(lambda: opened.worker_slot.worker is None)
    assert (len(opened.workers), opened.worker_slot.state, opened.worker_slot.restarts) == (1, "drained", 0)
    opened.worker_slot.resume()
    assert (await opened.worker()).alive
    assert len(opened.workers) == 2
    opened.workers[1].may_close.set()
    await opened.worker_slot.close()


async def test_a_slot_that_is_drained_before_it_opens_starts_nothing() -> None:
    opened = Opened()
    opened.worker_slot.drain()
    opened.worker_slot.open()
    await asyncio.sleep(0)
    assert (opened.workers, opened.worker_slot.state) == ([], "drained")
    await opened.worker_slot.close()


class SlowToClose(WorkerSlot):
    """One whose worker is out of reach: its end is not noticed before a test says so."""

    may_close: asyncio.Event

    def open(self) -> None:
        pass

    async def close(self) -> None:
        await self.may_close.wait()


class Grid:
    """A cluster of which a test says what nodes it has."""

    address = "10.0.0.1:6379"

    def __init__(self, address: str | None, resource: str | None) -> None:
        self.alive = "ab"

    async def nodes(self) -> list[Node]:
        return [Node(id=name * 56, host="here", cpus=2, gpus=0, memory_bytes=1 << 30) for name in self.alive]

    async def disconnect(self) -> None:
        pass


@pytest.mark.slow
async def test_nodes_that_go_and_come_at_once_change_places_in_one_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_engine, "Cluster", Grid)
    monkeypatch.setattr(ray_engine, "WorkerSlot", SlowToClose)

    monkeypatch.setattr(SlowToClose, "may_close", asyncio.Event(), raising=False)
    engine = RayEngine("emulated:h100", address=Grid.address)
    engine._target = TARGET
    await engine._update_nodes()
    assert len(engine.slots()) == engine.preparing == 2
    engine._cluster.alive = "c"  # type: ignore[attr-defined]
    async with asyncio.timeout(60):
        await engine._update_nodes()
    assert [slot.name for slot in engine.slots()] == ["here-cccccc/emulated:h100#1"]
    assert engine.drain("other-*") == 0
    assert engine.drain("here-c*") == 2
    assert [state.state for state in engine.worker_states()] == ["drained", "drained"]
    assert [state.compiles for state in engine.worker_states()] == [False, True]
    assert engine.preparing == 0
    assert engine.resume("*") == 2
    assert (engine.preparing, engine.health().extra["nodes"]) == (1, 1.0)
    closing = asyncio.create_task(engine.close())
    await asyncio.sleep(0)
    assert not closing.done()
    SlowToClose.may_close.set()
    await closing


@pytest.mark.slow
def test_what_a_killed_server_left_is_removed_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "kernelforge-oracles-link").symlink_to(tmp_path / "elsewhere")
    listeners = []
    for name in ("dead", "empty", "living", "young", "full"):
        folder = tmp_path / f"kernelforge-oracles-{name}"
        folder.mkdir()
        if name != "empty":
            listeners.append(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            listeners[-1].bind(str(folder / "socket"))
            if name == "living":
                listeners[-1].listen(0)
            else:
                listeners.pop().close()
        if name == "full":
            (folder / "more").touch()
        if name != "young":
            os.utime(folder, (0, 0))
    for _ in range(3):  # more connections than the living one takes at a time
        remove_dead_folders()
        assert {path.name.rpartition("-")[2] for path in tmp_path.glob("kernelforge-*")} == {
            "link", "living", "young", "full",
        }  # fmt: skip
    assert (tmp_path / "elsewhere").is_dir()
    for listener in listeners:
        listener.close()
