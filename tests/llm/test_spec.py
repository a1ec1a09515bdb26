"""Specifications of hosted models."""

import pytest

from kernelforge.errors import UsageError
from kernelforge.llm.spec import OPTIONS, AgentSpec, parse_spec


def test_every_option_is_read():
    spec = parse_spec(
        "openai:gpt-5?effort=high&temperature=0.2&max_output_tokens=16000&base_url=http://host:8000/v1&api=responses"
    )
    assert spec == AgentSpec(
        provider="openai", model="gpt-5", effort="high", temperature=0.2, max_output_tokens=16000,
        base_url="http://host:8000/v1", api="responses",
    )  # fmt: skip
    assert spec.name == "openai:gpt-5"


@pytest.mark.parametrize("value", ["adaptive", "disabled", "1024", "32000"])
def test_thinking_is_anthropics(value):
    assert parse_spec(f"anthropic:m?thinking={value}").thinking == value
    with pytest.raises(UsageError, match="no option 'thinking'"):
        parse_spec(f"openai:m?thinking={value}")


@pytest.mark.parametrize("model", ["Qwen/Qwen3-32B", "llama3:8b", "registry.local:5000/team/model:v1", "gpt-5"])
def test_names_may_hold_slashes_and_colons(model):
    for provider in ("openai", "anthropic"):
        spec = parse_spec(f"{provider}:{model}?effort=low")
        assert (spec.provider, spec.model, spec.effort) == (provider, model, "low")


def test_what_is_not_said_is_left_to_the_provider():
    assert parse_spec("anthropic:claude-x") == AgentSpec(provider="anthropic", model="claude-x")


@pytest.mark.parametrize("bad", ["", "gpt-5", "openai", "openai:", "mistral:x", "openai:?effort=low", "openai: gpt-5",
                                 "openai:gpt-5,anthropic:claude-x", "OpenAI:gpt-5"])  # fmt: skip
def test_what_names_no_model_is_refused(bad):
    with pytest.raises(UsageError):
        parse_spec(bad)


@pytest.mark.parametrize(
    "query",
    ["", "effort", "effort=", "effort=hard", "effort=low&effort=high", "temperature=warm", "temperature=-0.1",
     "temperature=nan", "temperature=inf", "max_output_tokens=0", "max_output_tokens=1.5", "max_output_tokens=1e5",
     "top_p=0.5", "=low", "Effort=low"],
)  # fmt: skip
@pytest.mark.parametrize("provider", ["openai", "anthropic"])
def test_a_bad_option_is_refused_with_a_list_of_good_ones(provider, query):
    with pytest.raises(UsageError) as caught:
        parse_spec(f"{provider}:m?{query}")
    for option, values in OPTIONS[provider].items():
        assert f"{option} ({values})" in str(caught.value)


@pytest.mark.parametrize("text", ["openai:m?temperature=2.5", "anthropic:m?temperature=1.5", "anthropic:m?api=chat",
                                  "anthropic:m?effort=minimal", "openai:m?api=completions",
                                  "anthropic:m?thinking=1023", "anthropic:m?thinking=a_lot",])  # fmt: skip
def test_what_the_other_provider_takes_is_refused(text):
    with pytest.raises(UsageError):
        parse_spec(text)


@pytest.mark.parametrize("url", ["localhost:8000", "ftp://host/v1", "http://", "http://host:port/v1", "http:///v1",
                                 "http://ho st/v1", "http://host:99999/v1"])  # fmt: skip
def test_a_bad_address_is_refused(url):
    with pytest.raises(UsageError, match="no server's address"):
        parse_spec(f"openai:m?base_url={url}")


def test_an_address_with_a_password_is_refused_without_repeating_it():
    with pytest.raises(UsageError) as caught:
        parse_spec("openai:m?base_url=http://me:canary@host/v1")
    assert "canary" not in str(caught.value)
