"""Codes of the proficiency study's transcript, read, each with its call; none of them runs."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path

from pydantic import ValidationError

from fuzz_parts.damage import of_text
from kernelforge.candidate import parse_plan
from kernelforge.candidate.reply import code_blocks
from kernelforge.records import Candidate
from kernelforge.study.entries import c_entry, code_of, cuda_entry, host_program_entry
from kernelforge.study.fortran import fortran_entry, fortran_forms, read_procedure
from kernelforge.study.host_programs import hip_as_cuda, read_host_program
from kernelforge.study.kernels import KERNELS, StudyKernel
from kernelforge.study.kokkos_functions import kokkos_function, kokkos_source
from kernelforge.study.programming_models import MODELS, plain_code, programming_model
from kernelforge.study.python_functions import kernel_text, python_entry, python_function
from kernelforge.study.signatures import Underivable, device_code, entry_function, entry_kernel
from kernelforge.study.triton_kernels import triton_entry, triton_kernel

_TRANSCRIPT = Path(__file__).resolve().parents[2] / "results" / "reference" / "codex-study.jsonl"
_PIECES = (
    "<<<", ">>>", "(", ")", "{", "}", '"', "'", "extern", "template<", "__global__ ", ",", ";", "!", "&\n", "::", "*",
    "lambda: ", "\n", "#define X <<<", "\x00", "\ud800", "[" * 300, "(" * 300, "subroutine x(", "end\n",
)  # fmt: skip


class Cases:
    """See above."""

    def __init__(self, folder: Path) -> None:
        rows = [json.loads(line) for line in _TRANSCRIPT.read_text().splitlines()[1:]]
        blocks = [(row["task"].partition("-")[0], code_of(code_blocks(row["reply"]), row["reply"])) for row in rows]
        self._codes = sorted({(kernel, block.text) for kernel, block in blocks if block is not None})

    def close(self) -> None:
        pass

    def case(self, rng: random.Random) -> bool:
        name, code = rng.choice(self._codes)
        code = of_text(code, rng, _PIECES)
        used = programming_model(code)
        plain_code(code, used)
        try:
            return len(list(_candidates(KERNELS[name], code, used))) > 0
        except (Underivable, ValidationError) as error:
            str(error).encode("utf-8", "replace")
            return False


def _candidates(kernel: StudyKernel, code: str, used: str | None) -> Iterator[Candidate]:
    """Candidates of a suggestion, one for each form."""
    match MODELS[used].runner if used else None:
        case "cuda":
            yield from _cuda(kernel, hip_as_cuda(code))
        case "kernel text":
            yield from _cuda(kernel, kernel_text(code))
        case "triton":
            read = triton_kernel(code, kernel.names, kernel.name)
            for form in kernel.forms(read.function):
                candidate = triton_entry(read, form)
                parse_plan(candidate.plan, "triton")
                yield candidate
        case "python":
            call, forms = python_function(code, kernel)
            yield from (python_entry(code, call, form) for form in forms)
        case "fortran":
            procedure = read_procedure(code, kernel.names)
            yield from (
                fortran_entry(procedure, form) for form in fortran_forms(procedure, kernel.forms(procedure.function))
            )
        case "c":
            function = entry_function(code, kernel.names)
            yield from (c_entry(code, function, form, cpp=True) for form in kernel.forms(function))
        case "kokkos":
            source = kokkos_source(code)
            function = kokkos_function(source, kernel.names)
            yield from (c_entry(source, function, form, cpp=True, offload="kokkos") for form in kernel.forms(function))


def _cuda(kernel: StudyKernel, code: str) -> Iterator[Candidate]:
    text, unit = device_code(code)
    program = read_host_program(code, unit, kernel.names)
    if program is not None:
        yield from (host_program_entry(program, form) for form in kernel.forms(program.function))
        return
    function = entry_kernel(unit, kernel.names)
    yield from (cuda_entry(text, function, form) for form in kernel.forms(function))
