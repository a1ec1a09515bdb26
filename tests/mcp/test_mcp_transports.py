"""The command itself: a real client over stdio, and over HTTP with a token; without one the server refuses."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest
from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client

from kernelforge.records import RunState, Verdict
from kernelforge.store import DATABASE_NAME, Store
from tests.mcp.mcp_talk import CODER, ME, PLAN, RIGHT, WRONG, caller, write_suite

TOKEN = "a-token-of-the-tests-own"
COMMAND = ["-m", "kernelforge", "mcp"]
HANDSHAKES = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
"""Revisions of the protocol that begin with a handshake."""
NEWEST = "2026-07-28"
HELLO = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
WAIT_S = 240.0
"""For what must happen; nothing is timed by it."""


@pytest.mark.slow
def test_a_session_over_stdio_from_the_list_of_tasks_to_the_journal(tmp_path: Path) -> None:
    suite, results = write_suite(tmp_path / "tiny"), tmp_path / "results"
    server = StdioServerParameters(
        command=sys.executable,
        args=[*COMMAND, "--suite", str(suite), "--task", "gelu", "--results", str(results), "--evaluations", "4"],
        cwd=Path(__file__).parents[2],
    )

    async def session() -> list[dict[str, Any]]:
        async with Client(server, client_info=ME) as client:
            assert "submit" in (client.instructions or "")
            call = caller(client)
            listed = await call("list_tasks")
            task = listed["tasks"][0]["task"]
            assert "F.gelu" in (await call("show_task", task=task))["prompt"]
            answers = [await call("evaluate", task=task, source=WRONG, plan=PLAN)]
            answers.append((await call("profile", task=task, source=RIGHT, plan=PLAN))["evaluation"])
            for source in (WRONG, RIGHT):
                answers.append((await call("submit", task=task, source=source, plan=PLAN))["evaluation"])
            return answers

    answers = anyio.run(session)
    assert [answer["verdict"] for answer in answers] == ["WRONG", "OK", "WRONG", "OK"]
    assert "small size" in answers[0]["reason"]
    assert [answer["evaluations_left"] for answer in answers] == [3, 2, 1, 0]
    with Store.open(results / DATABASE_NAME, read_only=True) as store:
        run = store.run("latest")
        assert (run.config.coder, run.config.tasks, run.state) == (CODER, ("gelu",), RunState.FINISHED)
        verdicts = [attempt.evaluation.verdict for attempt in store.attempts(run.id)]
        assert verdicts == [Verdict.WRONG, Verdict.OK]
        assert store.finished_tasks(run.id) == {"gelu": "the session ended"}


@pytest.mark.slow
def test_the_configuration_of_the_page_starts_servers_that_go_on_with_each_other(tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    (block, *_) = re.findall(r"```json\n(.*?)```", (root / "docs" / "mcp.md").read_text(encoding="utf-8"), re.DOTALL)
    _, *args = json.loads(block)["mcpServers"]["kernelforge"]["args"]
    assert "/data/kernels" in args
    placed = [os.fspath(tmp_path) if arg == "/data/kernels" else arg for arg in args]
    server = StdioServerParameters(command=sys.executable, args=[*COMMAND, *placed], cwd=root)
    plan = "def forward(x):\n    return x\n"
    refused = {"task": "gelu", "source": "__global__ void k() {}", "plan": plan}

    async def session(go_on: bool) -> dict[str, Any]:
        async with Client(server, client_info=ME) as client:
            call = caller(client)
            if go_on:
                await call("go_on")
            await call("submit", **refused)
            return await call("attempts")

    first, second = anyio.run(session, False), anyio.run(session, True)
    assert (first["total"], second["total"]) == (1, 2)
    assert second["attempts"][0] == first["attempts"][0]
    assert second["attempts"][1]["parent"] == first["attempts"][0]["attempt"]
    with Store.open(tmp_path / DATABASE_NAME, read_only=True) as store:
        assert [(run.config.coder, run.state) for run in store.runs()] == [(CODER, RunState.FINISHED)]


@pytest.mark.slow
def test_sigterm_ends_a_server_that_waits_for_its_client(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, *COMMAND, "--suite", "core", "--results", str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        process.stdin.write('{"jsonrpc": "2.0", "id": 1, "method": "ping"}\n')
        process.stdin.flush()
        assert '"id":1' in process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        assert process.wait(WAIT_S) == 0


@dataclass(frozen=True)
class Served:
    """A server over HTTP."""

    address: str
    log: str

    @property
    def host(self) -> str:
        return httpx2.URL(self.address).netloc.decode()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("served")
    with subprocess.Popen(
        [sys.executable, *COMMAND, "--http", "0", "--results", str(folder)],
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "KERNELFORGE_MCP_TOKEN": TOKEN},
    ) as process:
        assert process.stderr is not None
        output = ""
        while "serving on " not in output:
            line = process.stderr.readline()
            assert line, output
            output += line
        yield Served(output.rpartition("serving on ")[2].strip(), output)
        process.terminate()
        process.communicate(timeout=WAIT_S)
        assert process.returncode == 0, "SIGTERM must end the server in good order, so that runs are closed"


def post(served: Served, message: dict[str, Any] = HELLO, **headers: str) -> httpx2.Response:
    accepted = {"Accept": "application/json, text/event-stream"}
    return httpx2.post(served.address, json=message, headers={**accepted, **headers}, trust_env=False)


@pytest.mark.slow
@pytest.mark.parametrize(
    "header", [None, "Bearer", "Bearer wrong", f"Basic {TOKEN}", f"Bearer {TOKEN}x", "Bearer \xe9"]
)
def test_over_http_nobody_is_answered_without_the_token(served: Served, header: str | None) -> None:
    headers = {} if header is None else {"Authorization": header.encode("latin-1")}
    answer = post(served, **headers)  # type: ignore[arg-type]
    assert answer.status_code == 401
    assert TOKEN not in answer.text


@pytest.mark.slow
@pytest.mark.parametrize("name", ["Host", "Origin"])
def test_over_http_requests_that_name_another_host_are_refused(served: Served, name: str) -> None:
    value = "evil.example:80" if name == "Host" else "http://evil.example"
    answer = post(served, Authorization=f"Bearer {TOKEN}", **{name: value})
    assert answer.status_code == (421 if name == "Host" else 403)


@pytest.mark.slow
def test_over_http_the_server_listens_on_the_loopback_interface_alone(served: Served) -> None:
    assert served.host.startswith("127.0.0.1:")
    assert TOKEN not in served.log


@pytest.mark.slow
@pytest.mark.parametrize("version", [*HANDSHAKES, "1999-01-01"])
def test_every_revision_of_the_protocol_is_spoken(served: Served, version: str) -> None:
    client = {"name": "raw", "version": "1"}
    params = {"protocolVersion": version, "capabilities": {}, "clientInfo": client}
    message = {**HELLO, "method": "initialize", "params": params}
    answer = post(served, message, Authorization=f"Bearer {TOKEN}")
    (line,) = (line for line in answer.text.splitlines() if line.startswith("data: {"))
    result = json.loads(line.removeprefix("data: "))["result"]
    assert result["protocolVersion"] == (version if version in HANDSHAKES else HANDSHAKES[-1])
    assert {"tools", "resources"} <= set(result["capabilities"])


@pytest.mark.slow
def test_the_newest_revision_needs_no_handshake(served: Served) -> None:
    meta = {f"io.modelcontextprotocol/{key}": value for key, value in
            {"protocolVersion": NEWEST, "clientCapabilities": {}}.items()}  # fmt: skip
    message = {**HELLO, "method": "server/discover", "params": {"_meta": meta}}
    headers = {"MCP-Protocol-Version": NEWEST, "Mcp-Method": "server/discover"}
    answer = post(served, message, Authorization=f"Bearer {TOKEN}", **headers).json()
    assert NEWEST in answer["result"]["supportedVersions"]


@pytest.mark.slow
def test_over_http_a_client_with_the_token_is_served(served: Served) -> None:
    async def session() -> dict[str, Any]:
        headers = {"Authorization": f"Bearer {TOKEN}"}
        async with (
            httpx2.AsyncClient(headers=headers, trust_env=False) as http,
            Client(streamable_http_client(served.address, http_client=http), client_info=ME) as client,
        ):
            return await caller(client)("list_tasks", suite="core")

    assert "core/softmax" in [row["task"] for row in anyio.run(session)["tasks"]]
