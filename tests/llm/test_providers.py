"""Specifications become answerers: checked without a call, sharing what a model has, losing nothing under faults."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from kernelforge.errors import BudgetExhausted, ProviderError, UsageError
from kernelforge.llm.base import Answer, Answerer, Prompt, Question
from kernelforge.llm.providers import PROVIDERS, Providers
from kernelforge.records import LLMSettings, Price, Usage
from tests.support.llm_server import Call, Fail, Hang, Say

PRICE = Price(input=10.0, output=100.0)


class Purse:
    """Lets calls start until so much is spent."""

    def __init__(self, *, tokens: float = float("inf"), dollars: float = float("inf")) -> None:
        self.limits = tokens, dollars
        self.usages: list[Usage] = []
        self._lock = threading.Lock()

    @property
    def tokens(self) -> int:
        return sum(usage.tokens or 0 for usage in self.usages)

    @property
    def dollars(self) -> float:
        return sum(usage.dollars or 0.0 for usage in self.usages)

    def check(self) -> None:
        with self._lock:
            if self.tokens >= self.limits[0] or self.dollars >= self.limits[1]:
                raise BudgetExhausted("spent")

    def spent(self, usage: Usage) -> None:
        with self._lock:
            self.usages.append(usage)


@pytest.fixture
def make():
    """Makes providers and closes them with the test."""
    made: list[Providers] = []

    def make_providers(
        stopped: Callable[[], bool] = lambda: False, aborted: Callable[[], bool] = lambda: False, **settings
    ) -> Providers:
        made.append(Providers(LLMSettings(**settings), stopped=stopped, aborted=aborted))
        return made[-1]

    yield make_providers
    for providers in made:
        providers.close()


def ask(answerer: Answerer, prompt: str = "prompt") -> Answer:
    return answerer.ask(Question("coder", "softmax", Prompt(prompt), lambda text: None))


@pytest.mark.parametrize("spec", ["", "unknown", "unknown:x", "builtin"])
def test_an_unknown_provider_is_refused_with_those_that_there_are(make, spec: str) -> None:
    with pytest.raises(UsageError) as caught:
        make().check(spec)
    for name in PROVIDERS:
        assert name in str(caught.value)


@pytest.mark.parametrize(
    ("spec", "form"), [("openai", "openai:MODEL"), ("openai:", "openai:MODEL"), ("replay:", "replay:FILE")]
)
def test_a_specification_that_is_cut_short_is_told_its_form(make, spec: str, form: str) -> None:
    with pytest.raises(UsageError, match=f"write {form}$"):
        make().check(spec)


@pytest.mark.parametrize(
    ("spec", "name"), [("openai:gpt-5", "OPENAI_API_KEY"), ("anthropic:claude-opus-4-5", "ANTHROPIC_API_KEY")]
)
def test_a_hosted_model_needs_its_key(make, spec: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match=name):
        make().check(spec)
    with pytest.raises(UsageError, match=name):
        make().answerer(spec, Purse())
    monkeypatch.setenv(name, "sk-test")
    make().check(spec)


def test_a_server_of_ones_own_needs_no_key(make) -> None:
    make(base_url="http://localhost:1/v1").check("openai:llama3:8b")
    make().check("openai:llama3:8b?base_url=http://localhost:1/v1")


def test_options_files_and_folders_are_checked(make, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="effrt"):
        make(base_url="http://localhost:1/v1").check("openai:m?effrt=low")
    with pytest.raises(UsageError, match="cannot be read"):
        make().check(f"replay:{tmp_path / 'none.jsonl'}")
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot be made or written"):
        make().check(f"exchange:{tmp_path / 'file' / 'desk'}")
    make().check(f"exchange:{tmp_path / 'desk' / 'inner'}")
    assert not (tmp_path / "desk").exists(), "checking makes nothing"


def test_prices_are_known_or_not(make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    listed, local = "openai:gpt-4o-mini", "openai:local"
    assert make().price_known(listed)
    assert make().price_known(f"exchange:{tmp_path}")
    assert not make().price_known(local)
    assert make(prices={local: PRICE}).price_known(f"{local}?effort=low")
    assert not make(base_url="http://localhost:1/v1").price_known(listed)
    assert make(base_url="https://api.openai.com/v1").price_known(listed)
    assert make(base_url="http://localhost:1/v1").price_known("anthropic:claude-3-haiku-20240307")
    monkeypatch.setenv("OPENAI_BASE_URL", "http://localhost:1/v1")
    assert not make().price_known(listed)


@pytest.mark.parametrize("provider", ["openai", "anthropic"])
def test_a_model_answers_through_its_sdk(make, fake_llm, provider: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-test")
    server = fake_llm(Say("hello", input_tokens=1000, output_tokens=200))
    url = server.openai_url if provider == "openai" else server.url
    spec, meter = f"{provider}:m?base_url={url}", Purse()
    answer = ask(make(prices={f"{provider}:m": PRICE}).answerer(spec, meter))
    assert answer.text == "hello"
    assert [(item.role, item.content, item.provider) for item in answer.messages] == [
        ("prompt", "prompt", spec),
        ("reply", "hello", spec),
    ]
    usage = answer.messages[1].usage
    assert usage is not None
    assert (usage.tokens, usage.dollars, usage.retries) == (1200, pytest.approx(0.03), 0)
    assert meter.usages == [usage]


def test_a_price_that_nobody_knows_stays_unknown(make, fake_llm) -> None:
    server, meter = fake_llm(), Purse()
    ask(make(base_url=server.openai_url).answerer("openai:gpt-4o-mini", meter))
    assert [usage.dollars for usage in meter.usages] == [None]


def test_the_settings_name_the_server_of_openai_models_that_name_none(make, fake_llm) -> None:
    own, theirs = fake_llm(), fake_llm()
    providers = make(base_url=own.openai_url)
    ask(providers.answerer("openai:m", Purse()))
    ask(providers.answerer(f"openai:m?base_url={theirs.openai_url}", Purse()))
    assert (len(own.calls), len(theirs.calls)) == (1, 1)


def test_a_model_with_other_options_shares_its_limits(make, fake_llm) -> None:
    """Otherwise a Coder and a Judge that differ in effort would pass the provider's limits together."""
    server = fake_llm(Say(delay_seconds=0.02))
    providers = make(base_url=server.openai_url, concurrency=2)
    askers = [providers.answerer(f"openai:m?effort={effort}", Purse()) for effort in ("low", "high")]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(ask, askers * 6))
    assert len(server.calls) == 12
    assert server.peak <= 2


def test_used_up_retries_end_in_an_error_that_says_what_to_do(make, fake_llm) -> None:
    server = fake_llm(Fail(503, message="overloaded"))
    with pytest.raises(ProviderError, match=r"2 tries over .* s failed.*overloaded.*kernelforge resume"):
        ask(make(base_url=server.openai_url, retries=1).answerer("openai:m", Purse()))
    assert len(server.calls) == 2


def test_a_stop_lets_a_reply_come_that_is_being_paid_for(make, fake_llm) -> None:
    stop = threading.Event()

    def answer(call: Call) -> Say:
        stop.set()
        return Say("paid for", delay_seconds=0.15)

    server = fake_llm(answer)
    answerer = make(stop.is_set, base_url=server.openai_url).answerer("openai:m", Purse())
    assert ask(answerer).text == "paid for"


def test_an_abort_drops_a_reply_that_does_not_come(make, fake_llm) -> None:
    abort = threading.Event()

    def hang(call: Call) -> Hang:
        abort.set()
        return Hang()

    answerer = make(aborted=abort.is_set, base_url=fake_llm(hang).openai_url).answerer("openai:m", Purse())
    with pytest.raises(BudgetExhausted):
        ask(answerer)


def test_a_stop_ends_the_wait_for_another_try(make, fake_llm) -> None:
    stop = threading.Event()

    def refuse(call: Call) -> Fail:
        stop.set()
        return Fail(429, headers={"retry-after": "200"})

    server = fake_llm(refuse)
    with pytest.raises(BudgetExhausted, match="stopped while waiting to ask openai:m again"):
        ask(make(stop.is_set, base_url=server.openai_url).answerer("openai:m", Purse()))
    assert len(server.calls) == 1


def test_what_a_call_would_cost_is_known_before_it_is_made(make, tmp_path: Path) -> None:
    usage = Usage(model="", input_tokens=1000, output_tokens=200, seconds=0)
    assert make(prices={"openai:m": PRICE}).dollars("openai:m", usage) == pytest.approx(0.03)
    assert make().dollars("openai:m", usage) is None
    assert make().dollars(f"exchange:{tmp_path}", usage) == 0.0


def faulty(call: Call) -> Say | Fail:
    """5 % of calls are refused, 2 % break off in mid-stream; the others repeat what they were asked."""
    if call.number % 20 == 3:
        return Fail(429, headers={"retry-after": "0.01"}, code="rate_limit_exceeded")
    return Say(f"re: {call.prompt}", break_after=1 if call.number % 50 == 7 else None)


@pytest.mark.slow
def test_no_answer_is_lost_among_faults(make, fake_llm) -> None:
    server, meter = fake_llm(faulty), Purse()
    answerer = make(base_url=server.openai_url, concurrency=60).answerer("openai:m", meter)
    prompts = [f"prompt {number}" for number in range(60)]
    with ThreadPoolExecutor(60) as pool:
        answers = list(pool.map(ask, [answerer] * 60, prompts))
    assert [answer.text for answer in answers] == [f"re: {prompt}" for prompt in prompts]
    assert len(meter.usages) == 60
    assert sum(usage.retries for usage in meter.usages) == len(server.calls) - 60 >= 5


@pytest.mark.slow
@pytest.mark.parametrize("limit", [{"tokens": 2000}, {"dollars": 0.06}])
def test_a_budget_is_passed_by_less_than_one_call_per_worker(make, fake_llm, limit: dict[str, float]) -> None:
    """A call takes 120 tokens and $0.003."""
    workers, server, meter = 6, fake_llm(faulty), Purse(**limit)
    answerer = make(base_url=server.openai_url, prices={"openai:m": PRICE}).answerer("openai:m", meter)

    def work(worker: int) -> int:
        for number in range(50):
            try:
                ask(answerer, f"{worker}/{number}")
            except BudgetExhausted:
                return number
        raise AssertionError("the budget never ended")

    with ThreadPoolExecutor(workers) as pool:
        answered = sum(pool.map(work, range(workers)))
    assert answered == len(meter.usages)
    over = meter.tokens - 2000 if "tokens" in limit else (meter.dollars - 0.06) / 0.003 * 120
    assert 0 <= round(over, 6) < workers * 120
