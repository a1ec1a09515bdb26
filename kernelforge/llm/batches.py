"""Batch APIs of providers: calls collected into jobs, which are polled until they end."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, Protocol

from kernelforge.errors import ProviderError
from kernelforge.llm.base import ChatReply, ChatRequest
from kernelforge.llm.http import RemoteModel, Wire, code_failure, plain, read_wire, status_failure

if TYPE_CHECKING:
    from kernelforge.llm.anthropic import AnthropicModel
    from kernelforge.llm.openai import OpenAIModel

KEEP_FILES_SECONDS = 3 * 24 * 3600
"""How long prompts and replies of a batch lie at OpenAI, whose batches take a day at most."""


class OpenAIBatches:
    """Batches of the calls that an :class:`~kernelforge.llm.openai.OpenAIModel` would make."""

    def __init__(self, model: OpenAIModel) -> None:
        self._model = model
        self._client = model.client

    async def submit(self, bodies: Mapping[str, Mapping[str, Any]]) -> str:
        endpoint: Literal["/v1/responses", "/v1/chat/completions"] = (
            "/v1/responses" if self._model.api == "responses" else "/v1/chat/completions"
        )
        lines = [
            json.dumps({"custom_id": name, "method": "POST", "url": endpoint, "body": body}) + "\n"
            for name, body in bodies.items()
        ]
        file = await self._client.files.create(
            file=("calls.jsonl", "".join(lines).encode()),
            purpose="batch",
            expires_after={"anchor": "created_at", "seconds": KEEP_FILES_SECONDS},
        )
        batch = await self._client.batches.create(
            input_file_id=file.id,
            endpoint=endpoint,
            completion_window="24h",
            output_expires_after={"anchor": "created_at", "seconds": KEEP_FILES_SECONDS},
        )
        return batch.id

    async def collect(self, batch: str) -> Results | None:
        state = await self._client.batches.retrieve(batch)
        if state.status not in ("completed", "failed", "expired", "cancelled"):
            return None
        if state.status == "failed":
            reasons = [error.message or "" for error in (state.errors.data or [])] if state.errors else []
            reason = self._model.remote.redact("; ".join(reasons))
            raise ProviderError(f"OpenAI refused the batch: {reason or 'it gives no reason'}")
        results: dict[str, Mapping[str, Any] | ProviderError] = {}
        for file in (state.output_file_id, state.error_file_id):
            if file is not None:
                content = await self._client.files.content(file)
                results |= dict(self._result(json.loads(line)) for line in content.text.splitlines() if line.strip())
        return results

    def _result(self, line: object) -> tuple[str, Mapping[str, Any] | ProviderError]:
        result = read_wire(_Line, line)
        if result.response is None:
            # Expired or cancelled at the provider: it was never run.
            return result.custom_id, code_failure(result.error, self._model.remote)
        if result.response.status_code != 200:
            return result.custom_id, status_failure(
                result.response.status_code, result.response.body, self._model.remote
            )
        return result.custom_id, result.response.body

    async def cancel(self, batch: str) -> None:
        await self._client.batches.cancel(batch)


class _Response(Wire):
    status_code: int
    body: dict[str, Any]


class _Line(Wire):
    """A line of a batch's output or error file."""

    custom_id: str
    response: _Response | None = None
    error: dict[str, Any] | None = None


class AnthropicBatches:
    """Batches of the calls that an :class:`~kernelforge.llm.anthropic.AnthropicModel` would make."""

    def __init__(self, model: AnthropicModel) -> None:
        self._model = model
        self._batches = model.client.messages.batches

    async def submit(self, bodies: Mapping[str, Mapping[str, Any]]) -> str:
        requests: Any = [{"custom_id": name, "params": body} for name, body in bodies.items()]
        batch = await self._batches.create(requests=requests)
        return batch.id

    async def collect(self, batch: str) -> Results | None:
        if (await self._batches.retrieve(batch)).processing_status != "ended":
            return None
        results: dict[str, Mapping[str, Any] | ProviderError] = {}
        async for line in await self._batches.results(batch):
            item = read_wire(_Item, plain(line))
            if item.result.type == "succeeded":
                results[item.custom_id] = item.result.message
            elif item.result.type == "errored":
                results[item.custom_id] = code_failure(item.result.error, self._model.remote)
            # What expired or was cancelled was never run, and has no result.
        return results

    async def cancel(self, batch: str) -> None:
        await self._batches.cancel(batch)


class _Result(Wire):
    type: str
    message: dict[str, Any] = {}
    error: dict[str, Any] = {}


class _Item(Wire):
    """A line of a batch's results."""

    custom_id: str
    result: _Result


def make_batch_jobs(model: OpenAIModel | AnthropicModel) -> OpenAIBatches | AnthropicBatches:
    """The batches of a model's provider."""
    from kernelforge.llm.openai import OpenAIModel  # Anthropic's SDK takes a second to import, and is not needed here

    return OpenAIBatches(model) if isinstance(model, OpenAIModel) else AnthropicBatches(model)


GATHER_SECONDS = 2.0
"""How long a batch waits for further calls after its first."""

POLL_SECONDS = 15.0
"""How often a batch is looked at. Providers promise an end within a day; most take minutes."""

MAX_FAILED_POLLS = 20
"""Looks in a row that may fail for passing reasons before a batch is given up."""

CANCEL_SECONDS = 5.0
"""How long cancelling an abandoned batch may take."""


Results = Mapping[str, Mapping[str, Any] | ProviderError]
"""Results of the calls of a batch, by their names."""


class BatchJobs(Protocol):
    """A provider's batches. Errors are the SDK's own, or ProviderError."""

    async def submit(self, bodies: Mapping[str, Mapping[str, Any]]) -> str:
        """Start a batch of request bodies by their names; the batch's id."""
        ...

    async def collect(self, batch: str) -> Results | None:
        """Reply bodies by name, or why there is none; None while the batch runs. Calls that the provider never came to
        may be left out."""
        ...

    async def cancel(self, batch: str) -> None: ...


class BatchingModel:
    """A :class:`~kernelforge.llm.base.ChatModel` that calls another one's provider in batches.

    Args:
        model: builds requests and reads replies.
        jobs: the provider's batches.
        gather_seconds: how long a batch waits for further calls after its first.
        poll_seconds: how often a batch is looked at.
    """

    def __init__(
        self,
        model: RemoteModel[Any],
        jobs: BatchJobs,
        *,
        gather_seconds: float = GATHER_SECONDS,
        poll_seconds: float = POLL_SECONDS,
    ) -> None:
        self.name = model.name
        self._model = model
        self._jobs = jobs
        self._gather_seconds = gather_seconds
        self._poll_seconds = poll_seconds
        self._waiting: list[_Waiting] = []
        self._live: set[_Waiting] = set()
        self._running: set[asyncio.Task[None]] = set()
        self._closing = asyncio.Event()

    def complete(self, request: ChatRequest) -> ChatReply:
        """Make one call, in a batch with the other calls that arrive while it gathers.

        Raises:
            BudgetExhausted: stopped while waiting. A batch without waiting callers is cancelled.
            ProviderError: the batch or this call in it failed.
        """
        return self._model.loop.run(self._complete(request), self._model.stopped, f"waiting for a batch of {self.name}")

    def close(self) -> None:
        """Give up all waiting calls, cancel their batches, and close connections."""
        self._model.close(first=self._abandon)

    async def _complete(self, request: ChatRequest) -> ChatReply:
        started = time.monotonic()
        waiting = _Waiting(self._model.body(request))
        if not self._waiting:
            task = asyncio.create_task(self._run())
            self._running.add(task)
            task.add_done_callback(self._running.discard)
        self._waiting.append(waiting)
        self._live.add(waiting)
        try:
            result = await waiting.result
        finally:
            self._live.discard(waiting)
        if isinstance(result, ProviderError):
            raise result
        return await self._model.guarded(lambda: self._read(result, time.monotonic() - started))

    async def _read(self, body: Mapping[str, Any], seconds: float) -> ChatReply:
        return self._model.reply(body, seconds=seconds, batch=True)

    async def _run(self) -> None:
        """Gather calls, submit the batch, wait for it, and pass results or errors to the waiting callers."""
        await self._nap(self._gather_seconds)
        gathered, self._waiting = self._waiting, []
        calls = {f"call-{number}": waiting for number, waiting in enumerate(gathered) if not waiting.result.done()}
        if not calls:
            return
        try:
            results = await self._results(calls)
        except ProviderError as error:
            results = dict.fromkeys(calls, error)
        except Exception as error:
            # A bug: no caller awaits this task, so the exception is raised in the waiting callers.
            for waiting in calls.values():
                if not waiting.result.done():
                    waiting.result.set_exception(error)
            return
        for name, waiting in calls.items():
            if not waiting.result.done():
                waiting.result.set_result(_own(results.get(name)))

    async def _results(self, calls: Mapping[str, _Waiting]) -> Results:
        bodies = {name: waiting.body for name, waiting in calls.items()}
        batch = await self._model.guarded(lambda: self._jobs.submit(bodies))
        try:
            results = await self._collect(batch, calls)
        except ProviderError:
            await self._cancel(batch)
            raise
        if results is None:
            await self._cancel(batch)
        return results or {}

    async def _collect(self, batch: str, calls: Mapping[str, _Waiting]) -> Results | None:
        """Wait for a batch's results; None as soon as no caller waits for them any more.

        Raises:
            ProviderError: they cannot be had. What is passing is waited out: the results are paid for.
        """
        failed = 0
        while not all(waiting.result.done() for waiting in calls.values()):
            await self._nap(self._poll_seconds)
            try:
                results = await self._model.guarded(lambda: self._jobs.collect(batch))
            except ProviderError as error:
                failed += 1
                if not error.passing or failed > MAX_FAILED_POLLS:
                    raise
                await self._nap((error.retry_after_s or 0.0) - self._poll_seconds)
                continue
            if results is not None:
                return results
            failed = 0
        return None

    async def _cancel(self, batch: str) -> None:
        """Cancel a batch without waiting callers, to save its cost; the provider ends it within a day anyway."""
        try:
            await asyncio.wait_for(self._model.guarded(lambda: self._jobs.cancel(batch)), CANCEL_SECONDS)
        except (ProviderError, TimeoutError):
            return

    async def _nap(self, seconds: float) -> None:
        """Sleep, unless the model is being closed."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._closing.wait(), max(0.0, seconds))

    async def _abandon(self) -> None:
        """End batches in good order: one that is just being submitted can be cancelled once it has an id."""
        for waiting in self._live:
            waiting.result.cancel()
        self._closing.set()
        if self._running:
            await asyncio.wait(self._running, timeout=2 * CANCEL_SECONDS)


class _Waiting:
    """A call that waits for its batch."""

    def __init__(self, body: Mapping[str, Any]) -> None:
        self.body = body
        self.result: asyncio.Future[Mapping[str, Any] | ProviderError] = asyncio.get_running_loop().create_future()


def _own(result: Mapping[str, Any] | ProviderError | None) -> Mapping[str, Any] | ProviderError:
    """A result that one caller alone may raise; exceptions that several threads raise mix up their tracebacks."""
    if result is None:
        return ProviderError("the batch ended without a result for this call", passing=True)
    if isinstance(result, ProviderError):
        return ProviderError(str(result), passing=result.passing, retry_after_s=result.retry_after_s)
    return result
