"""Module variables of a loaded build: restored before every run; a run must not write them.

A driver may not find some of them: in NVRTC 13's cubins all symbols of variables are local, including tables of the
mathematical functions (``__cudart_i2opi_f`` of ``sinf``). A variable that no instruction can write needs no check.
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
"""Read through an address. Their result is no address of a variable, unless one is stored in memory."""

_ADDS = frozenset({"mov", "cvta", "add", "mad"})
"""Derive an address from another by addition. Any other operation on an address may lead to a write: with bit
operations, comparisons or tables an address could be decomposed and rebuilt undetected."""

_LARGEST_BYTES = 1 << 20
"""Largest variable with an initialiser to parse; tables of the mathematical functions take a kilobyte."""


def unwritten_variables(ptx: bytes) -> frozenset[str]:
    """Module variables that no instruction of a build can write; empty for PTX that cannot be parsed.

    Follows each address from the variable's name, register by register, through additions to loads. If it goes anywhere
    else (a store or an atomic operation through it, memory, a call, a comparison), the variable counts as written. The
    text comes from a process that compiled a candidate, so malformed text proves nothing.
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
    """Variables whose address, or an address derived from it, a register may hold."""
    written: set[str] = set()
    body = [item for item in function.body if isinstance(item, Instruction)]

    def reaches(operands: Collection[Operand]) -> set[str]:
        variables: set[str] = set()
        for part in _parts(operands):
            if isinstance(part, Reg):
                variables |= holds.get(part.name, set())
            elif isinstance(part, Sym) and part.name in module.variables:
                variables.add(part.name)
        return variables

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
                written |= reaches(item.operands[1:3])  # a product of an address is no address
            new = reaches(item.operands[1:])
            for target in _parts(item.operands[:1]):
                if isinstance(target, Reg) and not new <= holds.get(target.name, set()):
                    holds.setdefault(target.name, set()).update(new)
                    grew = True
    return written


def _parts(operands: Collection[Operand]) -> Iterator[Operand]:
    """Registers, names and numbers in operands."""
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
    """Contents of ``__device__`` and ``__constant__`` variables when the module was loaded.

    ``hidden`` are those that the driver does not find, so that writes to them cannot be detected.

    Args:
        unwritten: Variables that the build cannot write; those that cannot be found are not checked.

    Raises:
        DriverError: a variable cannot be read.
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
        """A fault for every variable that changed."""
        faults: list[RunFailure] = []
        for name, (pointer, image) in self._images.items():
            at = first_difference(image, self._driver.read(pointer, len(image)))
            if at is not None:
                text = (
                    f"write to a __device__ or __constant__ variable, {at} bytes into {name!r} ({len(image)} bytes): "
                    "a kernel must not write module variables; keep what it needs in a tensor of the plan"
                )
                faults.append(RunFailure("sanitizer", text))
        return faults
