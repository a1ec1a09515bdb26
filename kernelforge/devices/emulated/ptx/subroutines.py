"""Calls of functions that recur or are called through a pointer, as branches to one copy of the function.

The caller copies arguments to the callee's parameters, leaves a number in a register and branches; the callee returns
by a table of branches. A function that recurs has its frame on a stack in local memory: return address, results,
parameters, local variables, and the registers that are needed after its own calls.
"""

from __future__ import annotations

from dataclasses import replace

from kernelforge.devices.emulated import layout as lay
from kernelforge.devices.emulated.ptx.blocks import build_blocks, liveness
from kernelforge.devices.emulated.ptx.inline import FlatKernel, Subroutine, unsupported
from kernelforge.devices.emulated.ptx.instruction_facts import has_destination, registers_of
from kernelforge.devices.emulated.ptx.parser import (
    TYPE_BITS,
    Addr,
    Imm,
    Instruction,
    Label,
    Operand,
    Reg,
    Sym,
    Vec,
)

_FRAME = "%frame@stack"
_FLAG = "%flag@stack"
_SCRATCH = {8: "%copy64@stack", 4: "%copy32@stack", 2: "%copy16@stack", 1: "%copy16@stack"}

Body = list[Instruction | Label]


def link(kernel: FlatKernel) -> None:
    """Append the subroutines to the kernel's body and replace its calls of them.

    Raises:
        UnsupportedInstruction: a call's arguments are not those of the function.
    """
    if not kernel.subroutines:
        return
    _Linker(kernel).run()


class _Linker:
    def __init__(self, kernel: FlatKernel) -> None:
        self.kernel = kernel
        self.serial = 0
        kernel.registers |= {_FRAME: "b64", _FLAG: "pred", _SCRATCH[8]: "b64", _SCRATCH[4]: "b32", _SCRATCH[2]: "b16"}
        for name, routine in kernel.subroutines.items():
            kernel.registers[_return(name)] = "b32"
            kernel.branch_targets[_table(name)] = []
            if routine.recurs:
                self.move_to_stack(routine)

    def run(self) -> None:
        kernel = self.kernel
        routines = kernel.subroutines.values()
        kept = {r.name: self.kept_registers(r) for r in routines if r.recurs}
        bases = {}
        for routine in routines:
            bases[routine.name] = (routine.frame_bytes + 7) // 8 * 8
            most = max((len(names) for names in kept.get(routine.name, {}).values()), default=0)
            routine.frame_bytes = (bases[routine.name] + 8 * most + 15) // 16 * 16
        stack = any(r.recurs for r in routines)
        start = (kernel.frame_bytes + 15) // 16 * 16
        self.limit = start + lay.STACK_BYTES
        main = kernel.body
        body: Body = []
        if stack:
            kernel.frame_bytes = self.limit
            body.append(_make("mov.b64", Reg(_FRAME), Imm(start)))
        body += self.replace_calls(main, None, {}, 0)
        # Lanes that reach the end of the kernel's code do not run into the first subroutine.
        body.append(_make("ret"))
        for routine in routines:
            body.append(routine.entry)
            if routine.recurs:
                body.append(_make("st.local.b32", Addr(Reg(_FRAME)), Reg(_return(routine.name))))
            body += self.replace_calls(routine.body, routine, kept.get(routine.name, {}), bases[routine.name])
            if routine.recurs:
                body.append(_make("ld.local.b32", Reg(_return(routine.name)), Addr(Reg(_FRAME))))
            body.append(_make("brx.idx", Reg(_return(routine.name)), Sym(_table(routine.name))))
        for routine in routines:
            if not kernel.branch_targets[_table(routine.name)]:
                kernel.branch_targets[_table(routine.name)] = [routine.entry.name]  # nothing calls it
        kernel.body = body
        kernel.subroutines = {}

    def move_to_stack(self, routine: Subroutine) -> None:
        """Let a function that recurs find its parameters and local variables relative to its frame."""
        offsets = {name: at for name, (_, at) in (routine.slots | routine.locals).items()}
        for index, item in enumerate(routine.body):
            if isinstance(item, Label) or item.opcode == "call":
                continue
            operands = list(item.operands)
            moved = False
            for k, operand in enumerate(operands):
                if isinstance(operand, Addr) and isinstance(operand.base, Sym) and operand.base.name in offsets:
                    operands[k] = Addr(Reg(_FRAME), offsets[operand.base.name] + operand.base.offset + operand.offset)
                    moved = True
                elif isinstance(operand, Sym) and operand.name in offsets:
                    if item.opcode != "mov" or item.type not in ("u64", "b64", "s64"):
                        raise unsupported(item, "address on the stack")
                    where = Imm(offsets[operand.name] + operand.offset)
                    routine.body[index] = replace(
                        item, opcode="add", modifiers=("s64",), operands=(operands[0], Reg(_FRAME), where)
                    )
            if moved:
                spaces = tuple("local" if m.split("::")[0] == "param" else m for m in item.modifiers)
                routine.body[index] = replace(item, modifiers=spaces, operands=tuple(operands))

    def kept_registers(self, routine: Subroutine) -> dict[int, list[str]]:
        """By the ``id`` of each call in a function that recurs: the registers that are read after it."""
        flat = FlatKernel(
            routine.name, {}, 0, self.kernel.registers, routine.body, self.kernel.branch_targets, {}
        )  # fmt: skip
        blocks = build_blocks(flat)
        ids = {name: k for k, name in enumerate(self.kernel.registers)}
        names = list(self.kernel.registers)
        _, live_out = liveness(blocks, ids)
        result: dict[int, list[str]] = {}
        for block in blocks:
            alive = live_out[block.index]
            for i in reversed(block.all()):
                writes = has_destination(i)
                if i.opcode == "call":
                    result[id(i)] = [names[k] for k in range(len(names)) if alive >> k & 1 and names[k] != _FRAME]
                if writes and i.predicate is None:
                    for r in registers_of(i.operands[0]):
                        alive &= ~(1 << ids[r])
                reads: list[Operand] = list(i.operands[1:] if writes else i.operands)
                reads += [] if i.predicate is None else [i.predicate]
                for r in (r for op in reads for r in registers_of(op)):
                    alive |= 1 << ids[r]
        return result

    def replace_calls(self, body: Body, caller: Subroutine | None, kept: dict[int, list[str]], base: int) -> Body:
        result: Body = []
        for item in body:
            if isinstance(item, Label) or item.opcode != "call":
                result.append(item)
                continue
            names = kept.get(id(item), [])
            for k, name in enumerate(names):
                result += self.keep(name, base + 8 * k)
            step = 0 if caller is None or not caller.recurs else caller.frame_bytes
            if step:
                result.append(_make("add.s64", Reg(_FRAME), Reg(_FRAME), Imm(step)))
            result += self.branch(item)
            if step:
                result.append(_make("sub.s64", Reg(_FRAME), Reg(_FRAME), Imm(step)))
            for k, name in enumerate(names):
                result += self.restore(name, base + 8 * k)
        return result

    def keep(self, name: str, at: int) -> Body:
        """Store a register in the frame; a predicate as a word."""
        bits = TYPE_BITS[self.kernel.registers[name]]
        if bits > 64:
            raise unsupported(_make(f"st.local.b{bits}", Reg(name)), "register of 128 bits in a function that recurs")
        if bits > 1:
            return [_make(f"st.local.b{bits}", Addr(Reg(_FRAME), at), Reg(name))]
        word = Reg(_SCRATCH[4])
        return [
            _make("selp.b32", word, Imm(1), Imm(0), Reg(name)),
            _make("st.local.b32", Addr(Reg(_FRAME), at), word),
        ]

    def restore(self, name: str, at: int) -> Body:
        bits = TYPE_BITS[self.kernel.registers[name]]
        if bits > 1:
            return [_make(f"ld.local.b{bits}", Reg(name), Addr(Reg(_FRAME), at))]
        word = Reg(_SCRATCH[4])
        return [_make("ld.local.b32", word, Addr(Reg(_FRAME), at)), _make("setp.ne.b32", Reg(name), word, Imm(0))]

    def branch(self, call: Instruction) -> Body:
        """Branch to the function that a call names, or to the one that its pointer selects, and back."""
        results, target, arguments = call.operands
        assert isinstance(results, Vec)
        assert isinstance(arguments, Vec)
        self.serial += 1
        after = Label(f"@after{self.serial}")
        if isinstance(target, Sym):
            routine = self.kernel.subroutines[target.name]
            if not self.fits(routine, results, arguments):
                raise unsupported(call, "its arguments are not those of the function")
            return [*self.enter(call, routine, results, arguments), after]
        body: Body = []
        tails: Body = []
        for address, name in self.kernel.addresses.items():
            routine = self.kernel.subroutines[name]
            if self.fits(routine, results, arguments):
                way = Label(f"@way{self.serial}~{name}")
                body.append(_make("setp.eq.s64", Reg(_FLAG), target, Imm(address)))
                body.append(replace(_make("bra", Sym(way.name)), predicate=Reg(_FLAG)))
                tails += [way, *self.enter(call, routine, results, arguments), _make("bra", Sym(after.name))]
        body.append(replace(call, opcode="trap", modifiers=("pointer",), operands=()))
        return [*body, *tails, after]

    def fits(self, routine: Subroutine, results: Vec, arguments: Vec) -> bool:
        """Whether a call's arguments and results have the sizes of a function's."""
        for formal, actual in ((routine.results, results), (routine.parameters, arguments)):
            sizes = [self.kernel.slot_bytes[item.name] for item in actual.items if isinstance(item, Sym)]
            if [routine.slots[name][0].size for name in formal] != sizes:
                return False
        return True

    def enter(self, call: Instruction, routine: Subroutine, results: Vec, arguments: Vec) -> Body:
        body: Body = []
        if routine.recurs:
            last = Imm(self.limit - routine.frame_bytes)
            body.append(_make("setp.gt.s64", Reg(_FLAG), Reg(_FRAME), last))
            trap = replace(call, opcode="trap", modifiers=("stack",), operands=(), predicate=Reg(_FLAG), negated=False)
            body.append(trap)
        for formal, actual in zip(routine.parameters, arguments.items, strict=True):
            assert isinstance(actual, Sym)
            body += self.copy(self.slot(routine, formal), Addr(actual), routine.slots[formal][0].size, routine.recurs)
        table = self.kernel.branch_targets[_table(routine.name)]
        back = Label(f"@back{len(table)}~{routine.name}")
        body.append(_make("mov.b32", Reg(_return(routine.name)), Imm(len(table))))
        table.append(back.name)
        body += [_make("bra", Sym(routine.entry.name)), back]
        for formal, actual in zip(routine.results, results.items, strict=True):
            assert isinstance(actual, Sym)
            body += self.copy(Addr(actual), self.slot(routine, formal), routine.slots[formal][0].size, routine.recurs)
        return body

    def slot(self, routine: Subroutine, name: str) -> Addr:
        return Addr(Reg(_FRAME), routine.slots[name][1]) if routine.recurs else Addr(Sym(name))

    def copy(self, to: Addr, source: Addr, size: int, on_stack: bool) -> Body:
        """Copy a parameter. ``on_stack``: the side with a register as its base is local memory."""
        body: Body = []
        at = 0
        while at < size:
            unit = next(u for u in (8, 4, 2, 1) if at % u == 0 and at + u <= size)
            register = Reg(_SCRATCH[unit])
            spaces = ["local" if on_stack and isinstance(side.base, Reg) else "param" for side in (source, to)]
            body.append(_make(f"ld.{spaces[0]}.b{8 * unit}", register, Addr(source.base, source.offset + at)))
            body.append(_make(f"st.{spaces[1]}.b{8 * unit}", Addr(to.base, to.offset + at), register))
            at += unit
        return body


def _make(name: str, *operands: Operand) -> Instruction:
    opcode, *modifiers = name.split(".")
    return Instruction(opcode, tuple(modifiers), operands, text=name)


def _return(name: str) -> str:
    return f"%return@{name}"


def _table(name: str) -> str:
    return f"@table~{name}"
