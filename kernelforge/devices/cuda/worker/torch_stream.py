"""Torch on a foreign stream, with memory that a CUDA graph keeps.

Torch and the driver share the GPU's primary context. Two things must be so before torch operators can be captured, and
the caller sees to them: the same calls have run once on this stream (cuBLAS makes its handle and takes its workspace
at the first), and they draw no random numbers (a generator must be told of the graph; torch does so for its own only).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from typing import Any

from kernelforge.devices.cuda.worker.driver import DriverError


@cache
def _torch_with_cuda() -> Any:
    import torch

    if not torch.cuda.is_available():
        build = torch.version.cuda or "no CUDA"
        raise DriverError(
            "CUDA_ERROR_NOT_SUPPORTED",
            f"calling a torch operator: torch {torch.__version__} (built for {build}) sees no GPU here; "
            "install a build of torch for this driver",
        )
    torch.cuda.init()  # type: ignore[no-untyped-call]
    return torch


def pool() -> object:
    """A pool of torch's allocator; what was allocated from it stays untouched until nobody holds the pool.

    Raises:
        DriverError: torch has no GPU.
    """
    return _torch_with_cuda().cuda.MemPool()


@contextmanager
def on_stream(ordinal: int, stream: int, held: object | None) -> Iterator[None]:
    """Within it torch works on a stream, given by its handle, and allocates from the pool ``held`` if there is one.

    Raises:
        DriverError: torch has no GPU.
    """
    torch = _torch_with_cuda()
    with ExitStack() as stack:
        stack.enter_context(torch.cuda.device(ordinal))
        stack.enter_context(torch.cuda.stream(torch.cuda.ExternalStream(stream, device=ordinal)))
        if held is not None:
            stack.enter_context(torch.cuda.use_mem_pool(held, ordinal))
        yield
