"""Ask a faulty server through the real SDKs: nothing may be lost, and no budget passed by a call per worker.

A local server speaks OpenAI's and Anthropic's protocols, refuses 5 % of the calls with 429 and breaks off 2 % of the
streams. First all questions are asked at once; then workers ask until a budget in tokens, and one in dollars, is spent.
Exits with 1 if an answer is lost, or a budget is passed by a call per worker or more.

    python benchmarks/providers.py [--calls 200] [--workers 8] [--provider openai|anthropic] [--seed 1]
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from kernelforge.errors import BudgetExhausted, ProviderError
from kernelforge.llm.base import Answer, Answerer, Prompt, Question
from kernelforge.llm.providers import Providers
from kernelforge.records import LLMSettings, Price, Usage

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tests.support.llm_server import Call, Fail, FakeLLM, Say

REFUSED, BROKEN = 5, 2
"""Of every 100 calls."""
TOKENS_PER_CALL = 1200
PRICE = Price(input=10.0, output=100.0)
DOLLARS_PER_CALL = 0.03
SECONDS_PER_REPLY = 0.2


class Faults:
    """Decides the fate of the n-th call that comes in: the same for the same seed, in any thread."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.refused = 0
        self.broken = 0
        self._lock = threading.Lock()

    def __call__(self, call: Call) -> Say | Fail:
        deck = list(range(100))
        random.Random(f"{self.seed}/{call.number // 100}").shuffle(deck)
        fate = deck[call.number % 100]
        with self._lock:
            if fate < REFUSED:
                self.refused += 1
                return Fail(429, headers={"retry-after": "1"}, code="rate_limit_exceeded")
            broken = fate < REFUSED + BROKEN
            self.broken += broken
        return Say(
            f"re: {call.prompt}",
            input_tokens=1000,
            output_tokens=200,
            delay_seconds=SECONDS_PER_REPLY,
            break_after=2 if broken else None,
        )


class Purse:
    """A meter with a limit on tokens or on dollars."""

    def __init__(self, *, tokens: float = float("inf"), dollars: float = float("inf")) -> None:
        self.limits = tokens, dollars
        self.calls = 0
        self.tokens = 0
        self.dollars = 0.0
        self._lock = threading.Lock()

    def check(self) -> None:
        with self._lock:
            if self.tokens >= self.limits[0] or self.dollars >= self.limits[1]:
                raise BudgetExhausted("spent")

    def spent(self, usage: Usage) -> None:
        with self._lock:
            self.calls += 1
            self.tokens += usage.tokens or 0
            self.dollars += usage.dollars or 0.0


def ask(answerer: Answerer, prompt: str) -> Answer:
    return answerer.ask(Question("coder", "benchmark", Prompt(prompt), lambda text: None))


def providers_of(provider: str, concurrency: int) -> Providers:
    return Providers(LLMSettings(concurrency=concurrency, prices={f"{provider}:fake": PRICE}))


def all_at_once(provider: str, calls: int, seed: int) -> bool:
    """Whether every question got its own answer."""
    faults, purse = Faults(seed), Purse()
    with FakeLLM(faults) as server:
        providers = providers_of(provider, calls)
        answerer = providers.answerer(specification(provider, server), purse)

        def call(number: int) -> tuple[bool, int]:
            try:
                answer = ask(answerer, f"question {number}")
            except ProviderError as error:
                print(f"  question {number}: {error}")
                return False, 0
            usage = answer.messages[-1].usage
            return answer.text == f"re: question {number}", usage.retries if usage else 0

        start = time.perf_counter()
        with ThreadPoolExecutor(calls) as pool:
            outcomes = list(pool.map(call, range(calls)))
        seconds = time.perf_counter() - start
        providers.close()
        sent, peak = len(server.calls), server.peak
    lost = sum(not good for good, _ in outcomes)
    retries = sum(count for _, count in outcomes)
    print(
        f"{provider}: {calls} questions at once ({peak} in flight): {lost} lost; {sent} calls, "
        f"{faults.refused} refused, {faults.broken} broken off, {retries} retries; "
        f"{purse.tokens:,} tokens, ${purse.dollars:.2f}; {seconds:.1f} s"
    )
    return lost == 0 and sent == calls + retries


def until_spent(provider: str, workers: int, seed: int, kind: str) -> bool:
    """Whether workers that ask until a budget is spent pass it by less than a call each."""
    per_call = TOKENS_PER_CALL if kind == "tokens" else DOLLARS_PER_CALL
    limit = per_call * (workers * 5 + 0.5)
    purse = Purse(tokens=limit) if kind == "tokens" else Purse(dollars=limit)
    with FakeLLM(Faults(seed)) as server:
        providers = providers_of(provider, workers)
        answerer = providers.answerer(specification(provider, server), purse)

        def work(worker: int) -> None:
            number = 0
            while True:
                try:
                    ask(answerer, f"{worker}/{number}")
                except BudgetExhausted:
                    return
                number += 1

        with ThreadPoolExecutor(workers) as pool:
            list(pool.map(work, range(workers)))
        providers.close()
    over = ((purse.tokens if kind == "tokens" else purse.dollars) - limit) / per_call
    print(
        f"{provider}: budget of {limit:,.2f} {kind}, {workers} workers: {purse.calls} calls, "
        f"passed by {over:.1f} calls, {over / workers:.2f} per worker"
    )
    return 0 <= over < workers


def specification(provider: str, server: FakeLLM) -> str:
    return f"{provider}:fake?base_url={server.openai_url if provider == 'openai' else server.url}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--calls", type=int, default=200)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--provider", choices=("openai", "anthropic"), default="openai")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    for name in ("OPENAI", "ANTHROPIC"):
        os.environ[f"{name}_API_KEY"] = "none-needed"
    good = all_at_once(options.provider, options.calls, options.seed)
    for kind in ("tokens", "dollars"):
        good = until_spent(options.provider, options.workers, options.seed, kind) and good
    return 0 if good else 1


if __name__ == "__main__":
    raise SystemExit(main())
