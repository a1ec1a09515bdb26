"""The corpus of seeded bugs: kernels that a sanitizer must report, each with a clean twin that it must not.

A case in ``tests/devices/emulated/seeded_bugs/*.cu`` begins with comments: its name, its launch (or the steps of a
plan, and what a buggy one has in their place), its tensors, and a pattern of what is found. ``BUG`` is defined for the
buggy variant.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

from kernelforge.emulation import Emulation, Emulator

FOLDER = Path(__file__).resolve().parents[1] / "devices" / "emulated" / "seeded_bugs"


@dataclass(frozen=True)
class SeededBug:
    """One case."""

    name: str
    kind: str
    """The file's name: ``racecheck``."""
    source: str
    header: dict[str, str] = field(hash=False)

    def source_of(self, buggy: bool) -> str:
        """The source of one variant; an include has to stay ahead of everything else."""
        return ("#define BUG\n" if buggy else "") + self.source

    def run(self, emulator: Emulator, buggy: bool) -> Emulation:
        steps = self.header.get("launch") or self.header["plan"]
        if buggy:
            steps = self.header.get("buggy", steps)
        tensors = dict(part.split("=", 1) for part in self.header["tensors"].split())
        return emulator.run(
            self.source_of(buggy),
            steps.replace("; ", "\n"),
            tensors,
            profile=False,
            limit_s=float(self.header.get("seconds", 60)),
        )


def seeded_bugs() -> list[SeededBug]:
    """Every case, in the order of files and lines."""
    cases = []
    for path in sorted(FOLDER.glob("*.cu")):
        for text in re.split(r"^(?=// case: )", path.read_text(), flags=re.M)[1:]:
            header = dict(re.findall(r"^// (\w+): (.*)$", text, re.M))
            cases.append(SeededBug(header["case"], path.stem, text, header))
    return cases
