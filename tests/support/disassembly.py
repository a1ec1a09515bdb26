"""Output of NVIDIA's ``nvdisasm`` for a cubin: the reference that decoded machine code is compared with."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from kernelforge.hardware.wheels import nvidia_folders

WHEEL = "nvidia-cuda-nvdisasm"
_SECTION = re.compile(r"\s*\.section\s+\.text\.([\w$.]+)")
_LINE = re.compile(r'\s*//## File "\.nv_debug_ptx_txt", line (\d+)')
_LABEL = re.compile(r"([\w$.]+):")
_INSTRUCTION = re.compile(
    r"\s*/\*(?P<address>[0-9a-f]{4,8})\*/\s+(?:@(?P<predicate>!?U?P[T\d]+)\s+)?(?P<opcode>[A-Z][\w.]*)"
    r"(?P<operands>[^;]*);"
)
_TARGET = re.compile(r"`\(([\w$.]+)\)")
_TABLE = re.compile(r"BRANCH_TARGETS ([^\"]*)\"")


@dataclass(frozen=True)
class Printed:
    """An instruction and its text, by the disassembler."""

    function: str
    address: int
    predicate: str
    name: str
    modifiers: tuple[str, ...]
    operands: str
    ptx_line: int
    labels: tuple[str, ...]
    """Labels of code that it names."""


@dataclass(frozen=True)
class Disassembly:
    """A whole cubin."""

    instructions: tuple[Printed, ...]
    labels: dict[tuple[str, str], int]
    """Addresses by function and label."""

    def targets(self, instruction: Printed) -> tuple[int, ...]:
        """Addresses of the labels that an instruction names, those in its own function."""
        named = ((instruction.function, label) for label in instruction.labels)
        return tuple(self.labels[key] for key in named if key in self.labels)


def disassembled(cubin: bytes, folder: Path) -> Disassembly:
    """Everything that ``nvdisasm`` prints of a cubin; skips the test where it is not installed."""
    program = next((path for part in nvidia_folders("cu13/bin") if (path := part / "nvdisasm").is_file()), None)
    if program is None:
        pytest.skip(f"{WHEEL} is not installed")
    file = folder / "kernel.cubin"
    file.write_bytes(cubin)
    done = subprocess.run([program, "-c", "-gp", file], capture_output=True, check=True, text=True)
    return _parsed(iter(done.stdout.splitlines()))


def _parsed(rows: Iterator[str]) -> Disassembly:
    instructions: list[Printed] = []
    labels: dict[tuple[str, str], int] = {}
    function, line, address = "", 0, 0
    for row in rows:
        if match := _INSTRUCTION.match(row):
            name, *modifiers = match["opcode"].split(".")
            named = _TARGET.findall(match["operands"])
            for table in _TABLE.findall(row):
                named += [label.strip() for label in table.split(",")]
            address = int(match["address"], 16)
            instructions.append(
                Printed(
                    function, address, match["predicate"] or "", name, tuple(modifiers), match["operands"].strip(),
                    line, tuple(named),
                )
            )  # fmt: skip
            address += 16
        elif match := _LINE.match(row):
            line = int(match[1])
        elif match := _SECTION.match(row):
            function, line, address = match[1], 0, 0
        elif match := _LABEL.match(row):
            labels.setdefault((function, match[1]), address)
    return Disassembly(tuple(instructions), labels)
