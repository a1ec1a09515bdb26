"""Runs the command line in this process, on two golden runs."""

from __future__ import annotations

import json
import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest


@dataclass(frozen=True)
class Done:
    """Exit code and output of one command."""

    code: int
    out: str
    err: str

    def json(self) -> Any:
        return json.loads(self.out)


@pytest.fixture(autouse=True)
def own_logs() -> Iterator[None]:
    """``serve`` sends logs to the stream that it is given, which is closed with the test."""
    root, own = logging.getLogger(), logging.getLogger("kernelforge.server")
    handlers, levels = root.handlers, (root.level, own.level)
    yield
    root.handlers = handlers
    root.setLevel(levels[0])
    own.setLevel(levels[1])


@pytest.fixture
def cli(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], warm_zygotes: None
) -> Callable[..., Done]:
    """``cli("show", "latest")`` in an empty folder, through the script's own entry point."""
    from kernelforge.cli.main import main

    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("KERNELFORGE_DEBUG", raising=False)
    monkeypatch.setenv("COLUMNS", "120")

    def call(*arguments: str) -> Done:
        monkeypatch.setattr(sys, "argv", ["kernelforge", *arguments])
        with pytest.raises(SystemExit) as remaining:
            main()
        output = capsys.readouterr()
        code = remaining.value.code
        return Done(code if isinstance(code, int) else 0 if code is None else 1, output.out, output.err)

    return call


@pytest.fixture(scope="session")
def written_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A results folder with two golden runs: ``older`` and ``newer``."""
    from kernelforge.records import RunState
    from kernelforge.store import Store
    from tests.support.recorded_run import fill, make_run

    folder = tmp_path_factory.mktemp("golden") / "results"
    with Store.open(folder / "kernelforge.db") as store:
        for number, run_id in enumerate(("older", "newer")):
            fill(store, make_run(run_id, started=f"2026-11-2{number}T06:00:00+00:00"))
        store.update_run("older", RunState.FINISHED, "2026-11-20T06:04:05+00:00")
        store.finish_task("older", "softmax", "no new best in 4 rounds")
    return folder


@pytest.fixture
def journal(written_once: Path, tmp_path: Path) -> Path:
    """A copy of the results folder for each test."""
    return Path(shutil.copytree(written_once, tmp_path / "results"))


@pytest.fixture
def start(tmp_path: Path) -> Callable[..., subprocess.Popen[str]]:
    """``start("-m", "kernelforge.cli.main", "export")``: another Python with this checkout, in the empty folder."""

    def call(*arguments: str, **options: Any) -> subprocess.Popen[str]:
        variables = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])} | options.pop("env", {})
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | options
        return subprocess.Popen([sys.executable, *arguments], cwd=tmp_path, env=variables, text=True, **pipes)

    return call
