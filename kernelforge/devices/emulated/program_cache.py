"""Compiled kernels of this process, shared by all machines."""

from __future__ import annotations

import threading
from collections.abc import Callable

from kernelforge.devices.emulated import jit
from kernelforge.devices.emulated.program import Program

Key = tuple[str, str, tuple[int, int, int]]
"""Digest of the PTX, kernel name, threads per axis of a CTA."""

_programs: dict[Key, Program] = {}
_lock = threading.Lock()
_reported: set[int] = set()


def cached_program(key: Key, compile_program: Callable[[], Program], good_enough: Callable[[Program], bool]) -> Program:
    """The program of that key, compiled on its first use in this process, and again when it is not ``good_enough``."""
    with _lock:
        program = _programs.get(key)
        if program is None or not good_enough(program):
            jit.load_runtime()
            if program is not None:
                _reported.discard(id(program))  # another may get its place in memory
            program = compile_program()
            _programs[key] = program
    return program


def consume_jit_seconds(program: Program) -> float:
    """Compilation time, on the first launch that uses the program."""
    if id(program) in _reported:
        return 0.0
    _reported.add(id(program))
    return program.jit_seconds
