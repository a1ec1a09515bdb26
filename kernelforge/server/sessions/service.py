"""Sessions: each turn is a job; the next user message is what a search strategy would ask. And single prompts of one.

A turn that ends in an infrastructure failure is not counted and may be repeated. A turn whose client disconnected
continues, and an identical request joins it or gets its answer.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from kernelforge.client.models import (
    Claim,
    ClaimRequest,
    DrawnPrompt,
    Exemplar,
    Experience,
    Job,
    JobRequest,
    PromptAnswer,
    PromptRequest,
    RewardResult,
    Session,
    SessionRequest,
    Turn,
    TurnRequest,
)
from kernelforge.errors import StoreError, UsageError
from kernelforge.evaluation.stages.compile_stage import redact_hidden_failures
from kernelforge.records import Attempt, Candidate, CheckedSizes, Reward, StartOrigin, Task
from kernelforge.rewards import Context, discounted_returns
from kernelforge.search import score
from kernelforge.server.base import Caller, RequestRejected, utc_seconds
from kernelforge.server.http.errors import GRACE_S, missing_score
from kernelforge.server.jobs.requests import policy_name
from kernelforge.server.jobs.results import Evaluated, not_run, scored, with_own
from kernelforge.server.jobs.service import JobService
from kernelforge.server.sessions.experiences import ExperienceStore
from kernelforge.server.sessions.store import SessionRow, SessionStore, TurnRow
from kernelforge.server.sessions.turns import (
    FirstTurn,
    Method,
    PendingTurn,
    StrategyPrompt,
    attempt_of,
    independent_prompts,
    next_turn,
)

MAX_SESSIONS = 10_000
MAX_SESSION_CHARS = 8 << 20
"""Characters of all completions of a session."""
MAX_STORED_CHARS = 4 << 30
"""Stored characters of the turns of all sessions: completions, evaluations and prompts. They share a file with
jobs."""
IDLE_S = 24 * 3600.0
"""A session that is idle for this long is deleted."""
SPARED_S = 600.0
"""An unfinished session is not deleted to make room if it was used within this time."""
TURN_S = 600.0
"""Default time limit of a turn."""
_SWEEP_S = 60.0
_CLAIM_AGAIN_S = 0.2
"""Between two looks for new trajectories while a claim is held."""
_MAX_THREADS = 2
"""Prompts that are rendered in parallel; each takes a CPU core for some milliseconds."""

T = TypeVar("T")


@dataclass
class _Running:
    """A turn in progress."""

    owner: str
    request: TurnRequest
    task: asyncio.Task[Turn]


class Sessions:
    """The sessions of one server. All of it is used from one event loop.

    Args:
        path: the server's database, in the results folder.
        limit: sessions at the same time, of all callers together.
        most_chars: stored characters of their turns.

    Raises:
        StoreError: the database cannot be opened.
    """

    def __init__(
        self,
        service: JobService,
        path: Path,
        *,
        limit: int = MAX_SESSIONS,
        most_chars: int = MAX_STORED_CHARS,
        idle_s: float = IDLE_S,
        spared_s: float = SPARED_S,
    ) -> None:
        self._service = service
        self._store = SessionStore(path, most_chars)
        self._stream = ExperienceStore(path)
        self._limit = limit
        self._idle_s = idle_s
        self._spared_s = spared_s
        self._running: dict[str, _Running] = {}
        self._threads = asyncio.Semaphore(_MAX_THREADS)
        self._swept = float("-inf")

    async def open(self, request: SessionRequest, caller: Caller) -> Session:
        """Open a session.

        At the limit another session without a turn in progress is deleted: the least recently used one that is done,
        or else the least recently used one that was idle for some minutes.

        Raises:
            RequestRejected: 422: the task is not registered, or has no facts for agents, or its sizes are not offered;
                429: all sessions are in use.
        """
        reference, task = self._service.find_task(request.task)
        self._service.fingerprint_at(request.sizes, request.run_id)
        await self._sweep()
        policy = policy_name(request.policy or self._service.default_policy)
        context = await self._service.task_context(task)
        method, exemplars = _method(request), await self._exemplars_of(request, caller.name, task)
        session = secrets.token_hex(12)
        start, result = await self._evaluated_start(session, request, reference, policy, caller)
        past = [] if start is None else [start]
        following = await self._in_thread(
            lambda: next_turn(context, past, request.turns, method=method, exemplars=exemplars, seed=session)
        )
        first = FirstTurn(**following.__dict__, start=start, result=result)
        row = SessionRow(session, caller.name, reference, task.digest, policy, request, first)
        unused = utc_seconds() - self._spared_s
        if not await self._in_thread(lambda: self._store.add(row, self._limit, unused, tuple(self._running))):
            message = f"{self._limit:,} sessions are in use; delete those that are done"
            raise RequestRejected(429, "too_many_sessions", message, retry_after_s=10)
        return _session(row, [])

    async def _evaluated_start(
        self, session: str, request: SessionRequest, reference: str, policy: str, caller: Caller
    ) -> tuple[Attempt | None, RewardResult | None]:
        """The kernel that a session is started from, as its attempt 0, with its result; None where it has none.

        Raises:
            RequestRejected: 422: the text holds no candidate; 503, 504: infrastructure failure.
        """
        if request.start is None:
            return None, None
        candidate = await self._service.candidate(reference, request.start)
        if candidate is None:
            message = "the start holds no candidate: send a reply with device code and a launch plan"
            raise RequestRejected(422, "invalid", message)
        started = utc_seconds()
        job = await self._service.score(
            JobRequest(
                task=reference,
                completion=request.start,
                policy=policy,
                run_id=request.run_id,
                policy_version=request.policy_version,
                profile=True,
                sizes=request.sizes,
                tag=f"session/{session}/start",
            ),
            caller,
            timeout_s=TURN_S,
            turn=True,
        )
        stored = self._evaluated(job, candidate, request.sizes)
        evaluation = redact_hidden_failures(stored.evaluation, ())
        result = job.result
        assert result is not None
        reward = Reward(policy=result.policy, value=result.trained_reward, components={})
        origin = StartOrigin(digest=hashlib.sha256(request.start.encode()).hexdigest(), converted=result.converted)
        start = attempt_of(session, origin, candidate, evaluation, stored.profile, reward, (), started)
        return start, result

    async def first_prompt(self, reference: str) -> str:
        """The first prompt about a task.

        Raises:
            RequestRejected: as :meth:`open`.
        """
        _, task = self._service.find_task(reference)
        context = await self._service.task_context(task)
        return (await self._in_thread(lambda: next_turn(context, (), 1))).prompt

    async def prompts(self, request: PromptRequest, caller: Caller) -> PromptAnswer:
        """Prompts that start from a run's exemplars.

        Raises:
            RequestRejected: 422: as :meth:`open`, or the strategy has no such option.
        """
        reference, task = self._service.find_task(request.task)
        context = await self._service.task_context(task)
        method, exemplars = _method(request), await self._exemplars(caller.name, request.run_id, task)
        seed = secrets.randbelow(2**53) if request.seed is None else request.seed
        drawn = await self._in_thread(
            lambda: independent_prompts(context, exemplars, method, request.count, f"{task.digest}/{seed}")
        )
        return PromptAnswer(
            task=reference,
            run_id=request.run_id,
            kind=request.kind,
            seed=seed,
            prompts=[_drawn(item) for item in drawn],
        )

    async def _exemplars_of(self, request: SessionRequest, owner: str, task: Task) -> list[Attempt]:
        """Exemplars of a run for a conversation; one of ``refine``, and one with a start, goes by itself."""
        if request.kind == "refine" or request.start is not None:
            return []
        return await self._exemplars(owner, request.run_id, task)

    async def _exemplars(self, owner: str, run_id: str, task: Task) -> list[Attempt]:
        try:
            return await self._service.exemplars(owner, run_id, task)
        except StoreError as error:
            raise RequestRejected(503, "not_stored", str(error), retry_after_s=5) from error

    async def get(self, session: str, caller: Caller) -> Session:
        """A session of this caller.

        Raises:
            RequestRejected: 404: there is no such session of this caller.
        """
        return _session(*await self._load(session, caller))

    async def turn(self, session: str, request: TurnRequest, caller: Caller) -> Turn:
        """Evaluate a turn, or return the answer of an evaluated one.

        Raises:
            RequestRejected: 404: no such session; 409: the session has ended, another turn is running, or the number
                belongs to another turn; 413: the session is too long; 503, 504: infrastructure failure; not counted.
        """
        running = self._running.get(session)
        if running is not None:
            if not caller.may_act_for(running.owner):
                raise _unknown(session)
            if request.number is None or running.request != request:
                raise RequestRejected(409, "turn_running", "another turn of this session is running", retry_after_s=1)
        else:
            running = _Running(caller.name, request, asyncio.create_task(self._take(session, request, caller)))
            self._running[session] = running
            running.task.add_done_callback(lambda _: self._ended(session))
        # A client that disconnects cancels its wait, not the turn.
        await asyncio.wait([running.task])
        if running.task.cancelled():
            raise RequestRejected(
                409, "turn_ended", "the turn was ended: its session was deleted, or the server closes"
            )
        return running.task.result()

    async def delete(self, session: str, caller: Caller) -> None:
        """End a session, and the turn that is running.

        Raises:
            RequestRejected: 404: there is no such session of this caller.
        """
        await self._load(session, caller)
        await self._stop(session)
        await self._in_thread(lambda: self._store.delete(session))
        await self._stop(session)  # a turn that started in the meantime

    async def claim(self, request: ClaimRequest, caller: Caller) -> Claim:
        """Lease the next trajectories of a run.

        Raises:
            RequestRejected: 422: ``max_staleness`` for a run without a policy version.
        """
        until = utc_seconds() + request.wait_s
        while True:
            oldest = None
            if request.max_staleness is not None:
                version = self._service.policy_version(request.run_id)
                if version is None:
                    message = f"run {request.run_id} has no policy_version, from which staleness is counted: set it"
                    raise RequestRejected(422, "no_policy_version", message)
                oldest = version - request.max_staleness
            claimed = await self._in_thread(partial(self._stream.claim, caller, request, oldest))
            if claimed.rows or claimed.passed_over or utc_seconds() >= until:
                return Claim(
                    lease=claimed.lease,
                    experiences=await self._experiences(claimed.rows),
                    passed_over=claimed.passed_over,
                )
            await asyncio.sleep(min(_CLAIM_AGAIN_S, max(until - utc_seconds(), 0.0)))

    async def acknowledge(self, lease: str, caller: Caller) -> int:
        """Mark the trajectories of a lease as used.

        Raises:
            RequestRejected: 409: others have claimed some of them, or all were deleted.
        """
        return await self._in_thread(lambda: self._stream.acknowledge(caller, lease))

    async def experiences(self, run_id: str, after: int, limit: int, caller: Caller) -> list[Experience]:
        """Trajectories of a run after a number, without a lease."""
        return await self._experiences(await self._in_thread(lambda: self._stream.page(caller, run_id, after, limit)))

    async def _experiences(self, rows: Sequence[tuple[Any, ...]]) -> list[Experience]:
        def session_of(name: str) -> Session | None:
            loaded = self._store.get(name)
            return None if loaded is None else _session(*loaded)

        def load() -> list[Experience]:
            loaded = [self._stream.experience(row, session_of) for row in rows]
            return [experience for experience in loaded if experience is not None]

        return await self._in_thread(load)

    async def close(self) -> None:
        """End running turns; sessions stay for the next start."""
        for session in tuple(self._running):
            await self._stop(session)
        self._store.close()
        self._stream.close()

    async def _take(self, session: str, request: TurnRequest, caller: Caller) -> Turn:
        row, turns = await self._load(session, caller)
        answered = _answered(request, turns)
        if answered is not None:
            return answered
        pending = _pending_turn(request, row, turns)
        started = utc_seconds()
        version = row.request.policy_version if request.policy_version is None else request.policy_version
        job = await self._service.score(
            JobRequest(
                task=row.task,
                completion=request.completion,
                policy=row.policy,
                run_id=row.request.run_id,
                policy_version=version,
                deadline_s=request.deadline_s,
                profile=True,
                sizes=row.request.sizes,
                tag=f"session/{row.id}/{len(turns) + 1}",
            ),
            caller,
            timeout_s=TURN_S if request.deadline_s is None else request.deadline_s + GRACE_S,
            turn=True,
        )
        candidate = await self._service.candidate(row.task, request.completion)
        stored = self._evaluated(job, candidate, row.request.sizes)
        earlier = row.attempts(turns)
        shown_evaluation = redact_hidden_failures(stored.evaluation, [attempt.evaluation for attempt in earlier])
        stored = replace(stored, evaluation=shown_evaluation)
        assert job.result is not None
        result = job.result
        if result.outcome == "scored":
            result = _in_session(result, stored, earlier)
        if result.outcome == "infra_error":
            raise missing_score(job.model_copy(update={"result": result}))
        _, task = self._service.find_task(row.task)
        context = await self._service.task_context(task)
        method = _method(row.request)
        exemplars = await self._exemplars_of(row.request, row.owner, task)

        def store_turn() -> TurnRow:
            value = result.trained_reward
            reward = Reward(policy=result.policy, value=value, components={})
            attempt = attempt_of(
                row.id, pending, candidate, stored.evaluation, stored.profile, reward, earlier, started
            )
            # What a ModelNew was converted to is in no earlier message.
            dialogue = row.request.observations == "delta" and not result.converted
            following = next_turn(
                context, [*earlier, attempt], row.request.turns,
                method=method, exemplars=exemplars, seed=row.id, dialogue=dialogue, result=result,
            )  # fmt: skip
            turn = Turn(
                number=len(turns) + 1,
                completion=request.completion,
                result=result,
                observation=following.prompt,
                best=attempt.accepted,
                policy_version=version,
            )
            turn_row = TurnRow(job.id, turn, attempt, following)
            self._store.add_turn(row.id, turn_row, tuple(self._running))
            return turn_row

        return (await self._in_thread(store_turn)).turn

    async def _load(self, session: str, caller: Caller) -> tuple[SessionRow, list[TurnRow]]:
        await self._sweep()
        loaded = await self._in_thread(lambda: self._store.get(session))
        if loaded is None or not caller.may_act_for(loaded[0].owner):
            raise _unknown(session)
        return loaded

    async def _stop(self, session: str) -> None:
        running = self._running.get(session)
        if running is not None:
            running.task.cancel()
            await asyncio.wait([running.task])

    def _ended(self, session: str) -> None:
        running = self._running.pop(session, None)
        if running is not None and not running.task.cancelled():
            running.task.exception()  # mark as retrieved; waiting callers have received it

    def _evaluated(self, job: Job, candidate: Candidate | None, sizes: CheckedSizes | None) -> Evaluated:
        """The evaluation of a turn; of an unsupported candidate as if it had failed there: the dialogue goes on.

        Raises:
            RequestRejected: there is none, after an infrastructure failure.
        """
        result = job.result
        if result is not None and result.outcome == "unsupported" and result.error is not None:
            _, task = self._service.find_task(job.task)
            assert candidate is not None, "what the device cannot run is a candidate"
            fingerprint = self._service.fingerprint_at(sizes, job.run_id)
            evaluation = not_run(candidate.hash, task.digest, fingerprint, result.error.message, candidate.lane)
            return Evaluated(evaluation, None, candidate.source, utc_seconds())
        stored = self._service.stored(job.id)
        if result is None or result.outcome not in ("scored", "withheld") or stored is None:
            raise missing_score(job)
        return stored

    async def _sweep(self) -> None:
        """Delete sessions that were idle too long, at most once a minute."""
        now = utc_seconds()
        if now - self._swept < min(_SWEEP_S, self._idle_s):
            return
        self._swept = now
        for session in await self._in_thread(lambda: self._store.expire(now - self._idle_s)):
            await self._stop(session)

    async def _in_thread(self, work: Callable[[], T]) -> T:
        """Run disk access or prompt rendering in a thread."""
        async with self._threads:
            try:
                return await asyncio.to_thread(work)
            except StoreError as error:
                raise RequestRejected(503, "not_stored", str(error), retry_after_s=5) from error


def _method(request: SessionRequest | PromptRequest) -> Method:
    """The strategy that writes the prompts of a request.

    Raises:
        RequestRejected: 422: it has no such option, or the option cannot have that value.
    """
    method = Method(request.kind, request.options)
    try:
        method.strategy(1)
    except UsageError as error:
        raise RequestRejected(422, "invalid", str(error)) from error
    return method


def _drawn(drawn: StrategyPrompt) -> DrawnPrompt:
    text, stable = drawn.prompt.text, drawn.prompt.stable
    exemplars = [
        Exemplar(
            candidate=attempt.evaluation.candidate,
            evaluation=attempt.evaluation.key,
            verdict=attempt.evaluation.verdict.value,
            score=score(attempt),
        )
        for attempt in drawn.examples
    ]
    return DrawnPrompt(
        operator=drawn.proposal.operator.value,
        prompt=text,
        system=text[:stable].strip(),
        user=text[stable:],
        exemplars=exemplars,
    )


def _answered(request: TurnRequest, turns: list[TurnRow]) -> Turn | None:
    """The answer of an evaluated turn, for a request that repeats it."""
    if request.number is None or request.number > len(turns):
        return None
    before = turns[request.number - 1].turn
    if before.completion != request.completion:
        message = f"turn {request.number} was another completion; the next is {len(turns) + 1}"
        raise RequestRejected(409, "turn_differs", message)
    return before


def _in_session(alone: RewardResult, stored: Evaluated, earlier: Sequence[Attempt]) -> RewardResult:
    """The reward of a turn: unlike for a job, the policy sees the earlier turns."""
    before = [attempt.evaluation for attempt in earlier if attempt.evaluation is not None]
    result = scored(alone.policy, stored.evaluation, Context(stored.source, before, stored.profile))
    return with_own(result, alone)


def _unknown(session: str) -> RequestRejected:
    return RequestRejected(
        404, "unknown_session", f"there is no session {session[:64]!r}; it may have been idle too long"
    )


def _pending_turn(request: TurnRequest, row: SessionRow, turns: list[TurnRow]) -> PendingTurn:
    """The pending turn of a session.

    Raises:
        RequestRejected: the request does not fit it.
    """
    if request.number is not None and request.number != len(turns) + 1:
        raise RequestRejected(409, "turn_out_of_order", f"the next turn is {len(turns) + 1}, not {request.number}")
    pending = (turns[-1].next if turns else row.first).asked
    if pending is None:
        raise RequestRejected(409, "session_done", f"the session ended after {len(turns)} turns")
    chars = sum(len(item.turn.completion) for item in turns) + len(request.completion)
    if chars > MAX_SESSION_CHARS:
        raise RequestRejected(
            413, "too_large", f"a session's completions may have {MAX_SESSION_CHARS:,} characters together"
        )
    return pending


def _session(row: SessionRow, turns: list[TurnRow]) -> Session:
    rewards = [item.attempt.reward.value for item in turns]
    return Session(
        id=row.id,
        task=row.task,
        run_id=row.request.run_id,
        policy=row.policy,
        prompt=row.first.prompt,
        system=row.first.prompt[: row.first.stable].strip(),
        user=row.first.prompt[row.first.stable :],
        turns=[item.turn for item in turns],
        start=row.first.result,
        max_turns=row.request.turns,
        discount=row.request.discount,
        done=(turns[-1].next if turns else row.first).asked is None,
        returns=discounted_returns(rewards, row.request.discount),
    )
