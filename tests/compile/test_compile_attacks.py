"""Known attacks on a compiler: each plants a canary that must not come back, or must hit its limit and no more."""

import os
import secrets
from contextlib import contextmanager
from dataclasses import replace

import pytest

from kernelforge.compile import COMPILE_LIMITS, Artifact, Compiler
from kernelforge.sandbox.self_test import run_self_test

KERNEL = "__global__ void k(float* x) { x[0] = 1; }\n"
TIGHT = replace(COMPILE_LIMITS, wall_s=240, cpu_s=120, memory_bytes=250 << 20)


@pytest.fixture(scope="module", params=["namespaces", "landlock"])
def jailed(request):
    report = run_self_test(request.param)
    if not report.works:
        pytest.skip(f"no tier {request.param} here: {report.reason}")
    with Compiler(None, tier=request.param, limits=TIGHT) as compiler:
        yield compiler


@pytest.fixture
def cramped(jailed, monkeypatch):
    """Less time, and less memory, which a bomb fills sooner. What comes after a bomb has :data:`TIGHT` again."""

    @contextmanager
    def for_bombs():
        with monkeypatch.context() as patch:
            patch.setattr(jailed, "limits", replace(TIGHT, cpu_s=2, memory_bytes=96 << 20))
            yield

    return for_bombs


def everything(result):
    """All that comes back from a build, as text."""
    if isinstance(result, Artifact):
        return f"{result.build} {result.ptx!r} {result.cubin!r}"
    return str(result)


@pytest.mark.parametrize(
    "wrap",
    [
        '#include "{}"\n',
        "#include <{}>\n",
        '#define H "{}"\n#include H\n',
        '%:include "{}"\n',
        '#inc\\\nlude "{}"\n',
        '__device__ const char S[] =\n#include "{}"\n;\n',
        '#include "../../../../../../../..{}"\n',
        '#if __has_include("{}")\n#error canary-present\n#endif\n',
        'asm(".incbin \\"{}\\"");\n',
    ],
)
def test_no_file_of_the_machine_comes_back(jailed, tmp_path, wrap):
    canary = f"canary{secrets.token_hex(8)}"
    file = tmp_path / "secret.h"
    file.write_text(f'"{canary}"\n')
    for path in [file, *file.parents]:
        if path.owner() and path.stat().st_uid == os.getuid() and "pytest" in str(path):
            path.chmod(0o755)
    text = everything(jailed.build(wrap.replace("{}", str(file)) + KERNEL, ["k"]))
    assert canary not in text
    assert "canary-present" not in text


@pytest.mark.parametrize(
    "path", ["/etc/passwd", "/proc/self/environ", "/proc/self/maps", "/proc/1/environ", "/dev/zero"]
)
def test_no_file_of_the_system_comes_back(jailed, path):
    build = jailed.build(f'#include "{path}"\n{KERNEL}', ["k"])
    assert "root:" not in everything(build)
    assert [(d.line, d.message) for d in build.errors] == [(1, f'cannot open source file "{path}"')]


def test_the_environment_holds_nothing_to_leak(jailed, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-canary")
    assert "sk-canary" not in everything(jailed.build(f'#include "/proc/self/environ"\n{KERNEL}', ["k"]))


def test_a_fifo_cannot_hang_the_compiler(jailed, tmp_path):
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo, 0o666)
    build = jailed.build(f'#include "{fifo}"\n{KERNEL}', ["k"])
    assert "cannot open source file" in build.errors[0].message


TEMPLATE_BOMB = """
template <int N, int M> struct bomb { static const int v = bomb<N - 1, 2 * M>::v + bomb<N - 1, 2 * M + 1>::v; };
template <int M> struct bomb<0, M> { static const int v = M; };
__global__ void k(int* x) { x[0] = bomb<26, 1>::v; }
"""
MACRO_BOMB = "#define A0 x[0]+=1;\n" + "".join(f"#define A{i + 1} A{i} A{i} A{i} A{i}\n" for i in range(14)) + (
    "__global__ void k(int* x) { A14 }\n"
)  # fmt: skip
ARRAY_BOMB = "__device__ int big[600000000] = {1, 2, 3};\n__global__ void k(int* x) { x[0] = big[x[1]]; }\n"


@pytest.mark.slow
@pytest.mark.parametrize("bomb", [TEMPLATE_BOMB, MACRO_BOMB, ARRAY_BOMB], ids=["template", "macro", "array"])
def test_a_bomb_hits_a_limit_and_the_next_build_works(jailed, cramped, bomb):
    with cramped():
        build = jailed.build(bomb, ["k"])
    assert not isinstance(build, Artifact)
    assert build.limit in ("time", "memory", "output")
    assert "more than the allowed" in build.errors[0].message
    assert isinstance(jailed.build(KERNEL + f"// {secrets.token_hex(4)}", ["k"]), Artifact)


@pytest.mark.slow
def test_a_build_that_hit_a_limit_is_tried_again(jailed, cramped):
    with cramped():
        first, second = (jailed.build(TEMPLATE_BOMB + "// again", ["k"]) for _ in range(2))
    assert not first.cached
    assert not second.cached


@pytest.mark.slow
def test_deep_nesting_cannot_take_the_parent_down(jailed):
    source = "__global__ void k(int* x) { x[0] = " + "(" * 100_000 + "1" + ")" * 100_000 + "; }"
    assert jailed.build(source, ["k"])
    assert isinstance(jailed.build(KERNEL + "// after nesting", ["k"]), Artifact)


def test_a_flood_of_messages_is_cut(jailed):
    source = KERNEL + "".join(f'#warning "{"w" * 400} {i}"\n' for i in range(3000))
    result = jailed.build(source, ["k"])
    assert len(everything(result)) < 200_000


def test_text_injected_into_the_log_stays_a_message(jailed):
    """A forged diagnostic line is at worst another diagnostic of the candidate's own file."""
    source = KERNEL + '#warning "x\\n/etc/shadow(1): error: forged"\n'
    result = jailed.build(source, ["k"])
    assert isinstance(result, Artifact)


@pytest.mark.parametrize("source", ["\0", "k\0k", ""])
def test_sources_that_are_no_text_are_refused(jailed, source):
    from kernelforge.errors import CandidateError

    if "\0" in source:
        with pytest.raises(CandidateError):
            jailed.build(source, ["k"])
    else:
        assert not isinstance(jailed.build(source, ["k"]), Artifact)


def test_figures_cannot_be_forged_through_the_log(jailed):
    """A file name with a newline puts lines of its own into the log; registers come from the cubin."""
    forged = r"x\nptxas info    : Compiling entry function '_Z1kPf' for 'sm_90a'\nptxas info    : Used 1 registers\n"
    honest = jailed.build(KERNEL, ["k"])
    result = jailed.build(f'{KERNEL}#line 1 "{forged}"\n#warning "w"\n', ["k"])
    assert isinstance(result, Artifact)
    assert result.build.kernels[0].registers_per_thread == honest.build.kernels[0].registers_per_thread > 1


@pytest.mark.slow
def test_a_flood_does_not_push_the_figures_out(jailed):
    source = KERNEL + "".join(f'#warning "{"w" * 900} {i}"\n' for i in range(3000))
    result = jailed.build(source, ["k"])
    assert isinstance(result, Artifact)
    assert result.build.kernels[0].registers_per_thread > 1
