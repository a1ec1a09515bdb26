"""The batches of OpenAI (files and ``/v1/batches``) and Anthropic (``/v1/messages/batches``)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Literal

from kernelforge.errors import ProviderError
from kernelforge.llm.anthropic_model import AnthropicModel
from kernelforge.llm.batching import Results
from kernelforge.llm.failures import code_failure, status_failure
from kernelforge.llm.openai_model import OpenAIModel
from kernelforge.llm.remote import Wire, plain, read_wire

KEEP_FILES_SECONDS = 3 * 24 * 3600
"""How long prompts and replies of a batch lie at OpenAI, whose batches take a day at most."""


class OpenAIBatches:
    """Batches of the calls that an :class:`~kernelforge.llm.openai_model.OpenAIModel` would make."""

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
        found: dict[str, Mapping[str, Any] | ProviderError] = {}
        for file in (state.output_file_id, state.error_file_id):
            if file is not None:
                content = await self._client.files.content(file)
                found |= dict(self._result(json.loads(line)) for line in content.text.splitlines() if line.strip())
        return found

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
    """Batches of the calls that an :class:`~kernelforge.llm.anthropic_model.AnthropicModel` would make."""

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
        found: dict[str, Mapping[str, Any] | ProviderError] = {}
        async for line in await self._batches.results(batch):
            item = read_wire(_Item, plain(line))
            if item.result.type == "succeeded":
                found[item.custom_id] = item.result.message
            elif item.result.type == "errored":
                found[item.custom_id] = code_failure(item.result.error, self._model.remote)
            # What expired or was cancelled was never run, and has no result.
        return found

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
    return OpenAIBatches(model) if isinstance(model, OpenAIModel) else AnthropicBatches(model)
