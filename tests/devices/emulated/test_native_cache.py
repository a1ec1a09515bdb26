"""Machine code on disk: a damaged file is made again."""

from __future__ import annotations

import ctypes
import fcntl
from pathlib import Path

import pytest

from kernelforge.devices.emulated.codegen.llvm_jit import CachedObject, Native


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


def test_what_takes_long_is_made_by_one_process_at_a_time_and_only_once(tmp_path: Path) -> None:
    locks = []

    def make() -> bytes:
        (lock,) = tmp_path.glob("*.lock")
        with lock.open("rb") as file, pytest.raises(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        locks.append(lock)
        return b"code"

    for _ in range(2):
        assert CachedObject(tmp_path, "name", "facts").read_or_make(make) == b"code"
    assert len(locks) == 1
    with locks[0].open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    assert CachedObject(tmp_path, "name", "other facts").read_or_make(lambda: b"other") == b"other"


def test_a_process_that_waited_takes_what_the_other_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter([None, b"theirs"])
    monkeypatch.setattr(CachedObject, "read", lambda self: next(answers))
    assert CachedObject(tmp_path, "name", "facts").read_or_make(pytest.fail) == b"theirs"
