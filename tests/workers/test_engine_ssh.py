"""Slots on another machine: their verdicts come back, a cut replaces the worker, and nothing is left there."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from contextlib import closing
from pathlib import Path

import pytest

from kernelforge.errors import DeviceError, UsageError
from kernelforge.evaluation.remote.machines import open_pool
from kernelforge.records import Verdict
from kernelforge.workers.base import Prepared, WorkerDied
from kernelforge.workers.pool import LocalEngine
from kernelforge.workers.ray.engine import RayEngine
from kernelforge.workers.slot import Worker
from tests.support.ssh_host import SSHD, openssh_server, reachable_host, ssh_clients
from tests.workers.engine_orders import WRONG, all_gone, family_of, idle_slot, order, slow_run, until


@pytest.mark.slow
async def test_a_slot_there_evaluates_and_is_replaced_after_a_cut(tmp_path: Path) -> None:
    with reachable_host(tmp_path) as host:
        host.take_machine_code()
        engine = LocalEngine(host.url(python=sys.executable), compilers=1)
        [slot] = engine.slots()
        assert slot.name == f"ssh://tester@127.0.0.1:{host.port}/emulated:h100#1"
        await engine.start()
        try:
            assert engine.fingerprint.device == "emulated:h100"
            wrong = order(WRONG)
            prepared = await engine.prepare(wrong)
            assert isinstance(prepared, Prepared)
            report = await engine.evaluate(wrong, (await idle_slot(engine)).name)
            assert report.evaluation is not None
            assert report.evaluation.verdict is Verdict.WRONG
            assert report.evaluation.build is not None
            assert report.evaluation.build.cached

            worker = engine._worker_slots[slot.name].worker
            assert isinstance(worker, Worker)
            there = set.union(*(family_of(pid) for pid in host.pids))
            lost = asyncio.ensure_future(engine.evaluate(slow_run(), slot.name))
            await until(lambda: engine.slots()[0].state == "busy")
            os.kill(worker.pid, signal.SIGKILL)
            with pytest.raises(WorkerDied):
                await lost
            report = await engine.evaluate(order(), (await idle_slot(engine)).name)
            assert report.evaluation is not None
            assert report.evaluation.verdict is Verdict.OK
            there |= set.union(*(family_of(pid) for pid in host.pids))
        finally:
            await engine.close()
        assert len(there) > 4
        assert all_gone(there)


@pytest.mark.slow
@pytest.mark.skipif(SSHD is None, reason="OpenSSH's server is not installed")
def test_an_openssh_server_serves_an_evaluation_before_and_after_a_cut(tmp_path: Path) -> None:
    with openssh_server(tmp_path, "emulated:h100") as (url, server):
        own = family_of(server)
        wrong = order(WRONG)
        with closing(open_pool(url)) as pool, closing(pool.evaluator(wrong.task)) as evaluator:
            verdicts = [evaluator.evaluate(wrong.candidate, seed=1).evaluation.verdict]
            clients = ssh_clients()
            for pid in clients:
                os.kill(pid, signal.SIGKILL)
            verdicts.append(evaluator.evaluate(order().candidate, seed=1).evaluation.verdict)
            there = family_of(server) - own
        assert clients
        assert verdicts == [Verdict.WRONG, Verdict.OK]
        assert there
        assert all_gone(there)


async def test_an_engine_whose_machine_refuses_says_why(tmp_path: Path) -> None:
    with reachable_host(tmp_path) as host:
        host.forget_key()
        with pytest.raises(DeviceError, match="connect once with"):
            await LocalEngine(host.url(python=sys.executable)).start()


def test_a_cluster_has_its_own_machines() -> None:
    with pytest.raises(UsageError, match="leave --engine ray out"):
        RayEngine("ssh://box/cuda:0", address=None)


@pytest.mark.slow
def test_each_gpu_of_each_machine_is_a_slot() -> None:
    engine = LocalEngine("ssh://a/cuda:0,cuda:1,ssh://me@b/cuda:0", compilers=2)
    assert [slot.name for slot in engine.slots()] == ["ssh://a/cuda:0", "ssh://a/cuda:1", "ssh://me@b/cuda:0"]
    assert {name: address and address.destination for name, address in engine._addresses.items()} == {
        "ssh://a/cuda:0": "a",
        "ssh://a/cuda:1": "a",
        "ssh://me@b/cuda:0": "me@b",
        "compiler#1": "a",
        "compiler#2": "me@b",
    }
    emulated = LocalEngine("ssh://a/emulated:l4,ssh://b/emulated:l4", slots=2)
    assert [slot.name for slot in emulated.slots()] == [
        f"ssh://{host}/emulated:l4#{number}" for host in "ab" for number in (1, 2)
    ]
    with pytest.raises(UsageError, match="name them, as in ssh://a/cuda:0,cuda:1"):
        LocalEngine("ssh://a/cuda")
