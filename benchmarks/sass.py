"""Estimated executions of machine code against those that an H100 counted, on the ladders' kernels.

    PYTHONPATH=. python benchmarks/hardware_ladder.py prepare FOLDER
    PYTHONPATH=. python benchmarks/hardware_ladder.py emulate FOLDER
    python benchmarks/sass.py FOLDER [results/reference/h100/ladder_sass.jsonl] [--worst N]

``prepare`` compiles the kernels, ``emulate`` counts their PTX on sampled blocks, as a candidate's; neither needs a GPU.
This script decodes the cubins, estimates how often warps executed each instruction, and compares totals, opcodes
and single instructions with Nsight Compute's. It exits with 1 when less than 85 % of the totals are within 5 %.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernelforge.compile.machine_code import read_machine_code
from kernelforge.profiling.sass_executions import block_executions

REFERENCE = Path(__file__).parents[1] / "results" / "reference" / "h100" / "ladder_sass.jsonl"
TARGET, NEAR = 0.85, 0.05
WARP = 32
CLASSES = {
    "FFMA FADD FMUL": ("FFMA", "FADD", "FMUL"),
    "FP64": ("DFMA", "DADD", "DMUL", "DSETP"),
    "tensor": ("HMMA", "IMMA", "DMMA", "HGMMA"),
    "MUFU": ("MUFU",),
    "LDG": ("LDG", "LDGSTS"),
    "STG": ("STG",),
    "LDS": ("LDS", "LDSM"),
    "STS": ("STS",),
    "atomics": ("ATOM", "ATOMG", "ATOMS", "RED", "REDG"),
    "SHFL": ("SHFL",),
    "BAR": ("BAR",),
    "branches": ("BRA", "EXIT", "BSSY", "BSYNC", "CALL", "RET"),
    "IMAD": ("IMAD",),
    "other integers": ("IADD3", "VIADD", "LEA", "LOP3", "SHF", "ISETP", "IABS", "IMNMX", "VIMNMX", "SEL"),
    "uniform": ("ULDC", "UIADD3", "UMOV", "USHF", "ULEA", "UIMAD", "ULOP3", "UISETP", "S2UR", "R2UR"),
    "moves": ("MOV", "LDC", "CS2R", "S2R"),
}


@dataclass(frozen=True)
class Compared:
    """One kernel: warp executions of all its instructions."""

    name: str
    hardware: float
    estimated: float
    ptx: float
    opcodes: Mapping[str, tuple[float, float]]
    """By opcode: of the hardware, estimated."""
    misplaced: float
    """Sum of the errors of single instructions over the hardware's total."""
    seconds: float
    """Time of the estimate."""

    @property
    def error(self) -> float:
        return abs(self.estimated / self.hardware - 1)


def compare(folder: Path, reference: Path = REFERENCE) -> list[Compared]:
    """All kernels of a reference that the folder has, in its order."""
    cases = {case["name"]: case for case in json.loads((folder / "cases.json").read_text(encoding="utf-8"))}
    emulated = json.loads((folder / "emulated.json").read_text(encoding="utf-8"))
    records = [json.loads(line) for line in reference.read_text(encoding="utf-8").splitlines()]
    return [
        _compared(folder, cases[record["name"]], emulated[record["name"]], record)
        for record in records
        if "counts" in emulated.get(record["name"], {})
    ]


def _compared(folder: Path, case: dict[str, Any], emulated: dict[str, Any], record: dict[str, Any]) -> Compared:
    function = read_machine_code((folder / case["cubin"]).read_bytes()).function(case["kernel"])
    if function is None:
        raise SystemExit(f"{case['name']}: no machine code")
    ptx = (folder / f"{case['family']}.ptx").read_text(encoding="utf-8").split("\n")
    (group,) = emulated["counts"]["kernels"]
    counts = {int(line): warps for line, warps in group["ptx_lines"].items()}
    x, y, z = case["block"]
    begun = time.perf_counter()
    executions = block_executions(function, ptx, counts, group["blocks"] * -(-x * y * z // WARP))
    seconds = time.perf_counter() - begun
    estimated = [count for block, count in zip(function.blocks, executions, strict=True)
                 for _ in range(block.first, block.end)]  # fmt: skip
    real = [0.0] * len(estimated)
    for first, number, count in record["executed"]:
        real[first : first + number] = [float(count)] * number
    opcodes: dict[str, tuple[float, float]] = {}
    for instruction, hardware, own in zip(function.instructions, real, estimated, strict=True):
        had = opcodes.get(instruction.name, (0.0, 0.0))
        opcodes[instruction.name] = (had[0] + hardware, had[1] + own)
    misplaced = sum(abs(a - b) for a, b in zip(real, estimated, strict=True)) / sum(real)
    return Compared(case["name"], sum(real), sum(estimated), group["warp_instructions"], opcodes, misplaced, seconds)


def share(values: Iterable[bool]) -> str:
    """Percentage of those that are true."""
    listed = list(values)
    return f"{sum(listed) / len(listed):.1%}"


def quantile(values: list[float], at: float) -> float:
    """The value below which a share of them lies."""
    return sorted(values)[min(int(at * len(values)), len(values) - 1)]


def show(compared: list[Compared], worst: int) -> bool:
    """Print the errors; whether the target is met."""
    errors = [kernel.error for kernel in compared]
    of_ptx = [abs(kernel.ptx / kernel.hardware - 1) for kernel in compared]
    print(f"{len(compared)} kernels: warp instructions against Nsight Compute's")
    print(f"{'':<28}{'within 1 %':>12}{'5 %':>8}{'20 %':>8}{'median':>9}{'p90':>8}")
    for title, listed in (("PTX counts", of_ptx), ("estimated SASS", errors)):
        near = "".join(f"{share(error <= limit for error in listed):>{width}}"
                       for limit, width in ((0.01, 12), (NEAR, 8), (0.2, 8)))  # fmt: skip
        print(f"{title:<28}{near}{statistics.median(listed):>9.2%}{quantile(listed, 0.9):>8.1%}")
    misplaced = [kernel.misplaced for kernel in compared]
    print(
        f"{'single instructions':<28}{share(m <= 0.01 for m in misplaced):>12}{share(m <= NEAR for m in misplaced):>8}"
        f"{share(m <= 0.2 for m in misplaced):>8}{statistics.median(misplaced):>9.2%}{quantile(misplaced, 0.9):>8.1%}"
    )
    print(f"\n{'opcodes':<18}{'kernels':>8}{'within 1 %':>12}{'5 %':>8}{'median':>9}{'p90':>8}")
    for title, names in CLASSES.items():
        off = []
        for kernel in compared:
            real, own = (sum(kernel.opcodes.get(name, (0.0, 0.0))[side] for name in names) for side in (0, 1))
            if real:
                off.append(abs(own / real - 1))
        if off:
            print(
                f"{title:<18}{len(off):>8}{share(e <= 0.01 for e in off):>12}{share(e <= NEAR for e in off):>8}"
                f"{statistics.median(off):>9.2%}{quantile(off, 0.9):>8.1%}"
            )
    seconds = [kernel.seconds for kernel in compared]
    print(f"\nan estimate takes {1e3 * statistics.median(seconds):.0f} ms, at most {1e3 * max(seconds):.0f} ms")
    for kernel in sorted(compared, key=lambda kernel: -kernel.error)[:worst]:
        ratio, of_ptx_one = kernel.estimated / kernel.hardware, kernel.ptx / kernel.hardware
        print(f"  {kernel.name:<28} estimated {ratio:.3f}, PTX {of_ptx_one:.3f} of hardware")
    reached = sum(error <= NEAR for error in errors) / len(errors)
    print(f"\nwithin {NEAR:.0%}: {reached:.1%}, wanted {TARGET:.0%}")
    return reached >= TARGET


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("reference", type=Path, nargs="?", default=REFERENCE)
    parser.add_argument("--worst", type=int, default=8, help="kernels to list that are the furthest off")
    options = parser.parse_args()
    sys.exit(0 if show(compare(options.folder, options.reference), options.worst) else 1)


if __name__ == "__main__":
    main()
