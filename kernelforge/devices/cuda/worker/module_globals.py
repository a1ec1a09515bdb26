"""Module variables of a loaded build: restored before every run; a run must not write them.

A driver may not find some of them: in NVRTC 13's cubins every symbol of a variable is local, those of the mathematical
functions' own tables (``__cudart_i2opi_f`` of ``sinf``) among them. One that no instruction of the build can write
needs no watch.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterator
from typing import Any

from kernelforge.compile.cubin import read_cubin
from kernelforge.devices.base import RunFailure
from kernelforge.devices.cuda.worker.driver import Driver, DriverError, Pointer
from kernelforge.devices.cuda.worker.tensors import first_difference
from kernelforge.devices.emulated.ptx.parser import (
    Addr,
    Function,
    Instruction,
    Module,
    NotReg,
    Operand,
    Pair,
    PtxSyntaxError,
    Reg,
    Sym,
    Vec,
    parse,
    parse_initialiser,
)

_NOT_FOUND = "CUDA_ERROR_NOT_FOUND"


_LOADS = frozenset({"ld", "ldu"})
"""Read through an address; what they read is no address of a variable, unless one is stored in memory."""

_ADDS = frozenset({"mov", "cvta", "add", "mad"})
"""Make an address of another by adding to it. With bit operations, comparisons or tables an address could be taken
apart and put together again unseen, so whatever else an address goes into may write."""

_LARGEST_BYTES = 1 << 20
"""Of a variable with an initialiser that is read here; tables of the mathematical functions take a kilobyte."""


def unwritten_variables(ptx: bytes) -> frozenset[str]:
    """Module variables that no instruction of a build can write; none of PTX that cannot be read.

    Each address is followed from where its name stands, register by register, through additions to loads. Where it
    goes anywhere else (a store or an atomic operation through it, memory, a call, a comparison), the variable may be
    written. The text comes from a process that ran a compiler on a candidate: whatever is wrong with it proves nothing.
    """
    try:
        module = parse(ptx.decode("ascii"))
        initialised = [variable for variable in module.variables.values() if variable.initialiser is not None]
        if any(variable.size > _LARGEST_BYTES for variable in initialised):
            return frozenset()
        written = {name for variable in initialised for _, name, _ in parse_initialiser(variable)[1]}
    except (PtxSyntaxError, ValueError, ArithmeticError, LookupError, struct.error, MemoryError, RecursionError):
        return frozenset()
    for function in module.functions.values():
        written |= _written_by(function, module)
    return frozenset(module.variables) - written


def _written_by(function: Function, module: Module) -> set[str]:
    holds: dict[str, set[str]] = {}
    """Variables whose address, or what was computed of it, a register may hold."""
    written: set[str] = set()
    body = [item for item in function.body if isinstance(item, Instruction)]

    def reaches(operands: Collection[Operand]) -> set[str]:
        found: set[str] = set()
        for part in _parts(operands):
            if isinstance(part, Reg):
                found |= holds.get(part.name, set())
            elif isinstance(part, Sym) and part.name in module.variables:
                found.add(part.name)
        return found

    grew = True
    while grew:
        grew = False
        for item in body:
            if item.opcode in _LOADS:
                continue
            if item.opcode not in _ADDS:
                written |= reaches(item.operands)
                continue
            if item.opcode == "mad":
                written |= reaches(item.operands[1:3])  # a product of an address is none
            new = reaches(item.operands[1:])
            for target in _parts(item.operands[:1]):
                if isinstance(target, Reg) and not new <= holds.get(target.name, set()):
                    holds.setdefault(target.name, set()).update(new)
                    grew = True
    return written


def _parts(operands: Collection[Operand]) -> Iterator[Operand]:
    """Registers, names and numbers that operands are made of."""
    for operand in operands:
        if isinstance(operand, Addr):
            yield operand.base
        elif isinstance(operand, Vec):
            yield from _parts(operand.items)
        elif isinstance(operand, Pair):
            yield from _parts((operand.first, operand.second))
        elif isinstance(operand, NotReg):
            yield Reg(operand.name)
        else:
            yield operand


class ModuleGlobals:
    """What ``__device__`` and ``__constant__`` variables held when the module was loaded.

    ``hidden`` are those that the driver does not find: nobody can tell whether they were written.

    Args:
        unwritten: Variables that the build cannot write: they are not watched where they cannot be found.

    Raises:
        DriverError: one cannot be read.
        ValueError: the cubin cannot be read.
    """

    def __init__(self, driver: Driver, module: Any, cubin: bytes, unwritten: Collection[str] = ()) -> None:
        self._driver = driver
        self._images: dict[str, tuple[Pointer, bytes]] = {}
        hidden: list[str] = []
        for name in sorted(read_cubin(cubin).variables):
            try:
                pointer, nbytes = driver.variable(module, name)
            except DriverError as error:
                if error.code != _NOT_FOUND:
                    raise
                if name not in unwritten:
                    hidden.append(name)
                continue
            self._images[name] = (pointer, driver.read(pointer, nbytes))
        self.hidden = tuple(hidden)

    def restore(self) -> None:
        """Write the images back."""
        for pointer, image in self._images.values():
            self._driver.write(pointer, image)

    def faults(self) -> list[RunFailure]:
        """One for every variable that changed."""
        found: list[RunFailure] = []
        for name, (pointer, image) in self._images.items():
            at = first_difference(image, self._driver.read(pointer, len(image)))
            if at is not None:
                text = (
                    f"write to a __device__ or __constant__ variable, {at} bytes into {name!r} ({len(image)} bytes): "
                    "a kernel must not write module variables; keep what it needs in a tensor of the plan"
                )
                found.append(RunFailure("sanitizer", text))
        return found
