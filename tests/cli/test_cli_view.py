"""``kernelforge view`` as a process: its address, its end, what it refuses, and that it holds no key."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path

import httpx2
import pytest

from kernelforge.utils.shell_hints import install_hint

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "words", "runs"),
    [(signal.SIGINT, [], {"older", "newer"}), (signal.SIGTERM, ["older"], {"older"})],
)
def test_it_shows_what_was_asked_for_and_ends_in_good_order_while_a_page_listens(
    start: Start, journal: Path, number: signal.Signals, words: list[str], runs: set[str]
) -> None:
    process = start("-m", "kernelforge", "view", *words, "--port", "0", "--results", str(journal))
    address = process.stdout.readline().removeprefix("kernelforge: open ").strip()
    url, token = address.split("/?token=")
    assert url.startswith("http://127.0.0.1:")
    assert len(token) == 43
    with httpx2.Client(follow_redirects=True, timeout=60) as browser:
        page = browser.get(address)
        assert (page.status_code, str(page.url)) == (200, f"{url}/")
        for run in ("older", "newer"):
            result = browser.get(f"{url}/runs/{run}/index.html").status_code
            assert (run in page.text, result) == (run in runs, 200 if run in runs else 404)
        with browser.stream("GET", f"{url}/events") as events:
            lines = events.iter_lines()
            while next(lines) != "event: progress":
                pass
            process.send_signal(number)
            assert list(lines)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0
    assert out == ""
    assert "Traceback" not in err
    assert token not in err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--results", "nowhere"], "there is no results database at nowhere"),
        (["none"], "there is no run 'none'"),
        (["--port", "70000"], "65535"),
        (["--host", "0.0.0.0"], "--host"),
    ],
)
def test_what_cannot_be_is_refused_in_a_line(cli: Callable, journal: Path, words: list[str], message: str) -> None:
    done = cli("view", *words)
    assert done.code in (1, 2)
    assert message in done.err
    assert "Traceback" not in done.err


def test_a_port_in_use_is_refused_in_a_line(cli: Callable, journal: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        done = cli("view", "--port", str(port))
    assert done.code == 2
    assert done.err == f"error: cannot listen on 127.0.0.1:{port}, it is in use: choose another with --port\n"


def test_an_empty_database_says_how_to_begin(cli: Callable, tmp_path: Path) -> None:
    from kernelforge.store import Store

    Store.open(tmp_path / "results" / "kernelforge.db").close()
    done = cli("view")
    assert done.code == 2
    assert "start one with 'kernelforge run'" in done.err


def test_it_names_what_is_not_installed(cli: Callable, journal: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernelforge.cli.report.find_spec", lambda name: None if name == "uvicorn" else name)
    done = cli("view")
    assert done.code == 2
    assert "(uvicorn)" in done.err
    assert install_hint("server") in done.err


def test_the_viewer_forgets_what_its_environment_held(start: Start) -> None:
    code = (
        "import json, os; from kernelforge.cli import report; "
        "report._forget_keys(); print(json.dumps(dict(os.environ)))"
    )
    secrets = {"OPENAI_API_KEY": "canary", "ANTHROPIC_API_KEY": "canary", "KERNELFORGE_TOKEN": "canary", "X": "canary"}
    out, _ = start("-c", code, env=secrets).communicate(timeout=60)
    environment = json.loads(out)
    assert environment["PATH"] == os.environ["PATH"]
    assert "canary" not in environment.values()
