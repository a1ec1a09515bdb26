"""Providers by specification, such as ``openai:MODEL``."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit

from kernelforge.errors import UsageError
from kernelforge.llm.base import Answerer, ChatModel, Meter
from kernelforge.llm.file_exchange import FileExchangeModel
from kernelforge.llm.prices import dollars_of, has_price
from kernelforge.llm.rate_limits import CallLimits
from kernelforge.llm.recording import Recording, Replay
from kernelforge.llm.spec import KEY_NAMES, AgentSpec, Remote, check_url, find_key, find_url, is_hosted, parse_spec
from kernelforge.records import LLMSettings, Message, Usage

if TYPE_CHECKING:
    from kernelforge.llm.anthropic import AnthropicModel
    from kernelforge.llm.openai import OpenAIModel

PROVIDERS: dict[str, str] = {
    "openai:MODEL": "a model of OpenAI, or of any server that speaks its chat completions (vLLM, SGLang, Ollama)",
    "anthropic:MODEL": "a model of Anthropic",
    "replay:FILE": "a recorded transcript: the replies that its prompts got then",
    "exchange:FOLDER": "prompts out to a folder, replies read back: a person or any coding agent as the model",
}
"""Providers by the form of their specification, with a description."""

OWN_HOSTS = frozenset({"api.openai.com", "api.anthropic.com"})
"""Servers whose prices the list has."""


class _Hosted(NamedTuple):
    """A model, and the limits that all its callers share."""

    spec: AgentSpec
    model: ChatModel
    limits: CallLimits
    elsewhere: bool
    """Whether a server other than the provider's own answers."""


class Providers:
    """The providers of one run. Clients, limits and transcripts are shared by all of its tasks and threads.

    Args:
        settings: how models are called.
        stopped: looked at while waiting for a turn, a retry or a person; true ends the wait with
            :class:`~kernelforge.errors.BudgetExhausted`.
        aborted: looked at while a model replies, which is paid for already; true drops the reply.
    """

    def __init__(
        self,
        settings: LLMSettings,
        *,
        stopped: Callable[[], bool] = lambda: False,
        aborted: Callable[[], bool] = lambda: False,
    ) -> None:
        self.settings = settings
        self._keeps_reasoning = settings.reasoning == "keep"
        self._stopped = stopped
        self._aborted = aborted
        self._lock = threading.Lock()
        self._hosted: dict[str, _Hosted] = {}
        self._limits: dict[tuple[str, str | None], CallLimits] = {}
        self._recordings: dict[str, Recording] = {}
        self._messages: list[tuple[str, tuple[Message, ...]]] = []

    def check(self, spec: str) -> None:
        """See that ``spec`` could be asked: it exists, its key is there, its file can be read. Calls nothing.

        Raises:
            UsageError: it could not; the message says what to do.
        """
        provider, _, rest = spec.partition(":")
        if is_hosted(spec) and rest:
            check_model(parse_spec(spec), self.settings)
        elif provider == "replay" and rest:
            self._recording(spec)
        elif provider == "exchange" and rest:
            _check_folder(Path(rest).expanduser())
        else:
            choices = "; ".join(f"'{name}' ({what})" for name, what in PROVIDERS.items())
            cut = next((name for name in PROVIDERS if name.partition(":")[0] == provider), None)
            if cut is not None:
                raise UsageError(f"{spec!r} names no {cut.partition(':')[2].lower()}; write {cut}")
            raise UsageError(
                f"there is no provider {spec!r}; choose 'builtin' (rules, without a model) or one of: {choices}"
            )

    def price_known(self, spec: str) -> bool:
        """Whether a budget in dollars can be held for ``spec``. What buys nothing has a known price.

        Raises:
            UsageError: ``spec`` is no specification of a hosted model.
        """
        if not is_hosted(spec):
            return True
        model = parse_spec(spec)
        return has_price(self.settings.prices, model.provider, model.model, elsewhere=self._elsewhere(model))

    def dollars(self, spec: str, usage: Usage) -> float | None:
        """Cost of a call in dollars; None when the price is unknown, zero where nothing is bought.

        Raises:
            UsageError: ``spec`` is no specification of a hosted model.
        """
        if not is_hosted(spec):
            return 0.0
        model = parse_spec(spec)
        return dollars_of(self.settings.prices, model.provider, model.model, usage, elsewhere=self._elsewhere(model))

    def recall(self, task: str, messages: Iterable[Message]) -> None:
        """Tell what was said of a task before a run was resumed, so that a replay goes on behind it.

        Args:
            messages: of attempts and drafts, in order; not those of steps that will be asked again.
        """
        journalled = (task, tuple(messages))
        with self._lock:
            self._messages.append(journalled)
            for recording in self._recordings.values():
                recording.recall(*journalled)

    def answerer(self, spec: str, meter: Meter) -> Answerer:
        """The provider for ``spec``; its calls are charged to ``meter``.

        Raises:
            UsageError: as :meth:`check`.
        """
        self.check(spec)
        provider, _, rest = spec.partition(":")
        if provider == "exchange":
            return FileExchangeModel(rest, stopped=self._stopped, keeps_reasoning=self._keeps_reasoning)
        if provider == "replay":
            return Replay(self._recording(spec), meter, keeps_reasoning=self._keeps_reasoning)
        from kernelforge.llm.conversation import Conversation

        hosted = self._host(spec)

        return Conversation(
            spec,
            hosted.model,
            meter,
            limits=hosted.limits,
            retries=self.settings.retries,
            price=partial(self.dollars, spec),
            stopped=self._stopped,
        )

    def close(self) -> None:
        """End all clients and the calls that wait in them."""
        with self._lock:
            models, self._hosted = list(self._hosted.values()), {}
        for hosted in models:
            hosted.model.close()

    def _elsewhere(self, model: AgentSpec) -> bool:
        """Whether a server other than the provider's own answers."""
        url = server_of(model, self.settings)
        return url is not None and urlsplit(url).hostname not in OWN_HOSTS

    def _host(self, spec: str) -> _Hosted:
        with self._lock:
            if spec not in self._hosted:
                model = parse_spec(spec)
                # The same model with other options is the same model to its provider's limits.
                server = (model.name, server_of(model, self.settings))
                if server not in self._limits:
                    self._limits[server] = CallLimits(self.settings, stopped=self._stopped)
                client = make_chat_model(model, self.settings, self._aborted)
                self._hosted[spec] = _Hosted(model, client, self._limits[server], self._elsewhere(model))
            return self._hosted[spec]

    def _recording(self, spec: str) -> Recording:
        with self._lock:
            if spec not in self._recordings:
                path, in_order = _parse_replay(spec)
                recording = Recording(spec, path, in_order=in_order)
                for journalled in self._messages:
                    recording.recall(*journalled)
                self._recordings[spec] = recording
            return self._recordings[spec]


def _parse_replay(spec: str) -> tuple[str, bool]:
    """A transcript's path, and whether it is played in recorded order."""
    path, question, option = spec.removeprefix("replay:").partition("?")
    if not path or (question and option != "match=order"):
        raise UsageError(f"{spec!r} is no transcript: give replay:FILE, or replay:FILE?match=order")
    return path, bool(question)


def _check_folder(folder: Path) -> None:
    """See that prompts could be put into a folder, without making it."""
    existing = folder
    while not existing.exists() and existing != existing.parent:
        existing = existing.parent
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        raise UsageError(f"the exchange folder {folder} cannot be made or written; choose another or change its rights")


def server_of(spec: AgentSpec, settings: LLMSettings) -> str | None:
    """Address of the server that is called; None for the provider's own.

    The specification decides, then the settings (for OpenAI's protocol), then ``OPENAI_BASE_URL`` or
    ``ANTHROPIC_BASE_URL``.

    Raises:
        UsageError: it is not an address.
    """
    url = spec.base_url or (settings.base_url if spec.provider == "openai" else None) or find_url(spec.provider)
    if url is not None:
        check_url(url)
    return url


def check_model(spec: AgentSpec, settings: LLMSettings) -> None:
    """Check that a model could be called, without calling anything.

    Raises:
        UsageError: the key is missing, the address is invalid, or batches are requested of a server without them.
    """
    _find_remote(spec, settings)


def make_chat_model(spec: AgentSpec, settings: LLMSettings, stopped: Callable[[], bool] = lambda: False) -> ChatModel:
    """Make the model that ``spec`` names, called as ``settings`` say.

    Args:
        spec: the model and how it is asked.
        settings: timeouts, the server, whether to call in batches; limits and retries belong to the caller.
        stopped: polled while waiting; true gives calls up with :class:`~kernelforge.errors.BudgetExhausted`.

    Raises:
        UsageError: as :func:`check_model`.
    """
    remote, url = _find_remote(spec, settings)
    kind: type[OpenAIModel | AnthropicModel]
    # The SDKs take most of a second to import.
    if spec.provider == "openai":
        from kernelforge.llm.openai import OpenAIModel as kind
    else:
        from kernelforge.llm.anthropic import AnthropicModel as kind
    model = kind(
        spec,
        remote,
        base_url=url,
        timeout_seconds=settings.timeout_seconds,
        stopped=stopped,
        keeps_reasoning=settings.reasoning == "keep",
    )
    if not settings.batch:
        return model
    from kernelforge.llm.batches import BatchingModel, make_batch_jobs

    return BatchingModel(model, make_batch_jobs(model))


def _find_remote(spec: AgentSpec, settings: LLMSettings) -> tuple[Remote, str | None]:
    """The server to call, and its address where it is not the provider's own."""
    url = server_of(spec, settings)
    if url is not None and urlsplit(url).hostname == f"api.{spec.provider}.com":
        url = None
    api = spec.api or ("responses" if url is None else "chat")
    if spec.summary is not None and api == "chat":
        raise UsageError("summary= belongs to OpenAI's Responses: add api=responses, or leave it out")
    if url is not None and settings.batch:
        raise UsageError(f"{url} has no batches; leave batch mode, or the base URL, out")
    names = {"openai": "OpenAI", "anthropic": "Anthropic"}
    key = find_key(spec.provider, required=url is None)
    return Remote(url or names[spec.provider], spec.model, KEY_NAMES[spec.provider], key), url
