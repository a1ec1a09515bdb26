"""Grants for a machine's GPUs, on machines imitated by folders."""

import ctypes
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from kernelforge.sandbox import gpu_access, policy

FIRST, SECOND = "GPU-11111111-aaaa-bbbb-cccc-000000000001", "GPU-22222222-aaaa-bbbb-cccc-000000000002"


@pytest.fixture
def machine(tmp_path):
    """Two GPUs whose nodes are numbered against the order of the bus."""
    dev = tmp_path / "dev"
    (dev / "nvidia-caps").mkdir(parents=True)
    for name in (
        "nvidia0",
        "nvidia1",
        "nvidiactl",
        "nvidia-uvm",
        "nvidia-uvm-tools",
        "nvidia-modeset",
        "nvme0",
        "null",
    ):
        (dev / name).touch()
    for name in ("nvidia-cap1", "nvidia-cap2", "other"):
        (dev / "nvidia-caps" / name).touch()
    for bus_address, uuid, minor in (("0000:17:00.0", FIRST, 1), ("0000:65:00.0", SECOND, 0)):
        folder = tmp_path / "proc/driver/nvidia/gpus" / bus_address
        folder.mkdir(parents=True)
        (folder / "information").write_text(
            f"Model: \t\t NVIDIA H200\nIRQ:   \t\t 45\nGPU UUID: \t {uuid}\nVideo BIOS: \t 96.00.00\n"
            f"Bus Location: \t {bus_address}\nDevice Minor: \t {minor}\nGPU Excluded:\t No\n"
        )
    return str(tmp_path)


COMMON = {"nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-caps/nvidia-cap1", "nvidia-caps/nvidia-cap2"}


def test_the_nodes_that_computing_needs_are_granted_and_no_others(machine):
    assert set(gpu_access.device_nodes(root=machine)) == COMMON | {"nvidia0", "nvidia1"}


@pytest.mark.parametrize(
    ("visible", "nodes"),
    [
        (FIRST, {"nvidia1"}),
        (SECOND, {"nvidia0"}),
        (FIRST[:12], {"nvidia1"}),
        (f"{FIRST}, {SECOND}", {"nvidia0", "nvidia1"}),
        # A number is CUDA's, not the node's; a MIG instance does not name its GPU; this UUID is not here.
        ("0", {"nvidia0", "nvidia1"}),
        (f"MIG-{FIRST}", {"nvidia0", "nvidia1"}),
        ("GPU-99999999", {"nvidia0", "nvidia1"}),
        ("", {"nvidia0", "nvidia1"}),
    ],
)
def test_a_gpu_chosen_by_uuid_leaves_its_node_alone(machine, visible, nodes):
    assert set(gpu_access.device_nodes(visible, root=machine)) == COMMON | nodes


def test_under_wsl_a_gpu_has_one_node(tmp_path):
    (tmp_path / "dev").mkdir()
    for name in ("dxg", "null"):
        (tmp_path / "dev" / name).touch()
    assert gpu_access.device_nodes(root=str(tmp_path)) == gpu_access.device_nodes(FIRST, root=str(tmp_path)) == ("dxg",)


def test_where_there_is_no_gpu_nothing_is_granted(tmp_path):
    assert gpu_access.device_nodes(root=str(tmp_path)) == ()
    assert gpu_access.device_nodes(FIRST, root=str(tmp_path)) == ()


def test_a_driver_outside_the_linkers_folders_is_found_and_its_links_followed(tmp_path, monkeypatch):
    real, linked, empty = tmp_path / "real", tmp_path / "lib64", tmp_path / "empty"
    for folder in (real, linked, empty):
        folder.mkdir()
    (real / "libcuda.so.580.159.03").touch()
    (linked / "libcuda.so.1").symlink_to(real / "libcuda.so.580.159.03")
    monkeypatch.setenv("LD_LIBRARY_PATH", f"{linked}:{empty}::relative")
    folders = [folder for folder in gpu_access.driver_folders() if folder.startswith(str(tmp_path))]
    assert folders == [str(linked), str(real)]
    with_gpu = policy.role_policy.__wrapped__("gpu-runner")
    assert {str(linked), str(real)} <= set(with_gpu.mounts)
    assert str(linked) in with_gpu.environment["LD_LIBRARY_PATH"].split(":")
    without = policy.role_policy.__wrapped__("oracle")
    assert str(linked) not in without.mounts
    assert "LD_LIBRARY_PATH" not in without.environment


def test_a_toolkit_is_found_by_its_compiler(tmp_path, monkeypatch):
    (tmp_path / "cuda-13.0/bin").mkdir(parents=True)
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "cuda"))
    assert gpu_access.cuda_toolkit() != str(tmp_path / "cuda-13.0")
    (tmp_path / "cuda-13.0/bin/nvcc").touch()
    (tmp_path / "cuda").symlink_to("cuda-13.0")
    assert gpu_access.cuda_toolkit() == str(tmp_path / "cuda-13.0")
    granted = policy.role_policy.__wrapped__("modelnew")
    assert str(tmp_path / "cuda-13.0") in granted.mounts
    assert granted.environment["CUDA_HOME"] == str(tmp_path / "cuda-13.0")
    assert str(tmp_path / "cuda-13.0/bin") in granted.environment["PATH"].split(":")


def test_a_toolkit_is_found_around_the_compiler_on_the_path_but_usr_is_none(tmp_path, monkeypatch):
    """As conda installs it; Debian's ``/usr/bin/nvcc`` has its parts elsewhere, and ``/usr`` is not granted whole."""
    for name in ("CUDA_HOME", "CUDA_PATH"):
        monkeypatch.delenv(name, raising=False)
    conda = tmp_path / "conda"
    for name in ("bin/nvcc", "nvvm/bin/cicc"):
        (conda / name).parent.mkdir(parents=True, exist_ok=True)
        (conda / name).touch(mode=0o755)
    monkeypatch.setenv("PATH", f"{conda}/bin")
    monkeypatch.setattr(gpu_access, "_TOOLKITS", ())
    assert gpu_access.cuda_toolkit() == str(conda)
    (conda / "nvvm/bin/cicc").unlink()
    assert gpu_access.cuda_toolkit() is None
    wheel = tmp_path / "site-packages/nvidia/cu13"
    for name in ("nvcc", "cicc"):
        (wheel / "bin" / name).parent.mkdir(parents=True, exist_ok=True)
        (wheel / "bin" / name).touch(mode=0o755)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path / "site-packages")])
    assert gpu_access.cuda_toolkit() == str(wheel)


def test_triton_is_told_where_the_driver_is(tmp_path, monkeypatch):
    (tmp_path / "libcuda.so.1").touch()
    monkeypatch.setattr(gpu_access, "linked_driver", lambda environment: str(tmp_path))
    for role, expected in (("gpu-oracle", True), ("gpu-modelnew", True), ("gpu-runner", False), ("modelnew", False)):
        granted = policy.role_policy.__wrapped__(role)
        assert granted.environment.get("TRITON_LIBCUDA_PATH") == (str(tmp_path) if expected else None)


def test_the_driver_is_the_one_that_the_linker_takes(tmp_path):
    """A container may hold the host's driver and a newer one for compatibility, which comes first."""
    source = tmp_path / "empty.c"
    source.touch()
    for name in ("host", "compatible"):
        (tmp_path / name).mkdir()
        command = ["gcc", "-shared", "-o", tmp_path / name / "libcuda.so.1", source]
        if shutil.which("gcc") is None or subprocess.run(command, check=False).returncode:
            pytest.skip("needs gcc")
    path = f"{tmp_path}/compatible:{tmp_path}/host"
    assert gpu_access.linked_driver(path) == f"{tmp_path}/compatible"
    assert gpu_access.linked_driver(f"{tmp_path}/nowhere:{tmp_path}/host") == f"{tmp_path}/host"


def test_helpers_find_the_libraries_of_a_python_that_a_clusters_module_brings(tmp_path, monkeypatch):
    with open("/proc/self/maps") as file:
        library = next(line.split(maxsplit=5)[-1].strip() for line in file if "/libc.so" in line)
    folder = os.path.dirname(library)
    policy.interpreter_libraries.cache_clear()
    monkeypatch.setenv("LD_LIBRARY_PATH", f"{tmp_path}:{folder}")
    granted = policy.role_policy.__wrapped__("oracle")
    policy.interpreter_libraries.cache_clear()
    assert granted.environment["LD_LIBRARY_PATH"] == folder
    assert any(folder == mount or folder.startswith(f"{mount}/") for mount in granted.mounts)


def test_of_a_folder_of_libraries_nothing_else_is_granted(tmp_path, monkeypatch):
    """A helper process loads more than this process has, so that every library is granted, and its links' targets."""
    with open("/proc/self/maps") as file:
        library = next(line.split(maxsplit=5)[-1].strip() for line in file if "/libm.so" in line)
    folder, elsewhere = tmp_path / "lib", tmp_path / "elsewhere"
    fast = folder / "glibc-hwcaps/x86-64-v3"
    for made in (fast, elsewhere, folder / "results"):
        made.mkdir(parents=True)
    shutil.copy(library, folder / "libmine.so.1.2")
    (folder / "libmine.so.1").symlink_to("libmine.so.1.2")
    (elsewhere / "libother.so.3").touch()
    (folder / "libother.so.3").symlink_to(elsewhere / "libother.so.3")
    (fast / "libmine.so.1").touch()
    for private in ("notes.txt", "results/kernelforge.db", "mine.sock", ".so"):
        (folder / private).touch()
    ctypes.CDLL(str(folder / "libmine.so.1"))
    policy.interpreter_libraries.cache_clear()
    monkeypatch.setenv("LD_LIBRARY_PATH", str(folder))
    granted = policy.role_policy.__wrapped__("oracle")
    policy.interpreter_libraries.cache_clear()
    assert granted.environment["LD_LIBRARY_PATH"] == str(folder)
    assert {mount for mount in granted.mounts if mount.startswith(str(tmp_path))} == {
        str(folder / "libmine.so.1"), str(folder / "libmine.so.1.2"), str(folder / "libother.so.3"),
        str(elsewhere / "libother.so.3"), str(fast / "libmine.so.1"),
    }  # fmt: skip


def test_folders_that_packages_are_installed_into_are_granted_and_a_checkout_is_not(tmp_path, monkeypatch):
    target, checkout = tmp_path / "target", tmp_path / "checkout"
    (target / "cupy_cuda13x-14.2.0.dist-info").mkdir(parents=True)
    (checkout / "results").mkdir(parents=True)
    monkeypatch.setattr(sys, "path", [*sys.path, str(target), str(checkout)])
    mounts = policy.role_policy.__wrapped__("gpu-runner").mounts
    assert str(target) in mounts
    assert str(checkout) not in mounts
    assert str(Path(policy.__file__).resolve().parents[2]) not in mounts, "the package's folder, not what holds it"


@pytest.mark.parametrize("role", ["gpu-runner", "gpu-oracle", "modelnew", "gpu-modelnew"])
def test_a_role_grants_no_home_and_no_results(role):
    granted = policy.role_policy(role)
    for path in granted.mounts:
        assert path not in ("/", "/home", "/root", "/tmp", "/var", "/etc", "/usr", "/opt", os.path.expanduser("~")), (
            path
        )
        assert not path.startswith(("/proc", "/run/user", "/var", "/home/")) or "site-packages" in path or "lib" in path
    assert granted.gpu == role.startswith("gpu-")
    assert granted.programs == (role != "gpu-runner")


def test_roles_without_a_gpu_are_as_they_were():
    for role in ("compiler", "runner", "oracle", "probe"):
        granted = policy.role_policy(role)
        assert (granted.gpu, granted.programs, granted.processes, granted.passes) == (False, False, 0, ())
        assert not any(path.startswith(("/sys", "/usr/bin", "/etc")) for path in granted.mounts)
