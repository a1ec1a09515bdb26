"""Folders that a hostile child filled."""

import os
import signal
import subprocess
import sys
import threading

import pytest

from kernelforge.sandbox import resource_monitor, syscalls
from kernelforge.sandbox.jail import JailSpec
from kernelforge.utils.tree_cleanup import MAX_DEPTH, folder_bytes, remove_tree
from tests.sandbox.jail_setup import LIMITS


def deepen(folder, levels):
    os.mkdir(folder)
    fd = os.open(folder, os.O_RDONLY)
    for _ in range(levels):
        os.mkdir("d", dir_fd=fd)
        inner = os.open("d", os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = inner
    return fd


def test_everything_in_a_folder_counts_and_links_lead_nowhere(tmp_path):
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "file").write_bytes(b"x" * 8192)
    before = folder_bytes(str(tmp_path))
    assert before >= 8192
    (tmp_path / "a" / "link").symlink_to("/usr")
    assert folder_bytes(str(tmp_path)) < before + 8192


def test_a_folder_of_any_depth_and_mode_is_removed_and_nothing_outside_it(tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").write_text("kept")
    folder = str(tmp_path / "hostile")
    fd = deepen(folder, 3000)
    os.symlink(outside, "link", dir_fd=fd)
    os.mkfifo("pipe", dir_fd=fd)
    os.close(fd)
    os.symlink(outside, folder + "/link")
    os.mkdir(folder + "/shut")
    os.mkdir(folder + "/shut/inside")
    os.chmod(folder + "/shut", 0)
    remove_tree(folder)
    assert not os.path.lexists(folder)
    assert (outside / "kept").read_text() == "kept"


def test_a_folder_that_is_a_link_is_left_alone(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    remove_tree(str(tmp_path / "link"))
    remove_tree(str(tmp_path / "nothing"))
    assert (tmp_path / "real").is_dir()


def test_a_folder_deeper_than_any_cache_counts_as_full(tmp_path):
    for levels, full in ((MAX_DEPTH, False), (MAX_DEPTH + 1, True)):
        os.close(deepen(str(tmp_path / str(levels)), levels))
        assert (folder_bytes(str(tmp_path / str(levels))) == sys.maxsize) is full


@pytest.fixture
def small_disk(tmp_path):
    try:
        syscalls.mount("tmpfs", str(tmp_path), "tmpfs", 0, "size=8m")
    except OSError as error:
        pytest.skip(f"no file system can be mounted here: {error}")
    yield tmp_path
    subprocess.run(["umount", "-l", str(tmp_path)], check=True)


@pytest.mark.parametrize("descriptors", [True, False])
def test_files_without_a_name_cannot_fill_the_disk(small_disk, monkeypatch, descriptors):
    if not descriptors:
        monkeypatch.delattr(os, "pidfd_open")  # Linux before 5.3
    grant = JailSpec(tier="landlock", limits=LIMITS, mounts=(), devices=(), headroom_bytes=0, tmp=str(small_disk))
    looked, free = threading.Semaphore(0), resource_monitor._free

    def look(folder):
        looked.release()
        return free(folder)

    monkeypatch.setattr(resource_monitor, "_free", look)
    child, seen = subprocess.Popen(["sleep", "600"]), []
    watching = threading.Thread(
        target=lambda: seen.append(resource_monitor.watch(child.pid, grant, resource_monitor.open_proc()))
    )
    with open(small_disk / "file", "wb") as file:
        watching.start()
        assert looked.acquire(timeout=120), "what was free at the start is known"
        os.unlink(small_disk / "file")
        file.write(b"x" * (1 << 20))
        file.flush()
        looked.acquire(blocking=False)
        for _ in range(3):
            assert looked.acquire(timeout=120)
        assert not seen, "most of the disk is free"
        file.write(b"x" * (4 << 20))
        file.flush()
        watching.join(120)
    assert seen == ["disk"]
    assert child.wait(timeout=120) == -signal.SIGKILL
