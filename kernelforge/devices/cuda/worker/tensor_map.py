"""Tiled tensor maps: from a specification to the arguments of ``cuTensorMapEncodeTiled``.

Not interleaved, every element taken, what lies outside reads as zero, and the L2 fetches 128 bytes at a time (CUDA
driver API, *Tensor Map Object Management*).
"""

from __future__ import annotations

import ctypes
from typing import Any

from kernelforge.devices.cuda import libcuda
from kernelforge.devices.cuda.worker.driver import DriverError, TensorMapSpec

_BYTES = 128
_ALIGNMENT = 128
"""Of the map in host memory: CUDA asks for 64 bytes, and its header aligns the type to 128 from CUDA 13 on."""

_ELEMENTS = {
    "float64": "FLOAT64",
    "float32": "FLOAT32",
    "float16": "FLOAT16",
    "bfloat16": "BFLOAT16",
    "int64": "INT64",
    "int32": "INT32",
    # A tile is copied bit for bit; CUDA names no signed types of 8 and 16 bits.
    "int16": "UINT16",
    "int8": "UINT8",
    "uint8": "UINT8",
    "bool": "UINT8",
}

_SWIZZLES = {0: "NONE", 32: "32B", 64: "64B", 128: "128B"}


def describe(spec: TensorMapSpec) -> str:
    """For errors: what CUDA was asked for."""
    return (
        f"{spec.element}, extents {spec.extents}, strides of {spec.strides_bytes} bytes, box {spec.box}, "
        f"swizzle {spec.swizzle_bytes}, at {spec.pointer:#x}"
    )


def encode(cuda: Any, spec: TensorMapSpec) -> bytes:
    """The 128 bytes of a tensor map, for the GPU of the current context.

    By ctypes: CUDA wants the map aligned to 64 bytes, and cuda-bindings 13.5 holds it in a Python object, which is
    aligned to 16 (NVIDIA/cuda-python, pull request 1692).

    Args:
        cuda: ``cuda.bindings.driver``, for CUDA's numbers.
        spec: What the map describes.

    Raises:
        DriverError: CUDA refuses it, or has no such element type.
    """
    doing = f"encoding a tensor map ({describe(spec)})"
    if spec.element not in _ELEMENTS:
        raise DriverError("CUDA_ERROR_INVALID_VALUE", f"{doing}: CUDA has no such element type")
    library = libcuda.library()
    if library is None:
        raise DriverError("CUDA_ERROR_NOT_FOUND", f"{doing}: there is no {libcuda.SONAME}")
    storage = ctypes.create_string_buffer(_BYTES + _ALIGNMENT)
    address = -(-ctypes.addressof(storage) // _ALIGNMENT) * _ALIGNMENT
    rank = len(spec.extents)
    status = library.cuTensorMapEncodeTiled(
        ctypes.c_void_p(address),
        ctypes.c_int(getattr(cuda.CUtensorMapDataType, f"CU_TENSOR_MAP_DATA_TYPE_{_ELEMENTS[spec.element]}")),
        ctypes.c_uint32(rank),
        ctypes.c_void_p(spec.pointer),
        (ctypes.c_uint64 * rank)(*spec.extents),
        (ctypes.c_uint64 * rank)(*spec.strides_bytes),
        (ctypes.c_uint32 * rank)(*spec.box),
        (ctypes.c_uint32 * rank)(*(1 for _ in spec.extents)),
        ctypes.c_int(cuda.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE),
        ctypes.c_int(getattr(cuda.CUtensorMapSwizzle, f"CU_TENSOR_MAP_SWIZZLE_{_SWIZZLES[spec.swizzle_bytes]}")),
        ctypes.c_int(cuda.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_128B),
        ctypes.c_int(cuda.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE),
    )
    if status:
        raise DriverError(libcuda.error_name(library, status), doing)
    return ctypes.string_at(address, _BYTES)
