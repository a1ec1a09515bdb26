"""The tools over a device of another machine: the answers that they give over one of this machine."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from kernelforge.devices.remote.address import join_host
from kernelforge.evaluation.remote.pool import RemotePool
from kernelforge.mcp.service import Service
from kernelforge.records import Budget
from kernelforge.store import DATABASE_NAME, Store
from kernelforge.tasks.suites import Catalogue
from tests.mcp.mcp_talk import BROKEN, PLAN, RIGHT, WRONG, Refused, ask
from tests.support.ssh_host import SshHost, reachable_host

TUNED = PLAN.replace("def forward", "# tune: BLOCK = 32 | 256\ndef forward").replace("256), 256]", "BLOCK), BLOCK]")
ODD = PLAN.replace("i64(x.numel())", "i64(x.numel() if x.shape[1] % 4 == 0 else x.numel() - 1)")
"""Wrong at a hidden size alone."""


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SshHost]:
    with reachable_host(tmp_path_factory.mktemp("host")) as there:
        there.take_machine_code()
        yield there


@pytest.fixture
def far(host: SshHost, catalogue: Catalogue, tmp_path: Path) -> Iterator[Service]:
    with (
        Store.open(tmp_path / f"far-{DATABASE_NAME}") as store,
        RemotePool(host.url(python=sys.executable)) as pool,
        closing(Service(catalogue, pool, store, Budget())) as service,
    ):
        yield service


@pytest.mark.slow
def test_the_tools_say_there_what_they_say_here(service: Service, far: Service, host: SshHost) -> None:
    def both(tool: str, **arguments: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        near, there = (ask(each, tool, task="tiny/gelu", **arguments) for each in (service, far))
        return near, there

    for source in (RIGHT, BROKEN):
        near, there = both("compile", source=source, plan=PLAN)
        assert there == near
    for kind in ("ptx", "sass"):
        near, there = both("show_code", source=RIGHT, plan=PLAN, kind=kind)
        assert there == near
    near, there = both("show_task")
    assert there == near
    near, there = both("tune", source=RIGHT, plan=TUNED)
    assert [trial["choices"] for trial in there["trials"]] == [{"BLOCK": 32}, {"BLOCK": 256}]
    assert there["trials"] == near["trials"]
    near, there = both("evaluate", source=RIGHT, plan=ODD)
    assert (there["verdict"], there["stage"], there["reason"]) == ("WRONG", "hidden", near["reason"])
    assert there["visible_failure"]["constants"] == near["visible_failure"]["constants"]
    assert there["visible_failure"]["verdict"] == "WRONG"
    with pytest.raises(Refused, match="there is no code: BUILD"):
        ask(far, "show_code", task="tiny/gelu", source=BROKEN, plan=PLAN, kind="ptx")


@pytest.mark.slow
def test_submissions_are_journalled_here_as_of_that_machine(far: Service, host: SshHost) -> None:
    for source, verdict in ((WRONG, "WRONG"), (RIGHT, "OK")):
        answer = ask(far, "submit", task="tiny/gelu", source=source, plan=PLAN)
        assert answer["evaluation"]["verdict"] == verdict
    [run] = far._store.runs()
    assert join_host(run.config.host, run.config.device) == host.url(python=sys.executable)
    assert len(far._store.attempts(run.id)) == 2
