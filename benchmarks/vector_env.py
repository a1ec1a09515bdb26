"""Measure asynchronous training against one real server on the emulated device: environments, gathering, staleness.

    python benchmarks/vector_env.py [--part vector] [--part gather] [--part staleness] [--environments 4] [--steps 48]

``vector``: a vector environment over one server with a slot per environment, against one process per environment: as
many servers with one slot and one session each. Every reply has to be compiled. The two take turns, twice. ``gather``:
the first 16 of 24 sessions, with the others continued in the next step, against 16 of 16. ``staleness``: eight
generators and a trainer that takes batches of eight from the experience stream, under bounds of staleness. In these two
the policy is a sleep with a log-normal duration (median 0.5 s, sigma 1), and evaluations come from the cache. Exits
with 1 if the vector environment has fewer steps per second, or per second and byte of memory, than its peer, if the
gathering is slower than its own, or if a job beyond the bound is admitted.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys
import time
from pathlib import Path
from random import Random
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.server_parts.place import TASK_NAME, reply, serving
from kernelforge.client import AsyncClient
from kernelforge.client.async_client import AsyncConversation
from kernelforge.client.environments import VectorEnvironment, gather_sessions

MEDIAN_S = 0.5
WANTED, BEGUN, ROUNDS = 16, 24, 4


def url(port: int) -> str:
    return f"http://127.0.0.1:{port}"


async def steps_of_vector(port: int, environments: int, steps: int, batch: int, first: int) -> float:
    """Seconds of ``steps`` steps, after one of each environment that is not counted."""
    async with AsyncClient(url(port)) as client:
        vector = VectorEnvironment(client, [TASK_NAME], environments, turns=4)
        numbers = iter(range(first, first + steps + 2 * environments))
        ready = await vector.step({step.environment: reply(next(numbers)) for step in await vector.reset()})
        begun, count = time.perf_counter(), 0
        vector.send({step.environment: reply(next(numbers)) for step in ready})
        while count < steps:
            ready = await vector.recv(min(batch, steps - count))
            count += len(ready)
            if count < steps:
                vector.send({step.environment: reply(next(numbers)) for step in ready})
        elapsed = time.perf_counter() - begun
        await vector.close()
    return elapsed


class Measured(NamedTuple):
    rate: float
    """Steps per second."""
    start_s: float
    memory_bytes: int


def vector(count: int, steps: int, first: int) -> Measured:
    """A vector environment over one server."""
    begun = time.perf_counter()
    with serving("--slots", str(count)) as server:
        start_s = time.perf_counter() - begun
        seconds = asyncio.run(steps_of_vector(server.port, count, steps, max(count // 4, 1), first))
        return Measured(steps / seconds, start_s, server.workers_bytes())


def processes(count: int, steps: int, first: int) -> Measured:
    """One server with one slot per environment."""
    begun = time.perf_counter()
    with contextlib.ExitStack() as stack:
        servers = [stack.enter_context(serving("--slots", "1")) for _ in range(count)]
        start_s, each = time.perf_counter() - begun, steps // count

        async def all_of_them() -> list[float]:
            return await asyncio.gather(
                *(steps_of_vector(peer.port, 1, each, 1, first + 1_000 * (n + 1)) for n, peer in enumerate(servers))
            )

        seconds = max(asyncio.run(all_of_them()))
        return Measured(count * each / seconds, start_s, sum(peer.workers_bytes() for peer in servers))


def part_vector(options: argparse.Namespace) -> bool:
    count, steps = options.environments, options.steps
    print(f"vector: {count} environments, {steps} steps, every reply compiled")
    ratios, per_memory = [], []
    for turn in range(2):
        single, peer = (measure(count, steps, 100_000 * turn) for measure in (vector, processes))
        for name, measured in (("one server, vector environment", single), ("one process per environment", peer)):
            rate, start_s, memory = measured
            print(f"  {name:<32}{rate:.1f} steps/s, started in {start_s:.0f} s, {memory / 1e9:.1f} GB", flush=True)
        ratios.append(single.rate / peer.rate)
        per_memory.append(ratios[-1] * peer.memory_bytes / single.memory_bytes)
    words = [" and ".join(f"{value:.2f}" for value in values) for values in (ratios, per_memory)]
    print(f"  ratio of rates: {words[0]}; of rates per memory: {words[1]}")
    return min(ratios) >= 1 and min(per_memory) > 1


class Policy:
    """A policy whose replies take a while; a reply that is cancelled is continued where it was."""

    def __init__(self, seed: int) -> None:
        self._draw = Random(seed)
        self._remaining_s: dict[tuple[str, int], float] = {}

    async def __call__(self, conversation: AsyncConversation) -> str:
        key = (conversation.id, len(conversation.turns))
        remaining_s = self._remaining_s.setdefault(key, MEDIAN_S * self._draw.lognormvariate(0, 1))
        begun = time.perf_counter()
        try:
            await asyncio.sleep(max(remaining_s, 0.0))
        finally:
            self._remaining_s[key] -= time.perf_counter() - begun
        return reply(1)


async def rounds(port: int, begun: int, needed: int, seed: int) -> float:
    """Finished sessions per second of some steps that each need ``needed``."""
    policy, done = Policy(seed), 0
    partial: list[AsyncConversation] = []
    async with AsyncClient(url(port)) as client:
        since = time.perf_counter()
        for _ in range(ROUNDS):
            fresh = [await client.session(TASK_NAME, turns=2) for _ in range(begun - len(partial))]
            gathered = await gather_sessions([*partial, *fresh], policy, needed)
            partial = gathered.partial
            done += len(gathered.done)
        return done / (time.perf_counter() - since)


def part_gather(options: argparse.Namespace) -> bool:
    with serving("--slots", "1") as server:
        asyncio.run(rounds(server.port, 1, 1, 0))  # so that the evaluation is in the cache
        gathered, waited = [], []
        for seed in (1, 2, 3):
            waited.append(asyncio.run(rounds(server.port, WANTED, WANTED, seed)))
            gathered.append(asyncio.run(rounds(server.port, BEGUN, WANTED, seed)))
    ratios = [first / second for first, second in zip(gathered, waited, strict=True)]
    print(f"gather: {ROUNDS} steps of {WANTED} sessions of two turns, three seeds, {BEGUN - WANTED} left at the end")
    print(f"  all of {WANTED}            {sum(waited) / 3:.2f} sessions/s")
    print(f"  the first {WANTED} of {BEGUN}   {sum(gathered) / 3:.2f} sessions/s")
    print(f"  ratio of rates: {sum(ratios) / 3:.2f} ({min(ratios):.2f} to {max(ratios):.2f})")
    return sum(ratios) / 3 > 1


async def bounded(port: int, most: int, batches: int) -> tuple[dict[int, int], int]:
    """Lags of admitted jobs, and the number refused, while a trainer uses some batches."""
    run, draw = f"bound-{most}", Random(7)
    async with AsyncClient(url(port)) as client:
        version = 0
        await client.set_run(run, policy_version=0, max_staleness=most)

        async def generate() -> None:
            while True:
                written_by = version
                await asyncio.sleep(MEDIAN_S * draw.lognormvariate(0, 1))
                await client.score(TASK_NAME, reply(1), run_id=run, policy_version=written_by)

        generators = [asyncio.create_task(generate()) for _ in range(8)]
        taken = 0
        while version < batches:
            claim = await client.claim(run, 8 - taken, wait_s=1)
            await client.acknowledge(claim)
            taken += len(claim.experiences)
            if taken == 8:
                taken, version = 0, version + 1
                await client.set_run(run, policy_version=version)
        for generator in generators:
            generator.cancel()
        await asyncio.gather(*generators, return_exceptions=True)
        [status] = [each for each in await client.runs() if each.run_id == run]
    return status.lags, status.refused.get("stale", 0)


def part_staleness(options: argparse.Namespace) -> bool:
    right = True
    print("staleness: eight generators, a trainer with batches of eight")
    with serving("--slots", "1") as server:
        for most in (0, 1, 2, 4):
            lags, refused = asyncio.run(bounded(server.port, most, 12))
            right &= max(lags, default=0) <= most
            counts = ", ".join(f"{lag}: {count}" for lag, count in sorted(lags.items()))
            print(f"  bound {most}: {sum(lags.values())} admitted (by lag {counts}), {refused} refused")
    return right


def main() -> None:
    """Run the parts."""
    parts = {"vector": part_vector, "gather": part_gather, "staleness": part_staleness}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", action="append", choices=parts, help="default: all")
    parser.add_argument("--environments", type=int, default=4)
    parser.add_argument("--steps", type=int, default=48)
    options = parser.parse_args()
    results = [parts[name](options) for name in options.part or parts]
    sys.exit(0 if all(results) else 1)


if __name__ == "__main__":
    main()
