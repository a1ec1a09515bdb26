"""Ray's own autoscaler, whose nodes are processes of this machine: they come with the queue and go with it."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import tests
from kernelforge.server.jobs.service import JobService
from kernelforge.server.jobs.state import JobServiceSettings
from kernelforge.tasks.suites import Catalogue
from kernelforge.workers.base import EvaluationOrder, EvaluationReport
from kernelforge.workers.ray.autoscaling import JOBS_PER_SLOT, Autoscaling
from kernelforge.workers.ray.engine import RayEngine
from tests.server.jobs.test_service_local_engine import MANIFEST, job_request
from tests.server.service_tools import ended
from tests.support.axpy import KERNEL, REFERENCE
from tests.workers.engine_orders import WAIT_S, all_gone, family_of, running, until
from tests.workers.test_engine_ray import BUSY, STORE_BYTES, TOKEN, pytestmark, short_folder

__all__ = ["pytestmark"]

RESOURCE = "slots"
IDLE_S = 4.0
"""For which Ray keeps a node that idles."""


@pytest.fixture
def head(tmp_path: Path) -> Iterator[tuple[str, int]]:
    """Address and process id of a head with Ray's autoscaler, and no node yet."""
    with pytest.MonkeyPatch.context() as patch, short_folder() as folder:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        for name in [name for name in os.environ if name.startswith("RAY_")]:
            patch.delenv(name)
        (tmp_path / "token").write_text(TOKEN)
        settings = {
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN_PATH": str(tmp_path / "token"),
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_TMPDIR": folder,
            "RAY_enable_autoscaler_v2": "1",
            "AUTOSCALER_UPDATE_INTERVAL_S": "1",
            "AUTOSCALER_METRIC_PORT": "0",
        }
        for name, value in (settings | BUSY).items():
            patch.setenv(name, value)
        from tests.support.ray_nodes import HEAD, autoscaling_config, node_environment, start_command

        address = f"127.0.0.1:{port}"
        resources = {"CPU": 2, RESOURCE: 1, "object_store_memory": STORE_BYTES}
        config = tmp_path / "cluster.json"
        config.write_text(json.dumps(autoscaling_config(address, resources, most=2, idle_s=IDLE_S)))
        command = start_command(
            "--head", f"--port={port}", "--node-ip-address=127.0.0.1", "--num-cpus=0", f"--temp-dir={folder}/ray",
            f"--object-store-memory={STORE_BYTES}", "--include-dashboard=false", f"--autoscaling-config={config}",
        )  # fmt: skip
        environment = node_environment(HEAD) | {"PYTHONPATH": str(Path(tests.__path__[0]).parent)}
        with (tmp_path / "head.log").open("wb") as log:
            process = subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)
        try:
            end = time.monotonic() + WAIT_S
            while "will now block" not in (tmp_path / "head.log").read_text():
                assert process.poll() is None, (tmp_path / "head.log").read_text()
                assert time.monotonic() < end
                time.sleep(0.1)
            yield address, process.pid
        finally:
            family = running(family_of(process.pid))
            process.terminate()
            process.wait(timeout=WAIT_S)
            for pid in running(family):  # the nodes, which only the autoscaler would end
                os.kill(pid, signal.SIGKILL)
            assert all_gone(family)


def raylets(head_process: int) -> set[int]:
    """Node processes that the head's autoscaler has started and that run."""
    pids = set()
    for pid in running(family_of(head_process)):
        try:
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            continue
        if command.partition(b"\0")[0].endswith(b"raylet/raylet") and b"--head" not in command:
            pids.add(pid)
    return pids


@pytest.mark.slow
@pytest.mark.timeout(4 * WAIT_S)
async def test_a_node_comes_with_the_queue_goes_when_it_idles_and_comes_again(
    head: tuple[str, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address, head_process = head
    suite = tmp_path / "mine"
    suite.mkdir()
    (suite / "suite.toml").write_text(MANIFEST)
    (suite / "axpy.py").write_text(REFERENCE)
    monkeypatch.setattr("kernelforge.workers.ray.autoscaling.IDLE_S", 2.0)
    monkeypatch.setattr("kernelforge.workers.ray.engine.FIRST_NODE_S", WAIT_S)
    engine = RayEngine(
        "emulated:h100", address=address, cache=tmp_path / "builds", resource=RESOURCE, autoscale=Autoscaling.of("1:2")
    )
    service = JobService(engine, Catalogue([str(suite)]), tmp_path / "results", JobServiceSettings())
    evaluate, numbers, used_by = engine.evaluate, itertools.count(1), set[str]()
    least = 1

    async def evaluated(order: EvaluationOrder, slot: str) -> EvaluationReport:
        """A slot keeps its report until enough have one: so the queue stays long, and few jobs are evaluated."""
        report = await evaluate(order, slot)
        used_by.add(slot)
        await until(lambda: len(used_by) >= least)
        return report

    monkeypatch.setattr(engine, "evaluate", evaluated)

    def nodes() -> tuple[int, int]:
        """As the engine sees them, and as the machine does."""
        return int(engine.health().extra["nodes"]), len(raylets(head_process))

    async def work_for(slots: int) -> None:
        """As many jobs as call for these slots, each of which gets one. None of the kernels is equal to another."""
        nonlocal least
        least = slots
        used_by.clear()
        kernels = [
            KERNEL.replace("i < n", f"i < n && i < {(1 << 20) + next(numbers)}") for _ in range(slots * JOBS_PER_SLOT)
        ]
        async with asyncio.timeout(WAIT_S):
            for job in await ended(service, *(job_request(kernel) for kernel in kernels)):
                assert (job.result.verdict, job.result.equals) == ("OK", None)

    await service.start()
    try:
        assert nodes() == (1, 1)
        [first] = {slot.name for slot in engine.slots()}
        comings = set[str]()
        for times in range(2):
            await work_for(2)
            assert nodes() == (2, 2)
            assert used_by > {first}
            comings |= used_by - {first}
            if times == 0:
                await until(lambda: nodes() == (1, 1))
                assert {slot.name for slot in engine.slots()} == {first}
            assert engine.health().notes == ()
        assert len(comings) == 2, "each time it was another node"
    finally:
        await service.close()
