"""Cost of `--device ssh://`: evaluations at the other end of a connection against those here, and what cuts lose.

    PYTHONPATH=. python benchmarks/ssh.py [--pairs N] [--cuts N] [--json]

A real ``sshd`` on loopback, with keys and a home of its own, is the other machine; it has an emulated device
(``apt-get install openssh-server``). Part one evaluates the built-in Coder's kernel for ``core/swish`` by turns here
and there, each time with another comment, so that nothing is remembered. Part two cuts the connection during
evaluations, at moments drawn from a seed, by killing the client. Each has to end as here: verdict, counters and
modelled time.

Exits with 1 where an evaluation there ends otherwise, or a process is left there.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import statistics
import sys
import tempfile
import threading
import time
from contextlib import closing
from pathlib import Path
from typing import Any

from kernelforge.agents.builtin.coder import write
from kernelforge.agents.builtin.design import Design
from kernelforge.evaluation.remote.machines import open_pool
from kernelforge.records import Candidate, Verdict
from kernelforge.run.task_loop import make_task_context
from kernelforge.tasks import load_task
from tests.support.ssh_host import SSHD, openssh_server, ssh_clients
from tests.workers.engine_orders import family_of, running

TASK, DEVICE = "core/swish", "emulated:h100"


def outcome(evaluator: Any, candidate: Candidate) -> tuple[dict[str, Any], float]:
    """Evaluate: the result without its own times, and the seconds that it took."""
    start = time.perf_counter()
    result = evaluator.evaluate(candidate, seed=1)
    seconds = time.perf_counter() - start
    assert result.evaluation.verdict is Verdict.OK, result.evaluation.reason
    apart: Any = {"seconds": True, "build": {"seconds", "cached"}}
    plain = result.evaluation.model_dump(mode="json", exclude=apart)
    return plain | {"profile": result.profile.model_dump(mode="json")}, seconds


def cut() -> int:
    """Kill the clients of this process; the number of them."""
    clients = ssh_clients()
    for pid in clients:
        os.kill(pid, signal.SIGKILL)
    return len(clients)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--pairs", type=int, default=12, help="evaluations here and there that are compared")
    parser.add_argument("--cuts", type=int, default=20, help="evaluations during which the connection is cut")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if SSHD is None:
        parser.error("there is no sshd: apt-get install openssh-server")
    task = load_task(TASK)
    draw = random.Random(1)
    with tempfile.TemporaryDirectory() as name, openssh_server(Path(name), DEVICE) as (url, server):
        own = family_of(server)
        with closing(open_pool(DEVICE)) as here, closing(open_pool(url)) as there:
            near, far = here.evaluator(task), there.evaluator(task)
            written = write(make_task_context(near), Design(()))

            def candidate(number: int) -> Candidate:
                return Candidate(source=f"{written.source}\n// {number}\n", plan=written.plan)

            def pair(number: int) -> tuple[float, float]:
                sides = [near, far] if number % 2 else [far, near]
                results = {id(side): outcome(side, candidate(number)) for side in sides}
                equal.append(results[id(near)][0] == results[id(far)][0])
                return results[id(near)][1], results[id(far)][1]

            equal: list[bool] = []
            pair(-1)
            pairs = [pair(number) for number in range(options.pairs)]
            usual = statistics.median(seconds for _, seconds in pairs)
            cuts, after = 0, list[float]()
            for number in range(options.pairs, options.pairs + 2 * options.cuts):
                if cuts >= options.cuts:
                    break  # between two connections there is no client to kill
                expected, _ = outcome(near, candidate(number))
                killed: list[int] = []
                timer = threading.Timer(draw.uniform(0, 0.9) * usual, lambda into=killed: into.append(cut()))
                timer.start()
                result, seconds = outcome(far, candidate(number))
                timer.join()
                cuts += sum(killed)
                equal.append(result == expected)
                after.append(seconds)
            near.close()
            far.close()
        survivors = len(running(family_of(server) - own))
    row = {
        "here_ms": statistics.median(1e3 * seconds for seconds, _ in pairs),
        "there_ms": 1e3 * usual,
        "ratio": statistics.median(far_s / near_s for near_s, far_s in pairs),
        "added_ms": sorted(round(1e3 * (far_s - near_s), 1) for near_s, far_s in pairs),
        "cuts": cuts,
        "equal": sum(equal),
        "evaluations": len(equal),
        "seconds_with_a_cut": statistics.median(after) if after else None,
        "left_there": survivors,
    }
    print(json.dumps(row) if options.json else "\n".join(f"{name:<20}{value}" for name, value in row.items()))
    return int(not all(equal) or survivors > 0 or cuts < options.cuts)


if __name__ == "__main__":
    sys.exit(main())
