"""Flatten one kernel: expand every ``call`` in place, so later stages see a single function.

A call's ``.param`` variables become slots of the thread's local frame; callee parameters alias the caller's slots.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from kernelforge.devices.emulated import layout as lay
from kernelforge.devices.emulated.errors import UnsupportedInstruction
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


class _Inliner:
    def __init__(self, module: Module, entry: Function) -> None:
        self.module = module
        params, size = param_layout(entry.params)
        self.kernel = FlatKernel(entry.name, params, size, {}, [], {}, entry.directives)
        self.serial = 0

    def expand(self, function: Function, aliases: dict[str, str], suffix: str, stack: tuple[str, ...]) -> None:
        kernel = self.kernel
        names = dict(aliases)
        for register, kind in function.registers.items():
            names[register] = register + suffix
            kernel.registers[register + suffix] = kind
        for variable in function.variables:
            if variable.space in ("local", "param"):
                name = variable.name + suffix
                kernel.frame_bytes = _align(kernel.frame_bytes, max(variable.align, 4))
                kernel.frame[name] = kernel.frame_bytes
                kernel.frame_bytes += variable.size
                names[variable.name] = name
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
        for item in function.body:
            if isinstance(item, Label):
                kernel.body.append(Label(names[item.name]))
                continue
            if item.opcode == "call":
                self.call(item, names, suffix, stack)
                continue
            instruction = replace(item, operands=tuple(self.rename(op, names) for op in item.operands))
            if item.predicate is not None:
                instruction.predicate = Reg(names[item.predicate.name])
            if item.opcode == "ret" and stack[1:]:
                instruction = replace(instruction, opcode="bra", modifiers=(), operands=(Sym(end.name),))
            kernel.body.append(instruction)
            if len(kernel.body) > MAX_INSTRUCTIONS:
                raise unsupported(item, f"the kernel exceeds {MAX_INSTRUCTIONS} instructions after inlining")
        if stack[1:]:
            kernel.body.append(end)

    def rename(self, operand: Operand, names: dict[str, str]) -> Operand:
        if isinstance(operand, Reg):
            return Reg(names[operand.name])
        if isinstance(operand, NotReg):
            return NotReg(names[operand.name])
        if isinstance(operand, Sym):
            if operand.name in self.module.variables and operand.name not in names:
                self.kernel.module_variables.add(operand.name)
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

    def call(self, item: Instruction, names: dict[str, str], suffix: str, stack: tuple[str, ...]) -> None:
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
        if not isinstance(target, Sym):
            raise unsupported(item, "indirect call")
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
        if target.name == "vprintf":
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
        elif callee.name in stack:
            raise unsupported(item, "recursion")
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
        UnsupportedInstruction: Recursion, an indirect call, or a callee without a definition.
    """
    function = module.functions[entry]
    inliner = _Inliner(module, function)
    inliner.expand(function, {}, "", (entry,))
    for variable in module.variables.values():
        if variable.space == "shared":
            inliner.kernel.shared.setdefault(variable.name, variable)
    inliner.kernel.frame_bytes = _align(inliner.kernel.frame_bytes, 16)
    return inliner.kernel
