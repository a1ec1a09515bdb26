"""Precompiled headers: code and messages are those of a build without them; only trusted text is in a file."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kernelforge.compile import Artifact, Compiler
from kernelforge.compile.header_sets import BUILDS, Headers
from kernelforge.records import Build

COOPERATIVE = """// {note}
#include <cooperative_groups.h>  /* warps */

#include <cooperative_groups/reduce.h>
#include "cuda_fp16.h"
namespace cg = cooperative_groups;
__global__ void k(float* x) {{
  auto warp = cg::tiled_partition<32>(cg::this_thread_block());
  x[blockIdx.x] = cg::reduce(warp, x[threadIdx.x], cg::plus<float>()) + {value};
}}
"""


@pytest.fixture(scope="module")
def warm() -> Iterator[Compiler]:
    """A compiler that has precompiled the headers of :data:`COOPERATIVE`."""
    with Compiler(None, slow_build_s=0.0) as compiler:
        for number in range(BUILDS):
            assert isinstance(built(compiler, COOPERATIVE.format(note=number, value=number)), Artifact)
        compiler.header_sets.wait()
        assert compiler.header_sets.failures == {}
        (file,) = compiler.header_sets.folder.iterdir()
        assert file.stat().st_mode & 0o777 == 0o644
        yield compiler
        folder = compiler.header_sets.folder
    assert not folder.exists()


def built(compiler: Compiler, source: str) -> Artifact | Build:
    return compiler.build(source, ["k"], arch="sm_90a", constants={"WIDTH": 4})


def file_of(compiler: Compiler, source: str) -> Path | None:
    headers, _ = Headers.of(source, "sm_90a")
    return compiler.header_sets.file(headers, compiler._running_zygote("cuda").pid)


def test_a_build_with_them_is_the_build_without(warm: Compiler) -> None:
    source = COOPERATIVE.format(note="compared", value="WIDTH")
    assert file_of(warm, source) is not None
    with Compiler(None) as plain:
        expected, got = built(plain, source), built(warm, source)
    assert isinstance(expected, Artifact)
    assert isinstance(got, Artifact)
    assert (got.ptx, got.cubin) == (expected.ptx, expected.cubin)
    assert got.build.model_copy(update={"seconds": 0.0}) == expected.build.model_copy(update={"seconds": 0.0})


def test_an_error_is_on_the_line_of_the_source(warm: Compiler) -> None:
    result = built(warm, COOPERATIVE.format(note="wrong", value="undeclared"))
    assert isinstance(result, Build)
    assert [(error.file, error.line) for error in result.errors] == [("candidate.cu", 9)]
    assert "undeclared" in result.errors[0].message


def test_other_headers_have_no_file(warm: Compiler) -> None:
    source = COOPERATIVE.replace("/reduce.h", "/scan.h").format(note="", value=1)
    assert file_of(warm, source) is None


def test_a_file_of_an_earlier_zygote_is_not_read(warm: Compiler) -> None:
    headers, _ = Headers.of(COOPERATIVE, "sm_90a")
    assert warm.header_sets.file(headers, 1) is None


@pytest.mark.parametrize(
    ("source", "names", "line"),
    [
        ("#include <a.h>\n#include <b/c.hpp>\nint x;", ("a.h", "b/c.hpp"), 3),
        ("// x\n\n # include <a.h> // y\n/* z\n*/\n#include <b.h>\nint x;", ("a.h", "b.h"), 7),
        ("#include <a.h>\n#define N 1\n#include <b.h>", ("a.h",), 2),
        ('#include <a.h>\n#include "b.h"', ("a.h",), 2),
        ("#include <a.h> /* open\n#include <b.h>\n*/", (), 1),
        ("#if 1\n#include <a.h>\n#endif", (), 1),
        ("int x;\n#include <a.h>", (), 1),
    ],
)
def test_the_headers_are_those_before_anything_else(source: str, names: tuple[str, ...], line: int) -> None:
    headers, replaced = Headers.of(source, "sm_80")
    assert headers == Headers(names, "sm_80")
    rest = source.split("\n")[line - 1 :]
    assert replaced == "\n".join([f'{headers.text}#line {line} "candidate.cu"', *rest])
    assert headers.text.count("#include") == len(names)


def test_without_the_zygote_that_made_them_builds_read_the_headers(warm: Compiler) -> None:
    zygote = warm._running_zygote("cuda")
    assert zygote.pid is not None
    os.kill(zygote.pid, signal.SIGKILL)
    while Path("/proc", str(zygote.pid), "exe").exists():
        time.sleep(0.01)
    for value in ("1.5f", "2.5f"):
        assert isinstance(built(warm, COOPERATIVE.format(note="after", value=value)), Artifact)
    assert file_of(warm, COOPERATIVE) is None
