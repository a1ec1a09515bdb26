"""The wait that a server asks for, and messages without a key."""

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest
from pydantic import SecretStr

from kernelforge.llm.http import code_failure, retry_after_s, status_failure
from kernelforge.llm.spec import Remote

REMOTE = Remote("OpenAI", "gpt-5", "OPENAI_API_KEY", SecretStr("canary-0123456789"))


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [({}, None), ({"retry-after": "12"}, 12), ({"retry-after": "0"}, 0), ({"retry-after": "0.25"}, 0.25),
     ({"retry-after-ms": "1500", "retry-after": "9"}, 1.5), ({"retry-after": "soon"}, None),
     ({"retry-after-ms": "soon", "retry-after": "9"}, 9), ({"retry-after": "-5"}, None), ({"retry-after": "nan"}, None),
     ({"retry-after": "inf"}, None), ({"retry-after": "Wed, 21 Oct 2015 07:28:00 GMT"}, 0)],
)  # fmt: skip
def test_a_wait_is_read_in_seconds_or_milliseconds(headers, seconds):
    assert retry_after_s(headers) == seconds


@pytest.mark.parametrize("usegmt", [True, False])
def test_a_wait_until_a_date_is_read(usegmt):
    date = format_datetime(datetime.now(UTC) + timedelta(hours=1), usegmt=usegmt)
    assert 3500 < retry_after_s({"retry-after": date}) <= 3600


def test_a_lasting_failure_asks_for_no_wait():
    error = status_failure(400, None, REMOTE, headers={"retry-after": "5"})
    assert (error.passing, error.retry_after_s) == (False, None)


@pytest.mark.parametrize(
    "body",
    [None, [], "text", {}, {"error": None}, {"error": "text"}, {"error": []}, {"error": {"message": 5, "code": 7}}],
)
def test_any_body_makes_an_error(body):
    assert status_failure(503, body, REMOTE).passing
    assert not status_failure(400, body, REMOTE).passing
    assert code_failure(body, REMOTE).passing


@pytest.mark.parametrize("code", ["insufficient_quota", "billing_error"])
def test_an_empty_account_is_known_by_code_or_type(code):
    assert not status_failure(429, {"error": {"code": code}}, REMOTE).passing
    assert not status_failure(429, {"error": {"code": None, "type": code}}, REMOTE).passing


def test_a_busy_server_passes_whatever_its_code():
    assert status_failure(503, {"error": {"type": "invalid_request_error"}}, REMOTE).passing
    assert status_failure(
        429, {"error": {"type": "invalid_request_error", "code": "rate_limit_exceeded"}}, REMOTE
    ).passing


@pytest.mark.parametrize("key", ["canary-0123456789", "sk-proj-abc*****wxyz", "sk-ant-api03-Zm9v_bar-baz"])
def test_keys_are_redacted_whole_and_abbreviated(key):
    for failed in (
        status_failure(400, {"error": {"message": f"bad: {key}."}}, REMOTE),
        code_failure({"message": f"bad: {key}."}, REMOTE),
    ):
        assert "bad: [key]" in str(failed)
        assert key not in str(failed)


def test_a_long_message_is_cut():
    assert len(str(status_failure(400, {"error": {"message": "x" * 100_000}}, REMOTE))) < 1000
