"""What numba keeps on disk may be damaged: it is then made again."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

MODULE = """
import ctypes
from kernelforge.devices.emulated.native import exported, native

@native
def doubled(value):
    return value * 2

@exported("int64(int64)")
def answer(value):
    return doubled(value) + 1

print(ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(answer.address)(20))
"""


def answer(folder: Path) -> str:
    environment = os.environ | {
        "NUMBA_CACHE_DIR": str(folder / "cache"),
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
    }
    done = subprocess.run(
        [sys.executable, str(folder / "module.py")], env=environment, capture_output=True, text=True, timeout=120
    )
    return done.stdout.strip() or done.stderr


@pytest.mark.parametrize("damage", [b"", b"garbage"])
def test_damaged_entries_are_made_again(tmp_path: Path, damage: bytes) -> None:
    (tmp_path / "module.py").write_text(MODULE)
    assert answer(tmp_path) == "41"
    entries = [entry for entry in (tmp_path / "cache").rglob("*.nb?") if entry.is_file()]
    assert {entry.suffix for entry in entries} == {".nbi", ".nbc"}
    for suffix in (".nbi", ".nbc"):
        for entry in entries:
            if entry.suffix == suffix:
                entry.write_bytes(damage)
        assert answer(tmp_path) == "41"
