"""Synchronous, thread-safe client of the reward server.

Generated from ``async_client.py`` by ``python .ci/generate_sync_client.py``; do not edit.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from types import TracebackType
from typing import Any, Literal, TypeVar

from kernelforge.client import bulk, flow
from kernelforge.client import requests as calls
from kernelforge.client.models import (
    CancelRequest,
    Claim,
    ClaimRequest,
    Experience,
    GroupAnswer,
    InputTestsAnswer,
    InputTestsRequest,
    Job,
    PolicyRow,
    PromptAnswer,
    PromptedAgent,
    PromptKindName,
    PromptRequest,
    RewardResult,
    RunSettings,
    RunStatus,
    ServerStatus,
    Session,
    SessionRequest,
    StoredEvaluation,
    Suspect,
    SuspectDecision,
    TaskPage,
    TaskRow,
    Turn,
    TurnRequest,
    WaitAnswer,
)
from kernelforge.client.requests import RequestSpec
from kernelforge.client.settings import Request, checked, checked_job, job_request, job_requests
from kernelforge.client.transport import ClientBase, SyncTransport

T = TypeVar("T")


class Client(ClientBase[SyncTransport]):
    """Client of a reward server. Any number of threads and forked children may share one.

    Args:
        url: address of the server; by default ``KERNELFORGE_SERVER``, else ``http://127.0.0.1:8765``.
        token: by default ``KERNELFORGE_TOKEN``, else none.
        timeout_s: longest time of one call, including submission, waiting and retries.
        connections: most connections at the same time.
        retries: how often a request is retried after a failure; a server that answers with Retry-After (status 429 or
            503) is asked until time is up.

    An evaluation that failed for infrastructure reasons is a result with the outcome ``infra_error``, not an exception.

    Raises:
        ServerError: every method, if the server refuses.
        ServerUnreachable: every method, if there is no server.
        UsageError: every method, if the server would refuse the request.

    Example:
        >>> def main() -> str:
        ...     with Client() as client:
        ...         result = client.score("core/gelu", "a completion without a kernel")
        ...     return f"{result.outcome}: {result.reward}, stage {result.stage}"
        >>> main()
        'scored: 0.0, stage parse'
    """

    _transport_type = SyncTransport

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections of this process."""
        self._transport.close()

    def score(
        self,
        task: str,
        completion: str,
        *,
        policy: str | None = None,
        run_id: str = "default",
        policy_version: int | None = None,
        priority: int = 0,
        deadline_s: float | None = None,
        profile: bool = False,
        sizes: Literal["all", "train"] | None = None,
        tag: str = "",
        timeout_s: float | None = None,
        key: str | None = None,
    ) -> RewardResult:
        """Submit one completion and wait for its reward.

        Ctrl-C cancels the job on the server. When time is up the job is cancelled too; its result is then
        usually an ``infra_error``.

        Args:
            task: ``suite/name``, a name of the default suite, or a digest.
            completion: the model's complete reply.
            timeout_s: replaces the client's for this call.
            key: idempotency key; random by default. The same key returns the same job.

        The other arguments are fields of :class:`~kernelforge.client.models.JobRequest`.
        """
        return self.score_request(
            {
                "task": task,
                "completion": completion,
                "policy": policy,
                "run_id": run_id,
                "policy_version": policy_version,
                "priority": priority,
                "deadline_s": deadline_s,
                "profile": profile,
                "sizes": sizes,
                "tag": tag,
            },
            timeout_s=timeout_s,
            key=key,
        )

    def score_request(
        self, request: Request, *, timeout_s: float | None = None, key: str | None = None
    ) -> RewardResult:
        """:meth:`score` for a request with any of its fields."""
        made = job_request(request, self._settings.time_s(timeout_s))
        limits = self._settings.limits(timeout_s)
        return self._transport.run(flow.score(self._transport, made, key or flow.new_key(), limits))

    def score_many(self, requests: Sequence[Request], *, timeout_s: float | None = None) -> list[RewardResult]:
        """All results, in the order of the requests; see :meth:`stream`."""
        results: dict[int, RewardResult] = {}
        for index, result in self.stream(requests, timeout_s=timeout_s):
            results[index] = result
        return [results[index] for index in range(len(requests))]

    def stream(
        self, requests: Sequence[Request], *, timeout_s: float | None = None
    ) -> Generator[tuple[int, RewardResult], None, None]:
        """Submit in batches, and yield each result as it comes, with its index in ``requests``.

        Leaving the loop early cancels the remaining jobs. When time is up they are cancelled too, and their results
        are yielded.

        Raises:
            ServerError: a request was refused; the other jobs are cancelled.
        """
        return self._transport.iterate(bulk.stream(self._transport, self._settings, requests, timeout_s))

    def gather(self, requests: Sequence[Request], k: int, *, timeout_s: float | None = None) -> bulk.Gathered:
        """Submit more jobs than a step needs, and cancel the others once ``k`` have ended.

        A job that ends as an ``infra_error`` is in the results, and does not count. When time is up the jobs are
        cancelled and their results are ``infra_error``, as those of :meth:`score_many`.

        Raises:
            ServerError: a request was refused; the other jobs are cancelled.
        """
        return self._transport.run(bulk.gather(self._transport, self._settings, requests, k, timeout_s))

    def submit(self, request: Request, *, key: str | None = None, timeout_s: float | None = None) -> Job:
        """Submit a job without waiting for it. It expires only if the request has a deadline."""
        made = checked_job(request)
        return self._ask(calls.submission(made, key or flow.new_key()), timeout_s)

    def submit_many(self, requests: Sequence[Request], *, timeout_s: float | None = None) -> list[Job]:
        """Submit jobs without waiting for them.

        Raises:
            ServerError: one was refused; those that were accepted are cancelled.
        """
        made, keys = job_requests(requests, None)
        limits = self._settings.limits(timeout_s)
        return self._transport.run(bulk.submit_many(self._transport, made, keys, limits))

    def job(self, job_id: str) -> Job:
        return self._ask(calls.poll(job_id))

    def evaluation(self, key: str) -> StoredEvaluation:
        """The stored evaluation and profile of a result, by its ``evaluation``."""
        return self._ask(calls.evaluation(key))

    def wait(self, ids: Sequence[str], k: int | None = None, *, timeout_s: float | None = None) -> WaitAnswer:
        """Wait until any ``k`` of the jobs (None: all) have ended, or time is up."""
        return self._transport.run(flow.wait(self._transport, ids, k, self._settings.limits(timeout_s)))

    def cancel(self, ids: Sequence[str]) -> list[str]:
        """End jobs. Returns those that had not ended."""
        return self._transport.run(flow.cancel(self._transport, ids, self._settings.limits(None)))

    def cancel_run(self, run_id: str, *, older_than: int | None = None) -> list[str]:
        """End a run's jobs, or those whose ``policy_version`` is below ``older_than``."""
        request = checked(CancelRequest, {"run_id": run_id, "older_than": older_than})
        answer = self._ask(calls.cancel(request))
        return answer.cancelled

    def tasks(self, suite: str | None = None) -> list[TaskRow]:
        """The tasks that are offered, or those of one suite."""
        return self._ask(calls.tasks(suite))

    def task(self, name: str, *, agent: PromptedAgent = "coder") -> TaskPage:
        """A task with the prompt for a model, by ``suite/name``."""
        return self._ask(calls.task(name, agent))

    def score_tests(
        self, task: str, completion: str, *, most: int | None = None, timeout_s: float | None = None
    ) -> InputTestsAnswer:
        """Score a Tester's reply by the faults that its inputs show; equal requests share an answer.

        Args:
            task: ``suite/name``, a name of the default suite, or a digest.
            completion: the model's complete reply to the prompt of ``task(name, agent="tester")``.
            most: faults that are tried at most; by default the server's 60.
            timeout_s: replaces the client's for this call.
        """
        fields = {"task": task, "completion": completion} | ({} if most is None else {"most": most})
        limits = self._settings.limits(timeout_s)
        call = calls.tests(checked(InputTestsRequest, fields), limits.remaining_s)
        return self._transport.run(flow.ask(self._transport, call, limits))

    def group(
        self, group_id: str, *, run_id: str = "default", size: int | None = None, timeout_s: float | None = None
    ) -> GroupAnswer:
        """The jobs of a group with their rewards, once all have ended or time is up: smoothed as CUDA-L1 does, where it
        is complete.

        Args:
            size: how many jobs the group has; by default those that were submitted.
        """
        limits = self._settings.limits(timeout_s)
        while True:
            hold_s = min(flow.HOLD_S, limits.remaining_s)
            answer = self._transport.run(flow.ask(self._transport, calls.group(run_id, group_id, size, hold_s), limits))
            if answer.complete or limits.remaining_s <= 0 or all(job.status.ended for job in answer.jobs):
                return answer

    def suspects(self, run_id: str | None = None) -> list[Suspect]:
        """Candidates whose reward is or was withheld, the latest first: yours, or with the scope ``admin`` all."""
        return self._ask(calls.suspects(run_id))

    def decide(self, suspect: str, decision: Literal["release", "confirm"]) -> Suspect:
        """Give the jobs of a suspect their rewards, or take it as a hack. It takes the scope ``admin``."""
        return self._ask(calls.decide(suspect, checked(SuspectDecision, {"decision": decision})))

    def prompts(
        self,
        task: str,
        *,
        kind: PromptKindName = "contrast",
        run_id: str = "default",
        count: int = 1,
        options: dict[str, Any] | None = None,
        seed: int | None = None,
    ) -> PromptAnswer:
        """Prompts of a search strategy, written from the right candidates of your jobs in a run; the arguments are
        fields of :class:`~kernelforge.client.models.PromptRequest`."""
        fields = {"task": task, "kind": kind, "run_id": run_id, "count": count, "options": options or {}, "seed": seed}
        return self._ask(calls.prompts(checked(PromptRequest, fields)))

    def policies(self) -> list[PolicyRow]:
        """The reward policies that a request may name."""
        return self._ask(calls.policies())

    def runs(self) -> list[RunStatus]:
        return self._ask(calls.runs())

    def set_run(
        self,
        run_id: str,
        *,
        weight: float | None = None,
        min_policy_version: int | None = None,
        policy_version: int | None = None,
        max_staleness: int | None = None,
        batch_size: int | None = None,
        exemplars: int | None = None,
        stage: Literal["correctness", "speed", "none"] | None = None,
        advance_at: float | None = None,
        advance_window: int | None = None,
        jump_factor: float | None = None,
        sizes: Literal["all", "train", "server"] | None = None,
    ) -> RunStatus:
        """Set a run's share of the devices, its policy version, bounds of staleness, and what it keeps; None keeps a
        setting. The arguments are fields of :class:`~kernelforge.client.models.RunSettings`."""
        fields: dict[str, Any] = {
            "weight": weight,
            "min_policy_version": min_policy_version,
            "policy_version": policy_version,
        }
        fields |= {"max_staleness": max_staleness, "batch_size": batch_size, "exemplars": exemplars}
        fields |= {"stage": stage, "advance_at": advance_at, "advance_window": advance_window}
        fields |= {"jump_factor": jump_factor, "sizes": sizes}
        settings = checked(RunSettings, fields)
        return self._ask(calls.set_run(run_id, settings))

    def claim(
        self,
        run_id: str,
        count: int = 1,
        *,
        group: str = "default",
        lease_s: float = 600.0,
        max_staleness: int | None = None,
        wait_s: float = 0.0,
    ) -> Claim:
        """Lease the next scored trajectories of a run to this consumer; :meth:`acknowledge` them once they are used.
        The arguments are fields of :class:`~kernelforge.client.models.ClaimRequest`."""
        fields = {"run_id": run_id, "count": count, "group": group, "lease_s": lease_s, "wait_s": wait_s}
        return self._ask(calls.claim(checked(ClaimRequest, fields | {"max_staleness": max_staleness})))

    def acknowledge(self, claim: Claim) -> int:
        """Mark the trajectories of a claim as used. Returns their number.

        Raises:
            ServerError: with the code ``lease_lost`` if the lease has expired and others claimed some of them, or if
                all were deleted: use none of them then.
        """
        return (self._ask(calls.acknowledge(claim.lease))).acknowledged

    def experiences(self, run_id: str, *, after: int = 0, limit: int = 100) -> list[Experience]:
        """Scored trajectories of a run after a number, without a lease."""
        return self._ask(calls.experiences(run_id, after, limit))

    def status(self) -> ServerStatus:
        return self._ask(calls.status())

    def session(
        self,
        task: str,
        *,
        turns: int = 4,
        discount: float = 0.4,
        policy: str | None = None,
        run_id: str = "default",
        policy_version: int | None = None,
        observations: Literal["delta", "whole"] = "delta",
        kind: PromptKindName = "refine",
        options: dict[str, Any] | None = None,
        sizes: Literal["all", "train"] | None = None,
        start: str | None = None,
    ) -> Conversation:
        """Begin a conversation about a task; the arguments are fields of
        :class:`~kernelforge.client.models.SessionRequest`."""
        fields = {"task": task, "turns": turns, "discount": discount, "policy": policy, "run_id": run_id}
        fields |= {"policy_version": policy_version, "observations": observations}
        if kind != "refine" or options:  # an older server knows neither
            fields |= {"kind": kind, "options": options or {}}
        if sizes is not None:
            fields["sizes"] = sizes
        if start is not None:
            fields["start"] = start
        request = checked(SessionRequest, fields)
        return Conversation(self, self._ask(calls.open_session(request)))

    def resume(self, session_id: str) -> Conversation:
        """A conversation that was begun before, also by another process."""
        return Conversation(self, self._ask(calls.session(session_id)))

    def _ask(self, call: RequestSpec[T], timeout_s: float | None = None) -> T:
        return self._transport.run(flow.ask(self._transport, call, self._settings.limits(timeout_s)))


class Conversation:
    """A session about one task: each turn is evaluated, and the Judge's finding is its observation."""

    def __init__(self, client: Client, session: Session) -> None:
        self._client = client
        self._session = session
        self._turns = list(session.turns)
        self.unanswered: str | None = None
        """The reply whose turn was sent and not answered, because the call was cancelled or failed: sent again, it gets
        the answer of that turn."""

    @property
    def id(self) -> str:
        return self._session.id

    @property
    def prompt(self) -> str:
        """The first prompt for the model."""
        return self._session.prompt

    @property
    def task(self) -> str:
        return self._session.task

    @property
    def turns(self) -> list[Turn]:
        """The turns so far."""
        return list(self._turns)

    @property
    def observation(self) -> str:
        """The message that the next reply answers: the first prompt, or the last turn's observation."""
        return self._turns[-1].observation if self._turns else self.prompt

    @property
    def done(self) -> bool:
        return len(self._turns) >= self._session.max_turns

    @property
    def messages(self) -> list[dict[str, str]]:
        """The first prompt as a system and a user message."""
        parts = {"system": self._session.system, "user": self._session.user or self._session.prompt}
        return [{"role": role, "content": text} for role, text in parts.items() if text]

    def turn(
        self,
        completion: str,
        *,
        policy_version: int | None = None,
        deadline_s: float | None = None,
        timeout_s: float | None = None,
    ) -> Turn:
        """Evaluate one reply.

        Raises:
            ServerError: with the code ``infra_error`` if it could not be evaluated; it does not count as a turn then.
        """
        number = len(self._turns) + 1
        fields = {"number": number, "completion": completion, "deadline_s": deadline_s}
        request = checked(TurnRequest, fields | {"policy_version": policy_version})
        limit_s = self._client._settings.time_s(timeout_s)
        self.unanswered = completion
        turn = self._client._ask(calls.turn(self.id, request, limit_s), limit_s)
        self.unanswered = None
        self._turns.append(turn)
        return turn

    def state(self) -> Session:
        """The conversation so far, with the discounted return of each turn."""
        session = self._client._ask(calls.session(self.id))
        self._turns = list(session.turns)
        return session

    def close(self) -> None:
        """Delete the conversation on the server."""
        self._client._ask(calls.close_session(self.id))
