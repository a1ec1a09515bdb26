"""For scripts that run a driver on a GPU: the driver, the kernels, and values as bytes."""

import struct
from importlib import import_module
from pathlib import Path
from typing import Any

from kernelforge.compile import installed_toolchain
from kernelforge.compile.nvrtc import Compilation, Nvrtc
from kernelforge.devices.cuda.worker.driver import DriverError, LaunchShape, PixelBoxSpec, TensorMapSpec

__all__ = [
    "DriverError",
    "LaunchShape",
    "PixelBoxSpec",
    "TensorMapSpec",
    "compiled",
    "open_driver",
    "pack",
    "shape",
    "words",
]

SOURCE = Path(__file__).with_name("gpu_kernels.cu")


def compiled(arch: str) -> Compilation:
    return Nvrtc(installed_toolchain().library).compile(
        SOURCE.read_text(), "kernels.cu", headers={}, options=[f"--gpu-architecture={arch}"], expressions=[]
    )


def open_driver(runtime: str) -> tuple[Any, Any]:
    """The driver of that runtime on the first GPU, and the kernels, loaded."""
    driver = import_module(f"kernelforge.devices.cuda.worker.{runtime}_driver").make(0)
    return driver, driver.load(compiled(driver.facts.arch).cubin)


def pack(form: str, *values: Any) -> list[bytes]:
    """Each value's bytes: ``pack("QI", pointer, 4)``."""
    return [struct.pack(f"<{kind}", value) for kind, value in zip(form, values, strict=True)]


def words(data: bytes) -> list[int]:
    return list(struct.unpack(f"<{len(data) // 4}I", data))


def shape(blocks: int, threads: int, **options: Any) -> LaunchShape:
    return LaunchShape((blocks, 1, 1), (threads, 1, 1), **options)
