"""Rate limits on calls and tokens per minute, and calls made again after a failure that may pass.

Waits can be interrupted. The tokens of a prompt are estimated before it is sent.
"""

from __future__ import annotations

import re
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple, NoReturn, TypeVar

from tenacity import RetryCallState, Retrying, retry_if_exception, stop_after_attempt, wait_random_exponential

from kernelforge.errors import BudgetExhausted, ProviderError
from kernelforge.records import LLMSettings, Usage

LOOK_S = 0.1
"""How often a wait looks whether it is to end."""


def pause(seconds: float, stopped: Callable[[], bool], why: str) -> None:
    """Wait, looking often whether to stop.

    Raises:
        BudgetExhausted: ``stopped`` said so; the message names ``why`` there was a wait.
    """
    deadline = time.monotonic() + seconds
    while True:
        if stopped():
            raise BudgetExhausted(f"stopped while waiting {why}")
        remaining = deadline - time.monotonic()
        if remaining <= 0:
            return
        time.sleep(min(remaining, LOOK_S))


FIRST_WAIT_S = 1.0
"""The first wait is drawn from 0 to this; the range doubles with each further one."""
LONGEST_BACKOFF_S = 60.0
LONGEST_ASKED_WAIT_S = 300.0
"""A server that asks to wait longer is not waited for."""

ResultT = TypeVar("ResultT")

_backoff = wait_random_exponential(multiplier=FIRST_WAIT_S, max=LONGEST_BACKOFF_S)


def with_retries(
    call: Callable[[int], ResultT],
    *,
    name: str,
    retries: int,
    sleep: Callable[[float], None],
) -> ResultT:
    """Call until it succeeds, and return its result. ``call`` receives the number of failures so far.

    Only a :class:`~kernelforge.errors.ProviderError` that is ``passing`` is tried again: after an exponential wait with
    full jitter (Brooker, "Exponential Backoff And Jitter", AWS Architecture Blog, 2015), on top of what the server
    asked for in Retry-After.

    Args:
        name: of the model, for the message.
        retries: calls that may fail; one more may be made.
        sleep: waits so many seconds, or raises to end it all.

    Raises:
        ProviderError: the calls are used up, the server asks for too long a wait, or trying again would not help.
    """

    def give_up(state: RetryCallState) -> NoReturn:
        error = _error(state)
        requested_s = error.retry_after_s
        if requested_s is not None and requested_s > LONGEST_ASKED_WAIT_S:
            cause = (
                f"it asks to wait {requested_s:.0f} s, longer than the {LONGEST_ASKED_WAIT_S:.0f} s that a call waits"
            )
        else:
            over = f"over {state.seconds_since_start or 0.0:.0f} s"
            cause = f"{state.attempt_number} {'try' if state.attempt_number == 1 else 'tries'} {over} failed"
        raise ProviderError(
            f"{name} could not be asked: {cause}; the last reason: {error}. The run keeps all its results: "
            f"`kernelforge resume` goes on once the provider answers again"
        ) from error

    failed = 0

    def counted() -> ResultT:
        nonlocal failed
        try:
            return call(failed)
        except ProviderError:
            failed += 1
            raise

    retrying = Retrying(
        retry=retry_if_exception(lambda error: isinstance(error, ProviderError) and error.passing),
        wait=lambda state: (_error(state).retry_after_s or 0.0) + _backoff(state),
        stop=lambda state: stop_after_attempt(retries + 1)(state) or _asked_too_long(state),
        sleep=sleep,
        retry_error_callback=give_up,
    )
    return retrying(counted)


def _error(state: RetryCallState) -> ProviderError:
    """The error of the last call; only a ``ProviderError`` is retried."""
    error = None if state.outcome is None else state.outcome.exception()
    if not isinstance(error, ProviderError):
        raise TypeError(f"retried after {error!r}")
    return error


def _asked_too_long(state: RetryCallState) -> bool:
    return (_error(state).retry_after_s or 0.0) > LONGEST_ASKED_WAIT_S


_PIECE = re.compile(r"(?P<word>[A-Za-z]+)|(?P<digits>[0-9]{1,3})|(?P<lines>\n+)|(?P<signs>[^\sA-Za-z0-9]+)")
_WORD_CHARS = 9
"""Letters of a word that one token holds."""
_SIGN_CHARS = 3
"""Punctuation characters in a row that one token holds."""
_LINE_BREAK = 0.6
"""Line breaks often join the punctuation before them."""
_OTHER_CHAR = 0.8
"""Characters beyond ASCII."""


def estimate_tokens(text: str) -> int:
    """An estimate, for planning and for limits; what was spent is what the provider counted.

    It cuts text as byte-pair tokenizers do before they merge: a word of up to nine letters, up to three digits, and up
    to three punctuation characters are a token each. On this project's prompts and kernels it is within 10 % of
    OpenAI's ``o200k_base`` (``benchmarks/prompts.py``); other vocabularies may need half as many again.
    """
    count = 0.0
    for match in _PIECE.finditer(text):
        length = match.end() - match.start()
        if match.lastgroup == "word":
            count += 1 + (length - 1) // _WORD_CHARS
        elif match.lastgroup == "digits":
            count += 1
        elif match.lastgroup == "lines":
            count += _LINE_BREAK
        elif match[0].isascii():
            count += (length + _SIGN_CHARS - 1) // _SIGN_CHARS
        else:
            count += length * _OTHER_CHAR
    return round(count)


class TokenCount(NamedTuple):
    """Tokens of a text."""

    tokens: int
    estimated: bool
    """Whether no provider counted them."""

    @property
    def text(self) -> str:
        return f"{'about ' if self.estimated else ''}{self.tokens:,} tokens"


def reasoning_tokens(text: str, usage: Usage | None) -> TokenCount:
    """Length of the reasoning before a reply: as the provider counted it, or else an estimate from the text shown."""
    counted = None if usage is None else usage.reasoning_tokens
    return TokenCount(counted, False) if counted else TokenCount(estimate_tokens(text), True)


MINUTE_S = 60.0
FIRST_OUTPUT_TOKENS = 4096
"""What a reply is taken to cost until the model has given one."""


@dataclass
class _Entry:
    at: float
    amount: float


class Window:
    """At most so much in any span of 60 s. Safe between threads.

    A sliding window rather than a token bucket: a bucket of a minute's worth lets up to twice that pass in one minute.
    """

    def __init__(self, limit: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.limit = limit
        self._clock = clock
        self._entries: deque[_Entry] = deque()
        self._lock = threading.Lock()

    def take(self, amount: float) -> _Entry | float:
        """Reserve ``amount`` now, or say how many seconds to wait before trying again.

        More than the limit is let through alone, for waiting would not make it fit.
        """
        with self._lock:
            now = self._clock()
            while self._entries and self._entries[0].at <= now - MINUTE_S:
                self._entries.popleft()
            over = sum(entry.amount for entry in self._entries) + amount - self.limit
            if over <= 0 or not self._entries:
                entry = _Entry(now, amount)
                self._entries.append(entry)
                return entry
            for entry in self._entries:
                over -= entry.amount
                if over <= 0:
                    break
            return entry.at + MINUTE_S - now

    def correct(self, entry: _Entry, amount: float) -> None:
        """Replace an estimate by what it came to."""
        with self._lock:
            entry.amount = amount


class Slot:
    """Leave for one call."""

    def __init__(self) -> None:
        self.tokens: int | None = None
        """Tokens of the call, set by the caller; None keeps the estimate."""
        self.output_tokens: int | None = None


class CallLimits:
    """The limits of one model, shared by all its callers.

    Args:
        settings: the limits. A batch has limits of the provider's own, so with ``batch`` none hold here.
        stopped: looked at while waiting.
        clock: seconds, monotonic.
        sleep: waits so many seconds.
    """

    def __init__(
        self,
        settings: LLMSettings,
        *,
        stopped: Callable[[], bool] = lambda: False,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] | None = None,
    ) -> None:
        limited = not settings.batch
        self._stopped = stopped
        self._sleep = sleep or self._pause
        self._places = threading.BoundedSemaphore(settings.concurrency) if limited else None
        requests, tokens = settings.requests_per_minute, settings.tokens_per_minute
        self._requests = Window(requests, clock) if limited and requests is not None else None
        self._tokens = Window(tokens, clock) if limited and tokens is not None else None
        self._output = float(FIRST_OUTPUT_TOKENS)

    @contextmanager
    def slot(self, prompt: Iterable[str]) -> Iterator[Slot]:
        """Wait for leave to make one call with a prompt of these texts; the call is over when the block ends.

        Raises:
            BudgetExhausted: the wait was stopped.
        """
        with self._concurrency_slot():
            if self._requests is not None:
                self._wait_for(self._requests, 1)
            entry = None
            if self._tokens is not None:
                estimate = sum(estimate_tokens(text) for text in prompt) + self._output
                entry = self._wait_for(self._tokens, estimate)
            slot = Slot()
            yield slot
            if self._tokens is not None and entry is not None and slot.tokens is not None:
                self._tokens.correct(entry, slot.tokens)
            if slot.output_tokens is not None:
                # A moving average over about eight calls.
                self._output += (slot.output_tokens - self._output) / 8

    @contextmanager
    def _concurrency_slot(self) -> Iterator[None]:
        if self._places is None:
            yield
            return
        while not self._places.acquire(timeout=LOOK_S):
            if self._stopped():
                raise BudgetExhausted("stopped while waiting for other calls to end")
        try:
            yield
        finally:
            self._places.release()

    def _wait_for(self, window: Window, amount: float) -> _Entry:
        while True:
            taken = window.take(amount)
            if isinstance(taken, _Entry):
                return taken
            self._sleep(taken)

    def _pause(self, seconds: float) -> None:
        pause(seconds, self._stopped, "for a limit per minute")
