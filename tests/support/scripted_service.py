"""A job service whose completions name their results: it tests protocols and sessions without a device.

The candidate is parsed as in the real job service, rewards are those of the real policies, and the first line of the
source names its result: ``// wrong``, ``// build``, ``// policy``, ``// fast`` (measured, 2x),
``// uncompared`` (OK, and its full size not compared), ``// lost``
(an infrastructure error, once for each occurrence in the text), ``// together N``
(ends once N such are in flight) and ``// never``.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from kernelforge.candidate import parse_reply
from kernelforge.client.models import Fault, Job, JobRequest, JobStatus, RewardResult
from kernelforge.errors import CandidateError
from kernelforge.records import Candidate, Evaluation, Profile, Task, Verdict, content_hash
from kernelforge.rewards import DEFAULT_POLICY, components, reward
from kernelforge.server.base import Caller, RequestRejected
from kernelforge.server.jobs.conversion import ReplyConverter
from kernelforge.server.jobs.requests import Registry, RequestParser
from kernelforge.server.jobs.results import Evaluated, feedback
from tests.agents.prompt_samples import profile as make_profile
from tests.support.factories import (
    make_build,
    make_evaluation,
    make_fingerprint,
    measured_evaluation,
    modelled,
    uncompared_evaluation,
)
from tests.support.minimal_service import FULL, MinimalService


def reply(text: str = "right", prose: str = "Here it is.") -> str:
    """A completion with a candidate whose source begins with a comment."""
    return (
        f"{prose}\n\n```cuda\n// {text}\n__global__ void k(const float* x, float* y) {{}}\n```\n\n"
        "```python\ndef forward(x):\n    y = empty_like(x)\n    k[1, 32](x, y)\n    return y\n```"
    )


@dataclass
class ScriptedService(MinimalService):
    submitted: list[JobRequest] = field(default_factory=list)
    kept: dict[str, Evaluated] = field(default_factory=dict)
    cancelled: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.registry = Registry(self.catalogue)
        self._intake = RequestParser(self.registry, DEFAULT_POLICY, 10, ReplyConverter(), self.task_context)
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._lost: dict[str, int] = {}
        self._together: dict[int, int] = {}
        self._flight = asyncio.Condition()

    def find_task(self, reference: str | None, reference_code: str | None = None) -> tuple[str, Task]:
        task = self.registry.find(reference, reference_code)
        return task.name, task.task

    async def candidate(self, task: str, completion: str) -> Candidate | None:
        return await self._intake.candidate(JobRequest(task=task, completion=completion), make_fingerprint())

    def stored(self, job_id: str) -> Evaluated | None:
        return self.kept.get(job_id)

    async def _accept(self, request: JobRequest, caller: Caller, key: str | None) -> Job:
        self._intake.policy(request)
        if request.completion == FULL:
            raise RequestRejected(429, "queue_full", "the queue of this run is full", retry_after_s=3)
        earlier = self._earlier(request, caller, key)
        if earlier is not None:
            return earlier
        job = self._enter(request, caller, key, JobStatus.RUNNING)
        self.submitted.append(request)
        _, task = self.find_task(request.task, request.reference_code)
        self._tasks[job.id] = asyncio.create_task(self._work(request, task, job))
        return job

    async def _work(self, request: JobRequest, task: Task, job: Job) -> None:
        try:
            async with asyncio.timeout(request.deadline_s):
                result, status = await self._evaluate(request, task, job.id), JobStatus.FINISHED
        except TimeoutError:
            result, status = _trouble("deadline", "no caller waits for it", retryable=False), JobStatus.EXPIRED
        except asyncio.CancelledError:
            self.cancelled.append(job.id)
            result, status = _trouble("cancelled", "it was cancelled", retryable=True), JobStatus.CANCELLED
        self.jobs[job.id] = job.model_copy(update={"status": status, "result": result, "finished_at": time.time()})

    async def wait(self, ids: Sequence[str], k: int | None, timeout_s: float) -> list[Job]:
        await asyncio.wait([self._tasks[name] for name in ids], timeout=timeout_s)
        return [self.jobs[name] for name in ids if self.jobs[name].status.ended]

    async def cancel(self, ids: Sequence[str], caller: Caller) -> list[str]:
        running = [name for name in ids if not self._tasks[name].done()]
        for name in running:
            self._tasks[name].cancel()
        if running:
            await asyncio.wait([self._tasks[name] for name in running])
        return running

    async def _evaluate(self, request: JobRequest, task: Task, job_id: str) -> RewardResult:
        text = reply("parts") if request.completion is None else request.completion
        words = _first_words(text)
        if "lost" in words:
            self._lost[text] = self._lost.get(text, 0) + 1
            if self._lost[text] <= words.count("lost"):
                return _trouble("worker_died", "three workers died", retryable=True)
        if "never" in words:
            await asyncio.Event().wait()
        if "together" in words:
            await self._meet(int(words[words.index("together") + 1]))
        evaluation, seen = evaluated(text, task)
        return self._scored(request, job_id, evaluation, seen if request.profile else None)

    async def _meet(self, count: int) -> None:
        async with self._flight:
            self._together[count] = self._together.get(count, 0) + 1
            self._flight.notify_all()
            await self._flight.wait_for(lambda: self._together[count] >= count)

    def _scored(self, request: JobRequest, job_id: str, evaluation: Evaluation, seen: Profile | None) -> RewardResult:
        self.kept[job_id] = Evaluated(evaluation, seen, None, time.time())
        policy = request.policy or DEFAULT_POLICY
        speed = evaluation.performance
        return RewardResult(
            outcome="scored",
            reward=reward(policy, evaluation).value,
            policy=policy,
            components=components(evaluation),
            verdict=evaluation.verdict.value,
            uncompared=evaluation.uncompared,
            stage=evaluation.stage,
            feedback=feedback(evaluation),
            device=evaluation.fingerprint.device,
            origin=None if speed is None else "measured" if speed.samples else "modelled",
            candidate=evaluation.candidate,
            evaluation=evaluation.key,
        )


def evaluated(reply: str | Candidate, task: Task) -> tuple[Evaluation, Profile | None]:
    """Result of a reply or candidate; numbers in its first line are the sectors that it loads."""
    try:
        candidate = reply if isinstance(reply, Candidate) else parse_reply(reply)
    except CandidateError as error:
        fields = {"candidate": content_hash("reply", reply), "task": task.digest, "stage": "parse", "build": None}
        return make_evaluation(Verdict.POLICY, **fields, reason=str(error)), None
    words = candidate.source.splitlines()[0].split()
    names = {"candidate": candidate.hash, "task": task.digest}
    if "fast" in words:
        return measured_evaluation(2.0, **names), None
    if "uncompared" in words:
        return uncompared_evaluation(**names), None
    if "wrong" in words:
        return make_evaluation(Verdict.WRONG, **names, reason="expected 1.0, got 2.0 at [0, 3]"), None
    if "build" in words:
        fault = {"stage": "compile", "reason": "line 2: expected a ';'", "build": make_build(ok=False)}
        return make_evaluation(Verdict.BUILD, **names, **fault), None
    if "policy" in words:
        return make_evaluation(Verdict.POLICY, **names, stage="policy", reason="inline assembly"), None
    sectors = next((float(word) for word in words if word.isdigit()), 4_194_304.0)
    return make_evaluation(**names, performance=modelled(sectors / 1e5)), make_profile(sectors)


def _first_words(reply: str) -> list[str]:
    try:
        return parse_reply(reply).source.splitlines()[0].split()
    except CandidateError:
        return []


def _trouble(code: Any, message: str, *, retryable: bool) -> RewardResult:
    return RewardResult(outcome="infra_error", error=Fault(code=code, message=message, retryable=retryable))
