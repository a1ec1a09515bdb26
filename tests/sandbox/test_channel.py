"""Frames over a socket pair."""

import os
import resource
import socket
import struct
import threading

import pytest

from kernelforge.errors import ChildDied, ChildTimeout, SandboxError
from kernelforge.sandbox import Channel, Frame


@pytest.fixture
def ends():
    first, second = socket.socketpair()
    pair = Channel(first), Channel(second)
    yield pair
    for end in pair:
        end.close()


def exchange(ends, data, blobs):
    sender = threading.Thread(target=ends[0].send, args=(data, blobs))
    sender.start()
    frame = ends[1].receive(timeout_s=120)
    sender.join()
    return frame


@pytest.mark.parametrize("sizes", [[], [0], [1, 0, 7], [1 << 20], [(1 << 20) - 1, 3 << 20, 5], [9 << 20]])
def test_what_is_sent_is_received(ends, sizes):
    blobs = [os.urandom(size) for size in sizes]
    data = {"text": "ünïcode", "list": [1, 2.5, None, True], "nested": {"a": []}}
    assert exchange(ends, data, blobs) == Frame(data, tuple(blobs))


def raw_frame(text: bytes) -> bytes:
    return struct.pack("<4sIIIQ", b"KFF2", len(text), 0, 0, 0) + text


def test_half_a_surrogate_pair_becomes_text_that_can_be_written(ends):
    got = exchange(ends, {"a\ud800": ["\udfff x", {"b": "\ud83d"}], "whole": "\U0001f600"}, []).data
    assert got == {"a?": ["? x", {"b": "?"}], "whole": "\U0001f600"}
    assert str(got).encode()


@pytest.mark.parametrize("text", [b'{"a": "\xed\xa0\x80"}', '{"a": 1}'.encode("utf-16"), b'{"a": "\xff"}'])
def test_text_that_is_not_utf_8_is_refused(text):
    first, second = socket.socketpair()
    first.sendall(raw_frame(text))
    with pytest.raises(SandboxError, match="not JSON"):
        Channel(second).receive(timeout_s=1)
    first.close()
    second.close()


def test_views_of_any_item_size_are_sent_as_bytes(ends):
    view = memoryview(bytes(range(16))).cast("I")
    assert exchange(ends, {}, [view]).blobs == (bytes(range(16)),)


def test_frames_follow_one_another(ends):
    for number in range(50):
        ends[0].send({"n": number}, [bytes(number)])
    assert [ends[1].receive(timeout_s=1).data["n"] for _ in range(50)] == list(range(50))


@pytest.mark.parametrize("announced", [5000, 8 << 20])
def test_a_slow_sender_is_a_timeout_however_it_dribbles(announced):
    first, second = socket.socketpair()
    channel = Channel(second)
    stop = threading.Event()

    def dribble():
        first.sendall(struct.pack("<4sIIIQ", b"KFF2", 2, 1, 0, announced) + struct.pack("<QB", announced, 0) + b"{}")
        while not stop.wait(0.02):
            first.send(b"x")

    sender = threading.Thread(target=dribble)
    sender.start()
    # Bytes keep coming for minutes: it ends in time, or not before all are there.
    with pytest.raises(ChildTimeout):
        channel.receive(timeout_s=0.4)
    stop.set()
    sender.join()
    first.close()
    channel.close()


def test_a_receiver_that_does_not_read_is_a_timeout():
    first, second = socket.socketpair()
    sender = Channel(first, files_from=None)
    with pytest.raises(ChildTimeout):
        sender.send({}, [bytes(64 << 20)], timeout_s=0.2)
    sender.close()
    second.close()


def test_the_other_side_going_away_is_a_death(ends):
    ends[0].close()
    with pytest.raises(ChildDied):
        ends[1].receive(timeout_s=1)
    with pytest.raises(ChildDied):
        ends[1].send({}, [bytes(8 << 20)], timeout_s=1)


def test_a_death_in_the_middle_of_a_large_blob_is_a_death():
    first, second = socket.socketpair()
    channel = Channel(second)
    first.sendall(
        struct.pack("<4sIIIQ", b"KFF2", 2, 1, 0, 4 << 20) + struct.pack("<QB", 4 << 20, 0) + b"{}" + b"x" * 1000
    )
    first.close()
    with pytest.raises(ChildDied):
        channel.receive(timeout_s=120)
    channel.close()


def test_an_announced_length_alone_takes_no_memory(ends):
    ends[0]._sock.setblocking(True)
    ends[0]._sock.sendall(struct.pack("<4sIIIQ", b"KFF2", 2, 1, 0, 4 << 30) + struct.pack("<QB", 4 << 30, 0) + b"{}")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ChildTimeout):
        ends[1].receive(timeout_s=0.2)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000


def test_caps_are_the_receivers_own():
    first, second = socket.socketpair()
    sender, receiver = Channel(first), Channel(second, max_blob_bytes=10, max_json_bytes=100)
    sender.send({}, [bytes(10)])
    assert receiver.receive(timeout_s=1).blobs == (bytes(10),)
    sender.send({}, [bytes(11)])
    with pytest.raises(SandboxError, match="size cap"):
        receiver.receive(timeout_s=1)
    sender.close()
    receiver.close()
