"""Facts about single instructions: their registers, and how a warp goes on at them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from kernelforge.devices.emulated.ptx.parser import Addr, Imm, Instruction, NotReg, Operand, Pair, Reg, Special, Vec

_NO_DESTINATION = {
    "st", "red", "bra", "brx", "ret", "exit", "membar", "fence", "trap", "brkpt", "nanosleep", "prefetch",
    "prefetchu", "cp", "pmevent", "griddepcontrol", "discard", "applypriority", "setmaxnreg", "stmatrix",
}  # fmt: skip
IN_REGISTERS = frozenset({
    "abs", "add", "and", "bfe", "bfi", "bfind", "brev", "clz", "cos", "cvt", "cvta", "div", "ex2", "fma", "lg2", "lop3",
    "mad", "match", "max", "min", "mma", "mov", "mul", "neg", "not", "or", "popc", "prmt", "rcp", "redux", "rem",
    "rsqrt", "sad", "selp", "set", "setp", "shf", "shfl", "shl", "shr", "sin", "sqrt", "sub", "tanh", "vote", "xor",
})  # fmt: skip
"""Instructions that use no memory."""
_TENSOR_MOVES = frozenset({"alloc", "dealloc", "relinquish_alloc_permit", "ld", "st", "wait::ld", "wait::st"})


def is_barrier(instruction: Instruction) -> bool:
    """True for a CTA barrier (not ``bar.warp.sync``, not ``barrier.cluster``)."""
    return instruction.opcode in ("bar", "barrier") and not {"warp", "cluster"} & set(instruction.modifiers)


def is_memory_wait(instruction: Instruction) -> bool:
    """True for ``mbarrier.test_wait`` and ``mbarrier.try_wait``."""
    return instruction.opcode == "mbarrier" and instruction.modifiers[:1] in (("test_wait",), ("try_wait",))


def stops_warp(instruction: Instruction) -> bool:
    """True for instructions that begin a basic block, because a warp may stop at them and come back."""
    return is_memory_wait(instruction) or (
        (instruction.opcode, *instruction.modifiers[:1]) in (("wgmma", "wait_group"), ("tcgen05", "alloc"))
    )


def moves_tensor(instruction: Instruction) -> bool:
    """True for instructions of a whole warp on its tensor memory."""
    return instruction.opcode == "tcgen05" and not _TENSOR_MOVES.isdisjoint(instruction.modifiers[:1])


def is_cluster_wait(instruction: Instruction) -> bool:
    """True for ``barrier.cluster.wait``."""
    return instruction.opcode == "barrier" and {"cluster", "wait"} <= set(instruction.modifiers)


def registers_of(operand: Operand) -> Iterator[str]:
    """Yield the registers that an operand names."""
    if isinstance(operand, Reg | NotReg):
        yield operand.name
    elif isinstance(operand, Addr):
        yield from registers_of(operand.base)
        for item in operand.coordinates:
            yield from registers_of(item)
    elif isinstance(operand, Vec):
        for item in operand.items:
            yield from registers_of(item)
    elif isinstance(operand, Pair):
        yield from registers_of(operand.first)
        yield from registers_of(operand.second)


def specials(operand: Operand) -> Iterator[str]:
    """Yield the special registers that an operand names."""
    if isinstance(operand, Special):
        yield operand.name
    elif isinstance(operand, Vec):
        for item in operand.items:
            yield from specials(item)


def has_destination(instruction: Instruction) -> bool:
    """True when the first operand is written."""
    if not instruction.operands:
        return False
    if instruction.opcode in ("bar", "barrier"):
        return "red" in instruction.modifiers
    if instruction.opcode == "wgmma":
        return instruction.modifiers[:1] == ("mma_async",)
    if instruction.opcode == "tcgen05":
        return instruction.modifiers[:1] == ("ld",)
    if instruction.opcode == "clusterlaunchcontrol":
        return instruction.modifiers[:1] == ("query_cancel",)
    if instruction.opcode == "multimem":
        return instruction.modifiers[:1] == ("ld_reduce",)
    if instruction.opcode == "mbarrier":
        return instruction.modifiers[:1] not in (("init",), ("inval",), ("expect_tx",), ("complete_tx",))
    return instruction.opcode not in _NO_DESTINATION


def sources(instruction: Instruction) -> tuple[Operand, ...]:
    """The operands that are read: an accumulator of ``wgmma`` is read and written."""
    accumulates = instruction.opcode == "wgmma"
    return instruction.operands[1:] if has_destination(instruction) and not accumulates else instruction.operands


def constant_of(definitions: Mapping[str, list[Instruction]], operand: Operand) -> int | None:
    """Return the integer an operand always has, following single-definition ``mov`` chains; None if unknown."""
    for _ in range(8):
        if isinstance(operand, Imm):
            return operand.value
        if not isinstance(operand, Reg):
            return None
        defined = definitions.get(operand.name, [])
        if len(defined) != 1 or defined[0].opcode != "mov" or defined[0].predicate is not None:
            return None
        operand = defined[0].operands[1]
    return None
