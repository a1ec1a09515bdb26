"""Records of the sanitizer: what counts as written, and that they take no more memory than a run accesses."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from kernelforge.devices.emulated.execute.memory import Memory, Sanitizer
from tests.devices.emulated.harness import Device, cuda

GIB = 1 << 30
MIB = 1 << 20
SOURCE = """
extern "C" __global__ void store(int* x) { x[blockIdx.x * blockDim.x + threadIdx.x] = 3; }
extern "C" __global__ void add(int* x) { x[blockIdx.x * blockDim.x + threadIdx.x] += 1; }
"""


def launched(device: Device, kernel: str, address: int, nbytes: int, sanitizer: Sanitizer) -> set[str]:
    """Kinds of the faults of a launch with a thread for each word of a range."""
    raw = np.uint64(address).tobytes()
    report = device.machine.launch(kernel, (nbytes // 1024, 1, 1), (256, 1, 1), 0, raw, sanitizer=sanitizer)
    return {fault.kind for fault in report.faults}


def resident_bytes() -> int:
    """Memory of this process that the host holds."""
    (kib,) = re.findall(r"VmRSS:\s+(\d+)", Path("/proc/self/status").read_text())
    return int(kib) << 10


@pytest.mark.parametrize("undefined", [False, True])
def test_records_take_the_memory_of_what_a_run_accesses(undefined: bool) -> None:
    device = cuda(SOURCE, capacity=5 * GIB)
    address = device.memory.allocate(4 * GIB, "x")
    before = resident_bytes()
    sanitizer = Sanitizer(device.memory)
    if undefined:
        sanitizer.undefine(address, 4 * GIB)
    for kernel in ("store", "add"):
        assert launched(device, kernel, address + GIB, MIB, sanitizer) == set()
    assert sanitizer.unwritten(address + GIB - MIB, 4 * MIB) == (3 * MIB if undefined else 0)
    assert resident_bytes() - before < 256 * MIB


def test_only_what_an_undefined_allocation_lacks_is_reported() -> None:
    device = cuda(SOURCE)
    argument, own, later = (device.memory.allocate(3000, label) for label in ("argument", "own", "later"))
    sanitizer = Sanitizer(device.memory)
    sanitizer.undefine(own, 3000)
    for address in (argument, later):
        assert launched(device, "add", address, 2048, sanitizer) == set()
        assert sanitizer.unwritten(address, 3000) == 0
    assert launched(device, "add", own, 2048, sanitizer) == {"uninitialised"}
    sanitizer = Sanitizer(device.memory)
    sanitizer.undefine(own, 3000)
    sanitizer.mark(own + 1000, 48)
    assert sanitizer.unwritten(own, 3000) == 2952
    assert sanitizer.unwritten(own + 2999, 1) == 1
    assert sanitizer.unwritten(own, 0) == 0
    assert launched(device, "store", own, 1024, sanitizer) == set()
    assert sanitizer.unwritten(own, 3000) == 3000 - 1048
    assert launched(device, "add", own, 1024, sanitizer) == set()
    assert launched(device, "add", own + 1024, 1024, sanitizer) == {"uninitialised"}


def test_an_allocation_of_no_bytes_is_no_other_ones() -> None:
    memory = Memory(1 << 16)
    empty, next_one = memory.allocate(0, "empty"), memory.allocate(64, "next")
    sanitizer = Sanitizer(memory)
    sanitizer.undefine(empty, 0)
    assert sanitizer.unwritten(next_one, 64) == 0
