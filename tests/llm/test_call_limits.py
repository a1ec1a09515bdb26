"""Limits: calls in flight, calls and tokens in any minute; a stop ends every wait."""

from __future__ import annotations

import random
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from kernelforge.errors import BudgetExhausted
from kernelforge.llm.rate_limits import FIRST_OUTPUT_TOKENS, MINUTE_S, CallLimits, Window
from kernelforge.records import LLMSettings


class Clock:
    """Time that passes when a caller sleeps."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.now += seconds


def limits(clock: Clock, **settings) -> CallLimits:
    return CallLimits(LLMSettings(**settings), clock=clock, sleep=clock.sleep)


def call(limits: CallLimits, prompt: str = "", *, tokens: int | None = None, output: int | None = None) -> None:
    with limits.slot([prompt]) as slot:
        slot.tokens, slot.output_tokens = tokens, output


def most_in_a_minute(times: list[tuple[float, float]]) -> float:
    return max(sum(amount for at, amount in times if start <= at < start + MINUTE_S) for start, _ in times)


def test_no_minute_sees_more_than_the_limit_and_none_of_it_is_wasted() -> None:
    clock, rng, taken = Clock(), random.Random(7), []
    window = Window(100, clock)
    while len(taken) < 300:
        amount = rng.randint(1, 40)
        while isinstance(wait := window.take(amount), float):
            clock.sleep(wait)
        taken.append((clock.now, amount))
    assert most_in_a_minute(taken) <= 100
    length = taken[-1][0] - taken[0][0] + MINUTE_S
    assert sum(amount for _, amount in taken) > 0.7 * 100 * length / MINUTE_S


def test_more_than_the_limit_goes_alone_instead_of_never() -> None:
    clock = Clock()
    window = Window(10, clock)
    assert not isinstance(window.take(50), float)
    wait = window.take(1)
    assert wait == MINUTE_S
    clock.sleep(MINUTE_S)
    assert not isinstance(window.take(1), float)


def test_calls_per_minute_wait_for_the_first_to_be_a_minute_old() -> None:
    clock = Clock()
    some, times = limits(clock, requests_per_minute=3), []
    for _ in range(7):
        call(some)
        times.append(clock.now - 1000)
    assert times == [0, 0, 0, 60, 60, 60, 120]


def test_tokens_per_minute_reserve_an_estimate_and_correct_it() -> None:
    clock = Clock()
    prompt = "word " * 100
    some = limits(clock, tokens_per_minute=100 + FIRST_OUTPUT_TOKENS + 50)
    call(some, prompt, tokens=60)
    assert clock.now == 1000
    call(some, prompt)
    assert clock.now == 1060, "60 tokens were used and 4196 are estimated: they do not fit a minute"
    call(some, prompt, tokens=60)
    assert clock.now == 1120, "an unknown count leaves the estimate"


def test_the_estimate_of_a_reply_follows_the_replies() -> None:
    clock = Clock()
    some = limits(clock, tokens_per_minute=FIRST_OUTPUT_TOKENS)
    for _ in range(60):
        call(some, tokens=10, output=10)
    before = clock.now
    for _ in range(20):
        call(some, tokens=10, output=10)
    assert clock.now == before, "short replies are expected by now"


def test_only_so_many_calls_are_in_flight() -> None:
    some, running, peak, lock = CallLimits(LLMSettings(concurrency=3)), 0, 0, threading.Lock()
    full = threading.Barrier(3)

    def call(_: int) -> None:
        nonlocal running, peak
        with some.slot([]):
            with lock:
                running += 1
                peak = max(peak, running)
            full.wait(60)
            with lock:
                running -= 1

    with ThreadPoolExecutor(9) as pool:
        list(pool.map(call, range(9)))
    assert peak == 3


def test_a_call_that_fails_frees_its_place() -> None:
    some = CallLimits(LLMSettings(concurrency=1))
    for _ in range(3):
        with pytest.raises(ZeroDivisionError), some.slot([]):
            raise ZeroDivisionError
    with some.slot([]):
        pass


def test_a_stop_ends_the_wait_for_a_place_and_for_a_minute() -> None:
    stop = threading.Event()
    full = CallLimits(LLMSettings(concurrency=1), stopped=stop.is_set)
    slow = CallLimits(LLMSettings(requests_per_minute=1), stopped=stop.is_set)
    call(slow)

    def wait_for(some: CallLimits) -> str:
        with pytest.raises(BudgetExhausted) as caught, some.slot([]):
            pass
        return str(caught.value)

    with full.slot(0), ThreadPoolExecutor(2) as pool:
        waiting = [pool.submit(wait_for, some) for some in (full, slow)]
        stop.set()
        text = [item.result(60) for item in waiting]
    assert text == ["stopped while waiting for other calls to end", "stopped while waiting for a limit per minute"]


def test_batches_have_limits_of_their_own() -> None:
    clock = Clock()
    some = limits(clock, batch=True, concurrency=1, requests_per_minute=1, tokens_per_minute=1)
    with some.slot(["word " * 1000]):
        call(some, "word " * 1000)
    assert clock.now == 1000
