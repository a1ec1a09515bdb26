"""GPU checks of ``kernelforge doctor``."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from kernelforge.cli.doctor.checks import Check, probe_python
from kernelforge.devices.cuda.target import GpuInfo
from kernelforge.utils.shell_hints import install_hint

_PAGE = "docs/gpus.md explains the setup, containers included"
_LIST = (
    "import dataclasses, json; from kernelforge.devices.cuda.discovery import gpus; "
    "print(json.dumps([dataclasses.asdict(gpu) for gpu in gpus()]))"
)


def check_gpus() -> list[Check]:
    """Check the GPUs and what using them needs; one check where there is none.

    Another process asks the driver: a broken driver may hang or crash the process that loads it.
    """
    listed = probe_python(_LIST, timeout_s=60)
    if not listed.ok:
        return [Check("gpu", "note", f"the driver fails: {listed.text}", listed.advice(f"see nvidia-smi; {_PAGE}"))]
    detected = tuple(GpuInfo.from_wire(raw) for raw in json.loads(listed.text))
    if not detected:
        return [none_found()]
    checks: list[Callable[[Sequence[GpuInfo]], Check]] = [
        check_driver, check_packages, check_profiler, check_sanitizer,
    ]  # fmt: skip
    with ThreadPoolExecutor(max_workers=len(checks)) as pool:
        return list(pool.map(lambda check: check(detected), checks))


def none_found(root: str = "/") -> Check:
    """Check for GPUs on the PCI bus that no driver answers for.

    Args:
        root: Where ``/sys`` and ``/dev`` are.
    """
    cards = [path.parent.name for path in Path(root, "sys/bus/pci/devices").glob("*/vendor") if _is_nvidia_gpu(path)]
    if not cards and Path(root, "dev/dxg").exists():
        advice = "none is needed; to use one, install NVIDIA's driver 580 or newer on Windows, and none inside WSL"
        return Check("gpu", "note", "none found through /dev/dxg: CUDA finds no GPU in this WSL 2", advice)
    if not cards:
        return Check("gpu", "note", "none found", "none is needed: kernels run on an emulated device, times modelled")
    where = f"{len(cards)} on the PCI bus ({', '.join(sorted(cards))}), and no driver answers"
    if Path(root, "dev/nvidiactl").exists():
        return Check("gpu", "note", where, f"see nvidia-smi, and whether CUDA_VISIBLE_DEVICES hides it; {_PAGE}")
    advice = f"install NVIDIA's driver 580 or newer; start a container with --gpus all; {_PAGE}"
    return Check("gpu", "note", where, advice)


def _is_nvidia_gpu(vendor: Path) -> bool:
    """Vendor 0x10de, class 0x0300 (VGA) or 0x0302 (3D controller): PCI ID repository."""
    try:
        kind = vendor.with_name("class").read_text().strip()
        return vendor.read_text().strip() == "0x10de" and kind.startswith(("0x0300", "0x0302"))
    except OSError:
        return False


def check_driver(detected: Sequence[GpuInfo]) -> Check:
    """Check the GPUs, the driver, and why a GPU cannot be used."""
    from kernelforge.devices.cuda.discovery import unusable

    cards = "; ".join(f"cuda:{gpu.ordinal} {gpu.name}, {gpu.memory_bytes / 1e9:.0f} GB" for gpu in detected)
    first = detected[0]
    detail = f"{cards}; driver {first.driver or 'of unknown release'}, CUDA {first.cuda}"
    refused = [f"cuda:{gpu.ordinal} is not used: {why}" for gpu in detected if (why := unusable(gpu))]
    if refused:
        return Check("gpu", "note", detail, f"{'; '.join(refused)}; {_PAGE}")
    return Check("gpu", "ok", detail)


def check_packages(detected: Sequence[GpuInfo]) -> Check:
    """Check cupy and cuda-bindings, which run candidates, NVML's package, and pycuda, the alternative runtime."""
    from importlib.metadata import PackageNotFoundError, version

    from kernelforge.devices.cuda.discovery import missing_packages
    from kernelforge.hardware.wheels import RELEASES

    have = []
    for name in (*(release.cupy for release in RELEASES.values()), "cupy", "cuda-bindings", "nvidia-ml-py", "pycuda"):
        try:
            have.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            continue
    other = (
        "" if any(package.startswith("pycuda") for package in have) else " (no pycuda: only --runtime pycuda needs it)"
    )
    detail = (", ".join(have) or "none") + other
    missing = missing_packages("cupy")
    if not missing:
        return Check("gpu packages", "ok", detail)
    lack = f"{detail}; missing: {', '.join(missing)}"
    if missing == ("nvidia-ml-py",):
        return Check("gpu packages", "note", lack, "pip install nvidia-ml-py: without it clocks are not recorded")
    return Check("gpu packages", "problem", lack, f"{install_hint('gpu')}; or run with --device emulated")


def check_profiler(detected: Sequence[GpuInfo]) -> Check:
    """Check Nsight Compute, and whether the driver lets this user read counters."""
    from kernelforge.devices.cuda.tools.ncu import profiler_status

    status = profiler_status()
    if status.ncu is None or status.version is None or status.counters == "denied":
        advice = "without counters, profiles have times, and the emulator's counts, each marked; " + _PAGE
        return Check("ncu", "note", status.message, advice)
    return Check("ncu", "ok", status.message)


def check_sanitizer(detected: Sequence[GpuInfo]) -> Check:
    """Check compute-sanitizer, which only ``--sanitizer`` needs."""
    from kernelforge.devices.cuda.tools.tool_process import find_tool

    path = find_tool("compute-sanitizer")
    if path is None:
        advice = "only --sanitizer needs it: pip install nvidia-cuda-sanitizer-api, or install the CUDA toolkit"
        return Check("compute-sanitizer", "note", "not found", advice)
    return Check("compute-sanitizer", "ok", path)
