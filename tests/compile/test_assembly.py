"""Attribution of an instruction to the candidate or the compiler."""

import pytest

from kernelforge.compile.ptx_text import written_inline

PTX = """
	add.s32 %r1, %r2, 1;
	// begin inline asm
	lacking.b32 %r1;
	// end inline asm
	also.lacking;
"""
INSIDE, OUTSIDE = 4, 6
ASSEMBLY = '    asm volatile("bar.warp.sync -1;\\n\\t" ::: "memory"); // as / before\n'


@pytest.mark.parametrize("line", [0, INSIDE, OUTSIDE])
def test_a_source_without_assembly_wrote_no_instruction(line: int) -> None:
    source = '#include <a/b.h>\n// plasma\n__global__ void k(int* x) { x[0] /= 2; printf("a/b"); }\n'
    assert not written_inline(source, PTX, line)


def test_markers_tell_the_compilers_instructions_from_the_candidates() -> None:
    source = f'#include <a/b.h>\n#define TWO 2\n#include "c/d.h"\n{ASSEMBLY.replace(" // as / before", "")}'
    assert written_inline(source, PTX, INSIDE)
    assert not written_inline(source, PTX, OUTSIDE)
    assert written_inline(source, PTX, 0)


@pytest.mark.parametrize(
    "source",
    [
        'asm("// end inline asm\\n also.lacking;");',
        'asm("\\x2f\\57 end inline asm");',
        'asm("\\u002f/ end inline asm");',
        'asm(R"(\n/\n/ end inline asm)");',
        "#define S(x) #x\nasm(S(x));",
        "#define S(x) \\\n #x\nasm(S(x));",
        '#line 1 "x"\nasm(__FILE__);',
        "asm(__FILE__);",
        'asm("/\\\n/ end inline asm");',
        'asm("%:");\n%:define S(x) %:x',
    ],
)
def test_markers_that_could_be_forged_are_not_believed(source: str) -> None:
    assert written_inline(source, PTX, OUTSIDE)


@pytest.mark.parametrize(
    "source",
    [
        'as\\\nm("x;");',
        'as\\ \nm("x;");',
        "#define A(x, y) x##y\nA(as, m)(x);",
        "%:define A(x, y) x%:%:y",
        "??=define A(x, y) x??=??=y",
        '\\u0061sm("x;");',
        '__asm__("x;");',
        'int a = 1\'0+"\' // "; asm("x;");',
        '/* " */ asm("x;"); // "',
    ],
)
def test_no_spelling_hides_assembly(source: str) -> None:
    assert written_inline(source, PTX, INSIDE)
