"""The device that the reference runs on, and the arithmetic that it may use; the only module that knows either.

``cpu`` needs nothing. On ``cuda:N`` the model, its float64 twin, the inputs, the comparison and the baselines are all
on that GPU, so that torch's own error is measured on the kind of device that candidates run on.

One policy of arithmetic holds for the reference and for every baseline alike: no TF32, in products and convolutions;
cuDNN chooses by its heuristic (``benchmark`` off), is not held to deterministic algorithms (``deterministic`` off,
which would slow the baseline), and sums in half precision are left as torch has them by default.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import warnings
from collections.abc import Iterator
from typing import Any, Final

import torch

from kernelforge.errors import SandboxError, TaskError
from kernelforge.evaluation.oracle import GPU_SHARE

_IDLE_BYTES: Final = 1 << 30
"""Memory that torch or the C library keeps for later, above which it is given back after a draw and at its release."""

HOST: Final = torch.device("cpu")

_DRIVER: Final = "libcuda.so.1"

_torch_c: Any = torch._C


def open_device(name: str) -> torch.device:
    """Start the device called ``name`` and set the arithmetic of this process.

    Raises:
        TaskError: there is no such device here.
    """
    set_arithmetic()
    if name == "cpu":
        _hide_gpus()
        return HOST
    if not re.fullmatch(r"cuda(:\d+)?", name):
        raise TaskError(f"the reference runs on cpu or on cuda:N, not on '{name}'")
    device = torch.device(name)
    device = torch.device("cuda", device.index or 0)
    try:
        torch.cuda.init()  # type: ignore[no-untyped-call]
        torch.cuda.set_device(device)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        text = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise TaskError(f"torch {torch.__version__} cannot use '{name}' in the oracle's process: {text}") from error
    torch.cuda.set_per_process_memory_fraction(GPU_SHARE, device)
    return device


def set_arithmetic() -> None:
    """The policy of this module's first paragraphs. Starts no device."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # newer torch prefers other names for the same flags
        torch.set_float32_matmul_precision("highest")
        torch.backends.cuda.matmul.allow_tf32 = False
        torch.backends.cudnn.allow_tf32 = False
        torch.backends.cudnn.benchmark = False
        torch.backends.cudnn.deterministic = False


def generator(device: torch.device, seed: int) -> torch.Generator:
    """A seeded generator whose numbers are made on ``device``."""
    return torch.Generator(HOST if device.type == "meta" else device).manual_seed(seed)


@contextlib.contextmanager
def default_device(device: torch.device) -> Iterator[None]:
    """Tensors made inside, where no device is named, are on ``device``."""
    if device.type == "cpu":
        yield  # what torch does anyway, without a look at every call
        return
    with device:
        yield


@contextlib.contextmanager
def unfused_kernels(device: torch.device) -> Iterator[None]:
    """Operators in their plain form, where a library would run a whole network layer or attention as one.

    A GPU has fused forms of batch norms, recurrent layers and attention, under other names than the CPU's. In-order
    sums can be put in their place only when they come as sums and products.
    """
    if device.type == "cpu":
        yield
        return
    from torch.nn.attention import SDPBackend, sdpa_kernel

    enabled = torch.backends.cudnn.enabled
    torch.backends.cudnn.enabled = False
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        torch.backends.cudnn.enabled = enabled


def synchronize(device: torch.device) -> None:
    """Until the device has done all it was asked to, so that an error shows where it was made."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def lost(device: torch.device) -> bool:
    """Whether the device is spoilt for this process.

    After an illegal address every later call fails; after a capture that failed, the generator of random numbers may.
    """
    if device.type != "cuda":
        return False
    try:
        torch.empty(1, device=device).uniform_()
        synchronize(device)
    except RuntimeError:
        return True
    return False


def free_bytes(device: torch.device) -> int:
    """Memory that a reference could still take on the device, in bytes."""
    if device.type != "cuda":
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    free, total = torch.cuda.mem_get_info(device)
    reserved = torch.cuda.memory_reserved(device)
    unused = reserved - torch.cuda.memory_allocated(device)
    return max(min(free, int(GPU_SHARE * total) - reserved), 0) + unused


def release_cached_memory(device: torch.device, *, all_of_it: bool = False) -> None:
    """Return memory that torch, or on the host the C library, keeps for later, where it is much: runners need it."""
    if device.type != "cuda":
        _trim_heap(0 if all_of_it else _IDLE_BYTES)
        return
    unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    if all_of_it or unused > _IDLE_BYTES:
        torch.cuda.empty_cache()


class _HeapState(ctypes.Structure):
    """``struct mallinfo2`` of glibc 2.33 and later."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            "arena",
            "ordblks",
            "smblks",
            "hblks",
            "hblkhd",
            "usmblks",
            "fsmblks",
            "uordblks",
            "free",
            "keepcost",
        )
    )


def _trim_heap(above: int) -> None:
    """Give pages back to the system that the C library keeps of freed blocks, where these are more than some bytes."""
    library = ctypes.CDLL(None)
    if not hasattr(library, "mallinfo2") or not hasattr(library, "malloc_trim"):
        return  # another C library, or an older one
    library.mallinfo2.restype = _HeapState
    if library.mallinfo2().free > above:
        library.malloc_trim(ctypes.c_size_t(0))


@contextlib.contextmanager
def hide_gpu() -> Iterator[None]:
    """Keep torch from asking the CUDA driver for GPUs, which would start it.

    A process forked from one that has started the driver cannot use a GPU. Fake tensors ask
    ``torch.cuda.is_available`` at every operator. Where that says no, a CUDA build of torch then makes sure that
    its device guard is set, which counts the GPUs, and so starts the driver all the same: both calls are replaced.
    """
    available, ensure_guard = torch.cuda.is_available, _torch_c._ensureCUDADeviceGuardSet
    _hide_gpus()
    try:
        yield
    finally:
        torch.cuda.is_available, _torch_c._ensureCUDADeviceGuardSet = available, ensure_guard


@contextlib.contextmanager
def warming_up() -> Iterator[None]:
    """Hide the GPU while a process warms up from which others are forked.

    Raises:
        SandboxError: something started CUDA nevertheless.
    """
    with hide_gpu():
        yield
    if driver_started():
        raise SandboxError("the warm-up started CUDA, so that no process forked from it could use a GPU")


def _hide_gpus() -> None:
    """Replace the two calls of :func:`hide_gpu` for the rest of this process."""
    torch.cuda.is_available = lambda: False
    _torch_c._ensureCUDADeviceGuardSet = lambda: None


def driver_started() -> bool:
    """Whether this process has started the CUDA driver: a process forked from it could not use a GPU."""
    try:
        driver = ctypes.CDLL(_DRIVER)
    except OSError:
        return False
    not_initialized = 3  # CUDA_ERROR_NOT_INITIALIZED, in the CUDA driver API reference
    count = ctypes.c_int()
    return int(driver.cuDeviceGetCount(ctypes.byref(count))) != not_initialized
