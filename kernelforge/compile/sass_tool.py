"""Disassembles cubins with NVIDIA's ``nvdisasm``, in confined children: a cubin comes from a candidate's source."""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from types import TracebackType

from kernelforge.errors import ChildDied, ChildTimeout
from kernelforge.hardware.wheels import DISASSEMBLER, disassembler
from kernelforge.profiling.sass_code import NO_MACHINE_CODE, MachineCode, parse_sass
from kernelforge.sandbox import Limits, Zygote

LIMITS = Limits(wall_s=40.0, cpu_s=40.0, memory_bytes=1 << 30, tmp_bytes=256 << 20, processes=2, reply_bytes=64 << 20)
_KEPT = 32
"""Cubins whose machine code is kept, the latest."""


class Disassembler:
    """Reads machine code; its process starts at the first cubin. Safe to use from several threads.

    Args:
        allow_unconfined: see :class:`~kernelforge.sandbox.Zygote`.
    """

    def __init__(self, *, allow_unconfined: bool = False) -> None:
        program = disassembler()
        self._zygote = None
        if program is not None:
            options = {"program": str(program)}
            self._zygote = Zygote("disassembler", options=options, allow_unconfined=allow_unconfined)
        self._codes: OrderedDict[str, MachineCode] = OrderedDict()
        self._lock = threading.Lock()

    def read(self, cubin: bytes) -> MachineCode:
        """Machine code of a cubin; what fails is in its ``problem``, and is tried again only where it may succeed.

        Raises:
            SandboxError: the jail cannot be built.
        """
        if not cubin:
            return MachineCode({}, f"{NO_MACHINE_CODE} is shown: nothing was assembled")
        key = hashlib.sha256(cubin).hexdigest()
        with self._lock:
            if key in self._codes:
                self._codes.move_to_end(key)
                return self._codes[key]
        code = self._read(cubin)
        with self._lock:
            self._codes[key] = code
            while len(self._codes) > _KEPT:
                self._codes.popitem(last=False)
        return code

    def interrupt(self) -> None:
        """End what another thread waits for."""
        if self._zygote is not None:
            self._zygote.interrupt()

    def close(self) -> None:
        """End the zygote."""
        if self._zygote is not None:
            self._zygote.close()

    def __enter__(self) -> Disassembler:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _read(self, cubin: bytes) -> MachineCode:
        if self._zygote is None:
            return MachineCode({}, f"{NO_MACHINE_CODE} is shown: pip install {DISASSEMBLER}")
        try:
            with self._zygote.spawn(LIMITS) as child:
                reply = child.call({}, [cubin])
            if "error" in reply.data:
                return MachineCode({}, f"{NO_MACHINE_CODE} is shown: {reply.data['error']}")
            (text,) = reply.blobs
            return MachineCode(parse_sass(bytes(text).decode("ascii", errors="replace")))
        except (ChildDied, ChildTimeout, ValueError) as error:
            return MachineCode({}, f"{NO_MACHINE_CODE} is shown: nvdisasm failed on this cubin ({error})")
