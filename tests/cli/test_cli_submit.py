"""``kernelforge submit``: replies and requests, results as they come, and what is cancelled."""

from __future__ import annotations

import io
import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kernelforge.records import UNCOMPARED
from kernelforge.report.formatting import UNCOMPARED_NOTE
from tests.support.protocol_server import TASK, ProtocolServer, ScriptedAnswer, refusal


@pytest.fixture(scope="module")
def started() -> Iterator[ProtocolServer]:
    with ProtocolServer().running() as running:
        yield running


@pytest.fixture
def server(started: ProtocolServer, monkeypatch: pytest.MonkeyPatch) -> ProtocolServer:
    started.reset()
    monkeypatch.setenv("KERNELFORGE_SERVER", started.url)
    monkeypatch.delenv("KERNELFORGE_TOKEN", raising=False)
    return started


def lines(*requests: dict[str, Any]) -> str:
    return "".join(json.dumps({"task": TASK} | request) + "\n" for request in requests)


@pytest.mark.slow
def test_a_reply_is_scored_and_told_in_full(cli: Callable[..., Any], server: ProtocolServer, tmp_path: Path) -> None:
    (tmp_path / "reply.md").write_text("1.5")
    done = cli("submit", "reply.md", "--task", TASK, "--policy", "kevin/1", "--run-id", "run-1", "--profile")
    assert done.code == 0
    assert "reward 1.5 by kernelforge/1" in done.out
    assert "OK" in done.out
    request = server.requests["j1"]
    assert (request.policy, request.run_id, request.profile) == ("kevin/1", "run-1", True)


def test_requests_are_scored_and_told_as_they_end(
    cli: Callable[..., Any], server: ProtocolServer, tmp_path: Path
) -> None:
    (tmp_path / "requests.jsonl").write_text(
        lines({"completion": "1.5", "tag": "first"}, {"completion": "now 2", "run_id": "own"}) + "\n"
    )
    done = cli("submit", "requests.jsonl", "--run-id", "run-1")
    assert done.code == 0
    assert [line.split()[0] for line in done.out.splitlines()] == ["2", "1"]
    assert "first" in done.out
    assert "2 of 2 scored" in done.err
    assert [request.run_id for request in server.requests.values()] == ["run-1", "own"]


@pytest.mark.slow
def test_a_verdict_on_smaller_sizes_alone_is_marked(
    cli: Callable[..., Any], server: ProtocolServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "requests.jsonl").write_text(lines({"completion": "0 uncompared"}, {"completion": "1.5"}))
    done = cli("submit", "requests.jsonl")
    assert sorted(line.split()[3] for line in done.out.splitlines()) == ["OK", "OK*"]
    assert UNCOMPARED_NOTE in done.err
    (tmp_path / "reply.md").write_text("0 uncompared")
    done = cli("submit", "reply.md", "--task", TASK)
    assert f"\n{UNCOMPARED}" in done.out


def test_json_lines_hold_the_whole_results(
    cli: Callable[..., Any], server: ProtocolServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = lines({"completion": "1.5", "tag": "x"}, {"completion": "infra"})
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    done = cli("submit", "-", "--json")
    rows = {row["index"]: row for row in map(json.loads, done.out.splitlines())}
    assert done.code == 1
    assert rows[0]["tag"] == "x"
    assert rows[0]["result"]["reward"] == 1.5
    assert (rows[1]["result"]["reward"], rows[1]["result"]["error"]["code"]) == (None, "worker_died")


def test_trouble_of_the_servers_is_told_and_makes_the_exit_code(
    cli: Callable[..., Any], server: ProtocolServer, tmp_path: Path
) -> None:
    (tmp_path / "reply.md").write_text("infra")
    done = cli("submit", "reply.md", "--task", TASK)
    assert (done.code, done.out) == (1, "no score: three workers died (worker_died)\n")


def test_jobs_may_be_left_to_the_server(cli: Callable[..., Any], server: ProtocolServer, tmp_path: Path) -> None:
    (tmp_path / "requests.jsonl").write_text(lines({"completion": "hold"}, {"completion": "hold"}))
    done = cli("submit", "requests.jsonl", "--no-wait")
    assert (done.code, [line.split()[0] for line in done.out.splitlines()]) == (0, ["j1", "j2"])
    assert server.cancelled == []


def test_what_has_not_ended_in_time_is_cancelled(
    cli: Callable[..., Any], server: ProtocolServer, tmp_path: Path
) -> None:
    (tmp_path / "requests.jsonl").write_text(lines({"completion": "hold"}, {"completion": "now 1"}))
    done = cli("submit", "requests.jsonl", "--timeout", "3")
    assert done.code == 1
    assert server.cancelled == ["j1"]
    assert "cancelled by the caller" in done.out


@pytest.mark.slow
def test_the_token_comes_from_a_file(cli: Callable[..., Any], server: ProtocolServer, tmp_path: Path) -> None:
    (tmp_path / "reply.md").write_text("now 1")
    (tmp_path / "token").write_text("kf_secret\n")
    assert cli("submit", "reply.md", "--task", TASK, "--token-file", "token").code == 0
    assert server.received[0].headers["authorization"] == "Bearer kf_secret"
    (tmp_path / "token").write_text("\n")
    done = cli("submit", "reply.md", "--task", TASK, "--token-file", "token")
    assert (done.code, "holds no token" in done.err) == (2, True)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("reply.md", b"text", "--task"),
        ("absent.md", None, "cannot read absent.md"),
        ("reply.md", b"\xff\xfe", "not UTF-8"),
        ("empty.jsonl", b"\n", "holds no request"),
        ("bad.jsonl", b'{"task": "core/swish", "completion": "1"}\n{"task"', "bad.jsonl, line 2: not JSON"),
        ("bad.jsonl", b"[1]", "line 1: not a JSON object"),
        ("bad.jsonl", b'{"task": "core/swish", "completion": "1", "typo": 1}', "line 1: typo"),
        ("bad.jsonl", b'{"completion": "1"}', "line 1: "),
        ("bad.jsonl", b"[" * 100_000, "line 1: not JSON"),
    ],
)
def test_bad_input_is_one_line_and_nothing_is_sent(
    cli: Callable[..., Any], server: ProtocolServer, tmp_path: Path, name: str, text: bytes | None, message: str
) -> None:
    if text is not None:
        (tmp_path / name).write_bytes(text)
    done = cli("submit", name)
    assert done.code == 2
    assert message in done.err
    assert done.err.startswith("error: ")
    assert done.err.count("\n") == 1
    assert server.received == []


@pytest.mark.parametrize(
    ("scripted", "message"),
    [
        (refusal(401, "unauthorised", "this server wants a token"), "this server wants a token"),
        (ScriptedAnswer(200, b"<html>"), "an unexpected body"),
    ],
)
def test_a_server_that_refuses_is_one_line(
    cli: Callable[..., Any], server: ProtocolServer, tmp_path: Path, scripted: ScriptedAnswer, message: str
) -> None:
    server.instead("/v1/jobs", scripted)
    (tmp_path / "reply.md").write_text("1")
    done = cli("submit", "reply.md", "--task", TASK)
    assert (done.code, done.out) == (1, "")
    assert message in done.err


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_ctrl_c_and_sigterm_cancel_what_has_not_ended(
    start: Callable[..., subprocess.Popen[str]], server: ProtocolServer, tmp_path: Path, number: int, code: int
) -> None:
    (tmp_path / "requests.jsonl").write_text(lines({"completion": "hold"}, {"completion": "hold"}))
    process = start("-m", "kernelforge.cli.main", "submit", "requests.jsonl")
    server.until(lambda: "POST /v1/jobs/wait" in server.lines())
    process.send_signal(number)
    process.communicate(timeout=60)
    assert process.returncode == code
    assert sorted(server.cancelled) == ["j1", "j2"]
