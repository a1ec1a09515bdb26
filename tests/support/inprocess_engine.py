"""An engine without workers: it obeys the protocol, and a candidate's source names its result.

Words in the source: ``WRONG`` has that verdict, ``DIE<n>`` loses its worker the first n times, ``HANG`` never ends,
``SLOW`` takes a while, ``TROUBLE`` is trouble that never passes, ``ONCE`` is trouble that passes, ``LACKS`` needs what
the device lacks, ``BUILD`` ends while it is prepared, ``ALIKE`` is the program of all that say so. A Tester's reply
shows one of two faults; ``EASY`` has none that count, ``BROKEN`` a task that cannot be used.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Sequence
from typing import Literal

from kernelforge.client.models import Fault, JobRequest
from kernelforge.errors import TaskError
from kernelforge.evaluation.audit.results import TestedMutant
from kernelforge.evaluation.stages.programs import Program
from kernelforge.records import Evaluation, Fingerprint, InputGenerator, Profile, Roofline, Task, TaskFacts, Verdict
from kernelforge.workers.base import (
    EvaluationOrder,
    EvaluationReport,
    Health,
    Prepared,
    ScoredTests,
    Slot,
    TaskContextData,
    WorkerDied,
)
from tests.agents.prompt_samples import BRIEF
from tests.support.factories import make_build, make_evaluation, make_fingerprint, measured


def completion(text: str = "v0") -> str:
    """A reply that holds a candidate, whose source says ``text``."""
    return (
        f"```cuda\n// {text}\n__global__ void k(float* out) {{}}\n```\n"
        "```python\ndef forward(x):\n    out = empty_like(x)\n    k[1, 32](out)\n    return out\n```\n"
    )


def request(text: str = "v0", task: str = "core/gelu", **fields: object) -> JobRequest:
    return JobRequest.model_validate({"task": task, "completion": completion(text), **fields})


class InProcessEngine:
    """See above.

    Args:
        slots: how many there are.
        seconds: what one evaluation takes.
        measures: it is a GPU, and times are measured.
        modelnew: it runs candidates of lane ``modelnew`` too.
    """

    name: Literal["local", "ray"] = "local"

    def __init__(
        self, *, slots: int = 2, seconds: float = 0.0, measures: bool = False, jail: str = "namespaces",
        modelnew: bool = False,
    ) -> None:  # fmt: skip
        self.seconds = seconds
        self.evaluated: list[str] = []
        """Candidates, in the order in which their evaluation began."""
        self.prepared: list[str] = []
        self.freed: list[str] = []
        """Candidates whose evaluation was cancelled."""
        self.briefs = 0
        self.testers = 0
        self.gate = asyncio.Event()
        """Evaluations wait for it."""
        self.gate.set()
        self.speedup = 2.0
        self._measures = measures
        self._names = [f"{'cuda' if measures else 'emulated:h100'}#{index}" for index in range(slots)]
        self._busy: set[str] = set()
        self._warm: dict[str, set[str]] = {name: set() for name in self._names}
        self._changed = asyncio.Event()
        self._tried: Counter[str] = Counter()
        kind = {"device": "cuda:0", "device_kind": "cuda"} if measures else {}
        self._fingerprint = make_fingerprint(jail=jail, **kind)
        self._modelnew = make_fingerprint(jail=jail, **kind, evaluator="1+modelnew.1") if modelnew else None

    async def start(self) -> None:
        self._changed.set()

    @property
    def fingerprint(self) -> Fingerprint:
        return self._fingerprint

    @property
    def modelnew(self) -> Fingerprint | None:
        return self._modelnew

    def slots(self) -> Sequence[Slot]:
        return [
            Slot(name, self._fingerprint.device, "busy" if name in self._busy else "idle", frozenset(self._warm[name]))
            for name in self._names
        ]

    def health(self) -> Health:
        return Health(workers=len(self._names), restarts=0)

    def worker_states(self) -> Sequence[Slot]:
        return self.slots()

    def drain(self, pattern: str) -> int:
        return 0

    def resume(self, pattern: str) -> int:
        return 0

    def demand(self, jobs: int) -> None:
        """Nothing: the number of slots is fixed."""

    @property
    def preparing(self) -> int:
        return 2

    async def changed(self) -> None:
        await self._changed.wait()
        self._changed.clear()

    async def prepare(self, order: EvaluationOrder) -> EvaluationReport | Prepared:
        self.prepared.append(order.candidate.source)
        await asyncio.sleep(0)
        if "BUILD" in order.candidate.source:
            return EvaluationReport(order=order.id, evaluation=self._evaluation(order, Verdict.BUILD))
        program = Program(digest="alike", kernels=("k",), lines=()) if "ALIKE" in order.candidate.source else None
        return Prepared(order=order.id, seconds={"build": 0.25}, program=program, build=make_build())

    async def evaluate(self, order: EvaluationOrder, slot: str) -> EvaluationReport:
        assert slot in self._names
        assert slot not in self._busy, "a slot evaluates one candidate at a time"
        source = order.candidate.source
        self._busy.add(slot)
        self.evaluated.append(source)
        self._tried[source] += 1
        try:
            await asyncio.sleep(self.seconds * (20 if "SLOW" in source else 1))
            await self.gate.wait()
            if "HANG" in source:
                await asyncio.sleep(3600)
            dies = re.search(r"DIE(\d+)", source)
            if dies and self._tried[source] <= int(dies[1]):
                raise WorkerDied("the worker ended with signal 9")
            if "TROUBLE" in source or ("ONCE" in source and self._tried[source] == 1):
                trouble = Fault(code="device", message="the device is not well", retryable="ONCE" in source)
                return EvaluationReport(order=order.id, trouble=trouble)
            if "LACKS" in source:
                return EvaluationReport(order=order.id, trouble=Fault(code="unsupported", message="no clusters here"))
            verdict = Verdict.WRONG if "WRONG" in source else Verdict.OK
            profile = _profile(self._fingerprint.device) if order.profile and verdict is Verdict.OK else None
            self._warm[slot].add(order.task.digest)
            return EvaluationReport(order=order.id, evaluation=self._evaluation(order, verdict), profile=profile)
        except asyncio.CancelledError:
            self.freed.append(source)
            raise
        finally:
            self._busy.discard(slot)
            self._changed.set()

    async def task_context(self, task: Task) -> TaskContextData:
        self.briefs += 1
        await asyncio.sleep(0)
        return TaskContextData(
            facts=TaskFacts(task_digest=task.digest, sizes=BRIEF.facts.sizes),
            shared=dict(BRIEF.shared),
            graph=BRIEF.graph,
            device=dict(BRIEF.device),
            spec=BRIEF.spec.key,
        )

    async def score_tests(self, task: Task, reply: str, most: int) -> ScoredTests:
        self.testers += 1
        self._tried[reply] += 1
        await asyncio.sleep(0)
        dies = re.search(r"DIE(\d+)", reply)
        if dies and self._tried[reply] <= int(dies[1]):
            raise WorkerDied("the worker ended with signal 9")
        if "BROKEN" in reply:
            raise TaskError("the reference does not run")
        if "{" not in reply:
            return ScoredTests(fault="the reply holds no JSON object")
        test = InputGenerator(
            name="far", plan="p", provider="reply", admitted=True, reason="", sizes=("small", "hidden_odd")
        )
        mutants = [TestedMutant(mutant="a", fault="removed", by_first=True, by_check=True)]
        if "EASY" not in reply:
            mutants += [
                TestedMutant(mutant="b", fault="removed", by_first=False, by_tests=("far",), by_check=True),
                TestedMutant(mutant="c", fault="removed", by_first=False, by_check=True),
                TestedMutant(mutant="d", fault="removed", by_first=False, by_check=False),
            ]
        return ScoredTests(tests=(test,), mutants=tuple(mutants[:most]))

    async def close(self) -> None:
        self._busy.clear()

    def _evaluation(self, order: EvaluationOrder, verdict: Verdict) -> Evaluation:
        fingerprint = self._fingerprint.at_sizes(order.sizes)
        fields = {"candidate": order.candidate.hash, "task": order.task.digest, "fingerprint": fingerprint}
        if order.candidate.lane == "modelnew":
            fields |= {"fingerprint": self._modelnew, "lane": "modelnew", "build": None}
        if self._measures and verdict is Verdict.OK:
            fields["performance"] = measured(speedup=self.speedup, speedup_lower=1.5)
        return make_evaluation(verdict, **fields)


def _profile(device: str) -> Profile:
    roofline = Roofline(
        flops=1.0, dram_bytes=1.0, compulsory_bytes=1.0, arithmetic_intensity=1.0, ridge=1.0, bound="dram", time_us=1.0,
        time_origin="modelled",
    )  # fmt: skip
    return Profile(size="full", device=device, kernels=(), metrics=(), roofline=roofline)
