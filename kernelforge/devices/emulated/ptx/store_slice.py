"""Program slice of a kernel's store addresses: which block writes which byte, without running the kernel.

A program slice (Weiser 1981) of the kernel keeps the instructions that the addresses of global stores, and the
branches that lead to them, depend on. Each store then writes the number of its block in place of its value. The slice
of a matrix product has no loop over K left, so its complete grid takes a fraction of the time of one hundredth of the
product's blocks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from kernelforge.devices.emulated import layout as lay
from kernelforge.devices.emulated.ptx.blocks import Block, build_blocks, post_dominators
from kernelforge.devices.emulated.ptx.inline import FlatKernel, completes_at_barrier, state_space
from kernelforge.devices.emulated.ptx.instruction_facts import has_destination, registers_of
from kernelforge.devices.emulated.ptx.parser import (
    TYPE_BYTES,
    Addr,
    Imm,
    Instruction,
    Label,
    Operand,
    Reg,
    Special,
    Sym,
    Vec,
)

_ID, _ID16 = "%block_number", "%block_number16"
_STORES = ("st", "red", "atom")
_ALONE = frozenset({
    "ld", "ldu", "st", "mov", "cvt", "cvta", "add", "sub", "mul", "mad", "fma", "div", "rem", "neg", "abs",
    "min", "max", "addc", "subc", "madc", "mul24", "mad24", "sad", "setp", "set", "selp", "slct", "and", "or",
    "xor", "not", "cnot", "lop3", "shl", "shr", "shf", "bfe", "bfi", "bfind", "brev", "popc", "clz", "prmt",
    "fns", "dp2a", "dp4a", "rcp", "sqrt", "rsqrt", "ex2", "lg2", "sin", "cos", "tanh", "copysign", "testp",
    "isspacep", "bra", "brx", "ret", "exit",
})  # fmt: skip
"""Instructions with which a thread of a kernel without shared memory cannot tell what other threads do."""
_DEPEND_ON_OTHERS = frozenset(
    {"atom", "mma", "wgmma", "tcgen05", "mbarrier", "ldmatrix", "movmatrix", "tex", "suld", "bar", "barrier"}
)
"""Instructions whose results a slice cannot compute: they depend on other threads."""


class NotSliceable(Exception):
    """The addresses of a kernel's stores depend on values that it computes; the message names them."""


@dataclass(frozen=True)
class WriterKernel:
    """The slice of one kernel.

    Its stores write the number of their block, or of their thread in the grid, plus one, in units of ``granule`` bytes:
    part ``plane`` of it, counted from the least significant, where a unit is narrower than 32 bits.
    """

    kernel: FlatKernel
    granule: int
    """Bytes of the narrowest store: 1, 2 or 4."""
    atomic: bool
    """Some stores were atomics, so that several blocks may add to one element."""
    loads_through: frozenset[int]
    """Offsets of the parameters through which the slice loads from global memory."""
    reads_through: frozenset[int]
    """Offsets of the parameters through which the whole kernel may load from global memory."""
    stores_through: frozenset[int]
    """Offsets of the parameters that the addresses of its stores come from."""
    answers: bool
    """The result of an atomic is used: it may show a block which others ran before."""
    alone: bool
    """Where no shared memory is allocated at the launch, each thread does what it would do without the others."""

    @property
    def planes(self) -> int:
        """Runs that give a block's complete number."""
        return 4 // self.granule


def writer_kernel(kernel: FlatKernel, plane: int = 0, *, threads: bool = False) -> WriterKernel:
    """The slice of ``kernel`` for one part of the numbers of blocks, or of ``threads``.

    Raises:
        NotSliceable: an address, or a branch before a store, depends on shared memory, on an atomic's result, on other
            threads or on local arrays.
        UnsupportedInstruction: a branch has no known target.
    """
    return _Slicer(kernel).slice(plane, threads)


class _Definitions:
    """Reaching definitions: the instructions that may have written the value of a register that another one reads."""

    def __init__(self, blocks: list[Block]) -> None:
        self._blocks = blocks
        self._sites: list[tuple[int, int]] = []
        self._of: dict[str, int] = {}
        """Bitset of definitions by register."""
        local: list[list[tuple[int, str, bool]]] = [[] for _ in blocks]
        for block in blocks:
            for position, instruction in enumerate(block.all()):
                if has_destination(instruction):
                    for register in registers_of(instruction.operands[0]):
                        number = len(self._sites)
                        self._sites.append((block.index, position))
                        self._of[register] = self._of.get(register, 0) | 1 << number
                        local[block.index].append((number, register, instruction.predicate is None))
        self._entering = self._solve(local)

    def _solve(self, local: list[list[tuple[int, str, bool]]]) -> list[int]:
        entering, leaving = [0] * len(self._blocks), [0] * len(self._blocks)
        work = list(range(len(self._blocks)))
        seen = [False] * len(self._blocks)
        while work:
            index = work.pop()
            out = entering[index]
            for number, register, unconditional in local[index]:
                out = (out & ~self._of[register] if unconditional else out) | 1 << number
            if out == leaving[index] and seen[index]:
                continue
            leaving[index], seen[index] = out, True
            for successor in self._blocks[index].successors:
                if entering[successor] | out != entering[successor] or not seen[successor]:
                    entering[successor] |= out
                    work.append(successor)
        return entering

    def before(self, register: str, index: int, position: int) -> Iterator[tuple[int, int]]:
        """Block and position of each definition of a register that reaches an instruction."""
        instructions = self._blocks[index].all()
        for at in range(position - 1, -1, -1):
            instruction = instructions[at]
            if has_destination(instruction) and register in registers_of(instruction.operands[0]):
                yield index, at
                if instruction.predicate is None:
                    return
        rest = self._entering[index] & self._of.get(register, 0)
        while rest:
            yield self._sites[(rest & -rest).bit_length() - 1]
            rest &= rest - 1


class _Slicer:
    """One kernel's basic blocks and their needed instructions, by block and position."""

    def __init__(self, kernel: FlatKernel) -> None:
        self._kernel = kernel
        self._blocks = build_blocks(kernel)
        self._drop_traps()
        self._after = post_dominators(self._blocks)
        self._deciders = self._control_dependences()
        self._definitions = _Definitions(self._blocks)
        self._code = [block.all() for block in self._blocks]
        self._slots: dict[str, list[tuple[int, int]]] = {}
        self._needed: set[tuple[int, int]] = set()
        self._work: list[tuple[int, int]] = []
        for index, code in enumerate(self._code):
            for position, i in enumerate(code):
                if i.opcode == "st" and (slot := self._slot(i.operands[0])) is not None:
                    self._slots.setdefault(slot, []).append((index, position))

    def _drop_traps(self) -> None:
        """Assume that asserts hold: a branch to a trap is never taken."""
        ends = {b.index for b in self._blocks if b.terminator is not None and b.terminator.opcode == "trap"}
        for block in self._blocks:
            if block.terminator is not None and block.terminator.opcode in ("bra", "ret", "exit"):
                block.successors = [s for s in block.successors if s not in ends] or block.successors

    def _control_dependences(self) -> list[set[int]]:
        """For each block, the blocks whose branch decides whether it runs."""
        deciders: list[set[int]] = [set() for _ in self._blocks]
        for block in self._blocks:
            if len(block.successors) < 2:
                continue
            for successor in block.successors:
                at = successor
                while at != self._after[block.index] and at < len(self._blocks):
                    deciders[at].add(block.index)
                    at = self._after[at]
        return deciders

    def _slot(self, operand: Operand) -> str | None:
        """The variable of the thread's frame that an address names as a whole."""
        if isinstance(operand, Addr) and isinstance(operand.base, Sym) and operand.base.name in self._kernel.frame:
            return operand.base.name
        return None

    def slice(self, plane: int, threads: bool) -> WriterKernel:
        roots: list[tuple[int, int]] = []
        for index, code in enumerate(self._code):
            for position, i in enumerate(code):
                space = state_space(i) if i.opcode in _STORES and not completes_at_barrier(i) else None
                if space == lay.GLOBAL or (space == lay.GENERIC and not self._in_peers(index, position)):
                    roots.append((index, position))
                if i.opcode in ("multimem", "sust") or (i.opcode == "cp" and "bulk_group" in i.modifiers):
                    raise NotSliceable(f"{i.name} may write global memory")
        stores = [self._code[index][position] for index, position in roots]
        granule = min([4, *(_width(i) for i in stores)])
        atomic = any(i.opcode != "st" for i in stores)
        if atomic and granule < 4:
            raise NotSliceable("it has atomics on elements of less than four bytes")
        for index, position in roots:
            self._need_condition(index, position)
            self._need_registers(registers_of(_address(self._code[index][position])), index, position)
        targets = set(roots)
        while self._work:
            at = self._work.pop()
            if at in self._needed:
                continue
            if at in targets:
                raise NotSliceable(f"an address depends on the result of {self._code[at[0]][at[1]].name}")
            self._needed.add(at)
            self._need(*at)
        body, tables = self._emit(targets, _number(granule, plane, threads))
        registers = {**self._kernel.registers, _ID: "b32", _ID16: "b16"}
        name = writer_entry(self._kernel.name, plane, threads=threads)
        tables = self._kernel.branch_targets | tables
        sliced = replace(self._kernel, name=name, registers=registers, body=body, branch_targets=tables)
        everything = {(index, position) for index, code in enumerate(self._code) for position in range(len(code))}
        return WriterKernel(
            sliced,
            granule,
            atomic,
            self._loads_through(self._needed),
            self._loads_through(everything),
            self._parameters_of([(*at, _address(self._code[at[0]][at[1]])) for at in roots]),
            self._answers(),
            all(i.opcode in _ALONE and state_space(i) != lay.SHARED for code in self._code for i in code),
        )

    def _in_peers(self, index: int, position: int) -> bool:
        """Whether an address is one in the shared memory of another block of the cluster: it comes from ``mapa``."""
        i = self._code[index][position]
        address = i.operands[1] if i.opcode in ("ld", "ldu") else _address(i)
        work = [at for name in registers_of(address) for at in self._definitions.before(name, index, position)]
        seen: set[tuple[int, int]] = set()
        while work:
            at = work.pop()
            definition = self._code[at[0]][at[1]]
            if definition.opcode == "mapa":
                return True
            if at in seen or definition.opcode in ("ld", "ldu", "atom"):
                continue
            seen.add(at)
            for operand in definition.operands[1:]:
                for name in registers_of(operand):
                    work += self._definitions.before(name, *at)
        return False

    def _need_registers(self, names: Iterator[str], index: int, position: int) -> None:
        for name in names:
            self._work += self._definitions.before(name, index, position)

    def _need_condition(self, index: int, position: int) -> None:
        """Add the predicate and the branches that decide whether an instruction is executed."""
        predicate = self._code[index][position].predicate
        if predicate is not None:
            self._need_registers(iter([predicate.name]), index, position)
        for decider in self._deciders[index]:
            at = (decider, len(self._code[decider]) - 1)
            if at not in self._needed:
                self._needed.add(at)
                self._need_condition(*at)
                branch = self._code[decider][at[1]]
                if branch.opcode == "brx":
                    self._need_registers(registers_of(branch.operands[0]), *at)

    def _need(self, index: int, position: int) -> None:
        """Add everything that a needed instruction depends on."""
        i = self._code[index][position]
        self._need_condition(index, position)
        space = state_space(i) if i.opcode in ("ld", "ldu") else None
        slot = self._slot(i.operands[1]) if space is not None else None
        if slot is not None:
            self._work += self._slots.get(slot, [])
        elif (
            i.opcode in _DEPEND_ON_OTHERS
            or space in (lay.SHARED, lay.LOCAL)
            or (space == lay.GENERIC and self._in_peers(index, position))
        ):
            raise NotSliceable(f"an address depends on the result of {i.name}")
        operands = i.operands[1:] if has_destination(i) else i.operands
        for operand in operands:
            self._need_registers(registers_of(operand), index, position)
        if i.predicate is not None and has_destination(i):
            # Lanes that it leaves out keep what the register held before.
            self._need_registers(registers_of(i.operands[0]), index, position)

    def _answers(self) -> bool:
        """Whether any instruction uses the result of an atomic on global memory."""
        used = {
            name
            for code in self._code
            for i in code
            for operand in (i.operands[1:] if has_destination(i) else i.operands)
            for name in registers_of(operand)
        }
        used |= {i.predicate.name for code in self._code for i in code if i.predicate is not None}
        return any(
            i.opcode == "atom"
            and state_space(i) in (lay.GLOBAL, lay.GENERIC)
            and not used.isdisjoint(registers_of(i.operands[0]))
            and not (state_space(i) == lay.GENERIC and self._in_peers(index, position))
            for index, code in enumerate(self._code)
            for position, i in enumerate(code)
        )

    def _loads_through(self, instructions: set[tuple[int, int]]) -> frozenset[int]:
        """Offsets of parameters that addresses of the global loads among some instructions come from."""
        addresses: list[tuple[int, int, Operand]] = []
        for index, position in instructions:
            i = self._code[index][position]
            plain = i.opcode in ("ld", "ldu") and state_space(i) in (lay.GLOBAL, lay.GENERIC)
            copied = i.opcode == "cp" and "async" in i.modifiers and len(i.operands) > 1
            if plain or copied:
                addresses.append((index, position, i.operands[1]))
        return self._parameters_of(addresses)

    def _parameters_of(self, operands: list[tuple[int, int, Operand]]) -> frozenset[int]:
        """Offsets of parameters that operands come from, each of the instruction of a block and position."""
        work: list[tuple[int, int]] = []
        for index, position, operand in operands:
            for name in registers_of(operand):
                work += self._definitions.before(name, index, position)
        seen: set[tuple[int, int]] = set()
        offsets: set[int] = set()
        while work:
            at = work.pop()
            if at in seen:
                continue
            seen.add(at)
            for operand in self._code[at[0]][at[1]].operands[1:]:
                for name in registers_of(operand):
                    work += self._definitions.before(name, *at)
                # The address of a parameter is that of a tensor map.
                symbol = operand.base if isinstance(operand, Addr) else operand
                parameter = self._kernel.params.get(symbol.name) if isinstance(symbol, Sym) else None
                if parameter is not None and isinstance(symbol, Sym):
                    offset = operand.offset if isinstance(operand, Addr) else 0
                    offsets.add(parameter[1] + symbol.offset + offset)
        return frozenset(offsets)

    def _emit(
        self, roots: set[tuple[int, int]], body: list[Instruction | Label]
    ) -> tuple[list[Instruction | Label], dict[str, list[str]]]:
        """The slice's ``body``, which begins with the number that stores write, and its branch tables."""
        tables: dict[str, list[str]] = {}
        end = len(self._blocks)
        for block in self._blocks:
            body.append(Label(_label(block.index)))
            for position, i in enumerate(block.instructions):
                if (block.index, position) in roots:
                    body.append(_numbered(i))
                elif (block.index, position) in self._needed:
                    body.append(i)
            branch, last = block.terminator, (block.index, len(block.instructions))
            if not block.successors:
                body.append(Instruction("ret", (), ()))
            elif branch is not None and last in self._needed and len(block.successors) > 1:
                if branch.opcode == "brx":
                    table = f"@table{block.index}"
                    tables[table] = [_label(s) for s in block.successors]
                    body.append(replace(branch, operands=(branch.operands[0], Sym(table))))
                else:
                    taken, follow = block.successors
                    body.append(_branch(taken, branch))
                    body.append(_branch(follow))
            else:
                target = block.successors[0] if len(block.successors) == 1 else self._after[block.index]
                body.append(Instruction("ret", (), ()) if target == end else _branch(target))
        return body, tables


def _address(i: Instruction) -> Operand:
    return i.operands[1 if i.opcode == "atom" else 0]


def _label(index: int) -> str:
    return f"@block{index}"


def _branch(target: int, condition: Instruction | None = None) -> Instruction:
    operands = (Sym(_label(target)),)
    if condition is None:
        return Instruction("bra", (), operands)
    return replace(condition, opcode="bra", modifiers=(), operands=operands)


def _elements(i: Instruction) -> tuple[int, int]:
    """Bytes of one element of a store, and how many it has."""
    count = next((int(m[1:]) for m in i.modifiers if m in ("v2", "v4", "v8")), 1)
    return TYPE_BYTES.get(i.type, 0), count


def _width(i: Instruction) -> int:
    width, _ = _elements(i)
    if width not in (1, 2, 4, 8):
        raise NotSliceable(f"{i.name} stores elements of a size that is not known here")
    return width


def _numbered(i: Instruction) -> Instruction:
    """A store of the block's number in place of a value, where another instruction stores."""
    width, count = _elements(i)
    if width == 8:
        width, count = 4, 2 * count
    kind, register = {4: ("b32", _ID), 2: ("b16", _ID16), 1: ("b8", _ID16)}[width]
    space = tuple(m for m in i.modifiers if m == "global")
    vector = (f"v{count}",) if count > 1 else ()
    value = Vec((Reg(register),) * count) if count > 1 else Reg(register)
    return replace(i, opcode="st", modifiers=(*space, *vector, kind), operands=(_address(i), value))


def writer_entry(entry: str, plane: int, *, threads: bool = False) -> str:
    """The name of one slice of a kernel."""
    return f"{entry}@{'thread_' if threads else ''}writers{plane}"


def _number(granule: int, plane: int, threads: bool) -> list[Instruction | Label]:
    """Instructions that put the plane's part of the block's, or thread's, number into every unit of a register."""

    def of(name: str, *operands: Operand) -> Instruction:
        opcode, *modifiers = name.split(".")
        return Instruction(opcode, tuple(modifiers), operands, text=name)

    number = Reg(_ID)
    body: list[Instruction | Label] = [
        of("mov.u32", number, Special("%ctaid.z")),
        of("mad.lo.u32", number, number, Special("%nctaid.y"), Special("%ctaid.y")),
        of("mad.lo.u32", number, number, Special("%nctaid.x"), Special("%ctaid.x")),
    ]
    if threads:
        for axis in "zyx":
            body.append(of("mad.lo.u32", number, number, Special(f"%ntid.{axis}"), Special(f"%tid.{axis}")))
    body.append(of("add.u32", number, number, Imm(1)))
    if granule < 4:
        bits = 8 * granule
        repeat = 0x00010001 if granule == 2 else 0x01010101
        body += [
            of("shr.u32", number, number, Imm(bits * plane)),
            of("and.b32", number, number, Imm((1 << bits) - 1)),
            of("mul.lo.u32", number, number, Imm(repeat)),
        ]
    body.append(of("cvt.u16.u32", Reg(_ID16), number))
    return body
