"""Readers of what a compilation gives: its comments, its log, its cubin. Whole candidates are cases of the corpus."""

from __future__ import annotations

import random

import pytest

from kernelforge.compile import Artifact
from kernelforge.compile.cubin import read_cubin
from kernelforge.compile.diagnostics import parse_log, parse_ptxas
from kernelforge.evaluation import EvaluatorPool
from tests.support.axpy import KERNEL


@pytest.mark.slow
def test_a_comment_ends_at_a_newline_and_nowhere_else(workshop: EvaluatorPool) -> None:
    plain = workshop.compiler.build("// a comment\n" + KERNEL, ["axpy"])
    for mark in "\u2028\u2029\x0b\x0c\x85":
        built = workshop.compiler.build(f"// a comment {mark}__device__ int hidden;\n{KERNEL}", ["axpy"])
        assert isinstance(built, Artifact)
        assert isinstance(plain, Artifact)
        assert b"hidden" not in built.ptx


def test_no_log_takes_its_reader_down() -> None:
    """A candidate can write lines into the log by naming a file with newlines in it."""
    digits = "9" * 5000
    lines = [
        f"candidate.cu({digits}): error: x",
        'candidate.cu(1): error: static assertion failed with "kernelforge argument"',
        f'  class "kernelforge_plan::argument<a> [with Launch={digits}, Position=-1, Taken=x]"',
        f'  class "kernelforge_plan::count<a> [with Launch=x, Passed={digits}, Taken=y]"',
        "launches of the plan(0): error: x is undefined",
    ]
    parsed = parse_log("\n".join([*lines, "candidate.cu(3): error: what it really is"]))
    assert [diagnostic.message for diagnostic in parsed] == ["what it really is"]
    ptxas = (
        "ptxas info : Compiling entry function 'k' for 'sm_90a'\nptxas info : Function properties for k\n"
        f"{digits} bytes stack frame, 1 bytes spill stores, 1 bytes spill loads\n"
        f"ptxas info : Used 3 registers, {digits} bytes smem"
    )
    assert parse_ptxas(ptxas)["k"].static_shared_bytes == 0


@pytest.mark.slow
def test_a_damaged_cubin_is_read_or_refused(workshop: EvaluatorPool) -> None:
    built = workshop.compiler.build(KERNEL, ["axpy"])
    assert isinstance(built, Artifact)
    chance = random.Random(7)
    for _ in range(300):
        damaged = bytearray(built.cubin)
        for _ in range(chance.randint(1, 12)):
            damaged[chance.randrange(min(len(damaged), 4096))] = chance.randrange(256)
        try:
            read_cubin(bytes(damaged))
        except ValueError:
            continue
