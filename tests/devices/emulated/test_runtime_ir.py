"""The runtime's Python functions become machine code that computes what they say."""

from __future__ import annotations

import ctypes
import inspect
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kernelforge.devices.emulated.codegen import runtime_ir
from kernelforge.devices.emulated.codegen.llvm_jit import Native, optimised
from kernelforge.devices.emulated.codegen.numba_intrinsics import (
    bits_to_f32,
    exported,
    f32_to_bits,
    native,
    popcount,
    store_i64,
)
from kernelforge.devices.emulated.execute.cta_scheduler import run_ctas
from kernelforge.devices.emulated.runtime import EXPORTS, TENSOR_EXPORTS

FLAG = 4


@native
def odd(value: int) -> bool:
    return value & 1 != 0


@native
def halved(value: int) -> float:
    return bits_to_f32(value) * bits_to_f32(0x3F000000)


@native
def largest_or_bits(largest: bool, value: int) -> int:
    return max(value, FLAG) if largest else -popcount(value)


@exported
def answer(value: int) -> int:
    if value < 0:
        return f32_to_bits(halved(-value))
    return largest_or_bits(odd(value), value)


@exported
def put(where: int, value: int) -> None:
    store_i64(where, max(value // 0, min(value, 9)))


@exported
def endless(value: int) -> int:
    return endless(value - 1)


@exported
def doubtful(value: int) -> bool:
    return value > 0


def functions(*of: Any) -> list[Callable[..., int]]:
    """C functions, compiled in one module."""
    code = Native.of_object(optimised(runtime_ir.library(of)))
    kinds = [ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * len(f.signature.args)) for f in of]
    # The function keeps the code alive.
    made = [kind(code.address(f.entry)) for kind, f in zip(kinds, of, strict=True)]
    return [lambda *operands, call=call, code=code: call(*operands) for call in made]


@pytest.mark.slow
def test_functions_call_each_other_intrinsics_and_builtins() -> None:
    called, stored = functions(answer, put)
    assert [called(value) for value in (1, 3, 7, 6, -0x40000000)] == [4, 4, 7, -2, 0x3F800000]
    target = ctypes.c_int64(-1)
    stored(ctypes.addressof(target), 12)
    assert target.value == 9


@pytest.mark.slow
def test_a_function_that_calls_itself_is_refused() -> None:
    with pytest.raises(TypeError, match="calls itself"):
        runtime_ir.library([endless])


def test_an_exported_function_has_integers_only() -> None:
    with pytest.raises(TypeError, match="types other than int64"):
        runtime_ir.library([doubtful])


def test_the_digest_is_of_every_file_that_the_runtime_comes_from() -> None:
    files = {path.resolve() for path in runtime_ir.sources()}
    for function in runtime_ir.reachable([run_ctas, *EXPORTS.values(), *TENSOR_EXPORTS.values()]):
        assert Path(inspect.getfile(function.python)).resolve() in files, function.name
        for value in inspect.getclosurevars(function.python).globals.values():
            if inspect.ismodule(value):
                assert Path(value.__file__ or "").resolve() in files, (function.name, value)


@pytest.mark.slow
def test_numba_is_imported_only_where_the_runtime_is_made() -> None:
    script = (
        "import sys\n"
        "from kernelforge.devices.emulated.execute.loaded_module import warm_up\n"
        "warm_up()\n"
        "print('numba' in sys.modules)"
    )
    runs = [subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True) for _ in "12"]
    assert runs[1].stdout == "False\n"
