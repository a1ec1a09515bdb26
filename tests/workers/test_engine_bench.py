"""A bench: which oracles it keeps, and what an interrupt does to a call."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest

from kernelforge.errors import EvaluationCancelled
from kernelforge.records import Verdict
from kernelforge.workers.roles import CancellableCall, DeviceWorker, WorkerSettings
from tests.workers.engine_orders import order, slow_run


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory, open_warm: Callable[..., DeviceWorker]) -> Iterator[DeviceWorker]:
    builds = tmp_path_factory.mktemp("builds")
    settings = WorkerSettings(role="device", device="emulated:h100", warm_tasks=2, warm_bytes=64 << 20, cache=builds)
    with closing(open_warm(DeviceWorker, settings)) as bench:
        yield bench


@pytest.mark.slow
def test_the_oracles_of_the_last_tasks_are_kept(bench: DeviceWorker) -> None:
    tasks = [order(rows=rows) for rows in (64, 65, 66)]
    for task in tasks:
        report = bench.evaluate(task)
        assert report.evaluation.verdict is Verdict.OK
    assert bench.cached_tasks == {task.task.digest for task in tasks[1:]}
    repeated = bench.evaluate(tasks[0]).evaluation
    assert repeated.verdict is Verdict.OK
    assert bench.cached_tasks == {tasks[0].task.digest, tasks[2].task.digest}


@pytest.mark.slow
def test_oracles_that_hold_too_much_are_closed(bench: DeviceWorker) -> None:
    small, large = order(), order(rows=1 << 16)
    bench.evaluate(small)
    report = bench.evaluate(large)
    assert report.evaluation.verdict is Verdict.OK
    assert bench.cached_tasks == frozenset(), (
        "the large one alone holds more than they all may, and goes after the others"
    )


@pytest.mark.slow
def test_an_interrupt_ends_the_call_in_progress_and_no_other(bench: DeviceWorker) -> None:
    assert not bench.interrupt(), "there is no call"
    begun = threading.Event()

    def interrupt() -> None:
        begun.wait()
        time.sleep(1.0)
        while not bench.interrupt():
            time.sleep(0.01)

    thread = threading.Thread(target=interrupt)
    thread.start()
    begun.set()
    with pytest.raises(EvaluationCancelled):
        bench.evaluate(slow_run())
    thread.join()
    assert not bench.interrupt()
    after = bench.evaluate(order()).evaluation
    assert after.verdict is Verdict.OK


def test_a_call_that_waits_for_its_oracle_is_ended_there_in_the_end() -> None:
    ended = threading.Event()
    requests: list[bool] = []

    def end(oracles: bool) -> None:
        requests.append(oracles)
        if oracles:
            ended.set()

    cancellable = CancellableCall(end)

    def call() -> None:
        with cancellable.call():
            assert cancellable.interrupt()
            assert ended.wait(30)

    with pytest.raises(EvaluationCancelled):
        call()
    assert requests[0] is False
    assert not cancellable.interrupt()
