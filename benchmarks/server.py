"""Measure the reward server: answers from the cache, evaluations, what the server adds to them, what kills do to it.

    python benchmarks/server.py [--part cached] [--part limit] [--part bursts] [--part uncached] [--part suites]
                                [--part equal] [--part load] [--shape 0.1] [--trace FILE.csv] [--rate 500]
                                [--seconds 20] [--evaluations 100] [--real-size 24] [--requests 20000]
                                [--distinct 2200] [--seed 1] [--ray HOST:PORT]

One real ``kernelforge serve`` on the emulated device per part, on a port of 127.0.0.1; the load comes from this
process, which shares the machine's cores with it. Peers in the same run: a bare FastAPI route, an evaluator without a
server, and a process that imports torch. Part ``limit`` raises the rate until one server falls behind. Part ``bursts``
compares even arrivals with those of a gamma distribution and, with ``--trace``, of a file in the format of BurstGPT
(arXiv:2401.17644), at the same mean rate. Part ``suites`` judges tasks of real sizes completely and by ``--sizes
train``, part ``equal`` candidates that share an evaluation; with ``--ray``, part ``suites`` does so on a Ray cluster
whose one node besides the head is on this machine.
Exits with 1 if a job is lost, ends twice, or is scored as what it is not, or where ``--sizes train`` misses its target.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.server_parts.arrivals import even_arrivals, gamma_arrivals, trace_arrivals
from benchmarks.server_parts.load import Load
from benchmarks.server_parts.place import RELU, SOFTMAX, real_size_reply, renamed_reply, serving
from benchmarks.server_parts.rates import bare, cached, direct, one_by_one, real_size, restarts, side_by_side

AT_ONCE, SLOTS = 8, 2
RATES = (250.0, 500.0, 750.0, 1000.0, 1250.0, 1500.0, 2000.0, 3000.0)
LATE_MS = 250.0
"""An open-loop p99 above it means that the queue grows."""
TARGETS = {RELU: 2.0, SOFTMAX: 3.0}
"""Evaluations per second on two cores that do nothing else."""
TARGET_BYTES = 2_000_000_000
"""Most memory of a slot, with its share of the compile workers."""


def part_cached(options: argparse.Namespace) -> bool:
    with serving("--slots", "1") as server:
        served = asyncio.run(cached(server, even_arrivals(options.rate, options.seconds), options.rate))
    peer = asyncio.run(bare(options.rate, options.seconds))
    print(f"cached: {options.rate:g} rewards/s offered for {options.seconds:g} s, open loop")
    for name, side in (("kernelforge", served), ("bare FastAPI route", peer)):
        print(
            f"  {name:<20} {side['requests']:.0f} answered, {side['wrong']:.0f} wrong; p50 {side['p50_ms']:.1f} ms, "
            f"p99 {side['p99_ms']:.1f} ms, worst {side['max_ms']:.0f} ms; {side['cpu_us']:.0f} us of a core each"
        )
    print(f"  ratio of processor time to the bare route: {served['cpu_us'] / peer['cpu_us']:.2f}")
    return served["wrong"] == 0


def part_limit(options: argparse.Namespace) -> bool:
    print(f"limit: cached rewards, each a durable job, offered for {options.seconds:g} s at rising rates")
    kept_up: float | None = None
    with serving("--slots", "1") as server:
        for rate in RATES:
            side = asyncio.run(cached(server, even_arrivals(rate, options.seconds), rate))
            cores = side["cpu_us"] * rate / 1e6
            print(
                f"  {rate:>5g}/s  p50 {side['p50_ms']:.1f} ms, p99 {side['p99_ms']:.1f} ms, "
                f"worst {side['max_ms']:.0f} ms; {side['cpu_us']:.0f} us each, {cores:.0%} of a core"
            )
            if side["wrong"] or side["p99_ms"] > LATE_MS:
                break
            kept_up = rate
    print(f"  one server keeps up with {kept_up or 0:g} rewards a second: its p99 is below {LATE_MS:g} ms")
    return kept_up is not None


def part_bursts(options: argparse.Namespace) -> bool:
    rate, seconds = options.rate, options.seconds
    arrivals = {
        "even": even_arrivals(rate, seconds),
        f"gamma, shape {options.shape:g}": gamma_arrivals(rate, seconds, options.shape, options.seed),
    }
    if options.trace:
        arrivals[options.trace.name] = trace_arrivals(options.trace, rate, seconds)
    print(f"bursts: cached rewards, {rate:g} a second on average for {seconds:g} s")
    wrong = 0.0
    with serving("--slots", "1") as server:
        for name, moments in arrivals.items():
            busiest = max(Counter(int(moment * 10) for moment in moments).values())
            side = asyncio.run(cached(server, moments, rate))
            wrong += side["wrong"]
            print(
                f"  {name:<20} at most {busiest} in 0.1 s; {side['requests']:.0f} answered, {side['wrong']:.0f} wrong; "
                f"p50 {side['p50_ms']:.1f} ms, p99 {side['p99_ms']:.1f} ms, worst {side['max_ms']:.0f} ms"
            )
    return wrong == 0


def part_uncached(options: argparse.Namespace) -> bool:
    count = options.evaluations
    with serving("--slots", "1") as server:
        alone = asyncio.run(one_by_one(server, count, first=0))
        peer = direct(count, 1_000_000, server)
    with serving("--slots", "2") as server:
        both = asyncio.run(side_by_side(server, 2 * count, 2_000_000, AT_ONCE))
    restart_s = restarts(5)
    print(f"uncached: {count} small elementwise kernels that were never compiled before")
    print(
        f"  one at a time        {alone['mean_ms']:.0f} ms each, of which {alone['ours_ms']:.0f} ms (median; p99 "
        f"{alone['ours_p99_ms']:.0f} ms; {alone['ours_share']:.0%}) neither compiler, oracle nor device"
    )
    print(
        f"  {AT_ONCE} waiting, 2 slots   {both['per_s']:.1f}/s, p50 {both['p50_ms']:.0f} ms, "
        f"p99 {both['p99_ms']:.0f} ms"
    )
    print(
        f"  evaluator, no server {peer:.1f}/s; one at a time through the server "
        f"{1e3 / alone['mean_ms'] / peer:.2f} of that, with two slots {both['per_s'] / peer:.2f}"
    )
    print(
        f"  a process that imports torch, which KernelGYM's design takes per task: {restart_s * 1e3:.0f} ms "
        f"({restart_s * 1e3 / alone['ours_ms']:.1f} times what is ours), without its sleep of 2 s"
    )
    return True


def part_suites(options: argparse.Namespace) -> bool:
    print(f"suites: {options.real_size} new kernels of each task, {AT_ONCE} waiting, {SLOTS} slots")
    met = True
    ray = ["--engine", "ray", "--address", options.ray] if options.ray else []
    for task, target in TARGETS.items():
        measured: dict[str, dict[str, float]] = {}
        for sizes in ("all", "train"):
            with serving("--slots", str(SLOTS), "--sizes", sizes, *ray) as server:
                got = asyncio.run(real_size(server, task, options.real_size, AT_ONCE))
            measured[sizes] = got
            print(
                f"  {task:<14} --sizes {sizes:<6} {got['per_s']:.2f}/s (target {target:g}), peak "
                f"{got['peak_bytes'] / SLOTS / 1e9:.2f} GB a slot (target {TARGET_BYTES / 1e9:g}), "
                f"{got['cpu_s']:.2f} s of a core each, with those of the start; load "
                f"{os.getloadavg()[0]:.1f}",
                flush=True,
            )
        train = measured["train"]
        met = met and train["per_s"] >= target and train["peak_bytes"] <= SLOTS * TARGET_BYTES
        print(f"  {task:<14} train over all: {train['per_s'] / measured['all']['per_s']:.1f}")
    return met


def part_equal(options: argparse.Namespace) -> bool:
    rates: dict[str, float] = {}
    for name, text in (("code of its own", real_size_reply), ("a comment and a name of its own", renamed_reply)):
        with serving("--slots", str(SLOTS)) as server:
            rates[name] = asyncio.run(real_size(server, SOFTMAX, options.real_size, AT_ONCE, text))["per_s"]
    own, shared = rates.values()
    print(f"equal: {options.real_size} candidates for {SOFTMAX}, {AT_ONCE} waiting, {SLOTS} slots")
    for name, rate in rates.items():
        print(f"  each has {name:<32} {rate:.2f}/s")
    print(f"  ratio {shared / own:.1f}")
    return shared > own


def part_load(options: argparse.Namespace) -> bool:
    begin = time.perf_counter()
    with serving("--slots", "2", "--run-limit", "2", "--compile-limit", "5", "--queue", "30000") as server:
        load = Load(server, options.requests, options.distinct, options.seed)
        asyncio.run(load.run(options.kills, options.restarts))
    ledger, seconds = load.ledger, time.perf_counter() - begin
    ended = Counter(result["outcome"] for result in ledger.seen.values())
    hostile = sum(kind.hostile for kind in ledger.accepted.values())
    mistakes = ledger.mistakes()
    print(
        f"load: {len(load.work)} requests of {load.distinct} distinct completions in {seconds:.0f} s, {options.kills} "
        f"workers and {options.restarts} gateways killed"
    )
    print(
        f"  accepted {len(ledger.accepted)} (hostile {hostile}), refused {dict(ledger.refused)}, "
        f"asked again {ledger.retried}"
    )
    print(
        f"  ended {dict(ended)}; lost {load.lost}; with two different results {len(ledger.changed)}; "
        f"scored by mistake {len(mistakes)}"
    )
    kinds = Counter(
        (ledger.accepted[job].name, result["verdict"] or result["outcome"]) for job, result in ledger.seen.items()
    )
    for (name, verdict), count in sorted(kinds.items()):
        print(f"    {name:<24} {verdict:<12} {count}")
    for line in mistakes[:10]:
        print(f"  MISTAKE {line}")
    return not (load.lost or ledger.changed or mistakes)


PARTS = {
    "cached": part_cached,
    "limit": part_limit,
    "bursts": part_bursts,
    "uncached": part_uncached,
    "suites": part_suites,
    "equal": part_equal,
    "load": part_load,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", action="append", choices=PARTS, help="only this part; repeat for more")
    parser.add_argument("--rate", type=float, default=500.0, help="cached rewards offered per second")
    parser.add_argument("--seconds", type=float, default=20.0, help="how long they are offered")
    parser.add_argument("--shape", type=float, default=0.1, help="of the gamma distribution of part bursts' gaps")
    parser.add_argument("--trace", type=Path, metavar="FILE.csv", help="part bursts replays BurstGPT's trace, too")
    parser.add_argument("--evaluations", type=int, default=100, help="kernels of part uncached")
    parser.add_argument("--real-size", type=int, default=24, help="kernels of each task of part suites")
    parser.add_argument("--requests", type=int, default=20_000, help="requests of part load")
    parser.add_argument("--distinct", type=int, default=2_200, help="distinct completions among them, about")
    parser.add_argument("--kills", type=int, default=5, help="workers killed")
    parser.add_argument("--restarts", type=int, default=2, help="times the gateway is killed")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--ray", metavar="HOST:PORT", help="part suites is served by this Ray cluster")
    options = parser.parse_args()
    results = [PARTS[name](options) for name in options.part or PARTS]
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
