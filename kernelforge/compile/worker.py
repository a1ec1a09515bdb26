"""The compiler child: one request, one compilation, one reply; confined and disposable."""

from __future__ import annotations

import mmap
import time
from pathlib import Path
from typing import Any

from kernelforge.compile.nvrtc import COMPILATION, OUT_OF_MEMORY, Nvrtc
from kernelforge.sandbox.channel import Channel

MAX_LOG_CHARACTERS = 1 << 20
MAX_CODE_BYTES = 64 << 20
MAX_PRECOMPILED_BYTES = 1 << 30
"""Largest precompiled header, for which every child has address space; NVRTC needs twice its size to write one."""
_HOST_ONLY = '#error "<{name}> is a host header: a candidate is device code and a launch plan, without host code"\n'
_WARM = '#include <kernelforge_prelude.h>\nextern "C" __global__ void warm(float* x) { x[0] += 1.0f; }\n'

_state: dict[str, Any] = {}


def supplied_headers(folder: Path) -> dict[str, str]:
    """Headers given to NVRTC in memory, by the name they are included under."""
    files = sorted(file for file in folder.rglob("*") if file.is_file() and file.suffix != ".txt")
    headers = {file.relative_to(folder).as_posix(): file.read_text() for file in files}
    for line in (folder / "host_only.txt").read_text().splitlines():
        if line and not line.startswith("#"):
            headers[line] = _HOST_ONLY.format(name=line)
    return headers


def warm_up(options: dict[str, Any]) -> None:
    """Load NVRTC and the supplied headers, and compile once so that all pages are in memory."""
    _state["nvrtc"] = Nvrtc(Path(options["library"]))
    _state["headers"] = supplied_headers(Path(options["headers"]))
    _state["nvrtc"].reserve_for_headers(MAX_PRECOMPILED_BYTES)
    _compile({"source": _WARM, "name": "warm.cu", "options": options["warm"], "expressions": []})


def serve(channel: Channel) -> None:
    """Compile one program.

    Request: ``source name options expressions``. Reply: ``status log lowered seconds`` with the blobs PTX and cubin,
    or ``limit`` when the memory or the size of the output ran out. With ``precompile`` in the request the blob is the
    precompiled header of the source.
    """
    request = channel.receive().data
    if "precompile" in request:
        _precompile(channel, request)
        return
    start = time.monotonic()
    try:
        result = _compile(request)
    except MemoryError:
        channel.send({"limit": "memory"})
        return
    failed_for_memory = result.status == OUT_OF_MEMORY or (
        result.status == COMPILATION and "out of memory" in result.log[-2000:]
    )
    if failed_for_memory:
        channel.send({"limit": "memory"})
    elif len(result.ptx) + len(result.cubin) > MAX_CODE_BYTES:
        channel.send({"limit": "output"})
    else:
        reply = {
            "status": result.status,
            "log": _shortened(result.log),
            "lowered": result.lowered,
            "seconds": time.monotonic() - start,
        }
        channel.send(reply, [result.ptx, result.cubin])


def _precompile(channel: Channel, request: dict[str, Any]) -> None:
    """Send the precompiled header of a source."""
    file = Path("headers.pch").resolve()
    request["options"] = [*request["options"], f"--create-pch={file}"]
    result = _compile(request)
    if result.status or not file.is_file():
        channel.send({"error": _shortened(result.log)[:2000]})
        return
    with file.open("rb") as made, mmap.mmap(made.fileno(), 0, prot=mmap.PROT_READ) as data:
        channel.send({}, [memoryview(data)])


def _shortened(log: str) -> str:
    """Both ends of a log that is too long: messages are first, ptxas' figures last."""
    if len(log) <= MAX_LOG_CHARACTERS:
        return log
    half = MAX_LOG_CHARACTERS // 2
    return f"{log[:half]}\n{log[-half:]}"


def _compile(request: dict[str, Any]) -> Any:
    nvrtc: Nvrtc = _state["nvrtc"]
    return nvrtc.compile(
        request["source"],
        request["name"],
        headers=_state["headers"],
        options=request["options"],
        expressions=request["expressions"],
    )
