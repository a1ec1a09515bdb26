"""Inline assembly in the PTX of real kernels: what gate and emulator accept means the same to ptxas.

Each case puts a fragment of odd constructs between the markers of an inline assembly that NVRTC emitted, and volatile
stores of numbers that stand nowhere else among them. Where the gate's reader and the emulator's parser accept the text
and ptxas assembles it, a store is in the code of the cubin exactly if the parser sees it.
"""

from __future__ import annotations

import random
import re
import shutil
import struct
import subprocess
import sysconfig
from pathlib import Path
from typing import NamedTuple

from elftools.elf.elffile import ELFFile

from fuzz_parts.damage import of_text
from kernelforge.compile import Compiler
from kernelforge.compile.policy_gate import _is_refused, _read_ptx
from kernelforge.compile.ptx_text import without_comments
from kernelforge.devices.emulated.ptx.parser import Imm, Instruction, PtxSyntaxError, Special, parse

_SOURCES = (
    'extern "C" __global__ void k(unsigned* p, unsigned n) {\n'
    "  unsigned i = blockIdx.x * blockDim.x + threadIdx.x, x;\n"
    '  asm volatile("mov.u32 %0, 77;" : "=r"(x) : "l"(p));\n'
    "  if (i < n) p[i] = x;\n}\n",
    'extern "C" __global__ void k(float* p, unsigned n) {\n'
    "  __shared__ float s[64]; unsigned x;\n"
    "  s[threadIdx.x] = p[threadIdx.x] * 2.0f; __syncthreads();\n"
    "  for (unsigned j = 0; j < n; j += 2) {\n"
    '    asm volatile("{ .reg .u32 t; mov.u32 t, 5; add.u32 %0, t, 72; }" : "=r"(x) : "l"(p));\n'
    "    p[j] = s[(j + x) & 63];\n  }\n}\n",
    "__device__ __noinline__ unsigned f(unsigned a) {\n"
    '  unsigned x; asm volatile("add.u32 %0, %1, 9;" : "=r"(x) : "r"(a)); return x;\n}\n'
    'extern "C" __global__ void k(unsigned* p, unsigned n) { p[n] = f(n) + f(p[1]); }\n',
)
_BLOCK = re.compile(r"(// begin inline asm[^\n]*\n)(.*?)(// end inline asm)", re.S)
_STORE = "st.volatile.global.u32 [%canary_at], {};"
_PIECES = (
    ";", "{ }", "{ ; }", "/* a */", "/* \" */", "// x\n", "// \" /*\n", "/**/", "/*/ x /*/", "/* /* */", "\n", "\t",
    "\r\n", " ",
    '.pragma "nounroll";', '.pragma "/*";', '.pragma "*/";', '.pragma "//";', '.pragma "a\nb";',
    '.pragma "a", "b";', ".pragma \"'\";",
    ".loc 1 5 3", ".loc 1 5 3\n", ".loc 1 5\n3 ", ".loc\t1 7 1, function_name $L__info0, inlined_at 1 2 3\n",
    ".loc 1 7 0 /* a */ ",
    ".reg .u32 %q;", ".reg .pred %r<2>;", ".reg .b32 a, b , c;", ".local .b8 v[4];", ".shared .b32 w;",
    ".param .b32 y;",
    "$L_x:", "L_y:", "_z :", "x : ", "%w:", "L1: L2:", "bra L_v; L_v:", "@%canary_p bra L_u; L_u:",
    "bra.uni L_t;\nL_t: ;",
    "@ %canary_p mov.u32 %canary_r, 1;", "@ ! %canary_p mov.u32 %canary_r, 2;", "@!%canary_p mov.u32 %canary_r, 2;",
    "@%canary_p{",
    "mov.u32 %canary_r, 7;", "mov.u32 %canary_r,\n  0x10 ;", "mov.u32\t%canary_r /* , 1; */ , 3;",
    "mov.u32 %canary_r, 0x10U;",
    "mov.u32 %canary_r, -1;", "mov.u32 %canary_r, WARP_SZ;", "mov.u32 %canary_r, %tid.x;",
    "mov.u32 %canary_r, 1 + 2;",
    "mov.u32 %canary_r, (3);", "mov.u32 %canary_r, 1 ? 2 : 3;", "mov.u32 %canary_r, (.s64)5;",
    "mov.u32 %canary_r, !0;",
    "add . u32 %canary_r, %canary_r, 1;", "add.u32 %canary_r, %canary_r, 1;", "bar.sync 0;", "membar.gl;",
    "prefetch.global.L1 [%canary_at];", "prefetch.global.L1 [ %canary_at + 16 ];",
    "setp.eq.u32 %canary_p, %canary_r, 3;",
    "selp.u32 %canary_r, 1, 2, %canary_p;", "{ .reg .u32 %canary_r; mov.u32 %canary_r, 1; }",
    "{ .reg .pred %canary_p; setp.ne.u32 %canary_p, %canary_r, 9; }", "@%canary_p exit;", "@%canary_p ret;",
    "@%canary_p trap;",
    "mov.u32 %canary_r, %smid;", "mov.u32 %canary_r,%clock;", "mov.u32 %canary_r, /* */ %nsmid ;", "{ { } }",
    "// begin inline asm\n", "// end inline asm\n", "/* begin inline asm */",
)  # fmt: skip
"""What ptxas takes, most of it."""
_BROKEN = (
    "/*", "*/", "//", '"', "\\", "\\\n", "\r", "\x0b", "\x0c", "\x00", "{", "}", "(", ")", "[", "]", ",", ":", "::",
    "@", "@!", "!",
    "%", "$", "#", "##", "?", "'", "`", "<", ">", "=", "|", "\x1a", "\x1c", "\x7f", "\x85", "\xa0", "\u2028",
    "\u00e9", "\ufeff", "exit;",
    "ret;", "trap;", "brkpt;", "bra $L_x;", '.pragma "//', '.pragma "\\";', "#line 5\n", '# 5 "x.cu"\n',
    "\n#pragma\n",
    '.file 1 "a"\n', '.file 1 "a" ', ".section .x { }", "A: .branchtargets A, B;", "A: .callprototype _ ();",
    ".entry e() { }",
    ".func g() { }", ".visible", ".weak .b32 v;", ".alias a, b;", ".maxntid 32", "call g;", "0x", "0b1", "1.0",
    "0f3F800000", ".u32",
    "mov.u32", "%canary_r", "1;", "0;", "DEAD:", "bra.uni DEAD;", ".version 9.0", ".target sm_90",
    ".address_size 64", ".attribute(.x)",
    ".loc 1 5 3x", ".loc 1 5", "mov.u32 %canary_r,,1;", "mov.u32 %canary_r, {};", ".reg .u32",
    ".reg .u32 %n<99999999>;",
)  # fmt: skip
_ENDS = frozenset({"exit", "ret", "trap", "bra", "brx", "brkpt", "call"})
_MAGIC = 0x5EED0000


class _Base(NamedTuple):
    before: str
    inside: str
    after: str


class Disagreement(Exception):
    """The parser and ptxas read different code."""


class Cases:
    """See above."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._ptxas, self._version = _assembler()
        with Compiler(None) as compiler:
            self._bases = [base for source in _SOURCES for base in _bases(compiler.build(source, ["k"]).ptx.decode())]

    def close(self) -> None:
        pass

    def case(self, rng: random.Random) -> bool:
        base = rng.choice(self._bases)
        canaries = [_MAGIC + 0x0101 * number + 0x33 for number in range(1, rng.choice((2, 3, 4)))]
        parts = [rng.choice(_PIECES if rng.random() < 0.9 else _BROKEN) for _ in range(rng.choice((1, 2, 3, 4, 6)))]
        parts += [
            ("@%canary_p " if rng.random() < 0.3 else "") + _STORE.format(_number(canary, rng)) for canary in canaries
        ]
        rng.shuffle(parts)
        fragment = rng.choice((" ", "\n", "")).join(parts)
        if rng.random() < 0.3:
            fragment = of_text(fragment, rng, _PIECES + _BROKEN)
        text = base.before + base.inside + fragment + "\n" + base.after
        read = _read(text)
        if read is None:
            return False
        code = self._assembled(text)
        if code is None:
            return False
        words = {word for data in code.values() for (word,) in struct.iter_unpack("<I", data[: len(data) & ~3])}
        hidden = [hex(canary) for canary in canaries if canary in words and canary not in read.stored]
        unreal = [hex(canary) for canary in canaries if canary in read.surely and canary not in words]
        if hidden or unreal:
            raise Disagreement(f"hidden from the parser: {hidden}; of the parser alone: {unreal}; in {fragment!r}")
        if not {"k"} <= code.keys() <= read.functions:  # ptxas may have put a function in its callers' places
            raise Disagreement(f"ptxas has {sorted(code)}, the parser {sorted(read.functions)}; in {fragment!r}")
        return True

    def _assembled(self, text: str) -> dict[str, bytes] | None:
        """The code of the cubin that ptxas makes, by function; None where it refuses."""
        source, cubin = self._folder / "case.ptx", self._folder / "case.cubin"
        source.write_bytes(text.replace(".version 9.0", f".version {self._version}").encode("utf-8", "surrogatepass"))
        cubin.unlink(missing_ok=True)
        arch = re.search(r"\.target (\w+)", text)
        assert arch is not None
        done = subprocess.run(
            [self._ptxas, f"-arch={arch[1]}", "-O1", str(source), "-o", str(cubin)], capture_output=True, timeout=60
        )
        if done.returncode != 0:
            return None
        with cubin.open("rb") as file:
            parts = [part for part in ELFFile(file).iter_sections() if part.name.startswith(".text.")]
            return {part.name.removeprefix(".text."): part.data() for part in parts}


class _Read(NamedTuple):
    """Stores that gate and parser see in a text that both accept."""

    functions: set[str]
    stored: set[int]
    """Numbers that are stored."""
    surely: set[int]
    """Those whose store nothing can skip."""


def _read(text: str) -> _Read | None:
    """None: it is refused."""
    try:
        text.encode("ascii")
        module = _read_ptx(text)
        without_comments(text)
        parsed = parse(text)
    except (UnicodeEncodeError, PtxSyntaxError, ValueError):
        return None
    if module.smuggled or module.registers or set(module.entries) != {"k"}:
        return None
    bodies = (function.body for function in parsed.functions.values())
    code = [item for body in bodies for item in body if isinstance(item, Instruction)]
    specials = {operand.name for item in code for operand in item.operands if isinstance(operand, Special)}
    if overlooked := sorted(filter(_is_refused, specials)):
        raise Disagreement(f"the gate overlooks {overlooked} in {text[-300:]!r}")
    straight = sum(item.opcode in _ENDS for item in code) <= _ends_outside(text)
    stores = [(item, operand) for item in code if item.opcode == "st" for operand in item.operands]
    numbers = [(item, operand.value & 0xFFFFFFFF) for item, operand in stores if isinstance(operand, Imm)]
    return _Read(
        {name for name, function in parsed.functions.items() if function.defined},
        {number for _, number in numbers},
        {number for item, number in numbers if straight and item.predicate is None},
    )


def _ends_outside(text: str) -> int:
    """Jumps and ends outside the inline assembly."""
    outside = _BLOCK.sub("", text)
    return sum(len(re.findall(rf"(?<![\w.%]){word}[.;\s]", outside)) for word in _ENDS)


def _number(value: int, rng: random.Random) -> str:
    return rng.choice((str(value), hex(value), f"0X{value:X}", f"{value}U", oct(value).replace("o", ""), bin(value)))


def _bases(ptx: str) -> list[_Base]:
    """The text cut at each inline assembly, with registers for the fragments declared where it begins."""
    bases = []
    for match in _BLOCK.finditer(ptx):
        address = "{ .reg .u64 %canary_at; .reg .pred %canary_p; .reg .u32 %canary_r;\nmov.u64 %canary_at, 4096; "
        address += "ld.volatile.global.u32 %canary_r, [%canary_at]; setp.ne.u32 %canary_p, %canary_r, 0;\n"
        bases.append(_Base(ptx[: match.end(1)], address, "}\n" + ptx[match.start(2) :]))
    if not bases:
        raise RuntimeError("NVRTC emitted no inline assembly")
    return bases


def _assembler() -> tuple[str, str]:
    """ptxas of the wheel or of the toolkit, and the newest PTX version up to 9.0 that it reads."""
    wheel = Path(sysconfig.get_path("purelib")) / "nvidia" / "cuda_nvcc" / "bin" / "ptxas"
    for path in (shutil.which("ptxas"), str(wheel) if wheel.exists() else None):
        if path is None:
            continue
        output = subprocess.run([path, "--version"], capture_output=True, text=True, check=True).stdout
        release = re.search(r"release (\d+)\.(\d+)", output)
        if release is not None:
            return path, "9.0" if int(release[1]) >= 13 else f"8.{int(release[2]) - 1}"
    raise RuntimeError("part ptx needs ptxas: pip install nvidia-cuda-nvcc-cu12")
