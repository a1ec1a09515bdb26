"""Answers from the cache under an open loop, and evaluations that were never made before."""

from __future__ import annotations

import asyncio
import multiprocessing
import socket
import statistics
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from benchmarks.server_parts.arrivals import even_arrivals
from benchmarks.server_parts.http import Connections
from benchmarks.server_parts.place import TASK_NAME, Server, cpu_s_of, real_size_reply, reply
from kernelforge.client.models import JobRequest, RewardResult

DISTINCT = 32
"""Candidates of the cached part; every completion is one of them in other prose, or the same to the letter."""


def percentile(values: Sequence[float], share: float) -> float:
    return sorted(values)[min(int(len(values) * share), len(values) - 1)]


async def open_loop(send: Callable[[int], Awaitable[bool]], arrivals: Sequence[float]) -> tuple[list[float], int]:
    """Send at these moments, without waiting for answers; latencies in ms from each due time, and the errors."""
    latencies: list[float] = []
    wrong = 0
    begin = time.perf_counter() + 0.1

    async def send_when_due(number: int) -> None:
        nonlocal wrong
        due = begin + arrivals[number]
        await asyncio.sleep(due - time.perf_counter())
        try:
            right = await send(number)
        except OSError:
            right = False
        wrong += not right
        latencies.append((time.perf_counter() - due) * 1e3)

    async with asyncio.TaskGroup() as group:
        for number in range(len(arrivals)):
            group.create_task(send_when_due(number))
    return latencies, wrong


def job(number: int, **rest: Any) -> dict[str, Any]:
    return {"task": TASK_NAME, "completion": reply(number), **rest}


async def cached(server: Server, arrivals: Sequence[float], rate: float) -> dict[str, float]:
    """Rewards at these moments, in s, ``rate`` a second on average, for completions that were evaluated before."""
    connections = Connections(server.port)
    for number in range(DISTINCT):
        answer = await connections.post("/v1/rewards", job(number))
        assert answer.json()["result"]["reward"], answer.body

    async def send(number: int) -> bool:
        prose = f"Attempt {number % 7}." if number % 2 else ""
        data = {"task": TASK_NAME, "completion": reply(number % DISTINCT, prose=prose), "run_id": f"run-{number % 3}"}
        answer = await connections.post("/v1/rewards", data)
        return answer.status == 200 and bool(answer.json()["result"]["cached"])

    await open_loop(send, even_arrivals(rate, 1.0))
    before = server.cpu_s()
    latencies, wrong = await open_loop(send, arrivals)
    await connections.close()
    return figures(latencies, wrong, server.cpu_s() - before)


def figures(latencies: list[float], wrong: int, cpu_s: float) -> dict[str, float]:
    return {
        "requests": len(latencies),
        "wrong": wrong,
        "p50_ms": percentile(latencies, 0.5),
        "p99_ms": percentile(latencies, 0.99),
        "max_ms": max(latencies),
        "cpu_us": cpu_s / len(latencies) * 1e6,
    }


async def bare(rate: float, seconds: float) -> dict[str, float]:
    """The peer: a FastAPI route that reads the same body and gives a constant, under the same load."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        port = listener.getsockname()[1]
        process = multiprocessing.get_context("fork").Process(target=_bare_server, args=(listener,), daemon=True)
        process.start()
    assert process.pid is not None
    connections = Connections(port)
    for _ in range(200):
        try:
            await connections.post("/reward", job(0))
            break
        except OSError:
            await asyncio.sleep(0.05)

    async def send(number: int) -> bool:
        return (await connections.post("/reward", job(number % DISTINCT))).status == 200

    await open_loop(send, even_arrivals(rate, 1.0))
    before = cpu_s_of(process.pid)
    latencies, wrong = await open_loop(send, even_arrivals(rate, seconds))
    measured = figures(latencies, wrong, cpu_s_of(process.pid) - before)
    await connections.close()
    process.terminate()
    return measured


def _bare_server(listener: socket.socket) -> None:
    import uvicorn
    from fastapi import FastAPI

    app = FastAPI()

    @app.post("/reward")
    async def reward(request: JobRequest) -> RewardResult:
        return RewardResult(outcome="scored", reward=0.3)

    asyncio.run(uvicorn.Server(uvicorn.Config(app, log_level="error", access_log=False)).serve(sockets=[listener]))


async def one_by_one(server: Server, count: int, first: int) -> dict[str, float]:
    """Candidates never seen before, one at a time: what each takes, and what of it is no compiler, oracle or device."""
    connections = Connections(server.port)
    await connections.post("/v1/rewards", job(first))
    spent, added = [], []
    for number in range(first + 1, first + 1 + count):
        begin = time.perf_counter()
        result = (await connections.post("/v1/rewards", job(number))).json()["result"]
        spent.append(time.perf_counter() - begin)
        added.append(spent[-1] - result["components"]["cost"])
        assert result["components"]["correct"] == 1, result
    await connections.close()
    return {
        "mean_ms": statistics.mean(spent) * 1e3,
        "ours_ms": statistics.median(added) * 1e3,
        "ours_p99_ms": percentile(added, 0.99) * 1e3,
        "ours_share": sum(added) / sum(spent),
    }


async def side_by_side(server: Server, count: int, first: int, at_once: int) -> dict[str, float]:
    """The same with ``at_once`` of them waiting at any time."""
    connections = Connections(server.port)
    numbers = iter(range(first, first + count))
    latencies: list[float] = []

    async def client() -> None:
        for number in numbers:
            begin = time.perf_counter()
            answer = await connections.post("/v1/rewards", job(number))
            assert answer.json()["result"]["components"]["correct"] == 1, answer.body
            latencies.append((time.perf_counter() - begin) * 1e3)

    begin = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(at_once)))
    seconds = time.perf_counter() - begin
    await connections.close()
    return {"per_s": count / seconds, "p50_ms": percentile(latencies, 0.5), "p99_ms": percentile(latencies, 0.99)}


async def real_size(
    server: Server, task: str, count: int, at_once: int, text: Callable[[str, int], str] = real_size_reply
) -> dict[str, float]:
    """New kernels for a task of a real size, ``at_once`` of them waiting; one each before them warms the slots."""
    connections = Connections(server.port)
    numbers = iter(range(at_once, at_once + count))
    most, ended = 0, asyncio.Event()

    async def judge(number: int) -> None:
        answer = await connections.post("/v1/rewards", {"task": task, "completion": text(task, number)})
        assert answer.json()["result"]["components"]["correct"] == 1, answer.body

    async def client() -> None:
        for number in numbers:
            await judge(number)

    async def watch() -> None:
        nonlocal most
        while not ended.is_set():
            most = max(most, await asyncio.to_thread(server.workers_bytes))
            await asyncio.sleep(0.5)

    watching = asyncio.create_task(watch())
    await asyncio.gather(*map(judge, range(at_once)))
    begin = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(at_once)))
    seconds = time.perf_counter() - begin
    ended.set()
    await watching
    await connections.close()
    cpu_s = server.workers_cpu_s() / (at_once + count)
    return {"per_s": count / seconds, "peak_bytes": most, "cpu_s": cpu_s}


def direct(count: int, first: int, server: Server) -> float:
    """The peer: evaluations a second of one evaluator in this process, with no server around it."""
    from kernelforge.candidate import parse_reply
    from kernelforge.evaluation.pool import EvaluatorPool
    from kernelforge.tasks import load_suite

    task = load_suite(str(server.suite)).task("axpy")
    with EvaluatorPool("emulated:h100") as workshop:
        evaluator = workshop.evaluator(task)
        try:
            evaluator.evaluate(parse_reply(reply(first)), seed=1, profile=False)
            begin = time.perf_counter()
            for number in range(first + 1, first + 1 + count):
                evaluator.evaluate(parse_reply(reply(number)), seed=number, profile=False)
            return count / (time.perf_counter() - begin)
        finally:
            evaluator.oracle.close()


def restarts(count: int) -> float:
    """Least overhead of KernelGYM's design per evaluation, in seconds: a process that imports torch.

    Its fixed sleep of two seconds after each is not counted.
    """
    import subprocess
    import sys

    begin = time.perf_counter()
    for _ in range(count):
        subprocess.run([sys.executable, "-c", "import torch"], check=True)
    return (time.perf_counter() - begin) / count
