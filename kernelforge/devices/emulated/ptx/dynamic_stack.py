"""``alloca``, ``stacksave`` and ``stackrestore`` as arithmetic on a register, the stack pointer of a thread.

The stack is a part of the thread's frame and grows down. What a function allocated is free again when it returns.
"""

from __future__ import annotations

from dataclasses import replace

from kernelforge.devices.emulated import layout as lay
from kernelforge.devices.emulated.errors import UnsupportedInstruction
from kernelforge.devices.emulated.ptx.parser import Imm, Instruction, Label, Operand, Reg, Sym, Variable

OPCODES = frozenset({"alloca", "stacksave", "stackrestore"})
SLOT = Variable("local", "b8", "@alloca", 16, lay.STACK_BYTES)
POINTER = "%pointer@alloca"
_SIZE, _LIMIT, _FLAG = "%size@alloca", "%limit@alloca", "%flag@alloca"
REGISTERS = {POINTER: "u64", _SIZE: "u64", _LIMIT: "u64", _FLAG: "pred"}
LEAST_ALIGNMENT = 8
MOST_ALIGNMENT = 1 << 23


def begin() -> Instruction:
    """The start of a kernel: the stack is empty."""
    return Instruction("mov", ("u64",), (Reg(POINTER), Sym(SLOT.name, lay.STACK_BYTES)))


def saved(suffix: str) -> str:
    """The register with the stack pointer at the entry of a function that was expanded in place."""
    return f"%saved@alloca{suffix}"


def move(to: str, source: str) -> Instruction:
    """A copy of the stack pointer."""
    return Instruction("mov", ("u64",), (Reg(to), Reg(source)))


def expand(item: Instruction, serial: int) -> list[Instruction | Label]:
    """Instructions that do what one of these does; ``serial`` makes a label of theirs unique.

    Raises:
        UnsupportedInstruction: its operands are not those of the PTX ISA.
    """
    operands, kind = list(item.operands), item.type
    if kind not in ("u32", "u64") or len(item.modifiers) != 1 or len(operands) not in _COUNTS[item.opcode]:
        raise UnsupportedInstruction(item.text, item.location.line, item.ptx_line)

    def of(name: str, *values: Operand) -> Instruction:
        opcode, *modifiers = name.split(".")
        return replace(item, opcode=opcode, modifiers=tuple(modifiers), operands=values, predicate=None, negated=False)

    def widened(target: str, value: Operand) -> Instruction:
        return of("cvt.u64.u32" if kind == "u32" else "mov.u64", Reg(target), value)

    def pointer_to(target: Operand) -> Instruction:
        return of("cvt.u32.u64" if kind == "u32" else "mov.u64", target, Reg(POINTER))

    if item.opcode == "stacksave":
        body = [pointer_to(operands[0])]
    elif item.opcode == "stackrestore":
        body = [widened(POINTER, operands[0])]
    else:
        alignment = operands[2] if len(operands) > 2 else Imm(LEAST_ALIGNMENT)
        if not isinstance(alignment, Imm) or not _is_alignment(alignment.value):
            raise UnsupportedInstruction(item.text, item.location.line, item.ptx_line, "a power of two up to 2^23")
        overflow = replace(of("trap.stack"), predicate=Reg(_FLAG))
        body = [
            widened(_SIZE, operands[1]),
            of("mov.u64", Reg(_LIMIT), Sym(SLOT.name)),
            of("sub.u64", Reg(_LIMIT), Reg(POINTER), Reg(_LIMIT)),
            of("setp.gt.u64", Reg(_FLAG), Reg(_SIZE), Reg(_LIMIT)),
            overflow,
            of("sub.u64", Reg(POINTER), Reg(POINTER), Reg(_SIZE)),
            of("and.b64", Reg(POINTER), Reg(POINTER), Imm(-max(alignment.value, LEAST_ALIGNMENT))),
            of("mov.u64", Reg(_LIMIT), Sym(SLOT.name)),
            of("setp.lt.u64", Reg(_FLAG), Reg(POINTER), Reg(_LIMIT)),
            overflow,
            pointer_to(operands[0]),
        ]
    if item.predicate is None:
        return list(body)
    skip = Label(f"@stack{serial}")
    guard = replace(item, opcode="bra", modifiers=(), operands=(Sym(skip.name),), negated=not item.negated)
    return [guard, *body, skip]


_COUNTS = {"alloca": (2, 3), "stacksave": (1,), "stackrestore": (1,)}


def _is_alignment(value: int) -> bool:
    return 1 <= value <= MOST_ALIGNMENT and value & (value - 1) == 0
