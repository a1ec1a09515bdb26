"""Work of a kernel's machine code: executions by opcode, pipe and line, schedule, widths of accesses, atomics.

:func:`machine_work` combines the code of one kernel with the counts of its PTX
(:mod:`kernelforge.profiling.sass_executions`). Every number is an estimate over all launches in the counts, by warps.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Literal, get_args

from kernelforge.profiling.counts import KernelCounts, PlanCounts
from kernelforge.profiling.sass_code import NoEstimateError, SassFunction, SassInstruction
from kernelforge.profiling.sass_decoding import NO_MACHINE_CODE, MachineCode
from kernelforge.profiling.sass_schedule import Schedule
from kernelforge.records import Metric, Origin, SassLine, SassOpcode, SassProfile

SHOWN_LINES = 8
"""Lines of the source in a profile."""

Pipe = Literal["alu", "fma", "fp64", "xu", "lsu", "tensor", "uniform", "branch", "other"]
"""Unit that executes an instruction, as Nsight Compute names them; ``branch`` is control flow, ``uniform`` the path for
values that a warp's lanes share, ``other`` what reads constants and special registers, barriers and idle slots."""
_PIPES: Mapping[Pipe, tuple[str, ...]] = {
    "fma": (
        "FADD", "FADD2", "FFMA", "FFMA2", "FHADD", "FHFMA", "FMUL", "FMUL2", "HADD2", "HFMA2", "HMUL2", "IMAD",
        "VIADD"
    ),
    "alu": (
        "BMSK", "CS2R", "F2FP", "FMNMX", "FMNMX3", "FSEL", "FSET", "FSETP", "HMNMX2", "HSETP2", "I2FP", "I2I",
        "I2IP", "IABS", "IADD", "IADD3", "IDP", "IMNMX", "ISETP", "LEA", "LOP3", "MOV", "P2R", "PLOP3", "PRMT",
        "R2P", "R2UR", "SEL", "SGXT", "SHF", "VABSDIFF", "VABSDIFF4", "VIADDMNMX", "VIMNMX", "VIMNMX3"
    ),
    "xu": (
        "BREV", "F2F", "F2I", "FCHK", "FLO", "FRND", "I2F", "MUFU", "POPC"
    ),
    "fp64": (
        "DADD", "DFMA", "DMUL", "DSETP"
    ),
    "tensor": (
        "BGMMA", "BMMA", "DMMA", "HGMMA", "HMMA", "IGMMA", "IMMA", "OMMA", "QGMMA", "QMMA", "UTCHMMA",
        "UTCIMMA", "UTCOMMA", "UTCQMMA"
    ),
    "lsu": (
        "ATOM", "ATOMG", "ATOMS", "LD", "LDG", "LDGSTS", "LDL", "LDGDEPBAR", "LDS", "LDSM", "LDGMC", "RED",
        "REDAS", "REDG", "REDUX", "SHFL", "ST", "STAS", "STG", "STL", "STS", "STSM"
    ),
    "branch": (
        "BRA", "BREAK", "BRX", "BSSY", "BSYNC", "CALL", "ELECT", "ENDCOLLECTIVE", "EXIT", "JMP", "NANOSLEEP",
        "RET", "WARPSYNC", "YIELD"
    ),
    "other": (
        "ARRIVES", "BAR", "CCTL", "DEPBAR", "ERRBAR", "LDC", "MATCH", "MEMBAR", "NOP", "S2R", "S2UR", "SYNCS",
        "VOTE"
    ),
}  # fmt: skip
"""With it, and the exceptions of :func:`pipe_of`, what an H100 executed of 116 kernels by opcode adds up to what it
counted by pipe, exactly (``results/reference/h100/ladder_sass.jsonl`` and ``ladder.jsonl``: ``alu``, ``fma``, ``fp64``,
``lsu``, ``tensor`` and ``xu``)."""
_INTEGERS_OF_FMA = frozenset({"IMAD", "IMUL", "VIADD"})
_BY_NAME: Mapping[str, Pipe] = {name: pipe for pipe, names in _PIPES.items() for name in names}

_WIDTHS = {"U8": 1, "S8": 1, "U16": 2, "S16": 2, "64": 8, "128": 16, "256": 32}
_SHARED = frozenset({"LDS", "STS", "LDSM", "STSM"})


@dataclass(frozen=True)
class LineWork:
    """Machine instructions that come from one line of the source."""

    instructions: float
    opcode: str
    """The one that is executed the most, without modifiers."""


@dataclass(frozen=True)
class SharedAccess:
    """One machine instruction on shared memory; ptxas may have made it of several in the PTX."""

    ptx_line: int
    opcode: str
    bytes_per_thread: int
    executions: float

    @property
    def is_matrix(self) -> bool:
        """Whether it moves matrices between lanes."""
        return self.opcode.startswith(("LDSM", "STSM"))


@dataclass(frozen=True)
class MachineWork:
    """Estimated work of one kernel's machine code, over all launches."""

    instructions: float
    opcodes: Mapping[str, float]
    """Executions by opcode without modifiers, the most frequent first."""
    pipes: Mapping[Pipe, float]
    lines: Mapping[int, LineWork]
    """By line of the source; 0 is code of headers, or of no line."""
    integers_of_fma: float
    """Instructions of the ``fma`` pipe that work on integers."""
    exchanges: float
    """Instructions that use the data path of shared memory without accessing it: shuffles, reads of thread indices."""
    schedule: Schedule
    shared: tuple[SharedAccess, ...]


@dataclass(frozen=True)
class PlanWork:
    """Estimated work of the machine code of a plan's kernels."""

    kernels: Mapping[int, MachineWork] = field(default_factory=dict)
    """By the ``id`` of their counts, those that have an estimate."""
    notes: tuple[str, ...] = ()
    """Why some have none, for readers of a profile."""

    def kernel(self, counts: KernelCounts) -> MachineWork | None:
        """The work of one kernel."""
        return self.kernels.get(id(counts))

    def of(self, counts: Iterable[KernelCounts]) -> tuple[MachineWork, ...]:
        """The work of some kernels; empty unless all of them have an estimate."""
        listed = [self.kernel(kernel) for kernel in counts]
        return tuple(work for work in listed if work is not None) if None not in listed else ()


NO_WORK = PlanWork()
"""Of kernels without machine code."""


def plan_work(code: MachineCode, symbols: Mapping[str, str], ptx: str, counts: PlanCounts) -> PlanWork:
    """The work of the machine code of all kernels of a plan.

    Args:
        code: Machine code of the build.
        symbols: Symbols of the kernels in it, by expression.
        ptx: The PTX of the build, which was counted.
        counts: Counts of a run of the plan.
    """
    if not code.texts:
        return PlanWork(notes=(code.problem,))
    kernels: dict[int, MachineWork] = {}
    without: dict[str, str] = {}
    for kernel in counts.kernels:
        function = code.function(symbols[kernel.expression])
        try:
            if function is None:
                raise NoEstimateError("it cannot be decoded")
            kernels[id(kernel)] = machine_work(function, ptx, kernel)
        except NoEstimateError as error:
            without[kernel.expression] = str(error)
    notes = tuple(
        f"{NO_MACHINE_CODE} of {name} is estimated, its time comes from the PTX: {reason}"
        for name, reason in without.items()
    )
    return PlanWork(kernels, notes)


def sass_metrics(work: Sequence[MachineWork]) -> list[Metric]:
    """Warp instructions of some kernels, all and by pipe; empty for no kernels."""
    if not work:
        return []

    def estimated(name: str, value: float) -> Metric:
        return Metric(name=name, value=float(round(value)), unit="inst", origin=Origin.ESTIMATED)

    metrics = [estimated("sass__warp_inst_executed.sum", sum(kernel.instructions for kernel in work))]
    for pipe in get_args(Pipe):
        if count := sum(kernel.pipes.get(pipe, 0.0) for kernel in work):
            metrics.append(estimated(f"sass__inst_{pipe}.sum", count))
    return metrics


def sass_profile(work: Sequence[MachineWork]) -> SassProfile | None:
    """Opcodes and lines of some kernels added up; None for no kernels."""
    if not work:
        return None
    opcodes: dict[str, float] = {}
    lines: dict[int, dict[str, float]] = {}
    for kernel in work:
        for name, count in kernel.opcodes.items():
            opcodes[name] = opcodes.get(name, 0.0) + count
        for number, line in kernel.lines.items():
            total = lines.setdefault(number, {})
            total[line.opcode] = total.get(line.opcode, 0.0) + line.instructions
    by_line = {number: _line_work(total) for number, total in lines.items() if number}
    first = sorted(by_line, key=lambda number: (-by_line[number].instructions, number))[:SHOWN_LINES]
    return SassProfile(
        warp_instructions=round(sum(opcodes.values())),
        opcodes=tuple(
            SassOpcode(opcode=name, warp_instructions=round(count))
            for name, count in sorted(opcodes.items(), key=lambda item: (-item[1], item[0]))
            if round(count)
        ),
        lines=tuple(
            SassLine(
                source_line=number,
                warp_instructions=round(by_line[number].instructions),
                opcode=by_line[number].opcode,
            )
            for number in first
        ),
    )


def machine_work(function: SassFunction, ptx: str, counts: KernelCounts) -> MachineWork:
    """The work of a kernel's machine code.

    Args:
        function: Its code.
        ptx: The PTX that it was compiled from, as the emulated device ran it.
        counts: Counts of its launches.

    Raises:
        NoEstimateError: There is no estimate of its executions.
    """
    # Imported here: it solves with NumPy, which processes that only name devices need not load.
    from kernelforge.profiling.sass_executions import block_executions

    lines = ptx.split("\n")
    warps = counts.blocks * -(-counts.threads_per_block // 32)
    executions = block_executions(function, lines, counts.ptx_lines, warps)
    opcodes: dict[str, float] = {}
    pipes: dict[Pipe, float] = {}
    by_line: dict[int, dict[str, float]] = {}
    sources = source_lines(lines)
    shared: list[SharedAccess] = []
    integers = exchanges = 0.0
    for block, count in zip(function.blocks, executions, strict=True):
        if count <= 1e-9 * warps:
            continue
        for instruction in function.instructions_of(block):
            name = instruction.name
            opcodes[name] = opcodes.get(name, 0.0) + count
            pipe = pipe_of(instruction)
            pipes[pipe] = pipes.get(pipe, 0.0) + count
            line = by_line.setdefault(sources.get(instruction.ptx_line, 0), {})
            line[name] = line.get(name, 0.0) + count
            integers += count if pipe == "fma" and name in _INTEGERS_OF_FMA else 0.0
            exchanges += count if name in ("SHFL", "S2R") and pipe == "lsu" else 0.0
            if name in _SHARED:
                shared.append(SharedAccess(instruction.ptx_line, instruction.opcode, width_of(instruction), count))
    return MachineWork(
        instructions=sum(opcodes.values()),
        opcodes=dict(sorted(opcodes.items(), key=lambda item: (-item[1], item[0]))),
        pipes=pipes,
        lines={line: _line_work(by_line[line]) for line in sorted(by_line)},
        integers_of_fma=integers,
        exchanges=exchanges,
        schedule=Schedule.of(function, executions, warps),
        shared=tuple(shared),
    )


def pipe_of(instruction: SassInstruction) -> Pipe:
    """The pipe that executes an instruction."""
    name = instruction.name
    if instruction.opcode == "HFMA2.MMA":
        return "tensor"
    if instruction.opcode == "S2R.TID":
        return "lsu"
    if name in _BY_NAME:
        return _BY_NAME[name]
    return "uniform" if name.startswith("U") or name == "VOTEU" else "other"


def width_of(instruction: SassInstruction) -> int:
    """Bytes of each thread that an instruction moves."""
    if instruction.name in ("LDSM", "STSM"):
        return 4 * int(instruction.modifier)
    return _WIDTHS.get(instruction.modifier, 4)


_LOC = re.compile(r"\s*\.loc\s+(\d+)\s+(\d+)")
_FILE = re.compile(r'\s*\.file\s+(\d+)\s+"([^"]*)"')


def source_lines(ptx: Sequence[str]) -> dict[int, int]:
    """Lines of the PTX, and the line of the candidate's source that each comes from; those of headers have none."""
    headers = {
        match[1] for text in ptx if (match := _FILE.match(text)) and PurePath(match[2]).suffix not in ("", ".cu")
    }
    sources: dict[int, int] = {}
    current = 0
    for number, text in enumerate(ptx, 1):
        if match := _LOC.match(text):
            current = 0 if match[1] in headers else int(match[2])
        elif text.lstrip().startswith((".entry", ".visible", ".func", ".weak")):
            current = 0
        elif current:
            sources[number] = current
    return sources


def _line_work(opcodes: Mapping[str, float]) -> LineWork:
    return LineWork(sum(opcodes.values()), max(opcodes, key=lambda name: (opcodes[name], name)))
