"""Machine code of real cubins: instructions with their PTX lines and control codes, and basic blocks."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from kernelforge.compile import Artifact, Compiler
from kernelforge.compile import sass_tool as tool
from kernelforge.compile.sass_tool import Disassembler
from kernelforge.hardware.wheels import DISASSEMBLER, disassembler
from kernelforge.profiling.sass_code import Control, SassFunction, parse_sass

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


@pytest.fixture(scope="module")
def reader(open_warm: Callable[..., Disassembler]) -> Iterator[Disassembler]:
    if disassembler() is None:
        pytest.skip(f"{DISASSEMBLER} is not installed")
    with open_warm(Disassembler) as warm:
        yield warm


@pytest.fixture(scope="module")
def read(compiler: Compiler, reader: Disassembler) -> Callable[[str, str], tuple[SassFunction, list[str]]]:
    """Machine code of a kernel, and the lines of its PTX."""

    def code(source: str, kernel: str, arch: str = "sm_90a") -> tuple[SassFunction, list[str]]:
        built = compiler.build(source, [kernel], arch=arch)
        assert isinstance(built, Artifact)
        machine = reader.read(built.cubin)
        assert not machine.problem
        (symbol,) = (fact.symbol for fact in built.build.kernels)
        return machine.functions[symbol], built.ptx.decode().split("\n")

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


def test_what_nvdisasm_cannot_read_is_a_problem_and_no_error(reader: Disassembler) -> None:
    code = reader.read(b"\x7fELF and nothing else")
    assert not code.functions
    assert "nvdisasm" in code.problem
    assert reader.read(b"").problem


def test_without_the_program_the_problem_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tool, "disassembler", lambda: None)
    with Disassembler() as reader:
        assert f"pip install {DISASSEMBLER}" in reader.read(b"a cubin").problem


def test_a_cubin_is_read_once(reader: Disassembler, compiler: Compiler, monkeypatch: pytest.MonkeyPatch) -> None:
    built = compiler.build(SAXPY, ["saxpy"])
    assert isinstance(built, Artifact)
    first = reader.read(built.cubin)
    monkeypatch.setattr(reader, "_read", None)
    assert reader.read(built.cubin) is first


def test_half_an_instruction_is_refused() -> None:
    text = '\t.section\t.text.k,"ax"\n        /*0000*/       EXIT ;    /* 0x000000000000794d */\n.L_x_0:\n'
    with pytest.raises(ValueError, match="upper half"):
        parse_sass(text)
