"""A local server that speaks the providers' protocols, and an environment without anyone's keys."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from tests.support.llm_server import FakeLLM


@pytest.fixture
def fake_llm():
    """Starts servers: ``fake_llm(script)``, as :class:`FakeLLM` takes it. All end with the test."""
    with ExitStack() as stack:
        yield lambda *args, **options: stack.enter_context(FakeLLM(*args, **options))


@pytest.fixture(autouse=True)
def no_keys(monkeypatch, tmp_path):
    """The environment of the tests has keys that must not be used, and a folder with a ``.env``."""
    for provider in ("OPENAI", "ANTHROPIC"):
        for name in ("API_KEY", "BASE_URL", "LOG", "AUTH_TOKEN", "ORG_ID", "PROJECT_ID", "CUSTOM_HEADERS"):
            monkeypatch.delenv(f"{provider}_{name}", raising=False)
    monkeypatch.chdir(tmp_path)
