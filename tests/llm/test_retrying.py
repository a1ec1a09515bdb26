"""Retries: only what may pass, waits that grow and that a server may lengthen, and an end that says how it came."""

from __future__ import annotations

import re
import threading

import pytest

from kernelforge.errors import BudgetExhausted, ProviderError
from kernelforge.llm.rate_limits import FIRST_WAIT_S, LONGEST_ASKED_WAIT_S, LONGEST_BACKOFF_S, pause, with_retries


class Flaky:
    """Fails as scripted, then answers with the number of failures it received."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.calls = 0

    def __call__(self, failed: int) -> int:
        self.calls += 1
        if self.errors:
            raise self.errors.pop(0)
        return failed


def busy(retry_after_s: float | None = None) -> ProviderError:
    return ProviderError("the server is busy", passing=True, retry_after_s=retry_after_s)


def test_a_call_that_works_is_made_once() -> None:
    call, waits = Flaky(), []
    assert with_retries(call, name="m", retries=6, sleep=waits.append) == 0
    assert (call.calls, waits) == (1, [])


def test_passing_failures_are_tried_again_and_counted() -> None:
    call, waits = Flaky(busy(), busy(), busy()), []
    assert with_retries(call, name="m", retries=3, sleep=waits.append) == 3
    assert (call.calls, len(waits)) == (4, 3)


def test_waits_are_drawn_from_a_range_that_doubles_up_to_a_limit() -> None:
    longest = [0.0] * 9
    for _ in range(200):
        waits: list[float] = []
        with_retries(Flaky(*(busy() for _ in range(9))), name="m", retries=9, sleep=waits.append)
        longest = [max(pair) for pair in zip(longest, waits, strict=True)]
    for position, seconds in enumerate(longest):
        limit = min(FIRST_WAIT_S * 2**position, LONGEST_BACKOFF_S)
        assert limit / 2 < seconds <= limit


def test_waits_of_many_callers_are_spread() -> None:
    waits: list[float] = []
    for _ in range(50):
        with_retries(Flaky(busy(), busy()), name="m", retries=2, sleep=waits.append)
    assert len(set(waits)) == len(waits)


def test_what_the_server_asks_for_is_waited_for_and_more() -> None:
    waits: list[float] = []
    with_retries(Flaky(busy(20.0), busy()), name="m", retries=2, sleep=waits.append)
    assert 20.0 <= waits[0] <= 20.0 + FIRST_WAIT_S
    assert waits[1] <= 2 * FIRST_WAIT_S


def test_too_long_a_wait_is_refused_with_what_was_asked() -> None:
    call, waits = Flaky(busy(LONGEST_ASKED_WAIT_S + 600)), []
    with pytest.raises(ProviderError, match="asks to wait 900 s, longer than the 300 s") as caught:
        with_retries(call, name="openai:m", retries=6, sleep=waits.append)
    assert "kernelforge resume" in str(caught.value)
    assert (call.calls, waits) == (1, [])


def test_used_up_retries_say_how_many_tries_the_last_reason_and_what_to_do() -> None:
    call = Flaky(*(busy() for _ in range(3)), ProviderError("the server is on fire", passing=True))
    with pytest.raises(ProviderError) as caught:
        with_retries(call, name="openai:m", retries=3, sleep=lambda seconds: None)
    text = str(caught.value)
    for part in ("openai:m", "the server is on fire", "kernelforge resume"):
        assert part in text
    assert re.search(r"4 tries over \d+ s", text)
    assert not caught.value.passing


@pytest.mark.parametrize("error", [ProviderError("no such model"), BudgetExhausted("spent"), ZeroDivisionError()])
def test_what_no_waiting_mends_is_raised_at_once(error: Exception) -> None:
    call, waits = Flaky(error), []
    with pytest.raises(type(error)) as caught:
        with_retries(call, name="m", retries=6, sleep=waits.append)
    assert caught.value is error
    assert (call.calls, waits) == (1, [])


def test_no_retries_means_one_try() -> None:
    with pytest.raises(ProviderError, match="1 try over"):
        with_retries(Flaky(busy()), name="m", retries=0, sleep=lambda seconds: None)


def test_a_stop_ends_a_wait_and_the_retrying() -> None:
    stop = threading.Event()
    call = Flaky(busy(200.0), busy())
    waiting = threading.Event()

    def sleep(seconds: float) -> None:
        waiting.set()
        pause(seconds, stop.is_set, "to ask m again")

    caught: list[Exception] = []

    def ask() -> None:
        try:
            with_retries(call, name="m", retries=6, sleep=sleep)
        except BudgetExhausted as error:
            caught.append(error)

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    assert waiting.wait(60)
    stop.set()
    thread.join(60)
    assert not thread.is_alive()
    assert "stopped while waiting to ask m again" in str(caught[0])
    assert call.calls == 1
