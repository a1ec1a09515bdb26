"""Typed access to numba: raw memory intrinsics and decorators for the runtime.

Everything is ``int64`` on purpose: mixing signed and unsigned integers makes numba promote to floating point.
"""

from __future__ import annotations

import functools
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import numba
from llvmlite import ir
from numba import types
from numba.core.caching import FunctionCache
from numba.extending import intrinsic

from kernelforge.utils.atomic_files import exclusive

F = TypeVar("F", bound=Callable[..., Any])

_OPTIONS = {"error_model": "numpy", "boundscheck": False}


def _source_stamp() -> str:
    """Digest of the sources that compiled code depends on.

    numba's cache notices a change of the file that defines a function, not of the constants it uses from others; code
    with stale offsets would corrupt memory, so the stamp is part of every cached function's name.
    """
    stamp = 0
    here = Path(__file__).parents[1]
    names = ("execute/cta_scheduler", "layout", "codegen/numba_intrinsics")
    sources = [here / f"{name}.py" for name in names]
    for source in (*sources, *sorted((here / "runtime").glob("*.py"))):
        stamp = zlib.crc32(source.read_bytes(), stamp)
    return f"{stamp:08x}"


_STAMP = _source_stamp()


def cache_folder() -> Path | None:
    """Where numba keeps what it compiled of this package; None where it found no writable place."""
    try:
        return Path(FunctionCache(cache_folder).cache_path)
    except RuntimeError:
        return None


@functools.cache
def _lock_file() -> Path | None:
    folder = cache_folder()
    return None if folder is None else folder / "lock"


def native(function: F) -> F:
    """Compile a helper that other compiled functions call; cached on disk where a cache directory is writable."""
    function.__qualname__ += f"_{_STAMP}"
    try:
        return cast(F, numba.njit(cache=True, **_OPTIONS)(function))
    except RuntimeError:  # numba found no writable place for its cache
        return cast(F, numba.njit(**_OPTIONS)(function))


def exported(signature: str) -> Callable[[F], Any]:
    """Compile a C-callable function; ``.address`` of the result is its entry point."""

    def wrap(function: F) -> Any:
        function.__qualname__ += f"_{_STAMP}"
        # numba reads an index, adds a name and writes it back. Of two processes at it, one that is held up in between
        # takes names away that the other has given, and the code of one signature ends up under the name of another.
        with exclusive(_lock_file()):
            try:
                return numba.cfunc(signature, cache=True, **_OPTIONS)(function)
            except RuntimeError:
                return numba.cfunc(signature, **_OPTIONS)(function)
            except Exception:  # numba unpickles whatever its cache holds: a damaged entry may raise anything
                _forget_cached(function)
                return numba.cfunc(signature, cache=True, **_OPTIONS)(function)

    return wrap


def _forget_cached(function: Callable[..., Any]) -> None:
    """Drop the index of everything cached beside ``function``, its helpers included; it is compiled anew."""
    for index in Path(FunctionCache(function).cache_path).glob("*.nbi"):
        index.unlink(missing_ok=True)


def _load(pointee: ir.Type, result: Any, signed: bool = True) -> Any:
    @intrinsic
    def load(typing_context: Any, address: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            pointer = builder.inttoptr(args[0], pointee.as_pointer())
            value = builder.load(pointer, align=1)
            if isinstance(pointee, ir.IntType) and pointee.width < 64:
                extend = builder.sext if signed else builder.zext
                return extend(value, ir.IntType(64))
            return value

        return result(types.int64), generate

    return load


def _store(pointee: ir.Type, argument: Any) -> Any:
    @intrinsic
    def store(typing_context: Any, address: Any, value: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            pointer = builder.inttoptr(args[0], pointee.as_pointer())
            item = args[1]
            if isinstance(pointee, ir.IntType) and pointee.width < 64:
                item = builder.trunc(item, pointee)
            builder.store(item, pointer, align=1)
            return context.get_dummy_value()

        return types.void(types.int64, argument), generate

    return store


load_u8 = _load(ir.IntType(8), types.int64, signed=False)
load_u16 = _load(ir.IntType(16), types.int64, signed=False)
load_u32 = _load(ir.IntType(32), types.int64, signed=False)
load_i32 = _load(ir.IntType(32), types.int64)
load_i64 = _load(ir.IntType(64), types.int64)
load_f32 = _load(ir.FloatType(), types.float32)
load_f64 = _load(ir.DoubleType(), types.float64)
store_u8 = _store(ir.IntType(8), types.int64)
store_u16 = _store(ir.IntType(16), types.int64)
store_u32 = _store(ir.IntType(32), types.int64)
store_i64 = _store(ir.IntType(64), types.int64)
store_f32 = _store(ir.FloatType(), types.float32)
store_f64 = _store(ir.DoubleType(), types.float64)


@intrinsic
def fill_bytes(typing_context: Any, address: Any, value: Any, count: Any) -> Any:
    """memset(address, value, count)."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = builder.inttoptr(args[0], ir.IntType(8).as_pointer())
        byte = builder.trunc(args[1], ir.IntType(8))
        function = builder.module.declare_intrinsic("llvm.memset", [pointer.type, ir.IntType(64)])
        builder.call(function, [pointer, byte, args[2], ir.Constant(ir.IntType(1), 0)])
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), generate


@intrinsic
def popcount(typing_context: Any, value: Any) -> Any:
    """Number of set bits of an int64."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.ctpop(args[0])

    return types.int64(types.int64), generate


@intrinsic
def trailing_zeros(typing_context: Any, value: Any) -> Any:
    """Index of the lowest set bit of a non-zero int64."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.cttz(args[0], ir.Constant(ir.IntType(1), 1))

    return types.int64(types.int64), generate


@intrinsic
def call_warp(typing_context: Any, function: Any, state: Any, context_address: Any) -> Any:
    """Call generated code: ``int32 kernel(state, context)``."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = ir.FunctionType(ir.IntType(32), [ir.IntType(64), ir.IntType(64)])
        callee = builder.inttoptr(args[0], kind.as_pointer())
        return builder.sext(builder.call(callee, [args[1], args[2]]), ir.IntType(64))

    return types.int64(types.int64, types.int64, types.int64), generate


@intrinsic
def bits_to_f32(typing_context: Any, value: Any) -> Any:
    """Reinterpret the low 32 bits as a float."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(builder.trunc(args[0], ir.IntType(32)), ir.FloatType())

    return types.float32(types.int64), generate


@intrinsic
def f32_to_bits(typing_context: Any, value: Any) -> Any:
    """Bit pattern of a float as a non-negative integer."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.zext(builder.bitcast(args[0], ir.IntType(32)), ir.IntType(64))

    return types.int64(types.float32), generate


@intrinsic
def bits_to_f64(typing_context: Any, value: Any) -> Any:
    """Reinterpret 64 bits as a double."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], ir.DoubleType())

    return types.float64(types.int64), generate


@intrinsic
def f64_to_bits(typing_context: Any, value: Any) -> Any:
    """Bit pattern of a double."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], ir.IntType(64))

    return types.int64(types.float64), generate
