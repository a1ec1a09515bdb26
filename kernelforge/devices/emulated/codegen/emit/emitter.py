"""The state of emitting one kernel: register values, masks, memory records, and access to operands.

Register values are integers of the register's width: ``iN`` where the warp's lanes agree, ``<32 x iN>`` where they
may differ. A predicate is ``i1``, or an ``i32`` with one bit per lane.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from kernelforge.devices.emulated import layout as lay
from kernelforge.devices.emulated.codegen.ir_builder import IRBuilder, float_type, int_type, lane_vector
from kernelforge.devices.emulated.codegen.llvm_jit import has_avx512
from kernelforge.devices.emulated.codegen.matrix_ir import Product
from kernelforge.devices.emulated.ptx.address_patterns import Address, Masked, Pattern, plain, repeated_patterns
from kernelforge.devices.emulated.ptx.cfg import ControlFlowGraph, speculative_loads
from kernelforge.devices.emulated.ptx.inline import unsupported
from kernelforge.devices.emulated.ptx.instruction_facts import constant_of
from kernelforge.devices.emulated.ptx.parser import (
    TYPE_BITS,
    Imm,
    Instruction,
    NotReg,
    Operand,
    Reg,
    Sink,
    Special,
    Sym,
    Vec,
)
from kernelforge.devices.emulated.ptx.product_hazards import product_hazards
from kernelforge.devices.emulated.ptx.warp_reductions import agreed_lanes


class Value(NamedTuple):
    """An SSA value or constant; ``vec`` tells lanes from scalars."""

    text: str
    vec: bool


class Group(NamedTuple):
    """Loads and stores of a basic block whose addresses differ by scalars; they are compared with a pattern once.

    No store counts their hits: each happens whenever the block runs.
    """

    reference: str
    """Address in the pattern's reference lane, i64."""
    area: str
    """Stack of the group."""


@dataclass(frozen=True)
class DeferredLoad:
    """A load that has been checked and counted, and whose values are not in registers yet.

    A call leaves no vector registers to others, so values wait in memory until an instruction needs them.
    """

    registers: list[str]
    area: str
    """Where values lie that could not be read where the lanes' addresses say."""
    arrive: Callable[[], None]
    """Load the values and assign them to the registers."""


MOST_DEFERRED = 32
"""Loads that can be deferred at a time."""
ORDERED = frozenset({"volatile", "relaxed", "acquire", "mmio"})
"""Modifiers of loads that may have to see what another thread wrote after a load before them."""

MOST_GROUPS = 16
"""Groups of a basic block; further accesses compare their addresses by themselves."""


@dataclass(frozen=True)
class MemorySite:
    """Initial values of a memory record, and how its counters are reported."""

    instruction: Instruction
    space: int
    width: int
    """Bytes per lane, all elements together."""
    access: int
    offset: int
    narrow: bool
    hidden: bool = False
    """Not reported: a call parameter, which a real compiler keeps in registers."""
    block: int = -1
    """Basic block of an access in a group: its hits are counted by the block."""
    speculative: bool = False
    """A load that the compiler may have moved out of a branch: see ``speculative_loads``."""
    agreed: int = 0
    """Of a store: bits of the lane by which the values of lanes differ in rounding alone: see ``agreed_lanes``."""


@dataclass(frozen=True)
class Shape:
    """Compile-time facts of a launch that code depends on."""

    block: tuple[int, int, int]
    shared: dict[str, int]
    """Shared variables' offsets."""
    static_shared_bytes: int
    symbols: dict[str, int]
    """Module variables' indices in the symbol table."""


_LANEMASKS = {
    "%lanemask_eq": [1 << k for k in range(32)],
    "%lanemask_lt": [(1 << k) - 1 for k in range(32)],
    "%lanemask_le": [(2 << k) - 1 for k in range(32)],
    "%lanemask_gt": [0xFFFFFFFF & ~((2 << k) - 1) for k in range(32)],
    "%lanemask_ge": [0xFFFFFFFF & ~((1 << k) - 1) for k in range(32)],
}
_CONSTANTS = {
    "%smid": 0, "%nsmid": 1, "%gridid": 0, "%nwarpid": 64, "%warpsize": 32, "%envreg0": 0,
}  # fmt: skip
_OF_CONTEXT = {
    "%ctaid": lay.CTX_CTAID, "%nctaid": lay.CTX_NCTAID, "%clusterid": lay.CTX_CLUSTERID,
    "%nclusterid": lay.CTX_NCLUSTERID, "%cluster_ctaid": lay.CTX_CLUSTER_CTAID,
    "%cluster_nctaid": lay.CTX_CLUSTER_NCTAID, "%cluster_ctarank": lay.CTX_CLUSTER_CTARANK,
    "%cluster_nctarank": lay.CTX_CLUSTER_NCTARANK,
    # The address of a cooperative launch's workspace, as the header of cooperative groups reads it.
    "%envreg1": lay.CTX_WORKSPACE + 4, "%envreg2": lay.CTX_WORKSPACE,
}  # fmt: skip
"""Offsets in the context of special registers of 32 bits; of the first axis, where there are three."""
_IOTA = lane_vector(list(range(32)))


class Emitter(IRBuilder):
    """Emits the blocks of one kernel."""

    def __init__(self, flow: ControlFlowGraph, shape: Shape) -> None:
        super().__init__(has_avx512())
        self.flow = flow
        self.shape = shape
        self.types = flow.kernel.registers
        self.sites: list[MemorySite] = []
        self.points: list[Instruction] = []
        self.products: set[Product] = set()
        """Matrix products that the kernel computes."""
        self.group_products: set[Product] = set()
        """Those that it computes by warpgroups."""
        self.copies = False
        """The kernel has asynchronous copies."""
        self.asynchronous = False
        """The kernel has mbarriers, bulk copies or tensor memory."""
        self.tensor = False
        """The kernel has tensor memory."""
        self.tensor_registers = False
        """It loads from that or stores to it."""
        self.tensor_functions: set[tuple[str, bool]] = set()
        """Types of operands of its products there: of B, if true, or of A."""
        self.tensor_sums: set[tuple[str, str]] = set()
        """A type of their operands, and that of their results."""
        self.cta_group = ""
        """What all its instructions on tensor memory name."""
        self.pairs = any("cta_group::2" in i.modifiers for block in flow.blocks for i in block.all())
        """Pairs of blocks work together."""
        self.block = 0
        """Index of the basic block that is written."""
        self.slots: dict[str, int] = {}
        self.state_bytes = 0
        self.held = 0
        self.speculative = speculative_loads(flow)
        self.repeated = repeated_patterns(flow)
        self.group_areas = 0
        """Groups of the basic block that has most."""
        self.load_areas = 0
        """Areas for deferred loads in the basic block that needs most."""
        self.hazards = product_hazards(flow)
        self.watched: dict[tuple[str, int], int] = {}
        """Words of the warp's state that tell what goes wrong with products."""
        self._layout()
        self.begin_block("-1")

    def _layout(self) -> None:
        count = len(self.flow.blocks)
        barriers = any(b.terminator is not None and b.terminator.opcode in ("bar", "barrier") for b in self.flow.blocks)
        at = lay.W_HEADER + 4 * (count + 1)
        self.held = at
        if barriers:
            at += 4 * (count + 1)
        for key, number in self.hazards.slots().items():
            self.watched[key] = at + 4 * number
        at += 4 * len(self.watched)
        at = (at + 63) // 64 * 64
        self.header_bytes = at
        alive = 0
        for mask in self.flow.live_in:
            alive |= mask
        for register, kind in self.types.items():
            if not alive >> self.flow.ids[register] & 1:
                continue
            bits = TYPE_BITS[kind]
            size = 4 if bits == 1 else max(bits // 8, 1) * (32 if register in self.flow.varying else 1)
            align = 64 if size >= 32 else 8
            at = (at + align - 1) // align * align
            self.slots[register] = at
            at += size
        self.state_bytes = (at + 127) // 64 * 64

    def begin_block(self, mask: str) -> None:
        """Drop the known values of registers and specials; ``mask`` is the block's active mask."""
        self.mask = mask
        self.values: dict[str, Value] = {}
        self.deferred: list[DeferredLoad] = []
        self.dirty: set[str] = set()
        self.floats: dict[tuple[str, int, bool], str] = {}
        self.integers: dict[str, tuple[str, bool]] = {}
        self.flushed: set[str] = set()
        self.memo: dict[object, Value] = {}
        self.addresses: dict[str, Address] = {}
        """How values that differ between lanes were computed, by their names."""
        self.groups: dict[Pattern | str, Group] = {}
        self.carry: Value | None = None
        self.synchronised = False
        """All lanes have synchronised since the block's last instruction that may use memory."""

    # Registers

    def bits(self, register: str) -> int:
        """Width of a register."""
        return TYPE_BITS[self.types[register]]

    def varying(self, register: str) -> bool:
        """True when the register holds one value per lane."""
        return register in self.flow.varying

    def read(self, register: str) -> Value:
        """Current value of a register; one that was never written reads as zero."""
        self.load_deferred(register)
        if register in self.values:
            return self.values[register]
        bits, vec = self.bits(register), self.varying(register)
        if register not in self.slots:
            value = Value(("0" if vec else "false") if bits == 1 else ("zeroinitializer" if vec else "0"), vec)
        else:
            slot = self.gep("%state", self.slots[register])
            if bits == 1:
                text = self.op(f"load i32, ptr {slot}")
                value = Value(text if vec else self.op(f"trunc i32 {text} to i1"), vec)
            else:
                align = min(64, 4 * bits) if vec else 8
                value = Value(self.op(f"load {int_type(bits, vec)}, ptr {slot}, align {align}"), vec)
        self.values[register] = value
        return value

    def area_to_load(self) -> str:
        """An area for a load that will be deferred."""
        if len(self.deferred) == MOST_DEFERRED:
            self._arrive(self.deferred[0])
        taken = {load.area for load in self.deferred}
        free = next(k for k in range(MOST_DEFERRED) if f"%load{k}" not in taken)
        self.load_areas = max(self.load_areas, free + 1)
        return f"%load{free}"

    def defer(self, load: DeferredLoad) -> None:
        """Let the values of a load wait until they are needed; until then no instruction may change memory."""
        for register in load.registers:
            self.load_deferred(register)
        self.deferred.append(load)

    def load_deferred(self, register: str | None = None) -> None:
        """Load what was deferred and is for a register, or all of it."""
        for load in [load for load in self.deferred if register is None or register in load.registers]:
            self._arrive(load)

    def _arrive(self, load: DeferredLoad) -> None:
        self.deferred.remove(load)
        load.arrive()

    # What addresses are made of: see ``address_patterns``

    def varies(self, operand: Operand) -> bool:
        return isinstance(operand, Reg) and self.varying(operand.name)

    def name(self, operand: Operand) -> Hashable:
        if isinstance(operand, Reg):
            return self.read(operand.name).text
        return operand.value if isinstance(operand, Imm) else operand

    def address(self, operand: Operand) -> Address:
        assert isinstance(operand, Reg)
        return self.address_of(self.read(operand.name).text)

    def address_of(self, text: str) -> Address:
        """The pattern and the scalars that a value of 64 bits was computed from."""
        return self.addresses.get(text) or plain(text)

    def computed(self, register: Operand, address: Address) -> None:
        """Note how the value of a register was computed."""
        assert isinstance(register, Reg)
        value = self.values[register.name]
        if value.vec:
            self.addresses[value.text] = address
            if not address.terms:
                self.memo[address.pattern] = value

    def pattern(self, pattern: Pattern) -> str:
        """The pattern in all lanes, as <32 x i64>."""
        text = self.pattern_value(pattern)
        if pattern.extended:
            text = self.resize(Value(text, True), 32, 64, signed=pattern.extended == "s").text
        if pattern.factor == 1:
            return text
        if pattern not in self.memo:
            self.memo[pattern] = Value(self.op(f"mul <32 x i64> {text}, splat (i64 {pattern.factor})"), True)
        return self.memo[pattern].text

    def pattern_value(self, pattern: Pattern) -> str:
        """The value of a pattern in all lanes, before it is extended and multiplied."""
        value = pattern.value
        if not isinstance(value, Masked):
            return str(value)
        if value not in self.memo:
            self.memo[value] = Value(self.op(f"and <32 x i32> {value.value}, splat (i32 {value.mask})"), True)
        return self.memo[value].text

    def scalar_part(self, address: Address) -> str:
        """The scalar that an address adds to its pattern, as i64."""
        if address.terms not in self.memo:
            total = "0"
            for term, factor in address.terms:
                part = str(term * factor) if isinstance(term, int) else str(term)
                if factor != 1 and not isinstance(term, int):
                    part = self.op(f"mul i64 {part}, {factor}")
                total = part if total == "0" else self.op(f"add i64 {total}, {part}")
            self.memo[address.terms] = Value(total, False)
        return self.memo[address.terms].text

    def lanes(self, mask: str) -> str:
        """An ``i32`` lane mask as ``<32 x i1>``."""
        key = ("lanes", mask)
        if key not in self.memo:
            self.memo[key] = Value(self.op(f"bitcast i32 {mask} to <32 x i1>"), True)
        return self.memo[key].text

    def spread(self, value: Value, bits: int) -> str:
        """The value with one element per lane (for predicates: as an ``i32`` mask)."""
        if value.vec:
            return value.text
        if bits == 1:
            if value.text in ("true", "false"):
                return "-1" if value.text == "true" else "0"
            return self.op(f"sext i1 {value.text} to i32")
        if not value.text.startswith("%"):
            return f"splat (i{bits} {value.text})"
        key = ("splat", value.text, bits)
        if key not in self.memo:
            self.memo[key] = Value(self.splat(value.text, f"i{bits}"), True)
        return self.memo[key].text

    def predicate(self, operand: Operand) -> Value:
        """Value of a predicate operand, which may be negated or a constant."""
        if isinstance(operand, Imm):
            return Value("true" if operand.value else "false", False)
        if operand == Special("%is_explicit_cluster"):
            return Value(self.op(f"trunc i32 {self.load('i32', '%ctx', lay.CTX_EXPLICIT_CLUSTER)} to i1"), False)
        assert isinstance(operand, Reg | NotReg)
        value = self.read(operand.name)
        return self.invert(value) if isinstance(operand, NotReg) else value

    def flag(self, text: str, vec: bool) -> Value:
        """A comparison's result as a predicate."""
        return Value(self.op(f"bitcast <32 x i1> {text} to i32") if vec else text, vec)

    def invert(self, p: Value) -> Value:
        """Logical not of a predicate."""
        return Value(self.op(f"xor {'i32' if p.vec else 'i1'} {p.text}, {'-1' if p.vec else 'true'}"), p.vec)

    def active(self, i: Instruction) -> str:
        """Lanes (``i32``) in which the instruction takes effect."""
        if i.predicate is None:
            return self.mask
        p = self.read(i.predicate.name)
        if i.negated:
            p = self.invert(p)
        return self.op(f"and i32 {self.spread(p, 1)}, {self.mask}")

    def condition(self, p: Value) -> tuple[str, bool]:
        """A predicate as the condition of a select: ``i1`` or ``<32 x i1>``."""
        return (self.lanes(p.text), True) if p.vec else (p.text, False)

    def resize(self, value: Value, source: int, target: int, signed: bool = False) -> Value:
        """Truncate or extend an integer value."""
        if source == target:
            return value
        if not value.text.startswith("%"):
            if value.text == "zeroinitializer":
                return value
            if not value.vec:
                number = int(value.text) % (1 << source)
                if signed and number >> (source - 1):
                    number -= 1 << source
                return Value(str(number % (1 << target)), False)
        verb = "trunc" if target < source else ("sext" if signed else "zext")
        key = (verb, value.text, source, target)
        if key not in self.memo:
            kinds = int_type(source, value.vec), int_type(target, value.vec)
            self.memo[key] = Value(self.op(f"{verb} {kinds[0]} {value.text} to {kinds[1]}"), value.vec)
        return self.memo[key]

    def write(self, i: Instruction, target: Operand, value: Value, bits: int, signed: bool = False) -> None:
        """Assign ``value`` of ``bits`` bits to a destination, under the instruction's predicate."""
        if isinstance(target, Sink):
            return
        if not isinstance(target, Reg):
            raise unsupported(i, "destination is not a register")
        register = target.name
        self.load_deferred(register)
        width = self.bits(register)
        if (width == 1) != (bits == 1):
            raise unsupported(i, "destination type mismatch")
        if width != bits:
            value = self.resize(value, bits, width, signed)
        vec = self.varying(register)
        if vec and not value.vec:
            value = Value(self.spread(value, width), True)
        elif not vec and value.vec:
            if width == 1:
                some = self.op(f"and i32 {value.text}, {self.mask}")
                value = Value(self.op(f"icmp ne i32 {some}, 0"), False)
            else:
                value = Value(self.first_lane(value.text, width), False)
        if i.predicate is not None:
            value = self._merge(i, register, value, width)
        self.values[register] = value
        self.dirty.add(register)

    def _merge(self, i: Instruction, register: str, value: Value, width: int) -> Value:
        assert i.predicate is not None
        old = self.read(register)
        p = self.read(i.predicate.name)
        if i.negated:
            p = self.invert(p)
        if width == 1 and value.vec:
            lanes = self.spread(p, 1)
            keep = self.op(f"and i32 {old.text}, {self.op(f'xor i32 {lanes}, -1')}")
            new = self.op(f"and i32 {value.text}, {lanes}")
            return Value(self.op(f"or i32 {keep}, {new}"), True)
        condition, many = self.condition(p)
        kind = int_type(width, value.vec)
        chooser = "<32 x i1>" if many else "i1"
        return Value(self.op(f"select {chooser} {condition}, {kind} {value.text}, {kind} {old.text}"), value.vec)

    def first_lane(self, text: str, bits: int) -> str:
        """The value in the lowest active lane."""
        self.emit(f"store {int_type(bits, True)} {text}, ptr %area0, align 64")
        lane_id = self.op(f"call i32 @llvm.cttz.i32(i32 {self.mask}, i1 true)")
        lane_id = self.op(f"and i32 {lane_id}, 31")
        pointer = self.op(f"getelementptr i{bits}, ptr %area0, i32 {lane_id}")
        return self.op(f"load i{bits}, ptr {pointer}")

    def shared_value(self, i: Instruction, value: Value, mask: str, kind: int) -> str:
        """A value of 32 bits that the lanes of ``mask`` must share; one that has another is a fault of that kind.

        Overwrites the first area of the scratch.
        """
        if not value.vec:
            return value.text
        text = self.first_lane(value.text, 32)
        other = self.op(f"icmp ne <32 x i32> {value.text}, {self.splat(text, 'i32')}")
        self.fault_in(i, kind, self.op(f"and i32 {self.op(f'bitcast <32 x i1> {other} to i32')}, {mask}"))
        return text

    # Operands

    def special(self, i: Instruction, name: str) -> Value:
        """Value of a special register, as i32 (i64 for clocks and %rd-sized ones, see ``special_bits``)."""
        key = ("special", name)
        if key in self.memo:
            return self.memo[key]
        value = self._special(i, name)
        if not name.startswith(("%clock", "%globaltimer")):
            self.memo[key] = value
        return value

    def _special(self, i: Instruction, name: str) -> Value:
        axis = "xyzw".find(name[-1]) if name[-2:-1] == "." else -1
        stem = name[:-2] if axis >= 0 else name
        if axis == 3:
            return Value("0" if stem in ("%tid", "%ctaid", "%clusterid", "%cluster_ctaid") else "1", False)
        if stem == "%tid":
            return self._thread_index(axis)
        if stem == "%ntid":
            return Value(str(self.shape.block[axis]), False)
        if stem in _OF_CONTEXT:
            return Value(self.load("i32", "%ctx", _OF_CONTEXT[stem] + 4 * max(axis, 0)), False)
        if name == "%laneid":
            return Value(_IOTA, True)
        if name == "%warpid":
            return Value(self.load("i32", "%ctx", lay.CTX_WARP), False)
        if name in _LANEMASKS:
            return Value(lane_vector(_LANEMASKS[name]), True)
        if name in _CONSTANTS:
            return Value(str(_CONSTANTS[name]), False)
        if name in ("%dynamic_smem_size", "%total_smem_size", "%aggr_smem_size"):
            offset = lay.CTX_DYNAMIC_SHARED if name == "%dynamic_smem_size" else lay.CTX_SHARED_BYTES
            return Value(self.load("i32", "%ctx", offset), False)
        if name in ("%clock", "%clock_hi", "%clock64", "%globaltimer", "%globaltimer_lo", "%globaltimer_hi"):
            clock = self.load("i64", "%ctx", lay.CTX_CLOCK)
            self.store("i64", self.op(f"add i64 {clock}, 32"), "%ctx", lay.CTX_CLOCK)
            if name in ("%clock64", "%globaltimer"):
                return Value(clock, False)
            if name.endswith("_hi"):
                clock = self.op(f"lshr i64 {clock}, 32")
            return Value(self.op(f"trunc i64 {clock} to i32"), False)
        raise unsupported(i, f"special register {name}")

    def _thread_index(self, axis: int) -> Value:
        x, y, z = self.shape.block
        if self.shape.block[axis] == 1:
            return Value("0", False)
        warp = self.load("i32", "%ctx", lay.CTX_WARP)
        base = self.op(f"shl i32 {warp}, 5")
        if axis > 0 and (x % 32 == 0 or (axis == 2 and x * y % 32 == 0)):
            row = self.op(f"udiv i32 {base}, {x if axis == 1 else x * y}")
            return Value(self.op(f"urem i32 {row}, {y}") if axis == 1 else row, False)
        lane_id = self.op(f"add <32 x i32> {self.splat(base, 'i32')}, {_IOTA}")
        if axis == 0:
            if y == z == 1:
                return Value(lane_id, True)
            return Value(self.op(f"urem <32 x i32> {lane_id}, splat (i32 {x})"), True)
        row = self.op(f"udiv <32 x i32> {lane_id}, splat (i32 {x if axis == 1 else x * y})")
        if axis == 1 and z > 1:
            row = self.op(f"urem <32 x i32> {row}, splat (i32 {y})")
        return Value(row, True)

    def symbol(self, i: Instruction, sym: Sym) -> Value:
        """State-space address of a variable, as i64."""
        kernel = self.flow.kernel
        if sym.name in kernel.frame:
            return Value(str(kernel.frame[sym.name] + sym.offset), False)
        if sym.name in self.shape.shared:
            return Value(str(self.shape.shared[sym.name] + sym.offset), False)
        if sym.name in kernel.params:
            return Value(str(kernel.params[sym.name][1] + sym.offset), False)
        if sym.name in self.shape.symbols:
            key = ("symbol", sym.name, sym.offset)
            if key not in self.memo:
                table = self.load("ptr", "%ctx", lay.CTX_SYMBOLS)
                base = self.load("i64", table, 8 * self.shape.symbols[sym.name])
                self.memo[key] = Value(self.op(f"add i64 {base}, {sym.offset}") if sym.offset else base, False)
            return self.memo[key]
        raise unsupported(i, f"address of {sym.name!r}")

    def ranked(self, i: Instruction, value: Value, bits: int) -> Value:
        """An address in the cluster's shared memory as registers hold it in kernels for pairs of CTAs.

        It has the rank of its CTA from bit 24 on, as on a GPU, and programs compute with that: CUTLASS clears the
        lowest bit for the address in the first CTA of a pair. Everywhere else, generic addresses included, an address
        has there the rank plus one, or 0 for the own CTA.
        """
        return self._renumbered(i, value, bits, "0", "add", "sub") if self.pairs else value

    def unranked(self, i: Instruction, value: Value, bits: int) -> Value:
        """The address that a register of such a kernel holds, with the rank plus one."""
        return self._renumbered(i, value, bits, "", "sub", "add") if self.pairs else value

    def _renumbered(self, i: Instruction, value: Value, bits: int, own: str, here: str, there: str) -> Value:
        """The address after ``here`` with the own rank where its upper bits are ``own``, or else ``there`` with 1."""
        key = (here, value.text, bits)
        if key not in self.memo:
            kind = int_type(bits, value.vec)
            rank = self.resize(self.special(i, "%cluster_ctarank"), 32, bits)

            def shaped(text: str) -> str:
                return self.spread(Value(text, False), bits) if value.vec else text

            upper = self.op(f"lshr {kind} {value.text}, {shaped(str(lay.PEER_SHIFT))}")
            is_own = self.op(f"icmp eq {kind} {upper}, {shaped(own or rank.text)}")
            base = self.op(f"shl i{bits} {rank.text}, {lay.PEER_SHIFT}")
            inside = self.op(f"{here} {kind} {value.text}, {shaped(base)}")
            outside = self.op(f"{there} {kind} {value.text}, {shaped(str(1 << lay.PEER_SHIFT))}")
            self.memo[key] = Value(self.select(is_own, kind, inside, outside), value.vec)
        return self.memo[key]

    def source(self, i: Instruction, operand: Operand, bits: int) -> Value:
        """An operand as an integer of ``bits`` bits (more than 1)."""
        if isinstance(operand, Reg):
            width = self.bits(operand.name)
            if width == 1:
                raise unsupported(i, "predicate used as a number")
            return self.resize(self.read(operand.name), width, bits)
        if isinstance(operand, Imm):
            value = operand.value
            if operand.kind == "f64" and bits == 32:
                with np.errstate(over="ignore"):
                    single = np.array([value], np.uint64).view(np.float64).astype(np.float32)
                value = int(single.view(np.uint32)[0])
            return Value(str(value % (1 << bits)), False)
        if isinstance(operand, Special):
            width = 64 if operand.name in ("%clock64", "%globaltimer") else 32
            return self.resize(self.special(i, operand.name), width, bits)
        if isinstance(operand, Sym):
            address = self.symbol(i, operand)
            if operand.name in self.shape.shared:
                address = self.ranked(i, address, 64)
            return self.resize(address, 64, bits)
        raise unsupported(i, "operand form")

    def sources(self, i: Instruction, operands: tuple[Operand, ...], bits: int) -> tuple[list[str], bool]:
        """Several operands of one width, all scalars or all with one element per lane."""
        values = [self.source(i, op, bits) for op in operands]
        vec = any(v.vec for v in values)
        return [self.spread(v, bits) if vec else v.text for v in values], vec

    def as_float(self, text: str, bits: int, vec: bool) -> str:
        """Reinterpret an integer value as floating point."""
        key = (text, bits, vec)
        if key not in self.floats:
            self.floats[key] = self.op(f"bitcast {int_type(bits, vec)} {text} to {float_type(bits, vec)}")
            self.integers[self.floats[key]] = (text, vec)
        return self.floats[key]

    def float_sources(self, i: Instruction, operands: tuple[Operand, ...], bits: int) -> tuple[list[str], bool]:
        """Several floating-point operands of one width."""
        texts, vec = self.sources(i, operands, bits)
        return [self.as_float(t, bits, vec) for t in texts], vec

    def write_float(self, i: Instruction, target: Operand, text: str, vec: bool, bits: int) -> None:
        """Assign a floating-point value."""
        integer = self.op(f"bitcast {float_type(bits, vec)} {text} to {int_type(bits, vec)}")
        self.floats[(integer, bits, vec)] = text
        self.write(i, target, Value(integer, vec), bits)

    def variation(self) -> str:
        """The run's variation, as i32."""
        if "variation" not in self.memo:
            self.memo["variation"] = Value(self.load("i32", "%ctx", lay.CTX_VARIATION), False)
        return self.memo["variation"].text

    def constant(self, operand: Operand) -> int | None:
        """The operand's value when it is known at compile time."""
        return constant_of(self.flow.definitions, operand)

    # Memory records and scratch

    def new_site(self, site: MemorySite) -> str:
        """Reserve a memory record; returns its address."""
        if id(site.instruction) in self.speculative:
            site = replace(site, speculative=True)
        if site.instruction.opcode == "st" and site.space in (lay.SHARED, lay.GENERIC):
            site = replace(site, agreed=agreed_lanes(self.flow.definitions, site.instruction.operands[1]))
        self.sites.append(site)
        return self.gep("%ops", (len(self.sites) - 1) * lay.OP_RECORD)

    def point(self, i: Instruction) -> int:
        """Number of a place that a fault can name."""
        self.points.append(i)
        return len(self.points) - 1

    def put(self, area: int, text: str, bits: int, index: int = 0) -> str:
        """Store a vector to a scratch area, behind so many others of its size; returns the area."""
        self.store(int_type(bits, True), text, f"%area{area}", 4 * bits * index, align=64)
        return f"%area{area}"

    def get(self, area: int, bits: int, index: int = 0) -> Value:
        """Load a vector from a scratch area."""
        return Value(self.load(int_type(bits, True), f"%area{area}", 4 * bits * index, align=64), True)

    def flush_registers(self, live_out: int, split: bool) -> None:
        """Store changed registers that later blocks read; ``split``: keep other lanes' values."""
        for register in sorted(self.dirty):
            if not live_out >> self.flow.ids[register] & 1:
                continue
            value, bits = self.values[register], self.bits(register)
            slot = self.gep("%state", self.slots[register])
            if bits == 1:
                text = value.text if value.vec else self.op(f"zext i1 {value.text} to i32")
                if value.vec and split:
                    old = self.op(f"load i32, ptr {slot}")
                    keep = self.op(f"and i32 {old}, {self.op(f'xor i32 {self.mask}, -1')}")
                    text = self.op(f"or i32 {keep}, {self.op(f'and i32 {text}, {self.mask}')}")
                self.emit(f"store i32 {text}, ptr {slot}")
            elif value.vec and split:
                # A blend and a full store: later loads forward from it, which a masked store would prevent. The load
                # is volatile so that LLVM does not fuse the three into a masked store.
                kind, align = int_type(bits, True), min(64, 4 * bits)
                old = self.op(f"load volatile {kind}, ptr {slot}, align {align}")
                merged = self.select(self.lanes(self.mask), kind, value.text, old)
                self.emit(f"store {kind} {merged}, ptr {slot}, align {align}")
            else:
                align = min(64, 4 * bits) if value.vec else 8
                self.emit(f"store {int_type(bits, value.vec)} {value.text}, ptr {slot}, align {align}")

    def check_members(self, i: Instruction, members: Operand) -> Value:
        """Fault when a warp-wide operation names lanes that are alive but not here; returns the member mask."""
        value = self.source(i, members, 32)
        # What the lanes of a basic block found true once stays true to its end.
        seen = ("members", value.text)
        if self.flow.divergent_branches and not value.vec and seen not in self.memo:
            self.memo[seen] = value
            live = self.load("i32", "%state", lay.W_LIVE)
            away = self.op(f"xor i32 {self.mask}, -1")
            missing = self.op(f"and i32 {self.op(f'and i32 {live}, {away}')}, {value.text}")
            self.fault_in(i, lay.FAULT_DIVERGENT_SYNC, missing)
        if not value.vec and self.constant(members) not in (-1, 0xFFFFFFFF):
            outside = self.op(f"and i32 {self.active(i)}, {self.op(f'xor i32 {value.text}, -1')}")
            self.fault_in(i, lay.FAULT_DIVERGENT_SYNC, outside)
        named = None if self.constant(members) in (-1, 0xFFFFFFFF) else value
        if named is not None or not self.synchronised:
            self.synchronise(named)
            self.synchronised = named is None
        return value

    def synchronise(self, members: Value | None = None) -> None:
        """Order the accesses of a member mask's lanes to shared memory, for the race check; None names all lanes."""
        if not self.flow.kernel.shared:
            return
        if members is None:
            moment = self.op(f"add i64 {self.load('i64', '%ctx', lay.CTX_MOMENT)}, 1")
            self.store("i64", moment, "%ctx", lay.CTX_MOMENT)
            self.store("i64", moment, "%state", lay.W_TOGETHER)
            self.store("i64", moment, "%state", lay.W_MET)
            return
        masks = self.put(7, self.spread(members, 32), 32)
        mask = self.op(f"zext i32 {self.mask} to i64")
        self.call("kf_sync_lanes", "void", ("ptr", "%ctx"), ("ptr", "%state"), ("ptr", masks), ("i64", mask))

    def fault_in(self, i: Instruction, kind: int, mask: str) -> None:
        """Record a fault where ``mask`` names a lane, which is unlikely."""
        bad = self.op(f"icmp ne i32 {mask}, 0")
        yes, no = self.label("wrong"), self.label("right")
        self.emit(f"br i1 {bad}, label %{yes}, label %{no}, !prof !0\n{yes}:")
        self.fault(i, kind, mask)
        self.emit(f"br label %{no}\n{no}:")

    def fault(self, i: Instruction, kind: int, mask: str) -> None:
        """Record a fault for the lowest lane of ``mask``."""
        wide = self.op(f"zext i32 {mask} to i64")
        self.emit(f"call void @kf_fault(ptr %ctx, i64 {kind}, i64 {self.point(i)}, i64 {wide})")


def vector_items(operand: Operand) -> tuple[Operand, ...]:
    """The elements of a brace list, or the operand alone."""
    return operand.items if isinstance(operand, Vec) else (operand,)
