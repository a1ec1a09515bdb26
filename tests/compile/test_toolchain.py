"""Choice of the toolchain, its architectures, and suite core with CUDA 12 as with CUDA 13."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from kernelforge.agents.builtin.design import MOVES, Design
from kernelforge.compile import Artifact, Compiler, Toolchain, installed_toolchain, supported_architectures
from kernelforge.compile.cubin import read_cubin
from kernelforge.errors import DeviceError
from kernelforge.hardware.wheels import RELEASES, cuda_include_folders
from kernelforge.records import Build
from tests.agents import agent_setup as workbench
from tests.support.shipped_prompts import shipped

MODULE = importlib.import_module("kernelforge.compile.toolchain")
ADD = "__global__ void add(const float* a, float* b, int n) { if (threadIdx.x < n) b[threadIdx.x] += a[threadIdx.x]; }"
ALL = Design(tuple(MOVES))
MAJORS = sorted(RELEASES)


def toolchain(major: int) -> Toolchain:
    try:
        return installed_toolchain(major)
    except DeviceError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module", params=MAJORS, ids=[f"CUDA {major}" for major in MAJORS])
def either(request: pytest.FixtureRequest, open_warm: Callable[..., Compiler]) -> Iterator[Compiler]:
    """A compiler of each major version of CUDA."""
    with open_warm(Compiler, None, toolchain=toolchain(request.param)) as warm:
        yield warm


@pytest.fixture
def packages(monkeypatch: pytest.MonkeyPatch) -> Iterator[set[str]]:
    """Distributions that count as installed, filled by a test; no others count."""
    there: set[str] = set()

    def version(name: str) -> str:
        if name not in there:
            raise MODULE.metadata.PackageNotFoundError(name)
        return "1.0"

    monkeypatch.setattr(MODULE.metadata, "version", version)
    installed_toolchain.cache_clear()
    yield there
    installed_toolchain.cache_clear()


@pytest.mark.slow
def test_every_architecture_that_nvrtc_knows_is_built_for(either: Compiler) -> None:
    supported = either.toolchain.architectures()
    assert len(supported) > 8
    for number in supported:
        arch = either.toolchain.architecture(divmod(number, 10))
        assert arch == f"sm_{number}{'a' if number >= 90 else ''}"
        built = either.build(ADD, ["add"], arch=arch)
        assert isinstance(built, Artifact), (arch, built)
        assert f".target {arch}".encode() in built.ptx
        assert read_cubin(built.cubin).entries == {built.symbol("add")}


@pytest.mark.parametrize("arch", ["sm_130a", "sm_12", "sm_35"])
def test_an_architecture_that_nvrtc_does_not_know_is_no_fault_of_the_candidate(either: Compiler, arch: str) -> None:
    for _ in range(2):  # nothing is kept of a build that never took place
        with pytest.raises(DeviceError, match=rf"^this GPU is {arch}, nvrtc 1\d\.\S+ builds for sm_\d+ to sm_\d+: "):
            either.build(ADD, ["add"], arch=arch)


@pytest.mark.slow
def test_cuda_13_sends_a_volta_to_the_extra_of_cuda_12(open_warm: Callable[..., Compiler]) -> None:
    cuda_13 = toolchain(13)
    with open_warm(Compiler, None, toolchain=cuda_13) as compiler:
        with pytest.raises(DeviceError, match=r"^this GPU is sm_70, nvrtc 13\.0\S* builds for sm_75 .*the extra gpu12"):
            compiler.build(ADD, ["add"], arch="sm_70")
    with pytest.raises(DeviceError, match="install the extra gpu12"):
        cuda_13.architecture((7, 0))


def test_cuda_12_builds_for_a_volta() -> None:
    assert toolchain(12).architecture((7, 0)) == "sm_70"


def test_options_that_nvrtc_refuses_are_no_fault_of_the_candidate(
    compiler: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = Toolchain.options
    monkeypatch.setattr(Toolchain, "options", lambda self, arch: [*options(self, arch), "--no-such-option"])
    with pytest.raises(DeviceError, match=r"nvrtc \S+ refuses the options of a build for sm_90a: .*no-such-option"):
        compiler.build(ADD, ["add"])


@pytest.mark.parametrize(
    ("capability", "arch"),
    [((8, 6), "sm_86"), ((9, 0), "sm_90a"), ((8, 8), "sm_86"), ((12, 2), "sm_120"), ((10, 3), "sm_103a")],
)
def test_a_gpu_newer_than_its_compiler_runs_what_is_built_for_an_older_one_of_its_generation(
    capability: tuple[int, int], arch: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MODULE, "_architectures", lambda library: (75, 80, 86, 87, 90, 103, 110, 120))
    toolchain = installed_toolchain()
    assert toolchain.architecture(capability) == arch
    for generation in ((7, 0), (10, 0), (11, 1), (13, 0)):
        with pytest.raises(DeviceError, match=f"this GPU is sm_{generation[0]}{generation[1]}, nvrtc"):
            toolchain.architecture(generation)


def test_a_library_that_does_not_load_says_what_to_install(tmp_path: Path) -> None:
    installed = installed_toolchain()
    (tmp_path / "libnvrtc.so").write_bytes(b"no library")
    broken = Toolchain(
        installed.name,
        installed.major,
        installed.digest,
        installed.headers,
        installed.includes,
        tmp_path / "libnvrtc.so",
    )
    with pytest.raises(DeviceError, match=r"^NVRTC does not load \(.*\); reinstall it: pip install 'nvidia-cuda-nvrtc"):
        broken.architectures()


def test_what_is_supported_is_what_the_chosen_toolchain_builds_for() -> None:
    assert supported_architectures() == installed_toolchain().architectures()
    assert 90 in supported_architectures()


def test_a_part_of_cuda_12_is_no_toolchain(packages: set[str]) -> None:
    """Builds of torch for CUDA 12 bring NVRTC and the runtime, and neither crt/ nor CCCL."""
    packages.update(["cupy-cuda12x", *RELEASES[12].compiler[:2], *RELEASES[13].compiler])
    assert installed_toolchain().major == 13
    with pytest.raises(
        DeviceError, match=r"nvidia-cuda-nvcc-cu12 is not installed.* pip install 'nvidia-cuda-nvcc-cu12==12"
    ):
        installed_toolchain(12)


def test_wheels_of_one_cuda_may_lie_in_several_parts_of_the_path(
    packages: set[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As after ``pip install --user`` of the headers, where the system's torch brought NVRTC."""
    user, system = tmp_path / "user" / "nvidia" / "cu13", tmp_path / "system" / "nvidia" / "cu13"
    for folder in (user / "lib" / "cmake", user / "include" / "cccl", system / "lib", system / "include"):
        folder.mkdir(parents=True)
    library = system / "lib" / "libnvrtc.so.13"
    library.touch()
    monkeypatch.setattr(sys, "path", [str(tmp_path / "user"), str(tmp_path / "system")])
    packages.update(RELEASES[13].compiler)
    thirteen = installed_toolchain(13)
    assert thirteen.library == library.resolve()
    expected = (user / "include", system / "include", user / "include" / "cccl")
    assert thirteen.includes == tuple(folder.resolve() for folder in expected)


def test_each_toolchain_has_a_digest_and_headers_of_its_own() -> None:
    twelve, thirteen = toolchain(12), toolchain(13)
    assert twelve.digest != thirteen.digest
    assert twelve.name.startswith("nvrtc 12.")
    assert thirteen.name.startswith("nvrtc 13.")
    for each in (twelve, thirteen):
        assert each.includes == cuda_include_folders(each.major)
        for header in ("cuda_fp16.h", "crt/host_defines.h", "cub/cub.cuh"):
            assert any((folder / header).is_file() for folder in each.includes), header


def test_headers_of_the_other_toolchain_are_out_of_reach(either: Compiler) -> None:
    """A build's key names the versions of its own headers alone."""
    for major in MAJORS:
        folder = toolchain(major).includes[0]
        built = either.build(f'#include "{folder}/cuda_fp16.h"\n{ADD}', ["add"])
        if major == either.toolchain.major:
            assert isinstance(built, Artifact)
        else:
            assert isinstance(built, Build)
            assert "cannot open source file" in built.errors[0].message


@pytest.mark.slow
@pytest.mark.one_in(4)
@pytest.mark.parametrize("name", [task.name for task in shipped("core")])
def test_suite_core_is_right_with_cuda_12(name: str, twelve: Compiler) -> None:
    written = workbench.rendered(name, ALL)
    at = workbench.bench(f"core/{name}", "small")
    resolved = workbench.resolve(written.plan, at)
    built = workbench.build(twelve, written.source, resolved)
    assert isinstance(built, Artifact), built
    assert built.build.toolchain.startswith("nvrtc 12.")
    for got, expected in zip(workbench.run(built, resolved, at), at.expected(), strict=True):
        assert got.dtype == expected.dtype
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)


@pytest.fixture(scope="module")
def twelve(open_warm: Callable[..., Compiler]) -> Iterator[Compiler]:
    with open_warm(Compiler, None, toolchain=toolchain(12)) as warm:
        yield warm
