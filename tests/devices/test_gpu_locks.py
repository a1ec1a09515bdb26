"""Several GPUs: tasks spread and stick, one holder at a time over threads and processes, failing ones are set aside."""

import errno
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from kernelforge.devices import gpu_locks as module
from kernelforge.devices.gpu_locks import GpuLocks, parse_devices
from kernelforge.errors import DeviceError, UsageError

KNOWN = ("cuda:0", "cuda:1", "cuda:2", "emulated:h100", "emulated:a100")

HOLDER = """
import sys, time
from pathlib import Path
from kernelforge.devices.gpu_locks import GpuLocks as Locks
with Locks([sys.argv[2]], Path(sys.argv[1]), keys={sys.argv[2]: "GPU-aa"}).hold(sys.argv[2], task="softmax"):
    print("held", flush=True)
    time.sleep(600)
"""
GREEDY = """
import sys
from pathlib import Path
from kernelforge.devices.gpu_locks import GpuLocks as Locks
locks = Locks(["cuda:0"], Path(sys.argv[1]))
print("begun", flush=True)
while True:
    with locks.hold("cuda:0"):
        pass
"""


@pytest.fixture
def locks(tmp_path):
    return GpuLocks(["cuda:0", "cuda:1"], tmp_path)


def python(script, *arguments):
    return subprocess.Popen([sys.executable, "-c", script, *map(str, arguments)], stdout=subprocess.PIPE, text=True)


def test_devices_are_listed_by_name_or_all_at_once():
    assert parse_devices("cuda", KNOWN) == ("cuda:0", "cuda:1", "cuda:2")
    assert parse_devices(" cuda:2, CUDA:0", KNOWN) == ("cuda:2", "cuda:0")
    assert parse_devices("emulated:a100", KNOWN) == ("emulated:a100",)
    assert len(parse_devices("emulated")) == 1


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "empty name"),
        ("cuda:0,", "empty name"),
        ("cuda:0,cuda:0", "names cuda:0 twice"),
        ("cuda,cuda:1", "names cuda:1 twice"),
        ("cuda:0,emulated:h100", "mixes kinds"),
        ("emulated:h100,emulated:a100", "mixes kinds"),
    ],
)
def test_a_malformed_list_of_devices_is_refused(text, says):
    with pytest.raises(UsageError, match=says):
        parse_devices(text, KNOWN)


def test_a_device_that_does_not_exist_is_refused():
    with pytest.raises(DeviceError, match="cuda:99"):
        parse_devices("cuda:0,cuda:99", KNOWN)
    with pytest.raises(DeviceError):
        parse_devices("cuda", ("emulated:h100",))


def test_tasks_spread_evenly_and_keep_their_gpu(locks):
    first = {task: locks.assign(task) for task in "abcd"}
    assert sorted(first.values()) == ["cuda:0", "cuda:0", "cuda:1", "cuda:1"]
    assert {task: locks.assign(task) for task in "dcba"} == first
    for task in [task for task, device in first.items() if device == "cuda:0"]:
        locks.done(task)
    assert [locks.assign(task) for task in "ef"] == ["cuda:0", "cuda:0"], "the idle GPU gets the next tasks"


def test_tasks_of_a_gpu_set_aside_move_and_the_others_stay(locks):
    first = {task: locks.assign(task) for task in "abcd"}
    locks.quarantine("cuda:0", "it fell off the bus")
    assert {locks.assign(task) for task in "abcd"} == {"cuda:1"}
    assert locks.quarantined() == {"cuda:0": "it fell off the bus"}
    assert locks.probed("cuda:0", None)
    assert {task: locks.assign(task) for task in "abcd"} == dict.fromkeys(first, "cuda:1"), "they do not move back"
    assert locks.assign("e") == "cuda:0"


def test_a_gpu_is_set_aside_after_three_failed_probes_in_a_row(locks):
    for complaint in ("a", "b", None, "c", "d"):
        assert locks.probed("cuda:1", complaint)
    assert not locks.probed("cuda:1", "memory does not hold what was written")
    assert "3 probes in a row failed" in locks.quarantined()["cuda:1"]
    assert "memory does not hold" in locks.quarantined()["cuda:1"]


def test_when_no_gpu_is_left_the_error_says_so_and_why(locks):
    locks.quarantine("cuda:0", "hangs")
    locks.quarantine("cuda:1", "wrong answers")
    with pytest.raises(DeviceError, match=r"no GPU is left .*cuda:0: hangs; cuda:1: wrong answers"):
        locks.assign("a")


def test_a_gpu_set_aside_may_be_probed_again_after_a_while(tmp_path):
    now = [100.0]
    locks = GpuLocks(["cuda:0"], tmp_path, retry_after_s=60, clock=lambda: now[0])
    locks.quarantine("cuda:0", "hangs")
    now[0] += 59
    assert locks.due() == ()
    with pytest.raises(DeviceError, match="again in 1 s"):
        locks.assign("a")
    now[0] += 1
    assert locks.due() == ("cuda:0",)
    assert not locks.probed("cuda:0", "still hangs")
    assert locks.due() == (), "it waits again"
    now[0] += 60
    assert locks.probed("cuda:0", None)
    assert locks.assign("a") == "cuda:0"


def test_tasks_of_one_process_take_turns_without_a_word(locks):
    messages = []
    with locks.hold("cuda:0"):

        def wait():
            with (
                pytest.raises(DeviceError, match="this process"),
                locks.hold("cuda:0", timeout_s=0.1, on_wait=messages.append),
            ):
                pass

        waits = threading.Thread(target=wait)
        waits.start()
        waits.join()
    assert messages == []


def test_threads_have_a_gpu_one_at_a_time_in_the_order_of_asking(locks, tmp_path):
    inside, order = [], []

    def work(number):
        # A second object over the same folder: what excludes is the GPU, not the object.
        with GpuLocks(["cuda:0"], tmp_path).hold("cuda:0"):
            inside.append(number)
            assert len(inside) == 1
            order.append(number)
            inside.remove(number)

    threads = []
    with locks.hold("cuda:0"):
        for number in range(6):
            waits = threading.Thread(target=work, args=(number,))
            threads.append(waits)
            waits.start()
            wait_until(lambda expected=number + 2: in_queue(tmp_path) == expected)
    for thread in threads:
        thread.join()
    assert order == list(range(6))


def in_queue(folder):
    return len(module._queues[str(folder / "cuda-0.lock")].waiting)


def wait_until(true, within_s=120.0):
    deadline = time.monotonic() + within_s
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.002)


def test_different_gpus_do_not_wait_for_each_other(locks):
    with locks.hold("cuda:0"), locks.hold("cuda:1", timeout_s=0.5):
        pass


def test_an_emulated_device_needs_no_lease(tmp_path):
    locks = GpuLocks(["emulated:h100"], tmp_path)
    with locks.hold("emulated:h100"), locks.hold("emulated:h100"):
        assert list(tmp_path.iterdir()) == []


def test_taking_a_lease_twice_is_an_error_and_not_a_deadlock(locks):
    with locks.hold("cuda:0"), pytest.raises(RuntimeError, match="already"), locks.hold("cuda:0"):
        pass
    with locks.hold("cuda:0", timeout_s=0.5):
        pass


def test_a_lease_ends_with_its_block_however_it_ends(locks):
    with pytest.raises(ValueError, match="inside"), locks.hold("cuda:0"):
        raise ValueError("inside")
    with locks.hold("cuda:0", timeout_s=0.5):
        pass


def test_a_lease_ends_although_somebody_has_a_copy_of_its_descriptor(locks):
    """As a program that another thread is starting has, until it closes what is not its own."""
    with locks.hold("cuda:0"):
        (descriptor,) = module._open
        copy = os.dup(descriptor)
    try:
        with locks.hold("cuda:0", timeout_s=0):
            pass
    finally:
        os.close(copy)


def test_a_lease_whose_holder_cannot_be_written_down_is_given_back(locks, monkeypatch):
    def full(descriptor, data, offset):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        with pytest.raises(DeviceError, match="No space left"), locks.hold("cuda:0"):
            pass
    with locks.hold("cuda:0", timeout_s=0):
        pass


@pytest.mark.slow
@pytest.mark.parametrize("wait_s", [0.1, 0])
def test_another_process_is_waited_for_and_named(tmp_path, wait_s):
    # It numbers the GPU differently; the UUID is the same.
    locks = GpuLocks(["cuda:0"], tmp_path, keys={"cuda:0": "GPU-aa"})
    with python(HOLDER, tmp_path, "cuda:3") as holder:
        try:
            assert holder.stdout.readline() == "held\n"
            messages = []
            with (
                pytest.raises(
                    DeviceError, match=f"not free within {wait_s:g} s: process {holder.pid} has had it for task soft"
                ),
                locks.hold("cuda:0", timeout_s=wait_s, on_wait=messages.append),
            ):
                pass
            assert len(messages) == 1
            assert f"waiting for cuda:0: process {holder.pid}" in messages[0]
        finally:
            holder.send_signal(signal.SIGKILL)
    # kill -9 freed it.
    with locks.hold("cuda:0", timeout_s=120):
        pass


@pytest.mark.slow
def test_a_killed_holder_frees_whoever_waits(tmp_path):
    locks = GpuLocks(["cuda:0"], tmp_path, keys={"cuda:0": "GPU-aa"})
    got = threading.Event()

    def wait():
        with locks.hold("cuda:0", timeout_s=120):
            got.set()

    with python(HOLDER, tmp_path, "cuda:0") as holder:
        assert holder.stdout.readline() == "held\n"
        waits = threading.Thread(target=wait)
        waits.start()
        assert not got.wait(0.1)
        holder.send_signal(signal.SIGKILL)
        assert got.wait(120)
        waits.join()


@pytest.mark.slow
def test_a_process_that_asks_again_at_once_does_not_starve_others(locks, tmp_path):
    with python(GREEDY, tmp_path) as greedy:
        try:
            assert greedy.stdout.readline() == "begun\n"
            for _ in range(3):
                with locks.hold("cuda:0", timeout_s=120):
                    pass
            assert greedy.poll() is None, "it is still at it"
        finally:
            greedy.kill()


@pytest.mark.slow
def test_a_forked_child_does_not_keep_the_lease_of_its_parent(locks):
    reading, writing = os.pipe()
    with locks.hold("cuda:0"):
        pid = os.fork()
        if pid == 0:
            os.close(writing)
            os.read(reading, 1)
            os._exit(0)
    try:
        with locks.hold("cuda:0", timeout_s=120):
            pass
    finally:
        os.close(writing)
        os.close(reading)
        os.waitpid(pid, 0)


def test_a_folder_that_cannot_be_made_is_an_error_with_its_path(tmp_path):
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(DeviceError, match=r"cannot lock cuda:0 with .*file"),
        GpuLocks(["cuda:0"], tmp_path / "file").hold("cuda:0"),
    ):
        pass


@pytest.fixture
def unlockable(tmp_path, monkeypatch):
    """A folder on a file system without locks, as seen by this process."""
    folder = tmp_path / "network"
    real = module.fcntl.flock

    def flock(descriptor, operation):
        if os.readlink(f"/proc/self/fd/{descriptor}").startswith(str(folder)):
            raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))
        real(descriptor, operation)

    monkeypatch.setattr(module.fcntl, "flock", flock)
    return folder


@pytest.mark.slow
def test_where_files_cannot_be_locked_the_lock_is_on_the_machine_itself(unlockable, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_MACHINE_FOLDER", tmp_path)
    folder = module.local_folder()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "elsewhere"))
    locks = GpuLocks(["cuda:0"], unlockable, keys={"cuda:0": "GPU-aa"})
    # Another process that finds no locks there either holds one in the folder of the machine.
    with python(HOLDER, folder, "cuda:3") as holder:
        assert holder.stdout.readline() == "held\n"
        with (
            pytest.raises(DeviceError, match=rf"process {holder.pid} has had it for task softmax"),
            locks.hold("cuda:0", timeout_s=0),
        ):
            pass
        holder.kill()
    with locks.hold("cuda:0", timeout_s=120):
        assert (folder / "GPU-aa.lock").read_text()


def test_sessions_with_and_without_a_runtime_folder_have_their_locks_in_the_same_place(monkeypatch):
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    without = module.local_folder()
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/run")
    folder = module.local_folder()
    assert str(folder) == f"/tmp/kernelforge-leases-{os.getuid()}"
    assert folder == without
    assert folder.stat().st_mode & 0o022 == 0


def test_a_folder_that_others_can_write_to_holds_no_locks(unlockable, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_MACHINE_FOLDER", tmp_path)
    module.local_folder().chmod(0o777)
    with (
        pytest.raises(DeviceError, match="not a folder that this user alone can write to"),
        GpuLocks(["cuda:0"], unlockable).hold("cuda:0"),
    ):
        pass
    folder = tmp_path / f"kernelforge-leases-{os.getuid()}"
    folder.rmdir()
    folder.symlink_to(tmp_path)
    with pytest.raises(DeviceError, match="not a folder"), GpuLocks(["cuda:0"], unlockable).hold("cuda:0"):
        pass
