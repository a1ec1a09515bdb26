"""What a compilation leaves behind: the record, and the two forms of code from the same compilation."""

from __future__ import annotations

from dataclasses import dataclass

from kernelforge.records import Build


@dataclass(frozen=True)
class Artifact:
    """A good build with its code. ``ptx`` is text, ``cubin`` an ELF for ``build.arch``."""

    build: Build
    ptx: bytes
    cubin: bytes

    def symbol(self, expression: str) -> str:
        """Lowered name of a kernel the plan launches as ``expression``."""
        for kernel in self.build.kernels:
            if kernel.expression == expression:
                return kernel.symbol
        raise KeyError(expression)
