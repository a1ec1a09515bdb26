"""Commands whose device is on another machine: what ``run`` and ``serve`` do there is tested with them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kernelforge.modelnew.evaluator import ModelNewEvaluators
from kernelforge.records import Budget
from tests.run.run_helpers import quick_config, run_in, small_core
from tests.support.ssh_host import SshHost, reachable_host
from tests.workers.engine_orders import all_gone, family_of

CLASS = """
import torch


class ModelNew(torch.nn.Module):
    def forward(self, x):
        try:
            leaked = len(open(SECRET).read())
        except OSError:
            leaked = 0
        return torch.softmax(x, dim=1) + leaked
"""


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SshHost]:
    with reachable_host(tmp_path_factory.mktemp("host")) as there:
        there.take_machine_code()
        yield there
        assert all_gone(family_of(*there.pids))


@pytest.mark.slow
def test_a_class_runs_there_in_a_jail(cli, host: SshHost, tmp_path: Path) -> None:
    secret = host.home / "secret"
    secret.write_text("of that machine's user")
    (tmp_path / "model_new.py").write_text(CLASS.replace("SECRET", repr(str(secret))))
    device = host.url("cpu", python=sys.executable)
    done = cli("eval", "model_new.py", "--task", "softmax", "--lane", "modelnew", "--device", device, "--json")
    evaluation = done.json()["evaluation"]
    assert (done.code, evaluation["verdict"]) == (0, "OK"), evaluation["reason"]
    with ModelNewEvaluators("cpu") as near:
        assert evaluation["fingerprint"] == near.fingerprint.model_dump(mode="json")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("device", "why"),
    [
        ("emulated:h100", "no ModelNew class; use ssh://tester@127.0.0.1"),
        ("cuda:0,cuda:1", "on one GPU of one machine"),
    ],
)
def test_a_device_there_that_runs_no_class_is_refused(
    cli, host: SshHost, tmp_path: Path, device: str, why: str
) -> None:
    (tmp_path / "model_new.py").write_text(CLASS)
    done = cli("eval", "model_new.py", "--task", "softmax", "--lane", "modelnew", "--device", host.url(device))
    assert done.code == 2
    assert why in done.err


@pytest.mark.slow
def test_a_prompt_is_that_of_a_device_here(cli, host: SshHost) -> None:
    near, there = (
        cli("prompts", "show", "repair", "--suite", small_core(), "--task", "swish", "--device", device)
        for device in ("emulated:h100", host.url(python=sys.executable))
    )
    assert there.code == 0, there.err
    assert there.out == near.out


@pytest.mark.slow
def test_an_entry_is_verified_there(cli, host: SshHost, tmp_path: Path) -> None:
    run_in(tmp_path, quick_config(tasks=("swish",), device="emulated:h100", budget=Budget(rounds=1)))
    written = cli("leaderboard", "entry", "latest", "--by", "Ann", "--output", "e.json", "--results", str(tmp_path))
    assert written.code == 0, written.err
    device = ("--device", host.url(python=sys.executable))
    done = cli("leaderboard", "verify", "e.json", "--suite", small_core(), "--sample", "all", "--json", *device)
    assert done.code == 0, done.err
    [record] = done.json()
    assert [task["status"] for task in record["tasks"]] == ["agrees"]
