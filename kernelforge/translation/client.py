"""The process of a C candidate as its parent sees it: build, calls, and calls that are timed."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal

from kernelforge.errors import SandboxError, UnsupportedError
from kernelforge.modelnew.client import ModelNewChild, ModelNewFault
from kernelforge.sandbox import Frame
from kernelforge.sandbox.policy import Limits
from kernelforge.sandbox.shared_memory import Blob
from kernelforge.translation.offload import Offload
from kernelforge.translation.signature import Signature

CLanguage = Literal["c", "cpp", "cuda", "fortran", "python"]
"""Language of a candidate's source. Fortran defines the function with ``bind(c)``; ``cuda`` is a host program, whose
kernels a :class:`KernelLauncher` runs; a function of Python gets NumPy arrays of one dimension."""

Launch = Callable[[Mapping[str, Any], Sequence[Blob]], Sequence[Blob]]
"""Runs a kernel that a host program launched, on the contents of its memory; returns the new contents."""

LIMITS: Final = Limits(
    wall_s=60.0, cpu_s=900.0, memory_bytes=4 << 30, tmp_bytes=64 << 20, processes=16, file_bytes=32 << 20
)
"""Of one candidate's process."""


_MOST_TEXT = 2000
_LONG_BUILDS: Final = 5
"""Longest wait for a compiler of Thrust or Kokkos, in those for other sources: their headers take 3 s and more of CPU
time."""
_CAN_LACK: Final = frozenset({"cuda", "python"})
"""Languages of candidates that can need what this machine lacks: a package, a type of an argument."""


class CChild(ModelNewChild):
    """The process of one C candidate. Close it when done."""

    def build(
        self, source: str, signature: Signature, language: CLanguage = "c", offload: Offload | None = None
    ) -> None:
        """Compile the candidate.

        Args:
            offload: directives whose regions get a memory of their own.

        Raises:
            ModelNewFault: as every call here: the candidate does not compile, failed, or ended its process.
            UnsupportedError: as every call here: it needs what this machine lacks. Only candidates of
                :data:`_CAN_LACK` can say so.
        """
        self._can_lack = language in _CAN_LACK or offload is not None
        self._lines = source.count("\n") + 1
        request = {
            "op": "load", "source": source, "declaration": str(signature), "name": signature.name,
            "language": language, "offload": offload,
        }  # fmt: skip
        self._answer(request, (), self._build_s * (_LONG_BUILDS if offload in ("thrust", "kokkos") else 1))

    def call(
        self,
        arguments: Sequence[dict[str, Any]],
        inputs: Sequence[Blob],
        *,
        poison: int,
        at_end: bool,
        launch: Launch | None = None,
    ) -> tuple[Blob, ...]:
        """Call the function once; returns the arrays that it writes.

        Args:
            launch: runs the kernels of a host program.
        """
        request = {"op": "run", "arguments": list(arguments), "poison": poison, "at_end": at_end}
        deadline = time.monotonic() + self._run_s
        frame = self._answer(request, inputs, self._run_s)
        while launch is not None and "launch" in frame.data:
            if time.monotonic() > deadline:
                raise ModelNewFault("timeout", f"no end of its launches within {self._run_s:g} s")
            done = launch(frame.data["launch"], frame.blobs)
            frame = self._answer({"op": "launched"}, done, self._run_s)
        return frame.blobs

    def library(self) -> Blob:
        """Library that the candidate was compiled to: bytes of a file that the system's loader opens.

        Raises:
            ModelNewFault: the candidate's process sent none, or failed.
        """
        blobs = self._answer({"op": "library"}, (), self._run_s).blobs
        if len(blobs) != 1:
            raise ModelNewFault("forged", "the candidate's process sent no library")
        return blobs[0]

    def open(self, library: Blob, name: str) -> None:
        """Load what another process of the same candidate compiled.

        Raises:
            ModelNewFault: it does not load, or defines no function ``name``.
        """
        self._can_lack = False
        self._answer({"op": "open", "name": name}, (library,), self._build_s)

    def take_outputs(self, outputs: Sequence[Blob]) -> None:
        """Name the memory files that the next timed calls write, in order.

        Raises:
            ModelNewFault: the candidate failed, or ended its process.
        """
        self._answer({"op": "place"}, outputs, self._run_s)

    def timed(self, calls: Sequence[Sequence[dict[str, Any]]], inputs: Sequence[Blob]) -> None:
        """Call the function on each set of arguments; what it writes is in the files of :meth:`take_outputs`.

        Raises:
            ModelNewFault: the candidate failed, ended its process, or took longer than a call may.
        """
        self._answer({"op": "timed", "calls": [list(call) for call in calls]}, inputs, self._run_s)

    def end(self) -> None:
        """Kill the process and all it started, and see it end: from then on nothing writes its files.

        Raises:
            SandboxError: it has not ended.
        """
        self._child.kill()
        if not self._child.gone:
            raise SandboxError("the process of a C function was killed and has not ended, so it has no time")

    def _answer(self, request: dict[str, Any], blobs: Sequence[Blob], wait_s: float) -> Frame:
        """The reply to a request.

        Raises:
            ModelNewFault: the candidate failed, or forged a reply.
            UnsupportedError: the candidate needs what this machine lacks.
        """
        frame = self._call(request, blobs, wait_s)
        if "unsupported" not in frame.data:
            return frame
        if not self._can_lack:
            raise ModelNewFault("forged", "the candidate's process sent a reply that its worker never sends")
        raise UnsupportedError(str(frame.data["unsupported"])[:_MOST_TEXT])
