"""The health probe: whether a GPU still does what it is told, asked in a fresh process after a candidate's fault."""

from __future__ import annotations

from kernelforge.devices.cuda.driver import Driver

PROBE_BYTES = 16 << 20
_PATTERN = bytes(range(256)) * 16


def examine(driver: Driver) -> bool:
    """Write, fill and copy some memory; whether what comes back is right.

    Raises:
        DriverError: CUDA itself fails.
    """
    source, target = driver.allocate(PROBE_BYTES), driver.allocate(PROBE_BYTES)
    try:
        driver.fill(source, 0xC3, PROBE_BYTES)
        driver.write(source, _PATTERN)
        driver.copy(target, source, PROBE_BYTES)
        driver.synchronize()
        found = driver.read(target, PROBE_BYTES)
        return found == _PATTERN + b"\xc3" * (PROBE_BYTES - len(_PATTERN))
    finally:
        driver.free(source)
        driver.free(target)
