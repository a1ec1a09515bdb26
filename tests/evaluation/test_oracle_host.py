"""Workers of a machine share oracles: each answer and kept draw is made once, and what ends one is felt by no other."""

from __future__ import annotations

import os
import select
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from kernelforge.devices.base import Device
from kernelforge.errors import ChildDied, ChildTimeout, SandboxError, TaskError
from kernelforge.evaluation import EvaluatorPool
from kernelforge.evaluation.oracle.client import DrawHandle, Oracle, OracleFacts
from kernelforge.evaluation.oracle.host import OracleHost, _TaskState
from kernelforge.evaluation.oracle.shared import BATCH, GREETING, SharedOracles
from kernelforge.evaluation.stages.kept_draws import KeptDraws
from kernelforge.records import Candidate, Comparison, MeasureSettings, Size, Task, Verdict
from kernelforge.sandbox import Zygote
from kernelforge.sandbox.channel import Channel
from tests.evaluation.test_workshop import Gpu
from tests.support.axpy import KERNEL, PLAN, REFERENCE, SIZES, axpy_task

MOST_BYTES = 1 << 30
WRONG = KERNEL.replace("y[i];", "(i == 40 ? 1.0f : y[i]);")
HANGS = REFERENCE.replace("        return", "        while x.shape[0] == 7: pass\n        return")


@pytest.fixture
def host(zygote: Zygote, tmp_path: Path) -> Iterator[OracleHost]:
    with serving(tmp_path / "socket", zygote) as host:
        yield host


@contextmanager
def serving(address: Path, zygote: Zygote) -> Iterator[OracleHost]:
    """A host in a thread of this process; its connections and oracles end with it, as with a process of its own."""
    accepted: list[socket.socket] = []

    class Listener(socket.socket):
        def accept(self) -> tuple[socket.socket, Any]:
            sock, peer = super().accept()
            accepted.append(sock)
            return sock, peer

    with Listener(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(address))
        listener.listen()
        host = OracleHost(listener, zygote, most_bytes=MOST_BYTES)
        thread = threading.Thread(target=host.serve)
        thread.start()
        yield host
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()
    for sock in accepted:
        with suppress(OSError):  # its worker has ended it
            sock.shutdown(socket.SHUT_RDWR)
    for state in host._tasks.values():
        for oracle in (*state.spare, *([state.main] if state.main else [])):
            oracle.close()


@pytest.fixture
def opened(host: OracleHost, tmp_path: Path) -> Iterator[Callable[..., Oracle]]:
    """Opens the oracle of a worker."""
    oracles: list[Oracle] = []

    def opened(task: Task | None = None) -> Oracle:
        oracles.append(Oracle(SharedOracles(tmp_path / "socket"), task or axpy_task()))
        return oracles[-1]

    yield opened
    for oracle in oracles:
        oracle.close()


def state_of(host: OracleHost) -> _TaskState:
    (state,) = host._tasks.values()
    return state


def compared(oracle: Oracle, draw: DrawHandle, shape: tuple[int, ...] = (8, 32)) -> Comparison:
    """The comparison of the first input, which is no right answer."""
    return oracle.check(draw.handle, [draw.tensors[0]], [shape], ["float32"])  # type: ignore[list-item]


@pytest.mark.slow
def test_a_task_is_described_and_admitted_once_for_all_workers(
    host: OracleHost, opened: Callable[..., Oracle], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = opened()
    facts = first.facts()
    first.require_admitted()
    families = first.families("small")
    main = state_of(host).main
    assert main is not None
    monkeypatch.setattr(main, "call", None)
    second = opened()
    assert second.facts() == facts
    second.require_admitted()
    assert second.families("small") == families
    assert state_of(host).main is main


def test_evaluations_share_a_kept_draw_and_its_batch_ends_for_all(
    host: OracleHost, opened: Callable[..., Oracle]
) -> None:
    oracles = opened(), opened()
    kept = [KeptDraws(oracle) for oracle in oracles]
    for number, each in enumerate(kept):
        each.begin(number + 1)
    draws = [each.of("small", "task") for each in kept]
    assert draws[0] is not None
    assert draws[1] is not None
    assert draws[0].tensors == draws[1].tensors
    assert len(state_of(host).kept) == 1
    assert compared(oracles[0], draws[0]) == compared(oracles[1], draws[1])
    for number in range(2, BATCH):
        kept[number % 2].begin(number + 1)
    assert kept[0].of("small", "task") is draws[0]
    kept[0].begin(100)
    replaced = kept[0].of("small", "task")
    assert replaced is not None
    assert replaced.tensors != draws[0].tensors
    assert compared(oracles[1], draws[1]).total == 256, "another evaluation lost the draw that it works on"
    kept[1].forget()
    for number, each in enumerate(kept):
        each.begin(200 + number)
        assert each.of("small", "task") is not None
    assert [key[:2] for key in state_of(host).kept] == [("small", "task")], "draws without evaluations are kept"


@pytest.mark.slow
def test_a_main_oracle_that_ends_is_replaced_with_its_kept_draws(
    host: OracleHost, opened: Callable[..., Oracle]
) -> None:
    oracle = opened()
    kept = KeptDraws(oracle)
    kept.begin(1)
    draw = kept.of("small", "task")
    assert draw is not None
    before = compared(oracle, draw)
    main = state_of(host).main
    assert main is not None
    main.close()
    assert compared(oracle, draw) == before
    assert state_of(host).main is not main


@pytest.mark.slow
def test_draws_of_one_evaluation_are_those_of_an_oracle_of_its_own(
    opened: Callable[..., Oracle], zygote: Zygote
) -> None:
    sizes = [Size(name="hidden_drawn", constants={"ROWS": rows, "COLS": 17}) for rows in (3, 5)]
    oracles = opened(), opened()
    for oracle, size in zip(oracles, sizes, strict=True):
        oracle.take_size(size)
    for number, (oracle, size) in enumerate(zip(oracles, sizes, strict=True)):
        for family in ("task", "large"):
            draw = oracle.draw("hidden_drawn", family, 11 + number)
            with Oracle(zygote, axpy_task()) as alone:
                alone.take_size(size)
                own = alone.draw("hidden_drawn", family, 11 + number)
                assert draw.tensors == own.tensors
                shape = size.constants["ROWS"], 17
                assert compared(oracle, draw, shape) == compared(alone, own, shape)  # type: ignore[arg-type]
            oracle.release(draw.handle)


@pytest.mark.slow
def test_an_evaluation_has_an_oracle_to_itself_only_while_it_has_draws(
    host: OracleHost, opened: Callable[..., Oracle]
) -> None:
    first, second = opened(), opened()
    draws = first.draw("small", "task", 1), second.draw("small", "task", 1)
    assert draws[0].tensors == draws[1].tensors
    assert state_of(host).spare == []
    for oracle, draw in zip((first, second), draws, strict=True):
        assert not compared(oracle, draw).ok
        oracle.release(draw.handle)
    both = list(state_of(host).spare)
    assert len(both) == 2
    for oracle, own in zip((first, second), both, strict=True):
        oracle.release(oracle.draw("hidden_odd", "task", 2).handle)
        assert state_of(host).spare[-1] is own, "another has to work out the facts of the size"
    host._most_bytes = 0
    second.release(second.draw("small", "task", 3).handle)
    assert len(state_of(host).spare) < 2, "idle oracles hold more memory than they may"


@pytest.mark.slow
def test_an_interrupted_evaluation_takes_nothing_of_another_with_it(
    host: OracleHost, opened: Callable[..., Oracle]
) -> None:
    task = axpy_task(HANGS, SIZES)
    hanging, other = opened(task), opened(task)
    draw = other.draw("small", "task", 1)
    errors: list[BaseException] = []

    def hang() -> None:
        try:
            hanging.draw("hidden_odd", "task", 1)
        except ChildDied as error:
            errors.append(error)

    thread = threading.Thread(target=hang)
    thread.start()
    while not (isinstance(hanging._zygote, SharedOracles) and state_of(host).connections == 2 and thread.is_alive()):
        pass
    while thread.is_alive():
        hanging._zygote.interrupt()
        thread.join(0.05)
    assert "oracle child" in str(errors[0])
    assert compared(other, draw).total == 256
    assert len(hanging.draw("small", "task", 1).tensors) == 2, "it does not start again"


class Watched:
    """A lock that says how many wait for it."""

    def __init__(self) -> None:
        self.lock, self.came = threading.Lock(), 0

    def __enter__(self) -> None:
        self.came += 1
        self.lock.acquire()

    def __exit__(self, *error: object) -> None:
        self.lock.release()


def test_those_that_wait_for_an_unanswered_question_share_its_end_and_others_have_their_turn() -> None:
    state, ends = _TaskState(), dict[str, str]()
    state.lock = watched = Watched()  # type: ignore[assignment]

    def ask(name: str, question: str) -> None:
        try:
            with state.turn(question):
                ends[name] = "had its turn"
        except ChildTimeout as error:
            ends[name] = str(error)

    threads = [threading.Thread(target=ask, args=names) for names in (("same", "facts"), ("other", "admit"))]

    def hang() -> None:
        with state.turn("facts"):
            for thread in threads:
                thread.start()
            while watched.came < 3:
                pass
            raise ChildTimeout("the oracle child gave no answer in 900 s and was killed")

    with pytest.raises(ChildTimeout):
        hang()
    for thread in threads:
        thread.join()
    assert ends == {"same": "the oracle child gave no answer in 900 s and was killed", "other": "had its turn"}
    ask("later", "facts")
    assert ends["later"] == "had its turn", "it may be answered now"


def test_a_broken_reference_and_a_forbidden_request_are_refused(opened: Callable[..., Oracle]) -> None:
    with pytest.raises(TaskError, match="Model"):
        opened(axpy_task(REFERENCE.replace("class Model(", "class Other(")))
    with pytest.raises(SandboxError, match="'audit'"):
        opened().audit(1)


def test_a_host_that_is_not_there_yet_is_waited_for_unless_the_wait_is_interrupted(tmp_path: Path) -> None:
    oracles = SharedOracles(tmp_path / "late")
    with ThreadPoolExecutor() as pool, socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        waiting = pool.submit(oracles.spawn)
        while not waiting.done():
            oracles.interrupt()
        with pytest.raises(ChildDied, match="oracle child"):
            waiting.result()
        waiting = pool.submit(oracles.spawn)
        listener.bind(str(tmp_path / "late"))
        listener.listen()
        connection, _ = listener.accept()
        while not waiting.done():
            oracles.interrupt()
        with connection, pytest.raises(ChildDied, match="oracle child"):
            waiting.result()
        waiting = pool.submit(oracles.spawn)
        connection, _ = listener.accept()
        Channel(connection).send(GREETING)
        waiting.result().close()
        connection.close()


@pytest.mark.slow
def test_a_connection_that_a_dying_host_did_not_take_is_made_again_to_the_next(zygote: Zygote, tmp_path: Path) -> None:
    """A process that is killed closes the connections that it has before the socket at which it listens."""
    address = tmp_path / "socket"
    with ThreadPoolExecutor() as pool:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as dying:
            dying.bind(str(address))
            dying.listen()
            opening = pool.submit(Oracle, SharedOracles(address), axpy_task())
            select.select([dying], [], [])
        address.unlink()
        with serving(address, zygote) as host, opening.result() as oracle:
            assert oracle.facts().task_digest == axpy_task().digest
            assert len(host._tasks) == 1


@pytest.mark.slow
@pytest.mark.parametrize("shared", [True, False])
def test_an_evaluation_after_the_end_of_its_oracle_has_a_new_one_and_does_not_fail(
    shared: bool, zygote: Zygote, workshop: EvaluatorPool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each warm task of each worker has a connection to the host, and all of them end with it."""
    address = tmp_path / "socket"
    monkeypatch.setattr(workshop, "_oracle_zygotes", {})
    with ExitStack() as stack:
        if shared:
            monkeypatch.setattr(workshop, "_oracle_host", address)
            first = stack.enter_context(ExitStack())
            first.enter_context(serving(address, zygote))
        evaluator = workshop.evaluator(axpy_task())
        stack.callback(evaluator.close)
        for sizes in ("all", "train"):
            assert evaluated(evaluator, sizes) is Verdict.OK
            before = evaluator.oracle.children
            if shared:
                first.close()
                address.unlink()
                first.enter_context(serving(address, zygote))
            else:
                os.kill(evaluator.oracle._child.pid, signal.SIGKILL)
                evaluator.oracle._child.channel.has_data(60.0)
            assert evaluated(evaluator, sizes) is Verdict.OK
            assert evaluator.oracle.children == before + 1


def evaluated(evaluator: Any, sizes: str) -> Verdict:
    candidate = Candidate(source=KERNEL, plan=PLAN)
    verdict: Verdict = evaluator.evaluate(candidate, seed=5, sizes=sizes).evaluation.verdict
    return verdict


def judged(pool: EvaluatorPool, source: str) -> dict[str, Any]:
    evaluator = pool.evaluator(axpy_task())
    try:
        evaluation = evaluator.evaluate(Candidate(source=source, plan=PLAN), seed=5).evaluation
        # Without how long it took, and which part came from a cache.
        return evaluation.model_dump(exclude={"seconds": True, "build": True})
    finally:
        evaluator.close()


@pytest.mark.slow
@pytest.mark.parametrize("sizes", ["all", "train"])
def test_the_same_seed_gives_the_same_evaluation_with_and_without_sharing(
    sizes: str, host: OracleHost, workshop: EvaluatorPool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workshop, "settings", MeasureSettings(sizes=sizes))  # type: ignore[arg-type]
    alone = [judged(workshop, source) for source in (KERNEL, WRONG)]
    monkeypatch.setattr(workshop, "_oracle_host", tmp_path / "socket")
    monkeypatch.setattr(workshop, "_oracle_zygotes", {})
    monkeypatch.setattr(workshop, "known_tasks", type(workshop.known_tasks)())
    assert [judged(workshop, source) for source in (KERNEL, WRONG)] == alone
    assert [evaluation["verdict"] for evaluation in alone] == [Verdict.OK, Verdict.WRONG]
    assert host._tasks


class GpuSlot(EvaluatorPool):
    """A slot on a software GPU. The oracle that would be on its GPU runs on the CPU, alone as there."""

    own: Zygote

    def oracle(self, task: Task, device: Device | None = None, cached: OracleFacts | None = None) -> Oracle:
        if device is not None and device.kind == "emulated":
            return super().oracle(task, device, cached)
        return Oracle(self.own, task, cached=cached)


@pytest.mark.slow
@pytest.mark.usefixtures("own_leases")
def test_slots_on_gpus_share_the_oracles_of_the_emulated_device_in_front_and_no_other(
    host: OracleHost, zygote: Zygote, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(GpuSlot, "own", zygote, raising=False)
    mains = set[int]()
    for number in range(2):
        with GpuSlot("", opened=[Gpu(number)], cache=tmp_path, oracles=tmp_path / "socket") as slot:
            evaluator = slot.evaluator(axpy_task())
            assert not host._tasks or number, "the one of the GPU is its own"
            assert evaluator.screen is not None
            with evaluator.screen._open_oracle() as oracle:
                oracle.facts()
                assert not compared(oracle, oracle.draw("small", "task", 1)).ok
                mains.add(id(state_of(host).main))
            evaluator.close()
    assert len(mains) == 1
