"""Cost of bringing a tensor from one child through the parent to another: sockets against sealed memory files.

    python benchmarks/transport.py [--reps N] [--sends N] [--most MIB] [--json]

One process makes the bytes, the parent receives them and sends them on (as often as ``--sends`` says: a draw of inputs
is run more than once), a third process copies all of them, as a copy to a GPU would. Two ways, by turns in the same
run: every hop through the stream, and every hop a file, of which there is one.

Times are medians over the repetitions. Exits with 1 where files of 32 MiB or more are slower.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import sys
import time

import numpy as np

from kernelforge.errors import ChildDied
from kernelforge.sandbox import Channel

WAYS = {"socket": None, "files": 1}
"""Bytes from which a blob is sent as a file."""
KIB, MIB = 1 << 10, 1 << 20
_BUFFER_BYTES = 4 * MIB


def peer(channel: Channel, most: int) -> None:
    """``make`` gives that many bytes, ``take`` copies what came; until the parent goes away."""
    source = np.random.default_rng(0).integers(0, 256, most, dtype=np.uint8)
    target = np.zeros(most, dtype=np.uint8)
    while True:
        try:
            frame = channel.receive()
        except ChildDied:
            return
        if frame.data["op"] == "make":
            channel.send({}, [source.data[: frame.data["bytes"]]])
        else:
            blob = np.frombuffer(frame.blobs[0], np.uint8)
            target[: blob.size] = blob
            del blob, frame
            channel.send({})


def start(files_from: int | None, most: int) -> Channel:
    """A process of its own, as the zygote makes its socket; this side of the channel."""
    local, remote = socket.socketpair()
    for end in (local, remote):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER_BYTES)
    if os.fork() == 0:
        try:
            local.close()
            peer(Channel(remote, files_from=files_from), most)
        finally:
            os._exit(0)
    remote.close()
    return Channel(local, forwards=True, files_from=files_from)


def carry(source: Channel, sink: Channel, size: int, sends: int) -> float:
    """Seconds from asking for a tensor until it has been copied at its end, ``sends`` times."""
    begun = time.perf_counter()
    source.send({"op": "make", "bytes": size})
    blobs = source.receive().blobs
    for _ in range(sends):
        sink.send({"op": "take"}, blobs)
        sink.receive()
    return time.perf_counter() - begun


def measure(sizes: list[int], reps: int, sends: int) -> dict[int, dict[str, float]]:
    """Median seconds by size and way."""
    pairs = {}
    for way, files_from in WAYS.items():
        pairs[way] = (start(files_from, max(sizes)), start(files_from, max(sizes)))
    seconds: dict[int, dict[str, float]] = {}
    for size in sizes:
        times: dict[str, list[float]] = {way: [] for way in WAYS}
        for _ in range(max(3, min(reps, 20 * reps * MIB // size))):
            for way, (source, sink) in pairs.items():
                times[way].append(carry(source, sink, size, sends))
        seconds[size] = {way: statistics.median(taken) for way, taken in times.items()}
    for pair in pairs.values():
        for channel in pair:
            channel.close()
    return seconds


def main() -> int:
    """Measure, print, judge."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--reps", type=int, default=20, help="repetitions of the small sizes (default: 20)")
    parser.add_argument("--sends", type=int, default=2, help="times the parent sends a tensor on (default: 2)")
    parser.add_argument("--most", type=int, default=256, help="largest size in MiB (default: 256)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()
    sizes = [size for n in range(16, 40) if (size := 1 << n) <= options.most * MIB]
    measured = measure(sizes, options.reps, options.sends)
    if options.json:
        print(json.dumps({str(size): times for size, times in measured.items()}))
    else:
        print(f"{'size':>10}{'socket ms':>12}{'files ms':>12}{'socket/files':>14}")
        for size, t in measured.items():
            label = f"{size // MIB} MiB" if size >= MIB else f"{size // KIB} KiB"
            times = "".join(f"{t[way] * 1e3:>12.3f}" for way in WAYS)
            print(f"{label:>10}{times}{t['socket'] / t['files']:>14.2f}")
    slower = [size for size, t in measured.items() if size >= 32 * MIB and t["files"] > t["socket"]]
    return 1 if slower else 0


if __name__ == "__main__":
    sys.exit(main())
