"""PTX instructions to LLVM IR, one module per family. ``HANDLERS`` maps an opcode to its emitter."""

from __future__ import annotations

from collections.abc import Callable

from kernelforge.devices.emulated.codegen.emit import convert, floating, half, integer, memory, warp
from kernelforge.devices.emulated.codegen.emit.emitter import Emitter
from kernelforge.devices.emulated.ptx.parser import Instruction

Handler = Callable[[Emitter, Instruction], None]

_INTEGER_OR_FLOAT = ("add", "sub", "mul", "mad", "div", "neg", "abs", "min", "max")


def _by_type(opcode: str) -> Handler:
    def handle(e: Emitter, i: Instruction) -> None:
        if half.is_half(i):
            half.HANDLERS[opcode](e, i)
        elif floating.is_float(i):
            floating.HANDLERS[opcode](e, i)
        else:
            integer.HANDLERS[opcode](e, i)

    return handle


def _half_or_float(opcode: str) -> Handler:
    def handle(e: Emitter, i: Instruction) -> None:
        (half if half.is_half(i) else floating).HANDLERS[opcode](e, i)

    return handle


HANDLERS: dict[str, Handler] = {
    **integer.HANDLERS,
    **floating.HANDLERS,
    **convert.HANDLERS,
    **memory.HANDLERS,
    **warp.HANDLERS,
}
for _opcode in _INTEGER_OR_FLOAT:
    HANDLERS[_opcode] = _by_type(_opcode)
for _opcode in ("fma", "ex2", "tanh", "setp", "set"):
    HANDLERS[_opcode] = _half_or_float(_opcode)
