"""Shared parts of the adapters: the server to ask, and the parsing of frameworks' arguments and replies."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib
import math
import os
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Literal, cast

from kernelforge.client import AsyncClient, Client
from kernelforge.client.models import Components, RewardResult, Turn
from kernelforge.client.settings import TOKEN_VARIABLE, URL_VARIABLE
from kernelforge.errors import ServerError, UsageError

if TYPE_CHECKING:
    from kernelforge.client import AsyncConversation, Conversation

TASK = "task"
"""Column or key with the name of a row's task."""
_ANSWER_S = 1.0
"""Extra wait after the deadline, so that the server ends the job."""
_LEAST_OVERLAP = 32
"""Least number of a prompt's characters that a query must begin with; fewer may be chance."""


@dataclass(frozen=True)
class Scorer:
    """A reward server with the common fields of all requests. Can be pickled, forked and used on any event loop.

    Args:
        url: by default ``KERNELFORGE_SERVER``, else ``http://127.0.0.1:8765``.
        token: by default ``KERNELFORGE_TOKEN``, else none.
        policy: reward policy; by default the server's.
        run_id: the run, among which the devices are shared.
        priority: among jobs of the run, -10 to 10.
        deadline_s: seconds after which a job or a turn ends as an ``infra_error``.
        profile: also profile correct candidates; on an emulated device a modelled time needs it.
        sizes: ``train`` for a server that checks less when asked; by default the run's, else the server's.
        weights: by name of a :class:`component <kernelforge.client.models.Components>`, or ``reward``: the reward of a
            result is then the sum of its values times these, in which None counts as 0.
        unsupported: what a candidate earns that needs what the device lacks: ``fail``, as one that built and did not
            run, or ``mask``, as little as one with an ``infra_error``: some frameworks leave out such a sample, and
            others end the step.
        keep_prompts: store the prompts of batches with their jobs, as far as the framework hands them over, for
            ``kernelforge data export``; completions of one prompt and policy version are a group then.
        retries: retries if the server cannot be reached; 12 take about a minute, enough for a restart.
        policy_version: version of the weights that write replies, where the framework tells its rewards none: a number,
            or a function without arguments that is asked at each request and each turn, or its name as
            ``package.module:function``.
    """

    url: str | None = None
    token: str | None = field(default=None, repr=False)
    policy: str | None = None
    run_id: str = "default"
    priority: int = 0
    deadline_s: float | None = None
    profile: bool = False
    sizes: Literal["all", "train"] | None = None
    weights: Mapping[str, float] | None = field(default=None, hash=False)
    unsupported: Literal["fail", "mask"] = "fail"
    keep_prompts: bool = False
    retries: int = 12
    policy_version: int | str | Callable[[], int | None] | None = None

    def __post_init__(self) -> None:
        if self.unsupported not in ("fail", "mask"):
            raise UsageError(f"unsupported is 'fail' or 'mask', not {self.unsupported!r}")
        names = [name for name in Components.model_fields if name != "origins"]
        for name, weight in (self.weights or {}).items():
            if name not in (*names, "reward"):
                close = get_close_matches(str(name), [*names, "reward"], 1)
                advice = f"did you mean {close[0]}?" if close else f"they are: reward, {', '.join(names)}"
                raise UsageError(f"no component is called {name!r}, so it cannot have a weight; {advice}")
            if not isinstance(weight, int | float) or not math.isfinite(weight):
                raise UsageError(f"the weight of {name} is {weight!r}, and must be a finite number")
        if isinstance(self.policy_version, str):
            _function(self.policy_version)

    async def score(self, task: str, completion: str, policy_version: int | None = None) -> RewardResult:
        """One completion's result."""
        request = self._request(task, completion, policy_version)
        return self._trained_on(await self._client().score_request(request, timeout_s=self._limit_s))

    async def score_many(
        self,
        tasks: Sequence[str],
        completions: Sequence[str],
        policy_version: int | Sequence[int | None] | None = None,
        prompts: Sequence[str] | None = None,
    ) -> list[RewardResult]:
        """Results in the order given; all are evaluated in parallel.

        Args:
            policy_version: version of the weights that wrote them; one for all, or one for each.
        """
        requests = self._requests(tasks, completions, policy_version, prompts)
        return list(map(self._trained_on, await self._client().score_many(requests, timeout_s=self._limit_s)))

    def score_blocking(self, task: str, completion: str, policy_version: int | None = None) -> RewardResult:
        """:meth:`score` for a framework that calls without an event loop."""
        request = self._request(task, completion, policy_version)
        return self._trained_on(self._blocking().score_request(request, timeout_s=self._limit_s))

    def score_many_blocking(
        self,
        tasks: Sequence[str],
        completions: Sequence[str],
        policy_version: int | Sequence[int | None] | None = None,
        prompts: Sequence[str] | None = None,
    ) -> list[RewardResult]:
        """:meth:`score_many` for a framework that calls without an event loop."""
        requests = self._requests(tasks, completions, policy_version, prompts)
        return list(map(self._trained_on, self._blocking().score_many(requests, timeout_s=self._limit_s)))

    async def session(self, task: str, turns: int, policy_version: int | None = None) -> AsyncConversation:
        """Begin a conversation about a task. Its observations are what is new: the model has the dialogue."""
        return await self._client().session(task, **self._session(turns, policy_version))

    @contextlib.asynccontextmanager
    async def conversation(
        self, task: str, turns: int, policy_version: int | None = None
    ) -> AsyncIterator[AsyncConversation]:
        """:meth:`session`, deleted at the end."""
        session = await self.session(task, turns, policy_version)
        try:
            yield session
        finally:
            await forget(session)

    def session_blocking(self, task: str, turns: int, policy_version: int | None = None) -> Conversation:
        """:meth:`session` for a framework that calls without an event loop."""
        return self._blocking().session(task, **self._session(turns, policy_version))

    async def turn(self, session: AsyncConversation, completion: str, policy_version: int | None = None) -> Turn:
        """Evaluate the next reply of a conversation; without a version it has the scorer's, or the conversation's."""
        turn = await session.turn(
            completion,
            policy_version=self._version(policy_version),
            deadline_s=self.deadline_s,
            timeout_s=self._limit_s,
        )
        return turn.model_copy(update={"result": self._trained_on(turn.result)})

    def turn_blocking(self, session: Conversation, completion: str, policy_version: int | None = None) -> Turn:
        """:meth:`turn` for a framework that calls without an event loop."""
        turn = session.turn(
            completion,
            policy_version=self._version(policy_version),
            deadline_s=self.deadline_s,
            timeout_s=self._limit_s,
        )
        return turn.model_copy(update={"result": self._trained_on(turn.result)})

    async def prompt(self, task: str) -> str:
        """The prompt of a task, verbatim."""
        return (await self._client().task(task)).prompt

    def _trained_on(self, result: RewardResult) -> RewardResult:
        """A result with the reward that is trained on: weighted, and of a failure where that is what it counts as."""
        reward = result.reward
        if reward is None and self.unsupported == "fail":
            reward = result.failure_reward
        if reward is None:
            return result
        if self.weights is None:
            return result.model_copy(update={"reward": reward})
        values = {**result.components.numbers(), "reward": reward}
        total = sum(weight * (values[name] or 0.0) for name, weight in self.weights.items())
        return result.model_copy(update={"reward": total})

    def _client(self) -> AsyncClient:
        return _async_client(*self._address(), retries=self.retries)

    def _blocking(self) -> Client:
        return _client(*self._address(), retries=self.retries)

    @property
    def _limit_s(self) -> float | None:
        """Longest time of one call, including retries."""
        return None if self.deadline_s is None else self.deadline_s + _ANSWER_S

    def _address(self) -> tuple[str | None, str | None]:
        return self.url or os.environ.get(URL_VARIABLE), self.token or os.environ.get(TOKEN_VARIABLE)

    def _request(self, task: str, completion: str, policy_version: int | None) -> dict[str, Any]:
        return {
            "task": task,
            "completion": completion,
            "policy": self.policy,
            "run_id": self.run_id,
            "priority": self.priority,
            "deadline_s": self.deadline_s,
            "profile": self.profile,
            "sizes": self.sizes,
            "policy_version": self._version(policy_version),
        }

    def _session(self, turns: int, policy_version: int | None) -> dict[str, Any]:
        version = self._version(policy_version)
        fields = {"turns": turns, "policy": self.policy, "run_id": self.run_id, "policy_version": version}
        return {**fields, "sizes": self.sizes}

    def _version(self, version: int | None) -> int | None:
        """The version that a framework passed, or else the scorer's."""
        if version is not None:
            return version
        own = self.policy_version
        function = _function(own) if isinstance(own, str) else own
        return function() if callable(function) else function

    def _requests(
        self,
        tasks: Sequence[str],
        completions: Sequence[str],
        policy_version: int | Sequence[int | None] | None,
        prompts: Sequence[str] | None,
    ) -> list[dict[str, Any]]:
        versions = policy_version if isinstance(policy_version, Sequence) else [policy_version] * len(tasks)
        requests = [self._request(*parts) for parts in zip(tasks, completions, versions, strict=True)]
        if self.keep_prompts and prompts is not None:
            for request, prompt in zip(requests, prompts, strict=True):
                digest = hashlib.sha256(prompt.encode()).hexdigest()[:16]
                request |= {"prompt": prompt, "group_id": f"{request['policy_version'] or 0}-{digest}"}
        return requests


@functools.cache
def _function(name: str) -> Callable[[], int | None]:
    """The function that a scorer's ``policy_version`` names.

    Raises:
        UsageError: there is none.
    """
    module, _, attribute = name.partition(":")
    try:
        function = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise UsageError(
            f"policy_version names the function {name!r}: {error}; write package.module:function"
        ) from error
    if not callable(function):
        raise UsageError(f"policy_version names {name!r}, which is no function")
    return cast("Callable[[], int | None]", function)


def version_in(source: object, name: str = "policy_version") -> int | None:
    """The version that a row or a framework's fields say; None where they say none."""
    value = source.get(name) if isinstance(source, Mapping) else None
    return None if value is None or int(value) < 0 else int(value)


# One client per server and process, so that connections are reused.
_async_client = functools.cache(AsyncClient)
_client = functools.cache(Client)


async def forget(session: AsyncConversation) -> None:
    """Delete a finished conversation on the server, which otherwise deletes it after some time."""
    with contextlib.suppress(ServerError):
        await session.close()


def forget_blocking(session: Conversation) -> None:
    """:func:`forget` for a framework that calls without an event loop."""
    with contextlib.suppress(ServerError):
        session.close()


def task_of(*sources: object) -> str:
    """The task's name: the first source that is a string, or a mapping with a ``task``.

    Raises:
        UsageError: no source names a task.
    """
    for source in sources:
        name = source.get(TASK) if isinstance(source, Mapping) else source
        if isinstance(name, str) and name:
            return name
    raise UsageError(
        "the row names no task: give each row the name of a registered task, such as core/swish, in a column 'task' "
        "or where the trainer keeps its ground truth"
    )


def text_of(completion: str | Sequence[Mapping[str, Any]]) -> str:
    """A completion's text: itself, or the last message of the assistant."""
    if isinstance(completion, str):
        return completion
    for message in reversed(completion):
        if message.get("role") == "assistant":
            content = message.get("content") or ""
            if isinstance(content, str):
                return content
            return "".join(part.get("text") or "" for part in content)
    return ""


def prompt_text(prompt: str | Sequence[Mapping[str, Any]]) -> str:
    """A prompt's text: itself, or the contents of its messages in order."""
    if isinstance(prompt, str):
        return prompt
    return "\n\n".join(str(message.get("content") or "") for message in prompt)


def completion_of(query: str, prompt: str) -> str:
    """The completion in a query: the text after the prompt, whose beginning may have been cut.

    Code blocks of the prompt must not count as the model's.

    Raises:
        UsageError: the query does not continue the prompt.
    """
    if query.startswith(prompt):
        return query[len(prompt) :]
    for start in range(1, len(prompt) - _LEAST_OVERLAP + 1):
        if query.startswith(prompt[start:]):
            return query[len(prompt) - start :]
    raise UsageError("the query does not begin with its prompt, so the model's part is unknown")
