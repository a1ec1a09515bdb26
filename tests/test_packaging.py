"""The wheel carries everything that an installed KernelForge needs, and nothing that it does not."""

from __future__ import annotations

import email
import subprocess
import sys
import tomllib
import zipfile
from email.message import Message
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from kernelforge.version import DISTRIBUTION, __version__

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
DATA = ("tasks", "prompts", "sandbox", "skills")
TORCH_ON_PYPI = "2.13.0"
REQUIRED_BY_TORCH_ON_PYPI = [
    "cuda-bindings<14,>=13.0.3",
    "cuda-toolkit==13.0.3",
    "filelock",
    "fsspec>=0.8.5",
    "jinja2",
    "networkx>=2.5.1",
    "nvidia-cudnn-cu13==9.20.0.48",
    "nvidia-cusparselt-cu13==0.8.1",
    "nvidia-nccl-cu13==2.29.7",
    "nvidia-nvshmem-cu13==3.4.5",
    "setuptools>=77.0.3",
    "sympy>=1.13.3",
    "triton==3.7.1",
    "typing-extensions>=4.10.0",
]
"""What the metadata of its wheel for Linux says; ``.ci/cuda-stack`` compares this with the installed wheel."""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    out = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), str(ROOT)]
    subprocess.run(command, check=True, capture_output=True, text=True)
    (path,) = out.glob("*.whl")
    return zipfile.ZipFile(path)


@pytest.fixture(scope="module")
def metadata(wheel: zipfile.ZipFile) -> Message:
    (name,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
    return email.message_from_bytes(wheel.read(name))


def pinned_in(name: str) -> dict[str, str]:
    """Versions that a file of constraints pins, by normalised name."""
    lines = [line for line in (ROOT / name).read_text().splitlines() if not line.startswith("#")]
    assert all(line.count("==") == 1 and "--hash" not in line and "+" not in line for line in lines)
    return {canonicalize_name(package): version for package, version in (line.split("==") for line in lines)}


def sources(folder: str) -> list[Path]:
    return sorted(path for path in (ROOT / folder).rglob("*") if path.is_file() and "__pycache__" not in path.parts)


@pytest.mark.slow
@pytest.mark.parametrize("folder", DATA)
def test_data_folders_are_inside_byte_for_byte(wheel: zipfile.ZipFile, folder: str) -> None:
    files = sources(folder)
    assert files
    for path in files:
        assert wheel.read(f"kernelforge/_data/{path.relative_to(ROOT).as_posix()}") == path.read_bytes()


def test_pages_that_are_quoted_are_inside(wheel: zipfile.ZipFile) -> None:
    for name in ("launch-plan", "input-generators", "diagnosis", "emulated-device", "profiling"):
        page = f"docs/{name}.md"
        assert wheel.read(f"kernelforge/_data/{page}") == (ROOT / page).read_bytes()


def test_kernels_that_are_read_from_the_package_are_inside(wheel: zipfile.ZipFile) -> None:
    kernels = [path for folder in ("calibration", "tiles") for path in sources(f"kernelforge/{folder}/kernels")]
    assert len(kernels) > 6
    for path in kernels:
        assert wheel.read(path.relative_to(ROOT).as_posix()) == path.read_bytes()


def test_suites_jail_policy_and_supplied_headers_are_inside(wheel: zipfile.ZipFile) -> None:
    names = set(wheel.namelist())
    assert {"kernelforge/_data/tasks/core/suite.toml", "kernelforge/_data/sandbox/jail.toml"} <= names
    assert any(name.startswith("kernelforge/_data/sandbox/headers/") for name in names)
    assert "kernelforge/translation/host_runtime.h" in names


def test_every_module_is_inside_and_marked_as_typed(wheel: zipfile.ZipFile) -> None:
    names = set(wheel.namelist())
    modules = {path.relative_to(ROOT).as_posix() for path in sources("kernelforge")}
    assert "kernelforge/py.typed" in modules
    assert modules <= names


def test_nothing_else_is_inside(wheel: zipfile.ZipFile) -> None:
    tops = {name.split("/")[0] for name in wheel.namelist()}
    assert tops == {"kernelforge", f"{DISTRIBUTION.replace('-', '_')}-{__version__}.dist-info"}
    assert not [name for name in wheel.namelist() if "__pycache__" in name or name.endswith((".pyc", ".db"))]


def test_the_licence_is_inside(wheel: zipfile.ZipFile, metadata: Message) -> None:
    assert metadata["License-Expression"] == "Apache-2.0"
    (name,) = (name for name in wheel.namelist() if name.endswith("licenses/LICENSE"))
    assert wheel.read(name) == (ROOT / "LICENSE").read_bytes()
    assert b"Version 2.0, January 2004" in wheel.read(name)


def test_the_console_script_is_declared(wheel: zipfile.ZipFile) -> None:
    (name,) = (name for name in wheel.namelist() if name.endswith("entry_points.txt"))
    assert "kernelforge = kernelforge.cli.main:main" in wheel.read(name).decode()


def test_the_metadata_says_which_pythons_and_extras_there_are(metadata: Message) -> None:
    assert metadata["Version"] == __version__
    assert metadata["Name"] == PROJECT["name"] == DISTRIBUTION
    assert set(metadata["Requires-Python"].split(",")) == {">=3.11", "<3.14"}
    extras = ["gpu", "gpu12", "pycuda", "cutlass", "curand", "curand12", "server", "ray", "mcp", "datasets", "figures"]
    assert metadata.get_all("Provides-Extra") == sorted([*extras, "metrics", "modal", "triton", "dev"])


def test_gpu_packages_are_asked_for_by_extras_only() -> None:
    base = " ".join(PROJECT["dependencies"])
    assert not [name for name in ("cupy", "pycuda", "cuda-bindings", "ray", "fastapi") if name in base]


def test_constraints_pin_every_dependency_without_hashes() -> None:
    """``pip install -c constraints.txt .`` gives the versions that the tests ran with."""
    required = PROJECT["dependencies"] + PROJECT["optional-dependencies"]["dev"]
    names = {canonicalize_name(Requirement(line).name) for line in required}
    assert names <= pinned_in("constraints.txt").keys()


def test_constraints_for_cuda_12_pin_every_cuda_wheel_of_the_extra_within_its_bounds() -> None:
    pinned = pinned_in("constraints-gpu12.txt")
    packages = [Requirement(line) for line in PROJECT["optional-dependencies"]["gpu12"] + PROJECT["dependencies"]]
    of_cuda = {item.name for item in packages if item.name.startswith(("cuda-", "cupy-")) or "cu12" in item.name}
    assert pinned.keys() == of_cuda | {"torch"}
    assert not [item for item in packages if item.name in pinned and not item.specifier.contains(pinned[item.name])]


def test_constraints_allow_the_cuda_build_of_torch() -> None:
    """On most machines PyPI gives that build, and pip refuses a constraint that one of its requirements excludes."""
    pinned = pinned_in("constraints.txt")
    assert pinned["torch"] == TORCH_ON_PYPI, "state what this torch requires: pip download --no-deps torch==VERSION"
    requirements = [Requirement(line) for line in REQUIRED_BY_TORCH_ON_PYPI]
    assert {"triton", "cuda-bindings"} <= {item.name for item in requirements} & pinned.keys()
    assert not [item for item in requirements if item.name in pinned and not item.specifier.contains(pinned[item.name])]


@pytest.mark.slow
def test_an_unpacked_wheel_finds_its_own_data(wheel: zipfile.ZipFile, tmp_path: Path) -> None:
    wheel.extractall(tmp_path / "site")
    script = (
        "import kernelforge, sys\n"
        "from kernelforge.sandbox import data_folder\n"
        "from kernelforge.tasks import data_path, load_suite\n"
        "print(kernelforge.__file__, data_folder(), data_path('prompts'), sep='\\n')\n"
        "print(len(load_suite('core')))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=tmp_path,
        env={"PYTHONPATH": str(tmp_path / "site"), "PATH": ""},
        check=True,
        capture_output=True,
        text=True,
    )
    *places, count = done.stdout.split()
    assert all(Path(path).is_relative_to(tmp_path / "site") for path in places)
    assert int(count) == 16
