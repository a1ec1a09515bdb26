"""A local engine: every verdict comes back, a cancelled order frees its slot, and no process outlives its engine."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from kernelforge.errors import DeviceError, KernelForgeError, UsageError
from kernelforge.records import Verdict
from kernelforge.tasks import load_task
from kernelforge.workers.base import EvaluationOrder, EvaluationReport, Prepared, WorkerDied
from kernelforge.workers.pool import LocalEngine
from kernelforge.workers.roles import WorkerSettings
from kernelforge.workers.slot import Worker, WorkerSlot
from tests.workers.engine_orders import (
    BROKEN,
    FORBIDDEN,
    WAIT_S,
    WRONG,
    all_gone,
    cancelled,
    family_of,
    host_code,
    idle_slot,
    order,
    own_oracle_hosts,
    own_workers,
    running,
    slow_build,
    slow_run,
    until,
)

RUN_LIMIT_S = 3.0
CANARY = f"canary-{secrets.token_hex(16)}"


@pytest.fixture(scope="module")
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture(scope="module")
def secret(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The job service's database, which no jailed process may read."""
    path = tmp_path_factory.mktemp("results") / "server.db"
    path.write_text(f"{CANARY}\n")
    path.chmod(0o644)
    return path


@pytest.fixture(scope="module")
def engine(runner: asyncio.Runner, secret: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalEngine]:
    """One slot, one compiler; started by a process that has a canary in its environment and in a descriptor."""
    descriptor = os.open(secret, os.O_RDONLY)
    os.set_inheritable(descriptor, True)
    builds = tmp_path_factory.mktemp("builds")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KERNELFORGE_TOKEN", CANARY)
        # A worker comes back from a cancelled order by itself, however slow the machine: none is replaced for that.
        patch.setattr("kernelforge.workers.slot.SETTLE_S", WAIT_S)
        made = LocalEngine("emulated:h100", slots=1, compilers=1, cache=builds, run_limit_s=RUN_LIMIT_S, modelnew=True)
        runner.run(made.start())
        runner.run(until(lambda: made.health().workers == 2))
    yield made
    children, folder = family_of(*own_workers(), *own_oracle_hosts()), made.oracles.address.parent
    assert len(children) > 6
    runner.run(made.close())
    assert not folder.exists()
    os.close(descriptor)
    assert all_gone(children)


async def evaluated(engine: LocalEngine, evaluation_order: EvaluationOrder) -> EvaluationReport:
    return await engine.evaluate(evaluation_order, (await idle_slot(engine)).name)


@pytest.mark.slow
async def test_each_verdict_comes_back_from_a_slot(engine: LocalEngine) -> None:
    orders = (order(), order(WRONG), order(BROKEN), order(FORBIDDEN))
    reports = [await evaluated(engine, evaluation_order) for evaluation_order in orders]
    evaluations = [report.evaluation for report in reports if report.evaluation is not None]
    assert [evaluation.verdict for evaluation in evaluations] == [
        Verdict.OK,
        Verdict.WRONG,
        Verdict.BUILD,
        Verdict.POLICY,
    ]
    assert {evaluation.fingerprint for evaluation in evaluations} == {engine.fingerprint}
    assert all(report.worker_seconds > 0 for report in reports)


@pytest.mark.slow
async def test_a_run_over_the_limit_is_a_timeout_that_the_fingerprint_explains(engine: LocalEngine) -> None:
    evaluation = (await evaluated(engine, slow_run("to its end"))).evaluation
    assert evaluation.verdict is Verdict.TIMEOUT
    assert "within 3 s" in evaluation.reason or "budget" in evaluation.reason
    assert evaluation.fingerprint.evaluator.endswith("+run.3s")


@pytest.mark.slow
async def test_a_profile_comes_when_it_was_asked_for(engine: LocalEngine) -> None:
    with_one = await evaluated(engine, order(profile=True))
    without = await evaluated(engine, order())
    assert with_one.profile is not None
    assert without.profile is None


@pytest.mark.slow
@pytest.mark.parametrize("source", [BROKEN, FORBIDDEN])
async def test_preparing_ends_a_candidate_as_a_slot_would(engine: LocalEngine, source: str) -> None:
    there = (await evaluated(engine, order(source))).evaluation
    ended = await engine.prepare(order(source))
    assert isinstance(ended, EvaluationReport)
    assert ended.evaluation.key == there.key
    assert (ended.evaluation.verdict, ended.evaluation.stage) == (there.verdict, there.stage)
    assert ended.evaluation.reason == there.reason


@pytest.mark.slow
async def test_what_was_prepared_is_not_compiled_again(engine: LocalEngine) -> None:
    source = order().candidate.source + "// another\n"
    prepared = await engine.prepare(order(source))
    assert isinstance(prepared, Prepared)
    assert prepared.seconds["build"] > 0
    prepared_order = order(source).model_copy(update={"prepared": {"build": 100.0}})
    evaluation = (await evaluated(engine, prepared_order)).evaluation
    assert evaluation.build.cached
    assert evaluation.seconds["build"] > 100, "what preparing took is part of its cost"


@pytest.mark.slow
async def test_a_brief_tells_nothing_of_hidden_sizes(engine: LocalEngine) -> None:
    facts = await engine.task_context(order().task)
    assert {size.size for size in facts.facts.sizes} == {"full", "small"}
    assert facts.graph.nodes
    assert "H100" in facts.device["device"]


@pytest.mark.slow
async def test_a_testers_reply_is_scored_in_the_oracles_that_workers_share(engine: LocalEngine) -> None:
    plans = {"far_below": "def inputs(x):\n    return uniform(-900, -800)\n", "shell": "import os\n"}
    reply = json.dumps({"generators": [{"name": name, "why": "w", "plan": plan} for name, plan in plans.items()]})
    task = load_task("core/softmax")
    scored = await engine.score_tests(task, reply, 30)
    assert [(test.name, test.admitted) for test in scored.tests] == [("far_below", True), ("shell", False)]
    assert len(scored.mutants) == 30
    assert {mutant.by_tests for mutant in scored.mutants} == {(), ("far_below",)}
    assert "JSON object" in (await engine.score_tests(task, "prose", 30)).fault
    assert (await evaluated(engine, order())).evaluation.verdict is Verdict.OK


@pytest.mark.slow
async def test_a_task_that_cannot_be_judged_is_trouble_and_no_score(engine: LocalEngine) -> None:
    good = order()
    task = good.task.model_copy(update={"source": good.task.source.replace("x * 2 + y", "x * 0")})
    bad = good.model_copy(update={"task": task})

    report = await engine.evaluate(bad, (await idle_slot(engine)).name)
    after = await engine.evaluate(good, (await idle_slot(engine)).name)
    assert report.evaluation is None
    assert (report.trouble.code, report.trouble.retryable) == ("oracle", False)
    assert after.evaluation.verdict is Verdict.OK


@pytest.mark.slow
async def test_a_class_with_host_code_is_run_by_torch_in_its_lane(engine: LocalEngine) -> None:
    orders = (host_code(), host_code("return 2.5 * x + y"), host_code("return x.cuda()"))
    assert isinstance(await engine.prepare(orders[0]), Prepared)
    right, wrong, unsupported = [await evaluated(engine, each) for each in orders]
    assert (right.evaluation.verdict, right.evaluation.lane) == (Verdict.OK, "modelnew")
    assert wrong.evaluation.verdict is Verdict.WRONG
    assert right.evaluation.fingerprint == wrong.evaluation.fingerprint == engine.modelnew
    assert engine.modelnew.evaluator != engine.fingerprint.evaluator
    assert (unsupported.trouble.code, unsupported.trouble.retryable) == ("unsupported", False)


@pytest.mark.slow
@pytest.mark.parametrize(
    "slow",
    [slow_build(), slow_run(), host_code("while True: pass")],
    ids=["while compiling", "while running", "in its lane"],
)
async def test_a_cancelled_order_frees_its_slot_and_the_next_one_is_right(
    engine: LocalEngine, slow: EvaluationOrder
) -> None:
    before = engine.health().restarts
    slot = (await idle_slot(engine)).name
    await cancelled(engine.evaluate(slow, slot), after_s=1.0)
    evaluation = (await evaluated(engine, order())).evaluation
    assert evaluation.verdict is Verdict.OK
    assert engine.health().restarts == before, "its worker came back by itself"


@pytest.mark.slow
async def test_cancelling_a_preparation_lets_the_next_one_begin(engine: LocalEngine) -> None:
    await cancelled(engine.prepare(slow_build("prepared")), after_s=1.0)
    async with asyncio.timeout(20):
        report = await engine.prepare(order(BROKEN + "// after it\n"))
    assert isinstance(report, EvaluationReport)
    assert report.evaluation.verdict is Verdict.BUILD


@pytest.mark.slow
async def test_a_worker_sees_nothing_of_what_its_engine_has(engine: LocalEngine, secret: Path) -> None:
    workers, hosts = own_workers(), own_oracle_hosts()
    assert (len(workers), len(hosts)) == (2, 1)
    workers |= hosts
    assert all(CANARY.encode() not in Path(f"/proc/{pid}/environ").read_bytes() for pid in workers)
    for pid in workers:
        links = {os.readlink(entry) for entry in Path(f"/proc/{pid}/fd").iterdir() if entry.is_symlink()}
        assert links
        assert str(secret) not in links

    slot = (await idle_slot(engine)).name
    task = asyncio.create_task(engine.evaluate(slow_run("seen"), slot))
    await asyncio.sleep(1.0)
    seen = {pid for pid in family_of(*workers) - workers if reads_the_secret(pid, secret)}
    task.cancel()
    await asyncio.wait({task})
    assert seen == set()
    for include in (f'#include "{secret}"\n', f"#include <{secret}>\n"):
        report = await engine.prepare(order(include + order().candidate.source))
        assert isinstance(report, EvaluationReport)
        assert report.evaluation.verdict is not Verdict.OK
        assert CANARY not in report.model_dump_json()


def reads_the_secret(pid: int, secret: Path) -> bool:
    """Whether a helper has the canary in its environment or in a descriptor, or, jailed, can open the database."""
    folder = Path(f"/proc/{pid}")
    try:
        if CANARY.encode() in (folder / "environ").read_bytes():
            return True
        if any(os.readlink(entry) == str(secret) for entry in (folder / "fd").iterdir() if entry.is_symlink()):
            return True
        jailed = os.readlink(folder / "ns" / "mnt") != os.readlink("/proc/self/ns/mnt")
        return jailed and Path(f"{folder}/root{secret}").exists()
    except OSError:
        return False  # it ended, or not even we may look


@pytest.mark.slow
async def test_a_killed_worker_is_replaced_and_leaves_nothing_behind(engine: LocalEngine) -> None:
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
    after = await evaluated(engine, order())
    assert len(children) > 3, "the worker, its warm helpers, and a runner"
    assert after.evaluation.verdict is Verdict.OK
    assert engine.health().restarts == before + 1


@pytest.mark.slow
async def test_a_killed_oracle_host_is_replaced_and_leaves_nothing_behind(engine: LocalEngine) -> None:
    await evaluated(engine, order())
    (host,) = own_oracle_hosts()
    children = family_of(host)
    assert len(children) > 3, "the host, its warm helper, and an oracle"
    os.kill(host, signal.SIGKILL)
    report = await evaluated(engine, order())
    if report.trouble is not None:  # it was at its oracle: the job service tries once more
        assert report.trouble.retryable
        report = await evaluated(engine, order())
    assert report.evaluation is not None
    assert report.evaluation.verdict is Verdict.OK
    assert own_oracle_hosts() - {host}
    await until(lambda: not running(children))


@pytest.mark.slow
async def test_a_drained_slot_leaves_no_process_and_comes_back(engine: LocalEngine) -> None:
    before = engine.health().restarts
    slot = (await idle_slot(engine)).name
    family = family_of(engine._worker_slots[slot].worker.pid)
    assert engine.drain(slot) == 1
    await until(lambda: not running(family))
    assert [state.state for state in engine.worker_states() if not state.compiles] == ["drained"]
    assert engine.resume("*") == 2
    assert (await evaluated(engine, order())).evaluation.verdict is Verdict.OK
    assert engine.health().restarts == before


@pytest.mark.slow
async def test_a_seat_whose_worker_never_starts_is_set_aside_with_the_reason() -> None:
    worker_slot = WorkerSlot("nowhere", WorkerSettings(role="device", device="emulated:nowhere"), lambda: None)
    worker_slot.open()
    await until(lambda: worker_slot.state == "quarantined")
    slot = worker_slot.slot()
    await worker_slot.close()
    assert slot.state == "quarantined"
    assert "nowhere" in slot.why


async def test_an_engine_that_cannot_start_says_why_and_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernelforge.workers.slot.START_S", 0.1)
    before = own_workers()
    with pytest.raises(KernelForgeError, match="not warm after"):
        await LocalEngine("emulated:h100", slots=1).start()
    assert own_workers() == before


async def test_a_start_that_is_cancelled_in_its_first_moment_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async def cancelled_there(*, sock: socket.socket) -> None:
        sock.close()
        raise asyncio.CancelledError

    monkeypatch.setattr("kernelforge.workers.slot.asyncio.open_connection", cancelled_there)
    before = own_workers()
    with pytest.raises(asyncio.CancelledError):
        await Worker.start("one", WorkerSettings(role="device", device="emulated:h100"))
    assert own_workers() == before


@pytest.mark.slow
def test_options_that_do_not_go_together_are_refused() -> None:
    with pytest.raises(UsageError, match="slots"):
        LocalEngine("emulated:h100", slots=0)
    with pytest.raises(DeviceError, match="nowhere"):
        LocalEngine("emulated:nowhere")
    with pytest.raises(UsageError, match="run_limit_s"):
        LocalEngine("emulated:h100", run_limit_s=0)


@pytest.mark.slow
def test_workers_die_with_a_gateway_that_is_killed() -> None:
    script = f"""
        import asyncio, os, sys
        sys.path[:0] = {[str(Path(__file__).parent), str(Path(__file__).parent.parent)]!r}
        from tests.workers.engine_orders import family_of, own_oracle_hosts, own_workers
        from kernelforge.workers.pool import LocalEngine

        async def main():
            await LocalEngine("emulated:h100", slots=1).start()
            print(*family_of(*own_workers(), *own_oracle_hosts()), flush=True)
            await asyncio.sleep(600)

        asyncio.run(main())
    """
    gateway = subprocess.Popen([sys.executable, "-c", textwrap.dedent(script)], stdout=subprocess.PIPE, text=True)
    assert gateway.stdout is not None
    pids = {int(word) for word in gateway.stdout.readline().split()}
    gateway.kill()
    gateway.wait()
    gateway.stdout.close()
    assert len(pids) > 2
    assert all_gone(pids)
