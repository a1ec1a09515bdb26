"""Access to NVIDIA GPUs from a confined process: device nodes, driver libraries, /sys.

All paths are looked up on the machine; without a GPU, nothing is granted. Facts of the driver are from its README
(chapters "Installed components" and "/proc interface") and from NVIDIA's container toolkit.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

from kernelforge.hardware.wheels import RELEASES, nvidia_folders

NODES = (r"nvidia\d+", "nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", r"nvidia-caps/nvidia-cap\d+", "dxg")
"""Patterns of the device nodes under ``/dev`` that computing needs. ``nvidia-modeset`` is for displays. ``dxg`` is the
one node of a GPU under WSL 2."""

SYSTEM_FOLDERS = ("/sys/devices", "/sys/bus", "/sys/class", "/sys/dev", "/sys/module", "/sys/kernel/mm")
"""Folders of ``/sys`` that the driver's libraries and torch read: processors, memory nodes, PCI devices, modules."""

_LIBRARY = "libcuda.so.1"
_DRIVER_FOLDERS = ("/usr/local/nvidia/lib64", "/usr/local/nvidia/lib", "/usr/lib/wsl/lib", "/run/opengl-driver/lib")
"""Folders of the driver on container platforms and distributions, in addition to the system's library folders."""
_TOOLKITS = ("/usr/local/cuda", "/opt/cuda")
_CICC = (("nvvm", "bin", "cicc"), ("bin", "cicc"))
_FIND_LINKED = (
    "import ctypes, sys\n"
    "try: library = ctypes.CDLL(sys.argv[1])\n"
    "except OSError: sys.exit()\n"
    "link_map = ctypes.POINTER(ctypes.c_void_p * 2)()\n"  # its first fields: load address, name (link.h)
    "ctypes.CDLL(None).dlinfo(ctypes.c_void_p(library._handle), 2, ctypes.byref(link_map))\n"  # RTLD_DI_LINKMAP
    "print(ctypes.string_at(link_map.contents[1]).decode())\n"
)
"""Prints the path of a library as the linker found it."""
_UUID = re.compile(r"GPU-[0-9a-fA-F-]+")


def device_nodes(visible: str = "", *, root: str = "/") -> tuple[str, ...]:
    """Names under ``/dev`` of the existing nodes: of all GPUs, or of those that ``CUDA_VISIBLE_DEVICES`` names by UUID.

    Only a UUID (``GPU-…``, or its beginning) identifies the node of a GPU; with any other value, including a MIG
    instance, all nodes are granted, and ``CUDA_VISIBLE_DEVICES`` alone selects.

    Args:
        visible: The value of ``CUDA_VISIBLE_DEVICES``.
        root: Folder of ``/dev`` and ``/proc``.
    """
    folder = Path(root, "dev")
    existing = [
        str(path.relative_to(folder))
        for pattern in ("nvidia*", "nvidia-caps/*", "dxg")
        for path in sorted(folder.glob(pattern))
        if not path.is_dir()
    ]
    nodes = [name for name in existing if any(re.fullmatch(pattern, name) for pattern in NODES)]
    minors = _minors(visible, root)
    if minors is None:
        return tuple(nodes)
    return tuple(name for name in nodes if not re.fullmatch(NODES[0], name) or name.removeprefix("nvidia") in minors)


def _minors(visible: str, root: str) -> set[str] | None:
    """Numbers of the nodes of the GPUs that ``visible`` names by UUID; None if it names none that is known."""
    uuids = [name.strip() for name in visible.split(",") if name.strip()]
    if not uuids or not all(_UUID.fullmatch(name) for name in uuids):
        return None
    minor_by_uuid: dict[str, str] = {}
    for path in Path(root, "proc", "driver", "nvidia", "gpus").glob("*/information"):
        facts = dict(line.split(":", 1) for line in path.read_text().splitlines() if ":" in line)
        if "GPU UUID" in facts and "Device Minor" in facts:
            minor_by_uuid[facts["GPU UUID"].strip()] = facts["Device Minor"].strip()
    minors = {minor for uuid, minor in minor_by_uuid.items() if any(uuid.startswith(name) for name in uuids)}
    return minors or None


def driver_folders() -> tuple[str, ...]:
    """Folders with ``libcuda.so.1``, links followed: the linker's choice, then those of platforms."""
    environment = os.environ.get("LD_LIBRARY_PATH", "")
    listed = [folder for folder in environment.split(os.pathsep) if os.path.isabs(folder)]
    linked = linked_driver(environment)
    candidates = [Path(folder, _LIBRARY) for folder in (*([linked] if linked else []), *_DRIVER_FOLDERS, *listed)]
    there = [path for path in candidates if path.exists()]
    return tuple(dict.fromkeys(str(folder) for path in there for folder in (path.parent, path.resolve().parent)))


def library_path() -> tuple[str, ...]:
    """Folders for ``LD_LIBRARY_PATH``: those of :func:`driver_folders` that the linker does not search by default."""
    searched = {folder + suffix for folder in ("/lib", "/usr/lib") for suffix in ("", "64", "/x86_64-linux-gnu")}
    return tuple(folder for folder in driver_folders() if folder not in searched)


@cache
def linked_driver(environment: str) -> str | None:
    """Folder of the ``libcuda.so.1`` that the dynamic linker loads; None if it finds none.

    A container may hold two: the host's, and a newer one for compatibility, which the linker's cache lists first. A
    separate process loads it, since this process may fork later. Loading does not start CUDA.

    Args:
        environment: The value of ``LD_LIBRARY_PATH``.
    """
    command = [sys.executable, "-I", "-c", _FIND_LINKED, _LIBRARY]
    variables = {"LD_LIBRARY_PATH": environment} if environment else {}
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=variables, check=False)
    except subprocess.TimeoutExpired:
        return None  # users of the driver report one that hangs
    folder = os.path.dirname(done.stdout.strip())
    return folder if os.path.isabs(folder) else None  # an empty entry of the path means the working directory


def cuda_toolkit() -> str | None:
    """The folder of an installed CUDA toolkit with ``bin/nvcc``; None if there is none.

    Searches ``CUDA_HOME``, ``CUDA_PATH`` and the usual folders, then around the ``nvcc`` on the ``PATH`` (conda puts
    the toolkit into its environment) and in NVIDIA's wheels."""
    for folder in (os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), *_TOOLKITS):
        if folder and os.path.isabs(folder) and Path(folder, "bin", "nvcc").is_file():
            return os.path.realpath(folder)
    on_path = shutil.which("nvcc")
    around = [str(Path(on_path).resolve().parents[1])] if on_path else []
    wheels = [str(folder.parent) for release in RELEASES.values() for folder in nvidia_folders(release.programs)]
    for folder in (*around, *wheels):
        # nvcc starts cicc, in its own folder or in nvvm: a folder such as /usr that lacks both is no toolkit.
        if Path(folder, "bin", "nvcc").is_file() and any(Path(folder, *path).is_file() for path in _CICC):
            return os.path.realpath(folder)
    return None
