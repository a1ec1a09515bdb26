"""Machine code of real cubins: instructions with their PTX lines and control codes, and basic blocks."""

from __future__ import annotations

import itertools
import re
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kernelforge.compile import Artifact, Compiler
from kernelforge.compile.machine_code import read_machine_code
from kernelforge.profiling.sass import _PIPES, width_of
from kernelforge.profiling.sass_code import Control, SassFunction, reachable
from kernelforge.profiling.sass_decoding import NO_MACHINE_CODE, Text, decode
from tests.support.disassembly import disassembled

SAXPY = """
__global__ void saxpy(float* y, const float* x, float a, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = a * x[i] + y[i];
}
"""
COLUMNS = """
__global__ void columns(const float* x, float* y, int rows, int width) {
    int column = blockIdx.x * blockDim.x + threadIdx.x;
    float sum = 0.0f;
    for (int row = 0; row < rows; ++row) sum += x[row * width + column];
    y[column] = 1.0f / sum;
}
"""
APART = """
__global__ void apart(const int* steps, float* y) {
    float value = y[threadIdx.x];
    for (int k = 0; k < steps[threadIdx.x]; ++k) value = __sinf(value);
    y[threadIdx.x] = value;
}
"""
PRODUCTS = Path(__file__).parents[2] / "benchmarks" / "fidelity" / "products.cu"
MANY = Path(__file__).with_name("many_instructions.cu").read_text(encoding="utf-8")
STATEMENTS = Path(__file__).with_name("statements.txt").read_text(encoding="utf-8")
REGISTERS = {
    "a": ("b32", "%0", 4), "q": ("b64", "%1", 8), "f": ("f32", "%0", 4), "g": ("f64", "%1", 8), "h": ("b16", "%0", 2),
}  # fmt: skip
"""Type, address and bytes of the registers of a statement, by the first letter of their names."""
MANY_KERNELS = tuple(re.findall(r"__global__ void (\w+)", MANY))
WIDTHS = ("U8", "S8", "U16", "S16", "64", "128")


@pytest.fixture(scope="module")
def read(compiler: Compiler) -> Callable[[str, str], tuple[SassFunction, list[str]]]:
    """Machine code of a kernel, and the lines of its PTX."""

    def code(source: str, kernel: str, arch: str = "sm_90a") -> tuple[SassFunction, list[str]]:
        built = compiler.build(source, [kernel], arch=arch)
        assert isinstance(built, Artifact)
        machine = read_machine_code(built.cubin)
        assert not machine.problem
        (symbol,) = (fact.symbol for fact in built.build.kernels)
        function = machine.function(symbol)
        assert function is not None
        return function, built.ptx.decode().split("\n")

    return code


@pytest.mark.parametrize("arch", ["sm_75", "sm_80", "sm_90a", "sm_120a"])
def test_machine_instructions_name_the_ptx_they_come_from(read, arch: str) -> None:
    function, ptx = read(SAXPY, "saxpy", arch)
    for opcode, text in (("LDG", "ld.global"), ("STG", "st.global"), ("FFMA", "fma.rn.f32")):
        lines = [i.ptx_line for i in function.instructions if i.name == opcode]
        assert lines
        assert all(text in ptx[line - 1] for line in lines)
    assert [i.address for i in function.instructions] == [16 * k for k in range(len(function.instructions))]


def test_the_control_code_is_in_the_upper_half() -> None:
    branch = Control.of(0x000FEA0003800000)
    assert branch == Control(stall=5, yields=False, write_scoreboard=None, read_scoreboard=None, waits=(), reuse=0)
    load = Control.of(0x000E220000000800)
    assert (load.stall, load.write_scoreboard, load.read_scoreboard) == (1, 0, None)
    assert Control.of(0x001FE20003F06270).waits == (0,)


def test_a_load_sets_a_scoreboard_on_which_its_reader_waits(read) -> None:
    function, _ = read(SAXPY, "saxpy")
    loads = [i.control.write_scoreboard for i in function.instructions if i.name == "LDG"]
    (reader,) = (i for i in function.instructions if i.name == "FFMA")
    assert None not in loads
    assert set(loads) <= set(reader.control.waits)


def test_blocks_cover_the_function_and_loops_return(read) -> None:
    function, _ = read(COLUMNS, "columns")
    assert function.blocks[0].first == 0
    assert [block.end for block in function.blocks[:-1]] == [block.first for block in function.blocks[1:]]
    assert function.blocks[-1].end == len(function.instructions)
    assert any(edge.target <= index for index, block in enumerate(function.blocks) for edge in block.edges)


def test_a_division_calls_its_slow_path(read) -> None:
    function, _ = read(COLUMNS, "columns")
    (caller,) = (block for block in function.blocks if block.call is not None)
    assert function.instructions[caller.end - 1].name == "CALL"
    called = [function.blocks[caller.call]]
    for block in called:
        called += [function.blocks[k] for k in block.successors if function.blocks[k] not in called]
    assert any(function.instructions[block.end - 1].name == "RET" for block in called)


def test_lanes_may_part_between_a_bssy_and_where_they_join(read) -> None:
    function, _ = read(APART, "apart")
    opened = [index for index, block in enumerate(function.blocks) if any(e.kind == "joined" for e in block.edges)]
    assert opened
    looping = [b for k, b in enumerate(function.blocks) for e in b.edges if e.target <= k and b.may_part]
    assert looping
    function, _ = read(COLUMNS, "columns")
    loops = [b for k, b in enumerate(function.blocks) for e in b.edges if e.kind == "taken" and e.target <= k]
    assert not any(block.may_part for block in loops)  # all lanes make as many rounds


@pytest.mark.slow
def test_a_call_that_never_returns_leaves_its_loop(read) -> None:
    """Before compute capability 9 ptxas writes such calls; as a subroutine, nothing would come after the loop."""
    source = PRODUCTS.read_text(encoding="utf-8")
    function, _ = read(source, "product_square_of_thread<128, 128, 8, 8>", "sm_86")
    (calls,) = (block for block in function.blocks if function.instructions[block.end - 1].name == "CALL")
    assert calls.call is None
    assert {edge.kind for edge in calls.edges} == {"taken", "next"}
    ends = reachable(function, [next(edge.target for edge in calls.edges if edge.kind == "taken")])
    assert any(function.instructions[function.blocks[k].end - 1].name == "EXIT" for k in ends)


ARCHITECTURES = ("sm_75", "sm_80", "sm_86", "sm_89", "sm_90a", "sm_100a", "sm_120a")


@pytest.mark.slow
@pytest.mark.one_in(2)
@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_instructions_are_those_that_nvdisasm_prints(compiler: Compiler, arch: str, tmp_path: Path) -> None:
    built = compiler.build(MANY, MANY_KERNELS, arch=arch)
    assert isinstance(built, Artifact)
    printed = disassembled(built.cubin, tmp_path)
    code = read_machine_code(built.cubin)
    assert len(printed.instructions) > 1500
    for row in printed.instructions:
        function = code.function(row.function)
        assert function is not None
        own = function.instructions[row.address // 16]
        assert (own.name, own.address, own.ptx_line) == (row.name.removeprefix("CGA"), row.address, row.ptx_line), row
        assert own.predicated == (row.predicate not in ("", "PT", "UPT")), row
        if own.name in ("LDG", "STG", "LDS", "STS", "LDL", "STL"):
            assert own.modifier == next((m for m in row.modifiers if m in WIDTHS), ""), row
        if own.name == "BRA":
            assert own.modifier == next((m for m in row.modifiers if m in ("U", "DIV", "CONV")), ""), row
            apart = own.modifier in ("DIV", "CONV") or re.match(r"!?U?P[0-6]\b", row.operands) is not None
            assert own.conditional == (own.predicated or apart), row
        if own.name in ("BRA", "BRX", "BSSY", "CALL"):
            assert own.targets == printed.targets(row), row
        if own.name in ("IADD3", "IMAD", "LEA", "SHF", "ISETP"):
            assert (own.modifier == "HI") == bool({"X", "HI", "EX"} & set(row.modifiers)), row


def kernel_of(name: str, statement: str) -> str:
    """A kernel that loads the registers of a statement, executes it, and stores them."""
    used = sorted(set(re.findall(r"(?<![.:\w])([aqfgh])(\d+)\b", statement)))
    lines = ["{ .reg .pred p; setp.lt.u32 p, %2, 7;"]
    lines += [f".reg .{kind} {letter}<32>;" for letter, (kind, _, _) in REGISTERS.items()]
    for operation in ("ld", "st"):
        for letter, number in used:
            kind, base, size = REGISTERS[letter]
            register, address = f"{letter}{number}", f"[{base}+{size * int(number)}]"
            operands = f"{register}, {address}" if operation == "ld" else f"{address}, {register}"
            lines.append(f"{operation}.global.{kind} {operands};")
        lines += [statement] if operation == "ld" else ["}"]
    text = "\n".join(f'"{line}"' for line in lines)
    return (
        f"__global__ void {name}(float* x, double* y) {{\n"
        f'asm volatile({text} :: "l"(x), "l"(y), "r"(threadIdx.x) : "memory");\n}}\n'
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arch", "among"),
    [
        ("75", {"I2I", "I2IP", "VABSDIFF4"}),
        ("80", {"BMMA", "QSPC", "PMTRIG"}),
        ("90a", {"BGMMA", "IGMMA", "QGMMA", "UCGABAR_ARV", "UCGABAR_WAIT"}),
        ("100a", {"FADD2", "FFMA2", "FMUL2", "UTCHMMA", "UTCIMMA", "UTCQMMA", "UTCOMMA", "LDTM", "STTM"}),
        ("103a", {"FADD2", "FFMA2", "FMUL2", "UTCHMMA", "UTCQMMA", "UTCOMMA"}),
        ("120a", {"QMMA", "OMMA", "FHADD", "FHFMA", "UIMNMX"}),
    ],
)
def test_rare_opcodes_are_those_that_nvdisasm_prints(
    compiler: Compiler, arch: str, among: set[str], tmp_path: Path
) -> None:
    rows = [line.split(" | ") for line in STATEMENTS.splitlines() if " | " in line and not line.startswith("#")]
    statements = [statement for names, statement in rows if arch in names.split()]
    kernels = [f"statement{number}" for number in range(len(statements))]
    source = "".join(map(kernel_of, kernels, statements))
    built = compiler.build(source, kernels, arch=f"sm_{arch}")
    assert isinstance(built, Artifact), built
    code = read_machine_code(built.cubin)
    names = set()
    for row in disassembled(built.cubin, tmp_path).instructions:
        function = code.function(row.function)
        assert function is not None
        own = function.instructions[row.address // 16]
        assert own.name == row.name.removeprefix("CGA"), row
        names.add(own.name)
        if row.name in ("LDG", "STG") and "256" in row.modifiers:
            assert width_of(own) == 32
    assert among <= names


@pytest.mark.slow
def test_every_name_that_has_a_pipe_can_be_decoded() -> None:
    names = set()
    for number, high, fours, form, capability in itertools.product(
        range(1 << 9), (0, 1 << 17, 1 << 27, 1 << 8, 3 << 8), (0, 1 << 63), (0, 6 << 9), (75, 90, 120)
    ):
        text = Text(struct.pack("<QQ", number | form | fours, high), (), {})
        names.add(decode("f", text, capability).instructions[0].name)
    assert {name for members in _PIPES.values() for name in members} <= names


def test_what_is_no_cubin_is_a_problem_and_no_error(compiler: Compiler) -> None:
    assert read_machine_code(b"").problem.startswith(NO_MACHINE_CODE)
    assert "cannot be read" in read_machine_code(b"\x7fELF and nothing else").problem
    built = compiler.build(SAXPY, ["saxpy"])
    assert isinstance(built, Artifact)
    assert read_machine_code(built.cubin).function("another") is None


@pytest.mark.slow
@given(data=st.data())
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_damaged_cubin_is_read_or_refused(saxpy: bytes, data: st.DataObject) -> None:
    damaged = bytearray(saxpy)
    for _ in range(data.draw(st.integers(1, 8))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    end = data.draw(st.integers(len(damaged) // 2, len(damaged)))
    code = read_machine_code(bytes(damaged[:end]))
    for symbol in code.texts:
        code.function(symbol)
    assert code.texts or code.problem


@pytest.fixture(scope="module")
def saxpy(compiler: Compiler) -> bytes:
    built = compiler.build(SAXPY, ["saxpy"])
    assert isinstance(built, Artifact)
    return built.cubin


def _sections(cubin: bytes) -> list[tuple[int, str]]:
    """Offset in the file of the header of each section, and its name."""
    headers, size, count, names = *struct.unpack_from("<Q", cubin, 40), *struct.unpack_from("<HHH", cubin, 58)
    text = struct.unpack_from("<Q", cubin, headers + size * names + 24)[0]
    sections = []
    for at in range(headers, headers + size * count, size):
        start = text + struct.unpack_from("<I", cubin, at)[0]
        sections.append((at, cubin[start : cubin.index(b"\0", start)].decode()))
    return sections


@pytest.mark.parametrize(
    ("offset", "value", "why"),
    [
        (4, struct.pack("<I", 8), "the cubin has none"),  # it takes no bytes of the file
        (8, struct.pack("<Q", 0x800), "the cubin has none"),  # it is compressed
        (32, struct.pack("<Q", 1 << 62), "more bytes than it has"),
    ],
)
def test_a_section_takes_no_more_memory_than_the_file(compiler: Compiler, offset: int, value: bytes, why: str) -> None:
    built = compiler.build(SAXPY, ["saxpy"], arch="sm_90a")
    assert isinstance(built, Artifact)
    (at,) = (header for header, name in _sections(built.cubin) if name.startswith(".text."))
    machine = read_machine_code(built.cubin[: at + offset] + value + built.cubin[at + offset + len(value) :])
    assert machine.function(built.build.kernels[0].symbol) is None
    assert why in machine.problem


def test_cubins_of_cuda_12_have_the_capability_elsewhere(compiler: Compiler) -> None:
    built = compiler.build(SAXPY, ["saxpy"], arch="sm_90a")
    assert isinstance(built, Artifact)
    new = bytearray(built.cubin)
    assert new[8] == 8
    old = new.copy()
    old[8], old[48:52] = 7, struct.pack("<I", 0x500000 | 90)
    first, second = read_machine_code(bytes(new)), read_machine_code(bytes(old))
    assert first.capability == second.capability == 90
