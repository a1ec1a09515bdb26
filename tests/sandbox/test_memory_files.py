"""Large blobs are sent as sealed memory files; other descriptors end the frame, and none stays open."""

import array
import contextlib
import ctypes
import dataclasses
import fcntl
import gc
import mmap
import os
import resource
import socket
import struct
import threading

import numpy as np
import pytest

from kernelforge.errors import ChildDied, ChildTimeout, SandboxError
from kernelforge.sandbox import Channel, Zygote, role_policy
from kernelforge.sandbox.channel import MAX_FILES
from kernelforge.sandbox.self_test import run_self_test
from kernelforge.sandbox.shared_memory import (
    SMALLEST_FILE,
    MemoryFile,
    MisusedFile,
    descriptor_of,
    freeze,
    is_open_to_writing,
    same_bytes,
    seal,
    written_bytes,
)
from tests.sandbox.jail_setup import LIMITS

SIZE = 64 << 10
ALL = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL
ROOMY = dataclasses.replace(LIMITS, memory_bytes=512 << 20, file_bytes=SMALLEST_FILE)
HUGE_2_MB = os.MFD_HUGETLB | 21 << 26


@pytest.fixture(autouse=True, scope="module")
def searched_once():
    """Collect garbage once: each test then collects only its own, at both ends."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def ends():
    first, second = socket.socketpair()
    pair = Channel(first, files_from=SIZE), Channel(second, forwards=True, files_from=SIZE)
    yield pair
    for end in pair:
        end.close()


@pytest.fixture
def hostile():
    """A raw socket, and the channel that reads from it."""
    first, second = socket.socketpair()
    channel = Channel(second, files_from=SIZE)
    yield first, channel
    first.close()
    channel.close()


def open_descriptors():
    """Open descriptors of this process, by number."""
    gc.collect()
    targets = {}
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # the listing's own
            targets[fd] = os.readlink(f"/proc/self/fd/{fd}")
    return targets


def frame(*lengths, files=None, marks=None, text=b"{}"):
    """A frame's head by hand: all blobs in files unless said otherwise."""
    marks = bytes([1] * len(lengths)) if marks is None else marks
    count = len(lengths) if files is None else files
    head = struct.pack("<4sIIIQ", b"KFF2", len(text), len(lengths), count, sum(lengths))
    return head + struct.pack(f"<{len(lengths)}Q", *lengths) + marks + text


def passing(sender, data, fds):
    sender.sendmsg([data], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))])


def memory_file(size=SIZE, *, content=None, seals=ALL, flags=os.MFD_ALLOW_SEALING):
    fd = os.memfd_create("test", flags)
    os.ftruncate(fd, size)
    if content is None:
        content = b"x" * size
    os.pwrite(fd, content, 0)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    return fd


def test_large_blobs_come_as_read_only_views_among_small_ones_in_order(ends):
    blobs = [b"small", os.urandom(SIZE), b"", os.urandom(3 * SIZE), os.urandom(SIZE - 1)]
    ends[0].send({"a": 1}, blobs, timeout_s=120)
    got = ends[1].receive(timeout_s=120)
    assert got.data == {"a": 1}
    assert [bytes(blob) for blob in got.blobs] == blobs
    assert [isinstance(blob, memoryview) for blob in got.blobs] == [False, True, False, True, False]
    for view in (got.blobs[1], got.blobs[3]):
        assert view.readonly
        assert view.format == "B"
        with pytest.raises(TypeError):
            view[0] = 1


def test_a_file_is_sent_while_nobody_reads_and_whatever_its_size(ends):
    ends[0].send({}, [bytes(64 << 20)], timeout_s=120)
    assert len(ends[1].receive(timeout_s=120).blobs[0]) == 64 << 20


def test_a_channel_without_files_sends_none_and_takes_none():
    first, second = socket.socketpair()
    sender, receiver = Channel(first), Channel(second)
    sent = threading.Thread(target=sender.send, args=({}, [bytes(SMALLEST_FILE)]))
    sent.start()
    assert receiver.receive(timeout_s=120).blobs == (bytes(SMALLEST_FILE),)
    sent.join()
    before = open_descriptors()
    fd = memory_file()
    passing(first, frame(SIZE), [fd])
    os.close(fd)
    with pytest.raises(SandboxError, match="descriptors"):
        receiver.receive(timeout_s=120)
    assert open_descriptors() == before
    sender.close()
    receiver.close()


def test_what_came_in_a_file_is_sent_on_in_the_same_file(ends):
    content = os.urandom(SIZE)
    ends[0].send({}, [content], timeout_s=120)
    view = ends[1].receive(timeout_s=120).blobs[0]
    inode = os.fstat(descriptor_of(view)).st_ino
    first, second = socket.socketpair()
    onward, last = Channel(first, files_from=SIZE), Channel(second, files_from=SIZE, forwards=True)
    onward.send({}, [view], timeout_s=120)
    arrived = last.receive(timeout_s=120).blobs[0]
    assert os.fstat(descriptor_of(arrived)).st_ino == inode
    assert arrived == content
    onward.close()
    last.close()


def test_part_of_a_file_is_sent_without_the_rest(ends):
    content = os.urandom(3 * SIZE)
    ends[0].send({}, [content], timeout_s=120)
    view = ends[1].receive(timeout_s=120).blobs[0][SIZE:]
    assert descriptor_of(view) is None
    ends[1].send({}, [view], timeout_s=120)
    part = ends[0].receive(timeout_s=120).blobs[0]
    assert part == content[SIZE:]
    assert len(part.obj) == 2 * SIZE


def test_of_many_large_blobs_the_largest_come_as_files(ends):
    blobs = [bytes([n]) * (SIZE + n) for n in range(MAX_FILES + 4)]
    sent = threading.Thread(target=ends[0].send, args=({}, blobs))
    sent.start()
    got = ends[1].receive(timeout_s=120).blobs
    sent.join()
    assert [isinstance(blob, memoryview) for blob in got] == [False] * 4 + [True] * MAX_FILES
    assert [bytes(blob) for blob in got] == blobs


def test_two_hundred_frames_leave_no_descriptor_open(ends):
    before = open_descriptors()
    for number in range(200):
        ends[0].send({}, [bytes([number]) * SIZE, bytes(SIZE)], timeout_s=120)
        view = ends[1].receive(timeout_s=120).blobs[0]
        ends[1].send({}, [view], timeout_s=120)
        assert ends[0].receive(timeout_s=120).blobs[0][0] == number
    del view
    assert open_descriptors() == before


def test_views_outlive_their_channel_and_hold_descriptors_only_while_they_live(ends):
    ends[0].send({}, [b"y" * SIZE], timeout_s=120)
    view = ends[1].receive(timeout_s=120).blobs[0]
    ends[1].close()
    assert view[-1] == ord("y")
    kept = [target for target in open_descriptors().values() if "memfd:kernelforge" in target]
    del view
    remaining = [target for target in open_descriptors().values() if "memfd:kernelforge" in target]
    assert len(kept) > len(remaining)


def test_a_channel_that_forwards_nothing_keeps_no_descriptor_of_its_own():
    first, second = socket.socketpair()
    sender, receiver = Channel(first), Channel(second, files_from=SIZE)
    passing(first, frame(SIZE), [memory_file()])
    view = receiver.receive(timeout_s=120).blobs[0]
    assert descriptor_of(view) is None
    sender.close()
    receiver.close()


def test_past_a_share_of_the_descriptors_files_are_copied(ends, monkeypatch):
    gc.collect()
    enough = 4 * (len(MemoryFile._mapped) + 3)
    monkeypatch.setattr(resource, "getrlimit", lambda which: (enough, enough))
    for _ in range(5):
        ends[0].send({}, [b"z" * SIZE], timeout_s=120)
    got = [ends[1].receive(timeout_s=120).blobs[0] for _ in range(5)]
    assert [type(blob) for blob in got] == [memoryview] * 3 + [bytes] * 2
    assert all(blob == b"z" * SIZE for blob in got)


def pipe():
    read, write = os.pipe()
    os.close(write)
    return read


def unix_socket():
    first, second = socket.socketpair()
    second.close()
    return first.detach()


def plain_file(tmp_path):
    path = tmp_path / "plain"
    path.write_bytes(b"x" * SIZE)
    return os.open(path, os.O_RDWR)


def fallocated_beyond_its_end():
    """As many pages as a whole file would have, but none of them in it."""
    fd = os.memfd_create("test", os.MFD_ALLOW_SEALING)
    os.posix_fallocate(fd, 0, 2 * SIZE)
    os.ftruncate(fd, SIZE)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, ALL)
    return fd


def huge_pages():
    try:
        fd = os.memfd_create("test", os.MFD_ALLOW_SEALING | HUGE_2_MB)
    except OSError as error:
        pytest.skip(f"no huge pages here: {error}")
    os.ftruncate(fd, 2 << 20)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, ALL)
    return fd


def write_only():
    fd = memory_file()
    reopened = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_PATH)
    os.close(fd)
    return reopened


BAD = {
    "a pipe": lambda tmp_path: pipe(),
    "a socket": lambda tmp_path: unix_socket(),
    "a folder": lambda tmp_path: os.open(tmp_path, os.O_RDONLY),
    "a device": lambda tmp_path: os.open("/dev/zero", os.O_RDWR),
    "a file of the disk": plain_file,
    "a path": lambda tmp_path: write_only(),
    "no seals": lambda tmp_path: memory_file(seals=0),
    "not sealed against sealing": lambda tmp_path: memory_file(seals=ALL & ~fcntl.F_SEAL_SEAL),
    "not sealed against shrinking": lambda tmp_path: memory_file(seals=ALL & ~fcntl.F_SEAL_SHRINK),
    "not sealed against growing": lambda tmp_path: memory_file(seals=ALL & ~fcntl.F_SEAL_GROW),
    "not sealed against writing": lambda tmp_path: memory_file(seals=ALL & ~fcntl.F_SEAL_WRITE),
    "too short": lambda tmp_path: memory_file(SIZE - 1),
    "too long": lambda tmp_path: memory_file(SIZE + 1),
    "empty": lambda tmp_path: memory_file(0),
    "all hole": lambda tmp_path: memory_file(content=b""),
    "a hole at the end": lambda tmp_path: memory_file(content=b"x" * (SIZE - mmap.PAGESIZE)),
    "pages set aside and never written": lambda tmp_path: fallocated_beyond_its_end(),
}


@pytest.mark.parametrize("kind", BAD)
def test_anything_but_a_whole_sealed_file_of_the_announced_size_is_refused_and_closed(hostile, kind, tmp_path):
    sender, channel = hostile
    before = open_descriptors()
    fd = BAD[kind](tmp_path)
    passing(sender, frame(SIZE), [fd])
    os.close(fd)
    with pytest.raises(SandboxError, match="memory file"):
        channel.receive(timeout_s=120)
    assert open_descriptors() == before


def test_huge_pages_are_refused(hostile):
    sender, channel = hostile
    fd = huge_pages()
    passing(sender, frame(2 << 20), [fd])
    os.close(fd)
    with pytest.raises(SandboxError, match="memory file"):
        channel.receive(timeout_s=120)


@pytest.mark.parametrize(
    ("head", "passed"),
    [
        pytest.param(frame(SIZE), 0, id="announced, not passed"),
        pytest.param(frame(SIZE), 2, id="one more than announced"),
        pytest.param(frame(SIZE, SIZE), 1, id="one less than announced"),
        pytest.param(frame(), 1, id="passed, not announced"),
        pytest.param(frame(4, files=0, marks=b"\0"), 1, id="passed with a blob of the stream"),
        pytest.param(frame(SIZE, SIZE, files=1), 1, id="two marks for one"),
        pytest.param(frame(SIZE, marks=b"\2"), 1, id="an unknown mark"),
        pytest.param(frame(SIZE, marks=b"\0"), 1, id="no mark"),
        pytest.param(frame(SIZE, files=2**32 - 1), 1, id="an absurd count"),
        pytest.param(b"KFF1" + frame(SIZE)[4:], 1, id="a wrong header"),
        pytest.param(frame(9 << 30), 1, id="over the cap"),
        pytest.param(frame(SIZE)[:10], 1, id="half a header"),
        pytest.param(frame(SIZE)[:30], 1, id="half a head"),
        pytest.param(frame(SIZE, text=b"["), 1, id="no JSON"),
    ],
)
def test_a_broken_frame_leaves_no_descriptor_open(hostile, head, passed):
    sender, channel = hostile
    before = open_descriptors()
    fd = memory_file()
    if passed:
        passing(sender, head, [fd] * passed)
    else:
        sender.sendall(head)
    os.close(fd)
    sender.shutdown(socket.SHUT_WR)
    with pytest.raises((SandboxError, ChildDied)) as stopped:
        channel.receive(timeout_s=120)
    del stopped
    assert open_descriptors() == before


def test_a_sender_that_stops_after_its_descriptors_is_a_timeout_and_leaves_none_open(hostile):
    sender, channel = hostile
    before = open_descriptors()
    fd = memory_file()
    passing(sender, frame(SIZE)[:30], [fd])
    os.close(fd)
    with pytest.raises(ChildTimeout):
        channel.receive(timeout_s=0.1)
    assert open_descriptors() == before


def test_more_descriptors_than_a_frame_may_have_are_dropped(hostile):
    sender, channel = hostile
    before = open_descriptors()
    fd = memory_file()
    passing(sender, frame(*[SIZE] * (MAX_FILES + 1)), [fd] * (MAX_FILES + 1))
    os.close(fd)
    with pytest.raises(SandboxError, match="descriptors"):
        channel.receive(timeout_s=120)
    assert open_descriptors() == before


def test_descriptors_dribbled_with_every_byte_of_the_header_are_counted_together(hostile):
    sender, channel = hostile
    before = open_descriptors()
    fd = memory_file()
    with contextlib.suppress(OSError):
        for byte in frame(*[SIZE] * MAX_FILES)[:20]:
            passing(sender, bytes([byte]), [fd] * 16)
    os.close(fd)
    with pytest.raises(SandboxError, match="descriptors"):
        channel.receive(timeout_s=120)
    assert open_descriptors() == before


@pytest.mark.parametrize("size", [8, 2 << 20])
def test_descriptors_after_the_header_are_dropped_and_end_the_frame(hostile, size):
    sender, channel = hostile
    before = open_descriptors()
    head = frame(size, files=0, marks=b"\0")
    sender.sendall(head)
    fd = memory_file()
    passing(sender, b"x" * 8, [fd])
    os.close(fd)
    with pytest.raises(SandboxError, match="descriptors"):
        channel.receive(timeout_s=120)
    assert open_descriptors() == before


def test_a_sealed_file_can_neither_be_written_nor_cut_by_its_sender():
    content = os.urandom(SIZE)
    fd = seal(memoryview(content))
    for change in (
        lambda: os.pwrite(fd, b"!", 0),
        lambda: os.ftruncate(fd, 1),
        lambda: os.ftruncate(fd, 2 * SIZE),
        lambda: mmap.mmap(fd, SIZE),
    ):
        with pytest.raises(PermissionError):
            change()
    view = MemoryFile.map(fd, SIZE, keep=False)
    assert view == content


def test_a_process_that_may_make_no_memory_file_sends_through_the_socket(ends, monkeypatch):
    def refused(name, flags=0):
        raise PermissionError(1, "memfd_create")

    monkeypatch.setattr(os, "memfd_create", refused)
    ends[0].send({}, [b"w" * SIZE], timeout_s=120)
    assert ends[1].receive(timeout_s=120).blobs == (b"w" * SIZE,)
    assert seal(memoryview(b"w")) is None


def test_a_file_over_the_limit_on_files_is_sent_through_the_socket(ends):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = open_descriptors()
    resource.setrlimit(resource.RLIMIT_FSIZE, (SIZE // 2, hard))
    try:
        ends[0].send({}, [b"v" * SIZE], timeout_s=120)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert ends[1].receive(timeout_s=120).blobs == (b"v" * SIZE,)
    assert open_descriptors() == before


@pytest.fixture(scope="module", params=["namespaces", "landlock"])
def with_gpu(request):
    """A hostile role with what a GPU's roles may do, which needs no GPU."""
    report = run_self_test(request.param)
    if report.error:
        pytest.skip(f"this machine has no tier {request.param}: {report.error}")
    policy = dataclasses.replace(role_policy("gpu-runner"), module="tests.sandbox.jail_worker")
    with Zygote("gpu-runner", tier=request.param, policy=policy) as running:
        yield running


@pytest.mark.slow
def test_large_tensors_reach_a_child_with_a_gpu_and_come_back_as_files(with_gpu):
    content = os.urandom(2 * SMALLEST_FILE)
    assert len(content) > ROOMY.file_bytes
    with with_gpu.spawn(ROOMY) as first, with_gpu.spawn(ROOMY) as second:
        got = first.call({"act": "echo"}, [content, b"small"])
        assert got.data["reply"] == ["memoryview", "bytes"]
        assert (got.blobs[0].readonly, bytes(got.blobs[0]), got.blobs[1]) == (True, content, b"small")
        onward = second.call({"act": "echo"}, [got.blobs[0][:1000], got.blobs[0]])
        assert onward.data["reply"] == ["bytes", "memoryview"]
        assert [bytes(blob) for blob in onward.blobs] == [content[:1000], content]


@pytest.mark.slow
def test_a_child_without_a_gpu_is_sent_no_file(zygote):
    content = os.urandom(SMALLEST_FILE)
    with zygote.spawn(LIMITS) as child:
        got = child.call({"act": "echo"}, [content])
    assert got.data["reply"] == ["bytes"]
    assert got.blobs == (content,)


def test_a_child_that_passes_a_file_it_can_still_cut_is_killed(with_gpu):
    with_gpu.start()
    before = open_descriptors()
    with with_gpu.spawn(ROOMY) as child:
        with pytest.raises(SandboxError, match="sealed memory file"):
            child.call({"act": "unsealed", "arguments": [SMALLEST_FILE]})
        assert child.death().cause == "killed"
    assert open_descriptors() == before


def test_equal_bytes_are_equal_however_they_are_held():
    content = os.urandom(1000)
    other = content[:-1] + bytes([content[-1] ^ 1])
    views = (content, memoryview(content), memoryview(np.frombuffer(bytearray(content), np.uint8)))
    for first in views:
        for second in views:
            assert same_bytes(first, second)
        assert not same_bytes(first, other)
        assert not same_bytes(first, memoryview(other))
        assert not same_bytes(first, content[:-1])
    assert same_bytes(b"", memoryview(b""))


def test_a_file_that_both_ends_write_needs_no_reply():
    first, second = socket.socketpair()
    with contextlib.closing(Channel(first, files_from=SIZE)) as parent:
        with contextlib.closing(Channel(second, files_from=SIZE, trusts=True)) as child:
            view = MemoryFile.writable(100, 0x5A)
            parent.send({}, [view])
            (received,) = child.receive().blobs
            assert bytes(received) == b"\x5a" * 100
            received[:3] = b"abc"
            with pytest.raises(SandboxError, match="still maps"):
                freeze(view, timeout_s=0.01)
            with pytest.raises(SandboxError, match="could still write"):
                written_bytes(view)
            del received
            freeze(view)
            assert written_bytes(view) == b"abc" + b"\x5a" * 97


def test_a_file_to_write_is_never_sent_as_a_copy(ends):
    views = [MemoryFile.writable(100, 0) for _ in range(MAX_FILES + 1)]
    with pytest.raises(SandboxError, match="cannot be passed"):
        ends[0].send({}, views)
    first, second = socket.socketpair()
    with contextlib.closing(Channel(first)) as plain, second, pytest.raises(SandboxError, match="cannot be passed"):
        plain.send({}, views[:1])


def test_a_file_to_write_that_cannot_be_made_is_an_error_and_leaves_nothing_open():
    before = open_descriptors()
    with pytest.raises(SandboxError, match="no memory file of 0 bytes"):
        MemoryFile.writable(0, 0)
    assert open_descriptors() == before


def test_what_is_sealed_twice_is_in_two_files():
    content = bytes(SMALLEST_FILE)
    first = MemoryFile.sealed(content)
    second = MemoryFile.sealed(first)
    inodes = {os.fstat(descriptor_of(view)).st_ino for view in (first, second)}
    assert len(inodes) == 2
    assert first == second == content
    view = MemoryFile.map(memory_file(100), 100, keep=True)
    assert isinstance(MemoryFile.sealed(view), bytes)


def test_a_file_open_to_writing_is_refused_by_a_parent(ends):
    sender, receiver = ends
    sender.send({}, [MemoryFile.writable(SIZE, 0)])
    with pytest.raises(SandboxError, match="no sealed memory file"):
        receiver.receive()


def test_a_written_file_with_a_hole_is_not_read():
    view = MemoryFile.writable(SIZE, 1)
    keep_size, punch_hole = 0x1, 0x2  # linux/falloc.h
    start, length = ctypes.c_long(0), ctypes.c_long(mmap.PAGESIZE)
    assert ctypes.CDLL(None).fallocate(descriptor_of(view), keep_size | punch_hole, start, length) == 0
    freeze(view)
    with pytest.raises(MisusedFile, match="made holes"):
        written_bytes(view)


def test_a_file_that_its_writer_sealed_is_said_to_be_misused():
    view = MemoryFile.writable(SIZE, 1)
    fcntl.fcntl(descriptor_of(view), fcntl.F_ADD_SEALS, fcntl.F_SEAL_SEAL)
    with pytest.raises(MisusedFile, match="sealed the memory file"):
        freeze(view)
    assert is_open_to_writing(view)
