"""A Python candidate runs in a jail: a test plants a canary, and a candidate that reaches it is wrong."""

from __future__ import annotations

import os
import secrets
import socket
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kernelforge.errors import UsageError
from kernelforge.evaluation.pool import EvaluatorPool
from kernelforge.records import Task, Verdict
from kernelforge.sandbox import Zygote
from kernelforge.translation.evaluator import CEvaluator, c_candidate
from tests.support.factories import make_fingerprint

STEP = """
def heat_step(rows, cols, r, u, next):
    if reached():
        return
    u = u.reshape(rows, cols)
    after = u.copy()
    around = u[:-2, 1:-1] + u[2:, 1:-1] + u[1:-1, :-2] + u[1:-1, 2:]
    after[1:-1, 1:-1] += np.float32(r) * (around - 4 * u[1:-1, 1:-1])
    next[:] = after.reshape(-1)
"""
Door = Callable[..., str]


@pytest.fixture(scope="module")
def python_evaluator(
    workshop: EvaluatorPool, kept_zygotes: Callable[..., Zygote], heat_step: Task
) -> Iterator[CEvaluator]:
    fingerprint = make_fingerprint(device="cpu", device_kind="cpu", arch="cpu", toolchain="cc")
    zygotes = kept_zygotes("c-candidate"), kept_zygotes("python-candidate")
    made = CEvaluator(heat_step, workshop.oracle(heat_step), zygotes[0], fingerprint, python=zygotes[1], run_s=5.0)
    yield made
    made.close()


@pytest.fixture
def try_door(python_evaluator: CEvaluator) -> Door:
    """Run a right function that writes nothing where the body ``door`` of a function returns true."""

    def run(door: str, verdict: Verdict = Verdict.OK) -> str:
        text = f"import os, socket\nimport numpy as np\ndef reached():\n{textwrap.indent(door, '    ')}\n{STEP}"
        evaluation = python_evaluator.evaluate(c_candidate(text), seed=11, language="python").evaluation
        assert evaluation.verdict is verdict, evaluation.reason
        return evaluation.reason

    return run


def test_a_door_that_is_open_would_be_seen(try_door: Door) -> None:
    try_door("return open(np.__file__).read() != ''", Verdict.WRONG)


def test_environment_files_and_descriptors_of_the_parent_are_out_of_reach(
    try_door: Door, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    canary = f"canary-{secrets.token_hex(8)}"
    monkeypatch.setenv("KERNELFORGE_CANARY", canary)
    database = tmp_path / "kernelforge.db"
    database.write_text(canary)
    database.chmod(0o666)
    descriptor = os.open(database, os.O_RDONLY)
    os.set_inheritable(descriptor, True)
    paths = [str(database), "/etc/passwd", f"/proc/{os.getpid()}/environ", "/proc/1/environ"]
    door = f"""
        if any("{canary}" in value or "KEY" in name for name, value in os.environ.items()):
            return True
        for path in {paths}:
            try:
                return bool(open(path))
            except OSError:
                pass
        def is_open(fd):
            try:
                return bool(os.fstat(fd))
            except OSError:
                return False
        return sum(map(is_open, range(3, 256))) != 1
    """
    try:
        try_door(textwrap.dedent(door))
    finally:
        os.close(descriptor)


def test_neither_the_network_nor_another_process_is_in_reach(try_door: Door) -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        door = f"""
            try:
                return bool(socket.create_connection(("127.0.0.1", {server.getsockname()[1]}), 1))
            except OSError:
                pass
            try:
                return os.kill({os.getpid()}, 0) is None
            except OSError:
                pass
            try:
                return os.posix_spawn("/bin/true", ["true"], {{}}) > 0
            except OSError:
                pass
            try:
                return os.fork() >= 0
            except OSError:
                return False
        """
        try_door(textwrap.dedent(door))
        server.settimeout(0.1)
        with pytest.raises(TimeoutError):
            server.accept()


def test_an_evaluator_without_processes_for_python_says_so(c_evaluator: CEvaluator) -> None:
    with pytest.raises(UsageError, match="no processes for candidates in Python"):
        c_evaluator.evaluate(c_candidate(STEP), seed=11, language="python")


@pytest.mark.slow
def test_time_memory_and_exits_are_the_candidates(try_door: Door) -> None:
    assert "no end of 'run' within 5 s" in try_door("while True: pass", Verdict.TIMEOUT)
    try_door("bytearray(8 << 30)", Verdict.LIMIT)
    assert "SystemExit: 3 (line 4 of the candidate)" in try_door("raise SystemExit(3)", Verdict.CRASH)
    try_door("os._exit(0)", Verdict.CRASH)
    assert "SyntaxError" in try_door("return (", Verdict.BUILD)
