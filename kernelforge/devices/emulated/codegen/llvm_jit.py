"""LLVM in this process: compile IR text, and make the runtime and the IR libraries callable by name."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import secrets
import threading
from pathlib import Path
from typing import Any

import llvmlite
import llvmlite.binding as llvm

from kernelforge.devices.emulated.codegen import math_ir, memory_ir

_lock = threading.Lock()

PROCESSOR: str | None = None
"""LLVM's name of the processor to generate code for, such as ``x86-64-v3``; None: this one. Set before first use."""


@functools.cache
def _initialise() -> None:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()


@functools.cache
def host_features() -> dict[str, bool]:
    """Instruction-set extensions of this processor, by LLVM's names; none for a named processor."""
    return {} if PROCESSOR else dict(llvm.get_host_cpu_features())


def _target_machine(level: int) -> Any:
    _initialise()
    return llvm.Target.from_default_triple().create_target_machine(
        cpu=PROCESSOR or llvm.get_host_cpu_name(),
        features="" if PROCESSOR else llvm.get_host_cpu_features().flatten(),
        opt=level,
        jit=True,
    )


class Native:
    """Machine code of one IR module; keep it alive while its functions may run.

    Args:
        text: The module.
        level: LLVM's level of optimisation.
        cached: File that the machine code is read from, or written to for the next process.
    """

    def __init__(self, text: str, level: int = 1, cached: CachedObject | None = None) -> None:
        with _lock:
            module = llvm.parse_assembly(text)
            machine = _target_machine(level)
            code = None if cached is None else cached.read()
            if code is None:
                _improve(module, machine)
            self._engine = llvm.create_mcjit_compiler(module, machine)
            if cached is not None:
                self._engine.set_object_cache(lambda _, compiled: cached.write(compiled), lambda _: code)
            self._engine.finalize_object()

    def address(self, name: str) -> int:
        """Entry point of a function."""
        return int(self._engine.get_function_address(name))


def _improve(module: Any, machine: Any) -> None:
    """Run the passes that pay off before code is generated."""
    builder = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level=1))
    passes = llvm.create_new_function_pass_manager()
    passes.add_sroa_pass()
    passes.add_simplify_cfg_pass()
    passes.add_instruction_combine_pass()
    for function in module.functions:
        if not function.is_declaration:
            passes.run(function, builder)


class CachedObject:
    """Machine code of one IR module in a file, for this processor and this LLVM. An unreadable file counts as a miss.

    Args:
        folder: The file's folder.
        name: The module's name.
        text: The module.
    """

    def __init__(self, folder: Path, name: str, text: str) -> None:
        processor = PROCESSOR or llvm.get_host_cpu_name()
        self._path = folder / f"{name}-{processor}.object"
        facts = (
            text,
            processor,
            sorted(host_features().items()),
            llvm.llvm_version_info,
            llvmlite.__version__,
            _COMPILER_VERSION,
        )
        self._key = hashlib.sha256(repr(facts).encode()).digest()

    def read(self) -> bytes | None:
        """The machine code that another process wrote; None without a valid file."""
        try:
            content = self._path.read_bytes()
        except OSError:
            return None
        code = content[_DIGEST_BYTES:]
        return code if content[:_DIGEST_BYTES] == self._digest(code) else None

    def write(self, code: bytes) -> None:
        """Write the file atomically."""
        temporary = self._path.with_name(f".{self._path.name}.{secrets.token_hex(8)}")
        with contextlib.suppress(OSError):
            try:
                temporary.parent.mkdir(parents=True, exist_ok=True)
                temporary.write_bytes(self._digest(code) + code)
                temporary.replace(self._path)
            finally:
                temporary.unlink(missing_ok=True)

    def _digest(self, code: bytes) -> bytes:
        return hashlib.sha256(self._key + code).digest()


_DIGEST_BYTES = hashlib.sha256().digest_size
_COMPILER_VERSION = 1
"""Increase it with every change of how a module becomes machine code."""

_libraries: list[Native] = []


@functools.cache
def load_runtime() -> None:
    """Compile the libraries and register every symbol that generated code calls.

    Takes half a second the first time on a machine.
    """
    from kernelforge.devices.emulated import runtime
    from kernelforge.devices.emulated.codegen.numba_intrinsics import cache_folder

    _initialise()
    folder = cache_folder()
    for name, function in runtime.EXPORTS.items():
        llvm.add_symbol(name, function.address)
    libraries = {
        "memory": memory_ir.library(permute=host_features().get("avx512f", False)),
        "math": math_ir.library(),
    }
    for title, (text, names) in libraries.items():
        native = Native(text, cached=None if folder is None else CachedObject(folder, title, text))
        _libraries.append(native)
        for name in names:
            llvm.add_symbol(name, native.address(name))


@functools.cache
def load_function(name: str, text: str) -> None:
    """Compile a module of one function, once, and register the function's symbol."""
    native = Native(text)
    _libraries.append(native)
    llvm.add_symbol(name, native.address(name))


KernelFunction = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)
