"""The gate before Triton's front end: kernels pass, what could reach Python is refused with advice."""

import pytest

from kernelforge.candidate.resolved import Specialisation
from kernelforge.compile.triton_source import MAX_SOURCE_BYTES, mismatch, read_source
from kernelforge.errors import CandidateError

HEAD = "import triton\nimport triton.language as tl\n"
KERNEL = HEAD + "\n@triton.jit\ndef k(x, out, n, BLOCK: tl.constexpr = 64):\n    {}\n"


def inside(line: str) -> str:
    return KERNEL.replace("{}", line)


@pytest.mark.parametrize(
    "line",
    [
        "tl.store(out, tl.load(x).to(tl.float16))",
        "v = tl.zeros([BLOCK, 2], dtype=out.dtype.element_ty).T.sum(axis=0)",
        "w = tl.extra.cuda.libdevice.tanh(tl.load(x))",
        "for i in range(0, tl.cdiv(n, BLOCK)): n -= i",
        "tl.static_assert(BLOCK % 2 == 0, 'even')",
        "m = min(n, TILE) if BLOCK is None else -1",
        "p: tl.constexpr = triton.next_power_of_2(BLOCK)",
    ],
)
def test_what_kernels_are_made_of_passes(line):
    assert list(read_source(inside(line)).functions) == ["k"]


def test_constants_of_the_module_and_names_left_for_the_plan():
    source = read_source(HEAD + "EPS = tl.constexpr(-1e-5)\n" + inside("n = n * EPS + TILE")[len(HEAD) :])
    assert source.free_names == {"TILE"}


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (HEAD + "import os\n" + KERNEL, "line 3: only triton and triton.language as tl may be"),
        ("from triton.language.extra.cuda import globaltimer\n" + KERNEL, "line 1: only triton"),
        (KERNEL + "print(open('/etc/passwd').read())\n", "holds constants and @triton.jit functions only"),
        (KERNEL + "def host():\n    return 1\n", "host is host code"),
        (KERNEL + "class A: pass\n", "holds constants and @triton.jit functions only"),
        (HEAD + "@triton.autotune(configs=[], key=[])\n" + KERNEL[len(HEAD) :].strip(), "'# tune:' line of the plan"),
        (HEAD + "@triton.heuristics(3)\n" + KERNEL[len(HEAD) :].strip(), "compute the value in the plan"),
        (KERNEL.replace("@triton.jit", "@triton.jit(debug=True)"), "only functions under @triton.jit alone"),
        (HEAD + "N = 4\n" + KERNEL, r"is written NAME = tl.constexpr\(number\)"),
        (HEAD + "N = tl.constexpr(open('x'))\n" + KERNEL, r"is written NAME = tl.constexpr\(number\)"),
        (KERNEL.replace("= 64", "= open('x')"), "a default is a literal"),
        (KERNEL.replace("out, n", "out, n: eval('1')"), "annotate n with tl.constexpr or not at all"),
        (inside("open('/etc/passwd')"), "'open' is not available in a kernel"),
        (inside("getattr(tl, 'core')"), "'getattr' is not available"),
        (inside("x.__class__"), "x.__class__ is not available in a kernel"),
        (inside("''.format(x)"), "is not available in a kernel"),
        (inside("tl.core.builtins"), "tl.core.builtins is not available"),
        (inside("tl.extra.cuda.libdevice.core.os"), "is not available"),
        (inside("tl.extra.cuda.libdevice.__loader__"), "is not available"),
        (inside("tl.extra.cuda.globaltimer()"), "a kernel must not read the time"),
        (inside("tl.extra.cuda.smid()"), "a kernel must not ask where it runs"),
        (inside("tl.inline_asm_elementwise('', '', [], tl.int32, True, 1)"), "write it with operations of tl"),
        (inside("tl.device_print('x', n)"), "not allowed in a scored kernel"),
        (inside("print(n)"), "print is not allowed in a kernel"),
        (inside("triton.runtime.driver"), "is not available|is host code"),
        (inside("tl = n"), "'tl' cannot be a name here"),
        (inside("v = [i for i in range(3)]"), "a kernel has no comprehensions"),
        (inside("v = lambda: 1"), "a kernel has no lambda"),
        (inside("import os"), "a kernel has no imports inside functions"),
        (inside("v = f'{n}'"), "Triton source has no f-strings"),
        (inside("v = '\\x00'"), "Triton source has no backslashes"),
        (inside("v = " + "(" * 40 + "1" + ")" * 40), "more than 24 brackets are open"),
        (inside("v = " + "-" * 400 + "1"), "nested too deeply"),
        (inside("v = " + "1 + " * 600 + "1"), "characters; the limit|nested too deeply"),
        (inside("v = (1"), "line 6: '\\(' was never closed"),
        (HEAD + "# " + "x" * MAX_SOURCE_BYTES, "larger than 65,536 bytes"),
        (HEAD, "defines no function under @triton.jit"),
    ],
)
def test_anything_else_is_refused_with_its_line_and_what_to_write_instead(source, message):
    with pytest.raises(CandidateError, match=message):
        read_source(source.replace("{}", "pass"))


@pytest.mark.parametrize(
    ("launch", "message"),
    [
        (Specialisation("f", (), (), 4, 3), "launches f, which the source does not define; it defines k"),
        (Specialisation("k", ("*fp32",), (), 4, 3), "passes 1 arguments by position, the kernel takes 3"),
        (Specialisation("k", ("*fp32", "*fp32", "i32"), (("TILE", 4),), 4, 3), "no tl.constexpr parameter 'TILE'"),
        (Specialisation("k", ("*fp32", "*fp32", "i32"), (), 4, 3), None),
    ],
)
def test_a_launch_is_held_against_the_parameters(launch, message):
    problem = mismatch(read_source(inside("pass")), launch)
    assert problem is None if message is None else message in (problem or "")


def test_a_constant_without_a_value_is_named():
    source = read_source(inside("pass").replace(" = 64", ""))
    problem = mismatch(source, Specialisation("k", ("*fp32", "*fp32", "i32"), (), 4, 3))
    assert problem == "k: the plan gives no value for the tl.constexpr BLOCK; add BLOCK=... to the launch"
