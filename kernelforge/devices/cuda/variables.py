"""Module variables of a loaded build: restored before every run, and never to be written by one."""

from __future__ import annotations

from typing import Any

from kernelforge.compile.cubin import read_cubin
from kernelforge.devices.base import RunFault
from kernelforge.devices.cuda.driver import Driver, DriverError, Pointer
from kernelforge.devices.cuda.tensors import first_difference

_NOT_FOUND = "CUDA_ERROR_NOT_FOUND"


class Variables:
    """What ``__device__`` and ``__constant__`` variables held when the module was loaded.

    ``hidden`` are those that the driver does not find: nobody can tell whether they were written.

    Raises:
        DriverError: one cannot be read.
        ValueError: the cubin cannot be read.
    """

    def __init__(self, driver: Driver, module: Any, cubin: bytes) -> None:
        self._driver = driver
        self._images: dict[str, tuple[Pointer, bytes]] = {}
        hidden: list[str] = []
        for name in sorted(read_cubin(cubin).variables):
            try:
                pointer, nbytes = driver.variable(module, name)
            except DriverError as error:
                if error.code != _NOT_FOUND:
                    raise
                hidden.append(name)
                continue
            self._images[name] = (pointer, driver.read(pointer, nbytes))
        self.hidden = tuple(hidden)

    def restore(self) -> None:
        """Write the images back."""
        for pointer, image in self._images.values():
            self._driver.write(pointer, image)

    def faults(self) -> list[RunFault]:
        """One for every variable that changed."""
        found: list[RunFault] = []
        for name, (pointer, image) in self._images.items():
            at = first_difference(image, self._driver.read(pointer, len(image)))
            if at is not None:
                text = (
                    f"write to a __device__ or __constant__ variable, {at} bytes into {name!r} ({len(image)} bytes): "
                    "a kernel must not write module variables; keep what it needs in a tensor of the plan"
                )
                found.append(RunFault("sanitizer", text))
        return found
