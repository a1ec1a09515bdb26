"""PTX instructions to LLVM IR, one module per family. ``HANDLERS`` maps an opcode to its emitter."""

from __future__ import annotations

from collections.abc import Callable

from kernelforge.devices.emulated.codegen.emit import (
    convert,
    copies,
    floating,
    half,
    integer,
    matrix,
    mbarrier,
    memory,
    simd,
    tcgen05,
    video,
    warp,
    wgmma,
)
from kernelforge.devices.emulated.codegen.emit.emitter import Emitter
from kernelforge.devices.emulated.ptx.inline import unsupported
from kernelforge.devices.emulated.ptx.parser import Instruction

Handler = Callable[[Emitter, Instruction], None]


def _by_type(opcode: str) -> Handler:
    """Choose the family that handles the instruction's type."""

    def handle(e: Emitter, i: Instruction) -> None:
        family = integer if opcode in integer.HANDLERS and not floating.is_float(i) else floating
        handlers = half.HANDLERS if half.is_half(i) else family.HANDLERS
        if i.type == "f32x2":
            handlers = floating.PAIRS
        elif simd.is_packed(i):
            handlers = simd.PACKED
        if opcode not in handlers:
            raise unsupported(i)
        handlers[opcode](e, i)

    return handle


HANDLERS: dict[str, Handler] = {
    **integer.HANDLERS,
    **simd.HANDLERS,
    **video.HANDLERS,
    **floating.HANDLERS,
    **convert.HANDLERS,
    **memory.HANDLERS,
    **warp.HANDLERS,
    **matrix.HANDLERS,
    **mbarrier.HANDLERS,
    **wgmma.HANDLERS,
    **tcgen05.HANDLERS,
    **copies.HANDLERS,
}
for _opcode in half.HANDLERS.keys() | integer.HANDLERS.keys() & floating.HANDLERS.keys():
    HANDLERS[_opcode] = _by_type(_opcode)
