"""Settings of clients, and where clients may be used: threads, forks, event loops, other processes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from kernelforge.client import AsyncClient, Client
from kernelforge.errors import UsageError
from tests.support.protocol_server import TASK, ProtocolServer

ROOT = Path(__file__).resolve().parents[2]


def test_server_and_token_come_from_the_environment(server: ProtocolServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNELFORGE_SERVER", server.url + "/")
    monkeypatch.setenv("KERNELFORGE_TOKEN", "kf_from_environment")
    with Client() as client:
        client.tasks()
    assert server.received[0].headers["authorization"] == "Bearer kf_from_environment"


def test_without_an_environment_it_is_this_machines_server_and_no_token() -> None:
    assert Client().url == AsyncClient().url == "http://127.0.0.1:8765"


def test_no_proxy_stands_before_this_machine(server: ProtocolServer, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    with Client(server.url, retries=0) as client:
        assert [row.task for row in client.tasks()] == [TASK]


@pytest.mark.parametrize("url", ["127.0.0.1:8765", "ftp://host", "http://", "http://[::1", "nonsense"])
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(UsageError, match="address"):
        Client(url)


def test_a_token_with_a_line_feed_is_refused() -> None:
    with pytest.raises(UsageError, match="line feed") as raised:
        AsyncClient(token="kf_secret\n")
    assert "kf_secret" not in str(raised.value)


def test_a_token_is_never_shown() -> None:
    for client in (Client(token="kf_secret"), AsyncClient(token="kf_secret")):
        assert "kf_secret" not in repr(client) + repr(vars(client))


def test_clients_travel_to_other_processes(server: ProtocolServer) -> None:
    with pickle.loads(pickle.dumps(Client(server.url, "kf_secret"))) as client:
        assert client.score(TASK, "1").reward == 1.0
    assert server.received[0].headers["authorization"] == "Bearer kf_secret"
    assert pickle.loads(pickle.dumps(AsyncClient(server.url))).url == server.url


def test_threads_share_a_client(server: ProtocolServer) -> None:
    with Client(server.url) as client, ThreadPoolExecutor(16) as pool:
        results = list(pool.map(lambda number: client.score(TASK, f"{number}"), range(40)))
    assert [result.reward for result in results] == [float(number) for number in range(40)]
    assert len(server.jobs) == 40


@pytest.mark.slow
def test_a_forked_child_has_connections_of_its_own(server: ProtocolServer) -> None:
    """Parent and child go on at once; on one shared connection each would read the other's answers."""
    with Client(server.url) as client:
        assert client.score(TASK, "now 0").reward == 0.0
        children = []
        for number in range(1, 3):
            child = os.fork()
            if child == 0:
                wrong = [-1]
                with contextlib.suppress(Exception):
                    wrong = [
                        n for n in range(10) if client.score(TASK, f"now {100 * number + n}").reward != 100 * number + n
                    ]
                os._exit(len(wrong))
            children.append(child)
        for n in range(10):
            assert client.score(TASK, f"now {n}").reward == n
        assert [os.waitpid(child, 0)[1] for child in children] == [0, 0]
    assert len(server.jobs) == 31


def test_one_client_serves_several_event_loops(server: ProtocolServer) -> None:
    client = AsyncClient(server.url)
    assert [asyncio.run(client.score(TASK, f"{number}")).reward for number in range(3)] == [0.0, 1.0, 2.0]
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda number: asyncio.run(client.score(TASK, f"{number}")), range(8)))
    assert [result.reward for result in results] == [float(number) for number in range(8)]


@pytest.mark.slow
def test_importing_the_client_takes_an_http_client_and_pydantic() -> None:
    """Trainers install it next to their own torch and ray, without KernelForge's."""
    code = (
        "import sys; from kernelforge.client import AsyncClient, Client; import kernelforge; "
        "print(*sorted({name.partition('.')[0] for name in sys.modules} - set(sys.stdlib_module_names)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
    )
    heavy = {"torch", "fastapi", "numpy", "ray", "rich", "typer", "openai", "anthropic", "starlette", "sqlite_utils"}
    assert {"httpx2", "pydantic"} <= set(done.stdout.split())
    assert heavy.isdisjoint(done.stdout.split())
