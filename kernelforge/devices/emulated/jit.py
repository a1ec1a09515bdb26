"""LLVM in this process: compile IR text, and make the runtime and the IR libraries callable by name."""

from __future__ import annotations

import ctypes
import functools
import threading
from typing import Any

import llvmlite.binding as llvm

from kernelforge.devices.emulated import math_ir, memory_ir

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
    """Machine code of one IR module; keep it alive while its functions may run."""

    def __init__(self, text: str, level: int = 1) -> None:
        with _lock:
            module = llvm.parse_assembly(text)
            machine = _target_machine(level)
            builder = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level=1))
            passes = llvm.create_new_function_pass_manager()
            passes.add_sroa_pass()
            passes.add_simplify_cfg_pass()
            passes.add_instruction_combine_pass()
            for function in module.functions:
                if not function.is_declaration:
                    passes.run(function, builder)
            self._engine = llvm.create_mcjit_compiler(module, machine)
            self._engine.finalize_object()

    def address(self, name: str) -> int:
        """Entry point of a function."""
        return int(self._engine.get_function_address(name))


_libraries: list[Native] = []


@functools.cache
def load_runtime() -> None:
    """Compile the libraries and register every symbol that generated code calls. Takes a second or two, once."""
    from kernelforge.devices.emulated import runtime

    _initialise()
    for name, function in runtime.EXPORTS.items():
        llvm.add_symbol(name, function.address)
    for text, names in (memory_ir.library(permute=host_features().get("avx512f", False)), math_ir.library()):
        native = Native(text)
        _libraries.append(native)
        for name in names:
            llvm.add_symbol(name, native.address(name))


KernelFunction = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)
