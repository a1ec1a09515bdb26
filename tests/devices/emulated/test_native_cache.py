"""Caches of numba and LLVM on disk: a damaged one is made again."""

from __future__ import annotations

import ctypes
import fcntl
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kernelforge.devices.emulated.codegen import numba_intrinsics
from kernelforge.devices.emulated.codegen.llvm_jit import CachedObject, Native

MODULE = """
import ctypes
from kernelforge.devices.emulated.codegen.numba_intrinsics import exported, native

@native
def doubled(value):
    return value * 2

@exported("int64(int64)")
def answer(value):
    return doubled(value) + 1

print(ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(answer.address)(20), flush=True)
"""
FORKING = """
import os, runpy, sys
import kernelforge.devices.emulated.codegen.numba_intrinsics

for line in sys.stdin:
    if os.fork() == 0:
        os.dup2(1, 2)
        runpy.run_path(line.strip())
        os._exit(0)
    os.wait()
    print("ended", flush=True)
"""
"""Runs a module for every line of its input, each in a process that has loaded numba and none of the module."""


@pytest.fixture
def answer(tmp_path: Path) -> Iterator[Callable[[], str]]:
    """Output of the module in a new process."""
    environment = os.environ | {
        "NUMBA_CACHE_DIR": str(tmp_path / "cache"),
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
    }
    module = tmp_path / "module.py"
    module.write_text(MODULE)
    command = [sys.executable, "-c", FORKING]
    with subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as forking:
        assert forking.stdin is not None
        assert forking.stdout is not None
        requests, answers = forking.stdin, forking.stdout

        def ask() -> str:
            print(module, file=requests, flush=True)
            return "".join(iter(answers.readline, "ended\n"))

        yield ask


@pytest.mark.parametrize("damage", [b"", b"garbage"])
def test_damaged_entries_are_made_again(tmp_path: Path, answer: Callable[[], str], damage: bytes) -> None:
    assert answer() == "41\n"
    entries = [entry for entry in (tmp_path / "cache").rglob("*.nb?") if entry.is_file()]
    assert {entry.suffix for entry in entries} == {".nbi", ".nbc"}
    for suffix in (".nbi", ".nbc"):
        for entry in entries:
            if entry.suffix == suffix:
                entry.write_bytes(damage)
        assert answer() == "41\n"


def test_one_process_at_a_time_compiles_into_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two, one could lose what the other wrote into numba's index, and leave its code under the other's name."""
    lock = tmp_path / "numba" / "lock"

    def is_held() -> bool:
        with lock.open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
        return False

    monkeypatch.setattr(numba_intrinsics, "_lock_file", lambda: lock)
    monkeypatch.setattr(numba_intrinsics.numba, "cfunc", lambda signature, **options: lambda function: is_held())
    assert numba_intrinsics.exported("int64(int64)")(lambda value: value) is True
    assert not is_held()


def number(value: int) -> str:
    """A module with a function that gives ``value``."""
    return f"define i32 @number() {{\n  ret i32 {value}\n}}\n"


def gives(value: int, folder: Path) -> int:
    code = Native(number(value), cached=CachedObject(folder, "number", number(value)))
    result: int = ctypes.CFUNCTYPE(ctypes.c_int32)(code.address("number"))()
    return result


def object_in(folder: Path) -> Path:
    """The one file there."""
    (path,) = folder.iterdir()
    return path


def test_machine_code_that_a_process_left_is_run_by_the_next(tmp_path: Path) -> None:
    assert gives(1, tmp_path / "one") == 1
    assert gives(2, tmp_path / "two") == 2
    other = CachedObject(tmp_path / "two", "number", number(2)).read()
    assert other is not None
    CachedObject(tmp_path / "one", "number", number(1)).write(other)
    assert gives(1, tmp_path / "one") == 2, "what was left under its name was not run"


@pytest.mark.parametrize("damage", ["empty", "cut", "flipped", "garbage", "of another module"])
def test_damaged_machine_code_is_made_again(tmp_path: Path, damage: str) -> None:
    assert gives(1, tmp_path / "here") == 1
    path = object_in(tmp_path / "here")
    content = path.read_bytes()
    gives(2, tmp_path / "there")
    path.write_bytes(
        {
            "empty": b"",
            "cut": content[:-8],
            "flipped": content[:-200] + bytes([content[-200] ^ 1]) + content[-199:],
            "garbage": b"garbage" * 100,
            "of another module": object_in(tmp_path / "there").read_bytes(),
        }[damage]
    )
    assert gives(1, tmp_path / "here") == 1
    assert object_in(tmp_path / "here").read_bytes() == content


def test_machine_code_is_made_where_none_can_be_kept(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    assert gives(1, tmp_path / "file") == 1
    assert CachedObject(tmp_path / "file", "number", number(1)).read() is None
