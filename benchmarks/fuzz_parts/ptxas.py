"""Programs of constants in the syntax of inline assembly: the emulator's result is the number that ptxas folds.

A program nests scopes, declares registers again in inner ones, predicates and skips instructions, writes numbers in
every form, and puts comments, strings and directives between them. Its result depends on nothing else, so that ptxas
computes it: the number is in the code of the cubin. What one of the two refuses, the other has to refuse as well.
"""

from __future__ import annotations

import random
import struct
import subprocess
from pathlib import Path

from elftools.elf.elffile import ELFFile

from fuzz_parts.ptx import Disagreement, _assembler, _number
from kernelforge.compile.ptx_text import without_comments
from kernelforge.devices.emulated.errors import UnsupportedInstruction
from kernelforge.devices.emulated.execute.loaded_module import LoadedModule
from kernelforge.devices.emulated.execute.memory import Memory
from kernelforge.devices.emulated.ptx.parser import PtxSyntaxError

_BETWEEN = (
    "", "", "", "\n", " ", "\t", "/* a */", "// x ;\n", "/* { */", "// }\n", '.pragma "nounroll";', '.pragma "// a";',
    '.pragma "/*";', ".loc 1 5 3\n", "{ }", ".reg .b64 unused<3>;", ".reg .f64 spare;", ".local .b8 idle[16];",
    ".shared .align 8 .b32 quiet[2];", "LABEL: ", "{ LABEL: }", ".pragma \"a\", \"b\";", "bra LABEL; LABEL:",
    "bra.uni LABEL;\nLABEL:", "{ bra LABEL; LABEL: }", "/**/", "\r\n", ".param .b32 nothing;",
)  # fmt: skip
_BINARY = ("add.u32", "sub.s32", "xor.b32", "and.b32", "or.b32", "mul.lo.u32", "min.s32", "max.u32", "min.u32")
_TESTS = ("eq", "ne", "lt", "le", "gt", "ge", "lo", "hi", "ls", "hs")
_MAGIC = 0x5EED1234


class Cases:
    """See above."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._ptxas, self._version = _assembler()
        self._memory = Memory(1 << 16)
        self._out = self._memory.allocate(4, "out")

    def close(self) -> None:
        pass

    def case(self, rng: random.Random) -> bool:
        text = f"""
.version {self._version}
.target sm_90a
.address_size 64
.file 1 "kernel.cu"
.visible .entry k(.param .u64 out)
{{
.reg .u64 %at;
.reg .b32 r<4>;
.reg .pred p<3>;
ld.param.u64 %at, [out];
{_Program(rng).text()}
xor.b32 r0, r0, {_MAGIC:#x};
st.global.u32 [%at], r0;
ret;
}}
"""
        result, reason = self._run(text)
        theirs, message = self._assembled(text)
        if theirs is None:  # a build ends there, and the emulator never sees it
            raise Disagreement(f"ptxas refuses what this part writes: {message}; in {text}")
        if result is None:
            raise Disagreement(f"ptxas takes what the emulator refuses: {reason}; in {text}")
        if result not in theirs:
            raise Disagreement(f"the emulator's result {result:#x} is not in the code that ptxas makes; in {text}")
        return True

    def _run(self, text: str) -> tuple[int | None, str]:
        """The result, or None and the reason."""
        try:
            without_comments(text)
            module = LoadedModule(text, self._memory)
            module.launch("k", (1, 1, 1), (1, 1, 1), 0, self._out.to_bytes(8, "little"))
        except (PtxSyntaxError, UnsupportedInstruction, ValueError) as error:
            return None, str(error)
        return int.from_bytes(self._memory.read(self._out, 4), "little"), ""

    def _assembled(self, text: str) -> tuple[set[int] | None, str]:
        """The words of the code at all places, or None and ptxas's message."""
        source, cubin = self._folder / "case.ptx", self._folder / "case.cubin"
        source.write_text(text, newline="")
        done = subprocess.run(
            [self._ptxas, "-arch=sm_90a", "-O3", str(source), "-o", str(cubin)],
            capture_output=True,
            timeout=60,
            text=True,
        )
        if done.returncode:
            return None, (done.stderr.strip() or done.stdout.strip())[:300]
        with cubin.open("rb") as file:
            code = b"".join(p.data() for p in ELFFile(file).iter_sections() if p.name.startswith(".text."))
        return {word for (word,) in struct.iter_unpack("<I", code[: len(code) & ~3])}, ""


class _Program:
    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.serial = 0

    def text(self) -> str:
        start = " ".join(f"mov.u32 r{k}, {_number(self.rng.getrandbits(32), self.rng)};" for k in range(4))
        flags = " ".join(f"setp.ne.u32 p{k}, {k % 2}, 0;" for k in range(3))
        return f"{start}\n{flags}\n{self.statements(self.rng.randrange(2, 9), 0)}"

    def between(self) -> str:
        self.serial += 1
        piece = self.rng.choice(_BETWEEN).replace("LABEL", f"L{self.serial}")
        return piece.replace("unused", f"unused{self.serial}_").replace("spare", f"spare{self.serial}").replace(
            "idle", f"idle{self.serial}").replace("quiet", f"quiet{self.serial}").replace(
            "nothing", f"nothing{self.serial}")  # fmt: skip

    def statements(self, count: int, depth: int) -> str:
        parts = []
        for _ in range(count):
            parts += [self.statement(depth), self.between()]
        return self.rng.choice(("\n", " ")).join(parts)

    def register(self) -> str:
        return f"r{self.rng.randrange(4)}"

    def operand(self) -> str:
        rng = self.rng
        if rng.random() < 0.5:
            return self.register()
        value = rng.choice((rng.getrandbits(32), rng.getrandbits(5), 0, 1, 0xFFFFFFFF))
        small = rng.getrandbits(4)
        written = (_number(value, rng), f"-{rng.getrandbits(31)}", "WARP_SZ", f"0x{value:x}U", f"({value} + {small})",
                   f"~{small}", f"{small} << 3", f"{value} & 255", f"{small} > 7 ? {value} : 5", f"-({small} * 3)",
                   f"!{small}", f"(.u64){value} >> {small}", f"{value} % 17 == {small}", "- 7")  # fmt: skip
        return rng.choice(written)

    def guard(self) -> str:
        rng = self.rng
        return rng.choice(("", "", "@p{} ", "@!p{} ", "@ p{}\n ", "@! p{} ")).format(rng.randrange(3))

    def statement(self, depth: int) -> str:
        rng = self.rng
        self.serial += 1
        n, to = self.serial, self.register()
        choice = rng.randrange(12)
        if choice <= 2 or depth > 3:
            return f"{self.guard()}{rng.choice(_BINARY)} {to}, {self.register()}, {self.operand()};"
        if choice == 3:
            return f"{self.guard()}mov.b32 {to} ,\n {self.operand()} ;"
        if choice == 4:
            kind = rng.choice(("u32", "s32"))
            test = rng.choice(_TESTS if kind == "u32" else _TESTS[:6])
            flags = rng.choice((f"p{rng.randrange(3)}", "p0|p1", "p1 | p2"))
            return f"setp.{test}.{kind} {flags}, {self.register()}, {self.operand()};"
        if choice == 5:
            return f"selp.b32 {to}, {self.operand()}, {self.register()}, p{rng.randrange(3)};"
        if choice == 6:  # registers of the same name, inside
            inner = rng.choice(("u32", "b32", "s32"))
            name = rng.choice(("r0", "r1", "r2", "r3", "r<4>"))
            names = [name] if name != "r<4>" else [f"r{k}" for k in range(4)]
            starts = " ".join(f"mov.u32 {r}, {_number(rng.getrandbits(32), rng)};" for r in names)
            body = self.statements(rng.randrange(1, 4), depth + 1)
            outer = f"outer{n}"
            return f"{{ .reg .b32 {outer}; {{ .reg .{inner} {name}; {starts} {body} mov.b32 {outer}, r1; }} " \
                   f"xor.b32 {to}, {to}, {outer}; }}"  # fmt: skip
        if choice == 7:
            return f"{self.guard()}bra J{n};\n{self.statement(depth + 1)}\nJ{n}:"
        if choice == 8:
            low, high = self.register(), self.register()
            return f"{{ .reg .b64 wide{n}; mov.b64 wide{n}, {{{low}, {high}}}; mov.b64 {{_, {to}}}, wide{n}; }}"
        if choice == 9:
            return f"{{ .reg .f32 x{n}; mov.f32 x{n}, 0{rng.choice('fF')}{rng.getrandbits(30):08{rng.choice('xX')}}; " \
                   f"mov.b32 {to}, x{n}; }}"  # fmt: skip
        if choice == 10:
            return (
                f"{{ .reg .b16 a{n}, b{n}; mov.b32 {{a{n},b{n}}}, {self.register()}; mov.b32 {to}, {{b{n} , a{n}}}; }}"
            )
        return f"shf.l.wrap.b32 {to}, {self.register()}, {self.register()}, {rng.getrandbits(5)};"
