"""Flatten one kernel: expand every ``call`` in place, so later stages see a single function.

A call's ``.param`` variables become slots of the thread's local frame; callee parameters alias the caller's slots.
Functions that recur, and those that are called through a pointer, become subroutines: see ``subroutines``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from kernelforge.compile.ptx_text import OBJECT_INSTRUCTIONS
from kernelforge.devices.emulated import layout as lay
from kernelforge.devices.emulated.errors import UnsupportedInstruction
from kernelforge.devices.emulated.ptx import dynamic_stack
from kernelforge.devices.emulated.ptx.parser import (
    Addr,
    Function,
    Imm,
    Instruction,
    Label,
    Module,
    NotReg,
    Operand,
    Pair,
    Reg,
    Sym,
    Variable,
    Vec,
)

MAX_INSTRUCTIONS = 400_000
"""Limit on a kernel's size after expansion; a chain of calls can grow exponentially."""
MAX_CALLS = 20_000
MAX_CALL_DEPTH = 100


@dataclass
class Subroutine:
    """A function that is not expanded in place. Its ``body`` ends with the label ``end``, to which it returns."""

    name: str
    body: list[Instruction | Label]
    entry: Label
    end: Label
    slots: dict[str, tuple[Variable, int]]
    """Results and parameters, by their names in ``body``, with their offsets in its frame."""
    parameters: tuple[str, ...]
    results: tuple[str, ...]
    recurs: bool
    """It may be active more than once, so that its frame is on the stack."""
    locals: dict[str, tuple[Variable, int]] = field(default_factory=dict)
    """Local variables on the stack, with their offsets."""
    frame_bytes: int = 0


@dataclass
class FlatKernel:
    """A kernel without calls. ``frame`` maps local variables and call parameters to byte offsets in the frame."""

    name: str
    params: dict[str, tuple[Variable, int]]
    param_bytes: int
    registers: dict[str, str]
    body: list[Instruction | Label]
    branch_targets: dict[str, list[str]]
    directives: dict[str, tuple[int, ...]]
    frame: dict[str, int] = field(default_factory=dict)
    frame_bytes: int = 0
    shared: dict[str, Variable] = field(default_factory=dict)
    call_params: set[str] = field(default_factory=set)
    module_variables: set[str] = field(default_factory=set)
    slot_bytes: dict[str, int] = field(default_factory=dict)
    """Sizes of the call parameters."""
    subroutines: dict[str, Subroutine] = field(default_factory=dict)
    """Until they are linked, the body has calls of them: ``call (results), target, (arguments)``."""
    addresses: dict[int, str] = field(default_factory=dict)
    """Functions by the values of their pointers."""


def unsupported(instruction: Instruction, reason: str = "") -> UnsupportedInstruction:
    """Return the error for an instruction that cannot be built."""
    return UnsupportedInstruction(instruction.text, instruction.location.line, instruction.ptx_line, reason)


_SPACES = {"global": lay.GLOBAL, "shared": lay.SHARED, "local": lay.LOCAL, "const": lay.CONST, "param": lay.PARAM}


def state_space(i: Instruction) -> int:
    """The instruction's state space; none written means generic."""
    for m in i.modifiers:
        stem = m.split("::")[0]
        if stem in _SPACES:
            return _SPACES[stem]
    return lay.GENERIC


def completes_at_barrier(i: Instruction) -> bool:
    """True for ``st.async`` and ``red.async`` to shared memory; those to global memory are stores with an order."""
    return i.opcode in ("st", "red") and "async" in i.modifiers and "release" not in i.modifiers


def _align(value: int, alignment: int) -> int:
    return (value + alignment - 1) // alignment * alignment


def param_layout(params: list[Variable]) -> tuple[dict[str, tuple[Variable, int]], int]:
    """Return each parameter's byte offset in the parameter buffer, and the buffer's size."""
    offsets: dict[str, tuple[Variable, int]] = {}
    at = 0
    for variable in params:
        at = _align(at, variable.align)
        offsets[variable.name] = (variable, at)
        at += variable.size
    return offsets, at


def function_address(module: Module, name: str) -> int:
    """The value of a pointer to a function."""
    return lay.FUNCTION_BASE + 16 * list(module.functions).index(name)


def _symbols(operand: Operand) -> Iterator[str]:
    if isinstance(operand, Sym):
        yield operand.name
    elif isinstance(operand, Addr):
        yield from _symbols(operand.base)
    elif isinstance(operand, Vec):
        for item in operand.items:
            yield from _symbols(item)


class _CallGraph:
    """The calls of a module's functions, and the functions whose addresses are values."""

    def __init__(self, module: Module) -> None:
        self.module = module
        self.calls: dict[str, set[str]] = {}
        self.indirect: set[str] = set()
        """Functions with a call through a pointer."""
        taken: set[str] = set()
        for variable in module.variables.values():
            if variable.initialiser is not None and variable.type in ("u64", "b64", "s64"):
                taken |= set(re.findall(r"[A-Za-z_$][\w$]*", variable.initialiser))
        for name, function in module.functions.items():
            self.calls[name] = set()
            for item in function.body:
                if not isinstance(item, Instruction):
                    continue
                named = [s for op in item.operands for s in _symbols(op) if s in module.functions]
                if item.opcode != "call":
                    taken |= set(named)
                elif named:
                    self.calls[name] |= set(named)
                else:
                    self.indirect.add(name)
        functions = module.functions
        self.candidates = [n for n in functions if n in taken and functions[n].defined and not functions[n].is_entry]
        for name in self.indirect:
            self.calls[name] |= set(self.candidates)

    def reachable(self, start: str) -> set[str]:
        """Functions that ``start`` calls, directly or not; itself where it recurs."""
        reached: set[str] = set()
        work = list(self.calls.get(start, ()))
        while work:
            name = work.pop()
            if name not in reached:
                reached.add(name)
                work.extend(self.calls.get(name, ()))
        return reached


class _Inliner:
    def __init__(self, module: Module, entry: Function) -> None:
        self.module = module
        params, size = param_layout(entry.params)
        self.kernel = FlatKernel(entry.name, params, size, {}, [], {}, entry.directives)
        self.serial = 0
        graph = _CallGraph(module)
        self.reached = graph.reachable(entry.name)
        self.cyclic = {name for name in self.reached if name in graph.reachable(name)}
        through_pointer = graph.candidates if graph.indirect & {entry.name, *self.reached} else []
        self.apart = self.cyclic | set(through_pointer)

    def subroutines(self) -> None:
        """Expand the functions that are not expanded where they are called."""
        kernel, main = self.kernel, self.kernel.body
        for name in (n for n in self.module.functions if n in self.apart):
            function = self.module.functions[name]
            if not function.defined:
                raise UnsupportedInstruction(f".func {name}", reason="it has no definition")
            suffix = f"~{name}"
            layout, size = param_layout(function.returns + function.params)
            if name in self.cyclic:
                layout, size = {n: (v, at + 8) for n, (v, at) in layout.items()}, size + 8  # behind the return address
            slots = {n + suffix: slot for n, slot in layout.items()}
            routine = Subroutine(
                name, [], Label(f"@entry{suffix}"), Label(f"@return{suffix}"), slots,
                tuple(v.name + suffix for v in function.params), tuple(v.name + suffix for v in function.returns),
                name in self.cyclic, frame_bytes=size,
            )  # fmt: skip
            if not routine.recurs:
                for slot, (variable, _) in slots.items():
                    self.allocate(slot, variable)
                    kernel.call_params.add(slot)
            kernel.body = routine.body
            aliases = {n: n + suffix for n in layout}
            self.expand(function, aliases, suffix, (kernel.name, name), routine if routine.recurs else None)
            kernel.subroutines[name] = routine
            kernel.addresses[function_address(self.module, name)] = name
        kernel.body = main

    def allocate(self, name: str, variable: Variable) -> None:
        """Reserve a static slot of the thread's frame."""
        kernel = self.kernel
        kernel.frame_bytes = _align(kernel.frame_bytes, max(variable.align, 4))
        kernel.frame[name] = kernel.frame_bytes
        kernel.frame_bytes += variable.size
        kernel.slot_bytes[name] = variable.size

    def expand(
        self,
        function: Function,
        aliases: dict[str, str],
        suffix: str,
        stack: tuple[str, ...],
        recursive: Subroutine | None = None,
    ) -> None:
        kernel = self.kernel
        names = dict(aliases)
        for register, kind in function.registers.items():
            names[register] = register + suffix
            kernel.registers[register + suffix] = kind
        for variable in function.variables:
            if variable.space in ("local", "param"):
                name = variable.name + suffix
                names[variable.name] = name
                if recursive is not None and variable.space == "local":
                    at = _align(recursive.frame_bytes, max(variable.align, 4))
                    recursive.locals[name] = variable, at
                    recursive.frame_bytes = at + variable.size
                    continue
                self.allocate(name, variable)
                if variable.space == "param":
                    kernel.call_params.add(name)
            elif variable.space == "shared":
                kernel.shared[variable.name] = variable  # a function's static shared variable is one per CTA
            else:
                raise UnsupportedInstruction(f".{variable.space} {variable.name}", reason="declared inside a function")
        for item in function.body:
            if isinstance(item, Label):
                names[item.name] = item.name + suffix
        for label, targets in function.branch_targets.items():
            names[label] = label + suffix
            kernel.branch_targets[label + suffix] = [names.get(t, t + suffix) for t in targets]
        end = Label(f"@return{suffix}")
        allocates = bool(stack[1:]) and any(
            isinstance(item, Instruction) and item.opcode in dynamic_stack.OPCODES for item in function.body
        )
        if allocates:
            kernel.registers[dynamic_stack.saved(suffix)] = "u64"
            kernel.body.append(dynamic_stack.move(dynamic_stack.saved(suffix), dynamic_stack.POINTER))
        for item in function.body:
            if isinstance(item, Label):
                kernel.body.append(Label(names[item.name]))
                continue
            if item.opcode == "call":
                self.call(item, names, stack)
                continue
            if item.opcode in OBJECT_INSTRUCTIONS:
                raise unsupported(item, "no plan makes textures or surfaces")
            instruction = replace(item, operands=tuple(self.rename(op, names) for op in item.operands))
            if item.predicate is not None:
                instruction.predicate = Reg(names[item.predicate.name])
            if item.opcode == "ret" and stack[1:]:
                instruction = replace(instruction, opcode="bra", modifiers=(), operands=(Sym(end.name),))
            if item.opcode in dynamic_stack.OPCODES:
                self.serial += 1
                kernel.registers |= dynamic_stack.REGISTERS
                kernel.body += dynamic_stack.expand(instruction, self.serial)
            else:
                kernel.body.append(instruction)
            if len(kernel.body) > MAX_INSTRUCTIONS:
                raise unsupported(item, f"the kernel exceeds {MAX_INSTRUCTIONS} instructions after inlining")
        if stack[1:]:
            kernel.body.append(end)
        if allocates:
            kernel.body.append(dynamic_stack.move(dynamic_stack.POINTER, dynamic_stack.saved(suffix)))

    def rename(self, operand: Operand, names: dict[str, str]) -> Operand:
        if isinstance(operand, Reg):
            return Reg(names[operand.name])
        if isinstance(operand, NotReg):
            return NotReg(names[operand.name])
        if isinstance(operand, Sym):
            if operand.name in self.module.variables and operand.name not in names:
                self.kernel.module_variables.add(operand.name)
            if operand.name in self.module.functions and operand.name not in names:
                return Imm(function_address(self.module, operand.name) + operand.offset)
            return Sym(names.get(operand.name, operand.name), operand.offset)
        if isinstance(operand, Addr):
            base = self.rename(operand.base, names)
            assert isinstance(base, Reg | Sym | Imm)
            return Addr(base, operand.offset, tuple(self.rename(item, names) for item in operand.coordinates))
        if isinstance(operand, Vec):
            return Vec(tuple(self.rename(item, names) for item in operand.items))
        if isinstance(operand, Pair):
            return Pair(self.rename(operand.first, names), self.rename(operand.second, names))
        return operand

    def call(self, item: Instruction, names: dict[str, str], stack: tuple[str, ...]) -> None:
        operands = list(item.operands)
        returns: tuple[Operand, ...] = ()
        arguments: tuple[Operand, ...] = ()
        if operands and isinstance(operands[0], Vec):
            first = operands.pop(0)
            assert isinstance(first, Vec)
            returns = first.items
        target = operands.pop(0) if operands else None
        if operands and isinstance(operands[0], Vec):
            second = operands.pop(0)
            assert isinstance(second, Vec)
            arguments = second.items
        if not isinstance(target, Sym | Reg):
            raise unsupported(item, "the target of a call")
        self.serial += 1
        if self.serial > MAX_CALLS or len(stack) > MAX_CALL_DEPTH:
            raise unsupported(item, f"more than {MAX_CALLS} calls, or calls nested deeper than {MAX_CALL_DEPTH}")
        inner = f"~{self.serial}"
        skip: Label | None = None
        if item.predicate is not None:
            skip = Label(f"@skip{inner}")
            guard = replace(
                item, opcode="bra", modifiers=(), operands=(Sym(skip.name),),
                predicate=Reg(names[item.predicate.name]), negated=not item.negated,
            )  # fmt: skip
            self.kernel.body.append(guard)
        slots = [self.slot(item, op, names) for op in returns]
        values = [self.slot(item, op, names) for op in arguments]
        callee = self.module.functions.get(target.name)
        if isinstance(target, Reg) or target.name in self.apart:
            pointer = self.rename(target, names) if isinstance(target, Reg) else target
            lists = (Vec(tuple(Sym(s) for s in slots)), pointer, Vec(tuple(Sym(v) for v in values)))
            self.kernel.body.append(replace(item, operands=lists, predicate=None))
        elif target.name == "vprintf":
            # Device printf is accepted and its output is discarded; the call still shows in the instruction mix.
            if slots:
                store = replace(
                    item,
                    opcode="st",
                    modifiers=("param", "b32"),
                    operands=(Addr(Sym(slots[0])), Imm(0)),
                    predicate=None,
                )
                self.kernel.body.append(store)
        elif target.name == "__assertfail":
            self.kernel.body.append(replace(item, opcode="trap", modifiers=("assert",), operands=(), predicate=None))
        elif callee is None or not callee.defined:
            raise unsupported(item, f"{target.name!r} has no definition")
        else:
            aliases = {v.name: slot for v, slot in zip(callee.returns, slots, strict=True)}
            aliases |= {v.name: slot for v, slot in zip(callee.params, values, strict=True)}
            self.expand(callee, aliases, inner, (*stack, callee.name))
        if skip is not None:
            self.kernel.body.append(skip)

    def slot(self, item: Instruction, operand: Operand, names: dict[str, str]) -> str:
        if isinstance(operand, Sym) and names.get(operand.name) in self.kernel.frame:
            return names[operand.name]
        raise unsupported(item, "an argument is not a .param variable")


def flatten(module: Module, entry: str) -> FlatKernel:
    """Expand every call of kernel ``entry``.

    Raises:
        UnsupportedInstruction: A callee without a definition, or too many calls.
    """
    function = module.functions[entry]
    inliner = _Inliner(module, function)
    inliner.expand(function, {}, "", (entry,))
    inliner.subroutines()
    for variable in module.variables.values():
        if variable.space == "shared":
            inliner.kernel.shared.setdefault(variable.name, variable)
    if dynamic_stack.POINTER in inliner.kernel.registers:
        inliner.allocate(dynamic_stack.SLOT.name, dynamic_stack.SLOT)
        inliner.kernel.body.insert(0, dynamic_stack.begin())
    inliner.kernel.frame_bytes = _align(inliner.kernel.frame_bytes, 16)
    return inliner.kernel
