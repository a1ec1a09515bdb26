"""Calls made again after a failure that may pass, with waits that can be interrupted."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NoReturn, TypeVar

from tenacity import RetryCallState, Retrying, retry_if_exception, stop_after_attempt, wait_random_exponential

from kernelforge.errors import BudgetExhausted, ProviderError

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
