"""Builds of Triton source: one PTX and one cubin, facts of every kernel, errors at the candidate's own lines."""

import re

import pytest

from kernelforge.candidate.plan import LaunchSignature
from kernelforge.candidate.resolved import Specialisation
from kernelforge.compile import Artifact, BuildCache, Compiler, triton_build
from kernelforge.compile.cubin import read_cubin
from kernelforge.errors import CandidateError
from kernelforge.records import Build, DType

pytestmark = pytest.mark.skipif(triton_build.installed_triton() is None, reason="the extra triton is not installed")

SOURCE = """import triton
import triton.language as tl

SCALE = tl.constexpr(2.0)


@triton.jit
def twice(value):
    return value * SCALE


@triton.jit
def double(x, out, n, BLOCK: tl.constexpr, DTYPE: tl.constexpr = tl.float32):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, twice(tl.load(x + at, mask=at < n).to(DTYPE)), mask=at < n)


@triton.jit
def total(x, out, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(out + tl.program_id(0), tl.sum(tl.load(x + at, mask=at < n, other=0.0), axis=0))


@triton.jit
def curve(x, out, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(out + at, tl.extra.cuda.libdevice.tanh(tl.load(x + at, mask=at < n)), mask=at < n)
"""
THREE = ("*fp32:16", "*fp32:16", "i32")


def signatures_of(*launches: Specialisation) -> list[LaunchSignature]:
    return [LaunchSignature(str(launch), (), launch) for launch in launches]


def launch_of(
    kernel: str = "double", arguments: tuple[str, ...] = THREE, warps: int = 4, **constants
) -> Specialisation:
    named = constants or {"BLOCK": 256}
    return Specialisation(kernel, arguments, tuple(sorted(named.items())), warps, 3)


def built(compiler: Compiler, *launches: Specialisation, source: str = SOURCE, **options) -> Artifact | Build:
    return compiler.build(source, (), signatures=signatures_of(*launches), **({"arch": "sm_80"} | options))


def error_of(result: Artifact | Build) -> str:
    assert isinstance(result, Build)
    return str(result.errors[0])


@pytest.mark.slow
def test_kernels_of_one_plan_are_one_module(compiler):
    launches = (
        launch_of(BLOCK=256),
        launch_of(arguments=("*fp16:16", "*fp16", "i32:16"), BLOCK=512, DTYPE=DType.FLOAT16, warps=8),
        launch_of("total", BLOCK=1024),
        launch_of("curve", BLOCK=128),
        launch_of("curve", BLOCK=256),
    )
    artifact = built(compiler, *launches)
    assert isinstance(artifact, Artifact), artifact
    kernels = artifact.build.kernels
    assert [kernel.expression for kernel in kernels] == [str(launch) for launch in launches]
    assert [kernel.symbol for kernel in kernels] == ["double", "double__1", "total", "curve", "curve__4"]
    assert read_cubin(artifact.cubin).entries == {kernel.symbol for kernel in kernels}
    text = artifact.ptx.decode()
    assert text.count(".version") == text.count(".target") == text.count("global_smem[]") == 1
    assert set(re.findall(r'\.file\s+\d+ "([^"]*)"', text)) == {"candidate.py", "standard.py"}
    threads = [kernel.launch.threads_per_block for kernel in kernels if kernel.launch is not None]
    assert threads == [128, 256, 128, 128, 128]
    assert kernels[2].launch is not None
    assert kernels[2].launch.dynamic_shared_bytes > 0
    assert all(kernel.registers_per_thread > 0 for kernel in kernels)
    assert artifact.build.toolchain == triton_build.installed_triton()


@pytest.mark.slow
def test_a_module_loads_on_the_emulated_device_whatever_was_joined(compiler):
    from kernelforge.devices.emulated.execute.loaded_module import LoadedModule
    from kernelforge.devices.emulated.execute.memory import Memory

    artifact = built(
        compiler, launch_of("curve", BLOCK=128), launch_of("curve", BLOCK=256), launch_of("total", BLOCK=64)
    )
    assert isinstance(artifact, Artifact)
    module = LoadedModule(artifact.ptx.decode(), Memory(1 << 20))
    assert set(module.entries) == {"curve", "curve__1", "total"}
    assert all(len(entry.params) == 5 for entry in module.entries.values())


@pytest.mark.slow
def test_a_repeated_build_comes_from_the_cache_and_another_triton_has_its_own(tmp_path, monkeypatch, compiler):
    monkeypatch.setattr(compiler, "cache", BuildCache(tmp_path))
    first, repeated = built(compiler, launch_of()), built(compiler, launch_of())
    assert isinstance(first, Artifact)
    assert isinstance(repeated, Artifact)
    assert (repeated.build.cached, repeated.build.key, repeated.ptx) == (True, first.build.key, first.ptx)
    monkeypatch.setattr("kernelforge.compile.compiler.installed_triton", lambda: "triton 99")
    other = built(compiler, launch_of())
    assert isinstance(other, Artifact)
    assert other.build.key != first.build.key


@pytest.mark.slow
def test_only_constants_that_the_source_names_make_another_build(compiler):
    source = SOURCE.replace("SCALE = tl.constexpr(2.0)", "")
    keys = [
        built(compiler, launch_of(), source=source, constants=constants)
        for constants in ({"SCALE": 2}, {"SCALE": 2, "TILE": 8}, {"SCALE": 3})
    ]
    assert all(isinstance(artifact, Artifact) for artifact in keys)
    first, second, third = (artifact.build.key for artifact in keys if isinstance(artifact, Artifact))
    assert first == second != third


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("tl.load(x + at", "tl.load(y + at"), "candidate.py:15: error: y is not defined"),
        (("value * SCALE", "value * missing"), "candidate.py:9: error: missing is not defined"),
        (("value * SCALE", "tl.dot(value, value)"), "candidate.py:9: error: input and other must have equal ranks"),
        (
            ("tl.arange(0, BLOCK)", "tl.arange(0, BLOCK + 1)"),
            "candidate.py:14: error: arange's range must be a power of 2",
        ),
    ],
)
def test_an_error_names_the_line_of_the_candidate(compiler, change, message):
    result = built(compiler, launch_of(), source=SOURCE.replace(*change, 1))
    assert error_of(result).startswith(message)


@pytest.mark.parametrize(
    ("launch", "message"),
    [
        (launch_of("triple"), "the plan launches triple, which the source does not define"),
        (launch_of(arguments=("*fp32",)), "double: the plan passes 1 arguments by position"),
        (launch_of(WIDTH=3), "no tl.constexpr parameter 'WIDTH'"),
    ],
)
def test_a_launch_that_does_not_fit_is_an_error_of_the_build(compiler, launch, message):
    assert message in error_of(built(compiler, launch))


def test_host_code_is_refused_before_anything_is_compiled(compiler):
    with pytest.raises(CandidateError, match="host code is the plan's"):
        built(compiler, launch_of(), source=SOURCE + "\nimport os\n")


def test_without_triton_the_build_fails_with_advice(compiler, monkeypatch):
    for module in ("compiler", "triton_build"):
        monkeypatch.setattr(f"kernelforge.compile.{module}.installed_triton", lambda: None)
    assert "Triton is not installed here: pip install" in error_of(built(compiler, launch_of()))


@pytest.mark.slow
def test_more_shared_memory_than_any_block_has_is_an_error(compiler):
    source = SOURCE + (
        "\n\n@triton.jit\ndef product(x, out, n, B: tl.constexpr):\n"
        "    at = tl.arange(0, B)[:, None] * B + tl.arange(0, B)[None, :]\n"
        "    acc = tl.zeros((B, B), tl.float32)\n"
        "    for i in range(n):\n"
        "        acc = tl.dot(tl.load(x + at + i * B), tl.load(x + at + i * 2 * B), acc)\n"
        "    tl.store(out + at, acc)\n"
    )
    launch = Specialisation("product", ("*fp16:16", "*fp32:16", "i32"), (("B", 128),), 8, 8)
    result = built(compiler, launch, source=source)
    assert "bytes of shared memory; the limit is 232,448" in error_of(result)


@pytest.mark.slow
def test_a_loop_that_unrolls_for_ever_hits_a_limit_and_the_next_build_works(compiler, monkeypatch):
    from dataclasses import replace

    bomb = SOURCE.replace("    return value * SCALE", "    for i in tl.static_range(100000000):\n        value += i")
    with monkeypatch.context() as patch:
        patch.setattr(compiler, "limits", replace(compiler.limits, cpu_s=1, wall_s=60))
        result = built(compiler, launch_of(), source=bomb)
    assert isinstance(result, Build)
    assert result.limit in ("time", "memory")
    assert result.errors[0].file == "candidate.py"
    assert isinstance(built(compiler, launch_of(BLOCK=64)), Artifact)
