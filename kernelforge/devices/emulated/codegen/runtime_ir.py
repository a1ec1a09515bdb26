"""The runtime as one module of LLVM IR: numba translates each of its Python functions once, and LLVM sees all of them.

numba's own decorators would optimise and compile a function again with every function that calls it. Here numba stops
at IR that is not optimised, and calls between functions name symbols, which LLVM resolves within the module.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import typing
from collections.abc import Callable, Iterable
from importlib.metadata import version
from pathlib import Path
from typing import Any, ClassVar

import llvmlite.binding as llvm

from kernelforge.utils.garbage import collection_paused


class _Callee:
    """A function that the runtime calls: numba finds its type and its code here, and is imported only then."""

    name: str

    @property
    def signature(self) -> Any:
        """Its types for numba."""
        raise NotImplementedError

    def generate(self, context: Any, builder: Any, signature: Any, operands: Any) -> Any:
        """Generate the IR of a call; numba's contract for such functions."""
        raise NotImplementedError

    @functools.cached_property
    def _numba_type_(self) -> Any:
        """The type that numba's documentation lets an object give itself."""
        from numba import types
        from numba.core.registry import cpu_target
        from numba.core.typing.templates import make_concrete_template

        signature = self.signature
        cpu_target.target_context.insert_func_defn([(self.generate, self, signature.args)])
        return types.Function(make_concrete_template(self.name, self, [signature]))


class Intrinsic(_Callee):
    """An operation of LLVM, generated where it is called: by ``build`` of LLVM's builder and the operands."""

    def __init__(self, build: Callable[..., Any], result: str, arguments: tuple[str, ...]) -> None:
        self.name = build.__name__
        self.__doc__ = build.__doc__
        self._build = build
        self._types = result, arguments

    @property
    def signature(self) -> Any:
        from numba import types

        result, arguments = self._types
        return getattr(types, result)(*(getattr(types, name) for name in arguments))

    def generate(self, context: Any, builder: Any, signature: Any, operands: Any) -> Any:
        value = self._build(builder, *operands)
        return context.get_dummy_value() if value is None else value


class RuntimeFunction(_Callee):
    """A function of the runtime: the annotations of ``python`` are its types, ``float`` being f32.

    Python does not call it. numba takes a call of it for one of the symbol ``name``, which :func:`library` defines.
    """

    address_of: ClassVar[Callable[[RuntimeFunction], int]]
    """Entry point of an exported one; ``llvm_jit``, which makes it, sets this."""

    def __init__(self, python: Callable[..., Any]) -> None:
        self.python = python
        self.name = f"{python.__module__.rpartition('.')[2]}.{python.__name__}"
        self.__doc__ = python.__doc__

    def run(self, first: int, second: int) -> int:
        """Call an exported function of two integers."""
        kind = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)
        return int(kind(RuntimeFunction.address_of(self))(first, second))

    @property
    def entry(self) -> str:
        """Symbol of the C function with these parameters and this result, where :func:`library` exports it."""
        return f"{self.name}.entry"

    @functools.cached_property
    def signature(self) -> Any:
        from numba import types

        names = {int: types.int64, bool: types.boolean, float: types.float32, type(None): types.void}
        hints = {name: names[hint] for name, hint in typing.get_type_hints(self.python).items()}
        return hints.pop("return")(*hints.values())

    def generate(self, context: Any, builder: Any, signature: Any, operands: Any) -> Any:
        # Nothing in the runtime raises an exception, so the status that comes with the result is ignored.
        return context.call_internal_no_propagate(builder, self._descriptor(), signature, operands)[1]

    def _descriptor(self) -> Any:
        from numba.core.funcdesc import FunctionDescriptor

        return FunctionDescriptor(
            native=True,
            modname=self.python.__module__,
            qualname=self.name,
            unique_name=self.name,
            doc="",
            typemap={},
            restype=self.signature.return_type,
            calltypes={},
            args=tuple(f"operand{k}" for k in range(len(self.signature.args))),
            kws=(),
            argtypes=self.signature.args,
            mangler=lambda *_, **__: self.name,
        )


def sources() -> list[Path]:
    """The files that :func:`library` depends on."""
    package = Path(__file__).parents[1]
    names = ("execute/cta_scheduler", "layout", "codegen/numba_intrinsics", "codegen/runtime_ir")
    return [*(package / f"{name}.py" for name in names), *sorted((package / "runtime").glob("*.py"))]


def source_digest() -> str:
    """Digest of those files and of the version of numba."""
    digest = hashlib.sha256(version("numba").encode())
    for path in sources():
        digest.update(path.read_bytes())
    return digest.hexdigest()


def library(exports: Iterable[RuntimeFunction]) -> str:
    """A module that defines the ``entry`` of some functions, and within itself everything that they call.

    Raises:
        TypeError: A function calls itself, or something that is not defined; or one of ``exports`` has other types
            than int64.
    """
    exports = list(exports)
    module = llvm.parse_assembly("")
    with collection_paused():  # numba's many small objects would be searched again and again
        for function in reachable(exports):
            module.link_in(_translate(function))
    module.link_in(llvm.parse_assembly("".join(map(_entry, exports))))
    entries = {function.entry for function in exports}
    for value in (*module.functions, *module.global_variables):
        if not value.is_declaration:
            value.linkage = "external" if value.name in entries else "internal"
        elif not value.name.startswith("llvm."):
            raise TypeError(f"a function of the runtime calls itself, or {value.name}, which nothing defines")
    return str(module)


def reachable(exports: Iterable[RuntimeFunction]) -> list[RuntimeFunction]:
    """Some functions and all those that they call."""
    functions = dict.fromkeys(exports)
    rest = list(functions)
    while rest:
        python: Any = rest.pop().python
        for name in python.__code__.co_names:
            value = python.__globals__.get(name)
            if isinstance(value, RuntimeFunction) and value not in functions:
                functions[value] = None
                rest.append(value)
    return list(functions)


def _translate(function: RuntimeFunction) -> Any:
    """A module with the IR of one function, under its symbol, and of what numba adds to it, such as ``max``."""
    from numba.core.codegen import CPUCodeLibrary
    from numba.core.compiler import Flags, compile_extra
    from numba.core.compiler_lock import global_compiler_lock
    from numba.core.registry import cpu_target

    texts: list[str] = []
    added: list[str] = []

    class Collector(CPUCodeLibrary):  # type: ignore[misc]
        """Takes the place of a library of numba's, which would optimise and compile."""

        def add_ir_module(self, ir_module: Any) -> None:
            texts.append(str(ir_module))

        def add_linking_library(self, library: Any) -> None:
            added.append(library.get_llvm_str())

    flags = Flags()
    flags.no_compile = True
    flags.no_cpython_wrapper = True
    flags.no_cfunc_wrapper = True
    flags.no_rewrites = True
    flags.error_model = "numpy"
    typing_context, context = cpu_target.typing_context, cpu_target.target_context
    types = function.signature
    with global_compiler_lock:
        collector = Collector(context.codegen(), function.name)
        result = compile_extra(
            typing_context, context, function.python, types.args, types.return_type, flags, {}, collector
        )
    module = llvm.parse_assembly("")
    for text in texts:
        module.link_in(llvm.parse_assembly(text))
    module.get_function(result.fndesc.llvm_func_name).name = function.name
    for text in added:
        part = llvm.parse_assembly(text)
        for value in part.functions:
            if not value.is_declaration:
                value.linkage = "linkonce_odr"  # other functions may add it too
        module.link_in(part)
    return module


def _entry(function: RuntimeFunction) -> str:
    """The C function that calls one of numba's, which returns a status and leaves its result in memory."""
    from numba import types

    signature = function.signature
    if {*signature.args, signature.return_type} - {types.int64, types.void}:
        raise TypeError(f"{function.name} is exported and has types other than int64: {signature}")
    result, end = "i64", ["%value = load i64, ptr %result", "ret i64 %value"]
    if signature.return_type == types.void:
        result, end = "void", ["ret void"]
    operands = [f"i64 %operand{k}" for k in range(len(signature.args))]
    lines = [
        f'declare i32 @"{function.name}"({", ".join(["ptr", "ptr", *["i64"] * len(operands)])})',
        f'define {result} @"{function.entry}"({", ".join(operands)}) {{',
        "%result = alloca i64",
        "%exception = alloca ptr",
        "store i64 0, ptr %result",
        f'call i32 @"{function.name}"({", ".join(["ptr %result", "ptr %exception", *operands])})',
        *end,
        "}",
    ]
    return "\n".join(lines) + "\n"
