"""Runners started in advance: a context takes long to create, and a runner serves one session."""

from __future__ import annotations

import threading
from collections.abc import Callable

from kernelforge.errors import KernelForgeError
from kernelforge.sandbox import Child


class RunnerPool:
    """Children that are ready to load a build, made in the background while nothing is timed.

    Args:
        make: A new child with its context.
        size: How many to keep.
    """

    def __init__(self, make: Callable[[], Child], size: int = 1) -> None:
        self._make = make
        self._size = size
        self._ready: list[Child] = []
        self._changed = threading.Condition()
        self._filling: threading.Thread | None = None
        self._quiet = 0
        self._closed = False

    def take(self, *, refill: bool = True) -> Child:
        """A child for one session; another takes its place in the background, unless it will come back.

        Raises:
            KernelForgeError: what :attr:`make` raises.
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
        """Put back one that has run no candidate."""
        with self._changed:
            if not self._closed and len(self._ready) < self._size:
                self._ready.append(child)
                self._changed.notify_all()
                return
        child.close()

    def hold(self) -> None:
        """From now on make no context, until :meth:`release`; one in the making is waited for."""
        with self._changed:
            self._quiet += 1
            while self._filling is not None:
                self._changed.wait()

    def release(self) -> None:
        """End one :meth:`hold`; after the last, catch up."""
        with self._changed:
            self._quiet -= 1
        self._refill()

    def _refill(self) -> None:
        with self._changed:
            if self._closed or self._quiet or self._filling is not None or len(self._ready) >= self._size:
                return
            self._filling = threading.Thread(target=self._fill, name="gpu-spares", daemon=True)
            self._filling.start()

    def _fill(self) -> None:
        child: Child | None = None
        try:
            child = self._make()
        except (KernelForgeError, OSError):
            # Whoever needs a child next makes one, and is told what is wrong.
            child = None
        finally:
            with self._changed:
                self._filling = None
                if child is not None and not self._closed:
                    self._ready.append(child)
                    child = None
                self._changed.notify_all()
            if child is not None:
                child.close()

    def close(self) -> None:
        """End those in reserve, and any in the making."""
        with self._changed:
            self._closed = True
            while self._filling is not None:
                self._changed.wait()
            ready, self._ready = self._ready, []
        for child in ready:
            child.close()
