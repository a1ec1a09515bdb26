"""LLVM in this process: compile IR text, and make the runtime and the IR libraries callable by name."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import os
import secrets
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import llvmlite
import llvmlite.binding as llvm
from platformdirs import user_cache_dir

from kernelforge.devices.emulated.codegen import math_ir, memory_ir, runtime_ir
from kernelforge.devices.emulated.codegen.runtime_ir import RuntimeFunction
from kernelforge.utils.atomic_files import exclusive

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


def has_avx512() -> bool:
    """Whether generated code may use the 512-bit instructions of AVX-512 F and DQ."""
    return bool(host_features().get("avx512f") and host_features().get("avx512dq"))


def _target_machine(level: int, processor: str | None) -> Any:
    _initialise()
    return llvm.Target.from_default_triple().create_target_machine(
        cpu=processor or llvm.get_host_cpu_name(),
        features="" if processor else llvm.get_host_cpu_features().flatten(),
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
            machine = _target_machine(level, PROCESSOR)
            code = None if cached is None else cached.read()
            if code is None:
                _improve(module, machine)
            self._engine = llvm.create_mcjit_compiler(module, machine)
            if cached is not None:
                self._engine.set_object_cache(lambda _, compiled: cached.write(compiled), lambda _: code)
            self._engine.finalize_object()

    @classmethod
    def of_object(cls, code: bytes) -> Native:
        """The machine code of an object file."""
        native = cls("")
        with _lock:
            native._engine.add_object_file(llvm.ObjectFileRef.from_data(code))
            native._engine.finalize_object()
        return native

    def address(self, name: str) -> int:
        """Entry point of a function."""
        return int(self._engine.get_function_address(name))


def verify(text: str) -> None:
    """Read IR text without compiling it.

    Raises:
        RuntimeError: LLVM refuses it; the message says why.
    """
    with _lock:
        _initialise()
        llvm.parse_assembly(text).verify()


def _improve(module: Any, machine: Any) -> None:
    """Run the passes that pay off before code is generated."""
    builder = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level=1))
    inline = llvm.create_new_module_pass_manager()
    inline.add_always_inliner_pass()
    inline.run(module, builder)
    passes = llvm.create_new_function_pass_manager()
    passes.add_sroa_pass()
    passes.add_simplify_cfg_pass()
    passes.add_instruction_combine_pass()
    for function in module.functions:
        if not function.is_declaration:
            passes.run(function, builder)


class CachedObject:
    """Machine code of one IR module in a file, for a processor and this LLVM. An unreadable file counts as a miss.

    Args:
        folder: The file's folder.
        name: The module's name.
        text: The module, or a digest of what it is made from.
        processor: LLVM's name of the processor; None: this one.
    """

    def __init__(self, folder: Path, name: str, text: str, processor: str | None = None) -> None:
        features = [] if processor else sorted(llvm.get_host_cpu_features().items())
        processor = processor or llvm.get_host_cpu_name()
        self._path = folder / f"{name}-{processor}.object"
        facts = (
            text,
            processor,
            features,
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

    def read_or_make(self, make: Callable[[], bytes]) -> bytes:
        """The machine code of the file, or else what ``make`` returns, which only one process at a time calls."""
        code = self.read()
        if code is None:
            with exclusive(self._path.with_suffix(".lock")):
                code = self.read()  # unless another process has made it
                if code is None:
                    code = make()
                    self.write(code)
        return code

    def _digest(self, code: bytes) -> bytes:
        return hashlib.sha256(self._key + code).digest()


_DIGEST_BYTES = hashlib.sha256().digest_size
_COMPILER_VERSION = 2
"""Increase it with every change of how a module becomes machine code."""

_libraries: list[Native] = []


@functools.cache
def load_runtime() -> None:
    """Make the runtime and the libraries, or read them from files, and register every symbol of generated code.

    Takes 15 to 20 seconds of one core the first time on a machine, nearly all of it for the runtime.
    """
    from kernelforge.devices.emulated import runtime

    _initialise()
    for name, function in runtime.EXPORTS.items():
        llvm.add_symbol(name, runtime_address(function))
    wide = has_avx512()
    libraries = {"memory": memory_ir.library(permute=wide), "math": math_ir.library(avx512=wide)}
    for title, (text, names) in libraries.items():
        native = Native(text, cached=CachedObject(cache_folder(), title, text, PROCESSOR))
        _libraries.append(native)
        for name in names:
            llvm.add_symbol(name, native.address(name))


@functools.cache
def load_tensor_memory() -> None:
    """Make the runtime of tensor memory, or read it from a file, and register its symbols.

    Takes ten to fifteen seconds of one core the first time on a machine.
    """
    from kernelforge.devices.emulated.runtime import TENSOR_EXPORTS

    load_runtime()
    native = _part("tensor-memory", tuple(TENSOR_EXPORTS.values()))
    for name, function in TENSOR_EXPORTS.items():
        llvm.add_symbol(name, native.address(function.entry))


@functools.cache
def runtime_address(function: RuntimeFunction) -> int:
    """Entry point of an exported function of the runtime, those of tensor memory apart."""
    from kernelforge.devices.emulated.execute.cta_scheduler import run_ctas
    from kernelforge.devices.emulated.runtime import EXPORTS
    from kernelforge.devices.emulated.runtime.cache import finish_stores
    from kernelforge.devices.emulated.runtime.replay import replay

    return _part("runtime", (run_ctas, finish_stores, replay, *EXPORTS.values())).address(function.entry)


RuntimeFunction.address_of = staticmethod(runtime_address)


@functools.cache
def _part(name: str, exports: tuple[RuntimeFunction, ...]) -> Native:
    """Machine code of a part of the runtime, always for this processor."""
    cached = CachedObject(cache_folder(), name, runtime_ir.source_digest())
    return Native.of_object(cached.read_or_make(lambda: optimised(runtime_ir.library(exports))))


def optimised(text: str) -> bytes:
    """An object file with the functions of a module, optimised for speed."""
    with _lock:
        module = llvm.parse_assembly(text)
        machine = _target_machine(2, None)
        for level in (2, 3):  # the second time, functions that have become small are inlined
            options = llvm.create_pipeline_tuning_options(speed_level=level)
            options.loop_vectorization = options.slp_vectorization = False  # the loops are short
            builder = llvm.create_pass_builder(machine, options)
            builder.getModulePassManager().run(module, builder)
        code: bytes = machine.emit_object(module)
    return code


def cache_folder() -> Path:
    """Folder for machine code of this copy of the package, in ``$NUMBA_CACHE_DIR`` or where jailed runners have it."""
    base = os.environ.get("NUMBA_CACHE_DIR") or Path(user_cache_dir("kernelforge"), "numba")
    package = Path(__file__).resolve().parents[1]
    return Path(base, f"emulated-{hashlib.sha256(bytes(package)).hexdigest()[:16]}")


@functools.cache
def load_function(name: str, text: str) -> None:
    """Compile a module of one function, once, and register the function's symbol."""
    native = Native(text)
    _libraries.append(native)
    llvm.add_symbol(name, native.address(name))


KernelFunction = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)
