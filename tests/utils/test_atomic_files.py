"""Atomic file replacement: temporary files are removed, those of a killed writer by the next write."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kernelforge.utils.atomic_files import atomic_write, temporary_name

WRITER = """
import os, signal, sys, time
from pathlib import Path
from kernelforge.utils.atomic_files import atomic_write

with atomic_write(Path(sys.argv[1]), folder=sys.argv[2] == "folder") as part:
    (part / "half" if part.is_dir() else part).write_text("half of it")
    if sys.argv[2] == "child" and os.fork() == 0:
        signal.alarm(60)
        os.write(1, f"{os.getpid()}\\n".encode())
        signal.pause()
    if sys.argv[2] != "child":
        os.write(1, b"writing\\n")
    time.sleep(60)
"""


@contextmanager
def killed_writer(path: Path, kind: str) -> Iterator[str]:
    """Start a writer, kill it, and yield the line that it printed."""
    with subprocess.Popen([sys.executable, "-c", WRITER, str(path), kind], stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        line = writer.stdout.readline()
        writer.kill()
        writer.wait()
        yield line


def siblings(path: Path) -> list[str]:
    return sorted(entry.name for entry in path.parent.iterdir() if entry != path)


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_what_a_kill_left_goes_with_the_next_part(tmp_path: Path, kind: str) -> None:
    target = tmp_path / "made.[x]"
    with killed_writer(target, kind):
        (remnant,) = siblings(target)
        with atomic_write(tmp_path / "made.y"):
            assert remnant in siblings(target)  # a write to another target leaves it
        with atomic_write(target) as part:
            assert siblings(target) == [part.name] != [remnant]
    assert siblings(target) == []


def test_what_a_living_process_writes_stays(tmp_path: Path) -> None:
    target = tmp_path / "made"
    with atomic_write(target, folder=True) as first, atomic_write(target) as second:
        assert siblings(target) == sorted([first.name, second.name])
    with killed_writer(target, "child") as child:  # the writer is dead, the child that it started is alive
        remnants = siblings(target)
        with atomic_write(target) as part:
            assert siblings(target) == sorted([*remnants, part.name])
        with open(os.pidfd_open(int(child))) as ended:
            os.kill(int(child), 9)
            select.select([ended], [], [])
    with atomic_write(target) as part:
        assert siblings(target) == [part.name]


def test_nothing_that_is_not_ours_is_removed(tmp_path: Path) -> None:
    target, away = tmp_path / "made", tmp_path / "away"
    away.mkdir()
    (away / "thesis.tex").write_text("years of work")
    temporary_name(target).symlink_to(away)
    os.mkfifo(temporary_name(target))
    temporary_name(target).mkdir()
    for name in (".made.1a2b3c4d.part", ".made.part", "made.part", ".made.kernelforge-1a2b3c4d.part.txt"):
        (tmp_path / name).write_text("of another program")
    before = siblings(target)
    with atomic_write(target, removable=lambda part: False) as part:
        assert siblings(target) == sorted([*before, part.name])
    assert siblings(target) == before
    assert (away / "thesis.tex").exists()


def test_an_error_names_the_place_and_not_the_part(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as refused, atomic_write(tmp_path / "nowhere" / "made"):
        pass
    assert refused.value.filename == str(tmp_path / "nowhere" / "made")
    with pytest.raises(FileNotFoundError) as refused, atomic_write(tmp_path / "made", folder=True) as part:
        (part / "no" / "folder").write_text("")
    assert refused.value.filename == str(tmp_path / "made")
    assert siblings(tmp_path / "made") == []
