"""An engine on a real Ray cluster of two nodes: verdicts, nodes that die and join, no access without a token."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from kernelforge.errors import KernelForgeError, UsageError
from kernelforge.records import Verdict
from kernelforge.workers.base import EvaluationOrder, EvaluationReport, Prepared, WorkerDied
from kernelforge.workers.ray.autoscaling import Autoscaling
from kernelforge.workers.ray.engine import RayEngine
from kernelforge.workers.slot import resolved_address
from tests.workers.engine_orders import (
    BROKEN,
    WAIT_S,
    WRONG,
    all_gone,
    cancelled,
    family_of,
    idle_slot,
    order,
    own_oracle_hosts,
    own_workers,
    running,
    slow_run,
    until,
)

pytestmark = [
    pytest.mark.ray,
    pytest.mark.timeout(600),
    # Not importorskip: Ray reads whether it is to use a token when it is imported.
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs Ray, of the extra ray"),
]

TOKEN = secrets.token_hex(32)
STORE_BYTES = 80 << 20
LEAN = {"object_store_memory": STORE_BYTES, "include_log_monitor": False}
"""Options of every node: without Ray's log monitor and its autoscaler, which these tests do not need."""
HEAD = {"num_cpus": 0, "include_dashboard": False, "no_monitor": True, **LEAN}
SOON_DEAD = {
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "60000",
    "RAY_health_check_failure_threshold": "3",
}
"""A killed node, which refuses connections, is noticed after seconds. A node that is slow to answer is not removed."""
BUSY = {"RAY_memory_monitor_refresh_ms": "0", "RAY_worker_niceness": "0"}
"""Where others have nearly all memory of the machine, Ray would kill workers of ours for it; and by its niceness of 15
a worker gets a thirtieth of the CPU time of another busy process."""


@contextmanager
def short_folder() -> Iterator[str]:
    """Ray's sockets are in it, and their paths must be short. With RAY_TMPDIR in it, the address of the cluster too."""
    folder = tempfile.mkdtemp(prefix="kf-ray-", dir="/tmp")
    Path(folder, "ray").mkdir()  # a head whose own folder is elsewhere does not make it
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def token_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("ray") / "auth_token"
    path.write_text(TOKEN)
    path.chmod(0o644)
    return path


@pytest.fixture(scope="module")
def open_cluster() -> Iterator[str]:
    """Address of a cluster that accepts any client, with a head but no nodes."""
    ray = importlib.util.find_spec("ray")
    assert ray.origin is not None
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    environment |= {"RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0"}
    with short_folder() as folder:
        command = [str(Path(ray.origin).with_name("core") / "src/ray/gcs/gcs_server"), "--gcs_server_port=0"]
        command += ["--node-ip-address=127.0.0.1", "--session-name=open", "--node-id=00", "--config_list=e30="]
        command += [f"--log_dir={folder}", f"--session-dir={folder}"]
        process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        end = time.monotonic() + WAIT_S
        while not (ports := [file.read_text() for file in Path(folder).glob("gcs_server_port_*")]) or not ports[0]:
            assert process.poll() is None
            assert time.monotonic() < end
            time.sleep(0.05)
        yield f"127.0.0.1:{ports[0].strip()}"
        process.terminate()
        process.wait(timeout=60)


@pytest.fixture(scope="module")
def cluster(token_file: Path) -> Iterator[Any]:
    """A head without workers, and two nodes with room for a slot and a compiler each."""
    with pytest.MonkeyPatch.context() as patch, short_folder() as folder:
        for name in [name for name in os.environ if name.startswith("RAY_")]:
            patch.delenv(name)
        settings = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token_file), "RAY_USAGE_STATS_ENABLED": "0"}
        for name, value in (settings | SOON_DEAD | BUSY | {"RAY_TMPDIR": folder}).items():
            patch.setenv(name, value)
        from ray.cluster_utils import Cluster

        made = Cluster(initialize_head=True, head_node_args=HEAD | {"temp_dir": folder})
        for _ in range(2):
            made.add_node(num_cpus=2, **LEAN)
        yield made
        family = set[int]().union(*(processes_of(node) for node in made.list_all_nodes()))
        assert len(family) > 6
        made.shutdown()
        assert all_gone(family)


def processes_of(node: Any) -> set[int]:
    """All that runs on a node, but the reaper that would end it after this process."""
    started = [
        process.process.pid
        for kind, processes in node.all_processes.items()
        if kind != "reaper"
        for process in processes
    ]
    return family_of(*started)


@pytest.fixture(scope="module")
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture(scope="module")
def terminated(cluster: Any) -> Iterator[list[int]]:
    """The signals to end that this process was sent, as its own handler heard of them."""
    heard: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: heard.append(number))
    yield heard
    signal.signal(signal.SIGTERM, before)


@pytest.fixture(scope="module")
def builds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The build cache."""
    return tmp_path_factory.mktemp("builds")


@pytest.fixture(scope="module")
def engine(cluster: Any, terminated: list[int], runner: asyncio.Runner, builds: Path) -> Iterator[RayEngine]:
    # Slots are held for as long as a slow machine needs: by the work that they are given, not by a limit of wall time.
    made = RayEngine("emulated:h100", address=cluster.address, cache=builds, run_limit_s=600)
    with pytest.MonkeyPatch.context() as patch:
        # A worker comes back from a cancelled order by itself, however slow the machine: none is replaced for that.
        patch.setattr("kernelforge.workers.slot.SETTLE_S", WAIT_S)
        try:
            runner.run(made.start())
            runner.run(until(lambda: made.health().workers == 4))
            yield made
            workers = family_of(*own_workers())
        finally:
            # One that did not start in time would keep the cluster's slots from the next one.
            runner.run(made.close())
    assert all_gone(workers)


def verdict(report: EvaluationReport) -> Verdict | str:
    return report.evaluation.verdict if report.evaluation is not None else str(report.trouble)


@pytest.mark.slow
async def test_verdicts_are_those_of_any_engine_on_every_node(engine: RayEngine) -> None:
    async def on(slot: str) -> list[EvaluationReport]:
        return [
            await engine.evaluate(evaluation_order, slot)
            for evaluation_order in (order(), order(WRONG), order(BROKEN), order(profile=True))
        ]

    nodes = await asyncio.gather(*(on(slot.name) for slot in engine.slots()))
    assert len(nodes) == 2
    for reports in nodes:
        assert [verdict(report) for report in reports] == [Verdict.OK, Verdict.WRONG, Verdict.BUILD, Verdict.OK]
        assert all(report.evaluation and report.evaluation.fingerprint == engine.fingerprint for report in reports)
        assert [report.profile is not None for report in reports] == [False, False, False, True]
    assert all(slot.cached_tasks == {order().task.digest} for slot in engine.slots())


@pytest.mark.slow
async def test_preparing_and_briefs_take_no_slot(engine: RayEngine) -> None:
    assert engine.preparing == 2

    slots = [asyncio.create_task(engine.evaluate(slow_run(), slot.name)) for slot in engine.slots()]
    async with asyncio.timeout(WAIT_S):
        fine, broken = await asyncio.gather(
            *(engine.prepare(order(source)) for source in (order().candidate.source, BROKEN))
        )
        brief = await engine.task_context(order().task)
    assert not any(task.done() for task in slots)
    for task in slots:
        task.cancel()
    await asyncio.wait(slots)
    assert isinstance(fine, Prepared)
    assert isinstance(broken, EvaluationReport)
    assert verdict(broken) is Verdict.BUILD
    assert "H100" in brief.device["device"]


@pytest.mark.slow
async def test_a_build_travels_with_its_order_to_a_machine_that_does_not_have_it(
    engine: RayEngine, builds: Path
) -> None:
    slot = (await idle_slot(engine)).name
    for number, travels in enumerate((True, False)):
        source = order().candidate.source + f"// travels {number}\n"
        prepared = await engine.prepare(order(source))
        assert isinstance(prepared, Prepared)
        assert prepared.builds
        for key in prepared.builds:
            (builds / key[:2] / f"{key}.build").unlink()  # as if the cache were the other machine's
        sent = order(source).model_copy(update={"builds": prepared.builds if travels else {}})
        report = await engine.evaluate(sent, slot)
        assert report.evaluation is not None
        assert report.evaluation.build is not None
        assert report.evaluation.build.cached is travels
        damaged = order(source).model_copy(update={"builds": dict.fromkeys(prepared.builds, "damaged")})
        assert verdict(await engine.evaluate(damaged, slot)) is Verdict.OK


@pytest.mark.slow
async def test_a_cancelled_order_frees_its_slot_and_the_next_one_is_right(engine: RayEngine) -> None:
    before = engine.health().restarts
    slot = (await idle_slot(engine)).name
    await cancelled(engine.evaluate(slow_run("cancelled"), slot), after_s=1.0)
    await until(lambda: {slot_state.name: slot_state.state for slot_state in engine.slots()}[slot] == "idle")
    assert verdict(await engine.evaluate(order(), slot)) is Verdict.OK
    assert engine.health().restarts == before, "its worker came back by itself"


@pytest.mark.slow
async def test_rays_token_and_sockets_are_out_of_reach_of_workers_and_candidates(
    engine: RayEngine, cluster: Any, token_file: Path
) -> None:
    workers = own_workers()
    assert len(workers) == 4
    doors = [token_file, Path(cluster.head_node._raylet_socket_name), Path(cluster.head_node._plasma_store_socket_name)]
    doors += [resolved_address(host.settings.oracles) for host in engine._hosts.values()]
    assert len(doors) == 5
    assert all(door.exists() for door in doors)
    for pid in workers:
        environment = Path(f"/proc/{pid}/environ").read_bytes()
        assert b"RAY_" not in environment
        assert TOKEN.encode() not in environment
        kinds = sorted(link.partition(":")[0] for link in descriptors(pid))
        assert str(token_file) not in kinds
        assert inherited_sockets(pid) <= 1, "the one to its actor, and none of Ray's"

    slot = (await idle_slot(engine)).name
    task = asyncio.create_task(engine.evaluate(slow_run("seen"), slot))
    await until(lambda: bool(jailed(family_of(*workers))))
    await asyncio.sleep(1.0)
    children = jailed(family_of(*workers))
    seen = {pid for pid in family_of(*workers) - workers if reaches(pid, doors)}
    task.cancel()
    await asyncio.wait({task})
    assert children
    assert seen == set()


def descriptors(pid: int) -> list[str]:
    return [os.readlink(entry) for entry in Path(f"/proc/{pid}/fd").iterdir() if entry.is_symlink()]


def inherited_sockets(pid: int) -> int:
    """Sockets that a worker shares with Ray's process, from which it was started."""
    parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    shared = set(descriptors(pid)) & set(descriptors(parent))
    return len([link for link in shared if link.startswith("socket:")])


def jailed(pids: set[int]) -> set[int]:
    """Processes with their own file system and network."""
    isolated = set()
    for pid in pids:
        try:
            apart = [
                os.readlink(f"/proc/{pid}/ns/{kind}") != os.readlink(f"/proc/self/ns/{kind}") for kind in ("mnt", "net")
            ]
        except OSError:
            continue
        if all(apart):
            isolated.add(pid)
    return isolated


def reaches(pid: int, doors: list[Path]) -> bool:
    """Whether a helper has Ray's token or variables in its environment, or, jailed, could open what is Ray's."""
    folder = Path(f"/proc/{pid}")
    try:
        environment = (folder / "environ").read_bytes()
        if TOKEN.encode() in environment or b"RAY_" in environment:
            return True
        links = descriptors(pid)
        if any(str(door) in links for door in doors):
            return True
        return pid in jailed({pid}) and any(Path(f"{folder}/root{door}").exists() for door in doors)
    except OSError:
        return False  # it ended, or not even we may look


@pytest.mark.slow
def test_sigterm_is_the_servers_to_hear(
    engine: RayEngine, terminated: list[int], capfd: pytest.CaptureFixture[str]
) -> None:
    os.kill(os.getpid(), signal.SIGTERM)
    assert terminated == [signal.SIGTERM]
    assert "SIGTERM" not in capfd.readouterr().err, "Ray's own handler would print a stack trace"


@pytest.mark.slow
async def test_a_killed_worker_is_told_of_and_replaced(engine: RayEngine) -> None:
    before = engine.health().restarts
    slot = (await idle_slot(engine)).name
    task = asyncio.create_task(engine.evaluate(slow_run("killed"), slot))
    await asyncio.sleep(1.0)
    worker = engine._worker_slots[slot].worker
    children = family_of(worker.pid)
    os.kill(worker.pid, signal.SIGKILL)
    with pytest.raises(WorkerDied):
        await task
    await until(lambda: not running(children))
    await until(lambda: {slot_state.name: slot_state.state for slot_state in engine.slots()}[slot] == "idle")
    assert verdict(await engine.evaluate(order(), slot)) is Verdict.OK
    assert engine.health().restarts == before + 1


@pytest.mark.slow
async def test_the_workers_of_a_node_share_an_oracle_host_that_outlives_each_of_them(engine: RayEngine) -> None:
    """A worker dies, then the host, then the actor that keeps it; then the node is drained."""
    node = (await idle_slot(engine)).name.partition("/")[0]

    def its_hosts() -> set[int]:
        return own_oracle_hosts() & family_of(engine._hosts[node].worker.pid)

    async def evaluated() -> Verdict | str:
        """The job service tries once more where an order was at its oracle."""
        for _ in range(2):
            try:
                report = await engine.evaluate(order(), slot)
            except WorkerDied:
                await until(idle)
                continue
            if report.evaluation is not None:
                break
        return verdict(report)

    def idle() -> bool:
        return {item.name: item.state for item in engine.slots()}[slot] == "idle"

    slot = f"{node}/emulated:h100#1"
    assert len(own_oracle_hosts()) == 2, "one for each node"
    [host] = its_hosts()
    assert await evaluated() is Verdict.OK
    assert jailed(family_of(host)), "it has the oracles"

    os.kill(engine._worker_slots[slot].worker.pid, signal.SIGKILL)
    await until(lambda: not idle())
    await until(idle)
    assert await evaluated() is Verdict.OK
    assert its_hosts() == {host}, "it does not end with a worker"

    children = family_of(host)
    os.kill(host, signal.SIGKILL)
    await until(lambda: not running(children) and len(its_hosts()) == 1)
    assert await evaluated() is Verdict.OK

    actor = engine._hosts[node].worker.pid
    children = family_of(actor)
    os.kill(actor, signal.SIGKILL)
    await until(lambda: not running(children))
    assert await evaluated() is Verdict.OK
    assert len(its_hosts()) == 1

    engine.drain(f"{node}/*")
    await until(lambda: engine._hosts[node].worker is None)
    assert len(own_oracle_hosts()) == 1, "a node without workers has no host"
    engine.resume(f"{node}/*")
    await until(idle)
    assert await evaluated() is Verdict.OK


@pytest.mark.slow
async def test_orders_of_a_killed_node_end_elsewhere_and_a_new_node_brings_slots_back(
    engine: RayEngine, cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: dict[str, list[Verdict | str]] = {}
    deaths = 0

    async def until_it_ends(evaluation_order: EvaluationOrder) -> None:
        nonlocal deaths
        while True:
            slot = await idle_slot(engine)
            try:
                report = await engine.evaluate(evaluation_order, slot.name)
            except WorkerDied:
                deaths += 1
                continue
            ended.setdefault(evaluation_order.id, []).append(verdict(report))
            return

    orders = {}
    for number in range(12):
        source = order(WRONG if number % 4 == 3 else order().candidate.source).candidate.source
        evaluation_order = order(f"{source}// {number}\n")
        orders[evaluation_order.id] = (evaluation_order, Verdict.WRONG if number % 4 == 3 else Verdict.OK)
    victim = sorted(cluster.worker_nodes, key=lambda node: node.node_id)[0]
    its_slots = {slot.name for slot in engine.slots() if f"-{victim.node_id[:6]}/" in slot.name}
    assert len(its_slots) == 1
    worker_slot = engine._worker_slots[next(iter(its_slots))]
    close, closed = worker_slot.close, asyncio.Event()

    async def close_late() -> None:
        """As if the processes of a dead node took long to miss: what the engine shows must not wait for it."""
        await closed.wait()
        await close()

    monkeypatch.setattr(worker_slot, "close", close_late)
    raylet = victim.all_processes["raylet"][0].process
    family = processes_of(victim)
    assert len(family) > 4

    callers: asyncio.Queue[EvaluationOrder] = asyncio.Queue()
    for evaluation_order, _ in orders.values():
        callers.put_nowait(evaluation_order)

    async def caller() -> None:
        while not callers.empty():
            await until_it_ends(callers.get_nowait())

    async def killer() -> None:
        await until(lambda: len(ended) >= 4)
        await until(lambda: any(slot.state == "busy" for slot in engine.slots() if slot.name in its_slots))
        raylet.kill()

    # As the job service does: no more callers than slots look for an idle one at a time.
    async with asyncio.timeout(WAIT_S):
        await asyncio.gather(killer(), caller(), caller())
        await until(lambda: its_slots.isdisjoint(slot.name for slot in engine.slots()))
        assert len(engine.slots()) == 1
        assert engine.preparing == 1
        closed.set()
    assert ended == {id: [expected] for id, (_, expected) in orders.items()}
    assert deaths >= 1
    assert all_gone(family), "nothing that ran on the node goes on"

    cluster.remove_node(victim)
    cluster.add_node(num_cpus=2, **LEAN)

    await until(lambda: [slot.state for slot in engine.slots()] == ["idle", "idle"])
    assert [verdict(report) for report in [await engine.evaluate(order(), slot.name) for slot in engine.slots()]] == [
        Verdict.OK,
        Verdict.OK,
    ]


@pytest.mark.slow
async def test_the_queue_asks_for_slots_and_a_pause_gives_nodes_up(
    engine: RayEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ray.autoscaler._private.constants import AUTOSCALER_RESOURCE_REQUEST_CHANNEL
    from ray.experimental.internal_kv import _internal_kv_get

    def requested() -> list[dict[str, float]]:
        """The request that Ray's autoscaler reads."""
        return list(json.loads(_internal_kv_get(AUTOSCALER_RESOURCE_REQUEST_CHANNEL) or b"[]"))

    def states() -> list[str]:
        return sorted(slot.state for slot in engine.worker_states())

    monkeypatch.setattr("kernelforge.workers.ray.autoscaling.IDLE_S", 0.0)
    monkeypatch.setattr(engine, "_autoscale", Autoscaling(1, 3))
    await until(lambda: states() == ["drained", "drained", "idle", "idle"])
    assert requested() == [{"CPU": 1}] * 2, "a slot, and a compiler of the node that is kept"
    [released] = {slot.name.partition("/")[0] for slot in engine.slots() if slot.state == "drained"}
    engine.drain(f"{released}/*compiler*")
    engine.demand(1000)
    await until(lambda: states() == ["drained", "idle", "idle", "idle"])
    assert requested() == [{"CPU": 1}] * 5
    engine.resume("*")
    monkeypatch.setattr(engine, "_autoscale", None)
    await until(lambda: states() == ["idle"] * 4)


@pytest.mark.slow
async def test_a_cluster_that_lets_anybody_in_is_refused(open_cluster: str, cluster: Any) -> None:
    with pytest.raises(KernelForgeError, match="accepts clients without a valid token"):
        await RayEngine("emulated:h100", address=open_cluster).start()


@pytest.mark.slow
async def test_a_wrong_token_is_refused_at_once(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_AUTH_TOKEN", "not-the-token-of-this-cluster")
    with pytest.raises(KernelForgeError, match="refuses the token"):
        await RayEngine("emulated:h100", address=cluster.address).start()


@pytest.mark.slow
def test_without_a_token_nothing_is_asked_of_ray(
    cluster: Any, runner: asyncio.Runner, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(tmp_path / "none"))
    with pytest.raises(UsageError, match="no token for the Ray cluster"):
        RayEngine("emulated:h100", address=cluster.address)
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    with pytest.raises(UsageError, match="RAY_AUTH_MODE=token"):
        RayEngine("emulated:h100", address=cluster.address)


@pytest.mark.slow
async def test_where_nothing_answers_the_address_is_named(cluster: Any) -> None:
    with pytest.raises(KernelForgeError, match=r"no Ray cluster answers at 127\.0\.0\.1:9"):
        await RayEngine("emulated:h100", address="127.0.0.1:9").start()
    for address in ("ray://127.0.0.1:10001", "auto", None):
        with pytest.raises(UsageError, match="HOST:PORT"):
            RayEngine("emulated:h100", address=address)
