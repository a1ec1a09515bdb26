"""Intrinsics for raw memory and decorators for the runtime, whose Python functions numba turns into LLVM's IR.

All integers are ``int64``: a mixture of signed and unsigned ones makes numba promote to floating point.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir

from kernelforge.devices.emulated.codegen.runtime_ir import Intrinsic, RuntimeFunction


def native(function: Callable[..., Any]) -> Any:
    """Make a helper of the runtime, for its other functions, of a Python function with annotated types."""
    return RuntimeFunction(function)


def exported(function: Callable[..., Any]) -> Any:
    """Make a function of the runtime that generated code may call; its values are all int64."""
    return RuntimeFunction(function)


_I8, _I32, _I64 = ir.IntType(8), ir.IntType(32), ir.IntType(64)
_F32, _F64 = ir.FloatType(), ir.DoubleType()


def _intrinsic(result: str, *arguments: str) -> Callable[[Callable[..., Any]], Any]:
    """Make an intrinsic, of these types of numba's, of a function of LLVM's builder and the operands."""
    return lambda build: Intrinsic(build, result, arguments)


def _load(pointee: ir.IntType, *, signed: bool = True) -> Any:
    def load(builder: Any, address: Any) -> Any:
        value = builder.load(builder.inttoptr(address, pointee.as_pointer()), align=1)
        if pointee.width < 64:
            return builder.sext(value, _I64) if signed else builder.zext(value, _I64)
        return value

    return _intrinsic("int64", "int64")(load)


def _store(pointee: ir.IntType) -> Any:
    def store(builder: Any, address: Any, value: Any) -> None:
        if pointee.width < 64:
            value = builder.trunc(value, pointee)
        builder.store(value, builder.inttoptr(address, pointee.as_pointer()), align=1)

    return _intrinsic("void", "int64", "int64")(store)


load_u8 = _load(_I8, signed=False)
load_i8 = _load(_I8)
load_u16 = _load(ir.IntType(16), signed=False)
load_u32 = _load(_I32, signed=False)
load_i32 = _load(_I32)
load_i64 = _load(_I64)
store_u8 = _store(_I8)
store_u16 = _store(ir.IntType(16))
store_u32 = _store(_I32)
store_i64 = _store(_I64)


@_intrinsic("void", "int64", "int64", "int64")
def fill_bytes(builder: Any, address: Any, value: Any, count: Any) -> None:
    """memset(address, value, count)."""
    pointer = builder.inttoptr(address, _I8.as_pointer())
    function = builder.module.declare_intrinsic("llvm.memset", [pointer.type, _I64])
    builder.call(function, [pointer, builder.trunc(value, _I8), count, ir.Constant(ir.IntType(1), 0)])


@_intrinsic("void", "int64", "int64", "int64")
def copy_bytes(builder: Any, target: Any, source: Any, count: Any) -> None:
    """memmove(target, source, count)."""
    pointers = [builder.inttoptr(address, _I8.as_pointer()) for address in (target, source)]
    function = builder.module.declare_intrinsic("llvm.memmove", [p.type for p in pointers] + [_I64])
    builder.call(function, [*pointers, count, ir.Constant(ir.IntType(1), 0)])


@_intrinsic("int64", "int64")
def popcount(builder: Any, value: Any) -> Any:
    """Number of set bits of an int64."""
    return builder.ctpop(value)


@_intrinsic("int64", "int64")
def trailing_zeros(builder: Any, value: Any) -> Any:
    """Index of the lowest set bit of a non-zero int64."""
    return builder.cttz(value, ir.Constant(ir.IntType(1), 1))


@_intrinsic("int64", "int64")
def leading_zeros(builder: Any, value: Any) -> Any:
    """Number of zeros above the highest set bit of an int64."""
    return builder.ctlz(value, ir.Constant(ir.IntType(1), 0))


@_intrinsic("int64", "int64", "int64", "int64")
def call_turn(builder: Any, function: Any, context: Any, first: Any) -> Any:
    """Call generated code: ``int64 turn(context, first)``."""
    kind = ir.FunctionType(_I64, [_I64, _I64])
    return builder.call(builder.inttoptr(function, kind.as_pointer()), [context, first])


@_intrinsic("float32", "int64")
def bits_to_f32(builder: Any, value: Any) -> Any:
    """Reinterpret the low 32 bits as a float."""
    return builder.bitcast(builder.trunc(value, _I32), _F32)


@_intrinsic("int64", "float32")
def f32_to_bits(builder: Any, value: Any) -> Any:
    """Bit pattern of a float as a non-negative integer."""
    return builder.zext(builder.bitcast(value, _I32), _I64)


@_intrinsic("float64", "int64")
def bits_to_f64(builder: Any, value: Any) -> Any:
    """Reinterpret 64 bits as a double."""
    return builder.bitcast(value, _F64)


@_intrinsic("int64", "float64")
def f64_to_bits(builder: Any, value: Any) -> Any:
    """Bit pattern of a double."""
    return builder.bitcast(value, _I64)


@_intrinsic("void", *["int64"] * 6)
def call_expand(builder: Any, function: Any, *operands: Any) -> None:
    """Call generated code: ``void expand(bytes, numbers, exponents, count, negative)``."""
    kind = ir.FunctionType(ir.VoidType(), [_I64] * len(operands))
    builder.call(builder.inttoptr(function, kind.as_pointer()), operands)


@_intrinsic("void", *["int64"] * 9)
def call_sums(builder: Any, function: Any, *operands: Any) -> None:
    """Call generated code: ``void sums(left, exponents, right, exponents, d, blocks, flags, scale)``."""
    kind = ir.FunctionType(ir.VoidType(), [_I64] * len(operands))
    builder.call(builder.inttoptr(function, kind.as_pointer()), operands)
