"""Make a chat model from a specification."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from kernelforge.errors import UsageError
from kernelforge.llm.base import ChatModel
from kernelforge.llm.failures import Remote
from kernelforge.llm.keys import KEY_NAMES, find_key, find_url
from kernelforge.llm.spec import AgentSpec, check_url
from kernelforge.records import LLMSettings

if TYPE_CHECKING:
    from kernelforge.llm.anthropic import AnthropicModel
    from kernelforge.llm.openai import OpenAIModel


def server_of(spec: AgentSpec, settings: LLMSettings) -> str | None:
    """The address of the server that is called, or None for the provider's own.

    The specification decides, then the settings (for OpenAI's protocol), then ``OPENAI_BASE_URL`` or
    ``ANTHROPIC_BASE_URL``.

    Raises:
        UsageError: it is no address.
    """
    url = spec.base_url or (settings.base_url if spec.provider == "openai" else None) or find_url(spec.provider)
    if url is not None:
        check_url(url)
    return url


def check_model(spec: AgentSpec, settings: LLMSettings) -> None:
    """See that a model could be called, without calling anything.

    Raises:
        UsageError: the key is missing, the address is none, or batches are asked of a server that has none.
    """
    _remote(spec, settings)


def make_chat_model(spec: AgentSpec, settings: LLMSettings, stopped: Callable[[], bool] = lambda: False) -> ChatModel:
    """The model that ``spec`` names, called as ``settings`` say.

    Args:
        spec: which model and how it is asked.
        settings: timeouts, the server, whether to call in batches; limits and retries are the caller's.
        stopped: looked at while waiting; true gives calls up with
            :class:`~kernelforge.errors.BudgetExhausted`.

    Raises:
        UsageError: as :func:`check_model`.
    """
    remote, url = _remote(spec, settings)
    # The SDKs take most of a second to import.
    if spec.provider == "openai":
        from kernelforge.llm.openai import OPENAI_URL, OpenAIModel

        openai = OpenAIModel(
            spec, remote, base_url=url or OPENAI_URL, timeout_seconds=settings.timeout_seconds, stopped=stopped
        )
        return _batching(openai) if settings.batch else openai
    from kernelforge.llm.anthropic import ANTHROPIC_URL, AnthropicModel

    anthropic = AnthropicModel(
        spec, remote, base_url=url or ANTHROPIC_URL, timeout_seconds=settings.timeout_seconds, stopped=stopped
    )
    return _batching(anthropic) if settings.batch else anthropic


def _batching(model: OpenAIModel | AnthropicModel) -> ChatModel:
    from kernelforge.llm.batches import BatchingModel, make_batch_jobs

    return BatchingModel(model, make_batch_jobs(model))


def _remote(spec: AgentSpec, settings: LLMSettings) -> tuple[Remote, str | None]:
    """Who is called, and at which address where it is not the provider's own."""
    url = server_of(spec, settings)
    if url is not None and urlsplit(url).hostname == f"api.{spec.provider}.com":
        url = None
    if url is not None and settings.batch:
        raise UsageError(f"{url} has no batches; leave batch mode, or the base URL, out")
    names = {"openai": "OpenAI", "anthropic": "Anthropic"}
    key = find_key(spec.provider, required=url is None)
    return Remote(url or names[spec.provider], spec.model, KEY_NAMES[spec.provider], key), url
