"""Everything at once: valid, wrong, malformed and hostile completions, with workers and the gateway killed.

What is proved: every job that was accepted ends exactly once and none is lost, and none is scored as what it is not.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from benchmarks.server_parts.http import Answer, Connections
from benchmarks.server_parts.place import TASK_NAME, Server, reply

ENDLESS_PLAN = """def forward(x, y):
    for i in range(10 ** 9):
        for j in range(10 ** 9):
            out = empty_like(x)
    return out
"""


@dataclass(frozen=True)
class Kind:
    """Completions of which the outcome is known beforehand."""

    name: str
    text: Callable[[int], str]
    """The completion of a number; another number gives another candidate."""
    verdicts: tuple[str, ...]
    share: float
    """Of the distinct completions."""
    hostile: bool = False


def _before(number: int, lines: str, body: str = "out[i] = x[i];") -> str:
    """A reply with lines ahead of its kernel."""
    return reply(number, body).replace("```cuda\n", f"```cuda\n{lines}\n", 1)


def _planned(number: int, plan: str) -> str:
    """A reply with another plan."""
    return f"{reply(number).rpartition('```python')[0]}```python\n{plan}\n```\n"


def _macros(number: int) -> str:
    """Ten to the twelfth of tokens in thirteen lines."""
    lines = ["#define m0 x[i] +", *(f"#define m{level} {f'm{level - 1} ' * 10}" for level in range(1, 13))]
    return _before(number, "\n".join(lines), "out[i] = m12 0;")


def _templates(number: int) -> str:
    """Types that double with each level."""
    lines = """template <class A, class B> struct pair {};
template <class T, int N> struct bomb { using type = typename bomb<pair<T, pair<T, T>>, N - 1>::type; };
template <class T> struct bomb<T, 0> { using type = T; };"""
    return _before(number, lines, f"out[i] = sizeof(typename bomb<int, {150 + number % 50}>::type);")


KINDS = (
    Kind("valid", reply, ("OK",), 0.30),
    Kind("wrong", lambda n: reply(n, f"out[i] = 2.0f * x[i] + y[i] + {n + 1}.0f;"), ("WRONG",), 0.20),
    Kind("out of bounds", lambda n: reply(n, "out[i + n] = x[i];"), ("CRASH",), 0.05),
    Kind("does not build", lambda n: reply(n, f"out[i] = missing_{n};"), ("BUILD",), 0.15),
    Kind("no code", lambda n: f"I would rather not, for the {n}th time.", ("POLICY",), 0.10),
    Kind("unclosed", lambda n: f"```cuda\n__global__ void k_{n}(", ("POLICY",), 0.05),
    Kind("no plan", lambda n: _planned(n, "import os\n\ndef forward(x, y):\n    return x"), ("POLICY",), 0.055),
    Kind("endless kernel", lambda n: reply(n, "while (true) out[i] += x[i];"), ("TIMEOUT",), 0.03, hostile=True),
    Kind("macro bomb", _macros, ("BUILD", "LIMIT", "TIMEOUT"), 0.004, hostile=True),
    Kind("template bomb", _templates, ("BUILD", "LIMIT", "TIMEOUT"), 0.006, hostile=True),
    Kind("endless plan", lambda n: _planned(n, ENDLESS_PLAN), ("POLICY", "LIMIT"), 0.02, hostile=True),
    Kind("a megabyte", lambda n: _before(n, f"// {n}" + "x" * 1_000_000), ("POLICY",), 0.02, hostile=True),
    Kind("a secret included", lambda n: _before(n, '#include "/etc/passwd"'), ("BUILD", "POLICY"), 0.015, hostile=True),
)


@dataclass
class Ledger:
    """Log of requests and answers."""

    accepted: dict[str, Kind] = field(default_factory=dict)
    """Job → what it holds."""
    seen: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Job → the result that was seen first."""
    changed: list[str] = field(default_factory=list)
    """Jobs of which two different results were seen."""
    refused: Counter[int] = field(default_factory=Counter)
    retried: int = 0

    def saw(self, job: dict[str, Any]) -> None:
        previous = self.seen.setdefault(job["id"], job["result"])
        lasting = ("outcome", "reward", "verdict", "evaluation")
        if any(previous[name] != job["result"][name] for name in lasting):
            self.changed.append(job["id"])

    def mistakes(self) -> list[str]:
        """Jobs that were scored as something that they are not."""
        return [
            f"{job}: {kind.name} ended as {result['verdict']} with {result['reward']}"
            for job, kind in self.accepted.items()
            if (result := self.seen.get(job)) is not None
            and result["outcome"] == "scored"
            and (result["verdict"] not in kind.verdicts or (result["reward"] > 0) != (kind.name == "valid"))
        ]


class Load:
    """The whole test against one server that may be killed."""

    def __init__(self, server: Server, requests: int, distinct: int, seed: int) -> None:
        self.server = server
        self.rng = random.Random(seed)
        self.ledger = Ledger()
        self.connections = Connections(server.port, most=128)
        self.progress = 0
        texts = [(kind, number) for kind in KINDS for number in range(max(1, round(kind.share * distinct)))]
        repeats = self.rng.choices(range(len(texts)), k=max(0, requests - len(texts)))
        # The hostile among them come once: repeated, they would be answered from the cache.
        self.work = [texts[index] for index in (*range(len(texts)), *repeats)]
        self.distinct = len(texts)
        self.rng.shuffle(self.work)

    async def run(self, kills: int, restarts: int, clients: int = 64) -> None:
        """Send everything, and wait until all of it has ended."""
        queue = iter(enumerate(self.work))
        unrest = asyncio.create_task(self._unrest(kills, restarts))
        await asyncio.gather(*(self._client(queue) for _ in range(clients)))
        await unrest
        for job in [accepted for accepted in self.ledger.accepted if accepted not in self.ledger.seen]:
            await self._wait([job])
        # Once more, after everything: what was seen first must still be so.
        for job in self.ledger.accepted:
            answer = await self._ask("GET", f"/v1/jobs/{job}")
            if answer.status == 200 and answer.json()["result"] is not None:
                self.ledger.saw(answer.json())
        await self.connections.close()

    @property
    def lost(self) -> int:
        return sum(job not in self.ledger.seen for job in self.ledger.accepted)

    async def _client(self, queue: Any) -> None:
        for number, (kind, variant) in queue:
            self.progress = number
            data = {"task": TASK_NAME, "completion": kind.text(variant), "run_id": f"run-{number % 4}"}
            answer = await self._ask("POST", "/v1/jobs", data, {"Idempotency-Key": f"load-{number}"})
            if answer.status not in (200, 202):
                self.ledger.refused[answer.status] += 1
                continue
            job = answer.json()
            self.ledger.accepted[job["id"]] = kind
            if job["result"] is not None:
                self.ledger.saw(job)
            else:
                await self._wait([job["id"]])

    async def _wait(self, jobs: list[str]) -> None:
        pending = jobs
        while pending:
            answer = await self._ask("POST", "/v1/jobs/wait", {"ids": pending, "timeout_s": 30})
            if answer.status != 200:
                return
            for job in answer.json()["ended"]:
                self.ledger.saw(job)
            pending = answer.json()["pending"]

    async def _ask(self, method: str, path: str, data: Any = None, headers: dict[str, str] | None = None) -> Answer:
        """Ask until there is an answer that is final, as a client does: the same key makes a repeat safe."""
        body = b"" if data is None else json.dumps(data).encode()
        for _ in range(600):
            try:
                answer = await self.connections.request(method, path, body, headers)
            except (OSError, asyncio.IncompleteReadError):
                self.ledger.retried += 1
                await asyncio.sleep(0.2)
                continue
            if answer.status not in (429, 503):
                return answer
            self.ledger.retried += 1
            await asyncio.sleep(min(float(answer.headers.get("retry-after", 1)), 2.0))
        raise SystemExit(f"no answer to {method} {path} in 600 tries")

    async def _unrest(self, kills: int, restarts: int) -> None:
        """Kill workers and the gateway, at random places of the way."""
        events = ["worker"] * kills + ["gateway"] * restarts
        self.rng.shuffle(events)
        places = sorted(self.rng.sample(range(len(self.work) // 20, len(self.work) * 9 // 10), len(events)))
        for share, event in zip(places, events, strict=True):
            while self.progress < share:
                await asyncio.sleep(0.05)
            if event == "gateway":
                self.server.kill()
                await asyncio.to_thread(self.server.start)
            else:
                while not (workers := self.server.workers()):
                    await asyncio.sleep(0.05)
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self.rng.choice(workers), signal.SIGKILL)
