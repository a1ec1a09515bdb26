"""Runners of one GPU: started in advance, and the health of the GPU seen through them.

A context takes long to create, and a runner serves one session.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable

from kernelforge.errors import ChildDied, ChildTimeout, DeviceError, KernelForgeError
from kernelforge.sandbox import Child

PROBE_S = 30.0
"""Longest wait for the health probe."""


class RunnerPool:
    """Children that are ready to load a build, made in the background while nothing is timed.

    Args:
        name: Name of the GPU, for errors: ``cuda:0``.
        make: Makes a child with its context.
        size: Number of children to keep.
    """

    def __init__(self, name: str, make: Callable[[], Child], size: int = 1) -> None:
        self._name = name
        self._make = make
        self._size = size
        self._ready: list[Child] = []
        self._changed = threading.Condition()
        self._filling: threading.Thread | None = None
        self._holds = 0
        self._closed = False
        self._fault: str | None = None
        """Result of the last health probe that failed; None for a GPU in use."""

    def take(self, *, refill: bool = True) -> Child:
        """Return a child for one session; a replacement is made in the background, unless the child will come back.

        Raises:
            KernelForgeError: the child cannot be made.
        """
        with self._changed:
            while not self._ready and self._filling is not None:
                self._changed.wait()
            child = self._ready.pop() if self._ready else None
        made = child or self._make()
        if refill:
            self._refill()
        return made

    def give_back(self, child: Child) -> None:
        """Put back a child that has run no candidate."""
        with self._changed:
            if not self._closed and len(self._ready) < self._size:
                self._ready.append(child)
                self._changed.notify_all()
                return
        child.close()

    def hold(self) -> None:
        """Make no context until :meth:`release`; waits for one that is being made."""
        with self._changed:
            self._holds += 1
            while self._filling is not None:
                self._changed.wait()

    def release(self) -> None:
        """End one :meth:`hold`; the last one fills the pool."""
        with self._changed:
            self._holds -= 1
        self._refill()

    def _refill(self) -> None:
        with self._changed:
            if self._closed or self._holds or self._filling is not None or len(self._ready) >= self._size:
                return
            self._filling = threading.Thread(target=self._fill, name="gpu-spares", daemon=True)
            self._filling.start()

    def _fill(self) -> None:
        child: Child | None = None
        try:
            child = self._make()
        except (KernelForgeError, OSError):
            child = None  # the next `take` makes one itself and raises the error
        finally:
            with self._changed:
                self._filling = None
                if child is not None and not self._closed:
                    self._ready.append(child)
                    child = None
                self._changed.notify_all()
            if child is not None:
                child.close()

    def require_healthy(self) -> None:
        """Raise :class:`DeviceError` if the GPU failed its last probe."""
        if self._fault is not None:
            raise DeviceError(
                f"{self._name} is unhealthy and no longer used: {self._fault}. Nothing after that is scored; "
                "look at `nvidia-smi -q`, reset the GPU or restart the machine"
            )

    def recover(self) -> None:
        """Probe the GPU in a process that ran no candidate, after one that did was lost.

        Raises:
            DeviceError: the probe failed: the GPU is quarantined.
        """
        fault = self._probe()
        if fault is not None:
            self._fault = fault
            self.require_healthy()

    def probe(self) -> str | None:
        """Probe a quarantined GPU and return what is wrong with it; None makes it usable again."""
        self._fault = self._probe()
        return self._fault

    def _probe(self) -> str | None:
        try:
            child = self.take(refill=False)
        except DeviceError as error:
            return last_line(error)
        fault = _probe_error(child)
        if fault is None:
            self.give_back(child)
        else:
            child.close()
        return fault

    def close(self) -> None:
        """End the children in reserve, and any that is being made."""
        with self._changed:
            self._closed = True
            while self._filling is not None:
                self._changed.wait()
            ready, self._ready = self._ready, []
        for child in ready:
            child.close()


def _probe_error(child: Child) -> str | None:
    """Failure of the health probe in a child; None if it passes."""
    try:
        reply = child.call({"op": "probe"}, timeout_s=PROBE_S)
    except ChildTimeout:
        return f"it did not answer within {PROBE_S:g} s"
    except ChildDied as error:
        return last_line(error)
    return None if reply.data.get("healthy") is True else "memory does not hold what was written"


def last_line(error: Exception) -> str:
    """The message of an error whose text may be a traceback of the child, or an exception that the child raised."""
    return re.sub(r"^(the [\w-]+ child failed: )?[\w.]+Error: ", "", str(error).strip().splitlines()[-1])[:500]
