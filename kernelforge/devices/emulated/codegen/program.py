"""One kernel as LLVM IR and as machine code, compiled once per process for each launch shape."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from kernelforge.devices.emulated import layout as lay
from kernelforge.devices.emulated.codegen import llvm_jit
from kernelforge.devices.emulated.codegen.emit import HANDLERS
from kernelforge.devices.emulated.codegen.emit.emitter import ORDERED, Emitter, MemorySite, Shape, Value
from kernelforge.devices.emulated.codegen.emit.matrix import FRAGMENT_BYTES
from kernelforge.devices.emulated.codegen.emit.tcgen05 import REGISTER_BYTES
from kernelforge.devices.emulated.codegen.emit.warp import reduce_warp, reduction_source
from kernelforge.devices.emulated.codegen.emit.wgmma import (
    A_BYTES,
    ACCUMULATOR_BYTES,
    B_BYTES,
    check_product_registers,
    watch_product_registers,
)
from kernelforge.devices.emulated.codegen.llvm_jit import Native
from kernelforge.devices.emulated.codegen.matrix_ir import product_function, warp_work
from kernelforge.devices.emulated.codegen.memory_ir import ATTRIBUTES, GROUP_BYTES, LOAD_BYTES
from kernelforge.devices.emulated.codegen.tcgen05_ir import expand_function, expand_name, sums_function, sums_name
from kernelforge.devices.emulated.codegen.wgmma_ir import group_product_function, group_product_name
from kernelforge.devices.emulated.errors import UnsupportedInstruction
from kernelforge.devices.emulated.ptx.address_patterns import derive
from kernelforge.devices.emulated.ptx.blocks import Block, short_sides, weak_topological_order
from kernelforge.devices.emulated.ptx.cfg import ControlFlowGraph, analyse
from kernelforge.devices.emulated.ptx.inline import FlatKernel, unsupported
from kernelforge.devices.emulated.ptx.instruction_facts import (
    IN_REGISTERS,
    is_barrier,
    is_cluster_wait,
    stops_warp,
)
from kernelforge.devices.emulated.ptx.load_overlap import loads_in_flight
from kernelforge.devices.emulated.ptx.parser import Instruction, Operand
from kernelforge.devices.emulated.runtime.tensor_products import TABLE_BYTES

_ENTRY = "turn"
_AREAS = 8

MANY_WARPS = 8192
"""From this size on a launch of a kernel with loops is worth optimised code. Unoptimised code takes LLVM less than half
the time and computes the same. Most of a launch is spent in the runtime: only long loops run slower, by up to half."""
FEW_INSTRUCTIONS = 100
"""A kernel of so many takes LLVM no longer to optimise: it needs no loop for that."""
MANY_LINES = 100_000
"""Lines of LLVM's text; unoptimised code of a longer one would need too much stack."""
STACK_BYTES_PER_LINE = 256
"""Stack that unoptimised code needs at most for a line, on average: 32 lanes of 64 bits."""


@dataclass(frozen=True)
class Program:
    """A compiled kernel for one CTA shape."""

    flow: ControlFlowGraph
    shape: Shape
    native: Native
    address: int
    sites: tuple[MemorySite, ...]
    points: tuple[Instruction, ...]
    state_bytes: int
    header_bytes: int
    """Part of a warp's state that must be zero when a CTA starts."""
    clear_bytes: int
    """The same with registers that may be read before they are written."""
    block_costs: npt.NDArray[np.int64]
    """Work of one warp in each basic block, in instructions: see :func:`.warp_work`."""
    copies: bool
    """It has asynchronous copies."""
    asynchronous: bool
    """It has mbarriers, bulk copies or tensor memory."""
    tensor: bool
    """It has tensor memory."""
    jit_seconds: float
    level: int
    """LLVM's level of optimisation."""
    stack_bytes: int
    """Stack that the code may need."""

    @cached_property
    def records(self) -> npt.NDArray[np.uint8]:
        """Memory records at the start of a launch, one row each."""
        return _records(self.sites, self.flow.kernel.frame_bytes)

    @cached_property
    def in_flight(self) -> Mapping[int, float]:
        """Of its loads, by their ids: see ``loads_in_flight``."""
        return loads_in_flight(self.flow.blocks)


def _records(sites: Sequence[MemorySite], frame_bytes: int) -> npt.NDArray[np.uint8]:
    """Initial memory records, one row each."""
    records = np.zeros((max(len(sites), 1), lay.OP_RECORD), dtype=np.uint8)
    words, longs = records.view(np.int32), records.view(np.int64)
    for row, site in enumerate(sites):
        words[row, lay.OP_SPACE // 4] = site.space
        # Lines depend on the place in a line of 128 bytes; sectors, and wavefronts of shared memory, on that in 32.
        words[row, lay.OP_ALIGNMENTS // 4] = 127 if site.space in (lay.GLOBAL, lay.GENERIC) else 31
        words[row, lay.OP_BYTES // 4] = site.width
        words[row, lay.OP_ALIGN // 4] = site.width
        words[row, lay.OP_ACCESS // 4] = site.access
        longs[row, lay.OP_OFFSET // 8] = site.offset
        words[row, lay.OP_NARROW // 4] = int(site.narrow)
        words[row, lay.OP_SPECULATIVE // 4] = int(site.speculative)
        words[row, lay.OP_AGREED // 4] = site.agreed
        words[row, lay.OP_BLOCK // 4] = site.block
        words[row, lay.OP_SLOT // 4] = -1
        if site.space == lay.LOCAL:
            # Frame accesses at one offset for all lanes only need the frame's size.
            longs[row, lay.OP_SPAN // 8] = max(frame_bytes - site.width + 1, 0)
    return records


def level_for(flow: ControlFlowGraph, warps: int) -> int:
    """The level at which to compile a kernel for a launch of so many warps."""
    if warps < MANY_WARPS:
        return 0
    short = sum(len(block.all()) for block in flow.blocks) <= FEW_INSTRUCTIONS
    return int(short or bool(weak_topological_order(flow.blocks)[1]))


def _of_context(name: str, offset: int, kind: str = "i64") -> str:
    """Load a field of the context."""
    return f"%{name}_p = getelementptr i8, ptr %ctx, i64 {offset}\n%{name} = load {kind}, ptr %{name}_p"


def _to_context(name: str, offset: int, kind: str, value: str) -> str:
    """Store to a field of the context."""
    return f"%{name}_p = getelementptr i8, ptr %ctx, i64 {offset}\nstore {kind} {value}, ptr %{name}_p"


_TURN = f"""
define i64 @{_ENTRY}(ptr noalias %ctx, i64 %first) {ATTRIBUTES} {{
entry:
{_of_context("states", lay.CTX_TURN_STATE, "ptr")}
{_of_context("state_bytes", lay.CTX_TURN_STATE_BYTES)}
{_of_context("statuses", lay.CTX_TURN_STATUS, "ptr")}
{_of_context("locals", lay.CTX_TURN_LOCAL)}
{_of_context("local_stride", lay.CTX_TURN_LOCAL_STRIDE)}
{_of_context("copies", lay.CTX_TURN_COPIES)}
{_of_context("copies_stride", lay.CTX_COPIES_STRIDE)}
{_of_context("warps", lay.CTX_TURN_WARPS)}
{_of_context("budget64", lay.CTX_TURN_BUDGET)}
%budget = trunc i64 %budget64 to i32
br label %next
next:
%warp = phi i64 [%first, %entry], [%following, %skip]
%ends = icmp sge i64 %warp, %warps
br i1 %ends, label %end, label %look
end:
ret i64 -1
look:
%status_p = getelementptr i32, ptr %statuses, i64 %warp
%status = load i32, ptr %status_p
%ready = icmp eq i32 %status, {lay.WARP_READY}
br i1 %ready, label %run, label %skip
skip:
%following = add i64 %warp, 1
br label %next
run:
{_to_context("ran", lay.CTX_TURN_RAN, "i64", "1")}
%at = mul i64 %warp, %state_bytes
%state = getelementptr i8, ptr %states, i64 %at
%number = trunc i64 %warp to i32
{_to_context("number", lay.CTX_WARP, "i32", "%number")}
{_to_context("budget32", lay.CTX_BUDGET, "i32", "%budget")}
%local_at = mul i64 %warp, %local_stride
%local = add i64 %locals, %local_at
{_to_context("local", lay.CTX_LOCAL, "i64", "%local")}
{_to_context("own", lay.CTX_STATE, "ptr", "%state")}
%copy_at = mul i64 %warp, %copies_stride
%copy = add i64 %copies, %copy_at
{_to_context("copy", lay.CTX_COPIES, "i64", "%copy")}
%code = call i32 @warp(ptr align 64 %state, ptr %ctx)
switch i32 %code, label %other [i32 {lay.RETURN_DONE}, label %done i32 {lay.RETURN_BARRIER}, label %barrier]
done:
{_of_context("ended", lay.CTX_TURN_ENDED)}
%one_more = add i64 %ended, 1
store i64 %one_more, ptr %ended_p
br label %settled
barrier:
%arrive_p = getelementptr i8, ptr %state, i64 {lay.W_BARRIER_ARRIVE}
%arrive = load i32, ptr %arrive_p
%id_p = getelementptr i8, ptr %state, i64 {lay.W_BARRIER_ID}
%id = load i32, ptr %id_p
%waits = icmp eq i32 %arrive, 0
%of_block = icmp ne i32 %id, {lay.CLUSTER_BARRIER}
%simple = and i1 %waits, %of_block
br i1 %simple, label %settled, label %other
settled:
%new = phi i32 [{lay.WARP_DONE}, %done], [{lay.WARP_AT_BARRIER}, %barrier]
store i32 %new, ptr %status_p
{_to_context("progress", lay.CTX_PROGRESS, "i64", "1")}
br label %skip
other:
%wide = zext i32 %code to i64
%upper = shl i64 %wide, 32
%result = or i64 %upper, %warp
ret i64 %result
}}"""
"""A turn of the warps of a CTA from ``%first`` on, each until it ends, waits at a barrier of the CTA, or stops for
another reason: then the result is its number and, in the upper half, that reason. It is negative after the last."""


class _ModuleWriter:
    """Writes the blocks and their edges."""

    def __init__(self, flow: ControlFlowGraph, shape: Shape) -> None:
        self.flow = flow
        self.e = Emitter(flow, shape)
        self.diverges = bool(flow.divergent_branches)
        self.short_sides = {b: sides for b, sides in short_sides(flow.blocks).items() if b in flow.divergent_branches}
        self.side_ends = {
            side: (branch, [*sides, None][k + 1], end)
            for branch, (sides, end) in self.short_sides.items()
            for k, side in enumerate(sides)
        }
        """By side: its branch, the side that runs after it if any, and the block where it ends."""
        reductions = flow.reductions.values()
        self.reduced = {r.start: "" for r in reductions}
        """Values that each reduction over a warp starts from."""
        self.inner = {number for r in reductions for number in r.inner}
        self.pending_vote: dict[int, Instruction] = {}
        for block in flow.blocks:
            term = block.terminator
            if term is not None and is_barrier(term) and "red" in term.modifiers:
                self.pending_vote[block.successors[0]] = term

    def write(self) -> str:
        e = self.e
        count = len(self.flow.blocks)
        for block in self.flow.blocks:
            self.block(block)
        blocks = "\n".join(e.lines)
        e.lines = []
        head = self.prologue()
        cases = " ".join(f"i32 {k}, label %b{k}" for k in range(count))
        middle = f"""
switch_block:
%next = phi i32 [%resume, %entry], [%picked, %found]
switch i32 %next, label %dispatch [{cases}]
dispatch:
%pick = call i64 @kf_pick(ptr %ctx, ptr %state, i64 {count}, i64 {e.held})
%picked = trunc i64 %pick to i32
%none = icmp slt i32 %picked, 0
br i1 %none, label %leave, label %found
found:
%found_mask = load i32, ptr %mask_p
store i32 %found_mask, ptr %mask_now
br label %switch_block
leave:
%at_barrier = icmp eq i32 %picked, -2
%code = select i1 %at_barrier, i32 {lay.RETURN_BARRIER}, i32 {lay.RETURN_DONE}
ret i32 %code
"""
        declarations = sorted(
            e.declarations
            | {
                "declare i64 @kf_pick(ptr, ptr, i64, i64)",
                "declare void @kf_fault(ptr, i64, i64, i64)",
                "declare i32 @llvm.ctpop.i32(i32)",
                "declare i32 @llvm.cttz.i32(i32, i1)",
            }
        )
        unique = {line.split("(")[0]: line.replace(" immarg", "") for line in declarations}
        weights = '!0 = !{!"branch_weights", i32 1, i32 100000}'
        return "\n".join([*unique.values(), head, middle, blocks, "}", _TURN, weights])

    def prologue(self) -> str:
        head = f"define internal i32 @warp(ptr noalias align 64 %state, ptr noalias %ctx)\nalwaysinline {ATTRIBUTES} {{"
        lines = [head, "entry:", "%mask_now = alloca i32"]
        lines += [f"%area{k} = getelementptr i8, ptr %areas, i64 {k * lay.SCRATCH_AREA}" for k in range(_AREAS)]
        lines[2:2] = [f"%{name}{b} = alloca i32" for b in self.short_sides for name in ("joined", "rest")]
        lines.insert(2, f"%areas = alloca [{_AREAS * lay.SCRATCH_AREA} x i8], align 64")
        lines[2:2] = [f"%group{k} = alloca [{GROUP_BYTES} x i8], align 64" for k in range(self.e.group_areas)]
        lines[2:2] = [f"%load{k} = alloca [{LOAD_BYTES} x i8], align 64" for k in range(self.e.load_areas)]
        if self.e.products:
            lines.insert(2, f"%matrix = alloca [{FRAGMENT_BYTES} x i8], align 64")
        if self.e.group_products:
            areas = {"accumulators": ACCUMULATOR_BYTES, "rows": A_BYTES, "columns": B_BYTES}
            lines[2:2] = [f"%{name} = alloca [{size} x i8], align 64" for name, size in areas.items()]
        if self.e.tensor_registers:
            lines.insert(2, f"%tensor_registers = alloca [{REGISTER_BYTES} x i8], align 64")
        if self.e.tensor:
            lines.insert(2, f"%tensor_functions = alloca [{TABLE_BYTES} x i8], align 64")
        lines += [
            f"%mask_p = getelementptr i8, ptr %state, i64 {lay.W_MASK}",
            "%mask0 = load i32, ptr %mask_p",
            "store i32 %mask0, ptr %mask_now",
            f"%waiting_p = getelementptr i8, ptr %state, i64 {lay.W_WAITING}",
            f"%held_p = getelementptr i8, ptr %state, i64 {lay.W_HELD}",
            f"%live_p = getelementptr i8, ptr %state, i64 {lay.W_LIVE}",
            f"%budget_p = getelementptr i8, ptr %ctx, i64 {lay.CTX_BUDGET}",
            f"%counts_p = getelementptr i8, ptr %ctx, i64 {lay.CTX_COUNTS}",
            "%counts = load ptr, ptr %counts_p",
            f"%ops_p = getelementptr i8, ptr %ctx, i64 {lay.CTX_OPS}",
            "%ops = load ptr, ptr %ops_p",
            "%resume = load i32, ptr %state",
            "br label %switch_block",
        ]
        return "\n".join(lines)

    def block(self, block: Block) -> None:
        e = self.e
        e.emit(f"b{block.index}:")
        e.begin_block(e.op("load i32, ptr %mask_now"))
        e.block = block.index
        # A wait that is repeated counts once.
        waits = bool(block.instructions) and stops_warp(block.instructions[0])
        if not waits:
            self.count(block.index)
        vote = self.pending_vote.get(block.index)
        if vote is not None:
            self.barrier_result(vote)
        for i in block.instructions:
            handler = HANDLERS.get(i.opcode)
            if handler is None:
                raise unsupported(i)
            check_product_registers(e, i)
            if id(i) in self.reduced:
                self.reduced[id(i)] = reduction_source(e, i)
            if id(i) in self.inner:
                if i.opcode == "shfl":
                    e.check_members(i, i.operands[4])
                continue
            e.synchronised &= i.opcode in IN_REGISTERS
            if i.opcode not in IN_REGISTERS and (i.opcode != "ld" or ORDERED & set(i.modifiers)):
                e.load_deferred()
            derived = derive(i, e)
            reduction = self.flow.reductions.get(id(i))
            try:
                if reduction is None:
                    handler(e, i)
                else:
                    reduce_warp(e, i, reduction, self.reduced[reduction.start])
            except (IndexError, KeyError, AssertionError, ValueError, AttributeError) as error:
                raise unsupported(i, f"unexpected operands ({error})") from error
            if derived is not None:
                e.computed(i.operands[0], derived)
            watch_product_registers(e, i)
            if waits and i is block.instructions[0]:
                self.count(block.index)
        e.load_deferred()
        self.terminate(block)

    def count(self, index: int) -> None:
        e = self.e
        e.store("i64", e.op(f"add i64 {e.load('i64', '%counts', 16 * index)}, 1"), "%counts", 16 * index)
        lanes = e.op(f"zext i32 {e.op(f'call i32 @llvm.ctpop.i32(i32 {e.mask})')} to i64")
        at = 16 * index + 8
        e.store("i64", e.op(f"add i64 {e.load('i64', '%counts', at)}, {lanes}"), "%counts", at)

    def save(self, block: Block) -> None:
        split = block.index in self.flow.split
        self.e.flush_registers(self.flow.live_out[block.index], split)

    def terminate(self, block: Block) -> None:
        e, term = self.e, block.terminator
        if block.index in self.side_ends:
            self.save(block)
            self.end_side(block)
        elif term is None or (term.opcode == "bra" and term.predicate is None):
            self.save(block)
            self.goto(block, block.successors[0])
        elif term.opcode == "trap":
            kinds = {"assert": lay.FAULT_ASSERT, "stack": lay.FAULT_STACK, "pointer": lay.FAULT_POINTER}
            e.fault(term, next((kinds[m] for m in term.modifiers if m in kinds), lay.FAULT_TRAP), e.mask)
            self.finish_lanes(e.mask)
        elif term.opcode in ("ret", "exit") and term.predicate is None:
            self.finish_lanes(e.mask)
        elif term.opcode in ("bra", "ret", "exit"):
            self.conditional(block, term)
        elif term.opcode == "brx":
            self.table(block, term)
        elif is_barrier(term):
            self.barrier(block, term)
        elif is_cluster_wait(term):
            self.cluster_wait(block, term)
        else:
            raise unsupported(term)

    def finish_lanes(self, mask: str) -> None:
        e = self.e
        live = e.op("load i32, ptr %live_p")
        e.store("i32", e.op(f"and i32 {live}, {e.op(f'xor i32 {mask}, -1')}"), "%live_p")
        if self.diverges:
            e.emit("br label %dispatch")
        else:
            e.emit(f"ret i32 {lay.RETURN_DONE}")

    def conditional(self, block: Block, term: Instruction) -> None:
        e = self.e
        assert term.predicate is not None
        taken, other = block.successors
        p = e.read(term.predicate.name)
        if term.negated:
            p = e.invert(p)
        if taken == other:
            self.save(block)
            self.goto(block, taken)
            return
        self.save(block)
        if p.vec and block.index in self.short_sides:
            self.short_branch(block, p.text)
            return
        yes, no = e.label("yes"), e.label("no")
        if p.vec:
            lanes = e.op(f"and i32 {p.text}, {e.mask}")
            some, split = e.label("some"), e.label("split")
            e.emit(f"br i1 {e.op(f'icmp eq i32 {lanes}, 0')}, label %{no}, label %{some}\n{some}:")
            e.emit(f"br i1 {e.op(f'icmp eq i32 {lanes}, {e.mask}')}, label %{yes}, label %{split}\n{split}:")
            self.count_divergence()
            rest = e.op(f"xor i32 {lanes}, {e.mask}")
            self.park(taken, lanes)
            self.park(other, rest)
            self.dispatch(block)
        else:
            e.emit(f"br i1 {p.text}, label %{yes}, label %{no}")
        e.emit(f"{yes}:")
        self.goto(block, taken)
        e.emit(f"{no}:")
        self.goto(block, other)

    def short_branch(self, block: Block, predicate: str) -> None:
        """Run the sides of a branch one after the other, which needs no dispatch, and none where no lane goes there."""
        e = self.e
        sides, end = self.short_sides[block.index]
        taken = e.op(f"and i32 {predicate}, {e.mask}")
        other = e.op(f"xor i32 {taken}, {e.mask}")
        first, second = (taken, other) if sides[0] == block.successors[0] else (other, taken)
        e.emit(f"store i32 {e.mask}, ptr %joined{block.index}")
        some, none = e.label("some"), e.label("none")
        e.emit(f"br i1 {e.op(f'icmp eq i32 {first}, 0')}, label %{none}, label %{some}\n{some}:")
        self.count_divergence(e.op(f"icmp ne i32 {second}, 0"))
        e.emit(f"store i32 {second}, ptr %rest{block.index}")
        e.emit(f"store i32 {first}, ptr %mask_now\nbr label %b{sides[0]}\n{none}:")
        if len(sides) == 1:
            self.goto(block, end)
        else:
            e.emit(f"store i32 0, ptr %rest{block.index}\nbr label %b{sides[1]}")

    def end_side(self, block: Block) -> None:
        """Go on with the other side of the branch for its lanes, or with all lanes of the branch after it."""
        e = self.e
        branch, following, end = self.side_ends[block.index]
        if following is not None:
            rest = e.op(f"load i32, ptr %rest{branch}")
            go, done = e.label("rest"), e.label("side")
            e.emit(f"br i1 {e.op(f'icmp eq i32 {rest}, 0')}, label %{done}, label %{go}\n{go}:")
            e.emit(f"store i32 {rest}, ptr %mask_now\nbr label %b{following}\n{done}:")
        e.mask = e.op(f"load i32, ptr %joined{branch}")
        e.emit(f"store i32 {e.mask}, ptr %mask_now")
        self.goto(block, end)

    def count_divergence(self, occurs: str = "true") -> None:
        e = self.e
        at = 16 * len(self.flow.blocks)
        times = e.op(f"zext i1 {occurs} to i64")
        e.store("i64", e.op(f"add i64 {e.load('i64', '%counts', at)}, {times}"), "%counts", at)

    def table(self, block: Block, term: Instruction) -> None:
        e = self.e
        index = e.source(term, term.operands[0], 32)
        self.save(block)
        targets = block.successors
        if not index.vec:
            labels = [e.label("case") for _ in targets]
            cases = " ".join(f"i32 {k}, label %{name}" for k, name in enumerate(labels))
            # An index beyond the table is undefined behaviour; it takes the last entry.
            e.emit(f"switch i32 {index.text}, label %{labels[-1]} [{cases}]")
            for target, name in zip(targets, labels, strict=True):
                e.emit(f"{name}:")
                self.goto(block, target)
            return
        last = len(targets) - 1
        clipped = e.intrinsic("umin", "<32 x i32>", index.text, f"splat (i32 {last})")
        self.count_divergence()
        for k, target in enumerate(targets):
            equal = e.op(f"icmp eq <32 x i32> {clipped}, splat (i32 {k})")
            lanes = e.op(f"and i32 {e.op(f'bitcast <32 x i1> {equal} to i32')}, {e.mask}")
            go, skip = e.label("case"), e.label("after")
            e.emit(f"br i1 {e.op(f'icmp eq i32 {lanes}, 0')}, label %{skip}, label %{go}\n{go}:")
            self.park(target, lanes)
            e.emit(f"br label %{skip}\n{skip}:")
        self.dispatch(block)

    def park(self, target: int, lanes: str) -> None:
        """Let ``lanes`` wait to run block ``target``."""
        e = self.e
        at = lay.W_HEADER + 4 * target
        e.store("i32", e.op(f"or i32 {e.load('i32', '%state', at)}, {lanes}"), "%state", at)
        lowest = e.op("load i32, ptr %waiting_p")
        e.store("i32", e.intrinsic("umin", "i32", lowest, str(target)), "%waiting_p")

    def dispatch(self, block: Block) -> None:
        """Run the lowest block where lanes wait, after a branch that split the warp."""
        if min(block.successors) <= block.index:
            self.spend(len(self.flow.blocks), polls=block.index in self.flow.polls)
        self.e.emit("br label %dispatch")

    def spend(self, resume: int, *, polls: bool = False) -> None:
        """Subtract one back edge from the budget; when it is used up, yield and continue at ``resume`` later.

        Every cycle of the control flow has an edge to the same or a lower block, so no loop escapes.
        """
        e = self.e
        cost = e.load("i32", "%ctx", lay.CTX_POLL_COST) if polls else "1"
        remaining = e.op(f"sub i32 {e.op('load i32, ptr %budget_p')}, {cost}")
        e.store("i32", remaining, "%budget_p")
        go, stop = e.label("budget"), e.label("yield")
        e.emit(f"br i1 {e.op(f'icmp sgt i32 {remaining}, 0')}, label %{go}, label %{stop}\n{stop}:")
        e.store("i32", str(resume), "%state")
        e.store("i32", e.mask, "%mask_p")
        e.emit(f"ret i32 {lay.RETURN_POLL if polls else lay.RETURN_YIELD}\n{go}:")

    def goto(self, block: Block, target: int) -> None:
        """Continue at ``target`` with the block's mask, unless lanes wait at or before it or the budget is used up."""
        e = self.e
        if target <= block.index:
            self.spend(target, polls=block.index in self.flow.polls and target in self.flow.polls)
        if not self.diverges or block.index not in self.flow.split:
            e.emit(f"br label %b{target}")
            return
        lowest = e.op("load i32, ptr %waiting_p")
        ahead, wait = e.label("ahead"), e.label("wait")
        e.emit(f"br i1 {e.op(f'icmp ugt i32 {lowest}, {target}')}, label %{ahead}, label %{wait}\n{wait}:")
        self.park(target, e.mask)
        e.emit(f"br label %dispatch\n{ahead}:\nbr label %b{target}")

    def barrier(self, block: Block, term: Instruction) -> None:
        e = self.e
        operands = list(term.operands)
        if "red" in term.modifiers:
            operands = operands[1:-1]
        name = self.barrier_operand(term, operands[0], -lay.BARRIERS) if operands else "0"
        threads = self.barrier_operand(term, operands[1], lay.LANES - 1) if len(operands) > 1 else "0"
        if "red" in term.modifiers:
            p = e.spread(e.predicate(term.operands[-1]), 1)
            yes = e.op(f"call i32 @llvm.ctpop.i32(i32 {e.op(f'and i32 {p}, {e.mask}')})")
            here = e.op(f"call i32 @llvm.ctpop.i32(i32 {e.mask})")
            for offset, value in ((lay.W_BARRIER_VALUE, yes), (lay.W_BARRIER_RED_THREADS, here)):
                e.store("i32", e.op(f"add i32 {e.load('i32', '%state', offset)}, {value}"), "%state", offset)
        self.save(block)
        e.store("i32", threads, "%state", lay.W_BARRIER_THREADS)
        e.store("i32", "1" if "arrive" in term.modifiers else "0", "%state", lay.W_BARRIER_ARRIVE)
        if self.diverges and name.startswith("%"):
            waiting = e.op(f"icmp ne i32 {e.op('load i32, ptr %held_p')}, 0")
            other = e.op(f"icmp ne i32 {e.load('i32', '%state', lay.W_BARRIER_ID)}, {name}")
            self.barrier_fault(term, e.op(f"and i1 {waiting}, {other}"))
        self.stop(block, term, name, 1)

    def barrier_operand(self, term: Instruction, operand: Operand, excess: int) -> str:
        """A barrier's number, or its count of threads, which all lanes must share and no bit of ``excess`` be in."""
        e = self.e
        constant = e.constant(operand)
        if constant is not None:
            if constant & excess:
                raise unsupported(term, "a barrier's number is at most 15, its count of threads a multiple of 32")
            return str(constant)
        number = e.shared_value(term, e.source(term, operand, 32), e.mask, lay.FAULT_BARRIER_OPERANDS)
        self.barrier_fault(term, e.op(f"icmp ne i32 {e.op(f'and i32 {number}, {excess}')}, 0"))
        return e.op(f"and i32 {number}, {~excess}")

    def barrier_fault(self, term: Instruction, wrong: str) -> None:
        """Record a fault of the whole warp where ``wrong``, an ``i1``, holds."""
        lanes = self.e.op(f"select i1 {wrong}, i32 {self.e.mask}, i32 0")
        self.e.fault_in(term, lay.FAULT_BARRIER_OPERANDS, lanes)

    def cluster_wait(self, block: Block, term: Instruction) -> None:
        """Stop until every thread of the cluster has arrived at its barrier."""
        if not {"arrive", "relaxed", "release", "noinc"}.isdisjoint(term.modifiers) or term.operands:
            raise unsupported(term)
        self.save(block)
        self.e.store("i32", "0", "%state", lay.W_BARRIER_ARRIVE)
        self.stop(block, term, str(lay.CLUSTER_BARRIER), 2)

    def stop(self, block: Block, term: Instruction, name: str, kind: int) -> None:
        """Return to the scheduler at a barrier, when the other lanes of the warp wait at one too."""
        e = self.e
        after = block.successors[0]
        e.store("i32", name, "%state", lay.W_BARRIER_ID)
        e.store("i32", str(e.point(term)), "%state", lay.W_BARRIER_SITE)
        if self.diverges:
            nothing_waits = e.op(f"icmp eq i32 {e.op('load i32, ptr %waiting_p')}, {lay.NO_BLOCK}")
            free = e.op(f"icmp eq i32 {e.op('load i32, ptr %held_p')}, 0")
            together, apart = e.label("together"), e.label("apart")
            e.emit(f"br i1 {e.op(f'and i1 {nothing_waits}, {free}')}, label %{together}, label %{apart}\n{apart}:")
            at = e.held + 4 * after
            e.store("i32", e.op(f"or i32 {e.load('i32', '%state', at)}, {e.mask}"), "%state", at)
            e.store("i32", e.op(f"or i32 {e.op('load i32, ptr %held_p')}, {kind}"), "%held_p")
            e.emit(f"br label %dispatch\n{together}:")
        e.store("i32", str(after), "%state")
        e.store("i32", e.mask, "%mask_p")
        e.emit(f"ret i32 {lay.RETURN_BARRIER}")

    def barrier_result(self, term: Instruction) -> None:
        """Read the result of ``bar.red`` at the start of the block after it."""
        e = self.e
        total = e.load("i32", "%state", lay.W_BARRIER_RESULT)
        target = term.operands[0]
        if "popc" in term.modifiers:
            e.write(term, target, Value(total, False), 32)
        else:
            if "and" in term.modifiers:
                members = e.load("i32", "%state", lay.W_BARRIER_RED_THREADS)
                result = e.op(f"icmp eq i32 {total}, {members}")
            else:
                result = e.op(f"icmp ne i32 {total}, 0")
            e.write(term, target, Value(result, False), 1)
        e.store("i32", "0", "%state", lay.W_BARRIER_RED_THREADS)


def check(kernel: FlatKernel, shape: Shape) -> None:
    """Write a kernel's LLVM code and let LLVM read it; no machine code is made.

    Raises:
        UnsupportedInstruction: The kernel uses something the emulator does not implement.
    """
    try:
        llvm_jit.verify(_ModuleWriter(analyse(kernel, shape.block), shape).write())
    except RuntimeError as error:
        raise _refused(kernel, error) from error


def _refused(kernel: FlatKernel, error: RuntimeError) -> UnsupportedInstruction:
    """The refusal of a kernel whose LLVM code has operands of mismatched types."""
    return UnsupportedInstruction(f".entry {kernel.name}", reason=f"LLVM: {str(error)[:200]}")


def build(kernel: FlatKernel, shape: Shape, warps: int = 0) -> Program:
    """Compile a kernel for one CTA shape and a launch of about ``warps`` warps.

    Raises:
        UnsupportedInstruction: The kernel uses something the emulator does not implement.
    """
    start = time.perf_counter()
    flow = analyse(kernel, shape.block)
    writer = _ModuleWriter(flow, shape)
    text = writer.write()
    if writer.e.tensor:
        llvm_jit.load_tensor_memory()
    for product in writer.e.products:
        llvm_jit.load_function(product.name, product_function(product))
    for product in writer.e.group_products:
        llvm_jit.load_function(group_product_name(product), group_product_function(product))
    for element, right in writer.e.tensor_functions:
        llvm_jit.load_function(expand_name(element, right), expand_function(element, right))
    for element, result in writer.e.tensor_sums:
        llvm_jit.load_function(sums_name(element, result), sums_function(element, result))
    lines = text.count("\n")
    level = 1 if lines > MANY_LINES else level_for(flow, warps)
    try:
        native = Native(text, level)
    except RuntimeError as error:
        raise _refused(kernel, error) from error
    e = writer.e
    undefined = flow.live_in[0] if flow.live_in else 0
    return Program(
        flow=flow,
        shape=shape,
        native=native,
        address=native.address(_ENTRY),
        sites=tuple(e.sites),
        points=tuple(e.points),
        state_bytes=e.state_bytes,
        header_bytes=e.header_bytes,
        clear_bytes=e.state_bytes if undefined else e.header_bytes,
        block_costs=np.array([sum(map(warp_work, b.all())) for b in flow.blocks], dtype=np.int64),
        copies=e.copies,
        asynchronous=e.asynchronous,
        tensor=e.tensor,
        jit_seconds=time.perf_counter() - start,
        level=level,
        stack_bytes=STACK_BYTES_PER_LINE * lines if level == 0 else 0,
    )


Key = tuple[str, str, tuple[int, int, int]]
"""Digest of the PTX, kernel name, threads per axis of a CTA."""

_programs: dict[Key, Program] = {}
_lock = threading.Lock()
_reported: set[int] = set()


def cached_program(key: Key, compile_program: Callable[[], Program], good_enough: Callable[[Program], bool]) -> Program:
    """The program of that key, compiled on its first use in this process, and again when it is not ``good_enough``."""
    with _lock:
        program = _programs.get(key)
        if program is None or not good_enough(program):
            llvm_jit.load_runtime()
            if program is not None:
                _reported.discard(id(program))  # another object may get its address
            program = compile_program()
            _programs[key] = program
    return program


def consume_jit_seconds(program: Program) -> float:
    """Compilation time, on the first launch that uses the program."""
    if id(program) in _reported:
        return 0.0
    _reported.add(id(program))
    return program.jit_seconds
