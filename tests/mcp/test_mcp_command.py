"""The command's own errors: one clear line each, before anything is served."""

from __future__ import annotations

import re
import signal
import sys
from collections.abc import Awaitable, Callable
from types import SimpleNamespace

import anyio
import pytest

from kernelforge.cli.mcp import mcp
from kernelforge.errors import UsageError
from kernelforge.mcp import transport
from kernelforge.tasks.suites import Catalogue
from kernelforge.utils.shell_hints import install_hint


def test_without_the_sdk_the_command_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mcp", None)
    with pytest.raises(UsageError, match=re.escape(install_hint("mcp"))):
        mcp()


@pytest.mark.parametrize("token", ["short", "x" * 15, "é" * 20, "x" * 20 + "\n"])
def test_a_token_that_is_weak_or_no_header_is_refused(monkeypatch: pytest.MonkeyPatch, token: str) -> None:
    monkeypatch.setenv(transport.TOKEN_VARIABLE, token)
    with pytest.raises(UsageError, match=transport.TOKEN_VARIABLE):
        transport.token_from_environment()


def test_a_fresh_token_is_long_and_never_the_same() -> None:
    tokens = {transport.new_token() for _ in range(8)}
    assert len(tokens) == 8
    assert min(map(len, tokens)) >= 32


def test_a_port_that_is_taken_is_named() -> None:
    import socket

    with socket.create_server((transport.HOST, 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UsageError, match=f"cannot listen on 127.0.0.1:{port}"):
            transport.serve_http(None, port, "x" * 32, print)  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.parametrize("when", ["before it serves", "as soon as the address is known"])
def test_a_signal_that_comes_early_ends_the_server_too(monkeypatch: pytest.MonkeyPatch, when: str) -> None:
    def ready(address: str) -> None:
        if when != "before it serves":
            signal.raise_signal(signal.SIGTERM)

    def run(main: Callable[[], Awaitable[None]]) -> None:
        if when == "before it serves":
            signal.raise_signal(signal.SIGTERM)
        anyio.run(main)

    kept = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    monkeypatch.setattr(transport, "anyio", SimpleNamespace(run=run))
    try:
        transport.serve_http(None, 0, "x" * 32, ready)  # type: ignore[arg-type]
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)


def test_one_task_of_two_suites_is_ambiguous() -> None:
    with pytest.raises(UsageError, match="give --suite once"):
        Catalogue(["core", "core"], ["gelu"])
    with pytest.raises(UsageError, match="two suites are called 'core'"):
        Catalogue(["core", "core"])
