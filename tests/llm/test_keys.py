"""Keys: where they come from, and all the places where they must not turn up."""

import contextlib
import dataclasses
import logging
import os
import subprocess
import sys
import tomllib
import traceback
from pathlib import Path

import pytest

from kernelforge.errors import ProviderError, UsageError
from kernelforge.llm.base import ChatRequest, Turn
from kernelforge.llm.providers import check_model, make_chat_model, server_of
from kernelforge.llm.spec import KEY_NAMES, NO_KEY, URL_NAMES, find_key, find_url, key_source, parse_spec
from kernelforge.records import LLMSettings
from kernelforge.sandbox import Limits, Zygote
from kernelforge.sandbox.policy import data_folder, role_policy
from tests.support.llm_server import Fail, Say

CANARY = "canary-5b1f0c9e7d2a4866"
PROVIDERS = ("openai", "anthropic")
ASK = ChatRequest((Turn("user", "hello"),))


@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_key_comes_from_the_environment_before_the_file(provider, monkeypatch):
    Path(".env").write_text(f"{KEY_NAMES[provider]}=from-file\n")
    assert find_key(provider, required=True).get_secret_value() == "from-file"
    monkeypatch.setenv(KEY_NAMES[provider], " from-environment\n")
    assert find_key(provider, required=True).get_secret_value() == "from-environment"


@pytest.mark.parametrize("provider", PROVIDERS)
def test_where_a_key_is_found_is_told_without_the_key(provider, monkeypatch):
    assert key_source(provider) is None
    Path(".env").write_text(f"{KEY_NAMES[provider]}={CANARY}\n")
    assert key_source(provider) == ".env"
    monkeypatch.setenv(KEY_NAMES[provider], CANARY)
    assert key_source(provider) == "environment"


@pytest.mark.parametrize("line", ['{}="{}"', "export {}={}", "{} = '{}'  # mine", "{}={}\r"])
def test_a_file_is_read_as_such_files_are_written(line):
    Path(".env").write_text("# keys\nOTHER=1\n" + line.format("OPENAI_API_KEY", "ab$HOME") + "\n", newline="")
    assert find_key("openai", required=True).get_secret_value() == "ab$HOME"


@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_key_of_the_file_never_enters_the_environment(provider):
    Path(".env").write_text(f"{KEY_NAMES[provider]}={CANARY}\nSTRANGER={CANARY}\n")
    find_key(provider, required=True)
    assert CANARY not in str(dict(os.environ))
    child = subprocess.run([sys.executable, "-c", "import os; print(dict(os.environ))"], capture_output=True, text=True)
    assert child.returncode == 0
    assert CANARY not in child.stdout


@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_missing_key_is_asked_for_by_name(provider):
    spec = parse_spec(f"{provider}:m")
    for use in (check_model, make_chat_model):
        with pytest.raises(UsageError) as caught:
            use(spec, LLMSettings())
        assert KEY_NAMES[provider] in str(caught.value)
        assert ".env" in str(caught.value)


@pytest.mark.parametrize("text", ["", "OPENAI_API_KEY=\n", "OPENAI_API_KEY\n"])
def test_an_empty_key_is_no_key(text, monkeypatch):
    Path(".env").write_text(text)
    monkeypatch.setenv("OPENAI_API_KEY", " ")
    with pytest.raises(UsageError, match="need a key"):
        find_key("openai", required=True)
    assert find_key("openai", required=False) is NO_KEY


@pytest.mark.parametrize("key", [f"{CANARY}\n{CANARY}", f"{CANARY} x", f"{CANARY}ü", f"{CANARY}\x00"[:-1] + "\x7f"])
def test_a_key_that_no_header_can_hold_is_refused_without_being_repeated(key, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", key)
    with pytest.raises(UsageError, match="OPENAI_API_KEY") as caught:
        find_key("openai", required=True)
    assert CANARY not in everything_about(caught.value)


def test_a_file_that_cannot_be_read_is_named():
    Path(".env").write_bytes(f"OPENAI_API_KEY={CANARY}".encode() + b"\xff\xfe\n")
    with pytest.raises(UsageError, match=r"\.env cannot be read") as caught:
        find_key("openai", required=True)
    assert CANARY not in everything_about(caught.value)


@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_server_of_ones_own_needs_no_key(provider, fake_llm):
    server = fake_llm()
    url = server.openai_url if provider == "openai" else server.url
    model = make_chat_model(parse_spec(f"{provider}:m?base_url={url}"), LLMSettings())
    assert model.complete(ASK).text == "ok"
    assert server.calls[0].key == "none"
    model.close()


def test_the_server_is_that_of_the_specification_then_of_the_settings_then_of_the_environment(monkeypatch):
    plain, settings = parse_spec("openai:m"), LLMSettings(base_url="http://settings/v1")
    assert server_of(plain, LLMSettings()) is None
    for provider in PROVIDERS:
        monkeypatch.setenv(URL_NAMES[provider], f"http://{provider}/v1")
        assert find_url(provider) == f"http://{provider}/v1"
    assert server_of(plain, LLMSettings()) == "http://openai/v1"
    assert server_of(plain, settings) == "http://settings/v1"
    assert server_of(parse_spec("openai:m?base_url=http://spec/v1"), settings) == "http://spec/v1"
    assert server_of(parse_spec("anthropic:m"), settings) == "http://anthropic/v1"


@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_file_that_came_with_a_folder_does_not_send_the_key_elsewhere(provider, monkeypatch):
    file, key, url = Path(".env"), KEY_NAMES[provider], URL_NAMES[provider]
    monkeypatch.setenv(key, CANARY)
    file.write_text(f"{url}=https://elsewhere.example/v1\n")
    for use in (check_model, make_chat_model):
        with pytest.raises(UsageError, match=r"elsewhere\.example") as caught:
            use(parse_spec(f"{provider}:m"), LLMSettings())
        assert CANARY not in everything_about(caught.value)
    file.write_text(f"{url}=http://localhost:8000/v1\n")
    assert find_url(provider) == "http://localhost:8000/v1"
    file.write_text(f"{url}=https://elsewhere.example/v1\n{key}={CANARY}\n")
    assert find_url(provider) == "https://elsewhere.example/v1"
    file.write_text(f"{url}=https://elsewhere.example/v1\n{key}=another\n")
    monkeypatch.delenv(key)
    assert find_url(provider) == "https://elsewhere.example/v1"
    monkeypatch.setenv(key, CANARY)
    monkeypatch.setenv(url, "https://meant.example/v1")
    assert find_url(provider) == "https://meant.example/v1"


def test_the_provider_itself_needs_a_key_however_it_is_named():
    for text in ("openai:m?base_url=https://api.openai.com/v1", "anthropic:m?base_url=https://api.anthropic.com"):
        with pytest.raises(UsageError, match="need a key"):
            check_model(parse_spec(text), LLMSettings())
    check_model(parse_spec("openai:m?base_url=https://api.anthropic.com/v1"), LLMSettings())


def everything_about(error):
    """All that a careless report of an exception could print."""
    seen, waiting, text = set(), [error], ""
    while waiting:
        item = waiting.pop()
        if item is None or id(item) in seen:
            continue
        seen.add(id(item))
        waiting += [item.__cause__, item.__context__]
        report = traceback.TracebackException.from_exception(item, capture_locals=True)
        # The frame of this test's own caller holds the key that it planted.
        report.stack = traceback.StackSummary.from_list(
            [frame for frame in report.stack if Path(frame.filename).name != Path(__file__).name]
        )
        report.__cause__ = report.__context__ = None
        text += "".join(report.format()) + repr(item) + repr(vars(item))
    return text


FAILURES = [
    Fail(status, message="not with this key", echo_key=True) for status in (400, 401, 403, 404, 422, 429, 500, 529)
] + [Fail(message="not with this key", echo_key=True, in_stream=True), Say("x", break_after=1)]


@pytest.mark.parametrize("wire", ["responses", "chat", "messages"])
@pytest.mark.parametrize("script", FAILURES, ids=lambda script: str(getattr(script, "status", "dropped")))
def test_a_key_is_in_no_error_log_or_repr(wire, script, fake_llm, monkeypatch, caplog, capfd):
    monkeypatch.setenv("OPENAI_API_KEY", CANARY)
    monkeypatch.setenv("ANTHROPIC_API_KEY", CANARY)
    caplog.set_level(logging.DEBUG)
    for name in ("openai", "anthropic", "httpx2", "httpcore2", "httpx", "httpcore"):
        caplog.set_level(logging.DEBUG, logger=name)
    server = fake_llm(script)
    spec = {
        "responses": f"openai:m?api=responses&base_url={server.openai_url}",
        "chat": f"openai:m?base_url={server.openai_url}",
        "messages": f"anthropic:m?base_url={server.url}",
    }[wire]
    model = make_chat_model(parse_spec(spec), LLMSettings())
    with pytest.raises(ProviderError) as caught:
        model.complete(ASK)
    model.close()
    assert server.calls[0].key == CANARY
    assert CANARY not in everything_about(caught.value)
    assert CANARY not in repr(model) + repr(vars(model)) + str(model)
    assert caplog.records
    assert CANARY not in caplog.text
    captured = capfd.readouterr()
    assert CANARY not in captured.out + captured.err


def roles():
    return sorted(tomllib.loads((data_folder() / "jail.toml").read_text()))


@pytest.mark.parametrize("role", roles())
def test_no_child_process_sees_a_key(role, monkeypatch, tmp_path):
    """The environment, mounts and devices are the role's own; its code is hostile (see tests/sandbox)."""
    monkeypatch.syspath_prepend(str(Path(__file__).parent.parent / "sandbox"))
    for name in (*KEY_NAMES.values(), "SOME_OTHER_KEY"):
        monkeypatch.setenv(name, CANARY)
    file = tmp_path / ".env"
    file.write_text(f"OPENAI_API_KEY={CANARY}\n")
    file.chmod(0o644)
    find_key("openai", required=True)
    policy = dataclasses.replace(role_policy(role), module="tests.sandbox.jail_worker")
    with Zygote(role, policy=policy) as zygote, zygote.spawn(Limits(memory_bytes=512 << 20)) as child:

        def act(name, *arguments):
            return child.call({"act": name, "arguments": list(arguments)}).data["reply"]

        inside = act("environment")
        assert inside["opened"]
        assert set(inside["gave"]) <= {*policy.environment, "TMPDIR", "LC_CTYPE"}
        assert CANARY not in str(inside)
        for path in (".env", str(file), f"/proc/{os.getpid()}/environ", f"/proc/{zygote.pid}/environ"):
            assert CANARY not in str(act("read", path))
        with contextlib.suppress(PermissionError):
            assert CANARY not in Path(f"/proc/{zygote.pid}/environ").read_text()
