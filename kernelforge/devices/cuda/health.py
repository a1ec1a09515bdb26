"""Health probe of a GPU in a fresh process, after a candidate's fault."""

from __future__ import annotations

import re

from kernelforge.devices.cuda.worker.driver import Driver
from kernelforge.errors import ChildDied, ChildTimeout
from kernelforge.sandbox import Child

PROBE_BYTES = 1 << 20
PROBE_S = 30.0
_PATTERN = bytes(range(256)) * 16


def memory_test(driver: Driver) -> bool:
    """Write, fill and copy some memory; whether what comes back is right. The child's side.

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


def probe_error(child: Child) -> str | None:
    """What is wrong with the GPU that the child has; None where the probe passes. The parent's side."""
    try:
        reply = child.call({"op": "probe"}, timeout_s=PROBE_S)
    except ChildTimeout:
        return f"it did not answer within {PROBE_S:g} s"
    except ChildDied as error:
        return last_line(error)
    return None if reply.data.get("healthy") is True else "memory does not hold what was written"


def last_line(error: Exception) -> str:
    """The message of an error whose text may be a child's whole traceback, or what a child raised."""
    return re.sub(r"^(the [\w-]+ child failed: )?[\w.]+Error: ", "", str(error).strip().splitlines()[-1])[:500]
