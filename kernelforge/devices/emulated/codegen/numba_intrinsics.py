"""Intrinsics for raw memory and decorators for the runtime, which numba compiles.

All integers are ``int64``: a mixture of signed and unsigned ones makes numba promote to floating point.
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
    """The folder of numba's cache for this package; None without a writable one."""
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
        # numba reads an index, adds a name and writes it back. Of two processes that do so at once, one may overwrite
        # the names of the other, and the code of one signature is then stored under the name of another.
        with exclusive(_lock_file()):
            try:
                return numba.cfunc(signature, cache=True, **_OPTIONS)(function)
            except RuntimeError:
                return numba.cfunc(signature, **_OPTIONS)(function)
            except Exception:  # numba unpickles its cache: a damaged entry may raise any exception
                _forget_cached(function)
                return numba.cfunc(signature, cache=True, **_OPTIONS)(function)

    return wrap


def _forget_cached(function: Callable[..., Any]) -> None:
    """Drop the cache index of ``function``'s folder, helpers included, so that everything is compiled again."""
    for index in Path(FunctionCache(function).cache_path).glob("*.nbi"):
        index.unlink(missing_ok=True)


_I8, _I32, _I64 = ir.IntType(8), ir.IntType(32), ir.IntType(64)
_F32, _F64 = ir.FloatType(), ir.DoubleType()


def _intrinsic(result: Any, *arguments: Any) -> Callable[[Callable[..., Any]], Any]:
    """Make a numba intrinsic, of these types, of a function of LLVM's builder and the operands."""

    def wrap(build: Callable[..., Any]) -> Any:
        @intrinsic
        @functools.wraps(build)  # numba takes the number of operands from the signature
        def define(typing_context: Any, *operands: Any) -> Any:
            def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
                value = build(builder, *args)
                return context.get_dummy_value() if result is types.void else value

            return result(*arguments), generate

        return define

    return wrap


def _load(pointee: ir.Type, result: Any = types.int64, *, signed: bool = True) -> Any:
    def load(builder: Any, address: Any) -> Any:
        value = builder.load(builder.inttoptr(address, pointee.as_pointer()), align=1)
        if isinstance(pointee, ir.IntType) and pointee.width < 64:
            return builder.sext(value, _I64) if signed else builder.zext(value, _I64)
        return value

    return _intrinsic(result, types.int64)(load)


def _store(pointee: ir.Type, argument: Any = types.int64) -> Any:
    def store(builder: Any, address: Any, value: Any) -> None:
        if isinstance(pointee, ir.IntType) and pointee.width < 64:
            value = builder.trunc(value, pointee)
        builder.store(value, builder.inttoptr(address, pointee.as_pointer()), align=1)

    return _intrinsic(types.void, types.int64, argument)(store)


load_u8 = _load(_I8, signed=False)
load_u16 = _load(ir.IntType(16), signed=False)
load_u32 = _load(_I32, signed=False)
load_i32 = _load(_I32)
load_i64 = _load(_I64)
load_f32 = _load(_F32, types.float32)
store_u8 = _store(_I8)
store_u16 = _store(ir.IntType(16))
store_u32 = _store(_I32)
store_i64 = _store(_I64)
store_f32 = _store(_F32, types.float32)


@_intrinsic(types.void, types.int64, types.int64, types.int64)
def fill_bytes(builder: Any, address: Any, value: Any, count: Any) -> None:
    """memset(address, value, count)."""
    pointer = builder.inttoptr(address, _I8.as_pointer())
    function = builder.module.declare_intrinsic("llvm.memset", [pointer.type, _I64])
    builder.call(function, [pointer, builder.trunc(value, _I8), count, ir.Constant(ir.IntType(1), 0)])


@_intrinsic(types.void, types.int64, types.int64, types.int64)
def copy_bytes(builder: Any, target: Any, source: Any, count: Any) -> None:
    """memmove(target, source, count)."""
    pointers = [builder.inttoptr(address, _I8.as_pointer()) for address in (target, source)]
    function = builder.module.declare_intrinsic("llvm.memmove", [p.type for p in pointers] + [_I64])
    builder.call(function, [*pointers, count, ir.Constant(ir.IntType(1), 0)])


@_intrinsic(types.int64, types.int64)
def popcount(builder: Any, value: Any) -> Any:
    """Number of set bits of an int64."""
    return builder.ctpop(value)


@_intrinsic(types.int64, types.int64)
def trailing_zeros(builder: Any, value: Any) -> Any:
    """Index of the lowest set bit of a non-zero int64."""
    return builder.cttz(value, ir.Constant(ir.IntType(1), 1))


@_intrinsic(types.int64, types.int64, types.int64, types.int64)
def call_warp(builder: Any, function: Any, state: Any, context: Any) -> Any:
    """Call generated code: ``int32 kernel(state, context)``."""
    kind = ir.FunctionType(_I32, [_I64, _I64])
    return builder.sext(builder.call(builder.inttoptr(function, kind.as_pointer()), [state, context]), _I64)


@_intrinsic(types.float32, types.int64)
def bits_to_f32(builder: Any, value: Any) -> Any:
    """Reinterpret the low 32 bits as a float."""
    return builder.bitcast(builder.trunc(value, _I32), _F32)


@_intrinsic(types.int64, types.float32)
def f32_to_bits(builder: Any, value: Any) -> Any:
    """Bit pattern of a float as a non-negative integer."""
    return builder.zext(builder.bitcast(value, _I32), _I64)


@_intrinsic(types.float64, types.int64)
def bits_to_f64(builder: Any, value: Any) -> Any:
    """Reinterpret 64 bits as a double."""
    return builder.bitcast(value, _F64)


@_intrinsic(types.int64, types.float64)
def f64_to_bits(builder: Any, value: Any) -> Any:
    """Bit pattern of a double."""
    return builder.bitcast(value, _I64)
