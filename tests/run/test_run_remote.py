"""A run on a device of another machine: the same results, nothing lost by a cut, nothing left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from kernelforge.errors import DeviceError
from kernelforge.evaluation.remote.machines import open_pool
from kernelforge.evaluation.remote.pool import RemotePool
from kernelforge.records import Attempt, RunState
from kernelforge.run import Event, StopSignal
from tests.run.run_helpers import TASKS, open_store, quick_config, run_in
from tests.support.ssh_host import SshHost, reachable_host, ssh_clients
from tests.workers.engine_orders import all_gone, family_of

CANARY = "canary-of-a-key"


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SshHost]:
    with pytest.MonkeyPatch.context() as patch, reachable_host(tmp_path_factory.mktemp("host")) as there:
        patch.setenv("OPENAI_API_KEY", CANARY)
        yield there


def results(folder: Path) -> list[dict[str, Any]]:
    """All that a run found out, but for times and what names the run."""

    def attempt(each: Attempt) -> dict[str, Any]:
        plain = each.model_dump(mode="json", include={"task", "number", "candidate", "profile", "trials", "reward"})
        apart: Any = {"seconds": True, "build": {"seconds", "cached"}}
        return plain | {"evaluation": each.evaluation.model_dump(mode="json", exclude=apart)}

    with open_store(folder) as store:
        attempts = store.attempts(store.run("latest").id)
    return [attempt(each) for each in sorted(attempts, key=lambda each: (each.task, each.number))]


@pytest.fixture(scope="module")
def local(host: SshHost, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("local")
    run_in(folder, quick_config(tasks=TASKS, jobs=1, device="emulated:h100"))
    host.take_machine_code()
    return results(folder)


@pytest.mark.slow
def test_a_run_there_equals_one_here_and_survives_a_cut(
    host: SshHost, tmp_path: Path, local: list[dict[str, Any]]
) -> None:
    started, cuts, seen = len(host.pids), list[int](), set[int]()

    def cut(event: Event, stop: StopSignal) -> None:
        if event.kind == "stage" and event.stage == "evaluate":
            seen.update(family_of(host.pids[-1]))
            if event.round == 1:
                for client in ssh_clients():
                    os.kill(client, signal.SIGKILL)
                    cuts.append(event.round)

    config = quick_config(tasks=("swish",), jobs=1, device=host.url(python=sys.executable))
    assert (config.host.partition("?")[0], config.device) == (host.url("").rstrip("/"), "emulated:h100")

    run = run_in(tmp_path, config, cut)

    assert run.state is RunState.FINISHED
    assert cuts == [1]
    assert len(host.pids) == started + 2
    assert results(tmp_path) == [each for each in local if each["task"] == "swish"]
    assert len(results(tmp_path)) >= 3
    assert all_gone(seen | set(host.pids))


@pytest.mark.slow
def test_a_machine_that_goes_away_leaves_its_tasks_to_the_others(
    host: SshHost, tmp_path: Path, local: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kernelforge.evaluation.remote.connection.RECONNECT_S", (0.0, 0.1))
    there, here, warnings = tmp_path / "other", tmp_path / "results", list[str]()
    there.mkdir()
    here.mkdir()
    with closing(SshHost(there, client_of=host)) as other:
        other.take_machine_code()

        def leave(event: Event, stop: StopSignal) -> None:
            warnings.extend([event.message] if event.kind == "warning" else [])
            if event.kind == "stage" and event.stage == "evaluate" and event.round == 1 and other.port:
                other.disappear()

        urls = [each.url(python=sys.executable) for each in (host, other)]
        config = quick_config(tasks=TASKS, jobs=2, device=",".join(urls))
        run = run_in(here, config, leave)

    assert run.state is RunState.FINISHED
    assert config.device == "emulated:h100"
    assert results(here) == local
    assert {each["task"] for each in local} == set(TASKS)
    [lost] = [message for message in warnings if "is set aside" in message]
    assert lost.startswith(f"{urls[1]} is set aside: ")


@pytest.mark.slow
def test_without_any_machine_there_is_no_run(host: SshHost) -> None:
    urls = [host.url(python=sys.executable).replace(f":{host.port}", f":{port}") for port in (1, 2)]
    with pytest.raises(DeviceError, match="refused"):
        open_pool(",".join(urls))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("key", "host key is not known here: connect once with `ssh -p"),
        ("port", "refused"),
        ("python", "no python3 on the path"),
        ("gpu", "cuda:7"),
        ("environment", "there is no program /nowhere/python there"),
        ("index", "packages cannot be installed there .or name an environment"),
    ],
)
def test_a_machine_that_cannot_be_used_is_one_sentence(
    host: SshHost, fault: str, message: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    url = host.url(python=sys.executable)
    if fault == "key":
        keys = (host.folder / "known_hosts").read_text()
        host.forget_key()
    elif fault == "port":
        url = url.replace(f":{host.port}", ":1")
    elif fault == "python":
        monkeypatch.setattr(host, "search_path", str(tmp_path))
    elif fault == "gpu":
        url = host.url("cuda:7", python=sys.executable)
    elif fault == "environment":
        url = host.url(python="/nowhere/python")
    else:
        url = host.url()
    try:
        with pytest.raises(DeviceError, match=message) as refused:
            RemotePool(url)
    finally:
        if fault == "key":
            (host.folder / "known_hosts").write_text(keys)
    assert "\n" not in str(refused.value)
    assert all_gone(set(host.pids))


@pytest.mark.slow
def test_nothing_is_left_there_when_this_side_is_killed(host: SshHost, tmp_path: Path) -> None:
    program = f"""
        import time
        from kernelforge.evaluation.remote.pool import RemotePool
        from kernelforge.tasks import load_task
        pool = RemotePool({host.url(python=sys.executable)!r})
        evaluator = pool.evaluator(load_task("core/swish"))
        print("ready", flush=True)
        time.sleep(600)
    """
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program)], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        there = family_of(host.pids[-1])
        surroundings = b"".join(Path(f"/proc/{pid}/environ").read_bytes() for pid in there)
        process.kill()
    assert len(there) > 2
    assert CANARY.encode() not in surroundings
    assert all_gone(there)
