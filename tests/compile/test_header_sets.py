"""Precompiled headers: code and messages are those of a build without them; files hold `#include` lines alone."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from kernelforge.compile import Artifact, Compiler
from kernelforge.compile.header_sets import BUILDS, Headers, HeaderSets
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


@contextmanager
def compilations(compiler: Compiler) -> Iterator[list[bool]]:
    """For each compilation in a child whether it was precompiled a precompiled header."""
    precompiled: list[bool] = []
    real = compiler._ask

    def noted(work: Any, request: dict[str, Any], *rest: Any, **options: Any) -> Any:
        precompiled.append(any(option.startswith("--use-pch") for option in request["options"]))
        return real(work, request, *rest, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiler, "_ask", noted)
        yield precompiled


def built(compiler: Compiler, source: str) -> Artifact | Build:
    return compiler.build(source, ["k"], arch="sm_90a", constants={"WIDTH": 4})


def file_of(compiler: Compiler, source: str) -> Path | None:
    headers, _ = Headers.of(source, "sm_90a")
    return compiler.header_sets.file(headers, compiler._running_zygote("cuda").pid)


@pytest.mark.slow
def test_a_build_with_them_is_the_build_without(warm: Compiler) -> None:
    source = COOPERATIVE.format(note="compared", value="WIDTH")
    assert file_of(warm, source) is not None
    with Compiler(None) as plain, compilations(plain) as without, compilations(warm) as precompiled:
        expected, got = built(plain, source), built(warm, source)
    assert (without, precompiled) == ([False], [True])
    assert isinstance(expected, Artifact)
    assert isinstance(got, Artifact)
    assert (got.ptx, got.cubin) == (expected.ptx, expected.cubin)
    assert got.build.model_copy(update={"seconds": 0.0}) == expected.build.model_copy(update={"seconds": 0.0})


@pytest.mark.slow
def test_an_error_is_on_the_line_of_the_source(warm: Compiler) -> None:
    with compilations(warm) as precompiled:
        result = built(warm, COOPERATIVE.format(note="wrong", value="undeclared"))
    assert precompiled == [True]
    assert isinstance(result, Build)
    assert [(error.file, error.line) for error in result.errors] == [("candidate.cu", 9)]
    assert "undeclared" in result.errors[0].message


@pytest.mark.slow
def test_other_headers_have_no_file(warm: Compiler) -> None:
    source = COOPERATIVE.replace("/reduce.h", "/scan.h").format(note="", value=1)
    assert file_of(warm, source) is None


@pytest.mark.slow
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
        ("#include <a.h>\n#include <b.h> // see \\\n the docs", ("a.h",), 2),
        ("// \\\n#include <a.h>", (), 1),
        ("#include <a.h>\n#include <../b.h>\n#include </c.h>", ("a.h",), 2),
        ("#include </c.h>", (), 1),
        ("int x;\n#include <a.h>", (), 1),
    ],
)
def test_the_headers_are_those_before_anything_else(source: str, names: tuple[str, ...], line: int) -> None:
    headers, replaced = Headers.of(source, "sm_80")
    assert headers == Headers(names, "sm_80")
    rest = source.split("\n")[line - 1 :]
    assert replaced == "\n".join([f'{headers.text}#line {line} "candidate.cu"', *rest])
    assert headers.text.count("#include") == len(names)


@pytest.mark.slow
def test_without_the_zygote_that_made_them_they_are_made_again(warm: Compiler) -> None:
    zygote = warm._running_zygote("cuda")
    (before,) = warm.header_sets.folder.iterdir()
    assert zygote.pid is not None
    os.kill(zygote.pid, signal.SIGKILL)
    while Path("/proc", str(zygote.pid), "exe").exists():
        time.sleep(0.01)
    with compilations(warm) as precompiled:
        for number in range(BUILDS + 1):
            assert isinstance(built(warm, COOPERATIVE.format(note="after", value=f"{number}.5f")), Artifact)
    # The first build took a file that its child could not read, because the zygote was started again only for it.
    assert precompiled == [True, *[False] * (BUILDS + 1)]
    warm.header_sets.wait()
    (file,) = warm.header_sets.folder.iterdir()
    assert file != before
    assert file_of(warm, COOPERATIVE) == file


def test_a_file_that_cannot_be_written_leaves_none() -> None:
    def make(headers: Headers) -> tuple[bytes, int]:
        raise OSError("no space left")

    sets = HeaderSets(make, slow_build_s=0.0)
    folder = sets.folder
    headers = Headers(("a.h",), "sm_80")
    for _ in range(BUILDS):
        sets.count(headers, 1.0)
    sets.wait()
    assert sets.failures == {headers: "no space left"}
    assert list(folder.iterdir()) == []
    sets.close(lambda: None)
    assert not folder.exists()


def test_only_abandoned_folders_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    abandoned, fresh = tmp_path / "kernelforge-headers-a", tmp_path / "kernelforge-headers-b"
    for folder in (abandoned, fresh):
        folder.mkdir()
    first = HeaderSets(lambda headers: (b"", 1))
    used = first.folder
    for folder in (abandoned, used):
        os.utime(folder, (0, 0))
    second = HeaderSets(lambda headers: (b"", 1))
    assert {fresh, used, second.folder} == set(tmp_path.iterdir())
    for sets in (first, second):
        sets.close(lambda: None)
    assert set(tmp_path.iterdir()) == {fresh}
