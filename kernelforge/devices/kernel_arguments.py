"""Kernel arguments as bytes, the same on every device."""

from __future__ import annotations

import struct

import numpy as np

from kernelforge.candidate.resolved import ScalarArg


def pack_scalar(arg: ScalarArg) -> bytes:
    """Bytes of a scalar as the kernel's parameter block holds it; integers wrap, as a cast in C++ does."""
    if arg.type in ("i32", "i64"):
        size = 4 if arg.type == "i32" else 8
        return (int(arg.value) & ((1 << 8 * size) - 1)).to_bytes(size, "little")
    if arg.type == "bf16":
        return struct.pack("<H", _bfloat16(float(arg.value)))
    if arg.type == "f16":
        with np.errstate(over="ignore"):
            return np.float16(arg.value).tobytes()
    if arg.type == "f32":
        with np.errstate(over="ignore"):
            return np.float32(arg.value).tobytes()
    return struct.pack("<d", float(arg.value))


def _bfloat16(value: float) -> int:
    """Bits of the nearest bfloat16, ties to even."""
    with np.errstate(over="ignore"):
        bits = int(np.float32(value).view(np.uint32))
    if bits & 0x7FFFFFFF > 0x7F800000:  # NaN stays one
        return bits >> 16 | 0x40
    return (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
