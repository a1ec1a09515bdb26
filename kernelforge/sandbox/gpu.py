"""What a confined process needs of the machine to use NVIDIA GPUs: device nodes, the driver's libraries, /sys.

Everything is found on the machine as it is; where there is no GPU, nothing is granted. Facts of the driver are those
of its README (chapters "Installed components" and "/proc interface") and of NVIDIA's container toolkit.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

NODES = (r"nvidia\d+", "nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", r"nvidia-caps/nvidia-cap\d+", "dxg")
"""Device nodes that computing needs, by pattern, under ``/dev``. Not ``nvidia-modeset``: that is for displays. ``dxg``
is the one node of a GPU under WSL 2."""

SYSTEM_FOLDERS = ("/sys/devices", "/sys/bus", "/sys/class", "/sys/dev", "/sys/module", "/sys/kernel/mm")
"""What the driver's libraries and torch read of ``/sys``: processors, memory nodes, PCI devices, kernel modules."""

_LIBRARY = "libcuda.so.1"
_DRIVER_FOLDERS = ("/usr/local/nvidia/lib64", "/usr/local/nvidia/lib", "/usr/lib/wsl/lib", "/run/opengl-driver/lib")
"""Where container platforms and distributions put the driver, beside the system's own library folders."""
_UUID = re.compile(r"GPU-[0-9a-fA-F-]+")


def device_nodes(visible: str = "", *, root: str = "/") -> tuple[str, ...]:
    """Names under ``/dev`` of the nodes that exist: all GPUs, or those that ``CUDA_VISIBLE_DEVICES`` names by UUID.

    Only a UUID (``GPU-…``, of which the start is enough) says which node a GPU has; anything else, a MIG instance too,
    gets them all, and ``CUDA_VISIBLE_DEVICES`` alone chooses.

    Args:
        visible: The value of ``CUDA_VISIBLE_DEVICES``.
        root: Where ``/dev`` and ``/proc`` are.
    """
    folder = Path(root, "dev")
    found = [
        str(path.relative_to(folder))
        for pattern in ("nvidia*", "nvidia-caps/*", "dxg")
        for path in sorted(folder.glob(pattern))
        if not path.is_dir()
    ]
    nodes = [name for name in found if any(re.fullmatch(pattern, name) for pattern in NODES)]
    minors = _minors(visible, root)
    if minors is None:
        return tuple(nodes)
    return tuple(name for name in nodes if not re.fullmatch(NODES[0], name) or name.removeprefix("nvidia") in minors)


def _minors(visible: str, root: str) -> set[str] | None:
    """Numbers of the nodes of the GPUs that ``visible`` names by UUID; None where it does not, or nothing is known."""
    wanted = [name.strip() for name in visible.split(",") if name.strip()]
    if not wanted or not all(_UUID.fullmatch(name) for name in wanted):
        return None
    known: dict[str, str] = {}
    for path in Path(root, "proc", "driver", "nvidia", "gpus").glob("*/information"):
        facts = dict(line.split(":", 1) for line in path.read_text().splitlines() if ":" in line)
        if "GPU UUID" in facts and "Device Minor" in facts:
            known[facts["GPU UUID"].strip()] = facts["Device Minor"].strip()
    minors = {minor for uuid, minor in known.items() if any(uuid.startswith(name) for name in wanted)}
    return minors or None


def driver_folders() -> tuple[str, ...]:
    """Folders with ``libcuda.so.1`` that the dynamic linker would not look into by itself, links followed."""
    listed = [folder for folder in os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep) if os.path.isabs(folder)]
    found = [Path(folder, _LIBRARY) for folder in (*_DRIVER_FOLDERS, *listed)]
    there = [path for path in found if path.exists()]
    return tuple(dict.fromkeys(str(folder) for path in there for folder in (path.parent, path.resolve().parent)))


def cuda_toolkit() -> str | None:
    """The folder of an installed CUDA toolkit (one with ``bin/nvcc``); None where there is none."""
    for folder in (os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda", "/opt/cuda"):
        if folder and os.path.isabs(folder) and Path(folder, "bin", "nvcc").is_file():
            return os.path.realpath(folder)
    return None
